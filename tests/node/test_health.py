"""GPUs that are not well: their devices get taints at once, pods are evicted, and all is undone when they are well."""

from support.manifests import GPU, MIG, claim, container, of_gpu, pod, request
from support.waiting import wait_for

XID, RECOVERY = "gpu.nvidia.com/xid", "dradriver.dev/recovery"
EXTENDED = "example.com/part"


def taints(node):
    """Effects by device and key of all devices that have taints."""
    return {
        name: {taint["key"]: (taint.get("value", ""), taint["effect"]) for taint in device["taints"]}
        for name, device in node.published().items()
        if device.get("taints")
    }


def of_gpu_0(node):
    return {name for name in node.published() if name == "gpu-0" or name.startswith("gpu-0-")}


def wait_taints(node, condition, what):
    """Wait until the taints are so; gives them."""
    wait_for(lambda: condition(taints(node)), what, state=lambda: taints(node))
    return taints(node)


def test_an_xid_79_evicts_all_pods_of_its_gpu_and_a_reset_brings_it_back(use_node, space):
    node = use_node(machine="2xh100-80gb")
    uuid = node.simulation.gpus()[0]["uuid"]
    space.add(claim("ordinary", request("it", MIG, of_gpu(uuid))), pod("ordinary", claims=["ordinary"]))
    space.running("ordinary")
    node.simulation.run("xid", "79", "--gpu", "0")
    found = wait_taints(node, lambda found: of_gpu_0(node) <= found.keys(), "all devices of the GPU to be tainted")
    assert found.keys() == of_gpu_0(node)
    for keys in found.values():
        assert keys[XID] == ("79", "NoExecute")
        assert keys[RECOVERY] == ("node-reboot", "NoExecute")
    space.gone("ordinary")
    node.wait_clean()
    node.simulation.run("reset", "--gpu", "0")
    wait_taints(node, lambda found: not found, "the taints to be gone")
    space.add(claim("next", request("it", GPU, of_gpu(uuid))), pod("next", claims=["next"]))
    (device,) = node.check(space.running("next")[0])["app"]
    assert device.uuid == uuid
