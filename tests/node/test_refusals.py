"""Claims for devices that are gone: the user is told why, can delete the pod, and nothing stays behind."""

import pytest
from support.gpunode import DYNAMIC, NODE
from support.manifests import GPU, MIG, claim, exactly, of_gpu, pod, profile, request
from support.sight import DRIVER
from support.waiting import wait_for

FAILED = "FailedPrepareDynamicResources"
STATIC = ("--mig", "static")


def run_allocated(space, name, device, *, pool=NODE, beside=()):
    """Run a pod whose claim is allocated already, as if its device had been offered when it was scheduled."""
    made = space.server.create(claim(name, request("it", GPU)), namespace=space.name)
    gates = [{"name": "dradriver.dev/test"}]
    owner = space.server.create(pod(name, claims=[*beside, name], schedulingGates=gates), namespace=space.name)
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}
    made["status"] = {
        "allocation": {
            "devices": {"results": [{"request": "it", "driver": DRIVER, "pool": pool, "device": device}]},
            "nodeSelector": {"nodeSelectorTerms": [term]},
        },
        "reservedFor": [{"resource": "pods", "name": name, "uid": owner["metadata"]["uid"]}],
    }
    space.server.replace(made, part="/status")
    gated = space.pod(name)
    del gated["spec"]["schedulingGates"]
    space.server.replace(gated)


def expect_refusal(node, space, name, pattern):
    """Wait for the reason, then delete the pod and see that nothing is left."""
    message = space.event(name, FAILED, pattern)
    assert f"{space.name}/{name}" in message
    assert "Traceback" not in node.plugin.log()
    space.delete(name)
    node.wait_clean()


GONE = {
    "never there": ({}, "gpu-77", NODE, "no device gpu-77 .*it offers gpu-"),
    "smaller machine": ({"machine": "2xh100-80gb"}, "gpu-7", NODE, "no device gpu-7 "),
    "no such place": ({}, "gpu-0-mig-3g40gb-9-1", NODE, "no device gpu-0-mig-3g40gb-9-1 "),
    "other pool": ({}, "gpu-0", "elsewhere", f"of pool elsewhere.* serves pool {NODE}"),
}


@pytest.mark.parametrize(("setup", "device", "pool", "pattern"), GONE.values(), ids=GONE)
def test_a_device_that_is_not_offered(setup, device, pool, pattern, use_node, space):
    node = use_node(**setup)
    run_allocated(space, "lost", device, pool=pool)
    expect_refusal(node, space, "lost", pattern)


EARLIER = {
    "other profiles": ((*DYNAMIC, "--profiles", "1g.10gb"), "gpu-0-mig-3g40gb-9-0"),
    "no partitions": (("--mig", "off"), "gpu-0-mig-1g10gb-19-0"),
}


@pytest.mark.parametrize(("options", "device"), EARLIER.values(), ids=EARLIER)
def test_a_device_that_was_offered_earlier_is_the_claim_s_all_the_same(options, device, use_node, space):
    """Nobody else can be given it meanwhile; it is published for its claim as long as that has it."""
    node = use_node(options=options)
    assert device not in node.published()
    run_allocated(space, "late", device)
    space.running("late")
    wait_for(lambda: device in node.published(), "the device to be published for its claim")
    (taint,) = node.published()[device]["taints"]
    assert taint["key"] == "dradriver.dev/not-offered"
    assert node.check(space.pod("late"))["app"][0].name == device
    space.delete("late")
    node.wait_clean()
    # Its allocation was made by hand, so nobody else takes it back.
    node.server.kubectl("delete", "resourceclaim", "late", "--namespace", space.name)
    wait_for(lambda: device not in node.published(), "the device to be published no more")


def test_the_others_of_the_node_are_not_concerned(node, space):
    run_allocated(space, "lost", "gpu-77")
    space.add(claim("good", request("it", MIG, profile("1g.10gb"))), pod("good", claims=["good"]))
    node.check(space.running("good")[0])
    space.event("lost", FAILED, "no device gpu-77")
    space.delete("lost", "good")


def test_one_bad_claim_of_two_leaves_nothing_of_the_good_one(node, space):
    space.add(claim("good", request("it", MIG, profile("1g.10gb"))))
    run_allocated(space, "lost", "gpu-77", beside=["good"])
    expect_refusal(node, space, "lost", "no device gpu-77")


def test_an_instance_that_an_administrator_destroyed(use_node, space):
    node = use_node(machine="1xh100-80gb", mig="on", before=(("instance", "create", "3g.40gb"),), options=STATIC)
    node.spoilt = True
    node.simulation.run("instance", "destroy", "--all")
    space.add(claim("lost", request("it", MIG)), pod("lost", claims=["lost"]))
    space.event("lost", FAILED, "MIG instance .* does not exist on GPU GPU-.*make it again, or delete the pod")
    space.delete("lost")
    assert list(node.records.glob("*")) == []
    node.simulation.run("instance", "create", "3g.40gb")
    node.accept_hardware()


def test_an_instance_that_somebody_else_made_is_worked_around(use_node, space):
    node = use_node(machine="1xh100-80gb", mig="on", before=(("instance", "create", "1g.10gb", "--start", "2"),))
    (gpu,) = node.simulation.gpus()
    cel = of_gpu(gpu["uuid"])
    for name in ("first", "second"):
        space.add(claim(name, request("it", MIG, cel, profile("3g.40gb"))), pod(name, claims=[name]))
    (found,) = node.check(space.running("first")[0])["app"]
    assert found.instance["placement"]["start"] == 4
    assert "cannot allocate all claims" in space.unschedulable("second")
    space.delete("first", "second")
    node.wait_clean()
    assert {(name, start) for _, name, start in node.simulation.instances()} == {("1g.10gb", 2)}


@pytest.mark.parametrize("device_class", [GPU, MIG])
def test_a_gpu_that_fell_off_the_bus(device_class, use_node, space):
    node = use_node(machine="1xh100-80gb")
    node.spoilt = True
    node.simulation.run("lose", "--gpu", "0")
    space.add(claim("lost", request("it", device_class)), pod("lost", claims=["lost"]))
    expect_refusal(node, space, "lost", "lost")


def test_a_call_that_fails_leaves_nothing_half_made(use_node, space):
    node = use_node(machine="1xh100-80gb")
    node.spoilt = True
    node.simulation.run("fail", "nvmlGpuInstanceCreateComputeInstance", "--error", "UNKNOWN")
    space.add(claim("lost", request("it", MIG, profile("1g.10gb"))), pod("lost", claims=["lost"]))
    expect_refusal(node, space, "lost", "ComputeInstance for GPU-.* failed: an internal driver error")


def test_a_configuration_that_is_not_understood(node, space):
    body = claim("lost", {"name": "it", "exactly": exactly(GPU)})
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "Wishes"}}
    body["spec"]["devices"]["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    space.add(body, pod("lost", claims=["lost"]))
    expect_refusal(node, space, "lost", "configuration of the claim for all requests: .*strategy")
