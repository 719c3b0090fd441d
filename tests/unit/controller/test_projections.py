import copy
import pickle

import pytest

from controller.watching import projections
from controller.watching.model import UNLIMITED, DeviceKind, SeenClaim, SeenDevice, SeenNode, SeenSlice, Taint


def metadata(name="x", **more):
    return {"name": name, "uid": "u", "resourceVersion": "5", "managedFields": [{"manager": "m"}], **more}


DEVICE = {
    "name": "gpu-0-mig-1g10gb-19-0",
    "attributes": {
        "type": {"string": "mig"},
        "profile": {"string": "1g.10gb"},
        "productName": {"string": "H100"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0"},
    },
    "capacity": {"memory": {"value": "10Gi"}},
    "consumesCounters": [{"counterSet": "gpu-0", "counters": {"slice-0": {"value": "1"}, "memory": {"value": "2Gi"}}}],
}


def slice_of(*devices, **more):
    pool = {"name": "node-a", "generation": 3, "resourceSliceCount": 2}
    return {
        "metadata": metadata(),
        "spec": {"driver": "gpu.nvidia.com", "nodeName": "node-a", "pool": pool, "devices": list(devices), **more},
    }


def seen_slice(*devices, **more):
    return projections.project_slice(slice_of(*devices, **more))["seen"]


def test_of_metadata_only_what_a_store_needs_is_kept():
    kept = projections.project_slice(slice_of())
    assert kept["metadata"] == {"name": "x", "uid": "u", "resourceVersion": "5"}
    assert set(kept) == {"metadata", "seen"}


def test_a_slice():
    assert seen_slice(DEVICE) == SeenSlice(
        pool="node-a",
        node="node-a",
        generation=3,
        total=2,
        devices=(
            SeenDevice(
                name="gpu-0-mig-1g10gb-19-0",
                kind=DeviceKind(type="mig", profile="1g.10gb", product_name="H100", memory=10 << 30),
                consumes=(("gpu-0", (("memory", 2 << 30), ("slice-0", 1))),),
            ),
        ),
    )


def test_a_slice_of_counters():
    shared = [{"name": "gpu-0", "counters": {"slice-0": {"value": "1"}}}]
    body = slice_of(sharedCounters=shared)
    del body["spec"]["devices"]
    seen = projections.project_slice(body)["seen"]
    assert (seen.devices, seen.counters) == ((), (("gpu-0", (("slice-0", 1),)),))


def test_names_may_have_the_drivers_domain_and_be_missing():
    device = {
        "name": "d",
        "attributes": {"gpu.nvidia.com/type": {"string": "gpu"}, "sharing": {"string": "mps"}},
        "capacity": {"gpu.nvidia.com/memory": {"value": "1Gi"}},
    }
    (seen,) = seen_slice(device).devices
    assert seen.kind == DeviceKind(type="gpu", memory=1 << 30, sharing="mps")
    (bare,) = seen_slice({"name": "d"}).devices
    assert bare.kind == DeviceKind()


def test_only_taints_that_keep_pods_away_count():
    def tainted(*effects):
        taints = [{"key": "k", "effect": effect} for effect in effects]
        return seen_slice(DEVICE | {"taints": taints}).devices[0].is_tainted

    assert not tainted()
    assert not tainted("None")
    assert tainted("NoSchedule")
    assert tainted("None", "NoExecute")


def test_equal_parts_of_different_nodes_are_there_once():
    one = seen_slice(copy.deepcopy(DEVICE))
    other = seen_slice(copy.deepcopy(DEVICE), nodeName="node-b")
    assert one != other
    assert one.devices is other.devices
    assert one.devices[0].consumes is other.devices[0].consumes


def test_a_thousand_nodes_take_little():
    """What is kept of a slice of eight GPUs beside the parts that all nodes share."""
    devices = [DEVICE | {"name": f"gpu-{index}"} for index in range(8)]
    kept = [projections.project_slice(slice_of(*copy.deepcopy(devices), nodeName=f"n{index}")) for index in range(1000)]
    # Pickle writes shared objects once, so its size is a fair measure of what is there.
    assert len(pickle.dumps(kept)) / 1000 < len(pickle.dumps(slice_of(*devices))) / 8


def claim(*requests, results=(), name="c"):
    status = {"allocation": {"devices": {"results": list(results)}}} if results else {}
    return {
        "metadata": metadata(name, namespace="ns"),
        "spec": {"devices": {"requests": list(requests)}},
        "status": status,
    }


def test_a_claim():
    body = claim(
        {"name": "a", "exactly": {"deviceClassName": "x"}},
        {"name": "b", "firstAvailable": [{"name": "1", "deviceClassName": "y"}, {"name": "2", "deviceClassName": "x"}]},
        results=[
            {"driver": "gpu.nvidia.com", "pool": "node-a", "device": "gpu-0", "request": "a"},
            {"driver": "gpu.nvidia.com", "pool": "node-a", "device": "gpu-1", "request": "b", "adminAccess": True},
            {"driver": "nic.example.com", "pool": "node-a", "device": "nic-0", "request": "b"},
        ],
    )
    seen = projections.project_claim(body)["seen"]
    assert seen == SeenClaim(name="ns/c", classes=("x", "y"), devices=(("node-a", "gpu-0"),))


def test_a_claim_on_shares():
    """Of one device it may have several, each with a result of its own."""
    shared = {"driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-0", "request": "a"}
    results = [
        shared | {"shareID": "1", "consumedCapacity": {"gpu.nvidia.com/shares": "2", "memory": "1Gi"}},
        shared | {"shareID": "2", "consumedCapacity": {"shares": "1"}},
        shared | {"shareID": "3", "device": "gpu-1"},
        shared | {"device": "gpu-2"},
    ]
    seen = projections.project_claim(claim({"name": "a", "exactly": {"deviceClassName": "x"}}, results=results))["seen"]
    assert seen.shares == (("n", "gpu-0", 2), ("n", "gpu-0", 1), ("n", "gpu-1", 1))
    assert len(seen.devices) == 4


@pytest.mark.parametrize("name", ["shares", "gpu.nvidia.com/shares"])
def test_a_shared_device(name):
    attributes = {"type": {"string": "gpu"}, "sharing": {"string": "time-slicing"}, "renamed": {"bool": True}}
    device = {"name": "d", "attributes": attributes, "capacity": {name: {"value": "4"}}}
    (shared,) = seen_slice(device | {"allowMultipleAllocations": True}).devices
    assert shared.kind == DeviceKind(type="gpu", sharing="time-slicing", renamed=True)
    assert shared.shares == 4
    assert seen_slice({"name": "d", "allowMultipleAllocations": True}).devices[0].shares == UNLIMITED
    # A capacity of that name alone lets nobody share.
    assert seen_slice(device).devices[0].shares == 0


def test_a_claim_that_is_not_allocated():
    assert projections.project_claim(claim({"name": "a", "exactly": {"deviceClassName": "x"}}))["seen"].devices == ()
    assert projections.project_claim({"metadata": metadata("c", namespace="n"), "spec": {}})["seen"].classes == ()


def test_a_node():
    allocatable = {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "7"}
    body = {"metadata": metadata("node-a"), "status": {"allocatable": allocatable}}
    assert projections.project_node(body)["seen"] == SeenNode(
        name="node-a", allocatable=(("nvidia.com/gpu", 0), ("nvidia.com/mig-1g.10gb", 7))
    )
    assert projections.project_node({"metadata": metadata("node-b")})["seen"] == SeenNode(name="node-b")


def test_labels_and_taints_of_a_node():
    taints = [
        {"key": "k", "value": "v", "effect": "NoSchedule"},
        {"key": "soft", "effect": "PreferNoSchedule"},
        {"key": "gone", "effect": "NoExecute"},
    ]
    body = {"metadata": metadata("node-a", labels={"zone": "a", "disk": "ssd"}), "spec": {"taints": taints}}
    seen = projections.project_node(body)["seen"]
    assert seen.labels == (("disk", "ssd"), ("zone", "a"))
    assert seen.taints == (Taint(key="k", value="v", effect="NoSchedule"), Taint(key="gone", effect="NoExecute"))


def test_a_class_and_whose_it_is():
    body = {
        "metadata": metadata("gpu", labels={"dradriver.dev/bridge": "b"}, creationTimestamp="t"),
        "spec": {"extendedResourceName": "nvidia.com/gpu"},
    }
    seen = projections.project_class(body)["seen"]
    assert (seen.name, seen.resource_version, seen.created) == ("gpu", "5", "t")
    assert seen.extended_name == "nvidia.com/gpu"
    # Somebody's own label alone does not make it ours.
    assert seen.bridge == ""
    body["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "dradriver-controller"
    body["metadata"]["annotations"] = {"dradriver.dev/adopted": "true", "dradriver.dev/hash": "h"}
    seen = projections.project_class(body)["seen"]
    assert (seen.bridge, seen.is_adopted, seen.hash) == ("b", True, "h")


def test_a_bridge_keeps_all_but_who_wrote_it():
    body = {"metadata": metadata("b"), "spec": {"resourceName": "x"}, "status": {"a": 1}}
    kept = projections.project_bridge(body)
    assert kept == {
        "metadata": {"name": "b", "uid": "u", "resourceVersion": "5"},
        "spec": {"resourceName": "x"},
        "status": {"a": 1},
    }
    assert "managedFields" in body["metadata"]


def class_with(**more):
    return projections.project_class({"metadata": metadata("a", **more), "spec": {}})["seen"]


def test_of_who_wrote_a_class_only_others_with_a_part_of_its_spec_are_kept():
    fields = {"f:spec": {"f:extendedResourceName": {}}}
    seen = class_with(
        managedFields=[
            {"manager": "helm", "fieldsV1": fields},
            {"manager": "argocd", "fieldsV1": fields},
            {"manager": "dradriver-controller", "fieldsV1": fields},
            {"manager": "labeller", "fieldsV1": {"f:metadata": {}}},
            {"manager": "empty"},
        ]
    )
    assert seen.managers == ("argocd", "helm")
    assert class_with(managedFields=None).managers == ()


def test_a_class_that_is_being_deleted_says_what_keeps_it():
    seen = class_with(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["example.com/x"])
    assert (seen.is_deleting, seen.finalizers) == (True, ("example.com/x",))
    assert (class_with().is_deleting, class_with().finalizers) == (False, ())
