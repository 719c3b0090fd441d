"""What bridges select, as the real scheduler sees it, on nodes that have devices of other drivers too."""

import pytest
from support.bridging import Controllers, bridge
from support.waiting import wait_for
from support.yard import Yard

from dradriver.kube import PODS, RESOURCE_SLICES

OTHERS = ("aaa.example.com", "zzz.example.com")
"""Drivers before and behind ours, in whatever order the scheduler looks at them."""


@pytest.fixture(scope="module")
def standing(control_plane, server, admin, tmp_path_factory):
    made = Controllers(control_plane, server, admin, tmp_path_factory.mktemp("controller"))
    made.start()
    yield made
    made.close()


@pytest.fixture
def yard(admin):
    made = Yard(admin)
    yield made
    made.close()


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
