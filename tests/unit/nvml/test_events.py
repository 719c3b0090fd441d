"""`Events` on simulated nodes, which another process changes."""

import contextlib
import io
import json
import subprocess
import sys
import threading
import time

import pynvml
import pytest

from dradriver.nvml import Event, EventType, open_nvml
from dradriver.nvml.errors import (
    DriverMismatch,
    DriverNotLoaded,
    GpuLost,
    Hanging,
    InsufficientResources,
    NotSupported,
    Uninitialized,
    UnknownError,
)
from dradriver.nvml.events import FAILURE_PAUSE, LOOK_PAUSE, Events
from dradriver.nvml.session import LOST_PAUSE
from dradriver.simulation.__main__ import main

XID, MIG, RECOVERY = EventType.XID, EventType.MIG_CONFIG, EventType.RECOVERY_ACTION
BOTH = XID | MIG
LONG = 60


class Ticking:
    """A real clock that can be put forward."""

    def __init__(self):
        self.ahead = 0.0

    def __call__(self):
        return time.monotonic() + self.ahead


class Node:
    """A simulated node, in the hands of the one who stands before the machine."""

    def __init__(self, folder, machine, mig):
        self.folder = folder
        self.do("create", machine, "--mig", mig)
        self.nvml = open_nvml(simulation=folder)

    def do(self, *words):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            assert main(["--state", str(self.folder), *map(str, words)]) == 0
        return said.getvalue()

    def run(self, *words):
        """Do it in another process."""
        command = [sys.executable, "-m", "dradriver.simulation", "--state", self.folder, *map(str, words)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def go_by(self, clock):
        self.nvml._clock = self.nvml._session._clock = clock
        self.nvml._session._started = clock()

    @property
    def uuids(self):
        return [gpu["uuid"] for gpu in json.loads(self.do("show"))["gpus"]]

    @property
    def event_sets(self):
        return len(pynvml.nvmlLib._session.event_sets)


@pytest.fixture
def simulated(tmp_path, clock):
    """Make a node and open it; its clock stands still, so `wait(0)` takes what is there."""
    nodes = []

    def start(machine="2xh100-80gb", mig="on", clock=clock):
        nodes.append(Node(tmp_path / f"node{len(nodes)}", machine, mig))
        nodes[-1].go_by(clock)
        return nodes[-1]

    yield start
    for node in nodes:
        node.nvml.close()


@pytest.fixture
def node(simulated):
    return simulated()


@pytest.fixture
def live(simulated):
    """A node for threads that really wait."""
    return simulated(clock=Ticking())


class Reader:
    """A thread that takes events until they are closed or an error comes."""

    def __init__(self, events):
        self.events = events
        self.heard = []
        self.gaps = []
        self.error = None
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        try:
            while not self.events.closed:
                event = self.events.wait(LONG)
                with self._news:
                    self.heard += [event] if event else []
                    self.gaps.append(self.events.gaps)
                    self._news.notify_all()
        except Exception as error:  # noqa: BLE001 -- Looked at by the test's own thread.
            self.error = error

    def until(self, condition):
        with self._news:
            assert self._news.wait_for(lambda: condition(self), LONG), (self.heard, self.error)

    def join(self):
        self._thread.join(LONG)
        assert not self._thread.is_alive()


@pytest.fixture
def reading():
    readers = []

    def start(events):
        readers.append(Reader(events))
        return readers[-1]

    yield start
    for reader in readers:
        reader.events.close()
        reader.join()


def drain(events):
    return list(iter(lambda: events.wait(0), None))


def whole(gpu_uuid, kind, data=0):
    return Event(gpu_uuid=gpu_uuid, type=kind, data=data, gpu_instance_id=None, compute_instance_id=None)


# --- what is told -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (EventType.SINGLE_BIT_ECC, pynvml.nvmlEventTypeSingleBitEccError),
        (EventType.DOUBLE_BIT_ECC, pynvml.nvmlEventTypeDoubleBitEccError),
        (EventType.PSTATE, pynvml.nvmlEventTypePState),
        (EventType.XID, pynvml.nvmlEventTypeXidCriticalError),
        (EventType.CLOCK, pynvml.nvmlEventTypeClock),
        (EventType.POWER_SOURCE, pynvml.nvmlEventTypePowerSourceChange),
        (EventType.MIG_CONFIG, pynvml.nvmlEventMigConfigChange),
        (EventType.SINGLE_BIT_ECC_STORM, pynvml.nvmlEventTypeSingleBitEccErrorStorm),
        (EventType.DRAM_RETIREMENT, pynvml.nvmlEventTypeDramRetirementEvent),
        (EventType.DRAM_RETIREMENT_FAILURE, pynvml.nvmlEventTypeDramRetirementFailure),
        (EventType.NON_FATAL_POISON, pynvml.nvmlEventTypeNonFatalPoisonError),
        (EventType.FATAL_POISON, pynvml.nvmlEventTypeFatalPoisonError),
        (EventType.GPU_UNAVAILABLE, pynvml.nvmlEventTypeGpuUnavailableError),
        (EventType.RECOVERY_ACTION, pynvml.nvmlEventTypeGpuRecoveryAction),
    ],
)
def test_types_have_the_values_of_nvml(ours, theirs):
    assert ours == theirs


def test_no_type_of_nvml_is_missing():
    assert sum(EventType) == pynvml.nvmlEventTypeAll


def test_instances_that_another_process_makes_and_destroys_are_heard_of(node):
    events = node.nvml.watch_events(MIG)
    made = json.loads(node.run("instance", "create", "3g.40gb", "--gpu", 1))
    changed = whole(node.uuids[1], MIG)
    assert drain(events) == [changed, changed]  # GPU instance and compute instance.
    node.run("instance", "destroy", "--gi", made["gpu_instance_id"], "--gpu", 1)
    assert drain(events) == [changed, changed]
    assert drain(events) == []


def test_an_xid_of_the_whole_gpu_names_no_instance(node):
    events = node.nvml.watch_events(XID)
    node.run("xid", 48, "--gpu", 1)
    assert drain(events) == [whole(node.uuids[1], XID, 48)]


def test_an_xid_of_a_partition_names_it_and_the_gpu_that_it_lies_on(node):
    events = node.nvml.watch_events(XID)
    made = json.loads(node.do("instance", "create", "1g.10gb"))
    node.do("xid", 43, "--gi", made["gpu_instance_id"], "--ci", 0)
    (event,) = drain(events)
    assert event == Event(
        gpu_uuid=node.uuids[0],
        type=XID,
        data=43,
        gpu_instance_id=made["gpu_instance_id"],
        compute_instance_id=0,
    )


def test_an_error_the_driver_does_not_know_is_told_with_its_number(node):
    events = node.nvml.watch_events(XID)
    node.do("xid", 999)
    assert [event.data for event in drain(events)] == [999]


def test_events_come_in_order_and_only_of_the_types_asked_for(node):
    errors, recovery = node.nvml.watch_events(BOTH), node.nvml.watch_events(RECOVERY)
    node.do("xid", 95)
    node.do("instance", "create", "1g.10gb", "--bare", "--gpu", 1)
    left, right = node.uuids
    assert drain(errors) == [whole(left, XID, 95), whole(right, MIG)]
    assert [(event.gpu_uuid, event.type) for event in drain(recovery)] == [(left, RECOVERY)]


def test_what_happened_before_is_not_told(node):
    node.do("xid", 43)
    assert drain(node.nvml.watch_events(XID)) == []


def test_an_event_of_a_type_that_has_no_name_here_is_told_all_the_same(node, monkeypatch):
    events = node.nvml.watch_events(XID)
    node.do("xid", 43)
    wait = pynvml.nvmlEventSetWait_v2

    def renamed(*arguments):
        data = wait(*arguments)
        data.eventType = 1 << 40
        return data

    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", renamed)
    (event,) = drain(events)
    assert (event.type, int(event.type)) == (EventType(1 << 40), 1 << 40)


def test_a_handle_that_was_not_registered_is_asked_for_its_name(node):
    events = node.nvml.watch_events(XID)
    events._watch.uuids = {1: "GPU-of-another-handle"}
    node.do("xid", 43, "--gpu", 1)
    assert drain(events) == [whole(node.uuids[1], XID, 43)]


# --- who is heard -----------------------------------------------------------------------------------


def test_all_gpus_are_watched_for_what_was_asked(node):
    events = node.nvml.watch_events(BOTH)
    assert events.watched == dict.fromkeys(node.uuids, BOTH)
    assert (events.unwatched, events.gaps, node.event_sets) == ({}, 1, 1)


def test_a_gpu_is_watched_for_the_types_it_supports(simulated):
    node = simulated("1xl4", mig="off")
    events = node.nvml.watch_events(BOTH)
    assert events.watched == {node.uuids[0]: XID}
    node.do("xid", 43)
    assert [event.type for event in drain(events)] == [XID]


def test_a_gpu_that_supports_none_of_them_is_told(simulated):
    node = simulated("1xl4", mig="off")
    events = node.nvml.watch_events(MIG)
    (error,) = events.unwatched.values()
    assert isinstance(error, NotSupported)
    assert str(error).startswith(f"nvmlDeviceGetSupportedEventTypes for {node.uuids[0]} failed: it tells no events")
    assert (events.watched, drain(events)) == ({}, [])


def test_where_no_gpu_is_watched_nvml_is_not_asked_to_wait(simulated, monkeypatch):
    node = simulated("1xl4", mig="off")
    events = node.nvml.watch_events(MIG)
    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", lambda *_: pytest.fail("waits with an empty set"))
    assert events.wait(0) is None


def test_a_gpu_that_cannot_be_registered_does_not_stop_the_others(node):
    node.do("fail", "nvmlDeviceRegisterEvents", "--error", "UNKNOWN", "--gpu", 0)
    events = node.nvml.watch_events(XID)
    left, right = node.uuids
    assert (list(events.watched), list(events.unwatched)) == ([right], [left])
    assert isinstance(events.unwatched[left], UnknownError)
    for gpu in (0, 1):
        node.do("xid", 43, "--gpu", gpu)
    assert drain(events) == [whole(right, XID, 43)]


def test_a_gpu_that_cannot_be_registered_joins_later(node, clock):
    node.do("fail", "nvmlDeviceRegisterEvents", "--error", "UNKNOWN", "--gpu", 0)
    events = node.nvml.watch_events(XID)
    node.do("fail", "all", "--clear")
    clock.now += LOOK_PAUSE - 1
    assert (events.wait(0), events.gaps, len(events.watched)) == (None, 1, 1)
    clock.now += 1
    assert (events.wait(0), events.gaps, events.unwatched) == (None, 2, {})
    node.do("xid", 43)
    assert drain(events) == [whole(node.uuids[0], XID, 43)]
    assert node.event_sets == 1


def test_a_gpu_without_a_name_is_told_by_its_index(node):
    node.do("fail", "nvmlDeviceGetUUID", "--error", "UNKNOWN", "--gpu", 1)
    events = node.nvml.watch_events(XID)
    assert (list(events.watched), list(events.unwatched)) == ([node.uuids[0]], ["GPU 1"])


def test_gpus_that_appear_are_watched(simulated):
    node = simulated("1xh100-80gb")
    events = node.nvml.watch_events(XID)
    node.do("create", "3xh100-80gb", "--force")
    with pytest.raises(Uninitialized):
        events.wait(0)
    assert (events.wait(0), events.gaps) == (None, 2)
    assert list(events.watched) == node.uuids
    node.do("xid", 43, "--gpu", 2)
    assert drain(events) == [whole(node.uuids[2], XID, 43)]


# --- sessions that end ------------------------------------------------------------------------------


def test_a_driver_reload_is_told_once_and_survived(node):
    events = node.nvml.watch_events(XID)
    node.do("driver-reload")
    with pytest.raises(Uninitialized):
        events.wait(0)
    assert (events.wait(0), events.gaps) == (None, 2)
    node.do("xid", 43)
    assert drain(events) == [whole(node.uuids[0], XID, 43)]


def test_a_session_that_another_made_anew_is_no_error(node):
    events = node.nvml.watch_events(XID)
    node.nvml.renew()
    node.nvml.gpus()
    assert (events.wait(0), events.gaps, node.event_sets) == (None, 2, 1)
    node.do("xid", 43, "--gpu", 1)
    assert drain(events) == [whole(node.uuids[1], XID, 43)]


def test_a_switch_of_mig_mode_leads_to_a_new_event_set(node):
    events = node.nvml.watch_events(BOTH)
    node.nvml.set_mig_mode(node.uuids[0], enabled=False)
    assert (events.wait(0), events.gaps, node.event_sets) == (None, 2, 1)
    node.do("xid", 43)
    assert whole(node.uuids[0], XID, 43) in drain(events), "beside what the old one had"


def test_what_is_queued_outlives_a_session_that_others_make_anew(node):
    """A reset of one GPU, which its readings notice first, does not cost another GPU its error."""
    events = node.nvml.watch_events(XID)
    node.do("xid", 79)
    node.do("xid", 43)
    node.nvml.renew()
    node.nvml.inventory()
    assert [event.data for event in drain(events)] == [79, 43]
    node.do("xid", 31)
    assert [event.data for event in drain(events)] == [31]


def test_a_driver_upgrade_is_told_at_a_measured_pace(node, clock):
    events = node.nvml.watch_events(XID)
    node.do("driver-reload", "--version", "590.44.01")
    with pytest.raises(Uninitialized):
        events.wait(0)
    for _ in range(3):
        with pytest.raises(DriverMismatch):
            events.wait(0)
        assert [events.wait(0), events.wait(0)] == [None, None]
        clock.now += FAILURE_PAUSE


def test_a_driver_that_is_not_there_at_first_is_told_by_the_first_wait(node):
    node.nvml.renew()
    node.do("fail", "nvmlInit", "--error", "DRIVER_NOT_LOADED")
    events = node.nvml.watch_events(XID)
    assert (events.watched, events.unwatched, events.gaps) == ({}, {}, 0)
    with pytest.raises(DriverNotLoaded):
        events.wait(0)
    node.do("fail", "all", "--clear")
    assert (events.wait(0), events.gaps, list(events.watched)) == (None, 1, node.uuids)


def test_a_lost_gpu_is_told_once_and_the_others_are_heard_on(node, clock):
    events = node.nvml.watch_events(XID)
    left, right = node.uuids
    node.do("lose")
    assert events.wait(0) == whole(left, XID, 79)
    with pytest.raises(GpuLost):
        events.wait(0)
    assert (events.wait(0), events.gaps, list(events.watched)) == (None, 2, [right])
    assert isinstance(events.unwatched[left], GpuLost)
    node.do("xid", 43, "--gpu", 1)
    assert drain(events) == [whole(right, XID, 43)]
    node.do("recover")
    clock.now += LOOK_PAUSE
    assert (events.wait(0), events.gaps, events.unwatched) == (None, 3, {})
    node.do("xid", 44)
    assert drain(events) == [whole(left, XID, 44)]


def test_a_lost_gpu_renews_the_session_as_by_any_other_call(node, clock):
    events = node.nvml.watch_events(XID)
    clock.now += LOST_PAUSE
    node.do("lose")
    with pytest.raises(GpuLost):
        drain(events)
    # Which one it is comes out when all are registered anew, and that is told to the session.
    assert [events.wait(0), events.wait(0)] == [None, None]
    assert events._watch.generation == 2
    assert list(events.watched) == node.uuids[1:]


# --- calls that hang --------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch):
    """Limits that a test can wait for."""
    monkeypatch.setattr("dradriver.nvml.bounded.PATIENCE", 0.02)
    monkeypatch.setattr("dradriver.nvml.events.REGISTER_SECONDS", 1.5)


def back(node, key):
    """Wait until nothing hangs for a GPU any more."""
    while node.nvml._bounded.hangs(key):
        time.sleep(0.01)


REGISTER = "nvmlDeviceRegisterEvents"


@pytest.mark.parametrize("call", [REGISTER, "nvmlDeviceGetSupportedEventTypes"])
def test_a_gpu_that_hangs_does_not_keep_others_from_being_heard(node, clock, hang, soon, call):
    left, right = node.uuids
    node.nvml.inventory()
    hang(call, 0)
    events = node.nvml.watch_events(XID)
    assert (list(events.watched), list(events.unwatched)) == ([right], [left])
    assert isinstance(events.unwatched[left], Hanging)
    assert str(events.unwatched[left]).startswith(f"{call} for {left} failed: it was called at ")
    node.do("xid", 43, "--gpu", 1)
    assert drain(events) == [whole(right, XID, 43)]
    clock.now += LOOK_PAUSE  # It is known to hang by now, so nobody waits for it.
    node.do("xid", 44, "--gpu", 1)
    assert drain(events) == [whole(right, XID, 44)]
    hang.leave()
    back(node, left)
    clock.now += LOOK_PAUSE
    assert (events.wait(0), events.gaps, events.unwatched) == (None, 2, {})
    assert events.watched == dict.fromkeys(node.uuids, XID)
    node.do("xid", 45)
    assert drain(events) == [whole(left, XID, 45)]
    assert node.event_sets == 1


def test_a_gpu_that_hangs_when_it_is_opened_is_told_by_its_index(node, hang, soon):
    hang("nvmlDeviceGetHandleByIndex_v2", 1)
    events = node.nvml.watch_events(XID)
    assert (list(events.watched), list(events.unwatched)) == ([node.uuids[0]], ["GPU 1"])


def test_an_event_set_is_not_freed_under_a_registration_that_hangs(node, hang, soon):
    node.nvml.inventory()
    hang(REGISTER, 0)
    events = node.nvml.watch_events(XID)
    first = events._watch
    node.nvml._cache.forget_devices()
    assert (events.wait(0), events.gaps) == (None, 2)
    assert events._watch is not first
    assert node.event_sets == 2
    events.close()
    assert node.event_sets == 1  # The second is free: nobody was registered in it who hangs.
    hang.leave()
    back(node, node.uuids[0])
    assert first.busy == set()


def test_nvml_is_not_shut_down_under_a_registration_that_hangs(node, hang, soon):
    node.nvml.inventory()
    hang(REGISTER, 0)
    events = node.nvml.watch_events(XID)
    node.nvml.renew()
    assert events.wait(0) is None
    assert node.nvml._session.generation == 1
    hang.leave()
    back(node, node.uuids[0])
    assert (events.wait(0), events._watch.generation, events.unwatched) == (None, 2, {})
    node.do("xid", 43)
    assert drain(events) == [whole(node.uuids[0], XID, 43)]


# --- whether anybody waits --------------------------------------------------------------------------


def test_it_tells_when_a_wait_came_back_last(node, clock):
    events = node.nvml.watch_events(XID)
    made = clock.now
    assert events.last_wait == made
    clock.now += 7
    assert events.last_wait == made
    events.wait(0)
    assert events.last_wait == made + 7
    clock.now += 7
    node.do("xid", 43)
    events.wait(0)
    assert events.last_wait == made + 14


def test_a_wait_that_failed_came_back_too(node, clock):
    events = node.nvml.watch_events(XID)
    clock.now += 7
    node.do("driver-reload")
    with pytest.raises(Uninitialized):
        events.wait(0)
    assert events.last_wait == clock.now


def test_where_no_gpu_is_heard_the_one_who_waits_is_alive_all_the_same(simulated, clock):
    events = simulated("1xl4", mig="off").nvml.watch_events(MIG)
    clock.now += 7
    events.wait(0)
    assert events.last_wait == clock.now


def test_one_that_hangs_came_back_long_ago(node, clock, hang, reading):
    events = node.nvml.watch_events(XID)
    made = clock.now
    began = hang("nvmlEventSetWait_v2")
    reader = reading(events)
    assert began.wait(LONG)
    clock.now += 60
    assert events.last_wait == made
    hang.leave()
    events.close()
    reader.join()
    assert events.last_wait == clock.now


# --- calls that fail --------------------------------------------------------------------------------


def test_an_error_of_the_wait_is_told_and_the_event_set_made_anew(node):
    events = node.nvml.watch_events(XID)
    node.do("fail", "nvmlEventSetWait", "--error", "UNKNOWN", "--times", 1)
    with pytest.raises(UnknownError, match="nvmlEventSetWait_v2 failed"):
        events.wait(0)
    assert (events.wait(0), events.gaps, node.event_sets) == (None, 2, 1)


def test_a_wait_that_fails_again_and_again_is_paced(node, clock):
    events = node.nvml.watch_events(XID)
    node.do("fail", "nvmlEventSetWait", "--error", "UNKNOWN")
    failures = []
    for _ in range(4):
        for _ in range(10):
            try:
                assert events.wait(0) is None
            except UnknownError as error:
                failures.append(error)
        clock.now += FAILURE_PAUSE
    assert len(failures) == 2 + 1 + 1 + 1
    assert node.event_sets == 1


def test_a_wait_that_went_well_ends_the_pacing(node):
    events = node.nvml.watch_events(XID)
    for _ in range(5):
        node.do("fail", "nvmlEventSetWait", "--error", "UNKNOWN", "--times", 1)
        with pytest.raises(UnknownError):
            events.wait(0)
        assert drain(events) == []
        node.do("xid", 43)
        assert [event.data for event in drain(events)] == [43]


def test_a_session_that_ends_while_gpus_are_registered_is_no_trouble_of_a_gpu(node):
    node.do("fail", "nvmlDeviceRegisterEvents", "--error", "UNINITIALIZED", "--gpu", 1, "--times", 1)
    events = node.nvml.watch_events(XID)
    assert (events.watched, events.unwatched, events.gaps) == ({}, {}, 0)
    assert (events.wait(0), events.gaps, list(events.watched)) == (None, 1, node.uuids)


def test_event_sets_that_cannot_be_filled_are_not_left_behind(node, clock):
    node.do("fail", "nvmlDeviceGetCount", "--error", "INSUFFICIENT_RESOURCES")
    events = node.nvml.watch_events(XID)
    for _ in range(2):
        with contextlib.suppress(InsufficientResources):
            events.wait(0)
    assert (node.event_sets, events.gaps) == (0, 0)


@pytest.fixture
def hasty(live, monkeypatch):
    """NVML that comes back at once, as it may, and what it was called with."""
    calls = []

    def early(_, milliseconds):
        calls.append(milliseconds)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)

    early.__name__ = "nvmlEventSetWait_v2"
    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", early)
    return calls


def test_nvml_that_comes_back_early_is_not_called_without_a_rest(live, hasty):
    assert live.nvml.watch_events(XID).wait(0.35) is None
    assert 1 <= len(hasty) <= 4


def test_nvml_is_asked_to_wait_for_at_most_a_second_and_never_for_nothing(live, hasty):
    events = live.nvml.watch_events(XID)
    events.wait(0)
    assert hasty == [1]
    threading.Timer(0.1, events.close).start()
    events.wait(LONG)
    assert hasty[1] <= 1000


# --- threads ----------------------------------------------------------------------------------------


def test_an_event_wakes_the_one_who_waits(live, reading):
    reader = reading(live.nvml.watch_events(BOTH))
    live.run("instance", "create", "1g.10gb", "--bare", "--gpu", 1)
    reader.until(lambda one: one.heard)
    assert reader.heard == [whole(live.uuids[1], MIG)]


def test_every_reader_gets_every_event(live, reading):
    readers = [reading(live.nvml.watch_events(XID)) for _ in range(2)]
    for number in range(40, 60):
        live.do("xid", number, "--gpu", number % 2)
    for reader in readers:
        reader.until(lambda one: len(one.heard) == 20)
        assert [event.data for event in reader.heard] == list(range(40, 60))


def test_threads_that_share_events_get_each_once(live, reading):
    events = live.nvml.watch_events(XID)
    readers = [reading(events) for _ in range(2)]
    for number in range(40, 60):
        live.do("xid", number)
    deadline = time.monotonic() + LONG
    while sum(len(reader.heard) for reader in readers) < 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    heard = [event.data for reader in readers for event in reader.heard]
    assert sorted(heard) == list(range(40, 60))


def test_a_session_is_made_anew_beside_the_one_who_waits(live, reading):
    reader = reading(live.nvml.watch_events(XID))
    for count in range(2, 4):
        live.nvml.renew()
        assert len(live.nvml.gpus()) == 2
        reader.until(lambda one, count=count: count in one.gaps)
    live.do("xid", 43)
    reader.until(lambda one: one.heard)
    assert (reader.heard, reader.error) == ([whole(live.uuids[0], XID, 43)], None)


def test_nvml_is_not_shut_down_under_the_one_who_waits(live, reading, monkeypatch):
    inside, shut = threading.Event(), []
    wait, shutdown = pynvml.nvmlEventSetWait_v2, pynvml.nvmlShutdown

    def waiting(*arguments):
        inside.set()
        try:
            return wait(*arguments)
        finally:
            inside.clear()

    def shutting():
        shut.append(inside.is_set())
        shutdown()

    waiting.__name__, shutting.__name__ = wait.__name__, shutdown.__name__
    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", waiting)
    monkeypatch.setattr(pynvml, "nvmlShutdown", shutting)
    reader = reading(live.nvml.watch_events(XID))
    for _ in range(3):
        assert inside.wait(LONG)
        live.nvml.renew()
        live.nvml.gpus()
    assert inside.wait(LONG)
    live.nvml.close()
    reader.join()
    assert shut == [False] * 4
    assert isinstance(reader.error, Uninitialized)
    assert "this session was closed" in str(reader.error)


def test_a_driver_reload_ends_the_wait(live, reading):
    reader = reading(live.nvml.watch_events(XID))
    live.do("driver-reload")
    reader.join()
    assert isinstance(reader.error, Uninitialized)


def test_nothing_is_touched_while_a_call_keeps_the_session_from_being_made_anew(live, hasty):
    events = live.nvml.watch_events(XID)
    with live.nvml._session.use():
        live.nvml.renew()
        assert (events.wait(0.2), events.gaps) == (None, 1)
        assert hasty == []
    assert (events.wait(LONG), events.gaps) == (None, 2)
    assert hasty == [1], "what is queued is taken out before the session ends"


def test_closing_ends_the_wait_and_frees_the_event_set(live, reading):
    events = live.nvml.watch_events(XID)
    reader = reading(events)
    assert live.event_sets == 1
    events.close()
    reader.join()
    assert (reader.heard, reader.error, live.event_sets) == ([], None, 0)


def test_a_closed_one_is_quiet(node):
    events = node.nvml.watch_events(XID)
    node.do("xid", 43)
    events.close()
    events.close()
    assert (events.closed, node.event_sets) == (True, 0)
    assert (events.wait(LONG), events.watched, events.unwatched) == (None, {}, {})


def test_closing_after_the_session_does_no_harm(node):
    events = node.nvml.watch_events(XID)
    node.nvml.close()
    events.close()
    assert events.closed


def test_an_event_set_of_a_former_session_is_not_freed_in_the_next(node):
    events = node.nvml.watch_events(XID)
    node.nvml.renew()
    node.nvml.gpus()
    other = node.nvml.watch_events(XID)
    events.close()
    node.do("xid", 43)
    assert [event.data for event in drain(other)] == [43]


def test_it_can_be_named_without_being_loaded():
    program = "import sys, dradriver.nvml as n; n.EventType.XID; print('pynvml' in sys.modules, n.Events, n.Event)"
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert said.startswith("False ")
    assert Events.__name__ in said
