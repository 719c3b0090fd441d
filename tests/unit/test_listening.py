"""The thread that waits for events of GPUs, on simulated ones."""

import queue
import threading

import pytest
from doubles.machines import simulation_main

from dradriver.listening import Listener
from dradriver.nvml import EventType, LibraryMissing, open_nvml

PATIENCE = 60


class Heard:
    """A node of two GPUs and a listener, with what it passed on."""

    def __init__(self, folder):
        self.folder = folder
        self.simulate("create", "2xh100-80gb")
        self.nvml = open_nvml(simulation=folder, library=None)
        self.uuids = [gpu.uuid for gpu in self.nvml.inventory().gpus]
        self.events, self.missed = queue.Queue(), queue.Queue()
        self.listener = self.listen(lambda: self.nvml)

    def listen(self, hardware, **options):
        return Listener(
            hardware,
            types=EventType.XID | EventType.RECOVERY_ACTION,
            hear=self.events.put,
            missed=lambda: self.missed.put(True),
            **options,
        )

    def simulate(self, *arguments):
        assert simulation_main(["--state", str(self.folder), *arguments]) == 0

    def next_xid(self):
        while True:
            event = self.events.get(timeout=PATIENCE)
            if event.type is EventType.XID:
                return event


@pytest.fixture
def node(tmp_path):
    made = Heard(tmp_path / "simulated")
    yield made
    made.listener.stop()
    made.nvml.close()


def test_events_are_passed_on_with_what_they_are_about(node):
    node.listener.start()
    node.simulate("xid", "31", "--gpu", "1")
    event = node.next_xid()
    assert (event.gpu_uuid, event.data, event.gpu_instance_id) == (node.uuids[1], 31, None)
    assert [node.listener.why_unheard(uuid) for uuid in node.uuids] == [None, None]
    assert node.listener.why_unheard("GPU-of-another-node")


def test_after_a_reset_it_is_listened_on_and_told_that_something_may_have_been_missed(node):
    node.listener.start()
    node.simulate("xid", "95", "--gpu", "0")
    assert node.next_xid().data == 95
    while not node.missed.empty():
        node.missed.get()
    node.simulate("reset", "--gpu", "0")
    assert node.missed.get(timeout=PATIENCE)
    # Whoever is told reads the GPUs, which makes NVML anew.
    node.nvml.inventory()
    assert node.missed.get(timeout=PATIENCE)
    node.simulate("xid", "31", "--gpu", "0")
    assert node.next_xid().data == 31


def test_a_gpu_that_cannot_be_listened_to_is_named_with_the_reason(node):
    node.simulate("fail", "nvmlDeviceRegisterEvents", "--gpu", "1", "--error", "NOT_SUPPORTED")
    node.listener.start()
    node.simulate("xid", "31", "--gpu", "0")
    node.next_xid()
    assert node.listener.why_unheard(node.uuids[0]) is None
    assert "nvmlDeviceRegisterEvents" in node.listener.why_unheard(node.uuids[1])


def test_without_nvml_nobody_is_heard_until_it_is_there(node):
    tried = threading.Event()

    def missing():
        tried.set()
        raise LibraryMissing("nvmlInit", 12)

    listener = node.listen(missing)
    listener.start()
    try:
        assert tried.wait(PATIENCE)
        while not listener.why_unheard(node.uuids[0]):
            assert listener.silence < PATIENCE
        assert "libnvidia-ml" in listener.why_unheard(node.uuids[0])
    finally:
        listener.stop()


def test_whoever_hangs_shows_no_sign_of_life(node):
    now, inside, leave = [100.0], threading.Event(), threading.Event()

    def hang():
        inside.set()
        leave.wait(PATIENCE)
        return node.nvml

    listener = node.listen(hang, clock=lambda: now[0])
    listener.start()
    try:
        assert inside.wait(PATIENCE)
        now[0] += 31.0
        assert listener.silence == 31.0
    finally:
        leave.set()
        listener.stop()
    assert listener.silence == 0.0
