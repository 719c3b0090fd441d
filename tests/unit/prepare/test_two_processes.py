"""Two processes of a rolling update on one node folder: what one does the other knows, and nothing is held twice."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from doubles.apiserver import ApiServer
from doubles.kubelet import V1, Kubelet, call
from doubles.machines import simulation_main
from doubles.preparing import allocation

from dradriver import api, simulation
from dradriver.gpu.model import Placement
from dradriver.kubelet import ClaimReference
from dradriver.prepare import records as module
from dradriver.prepare.errors import HeldError
from dradriver.prepare.plan import Plan, PlannedDevice
from dradriver.prepare.records import Record, Records, State

PATIENT = 30.0


def record(uid, *, start=0, state=State.PREPARED, gpu="GPU-0"):
    device = PlannedDevice(
        requests=("r0",),
        pool="node-a",
        device=f"{gpu}-at-{start}",
        gpu_uuid=gpu,
        profile_id=19,
        profile_name="1g.10gb",
        placement=Placement(start=start, size=1),
        make=True,
    )
    plan = Plan(namespace="ns", name=uid, uid=uid, devices=(device,))
    return Record(boot_id="boot", state=state, plan=plan)


# --- records that two processes write ------------------------------------------------------------


@pytest.fixture
def both(tmp_path):
    """The records of two processes: the old one's and the new one's."""
    made = [Records(tmp_path / "claims", shared=True) for _ in range(2)]
    for records in made:
        records.load()
    return made


def test_what_one_wrote_the_other_sees_after_a_look(both):
    old, new = both
    old.write(record("a"))
    assert new.get("a") is None
    new.refresh()
    assert new.get("a") == record("a")
    old.forget("a")
    new.refresh()
    assert new.all() == ()


def test_a_change_of_state_is_seen(both):
    old, new = both
    old.write(record("a", state=State.PREPARING))
    new.refresh()
    old.write(record("a", state=State.UNPREPARING))
    new.refresh()
    assert new.get("a").state is State.UNPREPARING


def test_what_one_holds_the_other_cannot_reserve(both):
    old, new = both
    old.write(record("a"))
    new.refresh()
    with pytest.raises(HeldError) as caught:
        new.reserve(record("b"))
    assert caught.value.holder == "a"


def test_a_reservation_is_not_taken_for_a_removed_record(both):
    _, new = both
    new.reserve(record("a", state=State.PREPARING))
    new.refresh()
    assert new.get("a") is not None


def test_a_file_that_goes_while_the_folder_is_read_is_no_error(both, monkeypatch):
    old, new = both
    old.write(record("a"))
    scan = Records._scan

    def slow_scan(self):
        found = scan(self)
        if self is new:
            old.forget("a")
        return found

    monkeypatch.setattr(Records, "_scan", slow_scan)
    new.refresh()
    assert new.all() == ()


def test_a_record_that_is_removed_while_it_is_read_does_not_come_back(both, monkeypatch):
    """A ghost would hold the device for ever, since no file of it is there to go."""
    old, new = both
    old.write(record("a"))
    decode = module.decode

    def slow_decode(text):
        decoded = decode(text)
        old.forget("a")
        return decoded

    monkeypatch.setattr(module, "decode", slow_decode)
    new.refresh()
    new.refresh()
    assert new.all() == ()


def test_what_this_process_writes_while_it_reads_stays(both, monkeypatch):
    _, new = both
    newer = record("a", state=State.PREPARED)
    new.write(replace(newer, state=State.PREPARING))
    new._versions.clear()  # As if it had just been written, and not been noted yet.
    decode = module.decode

    def slow_decode(text):
        decoded = decode(text)
        monkeypatch.setattr(module, "decode", decode)
        new.write(newer)
        return decoded

    monkeypatch.setattr(module, "decode", slow_decode)
    new.refresh()
    assert new.get("a") == newer


def test_what_this_process_writes_while_the_folder_is_scanned_is_not_dropped(both, monkeypatch):
    _, new = both
    scan = Records._scan

    def slow_scan(self):
        found = scan(self)
        monkeypatch.setattr(Records, "_scan", scan)
        new.write(record("a"))
        return found

    monkeypatch.setattr(Records, "_scan", slow_scan)
    new.refresh()
    assert new.get("a") == record("a")


def test_a_thread_that_finds_nothing_new_waits_for_the_one_that_reads(both, monkeypatch):
    """Else it would go on without the other process's record, and hold its device a second time."""
    old, new = both
    old.write(record("a"))
    decode = module.decode
    reading, go_on = threading.Event(), threading.Event()
    seen = []

    def slow_decode(text):
        reading.set()
        assert go_on.wait(PATIENT)
        return decode(text)

    def second():
        new.refresh()
        seen.append(new.get("a"))

    monkeypatch.setattr(module, "decode", slow_decode)
    first = threading.Thread(target=new.refresh)
    first.start()
    assert reading.wait(PATIENT)
    other = threading.Thread(target=second)
    other.start()
    go_on.set()
    first.join(PATIENT)
    other.join(PATIENT)
    assert seen == [record("a")]


def count_scans(monkeypatch):
    scans, scan = [], Records._scan

    def counted(self):
        scans.append(self)
        return scan(self)

    monkeypatch.setattr(Records, "_scan", counted)
    return scans


def age_folder(records, seconds):
    """Make the last change of the folder that old, as if time had passed."""
    then = time.time_ns() - int(seconds * 1e9)
    os.utime(records._folder, ns=(then, then))


def test_a_folder_that_has_not_changed_is_not_read_again(both, monkeypatch):
    """With 56 records that took longer than all else of an answer that is known already."""
    old, new = both
    old.write(record("a"))
    age_folder(new, 60)
    scans = count_scans(monkeypatch)
    for _ in range(5):
        new.refresh()
    assert len(scans) == 1
    old.write(record("b", start=1))
    new.refresh()
    assert len(scans) == 2
    assert len(new.all()) == 2


def test_a_folder_that_has_changed_just_now_is_read_again(both, monkeypatch):
    """What is written within the same tick of the file system's clock does not show in the folder's time."""
    old, new = both
    old.write(record("a"))
    age_folder(new, 0)
    now = new._folder.stat().st_mtime_ns
    new.refresh()
    old.write(record("b", start=1))
    os.utime(new._folder, ns=(now, now))
    new.refresh()
    assert len(new.all()) == 2


def test_both_find_the_same_file_damaged(both):
    old, new = both
    old.write(record("a"))
    old._path("a").write_text("{")
    old.refresh()
    # The new one has looked before the old one moved the file.
    new._set_aside("a", new._path("a"), ValueError("damaged"))
    assert old.quarantined.keys() == new.quarantined.keys() == {"a"}
    assert new.quarantined["a"].exists()


# --- two plugins on one node ---------------------------------------------------------------------

ONE_G = "gpu-0-mig-1g10gb-19-{}".format


class Node:
    """A node with an API server, a kubelet and simulated GPUs, on which plugins come and go as processes."""

    def __init__(self, folder, server):
        self.folder, self.server = folder, server
        self.registry = folder / "r"
        for path in (self.registry, folder / "p"):
            path.mkdir()
        self.simulate("create", "2xh100-80gb")
        self.kubelet = Kubelet(registry=self.registry).start()
        self.processes = []
        server.put("nodes", {"metadata": {"name": "node-a", "uid": "node-uid"}})
        self.kubeconfig = server.kubeconfig(folder)

    def simulate(self, *arguments):
        assert simulation_main(["--state", str(self.folder / "gpus"), *arguments]) == 0

    def start(self, pod_uid):
        """Start a plugin as the pod of this UID; returns when the kubelet knows it."""
        command = [sys.executable, "-m", "dradriver", "--node-name=node-a", "--mig=dynamic", f"--pod-uid={pod_uid}"]
        flags = {
            "kubeconfig": self.kubeconfig,
            "kubelet-plugins-directory-path": self.folder / "p",
            "kubelet-registrar-directory-path": self.registry,
            "cdi-root": self.folder / "cdi",
            "nvidia-driver-root": simulation.root(self.folder / "gpus"),
            "simulation": self.folder / "gpus",
        }
        log = self.folder / f"log-{pod_uid}"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*command, *(f"--{flag}={value}" for flag, value in flags.items())], stdout=output, stderr=output
            )
        self.processes.append(process)
        plugin = Plugin(process, log, self.folder / "p" / api.DRIVER_NAME / f"dra-{pod_uid}.sock")
        self.kubelet.wait_for(lambda kubelet: process.poll() is not None or plugin.socket in endpoints(kubelet))
        assert process.poll() is None, log.read_text()
        return plugin

    def allocate(self, *devices):
        uid = str(uuid.uuid4())
        claim = ClaimReference(namespace="ns", name=f"claim-{uid[:8]}", uid=uid)
        body = {
            "metadata": {"namespace": "ns", "name": claim.name, "uid": uid},
            "status": {"allocation": allocation(*devices)},
        }
        self.server.put("resourceclaims", body)
        return claim

    def records(self):
        return sorted(path.stem for path in (self.folder / "p" / api.DRIVER_NAME / "claims").glob("*.json"))

    def specs(self):
        return sorted(path.stem.split("_", 1)[1] for path in (self.folder / "cdi").glob("*.json"))

    def end(self):
        self.kubelet.stop()
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(PATIENT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Plugin:
    """One process of the driver."""

    def __init__(self, process, log, socket):
        self.process, self.log, self.socket = process, log, socket

    def prepare(self, claim, *, timeout=20.0):
        return self._call("NodePrepareResources", claim, timeout)

    def unprepare(self, claim, *, timeout=20.0):
        return self._call("NodeUnprepareResources", claim, timeout)

    def _call(self, method, claim, timeout):
        return call(self.socket, V1, method, [claim], timeout=timeout).claims[claim.uid]

    def wait_for_log(self, words):
        until(lambda: words in self.log.read_text(), f"{words!r} in {self.log.read_text()[-2000:]}")


def endpoints(kubelet):
    return {plugin.endpoint for plugin in kubelet.plugins.values()}


def until(condition, what):
    deadline = time.monotonic() + 2 * PATIENT
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture
def node():
    # Sockets have short paths.
    folder = Path(tempfile.mkdtemp(prefix="d"))
    with ApiServer() as server:
        made = Node(folder, server)
        yield made
        made.end()
    shutil.rmtree(folder)


def test_what_the_old_one_prepared_the_new_one_knows_and_undoes(node):
    old = node.start("old")
    whole, part = node.allocate("gpu-1"), node.allocate(ONE_G(0))
    before = [old.prepare(claim) for claim in (whole, part)]
    assert [answer.error for answer in before] == ["", ""]
    new = node.start("new")
    assert [new.prepare(claim) for claim in (whole, part)] == before
    # The old one learns what the new one does, without a restart.
    other = node.allocate(ONE_G(1))
    assert new.prepare(other).error == ""
    assert old.unprepare(other).error == ""
    for claim in (whole, part):
        assert new.unprepare(claim).error == ""
    assert old.unprepare(part).error == ""
    assert (node.records(), node.specs()) == ([], [])
    # What the new one freed, the old one can give again.
    again = node.allocate("gpu-1")
    assert old.prepare(again).error == ""
    assert new.prepare(node.allocate("gpu-1"), timeout=2).error != ""


def test_one_claim_prepared_by_both_at_once_is_prepared_once(node):
    old, new = node.start("old"), node.start("new")
    for _ in range(5):
        claim = node.allocate(ONE_G(0), "gpu-1")
        answers = at_once([partial(plugin.prepare, claim) for plugin in (old, new)])
        assert answers[0] == answers[1]
        assert answers[0].error == ""
        assert node.records() == node.specs() == [claim.uid]
        answers = at_once([partial(plugin.unprepare, claim) for plugin in (old, new)])
        assert [answer.error for answer in answers] == ["", ""]
        assert node.records() == node.specs() == []


@pytest.mark.parametrize("devices", [("gpu-0", "gpu-0"), ("gpu-0", ONE_G(3)), (ONE_G(3), "gpu-0-mig-3g40gb-9-0")])
def test_overlapping_claims_at_both_have_one_winner(node, devices):
    old, new = node.start("old"), node.start("new")
    for _ in range(3):
        claims = [node.allocate(device) for device in devices]
        answers = at_once(
            [partial(plugin.prepare, claim, timeout=1.5) for plugin, claim in zip((old, new), claims, strict=True)]
        )
        winners = [claim for claim, answer in zip(claims, answers, strict=True) if not answer.error]
        assert len(winners) == 1, answers
        (loser,) = [answer.error for answer in answers if answer.error]
        assert winners[0].uid in loser
        assert node.records() == node.specs() == [winners[0].uid]
        # Whichever won, the other one can free it, and the next round begins.
        for claim in claims:
            assert new.unprepare(claim).error == ""
            assert old.unprepare(claim).error == ""


def test_an_old_one_that_is_told_to_go_answers_who_waits_and_the_new_one_goes_on(node):
    old = node.start("old")
    holder, successor = node.allocate("gpu-0"), node.allocate("gpu-0")
    assert old.prepare(holder).error == ""
    new = node.start("new")
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(old.prepare(successor, timeout=600)))
    waiting.start()
    old.wait_for_log("waiting for what may pass")
    old.process.terminate()
    waiting.join(2 * PATIENT)
    assert not waiting.is_alive()
    assert "still held by" in answers[0].error
    assert old.process.wait(2 * PATIENT) == 0
    assert not old.socket.exists()
    node.kubelet.wait_for(lambda kubelet: endpoints(kubelet) == {new.socket})
    # A claim waits at the new one for what the old one had prepared.
    waiting = threading.Thread(target=lambda: answers.append(new.prepare(successor, timeout=600)))
    waiting.start()
    new.wait_for_log("waiting for what may pass")
    assert new.unprepare(holder).error == ""
    waiting.join(2 * PATIENT)
    assert answers[1].error == ""
    assert node.records() == [successor.uid]


def test_one_that_is_killed_leaves_no_lock_behind(node):
    old, new = node.start("old"), node.start("new")
    claim = node.allocate(ONE_G(0))
    assert old.prepare(claim).error == ""
    old.process.kill()
    old.process.wait()
    assert new.unprepare(claim).error == ""
    assert node.records() == node.specs() == []


def test_after_an_upgrade_of_the_driver_the_process_becomes_a_new_one(node):
    """It would keep the library that it has loaded; the pod is not restarted, and running claims stay."""
    plugin = node.start("pod")
    claim = node.allocate("gpu-1")
    assert plugin.prepare(claim).error == ""
    node.simulate("driver-reload", "--version", "590.10.01")
    plugin.wait_for_log("this process starts anew")
    until(lambda: plugin.log.read_text().count('"offering"') == 2, "offered again")
    node.kubelet.wait_for(lambda kubelet: plugin.socket in endpoints(kubelet))
    assert plugin.process.poll() is None
    assert node.records() == [claim.uid]
    other = node.allocate(ONE_G(0))
    assert plugin.prepare(other).error == ""
    spec = next(path for path in (node.folder / "cdi").glob("*.json") if other.uid in path.name)
    assert "libcuda.so.590.10.01" in spec.read_text()
    versions = {
        device["attributes"]["driverVersion"]["version"]
        for item in node.server.all("resourceslices")
        for device in item["spec"].get("devices", ())
    }
    assert versions == {"590.10.1"}
    plugin.process.terminate()
    assert plugin.process.wait(PATIENT) == 0


def test_a_driver_that_is_missing_at_the_start_is_found_without_a_restart(node):
    """Unprepare is served meanwhile: it needs no NVML where nothing is to be undone, as after a reboot."""
    first = node.start("first")
    claim, whole = node.allocate(ONE_G(0)), node.allocate("gpu-1")
    assert [first.prepare(one).error for one in (claim, whole)] == ["", ""]
    first.process.terminate()
    assert first.process.wait(PATIENT) == 0
    node.simulate("reboot")
    node.simulate("fail", "nvmlInit", "--error", "DRIVER_NOT_LOADED")
    plugin = node.start("second")
    plugin.wait_for_log("the GPUs are not available")
    assert plugin.unprepare(claim).error == ""
    assert plugin.unprepare(whole).error == ""
    assert plugin.unprepare(node.allocate("gpu-0")).error == ""
    assert (node.records(), node.specs()) == ([], [])
    answers, waits = [], node.allocate(ONE_G(2))
    waiting = threading.Thread(target=lambda: answers.append(plugin.prepare(waits, timeout=600)))
    waiting.start()
    plugin.wait_for_log("waiting for what may pass")
    node.simulate("fail", "nvmlInit", "--clear")
    waiting.join(2 * PATIENT)
    assert answers[0].error == ""
    until(lambda: '"offering"' in plugin.log.read_text(), "offered")


def at_once(calls):
    """Make calls in threads of their own; gives the answers in their order."""
    answers = [None] * len(calls)

    def make(index):
        answers[index] = calls[index]()

    threads = [threading.Thread(target=make, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENT)
    assert all(answer is not None for answer in answers)
    return answers
