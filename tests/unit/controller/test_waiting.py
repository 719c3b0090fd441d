"""What is kept of pods that wait, and of quotas."""

import pytest

from controller.watching import PodShape, SeenPod, SeenQuota, Taint
from controller.watching.waiting import project_pod, project_quota, wanted

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"


def container(restart=None, **limits):
    names = {"gpu": GPU, "mig": MIG, "cpu": "cpu"}
    found = {"resources": {"limits": {names[key]: str(value) for key, value in limits.items()}}}
    return found | ({"restartPolicy": restart} if restart else {})


def pod(*containers, metadata=None, status=None, **spec):
    return {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "3", **(metadata or {})},
        "spec": {"containers": list(containers), **spec},
        "status": status or {},
    }


def shape(item):
    return project_pod(item)["seen"].shape


def test_a_pod():
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    item = pod(
        container(gpu=1, cpu=2),
        nodeSelector={"zone": "a"},
        tolerations=[{"key": "k", "operator": "Exists", "effect": "NoSchedule"}, {"key": "v", "value": "1"}],
        affinity={"nodeAffinity": {"required": 1}},
        status={"conditions": [said]},
    )
    assert project_pod(item)["seen"] == SeenPod(
        name="p",
        namespace="ns",
        uid="u",
        shape=PodShape(
            wants=((GPU, 1),),
            largest=((GPU, 1),),
            selector=(("zone", "a"),),
            tolerations=(
                Taint(key="k", effect="NoSchedule", operator="Exists"),
                Taint(key="v", value="1", operator="Equal"),
            ),
            has_affinity=True,
            said="0/1 nodes",
        ),
    )


def test_pods_of_one_workload_share_their_shape():
    assert shape(pod(container(gpu=1))) is shape(pod(container(gpu=1), metadata={"name": "other"}))


def test_of_a_pod_without_extended_resources_nothing_is_kept():
    assert shape(pod(container(cpu=1), nodeSelector={"zone": "a"})) == PodShape()
    assert shape(pod({})) == PodShape()


def test_one_that_is_being_deleted_waits_for_nothing():
    assert shape(pod(container(gpu=1), metadata={"deletionTimestamp": "now"})) == PodShape()


def test_one_that_is_held_back():
    said = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": ""}
    assert shape(pod(container(gpu=1), status={"conditions": [said]})).is_gated


def test_the_name_of_a_claim_over_quota_is_left_out():
    """It is another at every attempt."""
    message = (
        'running PreBind plugin "DynamicResources": create claim for extended resources q/: '
        'resourceclaims.resource.k8s.io "p-extended-resources-8crsv" is forbidden: exceeded quota: few, requested: x=1'
    )
    said = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": message}
    found = shape(pod(container(gpu=1), status={"conditions": [said]}))
    assert found.said == "exceeded quota: few, requested: x=1"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": [container(gpu=1), container(gpu=2, mig=1)]}, {GPU: 3, MIG: 1}),
        ({"containers": [container(gpu=1)], "initContainers": [container(gpu=3)]}, {GPU: 3}),
        ({"containers": [container(gpu=3)], "initContainers": [container(gpu=1), container(gpu=2)]}, {GPU: 3}),
        ({"containers": [container(gpu=1)], "initContainers": [container("Always", gpu=2)]}, {GPU: 3}),
        (
            {"containers": [container()], "initContainers": [container("Always", gpu=1), container(gpu=2)]},
            {GPU: 3},
        ),
        (
            {"containers": [container()], "initContainers": [container(gpu=2), container("Always", gpu=1)]},
            {GPU: 2},
        ),
    ],
    ids=["containers", "init", "smaller init", "sidecar", "init behind sidecar", "init before sidecar"],
)
def test_what_a_pod_wants(spec, expected):
    assert dict(wanted(spec)) == expected


def test_the_most_that_one_container_wants():
    containers = (container(gpu=1), container(gpu=2, mig=1))
    assert shape(pod(*containers, initContainers=[container(mig=3)])).largest == ((GPU, 2), (MIG, 3))


def test_a_quota_keeps_what_devices_count_to():
    hard = {
        "requests.nvidia.com/gpu": "8",
        "requests.cpu": "4",
        "pods": "10",
        "x.deviceclass.resource.k8s.io/devices": "1k",
        "requests.deviceclass.resource.kubernetes.io/x": "2",
    }
    item = {
        "metadata": {"name": "q", "namespace": "ns"},
        "status": {"hard": hard, "used": {"requests.nvidia.com/gpu": "8"}},
    }
    assert project_quota(item)["seen"] == SeenQuota(
        name="q",
        namespace="ns",
        limits=(
            ("requests.deviceclass.resource.kubernetes.io/x", 0, 2),
            ("requests.nvidia.com/gpu", 8, 8),
            ("x.deviceclass.resource.k8s.io/devices", 0, 1000),
        ),
    )


def test_a_quota_that_nobody_has_counted_yet():
    assert project_quota({"metadata": {"name": "q", "namespace": "ns"}})["seen"].limits == ()
