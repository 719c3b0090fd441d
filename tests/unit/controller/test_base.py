"""Base classes: made, kept, left alone, taken over; and left to bridges that name them."""

import pytest
from doubles.bridgeworld import NAME, Mode, World, bridge, foreign
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from controller.api import BASE_CLASSES, BaseKeeping, Select
from controller.bridges import AddFinalizer, ApplyClass, ClearName, expressions
from controller.watching.model import SeenClass

GPU, MIG = "gpu.nvidia.com", "mig.nvidia.com"
THEIRS = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"


@pytest.fixture
def world():
    return World(keeping=BaseKeeping.KEEP)


def selector(world, name=GPU):
    return world.classes[name].spec["selectors"][0]["cel"]["expression"]


def theirs(text=THEIRS, **spec):
    return SeenClass(name=GPU, spec={"selectors": [{"cel": {"expression": text}}], **spec})


def reasons(world):
    return [(each.name, each.reason) for each in world.notices]


def test_missing_ones_are_made_without_a_name(world):
    world.settle()
    assert set(world.classes) == set(BASE_CLASSES)
    for name, kind in BASE_CLASSES.items():
        assert selector(world, name) == expressions(Select(type=kind))[0]
        assert world.classes[name].is_base
        assert (world.classes[name].bridge, world.classes[name].extended_name) == ("", "")
    assert reasons(world) == [(GPU, "BaseClassCreated"), (MIG, "BaseClassCreated")]
    assert world.keep() == ()


def test_without_keeping_nothing_is_made():
    world = World()
    world.settle()
    assert world.classes == {}


@pytest.mark.parametrize(
    "edit",
    [
        {"selectors": [{"cel": {"expression": "false"}}]},
        {"extendedResourceName": NAME},
        {"config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {}}}]},
    ],
    ids=["selectors", "name", "config"],
)
def test_edits_of_ours_are_put_back(world, edit):
    world.settle()
    before = dict(world.classes[GPU].spec)
    world.put_class(world.edited(GPU, spec={**before, **edit}))
    world.settle()
    assert world.classes[GPU].spec == before
    assert reasons(world)[2:] == [(GPU, "BaseClassReverted")]


def test_a_name_is_taken_away_before_the_rest_is_written(world):
    world.settle()
    world.put_class(world.edited(GPU, spec={**world.classes[GPU].spec, "extendedResourceName": NAME}))
    assert [type(each) for each in world.keep()] == [ClearName, ApplyClass]


@pytest.mark.parametrize("text", [THEIRS, THEIRS.replace(" && ", "\n  && "), *expressions(Select(type="gpu"))])
def test_those_of_others_that_select_the_same_are_left_alone(world, text):
    world.add(theirs(text, extendedResourceName="nvidia.com/else"))
    world.settle()
    assert selector(world) == text
    assert world.classes[GPU].extended_name == "nvidia.com/else"
    assert world.base_states[GPU] == "foreign"
    assert reasons(world) == [(MIG, "BaseClassCreated")]


def test_those_that_differ_are_reported_once_and_left_alone(world):
    world.add(theirs("true"))
    world.settle()
    world.keep()
    assert selector(world) == "true"
    assert world.base_states[GPU] == "differs"
    assert reasons(world) == [(MIG, "BaseClassCreated"), (GPU, "BaseClassDiffers")]
    assert "--base-classes=adopt" in world.notices[1].note


def test_a_configuration_is_a_difference(world):
    world.add(theirs(config=[{"opaque": {}}]))
    world.settle()
    assert world.base_states[GPU] == "differs"


def test_they_are_taken_over_where_that_is_wanted():
    world = World(keeping=BaseKeeping.ADOPT)
    world.add(theirs("true", extendedResourceName=NAME))
    world.settle()
    assert selector(world) == expressions(Select(type="gpu"))[0]
    assert world.classes[GPU].extended_name == ""
    assert reasons(world)[0] == (GPU, "BaseClassAdopted")


# --- bridges that name one ------------------------------------------------------------------------


def base_bridge(name="base", **more):
    return bridge(name, device_class_name=GPU, **more)


def test_a_bridge_gets_ours_only_if_it_adopts(world):
    world.settle()
    world.add(base_bridge())
    world.settle()
    assert world.reasons("base")["Conflict"] == "ClassNotOurs"
    assert "gpu.nvidia.com is a base class, which claims name; set" in world.status("base").conditions[0].message
    assert world.carriers() == set()
    world.change("base", adopt=True)
    world.settle()
    assert world.carriers() == {GPU}
    assert world.classes[GPU].is_base
    assert world.base_states[GPU] == "bridge"


def test_a_missing_one_is_left_to_the_bridge_that_names_it(world):
    world.add(base_bridge())
    world.keep()
    assert set(world.classes) == {MIG}
    world.settle()
    assert world.carriers() == {GPU}


def test_one_of_others_is_left_to_the_bridge_that_adopts_it():
    world = World(keeping=BaseKeeping.ADOPT)
    world.add(theirs(extendedResourceName=NAME), base_bridge(adopt=True))
    world.keep()
    assert world.classes[GPU].extended_name == NAME
    world.settle()
    assert world.carriers() == {GPU}


@pytest.mark.parametrize("used", [False, True])
def test_it_is_taken_back_when_the_bridge_goes_whoever_uses_it(world, used):
    world.settle()
    before = world.classes[GPU]
    world.add(base_bridge(adopt=True, select=Select(type="gpu", product_name="H100")))
    world.settle()
    world.users[GPU] = {"ns/claim"} if used else set()
    world.delete("base")
    world.settle()
    assert "base" not in world.bridges
    assert (world.classes[GPU].spec, world.classes[GPU].labels) == (before.spec, before.labels)
    assert world.classes[GPU].annotations == before.annotations


def test_it_is_never_missing_while_a_bridge_that_made_it_goes():
    world = World(keeping=BaseKeeping.KEEP)
    world.add(base_bridge())
    world.settle()
    assert world.carriers() == {GPU}
    world.delete("base")
    world.step()
    assert world.classes[GPU].is_base
    assert world.carriers() == set()


def test_one_of_others_that_a_bridge_adopted_is_given_back_and_left_alone(world):
    world.add(theirs(extendedResourceName=NAME), base_bridge(adopt=True))
    world.settle()
    assert world.carriers() == {GPU}
    world.delete("base")
    world.settle()
    assert not world.classes[GPU].is_base
    assert world.base_states[GPU] == "foreign"


def test_a_bridge_that_yields_its_name_does_not_keep_the_class_from_being_made(world):
    world.add(bridge("old"), base_bridge())
    world.settle()
    assert world.reasons("base")["Conflict"] == "NameOfAnotherBridge"
    assert world.classes[GPU].is_base


def test_the_name_of_nvidias_chart_is_a_rival_and_taken_over(world):
    world.add(theirs(extendedResourceName=NAME), bridge())
    world.settle()
    assert world.reasons()["Conflict"] == "NameOnOtherClass"
    assert world.carriers() == {GPU}
    world.keeping = BaseKeeping.ADOPT
    world.settle()
    assert world.carriers() == {"gpu.gpu.dradriver.dev"}
    assert world.known == {NAME: "gpu.gpu.dradriver.dev"}


# --- everything at any time -----------------------------------------------------------------------

BRIDGES = st.sampled_from(["plain", "base", "other"])
CLASS_OF = {"plain": "plain.gpu.dradriver.dev", "base": GPU, "other": GPU}
HAND_MADE = st.sampled_from([GPU, MIG, "x"])


class AnyOrder(RuleBasedStateMachine):
    """Administrators, crashes, charts of others and the controller in any order."""

    def __init__(self):
        super().__init__()
        self.world = World(keeping=BaseKeeping.KEEP)

    @rule(name=BRIDGES, adopt=st.booleans(), mode=st.sampled_from(Mode))
    def add_bridge(self, name, adopt, mode):
        if name not in self.world.bridges:
            self.world.add(bridge(name, device_class_name=CLASS_OF[name], adopt=adopt, mode=mode))

    @rule(name=BRIDGES)
    def delete_bridge(self, name):
        if name in self.world.bridges:
            self.world.delete(name)

    @rule(name=HAND_MADE, carries=st.booleans())
    def write_class(self, name, carries):
        self.world.put_class(foreign(name, extended_name=NAME if carries else ""))

    @rule(name=HAND_MADE, carries=st.booleans())
    def edit_class(self, name, carries):
        """As `kubectl edit` does, which leaves our labels."""
        if name in self.world.classes:
            spec = {"selectors": [], "extendedResourceName": NAME if carries else None}
            self.world.put_class(self.world.edited(name, spec=spec))

    @rule(name=HAND_MADE)
    def remove_class(self, name):
        if name in self.world.classes:
            self.world.remove_class(name)

    @rule(used=st.booleans())
    def use(self, used):
        self.world.users[GPU] = {"ns/claim"} if used else set()

    @rule(keeping=st.sampled_from([*BaseKeeping, None]))
    def restart_with(self, keeping):
        self.world.crash()
        self.world.keeping = keeping

    @rule()
    def look(self):
        self.world.step()

    @rule()
    def keep(self):
        self.world.keep()

    @rule(after=st.integers(0, 6))
    def die_in_a_look(self, after):
        self.world.step(interrupted_after=after)

    @rule(after=st.integers(0, 3))
    def die_in_keeping(self, after):
        self.world.keep(interrupted_after=after)

    @precondition(lambda self: self.world.keeping)
    @rule()
    def come_to_rest(self):
        world = self.world
        world.settle()
        assert set(world.classes) >= set(BASE_CLASSES)
        for name in BASE_CLASSES:
            found = world.classes[name]
            assert not found.bridge or found.bridge in world.bridges
            if found.is_base and not found.bridge:
                assert found.extended_name == ""
                assert selector(world, name) == expressions(Select(type=BASE_CLASSES[name]))[0]
            if world.keeping is BaseKeeping.ADOPT:
                assert found.is_base or found.bridge
        stayers = sorted((each.created, each.name) for each in world.bridges.values() if not each.deleting)
        winner = world.bridges[stayers[0][1]] if stayers else None
        if winner and "Conflict" not in world.reasons(winner.name) and winner.spec.mode is not Mode.DISABLED:
            assert world.carriers() == {winner.spec.device_class_name}
            assert world.known == {NAME: winner.spec.device_class_name}


# `World._apply` asserts at each write that no second class gets the name.
TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_a_bridge_keeps_its_finalizer_first(world):
    world.add(base_bridge(adopt=True))
    assert isinstance(world.step().actions[0], AddFinalizer)
