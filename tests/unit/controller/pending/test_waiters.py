import pytest

from controller.pending import Explanation, Waiters
from controller.pending.waiters import PATIENCE_SECONDS, REPEAT_SECONDS, TOLD_AT_ONCE, TOLD_PER_SECOND
from controller.watching import PodShape, SeenPod

NAME = "nvidia.com/gpu"


class Watch:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Watch()


@pytest.fixture
def waiters(clock):
    return Waiters(clock)


def shape(count=1, **more):
    return PodShape(wants=((NAME, count),), **more)


def pod(name, made=None):
    return SeenPod(name=name, namespace="ns", uid=f"uid-{name}", shape=made or shape())


def explained(reason="NoDeviceFree", *, is_certain=True):
    return [Explanation(resource_name=NAME, reason=reason, message="m", is_certain=is_certain)]


def told(outcome):
    return [(each.name, explanation.reason) for each, explanation in outcome.tell]


def look(waiters, *pods, explain=lambda _shape: explained()):
    return waiters.look(pods, explain)


def test_who_has_just_come_is_not_told(waiters, clock):
    first = look(waiters, pod("a"))
    assert (told(first), first.waiting, first.again) == ([], {}, True)
    clock.now += PATIENCE_SECONDS
    second = look(waiters, pod("a"), pod("b"))
    assert told(second) == [("a", "NoDeviceFree")]
    assert [each.pod for each in second.waiting[NAME]] == ["ns/a"]


def test_without_pods_nobody_has_to_look_again(waiters):
    assert not look(waiters).again


def test_who_was_told_is_told_again_only_for_another_reason_or_much_later(waiters, clock):
    look(waiters, pod("a"))
    clock.now += PATIENCE_SECONDS
    assert told(look(waiters, pod("a")))
    assert told(look(waiters, pod("a"))) == []
    other = look(waiters, pod("a"), explain=lambda _shape: explained("ClassMissing"))
    assert told(other) == [("a", "ClassMissing")]
    assert told(look(waiters, pod("a"))) == []
    clock.now += REPEAT_SECONDS
    assert told(look(waiters, pod("a"))) == [("a", "NoDeviceFree")]


def test_who_went_is_forgotten(waiters, clock):
    look(waiters, pod("a"))
    clock.now += PATIENCE_SECONDS
    look(waiters, pod("a"))
    look(waiters)
    assert (waiters._since, waiters._told) == ({}, {})
    assert told(look(waiters, pod("a"))) == []


def test_what_is_not_certain_is_counted_but_no_event(waiters, clock):
    look(waiters, pod("a"))
    clock.now += PATIENCE_SECONDS
    found = look(waiters, pod("a"), explain=lambda _shape: explained("NotScheduled", is_certain=False))
    assert told(found) == []
    assert len(found.waiting[NAME]) == 1


def test_who_is_held_back_by_somebody_does_not_wait(waiters, clock):
    gated = pod("a", shape(is_gated=True))
    look(waiters, gated)
    clock.now += PATIENCE_SECONDS
    assert look(waiters, gated).waiting == {}


def test_what_is_none_of_our_business(waiters, clock):
    look(waiters, pod("a"))
    clock.now += PATIENCE_SECONDS
    found = look(waiters, pod("a"), explain=lambda _shape: [])
    assert (told(found), found.waiting) == ([], {})


def test_ten_thousand_pods_are_explained_by_shape_and_told_little_by_little(waiters, clock):
    pods = [pod(f"p{number}", shape(1 + number % 7)) for number in range(10_000)]
    asked = []

    def explain(made):
        asked.append(made)
        return explained()

    waiters.look(pods, explain)
    assert asked == []
    clock.now += PATIENCE_SECONDS
    first = waiters.look(pods, explain)
    assert len(asked) == 7
    assert len(first.tell) == TOLD_AT_ONCE
    # One of each shape comes first.
    assert len({each.shape for each, _ in first.tell[:7]}) == 7
    assert len(first.waiting[NAME]) == 10_000
    assert waiters.look(pods, explain).tell == []
    clock.now += 2
    second = waiters.look(pods, explain)
    assert len(second.tell) == 2 * TOLD_PER_SECOND
    assert not {each.uid for each, _ in first.tell} & {each.uid for each, _ in second.tell}
    clock.now += 3600
    assert len(waiters.look(pods, explain).tell) == TOLD_AT_ONCE
