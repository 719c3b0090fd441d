"""What every error means: the expected values stand here, and not in the table that is tested."""

import re
from dataclasses import fields
from importlib.resources import files

import pytest

from dradriver.gpu.health import EFFECTS, Effect, HealthWishes, Place
from dradriver.gpu.model import Placement
from dradriver.health.condition import Condition, came_back, hear, pass_time, read, rebooted
from dradriver.health.policy import WORDS, Until, default_policy, parse
from dradriver.health.verdict import marks
from dradriver.nvml import Readings

XID, RECOVERY, MEMORY = "gpu.nvidia.com/xid", "dradriver.dev/recovery", "dradriver.dev/memory"
NONE, NO_SCHEDULE, NO_EXECUTE = EFFECTS
PART = Place(profile_id=19, placement=Placement(start=4, size=1))
START = 1_700_000_000.0
WELL = Readings(recovery=0, remap_pending=False, remap_failure=False, sram_exceeded=False, fabric="healthy")
POLICY = default_policy()


def numbers(*entries):
    return {number for first, last in entries for number in range(first, last + 1)}


def ones(*entries):
    return set(entries)


RESTART = ones(8, 11, 13, 25, 31, 32, 60, 80, 88, 89, 139) | numbers(
    (39, 41), (68, 72), (75, 77), (82, 86), (96, 105), (126, 135)
)
"""Whose immediate action is to start the program anew, without 94."""
IGNORED = ones(14, 37, 38, 43, 44, 66, 67, 93, 106, 107, 108, 121, 137, 141, 152, 153, 160)
"""Whose immediate action is none, without 63, 92, 157 and 161."""
DETAILS = ones(171, 172)
"""Say more of a 48."""
RESET = ones(46, 62, 110, 119, 120, 136, 143, 155, 156, 158, 167, 169)
NVLINK = ones(74) | numbers((144, 150))
ROWS = [
    # Xids, taints, effect, whether a partition alone is hit, what it waits for
    (RESTART | IGNORED | DETAILS | {45}, {}, NONE, True, Until.EXPIRY),
    ({109}, {}, NONE, False, Until.RECOVERY),
    ({94}, {MEMORY: "contained"}, NONE, True, Until.MEMORY),
    ({63}, {MEMORY: "remap-pending"}, NONE, False, Until.MEMORY),
    ({64}, {MEMORY: "remap-failed"}, NO_SCHEDULE, False, Until.MEMORY),
    ({92, 157, 161}, {MEMORY: "degraded"}, NONE, False, Until.OPERATOR),
    ({95, 140}, {MEMORY: "uncontained", RECOVERY: "gpu-reset"}, NO_EXECUTE, False, Until.RESET),
    ({48}, {RECOVERY: "gpu-reset"}, NO_SCHEDULE, False, Until.RESET),
    (RESET, {RECOVERY: "gpu-reset"}, NO_SCHEDULE, False, Until.RECOVERY),
    (NVLINK, {RECOVERY: "nvlink"}, NONE, False, Until.FABRIC),
    ({79}, {RECOVERY: "node-reboot"}, NO_EXECUTE, False, Until.ANSWERS),
    ({151}, {RECOVERY: "restart-vm"}, NO_SCHEDULE, False, Until.REBOOT),
    ({54}, {RECOVERY: "check-power"}, NO_SCHEDULE, False, Until.OPERATOR),
    ({78}, {RECOVERY: "update-software"}, NO_SCHEDULE, False, Until.OPERATOR),
    ({142, 159}, {}, NO_SCHEDULE, False, Until.OPERATOR),
]
NAMED = set().union(*(row[0] for row in ROWS)) | {154}
UNKNOWN = set(range(201)) - NAMED | {999}
CASES = [(xid, *row[1:]) for row in ROWS for xid in sorted(row[0])]
CASES += [(xid, {}, NO_SCHEDULE, True, Until.RESET) for xid in sorted(UNKNOWN)]


def heard(xid, *, place=None, policy=POLICY, origin="xid", now=START):
    return hear(Condition(), policy, origin=origin, detail=str(xid), place=place, claims=(), now=now)


def taints(condition, policy=POLICY):
    return {mark.key: (mark.value, mark.effect) for mark in marks(condition, policy, "GPU-1")}


def places(condition):
    return {mark.place for mark in marks(condition, POLICY, "GPU-1")}


def asked(condition, said, *, since=START, seconds, step=1.0, policy=POLICY):
    """Ask the GPU for a while what it says."""
    now = since
    while now <= since + seconds:
        condition = pass_time(read(condition, policy, said, now), policy, now)
        now += step
    return condition


# --- each row -------------------------------------------------------------------------------------


def test_the_rows_have_no_number_in_common():
    assert sum(len(row[0]) for row in ROWS) == len(set().union(*(row[0] for row in ROWS)))
    assert len(CASES) == 201 - 1 + 1


@pytest.mark.parametrize(("xid", "beside", "effect", "partition", "until"), CASES)
def test_a_number_has_the_taints_and_the_reach_of_its_row(xid, beside, effect, partition, until):
    expected = {key: (value, effect) for key, value in (beside | {XID: str(xid)}).items()}
    whole, part = heard(xid), heard(xid, place=PART)
    assert taints(whole) == taints(part) == expected
    assert places(whole) == {None}
    assert places(part) == {PART if partition else None}
    assert POLICY.of_xid(xid).until is until


@pytest.mark.parametrize("place", [None, PART])
def test_a_changed_recovery_action_alone_is_no_taint(place):
    assert heard(154, place=place) == Condition()


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("fatal-poison", {MEMORY: ("uncontained", NO_EXECUTE), RECOVERY: ("gpu-reset", NO_EXECUTE)}),
        ("gpu-unavailable", {RECOVERY: ("node-reboot", NO_EXECUTE)}),
    ],
)
def test_events_that_are_no_xids(event, expected):
    condition = heard(event, origin="event", place=PART)
    assert taints(condition) == expected
    assert places(condition) == {None}


def test_an_event_that_the_table_does_not_have_is_nothing():
    assert heard("never-heard-of", origin="event") == Condition()


@pytest.mark.parametrize(
    ("action", "value", "effect"),
    [
        (1, "gpu-reset", NO_SCHEDULE),
        (2, "node-reboot", NO_SCHEDULE),
        (3, "drain-p2p", NO_SCHEDULE),
        (4, "drain-and-reset", NO_SCHEDULE),
        (5, "imex-domain", NO_SCHEDULE),
        (6, "bus-reset", NO_EXECUTE),
        (7, "node-reboot", NO_SCHEDULE),
        (8, "unknown", NO_SCHEDULE),
        (4_000_000_000, "unknown", NO_SCHEDULE),
    ],
)
def test_each_recovery_action(action, value, effect):
    assert taints(read(Condition(), POLICY, Readings(recovery=action), START)) == {RECOVERY: (value, effect)}


@pytest.mark.parametrize(
    ("said", "expected", "strict"),
    [
        (Readings(remap_pending=True), {MEMORY: ("remap-pending", NONE)}, {MEMORY: ("remap-pending", NO_SCHEDULE)}),
        (Readings(remap_failure=True), {MEMORY: ("remap-failed", NO_SCHEDULE)}, None),
        (Readings(sram_exceeded=True), {MEMORY: ("sram-threshold", NO_SCHEDULE)}, None),
        (Readings(fabric="unhealthy"), {RECOVERY: ("nvlink", NO_SCHEDULE)}, None),
        (Readings(fabric="joining"), {}, None),
        (WELL, {}, None),
        (Readings(), {}, None),
    ],
)
def test_what_a_gpu_says(said, expected, strict):
    condition = read(Condition(), POLICY, said, START)
    assert taints(condition) == expected
    assert taints(condition, POLICY.adapted(HealthWishes(strict_memory=True))) == (strict or expected)


# --- what ends each row ---------------------------------------------------------------------------

ENDED_BY_A_RESET = {Until.EXPIRY, Until.RECOVERY, Until.RESET, Until.ANSWERS, Until.MEMORY, Until.FABRIC}


@pytest.mark.parametrize(("xid", "until"), [(case[0], case[4]) for case in CASES])
def test_a_reset_ends_all_that_it_can_mend_and_a_boot_also_what_needs_one(xid, until):
    condition = heard(xid)
    reset = came_back(condition, POLICY, before=START + 5)
    assert bool(reset.causes) is (until not in ENDED_BY_A_RESET)
    booted = rebooted(condition, POLICY, START + 60)
    assert bool(booted.causes) is (until is Until.OPERATOR)


@pytest.mark.parametrize(("xid", "effect", "until"), [(case[0], case[2], case[4]) for case in CASES])
def test_time_alone_ends_what_only_tells_and_needs_nobody(xid, effect, until):
    condition = heard(xid)
    assert taints(pass_time(condition, POLICY, START + 599)) == taints(condition)
    later = pass_time(condition, POLICY, START + 600)
    assert bool(later.causes) is (effect != NONE or until is Until.OPERATOR)
    much_later = pass_time(condition, POLICY, START + 10 * 365 * 86400)
    assert much_later.causes == later.causes


@pytest.mark.parametrize(("xid", "effect", "until"), [(case[0], case[2], case[4]) for case in CASES])
def test_a_gpu_that_says_for_long_that_it_is_well_ends_what_it_can_judge(xid, effect, until):
    condition = asked(heard(xid), WELL, seconds=599, step=5)
    expected = taints(heard(xid))
    if until in (Until.ANSWERS, Until.FABRIC):
        expected = {}
    elif until is Until.RECOVERY:
        expected = {XID: (str(xid), NONE)}
    assert taints(condition) == expected
    later = asked(condition, WELL, since=START + 600, seconds=700, step=5)
    ends = effect == NONE or until in (Until.ANSWERS, Until.RECOVERY)
    assert bool(later.causes) is (until is Until.OPERATOR or not ends)


@pytest.mark.parametrize("xid", [63, 64, 94])
def test_memory_that_was_repaired_ends_what_waited_for_it(xid):
    condition = read(heard(xid), POLICY, Readings(remap_pending=True), START + 1)
    assert taints(condition)
    assert asked(condition, WELL, since=START + 60, seconds=5).causes == ()


# --- the table itself -----------------------------------------------------------------------------


def test_each_number_of_the_catalogue_is_in_the_table():
    contact = {142}
    used = RESTART | IGNORED | {94, 63, 92, 157, 161} | RESET - {167, 169} | {64, 95, 109, 140} | NVLINK | contact
    used |= {45, 48, 79, 151, 54, 78, 159, 154}
    assert used <= POLICY.xids.keys()
    assert POLICY.xids.keys() == NAMED
    assert all(POLICY.of_xid(number).kind == "unknown" for number in UNKNOWN)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("application", RESTART),
        ("cleanup", {45}),
        ("informational", IGNORED | DETAILS),
        ("context-switch", {109}),
        ("memory-contained", {94}),
        ("memory-uncontained", {95, 140}),
        ("double-bit", {48}),
        ("reset", RESET),
        ("nvlink", NVLINK),
        ("lost", {79}),
    ],
)
def test_classes(kind, expected):
    assert {number for number, rule in POLICY.xids.items() if rule.kind == kind} == expected


def test_only_what_programs_cause_makes_hardware_suspect():
    assert {number for number, rule in POLICY.xids.items() if rule.suspect} == RESTART | IGNORED | DETAILS


def test_a_double_bit_error_alone_waits_for_another():
    assert {number: rule.contained_by for number, rule in POLICY.xids.items() if rule.contained_by} == {48: 94}
    assert POLICY.follow_up == 30


def test_every_row_says_what_to_do():
    rules = [*POLICY.xids.values(), POLICY.unknown, *POLICY.events.values()]
    steps = [rule.step for rule in rules] + [one.step for one in (*POLICY.recovery.values(), *POLICY.readings.values())]
    assert all(steps)
    assert all(step == " ".join(step.split()) for step in steps)


def table():
    return files("dradriver.health").joinpath("policy.toml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("xids = [79]", "xids = [79, 94]", "Xid 94 stands in two rows"),
        ("xids = [79]", 'xids = ["70-79"]', "Xid 70 stands in two rows"),
        ("xids = [79]", 'xids = ["a-b"]', "invalid literal"),
        ("xids = [79]", "", "xids"),
        ('class = "lost"', "", "class"),
        ('until = "answers"', 'until = "tomorrow"', "tomorrow"),
        ('effect = "NoExecute"', 'effect = "NoExcecute"', "NoExcecute"),
        ('value = "bus-reset", effect = "NoExecute"', 'value = "bus-reset", effect = "Now"', "bus-reset"),
        ('strict = "NoSchedule"', 'strict = "Severe"', "Severe"),
        ("[unknown]", "[unbeknown]", "unknown"),
        ("expiry_seconds = 600", "", "expiry_seconds"),
        ("expiry_seconds = 600", "expiry_seconds = ", "Invalid value"),
    ],
)
def test_a_table_that_is_not_as_its_head_says(old, new, problem):
    assert old in table()
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse(table().replace(old, new, 1))


# --- what an administrator wants ------------------------------------------------------------------

KINDS = {rule.kind: number for number, rule in sorted(POLICY.xids.items(), reverse=True)} | {"unknown": 999}


def wished(xid, word, **fields):
    return POLICY.adapted(HealthWishes(xids={xid: word}, **fields))


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("xid", KINDS.values(), ids=KINDS.keys())
def test_every_word_on_every_class(xid, word):
    policy = wished(xid, word)
    condition = heard(xid, policy=policy)
    if word == "ignore":
        assert condition == Condition()
        return
    found = taints(condition, policy)
    assert found[XID] == (str(xid), WORDS[word])
    assert {effect for _, effect in found.values()} == {WORDS[word]}
    beside = {case[0]: case[1] for case in CASES}.get(xid, {})
    milder = WORDS[word] == NONE and POLICY.of_xid(xid).effect != NONE
    assert found.keys() - {XID} == (set() if milder else beside.keys())
    assert places(condition) == places(heard(xid)) or xid == 154


@pytest.mark.parametrize("word", ["noSchedule", "noExecute"])
@pytest.mark.parametrize("xid", KINDS.values(), ids=KINDS.keys())
def test_what_is_wanted_graver_ends_with_time_only_where_the_table_says_so(xid, word):
    policy = wished(xid, word)
    condition = heard(xid, policy=policy)
    later = pass_time(condition, policy, START + 10 * 365 * 86400)
    passes = policy.of_xid(xid).until is Until.EXPIRY
    assert taints(later, policy) == ({} if passes else taints(condition, policy))
    if policy.of_xid(xid).until not in (Until.OPERATOR, Until.REBOOT):
        assert came_back(later, policy, before=START).causes == ()


@pytest.mark.parametrize("xid", KINDS.values(), ids=KINDS.keys())
def test_what_is_wanted_milder_ends_with_time(xid):
    policy = wished(xid, "warn")
    condition = heard(xid, policy=policy)
    assert pass_time(condition, policy, START + 599).causes
    ends = POLICY.of_xid(xid).until is not Until.OPERATOR or POLICY.of_xid(xid).effect != NONE
    assert bool(pass_time(condition, policy, START + 600).causes) is not ends


def test_the_word_for_what_holds_anyway_changes_no_taint():
    for xid, beside, effect, _, _ in CASES:
        word = next(word for word, said in WORDS.items() if said == effect)
        assert taints(heard(xid), wished(xid, word)).keys() == beside.keys() | {XID}


def test_a_word_of_the_administrator_is_not_outweighed_by_other_errors():
    policy = wished(48, "noExecute")
    condition = heard(48, policy=policy)
    condition = hear(condition, policy, origin="xid", detail="94", place=None, claims=(), now=START + 1)
    assert taints(condition, policy)[RECOVERY] == ("gpu-reset", NO_EXECUTE)
    policy = wished(13, "warn")
    condition = Condition()
    for claim in ("a", "b", "c", "d"):
        condition = hear(condition, policy, origin="xid", detail="13", place=None, claims=(claim,), now=START)
    assert taints(condition, policy) == {XID: ("13", NONE)}


@pytest.mark.parametrize("word", WORDS)
def test_unknown_numbers_as_is_wanted(word):
    policy = POLICY.adapted(HealthWishes(unknown_xids=word, xids={999: "noExecute"}))
    assert taints(heard(999, policy=policy), policy) == {XID: ("999", NO_EXECUTE)}
    assert taints(heard(79, policy=policy), policy) == taints(heard(79))
    expected = {} if word == "ignore" else {XID: ("180", WORDS[word])}
    assert taints(heard(180, policy=policy), policy) == expected


def test_strict_memory_yields_to_a_word_for_the_number():
    assert taints(heard(63), POLICY.adapted(HealthWishes(strict_memory=True)))[MEMORY][1] == NO_SCHEDULE
    assert taints(heard(63), wished(63, "warn", strict_memory=True))[XID] == ("63", NONE)
    assert taints(heard(94, place=PART), POLICY.adapted(HealthWishes(strict_memory=True)))[MEMORY][1] == NONE


def test_wishes_count_for_what_was_found_before():
    condition = heard(79)
    assert taints(condition, wished(79, "ignore")) == {}
    assert taints(condition, wished(79, "warn")) == {XID: ("79", NONE)}
    assert taints(condition, wished(79, "noSchedule"))[RECOVERY] == ("node-reboot", NO_SCHEDULE)
    assert taints(condition) == taints(heard(79))


@pytest.mark.parametrize("seconds", [1, 60, 3600])
def test_how_long_something_is_told_is_the_administrators(seconds):
    policy = POLICY.adapted(HealthWishes(expiry_seconds=seconds))
    condition = heard(31, policy=policy)
    assert pass_time(condition, policy, START + seconds - 0.5).causes
    assert not pass_time(condition, policy, START + seconds).causes


def test_no_wish_is_the_table_and_the_table_stays_as_it_is():
    before = {field.name: getattr(POLICY, field.name) for field in fields(POLICY)}
    assert POLICY.adapted(HealthWishes()) == POLICY
    POLICY.adapted(HealthWishes(xids={79: "ignore"}, unknown_xids="ignore", strict_memory=True, expiry_seconds=1))
    assert before == {field.name: getattr(POLICY, field.name) for field in fields(POLICY)}
    assert POLICY.of_xid(79).effect == Effect.NO_EXECUTE
