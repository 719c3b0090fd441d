import pytest
from doubles.bridgeworld import NAME, World, bridge

from controller.api import Condition, ConditionType
from controller.bridges import Waiting

WHY = Condition(type=ConditionType.PODS_PENDING, holds=True, reason="NoDeviceFree", message="2 pods wait")


def told(world, name):
    status = world.status(name)
    condition = status.condition(ConditionType.PODS_PENDING)
    return status.pending, condition.holds, condition.reason


@pytest.mark.parametrize("unsupported", ["", "too old"])
def test_pods_are_counted_once_at_the_bridge_that_has_the_name(unsupported):
    world = World(unsupported=unsupported)
    world.add(bridge("old"), bridge("young"))
    world.waiting = Waiting(pods=2, condition=WHY)
    world.settle()
    assert told(world, "old") == (2, True, "NoDeviceFree")
    assert told(world, "young") == (0, False, "ToldElsewhere")
    message = world.status("young").condition(ConditionType.PODS_PENDING).message
    assert message == f"ExtendedResourceBridge old has {NAME}, and tells of pods that wait for it"


def test_the_next_one_tells_when_the_first_is_deleted():
    world = World()
    world.add(bridge("old"), bridge("young"))
    world.waiting = Waiting(pods=2, condition=WHY)
    world.settle()
    # A claim keeps it for a while.
    world.users["old.gpu.dradriver.dev"] = {"ns/claim"}
    world.delete("old")
    world.settle()
    assert told(world, "young") == (2, True, "NoDeviceFree")
    assert told(world, "old") == (0, False, "ToldElsewhere")


def test_a_loser_says_nothing_of_pods_before_anything_is_known():
    world = World()
    world.add(bridge("old"), bridge("young"))
    world.settle()
    assert told(world, "young") == (0, False, "ToldElsewhere")
    assert told(world, "old") == (0, False, "NoneWaits")
