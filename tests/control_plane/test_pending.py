"""Pods that wait for an extended resource are told why: real scheduler, nodes and devices that are objects only."""

import re

import pytest
from support.bridging import bridge, device_class
from support.waiting import wait_for

from dradriver.kube import DEVICE_CLASSES


@pytest.fixture
def bridged(standing, yard):
    """A yard whose resource has a bridge."""
    standing.add(bridge(yard.name, yard.resource, select=yard.select))
    standing.wait_carrier(yard.resource, f"{yard.name}.gpu.dradriver.dev")
    return yard


def pending(controllers, name):
    """Number of waiting pods in a bridge's status, and what its condition says."""
    status = (controllers.find(name) or {}).get("status", {})
    found = next((each for each in status.get("conditions", ()) if each["type"] == "PodsPending"), {})
    return status.get("pods", {}).get("pending"), found.get("reason"), found.get("message", "")


def wait_pending(controllers, name, count, reason):
    """Wait for a number and a reason in a bridge's status; gives the message."""
    wait_for(
        lambda: pending(controllers, name)[:2] == (count, reason),
        f"bridge {name} to have {count} pods waiting for {reason}",
        seconds=60,
        state=lambda: pending(controllers, name),
    )
    return pending(controllers, name)[2]


def test_no_device_is_free(standing, bridged):
    bridged.add_node(*bridged.gpus(3, tainted=1))
    bridged.add_node(*bridged.gpus(2, tainted=1))
    bridged.add_pod("first", 2)
    bridged.wait_placed("first")
    bridged.add_pod("second", 2)
    note = bridged.told("second", "NoDeviceFree")
    assert note == (
        f"the pod asks for 2 of {bridged.resource}, and no node has so many free: of 5 on 2 nodes 2 are allocated, "
        "2 are tainted, 1 is free, at most 1 on one node; wait until pods that hold them end "
        "(`kubectl get resourceclaims -A`), or see to the tainted ones (spec.devices[].taints in "
        "`kubectl get resourceslices -o yaml`)"
    )
    message = wait_pending(standing, bridged.name, 1, "NoDeviceFree")
    assert message == f"1 pod waits (NoDeviceFree), such as {bridged.name}/second: {note}"
    assert bridged.events("first") == {}
    bridged.remove_pod("first")
    bridged.wait_placed("second")
    assert wait_pending(standing, bridged.name, 0, "NoneWaits") == ""


def test_other_partitions_leave_no_room(standing, bridged):
    slots = {"counters": {"slots": {"value": "2"}}}
    whole, part = (
        {"consumesCounters": [{"counterSet": "gpu-0", "counters": {"slots": {"value": value}}}]} for value in "21"
    )
    first, second = bridged.gpus(2)
    # Counters lie in a slice of their own.
    node = bridged.add_node(first | whole, second | part, total=2)
    bridged.add_counters(node, {"name": "gpu-0", **slots}, total=2)
    bridged.add_pod("first")
    bridged.wait_placed("first")
    bridged.add_pod("second", 2)
    assert "no node has so many free" in bridged.told("second", "NoDeviceFree")
    assert re.search(r"1 is without room beside other partitions", bridged.told("second", "NoDeviceFree"))


def test_a_pool_that_lacks_slices_gives_nothing_by_waiting(standing, bridged):
    bridged.add_node(*bridged.gpus(1), total=2)
    bridged.add_pod("waits")
    note = bridged.told("waits", "NoDeviceFree")
    assert "1 is without room beside other partitions or in incomplete pools; see the log of the kubelet plugin" in note
    assert "wait until" not in note


def test_more_than_any_node_has(standing, bridged):
    bridged.add_node(*bridged.gpus(2))
    bridged.add_pod("large", 3)
    assert bridged.told("large", "TooManyDevices") == (
        f"the pod asks for 3 of {bridged.resource}, and no node has more than 2; ask for less, or spread them over "
        "several pods"
    )


def test_more_than_a_claim_can_have(standing, bridged):
    bridged.add_node(*bridged.gpus(40))
    bridged.add_pod("huge", 33)
    note = bridged.told("huge", "TooManyDevices")
    assert note == ("the pod asks for 33 devices, and a claim can have 32 at most; spread them over several pods")


def test_the_node_is_on_the_device_plugin_and_full(standing, bridged):
    bridged.add_node(plugin=2)
    bridged.add_pod("first", 2)
    bridged.wait_placed("first")
    bridged.add_pod("second")
    note = bridged.told("second", "OnDevicePlugin")
    assert note.startswith(
        f"the device plugin still serves {bridged.resource}, on 1 node with 2 in all, and it is not fit for the pod "
        'now (the scheduler says: "'
    )
    assert f"Insufficient {bridged.resource}" in note
    assert note.endswith("; wait until pods there end, or move a node to DRA")
    wait_pending(standing, bridged.name, 1, "OnDevicePlugin")


def test_dra_and_device_plugin_are_both_full(standing, bridged):
    bridged.add_node(plugin=1)
    bridged.add_node(*bridged.gpus(1, tainted=1))
    bridged.add_pod("first")
    bridged.wait_placed("first")
    bridged.add_pod("second")
    note = bridged.told("second", "NoDeviceFree")
    assert "of 1 on 1 node 1 is tainted; the device plugin still serves" in note


def test_a_plugin_without_a_bridge(yard, standing):
    yard.add_node(plugin=1)
    yard.add_pod("first")
    yard.wait_placed("first")
    yard.add_pod("second")
    assert f"{yard.resource} comes from the device plugin only, on 1 node" in yard.told("second", "OnDevicePlugin")
    yard.add_pod("large", 5)
    note = yard.told("large", "TooManyDevices")
    assert f"the pod asks for 5 of {yard.resource}, which comes from the device plugin only" in note
    assert "has 1 at most on one node; ask for less" in note


def test_no_class_carries_the_name(standing, bridged):
    bridged.add_node(*bridged.gpus(1))
    standing.add(bridge(f"{bridged.name}-empty", f"{bridged.resource}x", select={"type": "mig", "profile": "9g.99gb"}))
    bridged.add_pod("lost", resource=f"{bridged.resource}s")
    note = bridged.told("lost", "ClassMissing")
    assert note.startswith(
        f"no DeviceClass carries {bridged.resource}s, and no device plugin serves it; make an ExtendedResourceBridge "
        f"with spec.resourceName {bridged.resource}s, or ask for one that has a bridge: {bridged.resource}"
    )
    assert f"{bridged.resource}x" not in note


def test_bridges_that_do_not_serve(standing, yard, admin):
    """The bridge's own reason is handed on."""
    rival = f"{yard.name}-rival"
    admin.create(DEVICE_CLASSES, device_class(rival, f"{yard.resource}-conflict"))
    for name, more in (("conflict", {}), ("disabled", {"mode": "Disabled"}), ("ready", {"mode": "WhenReady"})):
        standing.add(bridge(f"{yard.name}-{name}", f"{yard.resource}-{name}", select=yard.select, **more))
        yard.add_pod(name, resource=f"{yard.resource}-{name}")
    head = f"ExtendedResourceBridge {yard.name}"
    assert yard.told("conflict", "BridgeConflict").startswith(f"{head}-conflict: DeviceClass {rival} made by somebody")
    assert yard.told("disabled", "BridgeDisabled").startswith(f"{head}-disabled: spec.mode is Disabled; set it to")
    assert "the class gets the name when a node can serve it" in yard.told("ready", "BridgeNotReady")
    admin.delete(DEVICE_CLASSES, rival)


def test_a_bridge_whose_devices_nobody_publishes(standing, bridged):
    bridged.add_pod("early")
    assert f"no node publishes a device that ExtendedResourceBridge {bridged.name}" in bridged.told(
        "early", "NoDevices"
    )


def test_a_product_and_a_profile_that_nobody_publishes(standing, yard):
    """What is published instead is told; other tests may publish other products."""
    yard.add_node(*yard.gpus(1))
    wrong = {
        "product": ({"type": "gpu", "productName": f"{yard.name}x"}, f"productName {yard.name}x is not published, but"),
        "profile": ({"type": "mig", "profile": "1g.11gb"}, r"type mig is published|profile 1g\.11gb is not published"),
        "sharing": ({"type": "gpu", "sharing": "mps"}, "this driver publishes no device with spec.select.sharing mps"),
    }
    for name, (select, _) in wrong.items():
        standing.add(bridge(f"{yard.name}-{name}", f"{yard.resource}-{name}", select=select))
        yard.add_pod(name, resource=f"{yard.resource}-{name}")
    for name, (_, said) in wrong.items():
        assert re.search(said, yard.told(name, "NoDevices"))
        assert re.search(said, standing.wait_reason(f"{yard.name}-{name}", "NoDevices"))
    assert f"but {yard.name}" in yard.told("product", "NoDevices")


def test_a_slip_in_an_expression_is_told_in_the_words_of_the_bridge(standing, yard):
    standing.add(bridge(yard.name, yard.resource, select={"type": "gpu", "cel": "device.driver =="}))
    message = standing.wait_reason(yard.name, "Refused")
    assert message.startswith("the API server refuses spec.select.cel: compilation failed: ERROR: ")
    assert "Syntax error" in message
    assert message.endswith("; correct the expression")
    assert not re.search(r"PATCH|/apis/|422|selectors\[", message)
    assert standing.conditions(yard.name)["Degraded"][2] == message
    yard.add_pod("waits")
    assert yard.told("waits", "BridgeRefused") == f"ExtendedResourceBridge {yard.name}: {message}"


def test_pods_count_once_where_two_bridges_want_a_name(standing, bridged):
    standing.add(bridge(f"{bridged.name}-2", bridged.resource, select=bridged.select))
    standing.wait_reason(f"{bridged.name}-2", "NameOfAnotherBridge")
    bridged.add_node(*bridged.gpus(1))
    bridged.add_pod("large", 2)
    wait_pending(standing, bridged.name, 1, "TooManyDevices")
    message = wait_pending(standing, f"{bridged.name}-2", 0, "ToldElsewhere")
    assert message.startswith(f"ExtendedResourceBridge {bridged.name} has {bridged.resource}")


def test_nodes_are_excluded(standing, bridged):
    node = bridged.add_node(*bridged.gpus(2), labels={"zone": "a"})
    bridged.add_pod("elsewhere", nodeSelector={"zone": "b"})
    bridged.add_pod("intolerant", tolerations=[])
    assert bridged.told("elsewhere", "NodesExcluded") == (
        f"only 1 node ({node}) has 1 of {bridged.resource} or more, free or not, but the pod's node selector zone=b "
        "matches none of them; correct it, or label a node"
    )
    note = bridged.told("intolerant", "NodesExcluded")
    assert "they have taints that the pod does not tolerate" in note
    assert "node.kubernetes.io/unschedulable:NoSchedule" in note


def test_nodes_are_excluded_that_are_full_too(standing, bridged):
    first = bridged.add_node(*bridged.gpus(1), labels={"zone": "a"})
    bridged.add_pod("holder")
    bridged.wait_placed("holder")
    bridged.add_pod("elsewhere", nodeSelector={"zone": "b"})
    assert f"only 1 node ({first}) has 1 of" in bridged.told("elsewhere", "NodesExcluded")
    # There is another for it, but that is on the device plugin, and full.
    bridged.add_node(plugin=1, labels={"zone": "c"})
    bridged.add_pod("other", nodeSelector={"zone": "c"})
    bridged.wait_placed("other")
    bridged.add_pod("waits", nodeSelector={"zone": "c"})
    assert "wait until pods" in bridged.told("waits", "NoDeviceFree")


def test_two_containers_share_a_gpu_that_nobody_counts(standing, bridged):
    """As NVIDIA's driver publishes one: `allowMultipleAllocations` without a capacity of shares."""
    (gpu,) = bridged.gpus(1)
    bridged.add_node(gpu | {"allowMultipleAllocations": True})
    one = {"image": "none", "resources": {"limits": {bridged.resource: "1"}}}
    bridged.add_pod("pair", containers=[one | {"name": "a"}, one | {"name": "b"}])
    bridged.wait_placed("pair")
    bridged.add_pod("waits", containers=[one | {"name": "a"}, one | {"name": "b"}], nodeSelector={"zone": "none"})
    assert "only 1 node" in bridged.told("waits", "NodesExcluded")
    assert bridged.events("pair") == {}


def test_the_claim_would_exceed_a_quota(standing, bridged):
    bridged.add_node(*bridged.gpus(2))
    bridged.add_quota("few-claims", **{"count/resourceclaims.resource.k8s.io": "1"})
    bridged.add_pod("first")
    bridged.wait_placed("first")
    bridged.add_pod("second")
    note = bridged.told("second", "QuotaExceeded")
    assert note == (
        "the scheduler may not make the pod's claim: exceeded quota: few-claims, requested: "
        "count/resourceclaims.resource.k8s.io=1, used: count/resourceclaims.resource.k8s.io=1, limited: "
        "count/resourceclaims.resource.k8s.io=1; raise that quota, or end pods of this namespace whose claims count to "
        "it"
    )
    message = wait_pending(standing, bridged.name, 1, "QuotaExceeded")
    assert message == f"1 pod waits (QuotaExceeded), such as {bridged.name}/second: {note}"


@pytest.mark.parametrize(
    "key", ["{}.deviceclass.resource.k8s.io/devices", "requests.deviceclass.resource.kubernetes.io/{}"]
)
def test_the_claim_would_exceed_a_quota_of_its_class(standing, bridged, key):
    bridged.add_node(*bridged.gpus(3))
    bridged.add_quota("few", **{key.format(f"{bridged.name}.gpu.dradriver.dev"): "1"})
    bridged.add_pod("both", 2)
    assert "exceeded quota: few, requested: " in bridged.told("both", "QuotaExceeded")


def test_pods_that_a_quota_keeps_from_coming(standing, bridged, server):
    bridged.add_node(*bridged.gpus(2))
    bridged.add_quota("one", **{f"requests.{bridged.resource}": "1"})
    bridged.add_pod("first")
    bridged.wait_placed("first")
    bridged.add_replica_set("more", server)
    message = wait_pending(standing, bridged.name, 0, "QuotaUsedUp")
    assert message.startswith(
        f"used up: ResourceQuota {bridged.name}/one (1 of 1 requests.{bridged.resource}); there, further pods"
    )
    wait_for(lambda: "exceeded quota: one" in bridged.story("more", "FailedCreate"), "the ReplicaSet's own event")


def test_what_is_none_of_ours_is_left_alone_and_nobody_is_told_twice(standing, bridged):
    bridged.add_node(*bridged.gpus(1))
    bridged.add_pod("other", resource="example.com/gpu")
    bridged.add_pod("gated", 9, schedulingGates=[{"name": "example.com/gate"}])
    bridged.add_pod("fine")
    bridged.add_pod("large", 2)
    bridged.told("large", "TooManyDevices")
    # Two more looks.
    bridged.add_pod("larger", 3)
    bridged.told("larger", "TooManyDevices")
    assert wait_pending(standing, bridged.name, 2, "TooManyDevices")
    assert sorted(each["regarding"]["name"] for each in bridged.all_events()) == ["large", "larger"]
