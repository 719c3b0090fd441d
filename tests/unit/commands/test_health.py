"""`dradriver health`, as a person uses it on a node, beside a plugin that wrote its files or that runs."""

import json
import threading
import time
from dataclasses import replace

import pytest
from doubles.machines import gpus

from dradriver import api
from dradriver.api.node_config import HealthPolicy, encode_policy
from dradriver.commands import health
from dradriver.commands.health import age, main
from dradriver.gpu.health import Place
from dradriver.gpu.model import Placement
from dradriver.health import condition as found
from dradriver.health import memory
from dradriver.health.condition import Condition
from dradriver.health.policy import default_policy
from dradriver.health.requests import Requests, chosen
from dradriver.nodeconfig.memory import Remembered, remember
from dradriver.numbering import GpuMemory

GPUS = gpus("2xh100-80gb")
FIRST, SECOND = (gpu.uuid for gpu in GPUS)
PARTITION = Place(profile_id=19, placement=Placement(start=3, size=1))
POLICY = default_policy()
BOOT = "boot-1"


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class Node:
    """A node with the files of a plugin; none of them unless they are written."""

    def __init__(self, folder, run):
        self.plugins, self.simulation, self._run = folder / "plugins", folder / "gpus", run
        self.plugin = self.plugins / api.DRIVER_NAME
        self.boot = self.simulation / "root/proc/sys/kernel/random/boot_id"
        self.boot.parent.mkdir(parents=True)
        self.boot.write_text(f"{BOOT}\n")
        self.plugin.mkdir(parents=True)
        self.numbers = GpuMemory(self.plugin / "gpu-numbers.json", boot_id=BOOT)
        self.numbers.number(GPUS, held=frozenset())

    def keep(self, **conditions):
        by_uuid = {GPUS[int(name.removeprefix("gpu_"))].uuid: one for name, one in conditions.items()}
        assert memory.save(self.plugin / "health.json", memory.Known(boot_id=BOOT, conditions=by_uuid)) == ""

    def do(self, *words, verb=()):
        flags = ("--kubelet-plugins-directory-path", self.plugins, "--simulation", self.simulation)
        return self._run(main, *verb, *flags, *words)

    def gpu(self, index):
        return json.loads(self.do("-o", "json")[1])["gpus"][index]


@pytest.fixture
def node(tmp_path, run):
    return Node(tmp_path, run)


def reported(*xids, place=None, ago=10.0, claims=(), condition=None):
    condition = condition or Condition()
    for xid in xids:
        condition = found.hear(
            condition, POLICY, origin="xid", detail=str(xid), place=place, claims=claims, now=time.time() - ago
        )
    return condition


# --- what is held ---------------------------------------------------------------------------------


def test_a_node_on_which_all_is_well(node):
    status, out, err = node.do()
    assert (status, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["NAME", "UUID", "HEALTH"], ["gpu-0", FIRST, "healthy"], ["gpu-1", SECOND, "healthy"],
    ]  # fmt: skip


def test_a_gpu_that_evicts(node):
    node.keep(gpu_1=reported(79, ago=125))
    status, out, _ = node.do()
    assert status == 1
    assert [line.split()[-1] for line in out.splitlines()[1:3]] == ["healthy", "NoExecute"]
    lines = dict(line.split(maxsplit=1) for line in out.split("\n\n")[1].splitlines())
    assert lines["device"] == "gpu-1"
    assert set(lines["taints"].split(", ")) == {
        "gpu.nvidia.com/xid=79:NoExecute", "dradriver.dev/recovery=node-reboot:NoExecute",
    }  # fmt: skip
    assert lines["since"].endswith("+00:00 (2 min ago)")
    assert lines["ends"].startswith("a reset of the GPU; or it answers")
    assert lines["text"] == (
        f"GPU {SECOND} reported Xid 79 (lost): reboot the node; if it comes again, check power and seating of the GPU"
    )


def test_what_only_tells_is_no_failure(node):
    node.keep(gpu_0=reported(13))
    status, out, _ = node.do()
    assert status == 0
    assert out.splitlines()[1].split() == ["gpu-0", FIRST, "warn"]
    assert "taints  gpu.nvidia.com/xid=13:None\n" in out
    assert "ends    by itself at 20" in out


def test_a_partition_has_the_name_of_its_device(node):
    node.keep(gpu_1=reported(94, place=PARTITION))
    _, out, _ = node.do()
    assert "\ndevice  gpu-1-mig-1g10gb-19-3\n" in out
    assert node.gpu(1)["causes"][0]["partition"] == "gpu-1-mig-1g10gb-19-3"


def test_a_partition_of_a_profile_that_the_gpu_does_not_have_is_named_by_its_place(node):
    node.keep(gpu_1=reported(94, place=replace(PARTITION, profile_id=77)))
    assert "\ndevice  gpu-1, profile 77 at memory slice 3\n" in node.do()[1]


def test_the_gravest_comes_first_and_nothing_hides_another(node):
    node.keep(gpu_0=reported(13, 109, 95))
    gpu = node.gpu(0)
    assert (gpu["effect"], gpu["causes"][0]["detail"]) == ("NoExecute", "95")
    assert {one["detail"] for one in gpu["causes"]} == {"13", "109", "95"}


def test_what_is_read_by_programs(node):
    node.keep(gpu_0=reported(13, ago=0), gpu_1=found.raise_(Condition(), found.LOST, "why", time.time()))
    status, out, _ = node.do("-o", "json")
    document = json.loads(out)
    assert (status, document["currentBoot"]) == (1, True)
    mild, lost = document["gpus"]
    assert (mild["name"], mild["uuid"], mild["healthy"], mild["effect"]) == ("gpu-0", FIRST, False, "None")
    (cause,) = lost["causes"]
    assert cause["taints"][0].keys() == {"key", "value", "effect", "timeAdded"}
    assert (cause["origin"], cause["taints"][0]["key"]) == ("lost", api.TaintKey.GPU_LOST)
    assert cause["ends"] == {"how": "the GPU answers again", "at": None}
    assert mild["causes"][0]["ends"]["at"] > mild["causes"][0]["since"]


def test_a_gpu_that_is_well_is_read_by_programs(node):
    assert node.gpu(0) == {"name": "gpu-0", "uuid": FIRST, "healthy": True, "effect": None, "causes": []}


def test_what_is_ignored_is_not_held(node):
    strict = replace(POLICY.of_xid(154), effect="NoSchedule")
    held = found.hear(
        Condition(), replace(POLICY, xids={154: strict}), origin="xid", detail="154", place=None, claims=(), now=1.0
    )
    node.keep(gpu_0=held)
    assert node.gpu(0)["healthy"]


def test_what_has_expired_meanwhile_is_left_out(node):
    node.keep(gpu_0=reported(13, ago=POLICY.expiry + 1))
    assert node.gpu(0)["healthy"]


def test_the_policy_in_force_decides(node):
    node.keep(gpu_0=reported(13))
    policy = HealthPolicy(xids={13: "noSchedule"})
    remember(node.plugin / "node-config.json", Remembered(allocation="dra", health=encode_policy(policy)))
    assert node.do()[0] == 1
    assert node.gpu(0)["effect"] == "NoSchedule"


def test_a_policy_that_a_newer_version_wrote_does_no_harm(node):
    node.keep(gpu_0=reported(13))
    remember(node.plugin / "node-config.json", Remembered(allocation="dra", health={"moods": "bad"}))
    assert node.gpu(0)["effect"] == "None"


def test_a_start_of_the_node_ends_what_it_ends(node):
    node.keep(gpu_0=reported(79), gpu_1=reported(54))
    node.boot.write_text("boot-2")
    status, out, err = node.do()
    assert status == 1
    assert [line.split()[-1] for line in out.splitlines()[1:3]] == ["healthy", "NoSchedule"]
    assert err.startswith("dradriver health: the plugin has not run since this node was started")


def test_a_gpu_whose_number_is_lost_is_named_by_its_uuid(node):
    node.keep(gpu_1=reported(95))
    (node.plugin / "gpu-numbers.json").unlink()
    status, out, _ = node.do()
    assert status == 1
    assert out.splitlines()[1].split() == ["-", SECOND, "NoExecute"]
    assert f"device  {SECOND}\n" in out


def test_a_gpu_of_earlier_against_which_nothing_is_held_is_not_listed(node):
    over = found.lower(found.raise_(Condition(), found.LOST, "why", time.time()), found.LOST)
    assert over != Condition(), "how often it was so is still known"
    node.keep(gpu_1=over)
    GpuMemory(node.plugin / "gpu-numbers.json", boot_id="boot-0").number(GPUS[:1], held=frozenset())
    assert [line.split()[0] for line in node.do()[1].splitlines()] == ["NAME", "gpu-0"]


def test_a_plugin_that_has_seen_no_gpus(node):
    (node.plugin / "gpu-numbers.json").unlink()
    assert node.do() == (0, "", "dradriver health: the plugin has seen no GPUs on this node yet\n")


def test_nothing_is_changed(node):
    node.keep(gpu_0=reported(13))
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in node.plugin.iterdir()}
    node.do()
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in node.plugin.iterdir()} == before


# --- what cannot be told --------------------------------------------------------------------------


def test_a_damaged_file_is_told_and_stays(node):
    path = node.plugin / "health.json"
    path.write_text("{")
    status, out, err = node.do()
    assert (status, out) == (2, "")
    assert err.startswith(f"dradriver health: {path}: it is damaged: ")
    assert path.read_text() == "{"
    assert list(node.plugin.glob("*.damaged")) == []


def test_no_plugin_has_run(node, tmp_path):
    status, out, err = node.do("--kubelet-plugins-directory-path", tmp_path / "other")
    assert (status, out) == (2, "")
    assert err.startswith(f"dradriver health: {tmp_path}/other/gpu.nvidia.com: it cannot be read: No such file")
    (node.plugin / "health.json").mkdir()
    assert "health.json: it cannot be read: Is a directory; " in node.do()[2]


def test_no_such_simulated_node(node, tmp_path):
    status, _, err = node.do("--simulation", tmp_path / "nothing")
    assert status == 2
    assert err.startswith(
        f"dradriver health: {tmp_path}/nothing/root/proc/sys/kernel/random/boot_id: it cannot be read"
    )


def test_variables_of_the_plugin_hold(node, run, monkeypatch):
    monkeypatch.setenv("KUBELET_PLUGINS_DIRECTORY_PATH", str(node.plugins))
    monkeypatch.setenv("SIMULATION", str(node.simulation))
    node.keep(gpu_0=reported(95))
    assert run(main)[0] == 1


@pytest.mark.parametrize("words", [["-o", "yaml"], ["heal"], ["--nothing"]])
def test_mistakes_in_the_words(node, words):
    assert node.do(*words)[0] == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (0.9, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (172800, "2 days")],
)
def test_how_long(seconds, text):
    assert age(seconds) == text


# --- having it forgotten --------------------------------------------------------------------------


class Plugin:
    """Takes requests as the plugin does, and keeps what is left; some GPUs say again what they said."""

    def __init__(self, node, *, again=()):
        self.node, self.again = node, again
        self.cleared = []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        requests, path = Requests(self.node.plugin / "clear-health"), self.node.plugin / "health.json"
        while not self.stopping.wait(0.01):
            uuids, unknown = chosen(requests.take(), self.node.numbers.numbers)
            assert not unknown
            if uuids:
                known = memory.load(path)
                left = {uuid: one for uuid, one in known.conditions.items() if uuid not in uuids or uuid in self.again}
                memory.save(path, replace(known, conditions=left))
                self.cleared.append(uuids)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(health, "SETTLED_SECONDS", 0.3)


@pytest.mark.usefixtures("impatient")
def test_the_plugin_forgets_one_gpu(node):
    node.keep(gpu_0=reported(95), gpu_1=reported(54))
    with Plugin(node) as plugin:
        status, out, err = node.do("gpu-1-mig-1g10gb-19-3", verb=["clear"])
    assert (status, err) == (0, "")
    assert plugin.cleared == [(SECOND,)]
    assert [line.split()[-1] for line in out.splitlines()[1:]] == ["healthy"], "the others are not what was asked for"
    assert not node.gpu(0)["healthy"]
    assert list((node.plugin / "clear-health").iterdir()) == []


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("words", [["all"], ["gpu-0", "gpu-1"], ["gpu-0,gpu-1"], [FIRST, SECOND]])
def test_the_plugin_forgets_all(node, words):
    node.keep(gpu_0=reported(95), gpu_1=reported(54))
    with Plugin(node) as plugin:
        assert node.do(*words, verb=["clear"])[0] == 0
    assert plugin.cleared == [(FIRST, SECOND)]


@pytest.mark.usefixtures("impatient")
def test_what_a_gpu_still_says_is_told(node):
    node.keep(gpu_0=found.raise_(Condition(), found.REMAP_FAILED, "yes", time.time()))
    with Plugin(node, again=[FIRST]):
        status, out, _ = node.do("gpu-0", verb=["clear"])
    assert status == 1
    assert "taints  dradriver.dev/memory=remap-failed:NoSchedule\n" in out


@pytest.mark.usefixtures("impatient")
def test_a_gpu_whose_number_is_lost_can_still_be_named(node):
    node.keep(gpu_0=reported(95))
    (node.plugin / "gpu-numbers.json").unlink()
    with Plugin(node) as plugin:
        assert node.do(FIRST, verb=["clear"])[0] == 0
    assert plugin.cleared == [(FIRST,)]


def test_nobody_takes_the_request(node, monkeypatch):
    monkeypatch.setattr(health, "TAKEN_SECONDS", 0.2)
    node.keep(gpu_0=reported(95))
    status, out, err = node.do("all", verb=["clear"])
    assert (status, out) == (2, "")
    assert "the plugin does not run on this node; start it and ask again" in err
    assert list((node.plugin / "clear-health").iterdir()) == [], "it would be obeyed when nobody expects it any more"
    assert not node.gpu(0)["healthy"]


def test_taken_at_the_last_moment(node, monkeypatch):
    monkeypatch.setattr(health, "SETTLED_SECONDS", 0)
    monkeypatch.setattr(health, "_is_taken", lambda request: request.unlink())
    assert node.do("all", verb=["clear"])[0] == 0


@pytest.mark.parametrize("words", [["gpu-7"], ["gpu-0", "gpu-7"], ["GPU-0"], ["gpu-0-3"]])
def test_a_gpu_that_is_none_is_no_request(node, words):
    status, _, err = node.do(*words, verb=["clear"])
    assert status == 2
    assert err == f"dradriver health: no such GPU: {words[-1]}; there is gpu-0, gpu-1\n"
    assert not (node.plugin / "clear-health").exists()


def test_no_gpu_is_known(node):
    (node.plugin / "gpu-numbers.json").unlink()
    assert node.do("all", verb=["clear"])[2] == "dradriver health: no such GPU: none is known; there is none\n"


def test_nothing_is_named(node):
    assert node.do(verb=["clear"])[0] == 2


def test_a_request_that_cannot_be_written(node):
    (node.plugin / "clear-health").touch()
    status, _, err = node.do("all", verb=["clear"])
    assert status == 2
    assert err.startswith("dradriver health: the plugin cannot be asked: ")
