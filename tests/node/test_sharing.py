"""Shares of GPUs: several pods on one GPU, each of which sees exactly that one."""

import json
from collections import Counter

import pytest
from support.gpunode import NODE
from support.manifests import GPU, IMAGE, claim, container, pod, request
from support.sight import EXTENDED, claims_of, results
from support.waiting import wait_for

SHARED, SHARED_CLASS = "nvidia.com/gpu.shared", "gpu-shared.gpu.dradriver.dev"
UNWANTED = "dradriver.dev/not-offered"
CONFIGS = """
apiVersion: dradriver.dev/v1alpha1
kind: NodeConfigs
configs:
  default:
    gpus: [{sharing: {replicas: 4, rename: true}}]
  spread:
    gpus: [{sharing: {replicas: 4, rename: true}}]
    order: spread
  whole:
    gpus: [{sharing: {replicas: 4}, filter: {indices: [77]}}]
"""
RENAMED = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].?renamed.orValue(false)"


@pytest.fixture
def label(keeper):
    """The function that gives the node a configuration."""

    def to(value):
        text = f"dradriver.dev/config={value}" if value else "dradriver.dev/config-"
        keeper.server.kubectl("label", "node", NODE, "--overwrite", text)

    yield to
    to(None)


@pytest.fixture
def shared_class(keeper):
    """A class by which shares can be had as an extended resource."""
    keeper.server.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": SHARED_CLASS},
            "spec": {"extendedResourceName": SHARED, "selectors": [{"cel": {"expression": RENAMED}}]},
        }
    )
    yield
    keeper.server.delete("DeviceClass", SHARED_CLASS)


@pytest.fixture
def node(label, shared_class, use_node, tmp_path_factory):
    """Two GPUs of four shares each. The namespace of a test ends before the class and the label do."""
    file = tmp_path_factory.mktemp("configs") / "configs.yaml"
    file.write_text(CONFIGS)
    found = use_node(machine="2xh100-80gb", options=("--node-config", str(file)))
    yield found
    found.spoilt = True


def sharer(name, amount=1):
    """A pod that knows limits only."""
    limits = {"resources": {"limits": {SHARED: str(amount)}}}
    return pod(name, {"name": "app", "image": IMAGE, "command": ["sleep", "86400"], **limits})


def gpu_of(node, found):
    """The one GPU that a pod sees."""
    (device,) = node.check(found)["app"]
    return device.name


def loads(node, pods):
    return Counter(gpu_of(node, each) for each in pods)


def order(node):
    """The devices as the scheduler tries them."""
    return list(node.published())


def tainted(node):
    return {
        name
        for name, device in node.published().items()
        if any(taint["key"] == UNWANTED for taint in device.get("taints", ()))
    }


def is_shared(node, name):
    return node.published()[name].get("allowMultipleAllocations", False)


@pytest.fixture
def deployment(node, space):
    """The function that sets how many replicas a Deployment of sharers has; it ends before the namespace does."""

    def scale(replicas):
        template = {"metadata": {"labels": {"app": "shared"}}, "spec": sharer("any")["spec"]}
        body = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "shared", "namespace": space.name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "shared"}}, "template": template},
        }
        node.server.kubectl("apply", "-f", "-", text=json.dumps(body))

    yield scale
    node.server.kubectl("delete", "deployment", "-n", space.name, "shared", "--ignore-not-found", "--cascade=foreground")


def wait_pods(space, count, running):
    """Wait until there are so many pods and so many of them run; gives their names, those that run first."""

    def found():
        pods = [each for each in space.pods() if "deletionTimestamp" not in each["metadata"]]
        ready = {each["metadata"]["name"] for each in pods if space._ready(each["metadata"]["name"])}
        names = sorted((each["metadata"]["name"] for each in pods), key=lambda name: (name not in ready, name))
        return names if (len(names), len(ready)) == (count, running) else None

    return wait_for(found, f"{running} of {count} pods to run", seconds=60, state=space.story)


def test_a_deployment_fills_the_shares_of_both_gpus_and_a_ninth_pod_waits(node, space, deployment):
    deployment(8)
    names = wait_pods(space, 8, 8)
    assert loads(node, space.running(*names)) == {"gpu-0": 4, "gpu-1": 4}
    (one,) = results(claims_of(node.server, space.pod(names[0]))[EXTENDED])
    assert one["consumedCapacity"]["shares"] == "1"
    assert one["consumedCapacity"].get("memory", "0") == "0"
    assert one["shareID"]
    deployment(9)
    *running, waiting = wait_pods(space, 9, 8)
    assert "cannot allocate all claims" in space.unschedulable(waiting)
    deployment(8)
    wait_pods(space, 8, 8)
    space.add(sharer("ninth"))
    space.unschedulable("ninth")
    deployment(7)
    assert sum(loads(node, space.running("ninth")).values()) == 1
