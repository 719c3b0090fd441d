"""What each new finding changes; time is given, and nothing else is there."""

from dataclasses import replace
from itertools import permutations

import pytest

from dradriver.gpu.health import Effect, HealthWishes, Place, marks_of
from dradriver.gpu.model import Placement
from dradriver.health import condition as found
from dradriver.health.condition import Cause, Condition, came_back, hear, lower, pass_time, raise_, read, rebooted
from dradriver.health.policy import default_policy
from dradriver.health.verdict import marks
from dradriver.nvml import Readings

XID, RECOVERY, MEMORY = "gpu.nvidia.com/xid", "dradriver.dev/recovery", "dradriver.dev/memory"
LOST, UNMONITORED = "gpu.nvidia.com/gpu-lost", "gpu.nvidia.com/unmonitored"
NONE, NO_SCHEDULE, NO_EXECUTE = Effect.NONE, Effect.NO_SCHEDULE, Effect.NO_EXECUTE
HERE = Place(profile_id=19, placement=Placement(start=4, size=1))
THERE = Place(profile_id=9, placement=Placement(start=0, size=4))
START = 1_700_000_000.0
WELL = Readings(recovery=0, remap_pending=False, remap_failure=False, sram_exceeded=False, fabric="healthy")
ANSWERS = Readings()
POLICY = default_policy()


class Gpu:
    """One GPU's condition, as time passes."""

    def __init__(self, policy=POLICY):
        self.policy = policy
        self.now = START
        self.condition = Condition()

    def xid(self, number, *, after=0.0, place=None, claims=()):
        self.now += after
        self.condition = hear(
            self.condition,
            self.policy,
            origin="xid",
            detail=str(number),
            place=place,
            claims=claims,
            now=self.now,
        )
        return self

    def says(self, readings, *, after=0.0):
        self.now += after
        self.condition = pass_time(read(self.condition, self.policy, readings, self.now), self.policy, self.now)
        return self

    def keeps_saying(self, readings, seconds, *, step=1.0):
        end = self.now + seconds
        self.says(readings)
        while self.now + step <= end:
            self.says(readings, after=step)
        return self

    def silent(self, origin, detail="why", *, after=0.0):
        self.now += after
        self.condition = pass_time(raise_(self.condition, origin, detail, self.now), self.policy, self.now)
        return self

    def waits(self, seconds):
        self.now += seconds
        self.condition = pass_time(self.condition, self.policy, self.now)
        return self

    def at(self, place=None):
        """Key to value and effect, of the whole GPU or a partition."""
        chosen = marks_of(marks(self.condition, self.policy, "GPU-1"), place)
        return {mark.key: (mark.value, mark.effect) for mark in chosen}

    @property
    def taints(self):
        return self.at()

    def since(self, key, place=None):
        (mark,) = (one for one in marks_of(marks(self.condition, self.policy, "GPU-1"), place) if one.key == key)
        return mark.since


@pytest.fixture
def gpu():
    return Gpu()


# --- what is reported: one beside the other -------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations([79, 31, 43, 94])))
def test_a_harmless_error_never_takes_the_place_of_a_fatal_one(gpu, order):
    for number in order:
        gpu.xid(number, after=1)
    assert gpu.taints[XID] == ("79", NO_EXECUTE)
    assert gpu.taints[RECOVERY] == ("node-reboot", NO_EXECUTE)
    assert gpu.waits(700).taints == {XID: ("79", NO_EXECUTE), RECOVERY: ("node-reboot", NO_EXECUTE)}


def test_what_comes_again_keeps_its_first_time(gpu):
    gpu.xid(95).xid(95, after=100).xid(31, after=5).xid(95, after=100)
    assert gpu.since(XID) == START
    assert [cause.last for cause in gpu.condition.causes] == [START + 205, START + 105]


def test_what_only_tells_is_told_from_the_last_time_on(gpu):
    gpu.xid(31).xid(31, after=599).waits(599)
    assert gpu.since(XID) == START
    assert gpu.waits(1).condition.causes == ()


def test_the_same_error_in_two_partitions_is_two_causes(gpu):
    gpu.xid(31, place=HERE).xid(31, place=THERE, after=400)
    assert gpu.at(HERE) == gpu.at(THERE) == {XID: ("31", NONE)}
    assert gpu.taints == {}
    gpu.waits(300)
    assert (gpu.at(HERE), gpu.at(THERE)) == ({}, {XID: ("31", NONE)})


def test_an_error_without_a_partition_hits_all_of_them(gpu):
    gpu.xid(999)
    assert gpu.at(HERE) == gpu.at(THERE) == gpu.taints == {XID: ("999", NO_SCHEDULE)}


def test_a_grave_error_hits_the_gpu_whatever_partition_it_names(gpu):
    gpu.xid(95, place=HERE).xid(95, place=THERE)
    assert len(gpu.condition.causes) == 1
    assert gpu.at(THERE)[XID] == gpu.taints[XID] == ("95", NO_EXECUTE)


# --- suspicion ------------------------------------------------------------------------------------


def test_three_claims_of_one_class_make_the_hardware_suspect(gpu):
    gpu.xid(31, claims=["a"]).xid(13, after=60, claims=["b"])
    assert gpu.taints == {XID: ("31", NONE)}
    gpu.xid(31, after=60, claims=["c"])
    assert gpu.taints == {XID: ("31", NO_SCHEDULE)}
    assert gpu.since(XID) == START + 120
    assert gpu.xid(31, after=60, claims=["d"]).since(XID) == START + 120
    assert gpu.xid(31, after=3000, claims=["e"]).since(XID) == START + 120
    assert gpu.waits(3599).taints == {XID: ("31", NO_SCHEDULE)}
    assert gpu.waits(1).taints == {}, "a program that fails as another claim each time takes no GPU out of use for good"


@pytest.mark.parametrize(
    "reports",
    [
        [(0, 31, ["a"]), (9, 31, ["b"])],
        [(0, 31, ["a"]), (9, 31, ["a"]), (9, 13, ["a"]), (9, 31, ["a"])],
        [(0, 31, ["a"]), (1801, 31, ["b"]), (1801, 31, ["c"])],
        [(0, 31, ["a"]), (9, 43, ["b"]), (9, 31, ["c"])],
        [(0, 31, []), (9, 31, []), (9, 31, [])],
        [(0, 31, ["a", "b", "c", "d"])],
        [(0, 31, ["a"]), (9, 31, ["b"]), (9, 31, ["c", "d"])],
        [(0, 45, ["a"]), (9, 45, ["b"]), (9, 45, ["c"])],
        [(0, 94, ["a"]), (9, 94, ["b"]), (9, 94, ["c"])],
    ],
    ids=[
        "two claims",
        "one claim again and again",
        "not within an hour",
        "two classes",
        "no claim",
        "one report, of several possible claims",
        "a report of several possible claims counts for none",
        "programs that were killed",
        "memory",
    ],
)
def test_what_makes_no_hardware_suspect(gpu, reports):
    for after, number, claims in reports:
        gpu.xid(number, after=after, claims=claims)
    assert {effect for _, effect in gpu.taints.values()} == {NONE}


def test_an_hour_is_counted_for_each_claim(gpu):
    for after, claim in ((0, "a"), (1800, "b"), (1700, "a"), (1700, "c")):
        gpu.xid(31, after=after, claims=[claim])
    assert gpu.taints == {XID: ("31", NO_SCHEDULE)}


def test_partitions_are_suspected_each_for_itself(gpu):
    gpu.xid(31, place=HERE, claims=["a"]).xid(31, place=THERE, claims=["b"]).xid(31, place=HERE, claims=["c"])
    assert gpu.at(HERE) == gpu.at(THERE) == {XID: ("31", NONE)}
    gpu.xid(31, place=HERE, claims=["d"])
    assert (gpu.at(HERE), gpu.at(THERE)) == ({XID: ("31", NO_SCHEDULE)}, {XID: ("31", NONE)})


def test_a_reset_ends_the_suspicion_and_forgets_who_met_it(gpu):
    for claim in "abc":
        gpu.xid(31, claims=[claim])
    gpu.condition = came_back(gpu.condition, POLICY, before=gpu.now)
    assert gpu.condition == Condition()
    gpu.xid(31, after=1, claims=["d"])
    assert gpu.taints == {XID: ("31", NONE)}


def test_offences_are_forgotten_after_an_hour(gpu):
    gpu.xid(31, claims=["a"]).waits(3600)
    assert len(gpu.condition.offences) == 1
    assert gpu.waits(1).condition == Condition()


def test_the_word_of_an_administrator_ends_a_suspicion(gpu):
    for claim in "abc":
        gpu.xid(31, claims=[claim])
    gpu.policy = POLICY.adapted(HealthWishes(xids={31: "warn"}))
    assert gpu.taints == {XID: ("31", NONE)}
    assert gpu.waits(600).condition.causes == ()


# --- double bit errors ----------------------------------------------------------------------------

CONTAINED = {MEMORY: ("contained", NONE), XID: ("48", NONE)}


def test_a_double_bit_error_alone_needs_a_reset(gpu):
    gpu.xid(48)
    assert gpu.taints == {XID: ("48", NO_SCHEDULE), RECOVERY: ("gpu-reset", NO_SCHEDULE)}
    assert gpu.keeps_saying(WELL, 3600, step=60).taints == {
        XID: ("48", NO_SCHEDULE),
        RECOVERY: ("gpu-reset", NO_SCHEDULE),
    }


@pytest.mark.parametrize("after", [0, 0.001, 29, 30])
def test_a_double_bit_error_that_was_contained_is_harmless(gpu, after):
    gpu.xid(48).xid(94, after=after, place=HERE)
    assert gpu.at(HERE) == CONTAINED
    assert gpu.taints == {XID: ("48", NONE)}
    assert gpu.waits(600).condition.causes == ()


def test_a_containment_that_comes_late_contains_nothing(gpu):
    gpu.xid(48).xid(94, after=30.5)
    assert gpu.taints[RECOVERY] == ("gpu-reset", NO_SCHEDULE)


def test_the_containment_may_be_told_first(gpu):
    gpu.xid(94, place=HERE).xid(48, after=0.2)
    assert gpu.at(HERE)[MEMORY] == ("contained", NONE)
    assert gpu.taints == {XID: ("48", NONE)}
    later = Gpu()
    later.xid(94).xid(48, after=6)
    assert later.taints[RECOVERY] == ("gpu-reset", NO_SCHEDULE)


def test_several_double_bit_errors_beside_one_containment_are_all_harmless(gpu):
    gpu.xid(94).xid(48, after=0.1).xid(48, after=0.1).xid(48, after=0.1)
    assert RECOVERY not in gpu.taints
    assert gpu.since(XID) == START
    gpu.xid(48, after=100)
    assert gpu.taints[RECOVERY] == ("gpu-reset", NO_SCHEDULE)


@pytest.mark.parametrize("order", list(permutations([48, 94, 95])))
def test_an_uncontained_error_counts_whatever_else_is_told(gpu, order):
    for number in order:
        gpu.xid(number, after=1)
    assert gpu.taints == {
        XID: ("95", NO_EXECUTE),
        RECOVERY: ("gpu-reset", NO_EXECUTE),
        MEMORY: ("uncontained", NO_EXECUTE),
    }


def test_what_was_contained_once_and_comes_again_alone_is_not(gpu):
    gpu.xid(48).xid(94).xid(48, after=60)
    assert gpu.taints[RECOVERY] == ("gpu-reset", NO_SCHEDULE)
    assert gpu.since(RECOVERY) == START + 60


# --- the recovery action --------------------------------------------------------------------------


def test_an_xid_154_alone_changes_nothing(gpu):
    assert gpu.xid(154).condition == Condition()
    assert gpu.xid(79).xid(154).taints[XID] == ("79", NO_EXECUTE)


@pytest.mark.parametrize("action", [1, 2, 3, 4, 5, 6, 7, 8, 77])
def test_a_recovery_action_holds_until_it_is_nothing_for_a_while(gpu, action):
    gpu.says(Readings(recovery=action))
    expected = gpu.taints
    assert expected.keys() == {RECOVERY}
    assert gpu.says(ANSWERS, after=100).taints == expected
    assert gpu.says(Readings(recovery=0), after=1).taints == expected
    assert gpu.says(Readings(recovery=0), after=1.9).taints == expected
    assert gpu.says(Readings(recovery=0), after=0.1).taints == {}


def test_another_action_is_another_taint_from_then_on(gpu):
    gpu.says(Readings(recovery=1)).says(Readings(recovery=1), after=10)
    assert gpu.since(RECOVERY) == START
    gpu.says(Readings(recovery=6), after=10)
    assert (gpu.taints, gpu.since(RECOVERY)) == ({RECOVERY: ("bus-reset", NO_EXECUTE)}, START + 20)


def test_one_good_answer_between_bad_ones_is_not_the_end(gpu):
    gpu.says(Readings(recovery=1))
    for _ in range(5):
        gpu.says(Readings(recovery=0), after=1.5).says(Readings(recovery=1), after=1.5)
        assert gpu.since(RECOVERY) == START
    assert len(gpu.condition.raises) == 1


def seconds_to_recover(gpu, limit=700):
    for seconds in range(limit):
        if not gpu.says(Readings(recovery=0), after=1 if seconds else 0).taints:
            return seconds
    raise AssertionError(gpu.condition)


def test_what_flaps_is_held_longer_each_time_and_forgiven_after_an_hour(gpu):
    holds = []
    for _ in range(11):
        gpu.says(Readings(recovery=1), after=1)
        holds.append(seconds_to_recover(gpu))
    assert holds[:6] == [2, 4, 8, 16, 32, 64]
    assert max(holds) == holds[-1] == found.LONGEST_HOLD
    gpu.waits(3600)
    assert gpu.says(Readings(recovery=1)).taints
    assert seconds_to_recover(gpu) == 2


def test_other_things_that_flap_do_not_shorten_the_hold(gpu):
    for _ in range(4):
        gpu.says(Readings(recovery=1), after=1)
        seconds_to_recover(gpu)
    for _ in range(100):
        gpu.silent(found.NO_EVENTS, after=1)
        gpu.condition = lower(gpu.condition, found.NO_EVENTS)
        gpu.silent(found.NO_ANSWER).says(ANSWERS)
    gpu.says(Readings(recovery=1))
    assert seconds_to_recover(gpu) == 32


def test_a_gpu_that_needed_a_reset_and_does_not_any_more_was_reset(gpu):
    gpu.xid(95).says(Readings(recovery=1), after=1).says(WELL, after=60)
    assert gpu.taints[XID] == ("95", NO_EXECUTE)
    gpu.xid(31, after=1).keeps_saying(WELL, 2)
    assert gpu.taints == {XID: ("31", NONE)}


def test_an_error_outweighs_a_recovery_action_that_says_nothing(gpu):
    gpu.xid(95).keeps_saying(WELL, 3600, step=30)
    assert gpu.taints[XID] == ("95", NO_EXECUTE)


def test_the_recovery_action_outweighs_what_only_it_can_judge(gpu):
    gpu.xid(119).keeps_saying(WELL, 29)
    assert gpu.taints[RECOVERY] == ("gpu-reset", NO_SCHEDULE)
    assert gpu.says(WELL, after=1).taints == {XID: ("119", NONE)}
    assert gpu.keeps_saying(WELL, 600, step=5).condition.causes == ()


def test_a_recovery_action_has_to_say_nothing_all_the_time(gpu):
    gpu.xid(119).keeps_saying(WELL, 20).silent(found.NO_ANSWER, after=5).says(WELL, after=100)
    assert gpu.taints[RECOVERY] == ("gpu-reset", NO_SCHEDULE)
    assert gpu.keeps_saying(WELL, 29).taints[RECOVERY] == ("gpu-reset", NO_SCHEDULE)
    assert RECOVERY not in gpu.says(WELL, after=1).taints


def test_an_error_that_comes_again_begins_the_wait_anew(gpu):
    gpu.xid(119).keeps_saying(WELL, 25).xid(119, after=1).keeps_saying(WELL, 29)
    assert gpu.taints[RECOVERY] == ("gpu-reset", NO_SCHEDULE)
    assert gpu.since(RECOVERY) == START
    assert RECOVERY not in gpu.says(WELL, after=1).taints


def test_an_error_that_was_outweighed_and_comes_again_counts_anew(gpu):
    gpu.xid(119).keeps_saying(WELL, 60).xid(119, after=1)
    assert (gpu.taints[RECOVERY], gpu.since(RECOVERY)) == (("gpu-reset", NO_SCHEDULE), START + 61)


def test_a_driver_that_does_not_tell_the_action_ends_by_its_answers_only_what_they_disprove(gpu):
    gpu.xid(119).xid(79).keeps_saying(replace(WELL, recovery=None), 29, step=1)
    assert gpu.taints[XID] == ("79", NO_EXECUTE)
    gpu.keeps_saying(replace(WELL, recovery=None), 3600, step=30)
    assert gpu.taints == {XID: ("119", NO_SCHEDULE), RECOVERY: ("gpu-reset", NO_SCHEDULE)}


def test_an_action_beside_an_error_for_it_keeps_it(gpu):
    gpu.xid(109).says(Readings(recovery=1), after=0.1)
    assert gpu.taints == {XID: ("109", NONE), RECOVERY: ("gpu-reset", NO_SCHEDULE)}
    gpu.keeps_saying(Readings(recovery=1), 500, step=5)
    assert gpu.taints == {XID: ("109", NONE), RECOVERY: ("gpu-reset", NO_SCHEDULE)}
    assert gpu.keeps_saying(WELL, 2).taints == {}


# --- other readings -------------------------------------------------------------------------------

SICK = Readings(recovery=1, remap_pending=True, remap_failure=True, sram_exceeded=True, fabric="unhealthy")


def test_what_is_not_told_changes_nothing(gpu):
    gpu.says(SICK)
    before = {cause.key: (cause.detail, cause.since, cause.well) for cause in gpu.condition.causes}
    gpu.keeps_saying(ANSWERS, 3600, step=60)
    assert {cause.key: (cause.detail, cause.since, cause.well) for cause in gpu.condition.causes} == before
    assert Gpu().keeps_saying(ANSWERS, 60).condition == Condition()


@pytest.mark.parametrize(
    ("sick", "origin"),
    [
        (Readings(remap_pending=True), found.REMAP_PENDING),
        (Readings(remap_failure=True), found.REMAP_FAILED),
        (Readings(sram_exceeded=True), found.SRAM),
        (Readings(fabric="unhealthy"), found.FABRIC),
    ],
)
def test_each_reading_comes_at_once_and_goes_after_a_while(gpu, sick, origin):
    assert gpu.says(sick).condition.find(origin).since == START
    assert gpu.says(sick, after=5).condition.find(origin).since == START
    assert gpu.says(WELL, after=5).condition.find(origin).well == START + 10
    assert gpu.says(sick, after=1).condition.find(origin).well is None
    assert gpu.says(WELL, after=1).says(WELL, after=1.5).condition.find(origin)
    assert gpu.says(WELL, after=0.5).condition.find(origin) is None


def test_a_repair_that_waits_again_is_not_the_end_of_an_earlier_error(gpu):
    gpu.says(Readings(remap_pending=True)).keeps_saying(WELL, 1).xid(64, after=0.5)
    assert gpu.says(WELL, after=0.5).taints == {XID: ("64", NO_SCHEDULE), MEMORY: ("remap-failed", NO_SCHEDULE)}


def test_memory_that_never_waited_for_repair_says_nothing_of_an_error_in_it(gpu):
    assert gpu.xid(64).keeps_saying(WELL, 3600, step=60).taints[MEMORY] == ("remap-failed", NO_SCHEDULE)


def test_a_fabric_that_is_being_joined_is_neither_well_nor_sick(gpu):
    assert gpu.keeps_saying(Readings(fabric="joining"), 60).taints == {}
    gpu.says(Readings(fabric="unhealthy")).keeps_saying(Readings(fabric="joining"), 600, step=5)
    assert gpu.taints == {RECOVERY: ("nvlink", NO_SCHEDULE)}
    assert gpu.keeps_saying(WELL, 2).taints == {}


def test_links_that_failed_are_told_until_the_fabric_was_well_for_a_while(gpu):
    gpu.xid(74).keeps_saying(Readings(fabric="joining"), 60)
    assert gpu.taints[RECOVERY] == ("nvlink", NONE)
    assert gpu.says(Readings(fabric="unhealthy"), after=1).taints[RECOVERY] == ("nvlink", NO_SCHEDULE)
    gpu.keeps_saying(WELL, 29)
    assert gpu.taints[RECOVERY] == ("nvlink", NONE)
    assert gpu.says(WELL, after=1).taints == {}


def test_strict_memory_from_the_moment_it_is_wanted(gpu):
    gpu.xid(94, place=HERE).says(Readings(remap_pending=True))
    assert gpu.at(HERE)[MEMORY][1] == gpu.taints[MEMORY][1] == NONE
    gpu.policy = POLICY.adapted(HealthWishes(strict_memory=True))
    assert gpu.at(HERE)[MEMORY] == gpu.taints[MEMORY] == ("remap-pending", NO_SCHEDULE)
    gpu.policy = POLICY
    assert gpu.taints[MEMORY][1] == NONE


# --- GPUs that do not answer ----------------------------------------------------------------------


def test_a_lost_gpu_is_tainted_at_once_and_well_after_it_answered_for_a_while(gpu):
    assert gpu.silent(found.LOST).taints == {LOST: ("", NO_EXECUTE)}
    assert gpu.silent(found.LOST, "other words", after=60).condition.causes[0].detail == "why"
    assert gpu.says(ANSWERS, after=5).taints == {LOST: ("", NO_EXECUTE)}
    assert gpu.says(ANSWERS, after=2).taints == {}


def test_a_lost_gpu_that_answers_again_was_reset(gpu):
    gpu.xid(79).xid(95).silent(found.LOST, after=1).keeps_saying(ANSWERS, 2)
    assert gpu.taints == {}


def test_a_gpu_that_answers_again_and_still_asks_for_a_reset_was_not_reset(gpu):
    gpu.xid(95).silent(found.LOST, after=1).keeps_saying(Readings(recovery=1), 60)
    assert LOST not in gpu.taints
    assert gpu.taints[XID] == ("95", NO_EXECUTE)
    assert gpu.keeps_saying(Readings(recovery=0), 2).taints == {}


def test_what_a_flapping_gpu_says_ends_nothing_while_it_is_waited_for(gpu):
    for _ in range(6):
        gpu.silent(found.LOST, after=1).keeps_saying(WELL, 64)
    gpu.xid(79).silent(found.LOST, after=1).keeps_saying(WELL, 60)
    assert gpu.taints[XID] == ("79", NO_EXECUTE)
    assert gpu.keeps_saying(WELL, 70).taints == {}


def test_an_error_after_the_return_stays(gpu):
    gpu.silent(found.LOST).says(ANSWERS, after=10).xid(95, after=1).keeps_saying(ANSWERS, 5)
    assert gpu.taints[XID] == ("95", NO_EXECUTE)


def test_a_gpu_off_the_bus_that_was_not_found_lost_is_well_after_a_while(gpu):
    gpu.xid(79).keeps_saying(WELL, 29)
    assert gpu.taints[XID] == ("79", NO_EXECUTE)
    assert gpu.says(WELL, after=1).taints == {}


def test_a_missing_gpu_evicts_when_that_lasts(gpu):
    gpu.silent(found.MISSING).silent(found.MISSING, after=29)
    assert gpu.taints == {LOST: ("", NO_SCHEDULE)}
    gpu.silent(found.MISSING, after=1)
    assert (gpu.taints, gpu.since(LOST)) == ({LOST: ("", NO_EXECUTE)}, START + 30)
    assert gpu.keeps_saying(ANSWERS, 2).taints == {}


def test_a_gpu_that_is_there_again_does_not_evict_while_it_is_waited_for(gpu):
    for _ in range(6):
        gpu.silent(found.MISSING, after=1).keeps_saying(ANSWERS, 100)
    gpu.silent(found.MISSING, after=1).keeps_saying(ANSWERS, 60)
    assert gpu.taints == {LOST: ("", NO_SCHEDULE)}


def test_a_gpu_that_does_not_answer_takes_no_new_pods_when_that_lasts(gpu):
    assert gpu.silent(found.NO_ANSWER).silent(found.NO_ANSWER, after=59).taints == {UNMONITORED: ("", NONE)}
    assert gpu.silent(found.NO_ANSWER, after=1).taints == {UNMONITORED: ("", NO_SCHEDULE)}
    assert gpu.says(ANSWERS, after=1).taints == {}


def test_what_a_silent_gpu_said_before_stays(gpu):
    gpu.says(Readings(recovery=1)).silent(found.NO_ANSWER, after=5)
    assert gpu.taints == {RECOVERY: ("gpu-reset", NO_SCHEDULE), UNMONITORED: ("", NONE)}
    gpu.says(WELL, after=1).silent(found.NO_ANSWER, after=1).says(WELL, after=10)
    assert gpu.taints == {RECOVERY: ("gpu-reset", NO_SCHEDULE)}


def test_nobody_who_hears_is_no_more_than_told(gpu):
    assert gpu.silent(found.NO_EVENTS).waits(86400).taints == {UNMONITORED: ("", NONE)}
    assert gpu.says(ANSWERS).taints == {UNMONITORED: ("", NONE)}
    assert lower(gpu.condition, found.NO_EVENTS) == Condition()


def test_of_two_reasons_for_not_being_watched_the_graver_counts(gpu):
    gpu.silent(found.NO_EVENTS).silent(found.NO_ANSWER).silent(found.NO_ANSWER, after=60)
    assert gpu.taints == {UNMONITORED: ("", NO_SCHEDULE)}


# --- resets and boots -----------------------------------------------------------------------------


def test_a_reset_ends_only_what_was_reported_before_it(gpu):
    gpu.xid(95).xid(46, after=1).xid(54, after=1).xid(151)
    gpu.condition = came_back(gpu.condition, POLICY, before=START)
    assert [cause.detail for cause in gpu.condition.causes] == ["46", "54", "151"]
    gpu.condition = came_back(gpu.condition, POLICY, before=gpu.now)
    assert [cause.detail for cause in gpu.condition.causes] == ["54", "151"]


def test_a_reset_that_was_seen_is_enough_for_what_the_gpu_says_then(gpu):
    gpu.says(Readings(recovery=1)).silent(found.LOST, after=1)
    gpu.condition = came_back(gpu.condition, POLICY, before=gpu.now)
    assert gpu.taints[LOST] == ("", NO_EXECUTE)
    assert gpu.says(WELL).taints == {}


def test_a_reset_that_did_not_help_changes_nothing_of_what_the_gpu_says(gpu):
    gpu.says(SICK)
    gpu.condition = came_back(gpu.condition, POLICY, before=gpu.now)
    gpu.says(SICK, after=1)
    assert {cause.since for cause in gpu.condition.causes} == {START}
    assert len(gpu.condition.causes) == 5
    assert all(cause.well is None for cause in gpu.condition.causes)


def test_what_the_gpu_says_outlives_a_boot_until_it_is_asked(gpu):
    gpu.says(SICK).xid(79)
    gpu.condition = rebooted(gpu.condition, POLICY, START + 60)
    assert XID not in gpu.taints
    assert {RECOVERY, MEMORY} == gpu.taints.keys()
    gpu.now = START + 70
    assert gpu.keeps_saying(WELL, 2).taints == {}


def test_a_boot_ends_all_that_was_reported_even_if_the_clock_was_set_back(gpu):
    gpu.xid(95).xid(151)
    assert rebooted(gpu.condition, POLICY, START - 86400).causes == ()


def test_what_somebody_says_is_over_is_over_but_for_what_the_gpu_says_still(gpu):
    gpu.says(SICK).xid(95).xid(54, claims=["a"]).xid(31, claims=["a"]).silent(found.NO_EVENTS)
    gpu.says(SICK, after=3600).silent(found.NO_EVENTS).xid(95)
    gpu.condition = found.cleared(gpu.condition, gpu.now + 10)
    assert gpu.taints.keys() == {RECOVERY, MEMORY, UNMONITORED}
    assert gpu.since(RECOVERY) == START
    assert (gpu.condition.offences, gpu.condition.raises) == ((), ())
    assert gpu.keeps_saying(WELL, 2).taints.keys() == {UNMONITORED}


def test_what_a_gpu_does_not_tell_any_more_somebody_can_end(gpu):
    gpu.says(SICK).keeps_saying(ANSWERS, 120, step=60)
    assert len(gpu.condition.causes) == 5
    assert found.cleared(gpu.condition, gpu.now) == Condition()


# --- clocks that jump -----------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-0.5, -60, -86400, -START + 5])
def test_a_clock_that_is_set_back_keeps_nothing_for_longer(gpu, jump):
    gpu.xid(31, claims=["a"]).xid(119).says(Readings(recovery=1)).silent(found.NO_ANSWER).says(WELL, after=1)
    gpu.now += jump
    gpu.waits(0)
    times = [cause.since for cause in gpu.condition.causes] + [cause.well or 0 for cause in gpu.condition.causes]
    assert max(times) <= gpu.now
    assert gpu.keeps_saying(WELL, 700, step=2).condition.causes == ()
    assert gpu.waits(3601).condition == Condition()


def test_a_reset_after_the_clock_was_set_back_is_a_reset(gpu):
    gpu.xid(95)
    gpu.now -= 3600
    gpu.waits(1)
    assert came_back(gpu.condition, POLICY, before=gpu.now).causes == ()


def test_a_clock_that_is_set_forward_ends_nothing_grave(gpu):
    gpu.xid(95).xid(48).xid(31).waits(86400 * 365)
    assert gpu.taints[XID] == ("95", NO_EXECUTE)
    assert gpu.since(XID) == START
    assert len(gpu.condition.causes) == 2


# --- wishes that change ---------------------------------------------------------------------------


@pytest.mark.parametrize("number", [79, 95, 119, 54, 48])
def test_a_cause_follows_what_is_wanted_of_it(gpu, number):
    gpu.xid(number)
    told = gpu.taints
    for word, effect in (("warn", NONE), ("noSchedule", NO_SCHEDULE), ("noExecute", NO_EXECUTE), ("ignore", None)):
        gpu.policy = POLICY.adapted(HealthWishes(xids={number: word}))
        assert gpu.taints.get(XID) == (None if effect is None else (str(number), effect))
        assert gpu.since(XID) == START if effect else True
    gpu.policy = POLICY
    assert gpu.waits(599).taints == told


def test_what_is_wanted_to_only_tell_is_over_in_time_and_does_not_come_back(gpu):
    gpu.xid(95)
    gpu.policy = POLICY.adapted(HealthWishes(xids={95: "warn"}))
    gpu.waits(600)
    gpu.policy = POLICY
    assert gpu.condition == Condition()


def test_a_shorter_time_counts_at_once(gpu):
    gpu.xid(31).waits(100)
    gpu.policy = POLICY.adapted(HealthWishes(expiry_seconds=60))
    assert gpu.waits(0).condition.causes == ()


def test_what_is_wanted_graver_is_ended_by_what_the_table_says(gpu):
    gpu.policy = POLICY.adapted(HealthWishes(xids={74: "noSchedule", 31: "noExecute"}))
    gpu.xid(74).xid(31, after=1)
    assert gpu.taints == {XID: ("31", NO_EXECUTE), RECOVERY: ("nvlink", NO_SCHEDULE)}
    gpu.keeps_saying(replace(WELL, fabric=None), POLICY.expiry, step=60)
    assert gpu.taints == {XID: ("74", NO_SCHEDULE), RECOVERY: ("nvlink", NO_SCHEDULE)}
    gpu.keeps_saying(replace(WELL, fabric="healthy"), 60, step=10)
    assert gpu.taints == {}


# --- bounds ---------------------------------------------------------------------------------------


def test_a_storm_of_unknown_errors_keeps_the_fatal_one_and_publishes_the_same(gpu):
    gpu.xid(95).xid(999, after=1, place=HERE)
    before = gpu.at(HERE), gpu.taints, gpu.since(XID)
    for number in range(1000, 11_000):
        gpu.xid(number, after=0.001, place=THERE)
        assert len(gpu.condition.causes) <= found.MOST_CAUSES
    assert (gpu.at(HERE), gpu.taints, gpu.since(XID)) == before
    assert gpu.at(THERE)[XID] == ("95", NO_EXECUTE)
    gpu.condition = gpu.condition.without(lambda cause: cause.detail == "95")
    assert gpu.at(HERE) == {XID: ("999", NO_SCHEDULE)}
    assert (gpu.at(THERE), gpu.since(XID, THERE)) == ({XID: ("1000", NO_SCHEDULE)}, START + 1)


def test_a_storm_keeps_what_came_after_it_if_it_is_graver(gpu):
    for number in range(1000, 1200):
        gpu.xid(number)
    gpu.xid(140).xid(46)
    assert gpu.taints == {
        XID: ("140", NO_EXECUTE),
        MEMORY: ("uncontained", NO_EXECUTE),
        RECOVERY: ("gpu-reset", NO_EXECUTE),
    }
    assert len(gpu.condition.causes) == found.MOST_CAUSES
    assert any(cause.detail == "46" for cause in gpu.condition.causes)


def test_a_storm_in_one_partition_keeps_what_came_after_it_in_another(gpu):
    for number in range(1000, 1200):
        gpu.xid(number, after=0.001, place=THERE)
    gpu.xid(999, after=1, place=HERE)
    for number in range(1200, 1400):
        gpu.xid(number, after=0.001, place=THERE)
    assert gpu.at(HERE) == {XID: ("999", NO_SCHEDULE)}
    assert gpu.since(XID, THERE) == START
    assert len(gpu.condition.causes) == found.MOST_CAUSES


def test_the_mildest_give_way_first(gpu):
    for number in (31, 43, 94, 92, *range(1000, 1100)):
        gpu.xid(number, after=0.1)
    assert {gpu.policy.of_xid(int(cause.detail)).kind for cause in gpu.condition.causes} == {"unknown"}


def test_a_storm_of_one_error_changes_only_when_it_was_last(gpu):
    gpu.xid(31, claims=["a"])
    first = gpu.condition.causes[0]
    for _ in range(10_000):
        gpu.xid(31, after=0.001, claims=["a"])
    assert gpu.condition.causes == (replace(first, last=gpu.now),)
    assert len(gpu.condition.offences) == 1


def test_claims_are_bounded(gpu):
    for number in range(1000):
        gpu.xid(31, claims=[f"claim-{number}"])
    assert len(gpu.condition.offences) == found.MOST_OFFENCES


def test_returns_are_bounded(gpu):
    for _ in range(200):
        gpu.condition = raise_(lower(gpu.condition, found.SRAM), found.SRAM, "yes", gpu.now)
    assert len(gpu.condition.raises) == found._MOST_RAISES


def test_nothing_is_lost_of_what_is_said_when_asked(gpu):
    gpu.says(SICK).silent(found.LOST).silent(found.NO_EVENTS)
    for number in range(1000, 1200):
        gpu.xid(number)
    assert {cause.origin for cause in gpu.condition.causes} >= {
        found.RECOVERY,
        found.REMAP_FAILED,
        found.SRAM,
        found.FABRIC,
        found.LOST,
        found.NO_EVENTS,
    }


def test_an_event_that_this_version_does_not_know_is_dropped():
    cause = Cause(origin="event", detail="of-a-newer-version", since=START, last=START)
    assert pass_time(Condition(causes=(cause,)), POLICY, START) == Condition()
