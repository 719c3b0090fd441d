"""Every verb of `python -m dradriver.simulation`, and what it says to bad input."""

import json
import subprocess
import sys

import pynvml
import pytest

from dradriver.simulation.__main__ import main
from dradriver.simulation.store import Store


@pytest.fixture
def run(folder, capsys):
    """Run a verb on the test's node; gives what it printed."""

    def do(*arguments, code=0):
        try:
            found = main(["--state", str(folder), *map(str, arguments)])
        except SystemExit as ended:
            found = ended.code
        output = capsys.readouterr()
        assert found == code, output.err
        assert bool(output.err) == bool(code)
        return (output.err if code else output.out).rstrip("\n")

    return do


@pytest.fixture
def shown(run):
    return lambda: json.loads(run("show"))


@pytest.fixture
def gpu(run, shown):
    """A node with one GPU, MIG on; gives what `show` tells of the GPU."""
    run("create", "1xh100-80gb", "--mig", "on")
    return lambda: shown()["gpus"][0]


# --- the node ---------------------------------------------------------------------------------------


def test_create_and_show(run, shown, folder):
    assert run("create", "8xh100-80gb") == f"8 GPUs, driver 580.105.08, in {folder}"
    node = shown()
    first = node["gpus"][0]
    assert (node["driver_version"], node["cuda_version"], len(node["gpus"])) == ("580.105.08", "13.0", 8)
    assert first == {
        "index": 0,
        "plugged": True,
        "model": "h100-80gb",
        "product": "NVIDIA H100 80GB HBM3",
        "uuid": first["uuid"],
        "minor": 0,
        "pci_bus_id": "0000:09:00.0",
        "numa_node": 0,
        "mig": {"current": False, "pending": False},
        "instances": [],
        "processes": [],
        "lost": False,
        "recovery": "none",
        "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
        "fabric": "healthy",
        "sram_exceeded": False,
        "retired_pending": False,
        "latencies_ms": {},
    }
    assert (node["faults"], node["latencies_ms"], node["events"]) == ([], {}, 0)
    assert node["boot_id"] == Store(folder).read().boot_id


def test_create_options(run, shown, tmp_path):
    machine = tmp_path / "machine.yaml"
    machine.write_text("gpus: [{gpu: a30}, {gpu: t4}]")
    run("create", machine, "--mig", "on", "--driver", "595.10.01")
    node = shown()
    assert node["driver_version"] == "595.10.01"
    assert [one["mig"] for one in node["gpus"]] == [{"current": True, "pending": True}, None]


def test_create_again_needs_force(run, shown):
    run("create", "1xl4")
    assert "give --force" in run("create", "2xt4", code=2)
    assert len(shown()["gpus"]) == 1
    run("create", "2xt4", "--force")
    assert len(shown()["gpus"]) == 2


def test_state_before_or_after_the_verb(folder, capsys):
    assert main(["create", "1xl4", "--state", str(folder)]) == 0
    assert main(["show", "--state", str(folder)]) == 0
    assert main(["--state", str(folder), "show"]) == 0
    assert main(["process", "add", "1", "--state", str(folder)]) == 0
    assert main(["process", "--state", str(folder), "remove", "1"]) == 0
    capsys.readouterr()


def test_reboot(run, gpu, shown):
    run("instance", "create", "1g.10gb")
    before = shown()["boot_id"]
    assert run("reboot") == f"rebooted, boot id {shown()['boot_id']}"
    assert shown()["boot_id"] != before
    assert (gpu()["instances"], gpu()["mig"]["current"]) == ([], False)


def test_driver_reload(run, gpu, shown):
    assert run("driver-reload") == "driver 580.105.08 loaded"
    assert run("driver-reload", "--version", "595.10.01") == "driver 595.10.01 loaded"
    assert (shown()["driver_version"], shown()["driver_loads"]) == ("595.10.01", 3)


def test_reset(run, shown):
    run("create", "2xa30")
    run("mig", "on")
    run("mig", "on", "--gpu", 1)
    run("reset", "--gpu", 1)
    assert [one["mig"]["current"] for one in shown()["gpus"]] == [False, True]
    run("reset")
    assert [one["mig"]["current"] for one in shown()["gpus"]] == [True, True]


# --- errors -----------------------------------------------------------------------------------------


def test_xid(node, capsys):
    events = node.watch()
    assert main(["xid", "94", "--gi", "7", "--ci", "0", "--recovery", "drain-p2p", "--state", str(node.folder)]) == 0
    found = pynvml.nvmlEventSetWait_v2(events, 1000)
    assert (found.eventData, found.gpuInstanceId, found.computeInstanceId) == (94, 7, 0)
    assert capsys.readouterr().out == "Xid 94 on GPU 0\n"
    assert node.gpu().recovery == 3


def test_xids_by_the_thousand(run, gpu, shown):
    assert run("xid", 31, "--times", 10_000) == "Xid 31 on GPU 0, 10000 times"
    assert shown()["events"] == 10_000
    assert run("xid", 31) == "Xid 31 on GPU 0"
    assert shown()["events"] == 10_001


def test_event(make_node, capsys):
    node = make_node("2xh100-80gb")
    events = node.watch(0x4000, index=1)
    arguments = ["event", "gpu-unavailable", "--gpu", "1", "--data", "5", "--times", "2", "--state", str(node.folder)]
    assert main(arguments) == 0
    assert capsys.readouterr().out == "event gpu-unavailable on GPU 1, 2 times\n"
    for _ in range(2):
        found = pynvml.nvmlEventSetWait_v2(events, 1000)
        assert (found.eventType, found.eventData) == (0x4000, 5)
    assert node.gpu(1).recovery == 0


def test_fabric(run, shown):
    run("create", "2xh100-80gb")
    assert run("fabric", "unhealthy", "--gpu", 1) == "fabric of GPU 1 is unhealthy"
    assert [gpu["fabric"] for gpu in shown()["gpus"]] == ["healthy", "unhealthy"]
    assert run("fabric", "none") == "GPU 0 is in no fabric"
    assert [gpu["fabric"] for gpu in shown()["gpus"]] == ["none", "unhealthy"]


def test_sram(run, gpu):
    assert run("sram", "--exceeded", "on") == "threshold of SRAM errors of GPU 0 is exceeded"
    assert gpu()["sram_exceeded"] is True
    assert run("sram", "--exceeded", "off") == "threshold of SRAM errors of GPU 0 is not exceeded"
    assert gpu()["sram_exceeded"] is False


def test_retired_pending(run, shown):
    run("create", "1xt4,1xh100-80gb")
    assert run("retired-pending", "on") == "pages of GPU 0 wait to be retired"
    assert shown()["gpus"][0]["retired_pending"] is True
    assert run("retired-pending", "off") == "no pages of GPU 0 wait to be retired"
    assert shown()["gpus"][0]["retired_pending"] is False
    assert "this GPU retires no pages of memory (NOT_SUPPORTED)" in run("retired-pending", "on", "--gpu", 1, code=1)


def test_lose_and_recover(run, gpu):
    run("lose")
    assert (gpu()["lost"], gpu()["recovery"]) == (True, "node-reboot")
    assert "off the bus" in run("reset", code=1)
    run("recover")
    assert (gpu()["lost"], gpu()["recovery"]) == (False, "none")


def test_recover_one_of_two(run, shown):
    run("create", "2xl4")
    run("lose", "--gpu", 0)
    run("lose", "--gpu", 1)
    run("recover", "--gpu", 1)
    assert [one["lost"] for one in shown()["gpus"]] == [True, False]


def test_remap(run, gpu):
    run("remap", "--uncorrectable", 2, "--pending")
    assert gpu()["remapped_rows"] == {"correctable": 0, "uncorrectable": 2, "pending": True, "failure": False}
    run("remap", "--correctable", 1, "--failure", "yes", "--pending", "no")
    assert gpu()["remapped_rows"] == {"correctable": 1, "uncorrectable": 2, "pending": False, "failure": True}
    assert "at least one of --correctable" in run("remap", code=2)


def test_minor(run, shown):
    run("create", "2xl4")
    run("minor", 7)
    assert [one["minor"] for one in shown()["gpus"]] == [7, 1]
    assert "GPU 1 has minor 1" in run("minor", 1, code=1)
    assert "from 0 to 31" in run("minor", 32, code=2)


# --- faults -----------------------------------------------------------------------------------------


def test_fail(run, gpu, shown):
    run("fail", "nvmlGpuInstanceDestroy", "--error", "in_use", "--times", 2, "--after", 1, "--gpu", 0, "--late")
    assert shown()["faults"] == [
        {"call": "nvmlGpuInstanceDestroy", "error": "IN_USE", "after": 1, "times": 2, "gpu": 0, "late": True}
    ]
    run("fail", "nvmlInit", "--error", "NVML_ERROR_DRIVER_NOT_LOADED")
    run("fail", "nvmlGpuInstanceDestroy", "--clear")
    assert [one["call"] for one in shown()["faults"]] == ["nvmlInitWithFlags"]
    run("fail", "all", "--clear")
    assert shown()["faults"] == []


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("nvmlDeviceGetCount", "nvmlDeviceGetCount_v2"),
        ("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v3"),
        ("nvmlEventSetWait", "nvmlEventSetWait_v2"),
        ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v3"),
        ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo"),
    ],
)
def test_calls_may_be_named_as_in_python(run, gpu, shown, name, symbol):
    run("fail", name, "--error", "UNKNOWN")
    run("latency", name, 5)
    assert shown()["faults"][0]["call"] == symbol
    assert shown()["latencies_ms"] == {symbol: 5}


def test_latency(run, gpu, shown):
    assert run("latency", "nvmlGpuInstanceDestroy", 12.5) == "nvmlGpuInstanceDestroy takes 12.5 ms"
    assert shown()["latencies_ms"] == {"nvmlGpuInstanceDestroy": 12.5}
    run("latency", "nvmlGpuInstanceDestroy", 0)
    assert shown()["latencies_ms"] == {}


def test_latency_of_one_gpu(run, shown):
    run("create", "2xh100-80gb")
    told = run("latency", "nvmlDeviceGetMigMode", 300_000, "--gpu", 1)
    assert told == "nvmlDeviceGetMigMode takes 300000 ms on GPU 1"
    assert shown()["latencies_ms"] == {}
    assert [gpu["latencies_ms"] for gpu in shown()["gpus"]] == [{}, {"nvmlDeviceGetMigMode": 300_000}]
    run("latency", "nvmlDeviceGetMigMode", 0, "--gpu", 1)
    assert shown()["gpus"][1]["latencies_ms"] == {}


# --- MIG and processes --------------------------------------------------------------------------------


def test_mig(run, gpu):
    run("instance", "create", "1g.10gb")
    assert "processes or instances hold GPU 0" in run("mig", "off", code=1)
    run("instance", "destroy", "--all")
    assert run("mig", "off") == "MIG mode of GPU 0 is off"
    assert gpu()["mig"] == {"current": False, "pending": False}
    assert "MIG mode is off" in run("instance", "create", "1g.10gb", code=1)


def test_mig_on_ampere_waits(run, shown):
    run("create", "1xa100-40gb")
    assert run("mig", "on") == "MIG mode of GPU 0 is on after the next reset"
    assert shown()["gpus"][0]["mig"] == {"current": False, "pending": True}


def test_instance(run, gpu):
    made = json.loads(run("instance", "create", "3g.40gb", "--start", 4))
    assert made == gpu()["instances"][0]
    assert (made["profile"], made["profile_id"], made["placement"]) == ("3g.40gb", 9, {"start": 4, "size": 4})
    assert (made["gpu_instance_id"], made["memory_mib"]) == (1, 40448)
    (compute,) = made["compute_instances"]
    assert (compute["profile"], compute["mig_index"], compute["compute_instance_id"]) == ("3g.40gb", 0, 0)
    bare = json.loads(run("instance", "create", 19, "--bare"))
    assert (bare["profile"], bare["compute_instances"]) == ("1g.10gb", [])
    run("instance", "destroy", "--uuid", compute["uuid"])
    run("instance", "destroy", "--gi", bare["gpu_instance_id"])
    assert gpu()["instances"] == []


def test_instances_that_cannot_be(run, gpu):
    run("instance", "create", "7g.80gb")
    assert "no room for 1g.10gb (INSUFFICIENT_RESOURCES)" in run("instance", "create", "1g.10gb", code=1)
    assert "it has 1g.10gb, 2g.20gb" in run("instance", "create", "1g.5gb", code=1)
    assert "no MIG device MIG-1" in run("instance", "destroy", "--uuid", "MIG-1", code=1)
    assert "no such GPU instance" in run("instance", "destroy", "--gi", 5, code=1)
    assert "one of the arguments --gi --uuid --all is required" in run("instance", "destroy", code=2)
    assert len(gpu()["instances"]) == 1


def test_process(run, gpu):
    made = json.loads(run("instance", "create", "1g.10gb"))
    gi, uuid = made["gpu_instance_id"], made["compute_instances"][0]["uuid"]
    run("process", "add", 11, "--uuid", uuid, "--memory", 100)
    run("process", "add", 12, "--gi", gi)
    assert gpu()["processes"] == [
        {"pid": 11, "gpu_instance_id": gi, "compute_instance_id": 0, "memory_mib": 100},
        {"pid": 12, "gpu_instance_id": gi, "compute_instance_id": 0, "memory_mib": 0},
    ]
    assert "a process uses it" in run("instance", "destroy", "--all", code=1)
    assert "processes use GPU 0" in run("reset", code=1)
    assert "processes use GPU 0" in run("driver-reload", code=1)
    run("process", "remove", 11)
    run("process", "remove", 12)
    assert gpu()["processes"] == []
    assert "no process 12" in run("process", "remove", 12, code=1)


# --- bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "required: VERB"),
        (["dance"], "invalid choice: 'dance' (choose from 'create', 'show'"),
        (["create"], "required: machine"),
        (["create", "1xl4", "--driver", "new"], "give one like 580.105.08"),
        (["create", "1xl4", "--mig", "perhaps"], "choose from 'on', 'off'"),
        (["create", "1xh900"], "unknown gpu 'h900': it is one of a30"),
        (["driver-reload", "--version", "x"], "give one like"),
        (["xid", "much"], "not a whole number from 1 to"),
        (["xid", "0"], "not a whole number from 1 to"),
        (["xid", "79", "--recovery", "hope"], "choose from 'none', 'gpu-reset'"),
        (["xid", "79", "--gpu", "1"], "no GPU 1: this node has GPUs 0 to 0"),
        (["xid", "79", "--times", "0"], "from 1 to"),
        (["event", "surprise"], "choose from 'single-bit-ecc', 'double-bit-ecc'"),
        (["event"], "required: TYPE"),
        (["fabric", "torn"], "choose from 'none', 'joining', 'healthy', 'unhealthy'"),
        (["sram"], "required: --exceeded"),
        (["retired-pending", "perhaps"], "choose from 'on', 'off'"),
        (["lose", "--gpu", "-1"], "'-1' is not a whole number from 0"),
        (["process", "add", "4294967296"], "to 4294967295"),
        (["minor", "1" * 5000], "invalid"),
        (["recover", "--gpu", "1"], "no GPU 1"),
        (["reset", "--gpu", "1"], "no GPU 1"),
        (["remap", "--pending", "maybe"], "choose from 'yes', 'no'"),
        (["minor", "x"], "not a whole number from 0 to"),
        (["fail", "nvmlDeviceGetUUID"], "--error NAME"),
        (["fail", "nvmlDeviceGetUUID", "--error", "BAD"], "it is one of UNINITIALIZED"),
        (["fail", "nvmlDeviceGetUUID", "--error", "SUCCESS"], "it is one of UNINITIALIZED"),
        (["fail", "nvmlDeviceGetUUID", "--error", "UNKNOWN", "--gpu", "3"], "no GPU 3"),
        (["fail", "nvmlDeviceGetUUID", "--error", "UNKNOWN", "--times", "0"], "from 1 to"),
        (["fail", "GetMigMode", "--error", "UNKNOWN"], "there are nvmlDeviceGetMigMode"),
        (["latency", "nvmlDance", "1"], "no NVML call 'nvmlDance' here; there are nvmlInitWithFlags"),
        (["latency", "nvmlDeviceGetUUID", "nan"], "milliseconds from 0 to"),
        (["latency", "nvmlDeviceGetUUID", "-1"], "milliseconds"),
        (["latency", "nvmlDeviceGetUUID", "1", "--gpu", "1"], "no GPU 1"),
        (["latency", "nvmlDeviceGetUUID", "long"], "milliseconds from 0 to"),
        (["instance"], "required: VERB"),
        (["instance", "create", "1g.10gb", "--gpu", "2"], "no GPU 2"),
        (["process", "add", "x"], "not a whole number"),
        (["show", "more"], "unrecognized arguments: more"),
    ],
)
def test_bad_input_is_told_in_one_sentence(run, gpu, arguments, sentence):
    before = gpu()
    told = run(*arguments, *(["--force"] if arguments[:1] == ["create"] and len(arguments) > 1 else []), code=2)
    assert sentence in told
    assert "\n" not in told
    assert gpu() == before


@pytest.mark.parametrize("verb", [["show"], ["lose"], ["reboot"], ["fail", "nvmlDeviceGetUUID", "--error", "UNKNOWN"]])
def test_verbs_without_a_node(run, verb):
    assert "create 1xh100-80gb" in run(*verb, code=2)


def test_no_folder_at_all(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["show"])
    assert ended.value.code == 2
    assert "--state DIR is missing" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(capsys, tmp_path):
    (tmp_path / "file").touch()
    assert main(["--state", str(tmp_path / "file" / "node"), "create", "1xl4"]) == 2
    assert "Not a directory" in capsys.readouterr().err


def test_it_is_a_program(folder):
    def program(*arguments):
        command = [sys.executable, "-m", "dradriver.simulation", "--state", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert program("create", "1xl4").returncode == 0
    assert json.loads(program("show").stdout)["gpus"][0]["model"] == "l4"
    bad = program("create", "1xl5", "--force")
    assert (bad.returncode, bad.stdout, bad.stderr.count("\n")) == (2, "", 1)
    helped = program("--help")
    assert helped.returncode == 0
    assert "driver-reload" in helped.stdout


def test_a_reader_who_has_seen_enough_is_not_told(run, folder):
    run("create", "16xh100-80gb")
    command = f"'{sys.executable}' -m dradriver.simulation --state '{folder}' show | head -c 1"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("{", "")


# --- slots ------------------------------------------------------------------------------------------


def test_unplug_and_plug(run, shown):
    run("create", "4xh100-80gb", "--mig", "on")
    before = shown()["gpus"]
    assert run("unplug", "--gpu", 1, 3, 1) == "unplugged GPU 1, 3"
    assert [one["plugged"] for one in shown()["gpus"]] == [True, False, True, False]
    assert run("plug", "--gpu", 1) == "plugged in GPU 1"
    assert run("plug", "--replace", "--gpu", 3) == "plugged in another GPU 3"
    after = shown()["gpus"]
    assert [one["index"] for one in after if one["plugged"]] == [0, 1, 2, 3]
    assert [old["uuid"] == new["uuid"] for old, new in zip(before, after, strict=True)] == [True, True, True, False]
    assert [old["minor"] for old in before] == [new["minor"] for new in after]


def test_all_or_none_are_unplugged(run, shown):
    run("create", "2xh100-80gb")
    assert "no GPU 2" in run("unplug", "--gpu", 0, 2, code=2)
    run("unplug", "--gpu", 1)
    assert run("unplug", "--gpu", 0, 1, code=1) == "simulation: refused: GPU 1 is unplugged already (NOT_FOUND)"
    assert run("plug", "--gpu", 1, 0, code=1) == "simulation: refused: GPU 0 is plugged in: unplug it first (IN_USE)"
    assert [one["plugged"] for one in shown()["gpus"]] == [True, False]
    assert "--gpu" in run("unplug", code=2)


@pytest.mark.parametrize(
    "verb",
    [
        ("mig", "on"), ("xid", 79), ("lose",), ("recover",), ("reset",), ("remap", "--pending"), ("minor", 5),
        ("event", "xid"), ("fabric", "joining"), ("sram", "--exceeded", "on"), ("retired-pending", "on"),
        ("instance", "create", "1g.10gb"), ("instance", "destroy", "--all"), ("process", "add", 1),
    ],
)  # fmt: skip
def test_nothing_happens_to_an_unplugged_gpu(run, shown, verb):
    run("create", "2xh100-80gb")
    run("unplug", "--gpu", 1)
    assert run(*verb, "--gpu", 1, code=1) == ("simulation: refused: GPU 1 is unplugged: plug it in first (NOT_FOUND)")
    run("fail", "nvmlDeviceGetUUID", "--error", "UNKNOWN", "--gpu", 1)
    run("reset")
    run("recover")
    assert shown()["gpus"][1]["plugged"] is False
