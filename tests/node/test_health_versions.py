"""Sick GPUs on nodes of other versions of Kubernetes, on request: who is evicted, and what is told where nobody is.

pytest -m other_kubernetes tests/node/test_health_versions.py
"""

import pytest
from support.cluster import Cluster
from support.gpunode import NODE, Keeper
from support.manifests import (
    EXTENDED_CLASS,
    GPU,
    MIG,
    claim,
    extended_class,
    of_gpu,
    pod,
    profile,
    request,
    uses_extended,
)
from support.sickness import RECOVERY, XID, metric, taints, wait_metric, wait_same
from support.waiting import wait_for

pytestmark = [pytest.mark.other_kubernetes, pytest.mark.timeout(3600)]

WITH_TAINTS = (
    "--feature-gates",
    "DRAPartitionableDevices=true,DRADeviceTaints=true",
    # Without it the scheduler of 1.34 waits for DeviceTaintRules for ever once it knows taints.
    "--runtime-config",
    "resource.k8s.io/v1alpha3=true",
)
OFF_THE_BUS = {XID: ("79", "NoExecute"), RECOVERY: ("node-reboot", "NoExecute")}


@pytest.fixture(scope="module")
def cluster(request, tmp_path_factory):
    """A cluster of the version that the test names."""
    made = Cluster(tmp_path_factory.mktemp("other"))
    try:
        version, *options = request.param
        made.up("--kubernetes", version, *options)
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def keeper(cluster, tmp_path_factory):
    made = Keeper(cluster, tmp_path_factory.mktemp("machines"))
    yield made
    made.close()


def with_kubernetes(version, *options):
    return pytest.mark.parametrize(
        "cluster", [(version, *options)], ids=[" ".join((version, *options))], indirect=True, scope="module"
    )


@with_kubernetes("1.36.3")
def test_1_36_evicts_pods_with_claims_and_the_others_are_told(use_node, keeper, space):
    node = use_node(machine="2xh100-80gb")
    uuid = node.simulation.gpus()[0]["uuid"]
    part = (MIG, of_gpu(uuid), profile("1g.10gb"))
    tolerations = [{"operator": "Exists", "effect": "NoExecute"}]
    keeper.server.create(extended_class(profile("1g.10gb"), of_gpu(uuid)))
    space.add(claim("ordinary", request("it", *part)), claim("tolerant", request("it", *part, tolerations=tolerations)))
    space.add(pod("ordinary", claims=["ordinary"]), pod("tolerant", claims=["tolerant"]), uses_extended("extended"))
    space.running("ordinary", "tolerant", "extended")
    space.told_health("tolerant", "Healthy")
    node.simulation.run("xid", "79", "--gpu", "0")
    wait_same(node, 0, OFF_THE_BUS)
    space.told("Pod", "ordinary", "DeviceTaintManagerEviction")
    space.gone("ordinary")
    (message,) = space.told_health("tolerant", "Unhealthy")
    assert "Xid 79" in message
    space.told("Pod", "extended", "DeviceUnhealthy", "Xid 79")
    said = space.told("Pod", "extended", "NotEvicted")
    assert "does not evict pods with extended resources (kubernetes#141290)" in said
    assert f"kubectl delete pod -n {space.name} extended" in said
    wait_metric(node, "dradriver_pods_not_evicted", 1)
    assert metric(node, "dradriver_pods_not_evicted") == 1
    for name in ("extended", "tolerant"):
        assert "deletionTimestamp" not in space.running(name)[0]["metadata"]
    space.delete("extended", "tolerant")
    node.wait_clean()
    node.simulation.run("reset", "--gpu", "0")
    wait_for(lambda: not taints(node), "the taints to be gone")
    wait_for(lambda: metric(node, "dradriver_pods_not_evicted") == 0, "nobody to be told as not evicted")
    keeper.server.delete("DeviceClass", EXTENDED_CLASS)


@with_kubernetes("1.34.3")
def test_1_34_as_it_comes_keeps_no_taints_and_sick_gpus_are_withheld(use_node, space):
    node = use_node(machine="3xh100-80gb", options=("--mig", "static"))
    uuids = [gpu["uuid"] for gpu in node.simulation.gpus()]
    assert set(node.published()) == {"gpu-0", "gpu-1", "gpu-2"}
    space.add(claim("held", request("it", GPU, of_gpu(uuids[1]))), pod("held", claims=["held"]))
    space.running("held")
    node.simulation.run("xid", "31", "--gpu", "2")
    space.told("Node", NODE, "GpuReported", "Xid 31")
    node.simulation.run("xid", "119", "--gpu", "0")
    wait_for(lambda: set(node.published()) == {"gpu-1", "gpu-2"}, "the sick GPU to be withheld", state=node.published)
    space.told("Node", NODE, "TaintsNotKept")
    space.told("Node", NODE, "GpuUnhealthy", f"{uuids[0]} reported Xid 119")
    # One that is held stays, and whoever holds it has to go by himself.
    node.simulation.run("xid", "79", "--gpu", "1")
    space.told("Pod", "held", "DeviceUnhealthy", "this cluster keeps no device taints, so nobody evicts the pod")
    space.told("Pod", "held", "NotEvicted", "this cluster keeps no device taints")
    assert set(node.published()) == {"gpu-1", "gpu-2"}
    assert not taints(node)
    space.add(claim("next", request("it", GPU)), pod("next", claims=["next"]))
    assert node.check(space.running("next")[0])["app"][0].uuid == uuids[2]
    space.delete("held", "next")
    wait_for(
        lambda: set(node.published()) == {"gpu-2"}, "what nobody holds any more to be withheld", state=node.published
    )
    node.simulation.run("reset")
    wait_for(lambda: len(node.published()) == 3, "all to be back", state=node.published)
    space.add(claim("later", request("it", GPU, of_gpu(uuids[1]))), pod("later", claims=["later"]))
    assert node.check(space.running("later")[0])["app"][0].uuid == uuids[1]


@with_kubernetes("1.34.3", *WITH_TAINTS)
def test_1_34_with_taints_evicts_and_what_only_tells_is_told_by_events(use_node, space):
    node = use_node(machine="2xh100-80gb")
    uuids = [gpu["uuid"] for gpu in node.simulation.gpus()]
    for name, uuid in zip(("sick", "well"), uuids, strict=True):
        space.add(claim(name, request("it", MIG, of_gpu(uuid), profile("1g.10gb"))), pod(name, claims=[name]))
    space.running("sick", "well")
    node.simulation.run("xid", "31", "--gpu", "1")
    space.told("ResourceClaim", "well", "DeviceReported", "Xid 31")
    node.simulation.run("xid", "79", "--gpu", "0")
    wait_same(node, 0, OFF_THE_BUS)
    assert not any(name.startswith("gpu-1") for name in taints(node))
    space.told("Pod", "sick", "DeviceTaintManagerEviction")
    space.gone("sick")
    wait_for(lambda: not node.simulation.gpu(uuids[0])["instances"], "the GPU to be empty")
    node.simulation.run("reset", "--gpu", "0")
    wait_for(lambda: not taints(node), "the taints to be gone")
    space.add(claim("next", request("it", MIG, of_gpu(uuids[0]))), pod("next", claims=["next"]))
    node.check(space.running("next")[0])
    assert "deletionTimestamp" not in space.running("well")[0]["metadata"]
