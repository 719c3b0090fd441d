"""`dradriver slices`, as a person uses it, and compared with what the plugin itself offers."""

import json
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from doubles.apiserver import ApiServer
from doubles.machines import simulation_main
from doubles.offering import OfferingNode, wanted
from doubles.preparing import POOL

from dradriver import api
from dradriver.commands.slices import main
from dradriver.gpu.health import Place
from dradriver.gpu.model import Placement
from dradriver.gpu.policy import Sharing
from dradriver.health.condition import Condition, hear
from dradriver.health.memory import Known, save
from dradriver.health.policy import default_policy
from dradriver.health.verdict import marks
from dradriver.kube.connection import connect
from dradriver.kubelet import Prepared
from dradriver.publish import slice_name
from dradriver.resource import slice_spec

ONE_G, THREE_G, ELSEWHERE = "gpu-0-mig-1g10gb-19-0", "gpu-0-mig-3g40gb-9-4", "gpu-1-mig-1g10gb-19-3"


@pytest.fixture
def machine(tmp_path, capsys):
    """Make a simulated node; gives its folder, and what does something to it."""

    class Machine:
        folder = tmp_path / "gpus"

        def do(self, *words):
            assert simulation_main(["--state", str(self.folder), *map(str, words)]) == 0
            return capsys.readouterr().out

        @property
        def uuids(self):
            return [gpu["uuid"] for gpu in json.loads(self.do("show"))["gpus"]]

    made = Machine()
    made.do("create", "2xh100-80gb")
    return made


@pytest.fixture
def slices(run, machine):
    """Run it on the simulated node; gives the status, the documents and what is told."""

    def do(*words):
        status, out, err = run(main, "--simulation", machine.folder, *words)
        return status, list(yaml.safe_load_all(out)), err

    return do


def devices(documents):
    return {device["name"]: device for one in documents for device in one["spec"].get("devices", [])}


# --- a node by itself -----------------------------------------------------------------------------


def test_what_would_be_published(slices, machine):
    status, documents, told = slices("--node-name", "node-a", "--mig", "dynamic")
    assert status == 0
    assert [one["metadata"]["name"] for one in documents] == [f"0000{n}-gpu.nvidia.com-node-a" for n in range(3)]
    assert devices(documents)["gpu-1"]["attributes"]["uuid"]["string"] == machine.uuids[1]
    assert told == "dradriver slices: 3 slices, 30 devices, 2 counter sets of 2 GPUs, in pool node-a\n"


def test_json_and_table(run, machine):
    _, out, _ = run(main, "--simulation", machine.folder, "-o", "json")
    assert [one["kind"] for one in json.loads(out)["items"]] == ["ResourceSlice"]
    _, out, _ = run(main, "--simulation", machine.folder, "-o", "table")
    assert out.splitlines()[0].startswith("SLICE ")
    assert [line.split()[1:3] for line in out.splitlines()[1:]] == [["gpu-0", "gpu"], ["gpu-1", "gpu"]]


def test_the_node_is_this_one(slices, monkeypatch):
    assert slices()[1][0]["spec"]["nodeName"] == socket.gethostname().lower()
    monkeypatch.setenv("NODE_NAME", "node-b")
    assert slices()[1][0]["spec"]["nodeName"] == "node-b"


def test_variables_of_the_plugin_hold(run, machine, monkeypatch):
    monkeypatch.setenv("SIMULATION", str(machine.folder))
    monkeypatch.setenv("MIG", "dynamic")
    monkeypatch.setenv("PROFILES", "7g.80gb")
    _, out, _ = run(main, "-o", "table")
    assert {line.split()[3] for line in out.splitlines()[1:]} == {"7g.80gb", "-"}


def test_instances_that_somebody_has_made(slices, machine):
    machine.do("mig", "on")
    machine.do("instance", "create", "3g.40gb", "--start", 4)
    _, documents, _ = slices()
    assert set(devices(documents)) == {THREE_G, "gpu-1"}
    _, documents, _ = slices("--mig", "dynamic")
    tainted = {name for name, device in devices(documents).items() if device.get("taints")}
    assert {THREE_G, "gpu-0", "gpu-0-mig-7g80gb-0-0"} <= tainted
    assert ONE_G not in tainted


def test_a_gpu_that_offers_nothing_is_told(slices, machine):
    machine.do("mig", "on")
    status, documents, told = slices()
    assert (status, set(devices(documents))) == (0, {"gpu-1"})
    assert f"dradriver slices: GPU {machine.uuids[0]} offers nothing: it is in MIG mode" in told


def test_a_gpu_that_cannot_be_read_is_told_and_the_others_are_printed(slices, machine):
    machine.do("fail", "nvmlDeviceGetMigMode", "--error", "UNKNOWN", "--gpu", 1)
    status, documents, told = slices()
    assert (status, set(devices(documents))) == (1, {"gpu-0"})
    assert f"dradriver slices: GPU {machine.uuids[1]} cannot be read: nvmlDeviceGetMigMode" in told


def test_a_gpu_that_the_api_server_would_refuse_is_told_and_the_others_are_printed(slices, machine, tmp_path):
    rows = [{"gpu": "h100-80gb", "profiles": {19: {"name": "1g." + "9" * 60 + "gb"}}}, {"gpu": "h100-80gb"}]
    file = tmp_path / "machine.yaml"
    file.write_text(yaml.safe_dump({"gpus": rows}))
    machine.do("create", file, "--force")
    status, documents, told = slices("--mig", "dynamic")
    assert status == 1
    assert {name.split("-mig-")[0] for name in devices(documents)} == {"gpu-1"}
    assert f"dradriver slices: GPU {machine.uuids[0]} is not offered, since the API server would refuse it" in told
    assert "of 2 GPUs, 1 of them refused, in pool" in told


def test_no_gpus_are_one_empty_slice(slices, machine):
    machine.do("unplug", "--gpu", 0, 1)
    status, documents, told = slices("--node-name", "node-a")
    assert (status, devices(documents), len(documents)) == (0, {}, 1)
    assert told == "dradriver slices: 1 slice, 0 devices, 0 counter sets of 0 GPUs, in pool node-a\n"


# --- what it cannot do ----------------------------------------------------------------------------


def test_no_such_simulated_node(run, tmp_path):
    status, out, err = run(main, "--simulation", tmp_path / "nothing")
    assert (status, out) == (2, "")
    assert err.startswith(f"dradriver slices: no simulated node in {tmp_path / 'nothing'}: make one with")


def test_a_driver_that_cannot_be_loaded(run, tmp_path, monkeypatch):
    """Its library is taken from below the driver root, and NVML, since that is asked for, not the simulation."""
    monkeypatch.setenv("SIMULATION", "/nowhere")
    monkeypatch.setenv("DRIVER_ROOT_CTR_PATH", str(tmp_path))
    library = tmp_path / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.write_text("no library")
    status, out, err = run(main, "--nvml")
    assert (status, out) == (1, "")
    assert err.startswith(f"dradriver slices: the GPUs are not available: dlopen failed: {library} cannot be loaded")
    assert "install the NVIDIA driver on this node" in err


def test_a_driver_that_does_not_answer(run, machine):
    machine.do("fail", "nvmlDeviceGetCount", "--error", "UNKNOWN")
    status, out, err = run(main, "--simulation", machine.folder)
    assert (status, out) == (1, "")
    assert "dradriver slices: the GPUs are not available: nvmlDeviceGetCount failed" in err


def test_one_of_the_two(run):
    assert run(main, "--nvml", "--simulation", "x")[0] == 2


# --- beside a plugin that runs --------------------------------------------------------------------


@pytest.fixture
def node(tmp_path):
    """A node whose plugin offers what claims leave, with its files where a kubelet has them."""
    with ApiServer() as server:
        client = connect(server.kubeconfig(tmp_path))
        plugin = tmp_path / "plugins" / api.DRIVER_NAME
        plugin.mkdir(parents=True)
        made = OfferingNode(plugin, server, client)
        (plugin / "gpu-numbers.json").symlink_to("gpus.json")
        yield made
        made.nvml.close()
        client.close()


def offered(node):
    """Specs of what the plugin has handed to its publisher."""
    node.look()
    slices = node.slices.offers[-1]
    pool = {"name": POOL, "generation": 1, "resourceSliceCount": len(slices)}
    return {
        slice_name(index, driver=api.DRIVER_NAME, node_name=POOL): slice_spec(
            content, driver=api.DRIVER_NAME, node_name=POOL, pool=pool
        )
        for index, content in enumerate(slices)
    }


def printed(node, *words, mig="dynamic"):
    """Specs of what another process prints, which has an NVML of its own."""
    command = [
        sys.executable, "-m", "dradriver", "slices", "--simulation", node.state, "--node-name", POOL, "--mig", mig,
        "--kubelet-plugins-directory-path", node.folder.parent, *words,
    ]  # fmt: skip
    before = contents(node.folder)
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, check=False)
    assert contents(node.folder) == before, "only a look"
    return (
        done.returncode,
        {one["metadata"]["name"]: one["spec"] for one in yaml.safe_load_all(done.stdout)},
        done.stderr,
    )


def contents(folder: Path):
    """All files that the plugin has written, with the time of writing."""
    plugin = [path for path in folder.rglob("*") if "gpus" not in path.relative_to(folder).parts]
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in plugin}


def test_partitions_of_claims_are_not_foreign(node):
    before = offered(node)
    for device in (ONE_G, THREE_G, ELSEWHERE):
        assert not isinstance(node.prepare(node.claim(device)), list)
    assert node.instances()
    status, specs, _ = printed(node)
    assert (status, specs) == (0, before)
    assert specs == offered(node)


def test_what_claims_hold_stays_though_nothing_wants_it_any_more(node):
    offered(node)
    node.prepare(node.claim(THREE_G))
    node.want = wanted(profiles="1g.10gb")
    status, specs, _ = printed(node, "--profiles", "1g.10gb")
    assert (status, specs) == (0, offered(node))
    (kept,) = [one for spec in specs.values() for one in spec.get("devices", []) if one["name"] == THREE_G]
    assert [taint["key"] for taint in kept["taints"]] == ["dradriver.dev/not-offered"]


def test_a_gpu_that_is_gone_while_a_claim_holds_it(node):
    offered(node)
    node.prepare(node.claim(ELSEWHERE))
    uuid = node.uuids()[1]
    node.simulate("unplug", "--gpu", "1")
    status, specs, told = printed(node)
    assert (status, specs) == (0, offered(node))
    assert f"GPU {uuid} does not answer or is not there any more" in told


def test_numbers_are_those_of_the_plugin(node):
    offered(node)
    node.simulate("minor", "9", "--gpu", "0")
    status, specs, _ = printed(node)
    assert (status, specs) == (0, offered(node))
    names = {one["name"] for spec in specs.values() for one in spec.get("devices", [])}
    assert {"gpu-0", "gpu-1"} <= names


def test_a_new_gpu_gets_a_number_that_is_not_kept(node):
    offered(node)
    node.simulate("unplug", "--gpu", "0")
    node.simulate("plug", "--replace", "--gpu", "0")
    status, specs, told = printed(node)
    assert status == 0
    names = {one["name"] for spec in specs.values() for one in spec.get("devices", [])}
    assert {"gpu-1", "gpu-2"} <= names
    assert "was here since the node has booted" in told


def test_a_damaged_record_is_told_and_left_out(node):
    offered(node)
    node.prepare(node.claim(ONE_G))
    path = node.folder / "claims" / "b.json"
    path.write_text("{")
    status, specs, told = printed(node)
    assert (status, specs) == (0, offered(node))
    assert f"dradriver slices: {path}: the record is damaged and left out" in told


def test_a_damaged_file_of_numbers_is_told_on_stderr(node):
    offered(node)
    (node.folder / "gpus.json").write_text("{")
    status, specs, told = printed(node)
    assert status == 0
    assert specs
    assert "numbers of GPUs are lost" in told


def test_a_folder_of_no_plugin(run, machine, tmp_path):
    words = ("--simulation", machine.folder, "--kubelet-plugins-directory-path", tmp_path / "plugins")
    status, out, err = run(main, *words)
    claims = tmp_path / "plugins/gpu.nvidia.com/claims"
    assert (status, out) == (1, "")
    assert err.startswith(f"dradriver slices: {claims}: it cannot be read: No such file or directory; ")
    claims.parent.mkdir(parents=True)
    claims.touch()
    assert f"{claims}: it cannot be read: Not a directory; " in run(main, *words)[2]
    claims.unlink()
    (claims / "a.json").mkdir(parents=True)
    assert f"{claims}/a.json: it cannot be read: Is a directory; " in run(main, *words)[2]


# --- health ---------------------------------------------------------------------------------------


def sick(node, condition, *, gpu=0, boot_id=None):
    """Let the plugin have written that this is held against a GPU."""
    known = Known(boot_id=boot_id or node.boot_id, conditions={node.uuids()[gpu]: condition})
    assert save(node.folder / "health.json", known) == ""


def reported(xid, *, place=None):
    policy = default_policy()
    return hear(Condition(), policy, origin="xid", detail=str(xid), place=place, claims=(), now=time.time() - 60)


def tainted(specs):
    """Taints of devices that have some."""
    every = (device for spec in specs.values() for device in spec.get("devices", []))
    return {device["name"]: device["taints"] for device in every if device.get("taints")}


def test_taints_of_health_are_those_of_the_plugin(node):
    offered(node)
    condition = reported(79)
    sick(node, condition)
    node.offering.mark({node.uuids()[0]: marks(condition, default_policy(), node.uuids()[0])})
    status, specs, told = printed(node)
    assert (status, specs) == (0, offered(node))
    assert {name.split("-mig-")[0] for name in tainted(specs)} == {"gpu-0"}
    assert len(tainted(specs)) > 5, "every partition of it"
    (line,) = [line for line in told.splitlines() if "health" in line]
    assert line.startswith(f"dradriver slices: health: gpu-0 ({node.uuids()[0]}): ")
    assert "gpu.nvidia.com/xid=79:NoExecute since 20" in line


def test_what_concerns_one_partition_hits_that_one(node):
    offered(node)
    sick(node, reported(94, place=Place(profile_id=19, placement=Placement(start=0, size=1))))
    _, specs, told = printed(node)
    assert list(tainted(specs)) == [ONE_G]
    assert f"gpu.nvidia.com/xid=94:None on {ONE_G} since 20" in told


def test_of_one_key_the_gravest_is_told(node):
    offered(node)
    condition = reported(13)
    sick(node, replace(condition, causes=condition.causes + reported(95).causes))
    told = printed(node)[2]
    assert "xid=95:NoExecute" in told
    assert "xid=13" not in told


def test_that_all_are_well_is_told_where_a_plugin_runs(node, slices):
    offered(node)
    assert "dradriver slices: health: all GPUs are well\n" in printed(node)[2]
    assert "health" not in slices()[2]


def test_what_a_start_of_the_node_ends_is_no_taint_any_more(node):
    offered(node)
    sick(node, reported(79), boot_id="earlier")
    _, specs, told = printed(node)
    assert not tainted(specs)
    assert "health: all GPUs are well" in told


def test_health_that_cannot_be_read_is_told_and_the_slices_are_printed(node):
    expected = offered(node)
    (node.folder / "health.json").write_text("{")
    status, specs, told = printed(node)
    assert (status, specs) == (0, expected)
    assert f"dradriver slices: health is left out: {node.folder}/health.json: it is damaged: " in told


def test_shares_of_claims_stay_shares_though_nothing_wants_them_any_more(node):
    node.want = wanted("static", sharing=Sharing(replicas=4))
    offered(node)
    claims = [node.claim("gpu-0", shareID=f"share-{number}") for number in range(2)]
    assert all(isinstance(answer, Prepared) for answer in node.prepare(*claims))
    node.want = wanted("static")
    status, specs, _ = printed(node, mig="static")
    assert (status, specs) == (0, offered(node))
    (kept,) = [one for spec in specs.values() for one in spec["devices"] if one["name"] == "gpu-0"]
    assert kept["allowMultipleAllocations"]
    assert kept["capacity"]["shares"]["value"] == "2"
