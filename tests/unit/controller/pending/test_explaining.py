import pytest

from controller.api import Bridge, BridgeSpec, BridgeStatus, Condition, ConditionType, DeviceTally, Select
from controller.pending import Facts, explain, supply_of
from controller.watching import PodShape, SeenNode, Taint

NAME = "nvidia.com/gpu"
SERVING = Condition(type=ConditionType.READY, holds=True, reason="Serving", message="")


def bridge(*conditions):
    spec = BridgeSpec(resource_name=NAME, select=Select(type="gpu"), device_class_name="gpu.gpu.dradriver.dev")
    return Bridge(name="gpu", uid="u", spec=spec, status=BridgeStatus(conditions=conditions or (SERVING,)))


def not_ready(reason, message="because"):
    return Condition(type=ConditionType.READY, holds=False, reason=reason, message=message)


def tally(published, **more):
    return DeviceTally(published=published, **more)


def facts(*, places=None, plugin=None, **more):
    supply = supply_of(places or {}, plugin or {})
    given = {"bridge": bridge(), "carriers": ("c",), "supply": supply, "plugin": plugin or {}, **more}
    return Facts(resource_name=NAME, **given)


def why(known, count=1, *, total=None, **shape):
    return explain(PodShape(wants=((NAME, count),), **shape), count, total or count, known)


FULL = {"a": tally(8, allocated=8), "b": tally(8, allocated=5, tainted=2, blocked=1)}
FREE = {"a": tally(8, allocatable=8), "b": tally(8, allocated=8)}


def test_nothing_is_free():
    found = why(facts(places=FULL))
    assert (found.reason, found.is_certain) == ("NoDeviceFree", True)
    assert (
        "of 16 on 2 nodes 13 are allocated, 2 are tainted, 1 is without room beside other partitions" in found.message
    )
    assert "see to the tainted ones" in found.message


def test_too_little_is_free_on_one_node():
    found = why(facts(places={"a": tally(2, allocatable=1, allocated=1), "b": tally(2, allocatable=1, tainted=1)}), 2)
    assert found.reason == "NoDeviceFree"
    assert "2 are free, at most 1 on one node" in found.message


def test_where_no_device_is_tainted_nobody_is_sent_to_look_for_taints():
    assert "taint" not in why(facts(places={"a": tally(1, allocated=1)})).message


def test_more_than_any_node_has():
    found = why(facts(places=FULL, plugin={"p": 4}), 9)
    assert found.reason == "TooManyDevices"
    assert "no node has more than 8" in found.message


def test_one_container_gets_no_device_twice_whatever_shares_it_has():
    known = facts(places={"a": tally(8, allocatable=8, distinct=2)})
    found = why(known, 3, largest=((NAME, 3),))
    assert (found.reason, found.is_certain) == ("TooManyDevices", True)
    assert "a container asks for 3 of nvidia.com/gpu, which have to be different devices" in found.message
    assert "no node has more than 2, though each can be shared" in found.message
    # Two containers may have shares of the same.
    assert why(known, 3, largest=((NAME, 2),)).reason == "NotScheduled"


def test_devices_that_belong_to_no_node_set_no_limit():
    assert why(facts(places={"": tally(1), "a": tally(1)}), 9).reason == "NoDeviceFree"


def test_the_most_may_be_on_a_node_of_the_device_plugin():
    assert why(facts(places={"a": tally(1)}, plugin={"p": 9}), 9).reason == "NoDeviceFree"


def test_more_than_a_claim_can_have_counts_all_resources():
    found = why(facts(places=FREE), 8, total=33)
    assert found.reason == "TooManyDevices"
    assert "asks for 33 devices, and a claim can have 32 at most" in found.message
    assert why(facts(places=FREE), 8, total=32).reason == "NotScheduled"


def test_where_the_device_plugin_serves_too_the_limit_of_claims_is_none():
    assert why(facts(places=FREE, plugin={"p": 64}), 33, total=33).reason == "NoDeviceFree"


def test_only_the_device_plugin_serves_it():
    found = why(facts(plugin={"p": 8, "q": 8}), said=f"0/2 nodes are available: 2 Insufficient {NAME}.")
    assert found.reason == "OnDevicePlugin"
    assert "on 2 nodes with 16 in all, and none of them is fit for the pod now" in found.message
    assert f'"0/2 nodes are available: 2 Insufficient {NAME}."' in found.message


def test_a_node_that_has_both_counts_for_the_device_plugin():
    assert why(facts(places={"a": tally(8, allocatable=8)}, plugin={"a": 8})).reason == "OnDevicePlugin"


def test_dra_is_full_and_the_device_plugin_too():
    found = why(facts(places=FULL, plugin={"p": 8}))
    assert found.reason == "NoDeviceFree"
    assert "; the device plugin still serves nvidia.com/gpu, on 1 node with 8 in all" in found.message


def test_only_a_node_on_the_device_plugin_has_so_many_for_dra():
    known = facts(places={"a": tally(1, allocated=1), "p": tally(8, allocatable=8)}, plugin={"p": 2})
    found = why(known, 5)
    assert found.reason == "OnDevicePlugin"
    assert found.message == (
        "the pod asks for 5 of nvidia.com/gpu, and no node has more than 2 as it is served now, though one that the "
        "device plugin serves publishes 8; ask for less, or move that node to DRA"
    )
    assert "wait until" in why(known, 2).message


def test_nobody_waits_for_what_is_tainted():
    found = why(facts(places={"a": tally(2, allocated=1, tainted=1)}), 2)
    assert found.reason == "NoDeviceFree"
    assert "wait" not in found.message
    assert "see to the tainted ones" in found.message
    assert "wait until" in why(facts(places={"a": tally(2, allocated=1, tainted=1)})).message


def test_nobody_waits_for_pools_that_lack_slices():
    found = why(facts(places={"a": tally(2, blocked=2, incomplete=2)}))
    assert found.reason == "NoDeviceFree"
    assert "2 are without room beside other partitions or in incomplete pools; see the log of the" in found.message
    assert "wait" not in found.message
    beside = why(facts(places={"a": tally(2, blocked=2, incomplete=2), "b": tally(1, allocated=1)}))
    assert "wait until pods that hold them end (`kubectl get resourceclaims -A`), or see the log" in beside.message


def test_a_device_that_nobody_counts_is_enough_for_all_containers():
    """One GPU of the driver of NVIDIA, shared without limit: each container may have it."""
    known = facts(places={"a": tally(1, allocatable=1, allocated=1, distinct=1, unlimited=1)})
    found = why(known, 2, largest=((NAME, 1),))
    assert (found.reason, found.is_certain) == ("NotScheduled", False)
    assert "which 1 node seems to have free" in found.message
    assert why(known, 2, largest=((NAME, 2),)).reason == "TooManyDevices"
    tainted = facts(places={"a": tally(1, tainted=1, distinct=1, unlimited=1)})
    assert why(tainted, 2, largest=((NAME, 1),)).reason == "NoDeviceFree"
    beside = facts(places={"a": tally(1, tainted=1, distinct=1, unlimited=1), "b": tally(1, allocatable=1, distinct=1)})
    assert why(beside, 2, largest=((NAME, 1),)).reason == "NoDeviceFree"


def test_nobody_publishes_anything():
    assert why(facts()).reason == "NoDevices"


def test_a_quota_comes_first():
    found = why(facts(places=FULL), said="exceeded quota: q, requested: x=1, used: x=1, limited: x=1")
    assert found.reason == "QuotaExceeded"
    assert "exceeded quota: q, requested: x=1" in found.message


# --- names without a bridge -----------------------------------------------------------------------


def test_no_class_carries_the_name():
    known = ("nvidia.com/gpus", "example.com/other")
    found = why(facts(bridge=None, carriers=(), known=known))
    assert found.reason == "ClassMissing"
    assert "make an ExtendedResourceBridge with spec.resourceName nvidia.com/gpu, or ask for one" in found.message
    assert found.message.endswith("that has a bridge: nvidia.com/gpus")


def test_where_nothing_is_alike_nothing_is_suggested():
    assert why(facts(bridge=None, carriers=(), known=("example.com/x",))).message.endswith("nvidia.com/gpu")


def test_the_device_plugin_without_a_bridge():
    found = why(facts(bridge=None, carriers=(), plugin={"p": 1}))
    assert found.reason == "OnDevicePlugin"
    assert "make an ExtendedResourceBridge" in found.message


def test_the_device_plugin_without_a_bridge_has_too_few():
    found = why(facts(bridge=None, carriers=(), plugin={"p": 2, "q": 1}), 5)
    assert (found.reason, found.is_certain) == ("TooManyDevices", True)
    assert "comes from the device plugin only, and that has 2 at most on one node; ask for less" in found.message
    assert "wait" not in found.message
    assert why(facts(bridge=None, carriers=(), plugin={"p": 2, "q": 1}), 2).reason == "OnDevicePlugin"


def test_a_class_without_a_bridge_is_not_explained():
    found = why(facts(bridge=None, supply=None), said="no")
    assert (found.reason, found.is_certain) == ("NotScheduled", False)


# --- bridges that do not serve --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("Disabled", "BridgeDisabled"),
        ("InUse", "BridgeLeaving"),
        ("NotSupported", "NotSupported"),
        ("Refused", "BridgeRefused"),
        ("InvalidConfig", "BridgeRefused"),
    ],
)
def test_what_keeps_the_bridge_keeps_the_pod(reason, expected):
    found = why(facts(bridge=bridge(not_ready(reason)), carriers=(), places=FREE))
    assert (found.reason, found.message) == (expected, "ExtendedResourceBridge gpu: because")


def test_a_bridge_that_waits_for_a_node():
    found = why(facts(bridge=bridge(not_ready("NoDevices", "no node yet")), carriers=()))
    assert (found.reason, found.message) == ("BridgeNotReady", "ExtendedResourceBridge gpu: no node yet")


def test_a_bridge_in_conflict():
    conflict = Condition(type=ConditionType.CONFLICT, holds=True, reason="NameOnOtherClass", message="class x has it")
    found = why(facts(bridge=bridge(not_ready("NameOnOtherClass"), conflict), places=FULL))
    assert (found.reason, found.message) == ("BridgeConflict", "ExtendedResourceBridge gpu: class x has it")


def test_the_device_plugin_needs_no_bridge():
    assert why(facts(bridge=bridge(not_ready("Disabled")), plugin={"p": 1})).reason == "OnDevicePlugin"


def test_a_bridge_that_is_new_says_nothing_yet():
    made = Bridge(name="gpu", uid="u", spec=bridge().spec)
    assert why(facts(bridge=made, places=FREE)).reason == "NotScheduled"


# --- nodes ----------------------------------------------------------------------------------------


def node(name, *taints, **labels):
    return SeenNode(name=name, labels=tuple(sorted(labels.items())), taints=taints)


def test_the_node_selector_matches_none_that_has_enough():
    nodes = {"a": node("a", zone="1"), "b": node("b", zone="2")}
    found = why(facts(places=FREE, nodes=nodes), selector=(("zone", "2"),))
    assert found.reason == "NodesExcluded"
    assert found.message.startswith(
        "1 node (a) has 1 of nvidia.com/gpu free, but the pod's node selector zone=2 matches none of them"
    )
    # The one that it matches is full.
    assert found.message.endswith("; or wait until pods end on other nodes that have such devices")


def test_where_no_node_with_such_devices_is_for_the_pod_nobody_is_told_to_wait():
    nodes = {name: node(name, zone=name) for name in "abcdefgh"}
    found = why(facts(places=FULL, nodes=nodes), selector=(("zone", "c"),))
    assert (found.reason, found.is_certain) == ("NodesExcluded", True)
    assert found.message == (
        "only 2 nodes (a, b) have 1 of nvidia.com/gpu or more, free or not, but the pod's node selector zone=c matches "
        "none of them; correct it, or label a node"
    )
    assert why(facts(places=FULL, nodes=nodes), selector=(("zone", "a"),)).reason == "NoDeviceFree"
    many = {name: tally(1, allocated=1) for name in "abcdefgh"}
    assert (
        "only 8 nodes (a, b, c and 5 more) have" in why(facts(places=many, nodes=nodes), selector=(("z", "c"),)).message
    )


def test_nodes_with_too_few_devices_do_not_make_a_pod_wait():
    places = {"a": tally(8, allocated=8), "b": tally(1, allocated=1)}
    nodes = {"a": node("a", Taint(key="gpu", effect="NoSchedule")), "b": node("b")}
    assert why(facts(places=places, nodes=nodes)).reason == "NoDeviceFree"
    found = why(facts(places=places, nodes=nodes), 2)
    assert found.reason == "NodesExcluded"
    assert "only 1 node (a) has 2 of nvidia.com/gpu or more, free or not, but they have taints" in found.message


def test_nodes_of_the_device_plugin_may_be_for_the_pod_or_not():
    nodes = {"a": node("a"), "b": node("b"), "p": node("p", zone="2")}
    known = facts(places=FULL, nodes=nodes, plugin={"p": 4})
    assert why(known, selector=(("zone", "2"),)).reason == "NoDeviceFree"
    assert "only 3 nodes (a, b, p) have" in why(known, selector=(("zone", "3"),)).message
    alone = facts(bridge=None, carriers=(), nodes=nodes, plugin={"p": 4})
    assert why(alone, selector=(("zone", "2"),)).reason == "OnDevicePlugin"
    assert why(alone, selector=(("zone", "3"),)).reason == "NodesExcluded"


def test_devices_that_belong_to_no_node_exclude_nobody():
    known = facts(places={"": tally(1, allocated=1)}, nodes={"a": node("a")})
    assert why(known, selector=(("zone", "3"),)).reason == "NoDeviceFree"


def test_a_node_that_is_not_known_may_be_the_right_one():
    assert why(facts(places=FREE, nodes={}), selector=(("zone", "2"),)).reason == "NotScheduled"


def test_where_the_device_plugin_may_serve_nodes_exclude_nothing():
    nodes = {"a": node("a")}
    found = why(facts(places=FREE, nodes=nodes, plugin={"p": 1}), selector=(("zone", "2"),))
    assert not found.is_certain


def test_taints_that_are_not_tolerated():
    nodes = {"a": node("a", Taint(key="gpu", value="yes", effect="NoSchedule"))}
    found = why(facts(places=FREE, nodes=nodes))
    assert found.reason == "NodesExcluded"
    assert "they have taints that the pod does not tolerate: gpu=yes:NoSchedule" in found.message


def test_where_nothing_follows_the_scheduler_is_quoted():
    found = why(facts(places=FREE), said="0/2 nodes are available")
    assert not found.is_certain
    assert found.message == (
        "the pod asks for 1 of nvidia.com/gpu, which 1 node seems to have free "
        '(the scheduler says: "0/2 nodes are available")'
    )


def test_devices_that_only_a_users_expression_selects_are_not_counted():
    found = explain(PodShape(wants=((NAME, 1),)), 1, 1, Facts(resource_name=NAME, bridge=bridge(), carriers=("c",)))
    assert (found.reason, found.message) == ("NotScheduled", "the pod asks for 1 of nvidia.com/gpu")
