"""What is said to end a cause does end it: every row of the table is held to what really happens."""

import pytest

from dradriver.gpu.health import HealthWishes, Place
from dradriver.gpu.model import Placement
from dradriver.health import condition as found
from dradriver.health.condition import Condition
from dradriver.health.endings import BY_ORIGIN, BY_RULE, CLEAR, ending, passes
from dradriver.health.policy import Until, default_policy
from dradriver.health.verdict import marks
from dradriver.nvml import Readings

POLICY = default_policy()
NOW = 1_000_000.0
PARTITION = Place(profile_id=19, placement=Placement(start=3, size=1))
EVERY = [(number, POLICY.xids[number]) for number in POLICY.xids] + [(999, POLICY.unknown)]


def reported(xid, *, policy=POLICY, place=None, claims=(), condition=None, now=NOW):
    before = condition or Condition()
    return found.hear(before, policy, origin="xid", detail=str(xid), place=place, claims=claims, now=now)


def only(condition):
    (cause,) = condition.causes
    return cause


@pytest.mark.parametrize(("xid", "rule"), [one for one in EVERY if one[1].effect != "ignore"])
def test_each_xid_ends_by_itself_when_that_is_said_and_not_a_second_before(xid, rule):
    condition = reported(xid)
    said = ending(only(condition), POLICY)
    assert said.how == BY_RULE[rule.until]
    if said.at is None:
        assert found.pass_time(condition, POLICY, NOW + 10**9) == condition, "it stays for ever"
        assert not passes(rule)
    else:
        assert found.pass_time(condition, POLICY, said.at - 1).causes
        assert not found.pass_time(condition, POLICY, said.at).causes


@pytest.mark.parametrize(("xid", "rule"), [one for one in EVERY if one[1].effect != "ignore"])
def test_a_reset_ends_what_it_is_said_to_end(xid, rule):
    after = found.came_back(reported(xid), POLICY, before=NOW + 1)
    assert (not after.causes) == ("a reset of the GPU" in ending(only(reported(xid)), POLICY).how)


@pytest.mark.parametrize(("xid", "rule"), [one for one in EVERY if one[1].effect != "ignore"])
def test_only_a_person_ends_what_only_a_person_is_said_to_end(xid, rule):
    after = found.rebooted(reported(xid), POLICY, NOW + 1)
    assert bool(after.causes) == (ending(only(reported(xid)), POLICY).how == f"{CLEAR} only")


def test_the_words_for_each_rule():
    assert BY_RULE.keys() == set(Until)
    assert len(set(BY_RULE.values())) == len(BY_RULE) - 1, "expiry and reset have the same; what differs is the time"


def test_the_time_counts_from_the_last_report():
    condition = reported(13)
    again = reported(13, condition=condition, now=NOW + 100)
    assert ending(only(again), POLICY).at == NOW + 100 + POLICY.expiry


def test_an_administrators_time_counts():
    policy = POLICY.adapted(HealthWishes(expiry_seconds=7))
    condition = reported(13, policy=policy)
    assert ending(only(condition), policy).at == NOW + 7
    assert not found.pass_time(condition, policy, NOW + 7).causes


def test_a_suspect_ends_when_no_such_error_has_come_for_an_hour():
    condition = None
    for claim in "abc":
        condition = reported(13, condition=condition, claims=[claim], place=PARTITION)
    (mark,) = marks(condition, POLICY, "GPU-a")
    assert mark.effect == "NoSchedule"
    at = ending(only(condition), POLICY).at
    assert at == only(condition).last + POLICY.suspect_seconds
    assert found.pass_time(condition, POLICY, at - 1).causes == condition.causes
    assert not found.pass_time(condition, POLICY, at).causes
    assert not found.came_back(condition, POLICY, before=NOW).causes


def test_what_turned_out_to_be_harmless_ends_by_itself():
    condition = reported(94, condition=reported(48), now=NOW + 3)
    double_bit = next(cause for cause in condition.causes if cause.detail == "48")
    said = ending(double_bit, POLICY)
    assert said.at == NOW + 3 + POLICY.expiry
    left = found.pass_time(condition, POLICY, said.at - 1)
    assert double_bit in left.causes
    assert double_bit not in found.pass_time(condition, POLICY, said.at).causes


def test_what_the_gpu_says_itself_to_be_nothing_is_told_for_a_while():
    condition = reported(119)
    for later in (0, POLICY.recovery_patience):
        condition = found.read(condition, POLICY, Readings(recovery=0), NOW + later)
    said = ending(only(condition), POLICY)
    assert "it is told only" in said.how
    assert said.at == NOW + POLICY.recovery_patience + POLICY.expiry
    assert not found.pass_time(condition, POLICY, said.at).causes


@pytest.mark.parametrize("origin", [found.LOST, found.MISSING, found.NO_ANSWER])
def test_what_was_not_answered_ends_with_an_answer(origin):
    condition = found.raise_(Condition(), origin, "why", NOW)
    assert ending(only(condition), POLICY).how == BY_ORIGIN[origin]
    for later in (0, found.FIRST_HOLD):
        condition = found.read(condition, POLICY, Readings(recovery=0), NOW + 1 + later)
    assert not condition.causes


@pytest.mark.parametrize("origin", [found.RECOVERY, found.REMAP_PENDING, found.REMAP_FAILED, found.SRAM, found.FABRIC])
def test_what_a_gpu_says_ends_when_it_says_so_no_more(origin):
    condition = found.raise_(Condition(), origin, "1", NOW)
    assert ending(only(condition), POLICY).how == "the GPU does not say so any more"
    well = Readings(recovery=0, remap_pending=False, remap_failure=False, sram_exceeded=False, fabric="healthy")
    for later in (0, found.FIRST_HOLD):
        condition = found.read(condition, POLICY, well, NOW + 1 + later)
    assert not condition.causes
