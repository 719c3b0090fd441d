"""The slices on a real API server: whole, and put right when somebody changes them."""

import copy

import pytest
from support.gpunode import NODE
from support.sight import DRIVER, slices
from support.waiting import wait_for


def specs(node):
    """All that the slices say, but for the pool's generation."""
    found = [copy.deepcopy(each["spec"]) for each in slices(node.server)]
    generations = {spec["pool"].pop("generation") for spec in found}
    return sorted(found, key=str), generations


def is_as(node, wanted):
    found, generations = specs(node)
    return found == wanted and len(generations) == 1


def expect_back(node, wanted):
    wait_for(lambda: is_as(node, wanted), "the slices to be as they were", state=lambda: len(slices(node.server)))


def test_they_offer_every_partition_and_every_gpu(node):
    devices = node.published()
    kinds = [each["attributes"]["type"]["string"] for each in devices.values()]
    # 7 x 1g.10gb, 3 x 2g.20gb, 2 x 3g.40gb, 4g.40gb, 7g.80gb
    assert (kinds.count("gpu"), kinds.count("mig")) == (8, 8 * 14)
    uuids = {each["attributes"]["uuid"]["string"] for each in devices.values() if "uuid" in each["attributes"]}
    assert uuids == {gpu["uuid"] for gpu in node.simulation.gpus()}


def test_they_belong_to_the_node_and_form_one_complete_pool(node):
    found = slices(node.server)
    owner = node.server.get("Node", NODE)["metadata"]["uid"]
    assert {each["spec"]["nodeName"] for each in found} == {NODE}
    assert {each["spec"]["pool"]["name"] for each in found} == {NODE}
    assert {each["spec"]["pool"]["resourceSliceCount"] for each in found} == {len(found)}
    assert {reference["uid"] for each in found for reference in each["metadata"]["ownerReferences"]} == {owner}


def test_they_come_back_when_all_are_deleted(node):
    wanted, _ = specs(node)
    node.server.kubectl("delete", "resourceslices", "--all")
    expect_back(node, wanted)


def without_a_device(spec):
    del spec["devices"][0]


def with_other_memory(spec):
    spec["devices"][0]["capacity"]["memory"]["value"] = "1Gi"


def with_another_uuid(spec):
    spec["devices"][-1]["attributes"]["uuid"] = {"string": "GPU-of-somebody-else"}


def with_a_taint(spec):
    spec["devices"][0]["taints"] = [{"key": "example.com/mine", "effect": "NoSchedule"}]


def without_counters(spec):
    spec["devices"][0].pop("consumesCounters")


def of_a_later_generation(spec):
    spec["pool"]["generation"] += 7


@pytest.mark.parametrize(
    "edit",
    [without_a_device, with_other_memory, with_another_uuid, with_a_taint, without_counters, of_a_later_generation],
)
def test_an_edited_slice_is_put_right(edit, node):
    wanted, _ = specs(node)
    body = next(each for each in slices(node.server) if "devices" in each["spec"])
    edit(body["spec"])
    node.server.replace(body)
    expect_back(node, wanted)


def test_a_single_deleted_slice_comes_back(node):
    wanted, _ = specs(node)
    node.server.delete("ResourceSlice", slices(node.server)[0]["metadata"]["name"])
    expect_back(node, wanted)


def test_a_slice_of_somebody_else_in_our_pool_goes(node):
    wanted, _ = specs(node)
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "intruder"},
        "spec": {
            "driver": DRIVER,
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-99", "attributes": {"type": {"string": "gpu"}}}],
        },
    }
    node.server.create(body)
    expect_back(node, wanted)
    assert node.server.find("ResourceSlice", "intruder") is None


def test_slices_of_other_drivers_are_left_alone(node):
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "neighbour"},
        "spec": {
            "driver": "net.example.com",
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "nic-0"}],
        },
    }
    made = node.server.create(body)
    try:
        wanted, _ = specs(node)
        node.server.delete("ResourceSlice", slices(node.server)[0]["metadata"]["name"])
        expect_back(node, wanted)
        there = node.server.get("ResourceSlice", "neighbour")
        assert there["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    finally:
        node.server.delete("ResourceSlice", "neighbour")
