import pytest
from doubles.bridgeworld import FINALIZER, NAME, OURS, World, bridge, foreign
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.api import Condition, ConditionType, DeviceTally, Mode, NodeTally, Select
from controller.bridges import AddFinalizer, ApplyClass, ClearName, DeleteClass, RemoveFinalizer, Waiting

CLASS = "gpu.gpu.dradriver.dev"
MANAGED_BY, BRIDGE_LABEL = OURS[:2]


def kinds(decision):
    return [type(action) for action in decision.actions]


def reasons(world):
    return [telling.reason for telling in world.tellings]


def test_a_bridge_gets_its_finalizer_before_its_class():
    world = World()
    world.add(bridge())
    assert kinds(world.step()) == [AddFinalizer, ApplyClass]
    made = world.classes[CLASS]
    assert made.extended_name == NAME
    assert made.labels == {OURS[0]: "dradriver-controller", OURS[1]: "gpu"}
    assert world.bridges["gpu"].finalizers == (FINALIZER,)
    assert kinds(world.step()) == []
    assert reasons(world) == ["ClassCreated", "Ready"]


def test_finalizers_of_others_stay():
    world = World()
    world.add(bridge(finalizers=("example.com/keep",)))
    world.settle()
    assert world.bridges["gpu"].finalizers == ("example.com/keep", FINALIZER)
    world.delete("gpu")
    decision = world.step()
    assert decision.actions[-1].finalizers == ("example.com/keep",)


def test_the_status_says_what_is_there():
    world = World(devices=DeviceTally(published=8, allocatable=5, allocated=2, tainted=1), nodes=NodeTally(dra=2))
    world.add(bridge(generation=3))
    world.settle()
    status = world.status()
    assert (status.observed_generation, status.device_class_name) == (3, CLASS)
    assert (status.devices, status.nodes) == (world.devices, world.nodes)
    assert world.reasons() == {"Ready": "Serving"}
    assert [str(condition.type) for condition in status.conditions] == [
        "Ready",
        "Conflict",
        "Degraded",
        "PodsPending",
    ]


@pytest.mark.parametrize(
    ("devices", "nodes", "expected"),
    [
        (DeviceTally(), NodeTally(), {"Ready": "NoDevices"}),
        (DeviceTally(), NodeTally(device_plugin=3), {"Ready": "NoDevices"}),
        (DeviceTally(published=8), NodeTally(device_plugin=1), {"Ready": "OnDevicePlugin"}),
        (DeviceTally(published=8, tainted=7), NodeTally(dra=1), {"Ready": "Serving"}),
        (
            DeviceTally(published=8, tainted=8),
            NodeTally(neither=1, tainted=1),
            {"Ready": "AllTainted", "Degraded": "AllTainted"},
        ),
        (DeviceTally(published=8, blocked=8), NodeTally(neither=1, incomplete=1), {"Ready": "PoolsIncomplete"}),
        (
            DeviceTally(published=8, blocked=4, tainted=4),
            NodeTally(device_plugin=1, neither=2, incomplete=1, tainted=1),
            {"Ready": "PoolsIncomplete"},
        ),
        (DeviceTally(published=8, blocked=4), NodeTally(dra=1, incomplete=1), {"Ready": "Serving"}),
    ],
)
def test_why_a_bridge_is_not_ready_or_degraded(devices, nodes, expected):
    world = World(devices=devices, nodes=nodes)
    world.add(bridge())
    world.settle()
    assert world.reasons() == expected
    assert world.carriers() == {CLASS}


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (NodeTally(tainted=2), ["all devices", "2 nodes", "taint that keeps pods away"]),
        (NodeTally(incomplete=1, tainted=2), ["1 node with devices", "all devices on 2 nodes are tainted"]),
    ],
)
def test_what_keeps_nodes_from_serving_is_said(nodes, words):
    world = World(nodes=nodes)
    world.add(bridge(mode=Mode.WHEN_READY))
    world.settle()
    message = world.status().condition(ConditionType.READY).message
    assert all(word in message for word in [*words, "the class gets the name when a node can serve it"])
    assert world.carriers() == set()
    world.nodes = NodeTally(dra=1)
    world.settle()
    assert world.carriers() == {CLASS}


def test_of_an_expression_of_the_user_only_what_is_known_is_said():
    world = World(nodes=NodeTally(dra=3))
    world.add(bridge(mode=Mode.WHEN_READY, select=Select(cel="true")))
    world.settle()
    ready = world.status().condition(ConditionType.READY)
    assert (ready.holds, ready.reason) == (None, "SelectedByExpression")
    assert ready.message.startswith("3 nodes publish devices of the kinds that the other fields select; which of them")
    assert "can serve" not in ready.message
    assert world.carriers() == {CLASS}
    assert "Ready" not in reasons(world)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [(NodeTally(), "NoDevices"), (NodeTally(tainted=1), "AllTainted"), (NodeTally(incomplete=1), "PoolsIncomplete")],
)
def test_with_an_expression_the_name_waits_for_devices_that_it_could_select(nodes, reason):
    world = World(nodes=nodes)
    world.add(bridge(mode=Mode.WHEN_READY, select=Select(cel="true")))
    world.settle()
    assert world.reasons()["Ready"] == reason
    assert world.carriers() == set()


def test_a_bridge_that_waits_gets_the_name_with_the_first_node_and_keeps_it():
    world = World(nodes=NodeTally(device_plugin=1))
    world.add(bridge(mode=Mode.WHEN_READY))
    world.settle()
    assert CLASS in world.classes
    assert world.carriers() == set()
    world.nodes = NodeTally(dra=1)
    assert kinds(world.step()) == [ApplyClass]
    assert world.carriers() == {CLASS}
    world.nodes = NodeTally(device_plugin=1)
    assert kinds(world.step()) == []
    assert world.carriers() == {CLASS}
    assert world.reasons() == {"Ready": "OnDevicePlugin"}


def test_a_disabled_bridge_keeps_its_class_without_the_name():
    world = World()
    world.add(bridge())
    world.settle()
    world.change("gpu", mode=Mode.DISABLED)
    assert kinds(world.step()) == [ClearName, ApplyClass]
    assert world.classes[CLASS].extended_name == ""
    assert world.reasons() == {"Ready": "Disabled"}
    world.settle()
    world.change("gpu", mode=Mode.ENABLED)
    world.settle()
    assert world.carriers() == {CLASS}
    assert "ClassReverted" not in reasons(world)


# --- edits by others ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edit",
    [
        {"selectors": [{"cel": {"expression": "true"}}]},
        {"extendedResourceName": "example.com/else"},
        {"extendedResourceName": None},
        {"config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {}}}]},
    ],
)
def test_edits_of_our_class_are_put_back_and_told(edit):
    world = World()
    world.add(bridge())
    world.settle()
    before = dict(world.classes[CLASS].spec)
    world.put_class(world.edited(CLASS, spec={**before, **edit}))
    world.settle()
    assert world.classes[CLASS].spec == before
    assert reasons(world)[-1] == "ClassReverted"
    assert world.known == {NAME: CLASS}


def test_fields_that_are_not_ours_are_left_alone():
    world = World()
    world.add(bridge())
    world.settle()
    world.put_class(world.edited(CLASS, labels={**world.classes[CLASS].labels, "team": "a"}))
    assert kinds(world.step()) == []


def test_a_deleted_class_is_made_again():
    world = World()
    world.add(bridge())
    world.settle()
    world.remove_class(CLASS)
    world.settle()
    assert world.known == {NAME: CLASS}


def test_a_change_of_the_bridge_changes_the_class():
    world = World()
    world.add(bridge())
    world.settle()
    world.change("gpu", select=Select(type="gpu", product_name="H100"))
    assert kinds(world.step()) == [ApplyClass]
    assert "H100" in world.classes[CLASS].spec["selectors"][0]["cel"]["expression"]
    assert reasons(world)[-1] == "ClassUpdated"


# --- two who want the same ------------------------------------------------------------------------


def test_of_two_bridges_of_one_name_the_older_has_it():
    world = World()
    world.add(bridge("young", created="2026-02-01T00:00:00Z"), bridge("old", created="2026-01-01T00:00:00Z"))
    world.settle()
    assert world.carriers() == {"old.gpu.dradriver.dev"}
    assert "young.gpu.dradriver.dev" not in world.classes
    assert world.reasons("young") == {"Ready": "NameOfAnotherBridge", "Conflict": "NameOfAnotherBridge"}
    assert "old" in world.status("young").conditions[0].message
    world.delete("old")
    world.settle()
    assert world.carriers() == {"young.gpu.dradriver.dev"}
    assert set(world.bridges) == {"young"}
    assert max(map(len, world.history)) == 1


def test_bridges_of_the_same_second_are_ordered_by_name():
    world = World()
    world.add(bridge("b", created="2026-01-01T00:00:00Z"), bridge("a", created="2026-01-01T00:00:00Z"))
    world.settle()
    assert world.carriers() == {"a.gpu.dradriver.dev"}


def test_two_bridges_of_different_names_do_not_share_a_class():
    world = World()
    world.add(bridge("other", resource_name="nvidia.com/other", device_class_name=CLASS, created="2025"), bridge())
    decision = world.step()
    assert kinds(decision) == [AddFinalizer]
    assert world.reasons() == {"Ready": "ClassOfAnotherBridge", "Conflict": "ClassOfAnotherBridge"}
    assert "other" in world.status().conditions[0].message


def test_a_class_of_somebody_else_is_not_touched():
    world = World()
    world.add(foreign(CLASS, extended_name=""), bridge())
    before = world.classes[CLASS]
    world.settle()
    assert world.classes[CLASS] == before
    assert world.reasons() == {"Ready": "ClassNotOurs", "Conflict": "ClassNotOurs"}
    assert "spec.adopt" in world.status().conditions[0].message


def test_a_name_on_a_class_of_somebody_else_is_not_given_a_second_time():
    world = World()
    world.add(foreign("hand-made"), bridge())
    world.settle()
    assert world.carriers() == {"hand-made"}
    assert CLASS in world.classes
    assert world.reasons() == {"Ready": "NameOnOtherClass", "Conflict": "NameOnOtherClass"}
    assert "hand-made" in world.status().conditions[1].message
    world.put_class(foreign("hand-made", extended_name=""))
    world.settle()
    assert world.carriers() == {CLASS}
    assert world.known == {NAME: CLASS}
    assert max(map(len, world.history)) == 1


def test_with_adopt_the_name_is_taken_away_first():
    world = World()
    world.add(foreign("hand-made"), bridge(adopt=True))
    decision = world.step()
    assert kinds(decision) == [AddFinalizer, ClearName, ApplyClass]
    assert decision.actions[1].name == "hand-made"
    assert world.known == {NAME: CLASS}
    assert world.reasons() == {"Ready": "Serving"}
    assert "NameCleared" in reasons(world)
    assert max(map(len, world.history)) == 1
    assert kinds(world.step()) == []


def test_a_class_that_takes_our_name_is_reported_and_healed_when_it_goes():
    world = World()
    world.add(bridge())
    world.settle()
    world.put_class(foreign("hand-made"))
    world.settle()
    assert world.carriers() == {CLASS, "hand-made"}
    assert world.reasons() == {"Ready": "NameOnOtherClass", "Conflict": "NameOnOtherClass"}
    world.remove_class("hand-made")
    assert world.known == {}
    assert kinds(world.step()) == [ClearName, ApplyClass]
    assert world.known == {NAME: CLASS}
    assert reasons(world)[-2:] == ["NameWrittenAgain", "Ready"]
    assert kinds(world.step()) == []


def test_a_class_that_comes_and_goes_between_two_looks_is_noticed():
    world = World()
    world.add(bridge())
    world.settle()
    world.put_class(foreign("hand-made"))
    world.remove_class("hand-made")
    world.settle()
    assert world.known == {NAME: CLASS}


def test_one_that_goes_while_nobody_looks_is_noticed_by_the_status():
    world = World()
    world.add(bridge())
    world.settle()
    world.put_class(foreign("hand-made"))
    world.settle()
    world.remove_class("hand-made")
    world.crash()
    world.settle()
    assert world.known == {NAME: CLASS}


def test_each_process_writes_each_class_once_without_a_word():
    world = World()
    world.add(bridge())
    world.settle()
    world.put_class(foreign("hand-made"))
    world.remove_class("hand-made")
    world.crash()
    told = len(world.tellings)
    assert world.known == {}
    assert kinds(world.step()) == [ApplyClass]
    assert world.known == {NAME: CLASS}
    assert len(world.tellings) == told
    assert kinds(world.step()) == []


def test_our_class_is_not_cleared_to_heal_it_while_another_carries_the_name():
    world = World()
    world.add(bridge())
    world.settle()
    world.put_class(foreign("x"))
    world.settle()
    world.put_class(foreign("y"))
    world.remove_class("x")
    assert kinds(world.step()) == []
    assert world.carriers() == {CLASS, "y"}
    world.remove_class("y")
    world.settle()
    assert world.known == {NAME: CLASS}


@pytest.mark.parametrize("after", range(4))
def test_a_take_over_that_is_interrupted_anywhere_is_finished(after):
    world = World()
    world.add(bridge(adopt=True))
    world.settle()
    world.put_class(foreign("hand-made"))
    begun = len(world.history)
    world.step(interrupted_after=after)
    world.settle()
    assert world.carriers() == {CLASS}
    assert world.known == {NAME: CLASS}
    assert max(map(len, world.history[begun:])) == 1


# --- deletion -------------------------------------------------------------------------------------


def test_a_deleted_bridge_takes_its_class_along():
    world = World()
    world.add(bridge())
    world.settle()
    world.delete("gpu")
    assert kinds(world.step()) == [ClearName, DeleteClass, RemoveFinalizer]
    assert (world.classes, world.bridges) == ({}, {})


def test_claims_keep_the_class_of_a_deleted_bridge_but_no_new_pod_gets_it():
    world = World()
    world.add(bridge())
    world.settle()
    world.users[CLASS] = {f"a/claim-{number:02}" for number in range(12)}
    world.delete("gpu")
    world.settle()
    assert world.carriers() == set()
    assert CLASS in world.classes
    assert world.reasons() == {"Ready": "InUse"}
    message = world.status().conditions[0].message
    assert "12 claims use" in message
    assert "a/claim-09 and 2 more" in message
    assert reasons(world)[-1] == "InUse"
    world.users[CLASS] = {"a/claim-00"}
    world.settle()
    assert "1 claim uses" in world.status().conditions[0].message
    world.users[CLASS] = set()
    world.settle()
    assert (world.classes, world.bridges) == ({}, {})


def test_the_deletion_can_be_forced():
    world = World()
    world.add(bridge(forced=True))
    world.settle()
    world.users[CLASS] = {"a/claim"}
    world.delete("gpu")
    world.settle()
    assert (world.classes, world.bridges) == ({}, {})


def test_a_class_of_somebody_else_survives_the_bridge():
    world = World()
    world.add(foreign(CLASS, extended_name=""), bridge())
    world.settle()
    world.users[CLASS] = {"a/claim"}
    world.delete("gpu")
    world.settle()
    assert (set(world.classes), world.bridges) == ({CLASS}, {})


def test_another_bridge_gets_the_name_while_claims_keep_the_old_class():
    world = World()
    world.add(bridge("old"), bridge("young"))
    world.settle()
    world.users["old.gpu.dradriver.dev"] = {"a/claim"}
    world.delete("old")
    world.settle()
    assert world.carriers() == {"young.gpu.dradriver.dev"}
    assert world.reasons("old") == {"Ready": "InUse"}
    assert max(map(len, world.history)) == 1


# --- clusters that cannot ------------------------------------------------------------------------


def test_where_it_is_not_supported_nothing_is_touched_and_said_why():
    world = World(unsupported="this is Kubernetes 1.34; use 1.35")
    world.add(bridge(), bridge("young"))
    assert kinds(world.step()) == []
    for name in ("gpu", "young"):
        assert world.reasons(name) == {"Ready": "NotSupported", "Degraded": "NotSupported"}
        assert world.status(name).conditions[0].message.startswith("this is Kubernetes 1.34")
    world.unsupported = ""
    world.settle()
    assert world.carriers() == {CLASS}


def test_a_bridge_can_go_where_it_is_not_supported_any_more():
    world = World()
    world.add(bridge())
    world.settle()
    world.unsupported = "the gate is off"
    world.delete("gpu")
    world.settle()
    assert (world.classes, world.bridges) == ({}, {})


# --- configurations -------------------------------------------------------------------------------

VERSION = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
BAD = (VERSION | {"sharing": {"strategy": "Often"}},)


def test_with_a_configuration_that_is_not_understood_no_class_is_made_and_none_is_cleared():
    world = World()
    world.add(foreign("hand-made"), bridge(adopt=True, config=BAD))
    world.settle()
    assert set(world.classes) == {"hand-made"}
    assert world.carriers() == {"hand-made"}
    assert world.reasons() == {"Ready": "InvalidConfig", "Degraded": "InvalidConfig"}
    assert "spec.config[0].sharing.strategy" in world.status().conditions[0].message
    world.change("gpu", config=(VERSION,))
    world.settle()
    assert world.carriers() == {CLASS}
    assert world.classes[CLASS].spec["config"][0]["opaque"]["parameters"] == VERSION


def test_a_class_that_runs_stays_as_it_was_when_its_configuration_is_spoilt():
    world = World()
    world.add(bridge())
    world.settle()
    before = dict(world.classes)
    world.change("gpu", config=BAD, select=Select(type="mig"))
    world.settle()
    assert world.classes == before
    assert "stays as it was" in world.status().conditions[0].message
    assert world.status().devices is not None
    world.change("gpu", mode=Mode.DISABLED)
    world.settle()
    assert world.carriers() == set()
    world.delete("gpu")
    world.settle()
    assert (world.classes, world.bridges) == ({}, {})


# --- pods that wait -------------------------------------------------------------------------------


def test_what_pods_wait_for_stands_until_it_is_known_anew():
    world = World()
    world.add(bridge())
    why = Condition(type=ConditionType.PODS_PENDING, holds=True, reason="NoDeviceFree", message="m")
    world.waiting = Waiting(pods=2, condition=why)
    world.settle()
    assert (world.status().pending, world.status().conditions[-1]) == (2, why)
    world.waiting = None
    world.settle()
    assert (world.status().pending, world.status().conditions[-1]) == (2, why)


# --- everything at any time -----------------------------------------------------------------------

BRIDGES = st.sampled_from(["a", "b", "c"])
HAND_MADE = st.sampled_from(["x", "y", "a.gpu.dradriver.dev"])


class AnyOrder(RuleBasedStateMachine):
    """Administrators, crashes and the controller in any order."""

    def __init__(self):
        super().__init__()
        self.world = World()

    @rule(name=BRIDGES, adopt=st.booleans(), mode=st.sampled_from(Mode))
    def add_bridge(self, name, adopt, mode):
        if name not in self.world.bridges:
            self.world.add(bridge(name, adopt=adopt, mode=mode))

    @rule(name=BRIDGES)
    def delete_bridge(self, name):
        if name in self.world.bridges:
            self.world.delete(name)

    @rule(name=BRIDGES, adopt=st.booleans(), mode=st.sampled_from(Mode))
    def edit_bridge(self, name, adopt, mode):
        if name in self.world.bridges and not self.world.bridges[name].deleting:
            self.world.change(name, adopt=adopt, mode=mode)

    @rule(name=HAND_MADE, carries=st.booleans())
    def write_class(self, name, carries):
        """By somebody who knows nothing of us: labels go, too."""
        self.world.put_class(foreign(name, extended_name=NAME if carries else ""))

    @rule(name=HAND_MADE)
    def remove_class(self, name):
        if name in self.world.classes:
            self.world.remove_class(name)

    @rule(name=BRIDGES, used=st.booleans())
    def use(self, name, used):
        self.world.users[f"{name}.gpu.dradriver.dev"] = {"ns/claim"} if used else set()

    @rule(dra=st.integers(0, 1))
    def move_node(self, dra):
        self.world.nodes = NodeTally(dra=dra, device_plugin=1 - dra)

    @rule()
    def look(self):
        self.world.step()

    @rule(after=st.integers(0, 6))
    def die(self, after):
        self.world.step(interrupted_after=after)

    @precondition(lambda self: self.world.bridges)
    @rule()
    def come_to_rest(self):
        world = self.world
        world.settle()
        stayers = sorted(
            (each for each in world.bridges.values() if not each.deleting), key=lambda b: (b.created, b.name)
        )
        if not stayers:
            return
        winner, *others = stayers
        own = winner.spec.device_class_name
        reason = world.reasons(winner.name).get("Conflict")
        modes = {Mode.ENABLED, Mode.WHEN_READY} if world.nodes.dra else {Mode.ENABLED}
        if reason is None and winner.spec.mode in modes:
            assert world.carriers() == {own}
            assert world.known == {NAME: own}
        if winner.spec.mode is Mode.DISABLED and reason != "ClassNotOurs":
            assert own not in world.carriers()
        if winner.spec.adopt:
            assert reason is None
        for other in others:
            assert other.spec.device_class_name not in world.carriers() - {"a.gpu.dradriver.dev"}

    @invariant()
    def the_model_is_sound(self):
        for found in self.world.bridges.values():
            assert not (found.deleting and not found.finalizers)


# `World._apply` asserts at each write that no second class gets the name.
TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
