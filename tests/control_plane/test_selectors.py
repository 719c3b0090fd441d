"""What bridges select, as the real scheduler sees it, on nodes that have devices of other drivers too."""

import pytest
from support.bridging import bridge
from support.waiting import wait_for

from dradriver.kube import PODS, RESOURCE_SLICES

OTHERS = ("aaa.example.com", "zzz.example.com")
"""Drivers before and behind ours, in whatever order the scheduler looks at them."""


@pytest.fixture
def strange(admin):
    """Gives a node devices of other drivers, which know none of our attributes."""
    made = []

    def publish(node):
        for driver in OTHERS:
            name = f"{node}-{driver}"
            body = {
                "apiVersion": RESOURCE_SLICES.api_version,
                "kind": RESOURCE_SLICES.kind,
                "metadata": {"name": name},
                "spec": {
                    "driver": driver,
                    "nodeName": node,
                    "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                    "devices": [{"name": "nic-0", "attributes": {"speed": {"int": 100}}}],
                },
            }
            admin.create(RESOURCE_SLICES, body)
            made.append(name)

    yield publish
    for name in made:
        admin.delete(RESOURCE_SLICES, name)


def class_name(yard):
    return f"{yard.name}.gpu.dradriver.dev"


def refusal(admin, yard, pod):
    """What the scheduler says of a pod that has no node."""
    conditions = admin.get(PODS, pod, namespace=yard.name).get("status", {}).get("conditions", ())
    return next((each["message"] for each in conditions if each["type"] == "PodScheduled" and "message" in each), "")


@pytest.mark.parametrize(
    "own",
    [
        # The attributes of another driver's device have no such name: evaluated there, it would give up the pod.
        "device.attributes['gpu.nvidia.com'].productName == '{name}'",
        "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('1Gi')) > 0 || true",
        "true || device.attributes['gpu.nvidia.com'].nothing // why",
    ],
)
def test_an_expression_of_the_user_is_not_evaluated_on_other_drivers_devices(standing, yard, strange, own):
    node = yard.add_node({**yard.gpus(1)[0], "capacity": {"memory": {"value": "80Gi"}}})
    strange(node)
    standing.add(bridge(yard.name, yard.resource, select={**yard.select, "cel": own.replace("{name}", yard.name)}))
    standing.wait_carrier(yard.resource, class_name(yard))
    yard.add_pod("first")
    assert yard.wait_placed("first") == node


def test_an_expression_that_fails_on_a_device_of_ours_is_the_users_own_mistake(standing, yard, admin):
    """That the test above sees something: where the guard holds, the scheduler does give up the pod."""
    yard.add_node(*yard.gpus(1))
    select = {**yard.select, "cel": "device.attributes['gpu.nvidia.com'].nothing == 'x'"}
    standing.add(bridge(yard.name, yard.resource, select=select))
    standing.wait_carrier(yard.resource, class_name(yard))
    yard.add_pod("first")
    wait_for(lambda: "no such key" in refusal(admin, yard, "first"), "the scheduler to say it", seconds=60)


def test_an_expression_that_holds_for_all_devices_selects_none_of_other_drivers(standing, yard, strange, admin):
    node = yard.add_node(*yard.gpus(1, tainted=1))
    strange(node)
    standing.add(bridge(yard.name, yard.resource, select={**yard.select, "cel": "true || true"}))
    standing.wait_carrier(yard.resource, class_name(yard))
    yard.add_pod("first")
    wait_for(lambda: "cannot allocate all claims" in refusal(admin, yard, "first"), "the scheduler to say it")


def test_brackets_of_the_user_do_not_open_ours(standing, yard):
    standing.add(bridge(yard.name, yard.resource, select={**yard.select, "cel": "true) || (true"}))
    assert "Syntax error" in standing.wait_reason(yard.name, "Refused")
    assert standing.device_class(class_name(yard)) is None
    standing.change(yard.name, select={"cel": "true"})
    standing.wait_carrier(yard.resource, class_name(yard))
    first, second = standing.device_class(class_name(yard))["spec"]["selectors"]
    assert first["cel"]["expression"].startswith("device.driver == 'gpu.nvidia.com'")
    assert second["cel"]["expression"] == "true"


def partition(name, product, profile, **more):
    attributes = {"type": "mig", "productName": product, "profile": profile, **more}
    return {"name": name, "attributes": {key: {"string": value} for key, value in attributes.items()}}


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ({"type": "any"}, {"whole", "small", "large"}),
        ({"type": "any", "profiles": ["1g.10gb"]}, {"whole", "small"}),
        ({"type": "mig", "profiles": ["3g.40gb", "1g.10gb"]}, {"small", "large"}),
    ],
)
def test_whole_gpus_and_partitions_of_some_profiles(standing, yard, strange, select, expected):
    """What a node with the strategy `single` offers; the scheduler and the bridge's own numbers agree on it."""
    product = yard.name
    nodes = {
        "whole": yard.add_node(*yard.gpus(1)),
        "small": yard.add_node(partition("a", product, "1g.10gb")),
        "large": yard.add_node(partition("a", product, "3g.40gb")),
        "nothing": yard.add_node({"name": "a", "attributes": {"productName": {"string": product}}}),
    }
    for node in nodes.values():
        strange(node)
    standing.add(bridge(product, yard.resource, select={"productName": product, **select}, mode="WhenReady"))
    standing.wait_carrier(yard.resource, class_name(yard))
    standing.wait_counts(product, published=len(expected), allocatable=len(expected))
    assert standing.wait_reason(product, "Serving").startswith(f"{len(expected)} nodes can serve")
    pods = [f"pod-{index}" for index in range(len(expected))]
    for pod in pods:
        yard.add_pod(pod)
    assert {yard.wait_placed(pod) for pod in pods} == {nodes[each] for each in expected}
