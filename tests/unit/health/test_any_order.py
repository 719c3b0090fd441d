"""Whatever happens in whatever order: nothing grave is lost, and what is published is valid."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.gpu.health import Effect, HealthWishes, Place, marks_of
from dradriver.gpu.model import Placement
from dradriver.health import condition as found
from dradriver.health.condition import Condition, came_back, hear, lower, pass_time, raise_, read, rebooted
from dradriver.health.memory import Known, decode, encode
from dradriver.health.policy import WORDS, Until, default_policy
from dradriver.health.verdict import marks
from dradriver.nvml import Readings
from dradriver.resource import Device, Slice, validate

START = 1_700_000_000.0
TABLE = default_policy()
PLACES = (
    None,
    Place(profile_id=19, placement=Placement(start=0, size=1)),
    Place(profile_id=19, placement=Placement(start=4, size=1)),
    Place(profile_id=9, placement=Placement(start=4, size=4)),
)

numbers = st.sampled_from([*sorted(TABLE.xids), 999]) | st.integers(0, 2**64 - 1)
events = st.sampled_from([*TABLE.events, "unheard-of"])
claims = st.lists(st.sampled_from("abcd"), max_size=2)
yes_no = st.none() | st.booleans()
readings = st.builds(
    Readings,
    recovery=st.none() | st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 99]),
    remap_pending=yes_no,
    remap_failure=yes_no,
    sram_exceeded=yes_no,
    fabric=st.sampled_from([None, "healthy", "unhealthy", "joining"]),
)
words = st.sampled_from([*WORDS])
wishes = st.builds(
    HealthWishes,
    xids=st.dictionaries(numbers, words, max_size=4),
    unknown_xids=st.none() | words,
    strict_memory=st.booleans(),
    expiry_seconds=st.none() | st.integers(1, 3600),
)
pauses = st.sampled_from([0.0, 0.001, 0.5, 1.0, 2.0, 5.0, 29.0, 31.0, 61.0, 601.0, 3601.0])
jumps = st.sampled_from([-86400.0, -3600.0, -1.0, 86400.0])


@dataclass
class Scene:
    """A GPU whose condition changes, and what can happen to it."""

    condition: Condition = field(default_factory=Condition)
    policy: object = TABLE
    now: float = START

    def xid(self, number, place, claims):
        self._hear("xid", str(number), place, claims)

    def event(self, name, place):
        self._hear("event", name, place, ())

    def _hear(self, origin, detail, place, claims):
        self.condition = hear(
            self.condition, self.policy, origin=origin, detail=detail, place=place, claims=claims, now=self.now
        )

    def answers(self, said):
        self.condition = read(self.condition, self.policy, said, self.now)

    def silent(self, origin, detail):
        self.condition = raise_(self.condition, origin, detail, self.now)

    def heard_again(self):
        self.condition = lower(self.condition, found.NO_EVENTS)

    def waits(self, seconds):
        self.now += seconds
        self.condition = pass_time(self.condition, self.policy, self.now)

    def jumps(self, seconds):
        self.now = max(0.0, self.now + seconds)
        self.condition = pass_time(self.condition, self.policy, self.now)

    def resets(self):
        self.condition = came_back(self.condition, self.policy, before=self.now)

    def boots(self):
        self.condition = rebooted(self.condition, self.policy, self.now)

    def wants(self, wishes):
        self.policy = TABLE.adapted(wishes)

    def restarts(self):
        known = Known(boot_id="b", conditions={"GPU-1": self.condition})
        assert decode(encode(known)) == known

    def marks(self):
        return marks(self.condition, self.policy, "GPU-1")


def step(name, *arguments):
    return st.tuples(st.just(name), *arguments)


reports = st.one_of(
    step("xid", numbers, st.sampled_from(PLACES), claims), step("event", events, st.sampled_from(PLACES))
)
silences = step(
    "silent", st.sampled_from([found.LOST, found.MISSING, found.NO_ANSWER, found.NO_EVENTS]), st.text(max_size=2000)
)
quiet = st.one_of(
    reports,
    silences,
    step("heard_again"),
    step("waits", pauses),
    step("restarts"),
    step("answers", st.just(Readings())),
)
everything = st.one_of(
    quiet, step("answers", readings), step("jumps", jumps), step("resets"), step("boots"), step("wants", wishes)
)


def play(scene, steps):
    for name, *arguments in steps:
        getattr(scene, name)(*arguments)
        yield name


def grave(scene):
    """Keys, values and places of what evicts and was reported."""
    said = {found.LOST, found.MISSING, found.NO_ANSWER}
    reported = scene.condition.without(lambda cause: cause.origin in said)
    return {
        (mark.key, mark.value, mark.place)
        for mark in marks(reported, scene.policy, "GPU-1")
        if mark.effect == Effect.NO_EXECUTE
    }


@settings(max_examples=300)
@given(st.lists(everything, max_size=40))
def test_what_is_published_is_valid_whatever_happens(steps):
    scene = Scene()
    for _ in play(scene, steps):
        every = scene.marks()
        assert all(mark.text and len(mark.text) <= 1000 and "\n" not in mark.text for mark in every)
        assert all(mark.since <= scene.now or scene.now < START for mark in every)
        for place in PLACES:
            taints = [mark.taint for mark in marks_of(every, place)]
            assert len({taint.key for taint in taints}) == len(taints) <= 5
            validate([Slice(devices=(Device(name="gpu-0", taints=tuple(taints)),))])
        assert len(scene.condition.causes) <= found.MOST_CAUSES
        assert len({cause.key for cause in scene.condition.causes}) == len(scene.condition.causes)


@settings(max_examples=300)
@given(st.lists(quiet, max_size=40))
def test_neither_reports_nor_silence_nor_time_end_what_evicts(steps):
    scene = Scene()
    # 79 is not among them: answers end it where a driver has no word for what is to be done.
    scene.xid(95, None, ())
    before = grave(scene)
    assert len(before) == 3
    first = scene.now
    for name in play(scene, steps):
        # That a lost GPU answers again is a return.
        if name == "answers":
            scene.condition = scene.condition.without(lambda cause: cause.origin in (found.LOST, found.MISSING))
        assert grave(scene) >= before
        since = {mark.since for mark in scene.marks() if mark.value == "95"}
        assert since == {int(first)}


MAY_END = {"answers", "resets", "boots", "wants"}


@settings(max_examples=300)
@given(st.lists(everything, max_size=40))
def test_only_an_answer_a_reset_a_boot_or_a_wish_ends_what_evicts(steps):
    scene = Scene()
    before = grave(scene)
    for name in play(scene, steps):
        now = grave(scene)
        assert name in MAY_END or now >= before
        before = now


@given(st.lists(everything, max_size=30), st.sampled_from([*sorted(TABLE.xids), 999, 1234]))
def test_what_needs_somebody_stays_until_he_comes(steps, number):
    scene = Scene()
    scene.xid(number, None, ())
    kept = TABLE.of_xid(number).until is Until.OPERATOR and TABLE.of_xid(number).effect != Effect.NONE
    list(play(scene, [one for one in steps if one[0] != "wants"]))
    if kept:
        assert any(cause.detail == str(number) for cause in scene.condition.causes)


@given(st.lists(everything, max_size=30))
def test_a_gpu_that_is_well_for_long_after_a_boot_has_nothing_left_that_needs_nobody(steps):
    scene = Scene()
    list(play(scene, steps))
    scene.wants(HealthWishes())
    scene.boots()
    scene.heard_again()
    healthy = Readings(recovery=0, remap_pending=False, remap_failure=False, sram_exceeded=False, fabric="healthy")
    for _ in range(int(found.LONGEST_HOLD / 5) + 20):
        scene.answers(healthy)
        scene.waits(5.0)
    left = [cause for cause in scene.condition.causes if cause.rule(scene.policy) is None]
    assert left == []
    assert all(cause.rule(scene.policy).until is Until.OPERATOR for cause in scene.condition.causes)


@given(st.lists(everything, max_size=30))
def test_steps_that_state_something_may_be_taken_twice(steps):
    scene = Scene()
    for name, *arguments in steps:
        getattr(scene, name)(*arguments)
        once = scene.marks()
        if name in ("silent", "heard_again", "resets", "boots", "wants"):
            getattr(scene, name)(*arguments)
            assert scene.marks() == once
