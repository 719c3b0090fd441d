from itertools import permutations

import pytest
from doubles.bridgeworld import World, bridge

from controller.api import Mode
from controller.bridges import owners_of
from controller.watching.model import SeenClass

ONE = "one.gpu.example.com"
OTHER = "nvidia.com/other"


def made_for(name, class_name=ONE):
    """A class that a controller made for a bridge."""
    return {
        class_name: SeenClass(
            name=class_name, labels={"dradriver.dev/bridge": name}, annotations={"dradriver.dev/hash": "0"}
        )
    }


OLD = bridge("old", created="2026-01-01", device_class_name=ONE)
MIDDLE = bridge("middle", created="2026-02-01", device_class_name=ONE, resource_name=OTHER)
YOUNG = bridge("young", created="2026-03-01", device_class_name=ONE, resource_name="nvidia.com/third")
FIRST = bridge("first", created="2025-01-01", device_class_name="first.gpu.example.com")
"""Has the resource that `old` wants, so that `old` leaves it to this one."""
GOING = bridge("going", created="2024-01-01", device_class_name=ONE, resource_name=OTHER, deleting=True)


@pytest.mark.parametrize(
    ("bridges", "classes", "owner"),
    [
        ([], {}, None),
        ([YOUNG, OLD, MIDDLE], {}, "old"),
        ([YOUNG, OLD, MIDDLE, FIRST], {}, "middle"),
        ([OLD, FIRST], {}, None),
        ([YOUNG, OLD, MIDDLE], made_for("young"), "young"),
        ([OLD, FIRST, MIDDLE], made_for("old"), "old"),
        ([YOUNG, OLD], made_for("gone"), "old"),
        ([YOUNG, OLD], made_for("young", "else.gpu.example.com"), "old"),
        ([GOING, YOUNG], {}, "young"),
        ([GOING, YOUNG], made_for("going"), "going"),
    ],
)
def test_who_has_the_name_of_a_class(bridges, classes, owner):
    for order in permutations(bridges):
        assert owners_of(order, classes).get(ONE) == owner


def test_a_label_alone_is_no_mark_of_ours():
    hand_made = SeenClass(name=ONE, labels={"dradriver.dev/bridge": "young"})
    assert owners_of([YOUNG, OLD], {ONE: hand_made})[ONE] == "old"


def test_a_bridge_that_yields_its_resource_keeps_the_class_name_from_nobody():
    world = World()
    world.add(FIRST, OLD, bridge("mine", created="2026-05-01", device_class_name=ONE, resource_name=OTHER))
    assert world.situation(OTHER).owners[ONE] == "mine"
    world.settle(OTHER)
    assert world.carriers(OTHER) == {ONE}
    assert world.reasons("mine") == {"Ready": "Serving"}


def test_when_the_first_is_gone_the_class_stays_with_whom_it_was_made_for():
    world = World()
    world.add(FIRST, OLD, bridge("mine", created="2026-05-01", device_class_name=ONE, resource_name=OTHER))
    world.settle()
    world.settle(OTHER)
    world.delete("first")
    world.settle()
    world.settle(OTHER)
    assert world.reasons("old") == {"Ready": "ClassOfAnotherBridge", "Conflict": "ClassOfAnotherBridge"}
    assert "ExtendedResourceBridge mine" in world.status("old").conditions[0].message
    assert (world.carriers(), world.carriers(OTHER)) == (frozenset(), {ONE})
    world.change("mine", mode=Mode.DISABLED)
    world.settle(OTHER)
    assert world.classes[ONE].bridge == "mine"
    world.delete("mine")
    world.settle(OTHER)
    world.settle()
    assert world.carriers() == {ONE}
    assert world.classes[ONE].bridge == "old"
