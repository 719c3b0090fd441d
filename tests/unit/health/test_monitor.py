"""The monitor on scripted GPUs: what is heard, what is asked, what is kept, who is told."""

import json
from types import SimpleNamespace

import pytest

from dradriver.gpu.health import HealthWishes, Place
from dradriver.gpu.model import Placement
from dradriver.health import Around, Monitor
from dradriver.health import monitor as module
from dradriver.health.condition import FIRST_HOLD
from dradriver.health.requests import Requests
from dradriver.nvml import (
    DriverNotLoaded,
    Event,
    EventType,
    GpuLost,
    Hanging,
    InUse,
    NotFound,
    Readings,
    ResetRequired,
    Uninitialized,
    UnknownError,
)

A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
HALF = Place(profile_id=9, placement=Placement(start=4, size=4))


class Node:
    """Two GPUs, and a monitor whose look is called by hand."""

    def __init__(self, folder):
        self.folder = folder
        self.time = 1_000_000.0
        self.boot_id = "boot-1"
        self.numbers = {A: 0, B: 1}
        self.answers = {A: Readings(recovery=0), B: Readings(recovery=0)}
        self.lives = {A: 0, B: 0}
        self.ears = SimpleNamespace(unheard={}, silence=0.0, why_unheard=self.why_unheard)
        self.unknown, self.problems, self.news = [], [], 0
        self.places, self.holders, self.told = {}, [], []
        self.wishes, self.annotation, self.ours, self.driver = HealthWishes(), "", True, None
        self.start()

    def start(self):
        """A new process."""
        around = Around(
            boot_id=self.boot_id,
            file=self.folder / "health.json",
            hardware=self.opened,
            numbers=lambda: self.numbers,
            ears=self.ears,
            place=lambda gpu, instance: self.places.get((gpu, instance)),
            claims=lambda _gpu, _place: self.holders,
            wishes=lambda: self.wishes,
            annotation=lambda: self.annotation,
            requests=Requests(self.folder / "clear-health"),
            is_our_turn=lambda: self.ours,
            on_problem=self.problems.append,
            on_unknown=self.unknown.append,
            on_marks=self.told.append,
            on_news=self.note_news,
            on_look=lambda: None,
        )
        self.monitor = Monitor(around, clock=lambda: self.time)
        self.monitor.load()

    def opened(self):
        if self.driver is not None:
            raise self.driver
        return self

    def readings_of(self, gpu_uuids):
        return [self.answers[uuid] for uuid in gpu_uuids]

    def why_unheard(self, gpu_uuid):
        return self.ears.unheard.get(gpu_uuid) or self.ears.unheard.get("")

    def note_news(self):
        self.news += 1

    def returns(self, gpu_uuid):
        return self.lives[gpu_uuid]

    def xid(self, number, gpu=A, instance=None):
        self.monitor.hear(
            Event(gpu_uuid=gpu, type=EventType.XID, data=number, gpu_instance_id=instance, compute_instance_id=None)
        )

    def look(self, after=0.0, times=1):
        for _ in range(times):
            self.time += after
            self.monitor.look()

    def marks(self, gpu=A):
        return {(mark.key.rpartition("/")[2], mark.value): mark.effect for mark in self.monitor.marks.get(gpu, ())}

    @property
    def writes(self):
        path = self.folder / "health.json"
        return path.stat().st_mtime_ns if path.exists() else 0


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


# --- what is heard --------------------------------------------------------------------------------


def test_an_error_is_told_at_once_and_is_on_disk_by_then(node):
    def on_disk(marks):
        node.told.append(json.loads((node.folder / "health.json").read_text())["gpus"].keys() == marks.keys())

    node.monitor._around.on_marks = on_disk
    node.xid(79)
    assert node.told == [True]
    assert node.marks() == {("xid", "79"): "NoExecute", ("recovery", "node-reboot"): "NoExecute"}
    assert node.marks(B) == {}


def test_an_error_of_an_instance_whose_place_is_known_hits_that_partition(node):
    node.places[A, 5] = HALF
    node.xid(94, instance=5)
    assert {mark.place for mark in node.monitor.marks[A]} == {HALF}


def test_an_error_of_an_instance_that_nobody_knows_hits_the_whole_gpu(node):
    node.xid(94, instance=5)
    assert {mark.place for mark in node.monitor.marks[A]} == {None}


def test_ten_thousand_errors_are_told_and_written_once(node):
    node.xid(31)
    before = node.writes
    for _ in range(10_000):
        node.time += 0.001
        node.xid(31)
    assert (len(node.told), node.writes) == (1, before)
    node.look()
    assert len(node.told) == 1


def test_an_event_of_another_kind_is_none_of_the_monitor_s(node):
    for kind in (EventType.CLOCK, EventType.MIG_CONFIG, EventType.SINGLE_BIT_ECC):
        node.monitor.hear(Event(gpu_uuid=A, type=kind, data=0, gpu_instance_id=None, compute_instance_id=None))
    assert node.told == []


@pytest.mark.parametrize(
    ("kind", "effect"), [(EventType.FATAL_POISON, "NoExecute"), (EventType.GPU_UNAVAILABLE, "NoExecute")]
)
def test_events_that_are_no_xids_have_their_rules(kind, effect, node):
    node.monitor.hear(Event(gpu_uuid=A, type=kind, data=0, gpu_instance_id=None, compute_instance_id=None))
    assert set(node.marks().values()) == {effect}


# --- what is asked --------------------------------------------------------------------------------


def test_what_a_gpu_says_counts_at_once_and_is_over_when_it_has_been_well_for_a_while(node):
    node.answers[A] = Readings(recovery=1)
    node.look()
    assert node.marks() == {("recovery", "gpu-reset"): "NoSchedule"}
    node.answers[A] = Readings(recovery=0)
    node.look(after=1.0)
    assert node.marks()
    node.look(after=FIRST_HOLD)
    assert (node.marks(), node.told[-1]) == ({}, {})


def test_a_gpu_that_came_back_is_well_at_once(node):
    node.look()
    node.xid(79)
    node.answers[A] = Readings(recovery=2)
    node.look(after=1.0)
    node.answers[A], node.lives[A] = Readings(recovery=0), 1
    node.look(after=1.0)
    assert node.marks() == {}


def test_an_error_that_comes_while_a_gpu_is_asked_is_not_answered_by_that(node):
    node.look()
    node.lives[A] = 1
    node.answers[A] = Readings(recovery=0)
    ask = node.readings_of

    def asked(gpu_uuids):
        answers = ask(gpu_uuids)
        node.time += 0.5
        node.xid(79)
        return answers

    node.readings_of = asked
    node.look(after=1.0)
    assert node.marks()["xid", "79"] == "NoExecute"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (GpuLost("nvml", 15, A), {("gpu-lost", ""): "NoExecute"}),
        (NotFound("nvml", 6, A), {("gpu-lost", ""): "NoSchedule"}),
        (Hanging("nvml", 10, A), {("unmonitored", ""): "None"}),
        (UnknownError("nvml", 999, A), {("unmonitored", ""): "None"}),
        (ResetRequired("nvml", 16, A), {("unmonitored", ""): "None"}),
        (InUse("nvml", 19, A), {("unmonitored", ""): "None"}),
        (DriverNotLoaded("nvml", 9), {}),
        (Uninitialized("nvml", 1), {}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_one_answer_that_fails_says_nothing_and_two_tell_of_their_gpu_only(error, expected, node):
    node.look()
    node.answers[A] = error
    node.look(after=1.0)
    assert node.told == []
    node.look(after=1.0)
    assert (node.marks(), node.marks(B)) == (expected, {})
    node.answers[A] = Readings(recovery=0)
    node.look(after=1.0)
    node.look(after=2 * FIRST_HOLD)
    assert node.marks() == {}


def test_a_gpu_that_does_not_answer_for_long_takes_no_new_pods_and_one_that_is_gone_none_at_all(node):
    node.answers = {A: Hanging("nvml", 10, A), B: NotFound("nvml", 6, B)}
    node.look(after=5.0, times=2)
    node.look(after=31.0)
    assert (node.marks()["unmonitored", ""], node.marks(B)["gpu-lost", ""]) == ("None", "NoExecute")
    node.look(after=31.0)
    assert node.marks()["unmonitored", ""] == "NoSchedule"


def test_a_gpu_that_is_not_heard_for_some_seconds_is_told_with_the_reason(node):
    node.ears.unheard = {A: "it tells no events"}
    node.look()
    assert node.marks() == {}, "it may be listened to anew after a reset of another"
    node.look(after=module.UNHEARD_SECONDS)
    assert node.marks() == {("unmonitored", ""): "None"}
    assert "it tells no events" in node.monitor.marks[A][0].text
    node.ears.unheard = {}
    node.look()
    assert node.marks() == {}


@pytest.mark.parametrize("ears", [{"silence": module.DEAF_SECONDS + 1}, {"unheard": {"": "the driver is not loaded"}}])
def test_when_nobody_listens_no_gpu_is_monitored(ears, node):
    vars(node.ears).update(ears)
    node.look()
    node.look(after=module.UNHEARD_SECONDS)
    assert node.marks() == node.marks(B) == {("unmonitored", ""): "None"}


def test_it_looks_again_soon_where_something_may_be_over_soon(node):
    node.look()
    assert node.monitor._pause() == module.LOOK_SECONDS
    node.answers[A] = GpuLost("nvml", 15, A)
    node.look()
    assert node.monitor._pause() < FIRST_HOLD
    node.look()
    node.answers[A] = Readings(recovery=0)
    node.look()
    assert node.monitor._pause() < FIRST_HOLD
    node.look(after=FIRST_HOLD)
    assert node.monitor._pause() == module.LOOK_SECONDS


# --- over restarts --------------------------------------------------------------------------------


def test_a_new_process_knows_what_the_old_one_knew_with_the_same_times(node):
    node.xid(79)
    node.xid(31, gpu=B)
    before = node.monitor.marks
    node.time += 60.0
    node.start()
    assert node.monitor.marks == before


def test_a_start_of_the_node_ends_what_it_ends_and_forgets_gpus_that_do_not_come_back(node):
    node.xid(79)
    node.xid(78, gpu=A)
    node.xid(78, gpu=B)
    node.boot_id = "boot-2"
    node.start()
    assert {key for key, _ in node.marks()} == {"xid", "recovery"}
    assert ("xid", "79") not in node.marks()
    node.numbers = {}
    node.look(after=2 * module.GONE_SECONDS)
    assert node.marks(B), "GPUs that cannot be read now are not gone"
    node.numbers = {A: 0}
    node.look()
    node.look(after=module.GONE_SECONDS - 1)
    assert node.marks(B), "it may come late"
    node.look(after=1)
    assert (node.marks()["xid", "78"], node.marks(B)) == ("NoSchedule", {})


def test_what_is_known_again_as_soon_as_gpus_are_asked_does_not_outlive_a_start_of_the_node(node):
    node.answers = {A: GpuLost("nvml", 15, A), B: NotFound("nvml", 6, B)}
    node.ears.unheard = {"": "no driver"}
    node.look(after=5, times=3)
    assert node.marks()
    assert node.marks(B)
    node.boot_id = "boot-2"
    node.start()
    assert node.marks() == node.marks(B) == {}


def test_a_gpu_that_leaves_while_the_node_runs_is_not_forgotten(node):
    node.xid(78)
    node.numbers = {B: 1}
    node.look()
    assert node.marks()


@pytest.mark.parametrize(
    ("bend", "kept"), [(lambda _text: "{", set()), (lambda text: text.replace('"78"', '"x"'), {A})]
)
def test_a_damaged_file_is_set_aside_and_told_and_what_can_be_read_of_it_is_kept(bend, kept, node):
    node.xid(79)
    node.xid(78, gpu=B)
    path = node.folder / "health.json"
    path.write_text(bend(path.read_text()))
    node.start()
    assert node.monitor.marks.keys() == kept
    assert "health.json.damaged" in node.problems[-1]
    assert (node.folder / "health.json.damaged").exists()
    node.start()
    assert node.problems[-1] == ""


def test_a_folder_that_cannot_be_written_keeps_no_taint_from_being_told_and_is_told_once(node):
    node.look()
    (node.folder / "health.json").unlink()
    (node.folder / "health.json").mkdir()
    node.xid(79)
    node.xid(95)
    node.look()
    assert node.told[-1].keys() == {A}
    assert [problem[:5] for problem in node.problems if problem] == [str(node.folder)[:5]]
    (node.folder / "health.json").rmdir()
    node.look()
    assert node.problems[-1] == ""


def test_a_file_that_somebody_removes_is_written_again_also_where_nothing_is_held(node):
    for _ in range(2):
        node.look()
        (node.folder / "health.json").unlink()
    node.look()
    assert json.loads((node.folder / "health.json").read_text())["gpus"] == {}


def test_a_gpu_that_has_gone_says_nothing_that_an_order_would_have_to_keep(node):
    node.answers[A] = Readings(recovery=1)
    node.look()
    node.numbers = {B: 1}
    node.annotation = "all"
    node.look()
    assert node.marks() == {}


def test_an_older_process_leaves_the_file_to_the_newer_one_and_writes_it_when_that_has_gone(node):
    node.ours = False
    node.time += 1.0
    node.xid(79)
    assert node.writes == 0
    node.ours = True
    node.look()
    assert node.writes


def test_two_processes_that_follow_one_another_lose_nothing_between_them(node):
    """The new one has loaded, and does not listen yet: what the old one hears and obeys meanwhile is taken over."""
    node.xid(78)
    node.xid(31, gpu=B)
    old = node.monitor
    node.start()
    new = node.monitor
    node.monitor = old
    node.time += 1.0
    node.xid(95)
    old.clear([B])
    node.monitor, node.ours = new, False
    node.time += 1.0
    node.xid(13)
    node.ours = True
    new.catch_up()
    assert {detail for key, detail in node.marks() if key == "xid"} == {"78", "95", "13"}
    node.look()
    kept = json.loads((node.folder / "health.json").read_text())["gpus"]
    assert {cause["detail"] for cause in kept[A]["causes"]} == {"78", "95", "13"}
    assert B not in kept


@pytest.mark.parametrize(
    "bend", [lambda path: path.unlink(), lambda path: path.write_text("{")], ids=["gone", "damaged"]
)
def test_a_file_that_says_nothing_takes_nothing_from_what_is_known(bend, node):
    node.xid(79)
    node.start()
    node.time += 1.0
    bend(node.folder / "health.json")
    node.monitor.catch_up()
    node.look()
    assert node.marks()["xid", "79"] == "NoExecute"
    node.start()
    assert node.marks()["xid", "79"] == "NoExecute", "and it is written again"


def test_a_process_that_gets_the_turn_takes_over_what_the_other_knew(node):
    node.ours = False
    node.look()
    other = Node(node.folder)
    other.xid(79)
    assert node.marks() == {}
    node.ours = True
    node.look()
    assert node.marks()["xid", "79"] == "NoExecute"


# --- administrators -------------------------------------------------------------------------------


def test_the_annotation_is_obeyed_once_for_each_value_over_restarts_too(node):
    node.xid(78)
    node.annotation = "gpu-0"
    node.look()
    assert node.marks() == {}
    node.xid(78)
    node.look()
    assert node.marks()
    node.start()
    node.look()
    assert node.marks()
    node.annotation = ""
    node.look()
    assert node.marks()
    node.annotation = "gpu-0"
    node.look()
    assert node.marks() == {}


def test_an_annotation_that_is_not_known_for_a_while_is_not_obeyed_again(node):
    """After each start the node is not known at first, and not while the API server is away."""
    node.annotation = "gpu-0"
    node.look()
    node.xid(78)
    for _ in range(2):
        node.annotation = None
        node.look()
        node.annotation = "gpu-0"
        node.look()
        assert node.marks()
        node.start()


def test_a_request_is_obeyed_and_what_the_gpu_still_says_stays(node):
    node.xid(78)
    node.xid(78, gpu=B)
    node.answers[A] = Readings(recovery=0, remap_failure=True)
    node.look()
    Requests(node.folder / "clear-health").ask(["gpu-0"])
    node.look()
    assert node.marks() == {("memory", "remap-failed"): "NoSchedule"}
    assert node.marks(B)["xid", "78"] == "NoSchedule"


def test_a_gpu_that_has_left_the_node_is_cleared_by_its_uuid(node):
    node.xid(78)
    node.numbers = {B: 1}
    node.annotation = A
    node.look()
    assert node.marks() == {}


def test_an_order_that_names_nothing_clears_nothing_and_is_told(node):
    node.xid(78)
    node.annotation = "gpu-7, everything"
    node.look()
    assert node.marks()
    assert node.unknown[-1] == ("gpu-7", "everything")
    node.annotation = "gpu-0"
    node.look()
    assert (node.marks(), node.unknown[-1]) == ({}, ())


def test_an_order_waits_until_the_gpus_are_known(node):
    node.xid(78)
    node.numbers, node.annotation = {}, "gpu-0"
    node.look()
    assert node.marks()
    node.numbers = {A: 0}
    node.look()
    assert node.marks() == {}


def test_wishes_count_for_what_was_heard_before_and_a_graver_one_begins_anew(node):
    node.xid(79)
    node.time += 100.0
    node.wishes = HealthWishes(xids={79: "warn"})
    node.look()
    assert node.marks() == {("xid", "79"): "None"}
    assert {mark.since for mark in node.monitor.marks[A]} == {1_000_000}
    node.wishes = HealthWishes()
    node.look()
    assert node.marks()["xid", "79"] == "NoExecute"
    assert {mark.since for mark in node.monitor.marks[A]} == {1_000_100}, "tolerationSeconds count from now on"


# --- whoever is told ------------------------------------------------------------------------------


def test_a_second_error_that_changes_no_taint_is_news_all_the_same(node):
    node.xid(119)
    node.time += 1.0
    node.xid(46)
    assert (len(node.told), node.news) == (1, 2)
    node.xid(46)
    assert node.news == 2


def test_taints_that_could_not_be_given_are_given_at_the_next_look(node):
    give = node.monitor._around.on_marks

    def fail(_marks):
        raise RuntimeError("no")

    node.monitor._around.on_marks = fail
    node.xid(79)
    node.monitor._around.on_marks = give
    node.look()
    assert node.told[-1].keys() == {A}


@pytest.mark.parametrize(
    "errors",
    [
        [Hanging("nvml", 10, A), GpuLost("nvml", 15, A)],
        [GpuLost("nvml", 15, A), DriverNotLoaded("nvml", 9), GpuLost("nvml", 15, A)],
        [GpuLost("nvml", 15, A), Readings(recovery=0), GpuLost("nvml", 15, A)],
    ],
    ids=["of two kinds", "with all of NVML away between", "with an answer between"],
)
def test_failures_that_do_not_follow_one_another_evict_nobody(errors, node):
    for error in errors:
        node.answers[A] = error
        node.look(after=5)
    assert node.marks() == {}
