"""What people read, and the taints that say the same."""

import pytest

from dradriver.gpu.health import EFFECTS, Effect, HealthWishes, Place
from dradriver.gpu.model import Placement
from dradriver.health import condition as found
from dradriver.health.condition import Condition, hear, pass_time, raise_, read
from dradriver.health.policy import WORDS, default_policy
from dradriver.health.verdict import marks
from dradriver.nvml import Readings

GPU = "GPU-8f3c1c63-2b0e-4c0f-9a52-6d2f3b1a7c11"
HERE = Place(profile_id=19, placement=Placement(start=4, size=1))
START = 1_700_000_000.75
POLICY = default_policy()
NUMBERS = [*sorted(POLICY.xids), 999, 2**64 - 1]
LONGEST = 1000


def heard(detail, *, origin="xid", place=None, policy=POLICY, claims=(), condition=None, now=START):
    condition = condition or Condition()
    return hear(condition, policy, origin=origin, detail=str(detail), place=place, claims=claims, now=now)


def texts(condition, policy=POLICY):
    return [mark.text for mark in marks(condition, policy, GPU)]


def is_readable(text):
    """One line that names the GPU and ends with more than a colon."""
    return GPU in text and text == " ".join(text.split()) and len(text) <= LONGEST and text[-1] not in ":,;"


# --- reports --------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", [None, "warn", "noSchedule", "noExecute"])
@pytest.mark.parametrize("number", NUMBERS)
def test_each_error_names_gpu_cause_and_next_step(number, word):
    policy = POLICY if word is None else POLICY.adapted(HealthWishes(xids={number: word}))
    rule = policy.of_xid(number)
    found_texts = texts(heard(number, policy=policy), policy)
    assert bool(found_texts) is (number != 154 or word is not None)
    for text in found_texts:
        assert is_readable(text)
        assert f"Xid {number} ({rule.kind})" in text
        assert text.endswith(rule.step)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_partition_is_named_where_it_alone_is_meant(number):
    condition = heard(number, place=HERE)
    for mark in marks(condition, POLICY, GPU):
        assert ("partition of profile 19 at memory slice 4" in mark.text) is (mark.place == HERE)
        assert is_readable(mark.text)


@pytest.mark.parametrize("event", sorted(POLICY.events))
def test_events_are_named(event):
    (text,) = set(texts(heard(event, origin="event")))
    assert is_readable(text)
    assert f"event {event}" in text
    assert text.endswith(POLICY.events[event].step)


def test_all_taints_of_one_error_tell_the_same():
    every = marks(heard(95), POLICY, GPU)
    assert len(every) == 3
    assert len({(mark.text, mark.since, mark.effect, mark.place) for mark in every}) == 1


def test_suspected_hardware_is_told_with_why_and_what_ends_it():
    condition = None
    for second, claim in enumerate("abc"):
        condition = heard(31, claims=(claim,), condition=condition, place=HERE, now=START + second)
    (mark,) = marks(condition, POLICY, GPU)
    assert is_readable(mark.text)
    assert "several claims" in mark.text
    assert "dradriver health clear" in mark.text
    assert (mark.since, mark.effect, mark.place) == (int(START + 2), Effect.NO_SCHEDULE, HERE)


def test_what_turned_out_harmless_is_told_so():
    condition = heard(94, condition=heard(48), place=HERE)
    (text,) = [text for text in texts(condition) if "Xid 48" in text]
    assert is_readable(text)
    assert "nothing more" in text


@pytest.mark.parametrize("number", [54, 78, 142, 159, 92, 157, 161, 999])
def test_who_has_to_say_that_it_is_over_reads_how(number):
    assert all("`dradriver health clear`" in text for text in texts(heard(number)))


# --- what was said when asked, or not -------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "words"),
    [
        *((Readings(recovery=action), "recovery action") for action in range(1, 9)),
        (Readings(remap_pending=True), "remap-pending"),
        (Readings(remap_failure=True), "remap-failed"),
        (Readings(sram_exceeded=True), "sram-threshold"),
        (Readings(fabric="unhealthy"), "fabric"),
    ],
)
def test_each_reading_names_gpu_cause_and_next_step(said, words):
    (mark,) = marks(read(Condition(), POLICY, said, START), POLICY, GPU)
    assert is_readable(mark.text)
    assert words in mark.text
    assert mark.value in mark.text
    assert (mark.since, mark.place) == (1_700_000_000, None)


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("origin", [found.LOST, found.MISSING, found.NO_ANSWER, found.NO_EVENTS])
def test_a_gpu_that_is_not_heard_or_does_not_answer_is_told_with_the_error(origin, lasting):
    condition = raise_(Condition(), origin, "nvmlDeviceGetMemoryInfo: Timeout of {3} s", START)
    condition = pass_time(condition, POLICY, START + 3600 * lasting)
    (mark,) = marks(condition, POLICY, GPU)
    assert is_readable(mark.text)
    assert "nvmlDeviceGetMemoryInfo: Timeout of {3} s" in mark.text
    assert "log" in mark.text or "reset it" in mark.text
    serious = lasting and origin in found.LASTING
    assert mark.since == int(START) + 3600 * serious


@pytest.mark.parametrize("detail", ["x" * 100_000, "a\nb\r\n\tc", "\u2028" * 10, "", "{0} {a}"])
@pytest.mark.parametrize("origin", [found.LOST, found.MISSING, found.NO_ANSWER, found.NO_EVENTS])
def test_whatever_an_error_says_the_text_is_one_line_with_a_next_step(origin, detail):
    (text,) = texts(raise_(Condition(), origin, detail, START))
    assert is_readable(text)
    assert "\n" not in text
    assert text.endswith(texts(raise_(Condition(), origin, "", START))[0].rsplit(" ", 1)[1])


# --- effects --------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", WORDS)
def test_no_mark_has_an_effect_that_kubernetes_does_not_know(word):
    policy = POLICY.adapted(HealthWishes(xids=dict.fromkeys(NUMBERS, word), unknown_xids=word))
    for number in NUMBERS:
        # Found before this was wanted.
        for mark in marks(heard(number), policy, GPU):
            assert mark.effect in EFFECTS
            assert mark.effect == WORDS[word]


def test_a_gpu_that_is_well_has_no_marks():
    assert marks(Condition(), POLICY, GPU) == ()
