"""GPUs that are not well: their devices get taints at once, pods are evicted, and all is undone when they are well."""

import signal
from datetime import datetime, timedelta

import pytest
from support.gpunode import NODE
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
from support.sickness import (
    LOST,
    MEMORY,
    RECOVERY,
    XID,
    devices_of,
    metric,
    taints,
    taints_of,
    times,
    wait_all_seen,
    wait_metric,
    wait_same,
    wait_taints,
    wait_well,
    watched,
    watched_slices,
)
from support.waiting import wait_for

OFF_THE_BUS = {XID: ("79", "NoExecute"), RECOVERY: ("node-reboot", "NoExecute")}
TOLERANT = [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in (XID, RECOVERY)]
VAGUE = [{"operator": "Exists"}]


@pytest.fixture
def extended(cluster, keeper):
    """Makes the class whose 1g.10gb partitions of one GPU can be had as an extended resource."""

    yield lambda uuid: keeper.server.create(extended_class(profile("1g.10gb"), of_gpu(uuid)))
    keeper.server.delete("DeviceClass", EXTENDED_CLASS)


def is_evicted(change):
    """Whether a pod says that it is deleted for the sake of a device."""
    conditions = change.body["status"].get("conditions", ())
    return any(
        (each["type"], each["status"], each["reason"]) == ("DisruptionTarget", "True", "DeletionByDeviceTaintManager")
        for each in conditions
        if "reason" in each
    )


# --- a GPU on which nothing can run ----------------------------------------------------------------


def test_an_xid_79_evicts_all_pods_of_its_gpu_and_a_reset_brings_it_back(sick, space, extended):
    node = sick(machine="2xh100-80gb")
    uuid, pid = node.simulation.gpus()[0]["uuid"], node.plugin.pid
    extended(uuid)
    part = (MIG, of_gpu(uuid), profile("1g.10gb"))
    for name, tolerations in {"ordinary": [], "vague": VAGUE, "tolerant": TOLERANT}.items():
        space.add(claim(name, request("it", *part, tolerations=tolerations)), pod(name, claims=[name]))
    space.add(uses_extended("extended"))
    space.running("ordinary", "vague", "tolerant", "extended")
    assert len(node.simulation.instances()) == 4
    space.told_health("tolerant", "Healthy")
    with watched(node.server, "pods", "-n", space.name) as pods:
        node.simulation.run("xid", "79", "--gpu", "0")
        wait_same(node, 0, OFF_THE_BUS)
        assert taints(node).keys() == devices_of(node, 0)
        space.gone("ordinary", "vague", "extended")
        evicted = {change.body["metadata"]["name"] for change in pods.changes() if is_evicted(change)}
    # Kubernetes evicts in spite of a toleration that leaves its effect out, though the scheduler takes it for any.
    assert evicted == {"ordinary", "extended", "vague"}
    for name in evicted:
        space.told("Pod", name, "DeviceTaintManagerEviction")
        said = space.told("Pod", name, "DeviceUnhealthy", "Xid 79")
        assert uuid in said
        assert "reboot the node" in said
    space.told("ResourceClaim", "ordinary", "DeviceUnhealthy", "is evicted, unless its claim tolerates")
    space.told("Node", NODE, "GpuUnhealthy", f"{uuid} reported Xid 79")
    (message,) = space.told_health("tolerant", "Unhealthy")
    assert f"GPU {uuid} reported Xid 79" in message
    (held,) = node.check(space.running("tolerant")[0])["app"]
    assert "deletionTimestamp" not in space.pod("tolerant")["metadata"]
    assert held.gpu["uuid"] == uuid

    space.delete("tolerant")
    node.wait_clean()
    node.simulation.run("reset", "--gpu", "0")
    wait_well(node)
    space.add(claim("next", request("it", *part)), pod("next", claims=["next"]), uses_extended("extended-next"))
    for each in space.running("next"):
        assert node.check(each)["app"][0].gpu["uuid"] == uuid
    space.running("extended-next")
    assert len(node.simulation.instances()) == 2
    space.told_health("next", "Healthy")
    assert (node.plugin.running, node.plugin.pid) == (True, pid)


def test_a_pod_that_tolerates_for_a_while_is_evicted_then(sick, space):
    """Another error meanwhile changes the same slice, and does not give it more time."""
    node = sick(machine="1xh100-80gb")
    patience = [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 15}]
    space.add(claim("patient", request("it", MIG, profile("3g.40gb"), tolerations=patience)))
    space.add(pod("patient", claims=["patient"]))
    space.running("patient")
    with watched(node.server, "pods", "-n", space.name) as pods:
        node.simulation.run("xid", "79")
        wait_same(node, 0, OFF_THE_BUS)
        before = times(node)
        node.simulation.run("remap", "--pending")
        wait_same(node, 0, {**OFF_THE_BUS, MEMORY: ("remap-pending", "None")})
        after = times(node)
        space.gone("patient")
        ends = [one.body["metadata"] for one in pods.changes() if "deletionTimestamp" in one.body["metadata"]]
    assert {key: after[key] for key in before} == before
    grace = timedelta(seconds=ends[0]["deletionGracePeriodSeconds"])
    begun = datetime.fromisoformat(ends[0]["deletionTimestamp"]) - grace
    # Times of the API are whole seconds.
    assert begun - datetime.fromisoformat(before["gpu-0", XID]) >= timedelta(seconds=14)


def test_a_fatal_error_stays_fatal_whatever_comes_and_whoever_restarts(sick):
    node = sick(machine="2xh100-80gb")
    node.simulation.run("xid", "79", "--gpu", "0")
    node.simulation.run("xid", "31", "--gpu", "1")
    wait_same(node, 0, OFF_THE_BUS)
    wait_same(node, 1, {XID: ("31", "None")})
    first = {key: time for key, time in times(node).items() if key[0].startswith("gpu-0")}
    node.simulation.run("xid", "31", "--gpu", "0")
    node.simulation.run("xid", "79", "--gpu", "1")
    wait_same(node, 1, OFF_THE_BUS)
    wait_metric(node, "dradriver_gpu_xids_total", 2, xid="31")
    wait_metric(node, "dradriver_gpu_xids_total", 2, xid="79")
    before, since = taints(node), times(node)
    assert before.keys() == devices_of(node, 0) | devices_of(node, 1)
    assert all(each == OFF_THE_BUS for each in before.values())
    assert {key: since[key] for key in first} == first
    for gpu, number in (("0", signal.SIGTERM), ("1", signal.SIGKILL)):
        with watched_slices(node) as slices:
            node.plugin.stop(number)
            node.start()
            node.simulation.run("remap", "--pending", "--gpu", gpu)
            wait_same(node, int(gpu), {**OFF_THE_BUS, MEMORY: ("remap-pending", "None")})
            seen = wait_all_seen(node, slices)
        for change in seen:
            assert change.type != "DELETED"
            devices = {device["name"]: device for device in change.body["spec"].get("devices", ())}
            found = taints_of(devices)
            assert all(OFF_THE_BUS.items() <= found[name].items() for name in devices)
        assert {key: times(node)[key] for key in since} == since


def test_a_restart_of_the_kubelet_which_deletes_all_slices_loses_no_taint(sick, space):
    node = sick(machine="1xh100-80gb")
    tolerations = [{"operator": "Exists", "effect": "NoExecute"}]
    space.add(claim("one", request("it", MIG, profile("2g.20gb"), tolerations=tolerations)))
    space.add(pod("one", claims=["one"]))
    space.running("one")
    node.simulation.run("xid", "79")
    wait_same(node, 0, OFF_THE_BUS)
    since = times(node)
    with watched_slices(node) as slices:
        node.restart_kubelet()
        wait_for(
            lambda: any(change.type == "DELETED" for change in slices.changes()), "the kubelet to delete the slices"
        )
        wait_for(lambda: times(node) == since, "the slices to be as before", state=lambda: times(node))
        seen = [change for change in wait_all_seen(node, slices) if change.type != "DELETED"]
    for change in seen:
        devices = {device["name"]: device for device in change.body["spec"].get("devices", ())}
        assert taints_of(devices) == dict.fromkeys(devices, OFF_THE_BUS)
    (message,) = space.told_health("one", "Unhealthy")
    assert "Xid 79" in message
    assert "deletionTimestamp" not in space.pod("one")["metadata"]


# --- errors of partitions, and harmless ones --------------------------------------------------------


def instance(node, uuid, name):
    """Id of the GPU instance of that profile."""
    return next(each["gpu_instance_id"] for each in node.simulation.gpu(uuid)["instances"] if each["profile"] == name)


def test_an_error_of_a_partition_is_told_of_that_partition(sick, space):
    node = sick(machine="2xh100-80gb")
    uuid = node.simulation.gpus()[1]["uuid"]
    whole = request("it", MIG, of_gpu(uuid), profile("4g.40gb"))
    for name, wanted in (("at-fault", whole), ("beside", request("it", MIG, of_gpu(uuid), profile("1g.10gb")))):
        space.add(claim(name, wanted), pod(name, claims=[name]))
    space.running("at-fault", "beside")
    (device,) = node.check(space.pod("at-fault"))["app"]
    node.simulation.run("xid", "94", "--gpu", "1", "--gi", str(instance(node, uuid, "4g.40gb")))
    told = {XID: ("94", "None"), MEMORY: ("contained", "None")}
    wait_taints(node, bool, "a device to have taints")
    assert taints(node) == {device.name: told}
    space.told("ResourceClaim", "at-fault", "DeviceReported", "Xid 94.*the pod goes on running")
    space.add(claim("later", whole), pod("later", claims=["later"]))
    space.delete("at-fault")
    (again,) = node.check(space.running("later")[0])["app"]
    assert again.name == device.name
    assert taints(node) == {device.name: told}
    assert "deletionTimestamp" not in space.running("beside")[0]["metadata"]
    events = node.server.list("Event", namespace=space.name, fieldSelector="involvedObject.name=beside")
    assert not [each for each in events if each["reason"].startswith("Device")]
    (message,) = space.told_health("later", "Healthy")
    assert "Xid 94" in message


def test_a_programs_own_error_disturbs_nobody(sick, space):
    node = sick(machine="1xh100-80gb")
    for name in ("one", "two"):
        space.add(claim(name, request("it", MIG, profile("1g.10gb"))), pod(name, claims=[name]))
    before = [each["metadata"]["uid"] for each in space.running("one", "two")]
    node.simulation.run("xid", "31")
    wait_same(node, 0, {XID: ("31", "None")})
    for name in ("one", "two"):
        said = space.told("ResourceClaim", name, "DeviceReported", "Xid 31")
        assert "the pod goes on running, and the device is handed out as before" in said
    space.told("Node", NODE, "GpuReported", "Xid 31")
    space.add(claim("three", request("it", MIG, profile("1g.10gb"))), pod("three", claims=["three"]))
    node.check(space.running("three")[0])
    assert [each["metadata"]["uid"] for each in space.running("one", "two")] == before
    assert not any("deletionTimestamp" in each["metadata"] for each in space.pods())
    (message,) = space.told_health("one", "Healthy")
    assert "Xid 31" in message
    assert metric(node, "dradriver_tainted_devices", effect="NoSchedule") == 0
    assert metric(node, "dradriver_tainted_devices", cause="xid", effect="None") == len(devices_of(node, 0))


def test_a_partition_that_is_made_on_a_sick_gpu_has_its_taints_from_the_start(sick):
    node = sick(machine="2xh100-80gb", mig="on", options=("--mig", "static"))
    node.simulation.run("xid", "119", "--gpu", "0")
    wait_metric(node, "dradriver_gpu_xids_total", 1, xid="119")
    reset = {XID: ("119", "NoSchedule"), RECOVERY: ("gpu-reset", "NoSchedule")}
    with watched_slices(node) as slices:
        for gpu in ("0", "1"):
            node.simulation.run("instance", "create", "3g.40gb", "--gpu", gpu, "--start", "4")
        wait_for(lambda: len(node.published()) == 2, "the instances to be offered", state=node.published)
        seen = wait_all_seen(node, slices)
    for change in seen:
        for device in change.body["spec"].get("devices", ()):
            wanted = {device["name"]: reset} if device["name"].startswith("gpu-0-") else {}
            assert taints_of({device["name"]: device}) == wanted
    for gpu in ("0", "1"):
        node.simulation.run("instance", "destroy", "--gpu", gpu, "--all")


# --- lost, and what GPUs say when they are asked -----------------------------------------------------


def test_a_lost_gpu_with_partitions_in_use_is_told_alone_and_comes_back(sick, space):
    node = sick(machine="2xh100-80gb")
    uuids = [gpu["uuid"] for gpu in node.simulation.gpus()]
    for name, uuid in zip(("here", "there"), uuids, strict=True):
        space.add(claim(name, request("it", MIG, of_gpu(uuid), profile("2g.20gb"))), pod(name, claims=[name]))
    space.running("here", "there")
    node.simulation.run("lose", "--gpu", "0")
    wait_same(node, 0, {LOST: ("", "NoExecute"), **OFF_THE_BUS})
    assert taints(node).keys() == devices_of(node, 0)
    space.told("Pod", "here", "DeviceTaintManagerEviction")
    space.told("Node", NODE, "GpuUnhealthy", f"{uuids[0]} is lost")
    node.simulation.run("recover", "--gpu", "0")
    space.gone("here")
    node.simulation.gpu(uuids[0])
    wait_well(node)
    assert "deletionTimestamp" not in space.running("there")[0]["metadata"]
    space.add(claim("next", request("it", GPU, of_gpu(uuids[0]))), pod("next", claims=["next"]))
    assert node.check(space.running("next")[0])["app"][0].uuid == uuids[0]


ACTIONS = {
    "gpu-reset": "gpu-reset",
    "node-reboot": "node-reboot",
    "drain-p2p": "drain-p2p",
    "drain-and-reset": "drain-and-reset",
    "recover-imex-domain": "imex-domain",
    "bus-reset": "bus-reset",
    "system-reboot": "node-reboot",
}


def test_what_gpus_say_that_has_to_be_done_is_told_until_they_do_not_say_it(sick):
    node = sick(machine="8xh100-80gb")
    for gpu, action in enumerate(ACTIONS):
        node.simulation.run("xid", "154", "--recovery", action, "--gpu", str(gpu))
    for gpu, value in enumerate(ACTIONS.values()):
        effect = "NoExecute" if value == "bus-reset" else "NoSchedule"
        wait_same(node, gpu, {RECOVERY: (value, effect)})
    assert devices_of(node, 7).isdisjoint(taints(node))
    for gpu in range(len(ACTIONS)):
        node.simulation.run("recover", "--gpu", str(gpu))
    wait_well(node)


SAYINGS = [
    (("remap", "--pending"), ("remap", "--pending", "no"), {MEMORY: ("remap-pending", "None")}),
    (("remap", "--failure"), ("remap", "--failure", "no"), {MEMORY: ("remap-failed", "NoSchedule")}),
    (("sram", "--exceeded", "on"), ("sram", "--exceeded", "off"), {MEMORY: ("sram-threshold", "NoSchedule")}),
    (("fabric", "unhealthy"), ("fabric", "healthy"), {RECOVERY: ("nvlink", "NoSchedule")}),
]


def test_what_gpus_say_of_memory_and_fabric_is_told_until_they_do_not_say_it(sick):
    node = sick(machine="5xh100-80gb")
    for gpu, (bad, _, _) in enumerate(SAYINGS):
        node.simulation.run(*bad, "--gpu", str(gpu))
    for gpu, (_, _, wanted) in enumerate(SAYINGS):
        wait_same(node, gpu, wanted)
    assert devices_of(node, 4).isdisjoint(taints(node))
    for gpu, (_, good, _) in enumerate(SAYINGS):
        node.simulation.run(*good, "--gpu", str(gpu))
    wait_well(node)
