"""Claims get on, whatever happens to pods, claims, records, partitions, the plugin and the kubelet."""

import signal
from contextlib import contextmanager

import pytest
from support import hasty, processes
from support.gpunode import NODE
from support.manifests import GPU, MIG, claim, container, of_gpu, pod, profile, request
from support.waiting import wait_for

CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
SMALL = profile("1g.10gb")
LINGERING = {"preStop": {"exec": {"command": ["sleep", "5"]}}}
"""A container that takes its time to end."""


def hold(space, name, *cel, device_class=MIG, **spec):
    """Run a pod with a claim of its own."""
    space.add(claim(name, request("it", device_class, *cel)), pod(name, claims=[name], **spec))
    return space.running(name)[0]


def gpu_of(node, index):
    return node.simulation.gpus()[index]["uuid"]


@contextmanager
def failing(node, *fault):
    """Let an NVML call fail for a while."""
    node.simulation.run("fail", *fault)
    try:
        yield
    finally:
        node.simulation.run("fail", fault[0], "--clear")


@pytest.fixture
def hasty_node(node):
    """The node, with a plugin whose reconciler is in a hurry."""
    node.plugin.stop()
    node.start(program=hasty.PROGRAM)
    yield node
    if node.plugin.running:
        node.plugin.stop()


# --- claims of one pod -------------------------------------------------------------------------------------


def opaque(body, parameters):
    """Give a claim a config."""
    body["spec"]["devices"]["config"] = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}]
    return body


def test_one_claim_of_a_pod_fails_on_the_hardware_and_works_later(node, space):
    good, bad = (request("it", MIG, SMALL, of_gpu(gpu_of(node, index))) for index in (0, 1))
    with failing(node, CREATE, "--error", "UNKNOWN", "--gpu", "1"):
        space.add(claim("good", good), claim("bad", bad), pod("both", claims=["good", "bad"]))
        message = space.event("both", "FailedPrepareDynamicResources", f"claim {space.name}/bad|ResourceClaim bad")
        assert "good" not in message
        assert CREATE in space.told("ResourceClaim", "bad", "FailedPrepare")
        # Only what is prepared stays: nothing on the GPU that refused.
        assert {uuid for uuid, _, _ in node.simulation.instances()} == {gpu_of(node, 0)}
    space.wake("both")
    devices = node.check(space.running("both")[0])["app"]
    assert [device.gpu["uuid"] for device in devices] == [gpu_of(node, 0), gpu_of(node, 1)]


def test_one_claim_of_a_pod_fails_for_good_and_the_other_is_released_with_the_pod(node, space):
    wrong = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "MigDeviceConfig", "turbo": True}
    space.add(
        claim("good", request("it", MIG, SMALL)),
        opaque(claim("bad", request("it", MIG, SMALL)), wrong),
        pod("both", claims=["good", "bad"]),
    )
    space.event("both", "FailedPrepareDynamicResources", "(?s)bad.*turbo")
    assert "turbo" in space.told("ResourceClaim", "bad", "FailedPrepare")
    assert len(node.simulation.instances()) == 1
    space.delete("both")
    node.wait_clean()
    assert space.claim("good")


def test_the_status_of_a_claim_names_its_devices(node, space):
    space.add(
        claim("it", request("part", MIG, SMALL), request("whole", GPU)),
        pod("it", container("app", "it"), claims=["it"]),
    )
    part, whole = node.check(space.running("it")[0])["app"]
    told = wait_for(lambda: space.claim("it")["status"].get("devices"), "the devices in the status of the claim")
    ready = {entry["device"]: [each["status"] for each in entry["conditions"]] for entry in told}
    assert ready == {part.name: ["True"], whole.name: ["True"]}
    data = {entry["device"]: entry["data"] for entry in told}
    assert data[whole.name]["uuid"] == whole.uuid
    assert (data[part.name]["uuid"], data[part.name]["parentUUID"]) == (part.uuid, part.gpu["uuid"])


# --- one device, one pod after another ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [((GPU,), (GPU,)), ((MIG, profile("7g.80gb")), (MIG, SMALL)), ((MIG, SMALL), (GPU,))],
    ids=["whole-whole", "all-part", "part-whole"],
)
def test_a_pod_deleted_by_force_and_its_successor_on_the_device(first, second, node, space):
    uuid = gpu_of(node, 3)
    lingering = container("app", "old") | {"lifecycle": LINGERING}
    space.add(
        claim("old", request("it", *first, of_gpu(uuid))),
        pod("old", lingering, claims=["old"], terminationGracePeriodSeconds=20),
    )
    (old,) = space.running("old")
    space.server.delete("Pod", "old", namespace=space.name, grace=0)
    space.gone("old")
    assert processes.of_pod(old), "the kubelet was faster than the test"
    space.add(claim("new", request("it", *second, of_gpu(uuid))), pod("new", claims=["new"]))
    new = space.pod("new")
    wait_for(lambda: processes.of_pod(new), "the successor to start", state=space.story)
    assert not processes.of_pod(old), "both are on the device"
    (device,) = node.check(space.running("new")[0])["app"]
    assert device.gpu["uuid"] == uuid
    # A failed attempt would have cost it a minute.
    assert space.failures("new") == []


def forgotten(node, space, name):
    """Let the kubelet forget a claim whose pod and API object go while the plugin is away."""
    body = space.claim(name)
    # In order: a kubelet that starts beside a dead socket registers its successor twice, and may lose a call by that.
    node.plugin.stop()
    space.server.delete("Pod", name, namespace=space.name, grace=0)
    space.gone(name)
    space.server.delete("ResourceClaim", name, namespace=space.name)
    wait_for(lambda: space.server.find("ResourceClaim", name, namespace=space.name) is None, "the claim to be gone")
    node.cluster.stop("kubelet", node=NODE, kill=True)
    (node.cluster.folder / "nodes" / NODE / "kubelet" / "dra_manager_state").unlink()
    node.cluster.start("kubelet", node=NODE)
    assert node.record(body).exists()


def test_a_claim_deleted_while_the_plugin_is_away_is_released_by_the_kubelet(node, space):
    hold(space, "it", SMALL)
    node.plugin.stop(signal.SIGKILL)
    space.server.delete("Pod", "it", namespace=space.name, grace=0)
    space.server.delete("ResourceClaim", "it", namespace=space.name)
    wait_for(lambda: space.server.find("ResourceClaim", "it", namespace=space.name) is None, "the claim to be gone")
    assert node.simulation.instances()
    node.start()
    # The kubelet asks again every quarter of a minute.
    wait_for(lambda: not node.leftovers(), "the claim to be released", state=node.leftovers)


def test_a_claim_that_the_kubelet_has_forgotten_is_released_by_the_plugin(node, space):
    hold(space, "it", SMALL)
    forgotten(node, space, "it")
    assert node.simulation.instances()
    node.start(program=hasty.PROGRAM)
    space.told("ResourceClaim", "it", "ReleasedStaleClaim")
    node.wait_clean()
    node.plugin.stop()


def test_a_device_that_the_kubelet_has_forgotten_goes_to_who_needs_it(node, space):
    uuid = gpu_of(node, 2)
    hold(space, "old", of_gpu(uuid), device_class=GPU)
    forgotten(node, space, "old")
    node.start()
    hold(space, "new", of_gpu(uuid), SMALL)
    assert space.failures("new") == []


def test_a_partition_in_use_is_told_of_and_released_when_it_is_free(node, space):
    (device,) = node.check(hold(space, "it", SMALL))["app"]
    index = str(device.gpu["index"])
    node.simulation.run("process", "add", "4711", "--uuid", device.uuid, "--gpu", index)
    space.server.delete("Pod", "it", namespace=space.name, grace=1)
    # The call gives up after the kubelet's 45 s.
    assert "4711" in space.told("Pod", "it", "FailedUnprepare", "4711")
    assert "4711" in space.told("ResourceClaim", "it", "FailedUnprepare", "4711")
    assert node.simulation.instances()
    node.simulation.run("process", "remove", "4711", "--gpu", index)
    space.wake("it")
    space.gone("it")
    node.wait_clean()


# --- records and partitions --------------------------------------------------------------------------------


DAMAGES = {"garbage": "\x00{", "empty": "", "another": '{"version": 1}'}


@pytest.mark.parametrize("text", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_record_of_a_running_pod(text, node, space):
    before = hold(space, "it", SMALL)
    seen, record = node.check(before), node.record(space.claim("it"))
    node.plugin.stop()
    record.write_text(text)
    node.start()
    message = space.told("Node", NODE, "RecordDamaged", record.stem)
    aside = record.parent / "quarantine"
    assert str(aside) in message
    assert [path.name for path in aside.iterdir()] == [record.name]
    assert node.check(space.pod("it")) == seen
    assert space.pod("it")["status"]["containerStatuses"] == before["status"]["containerStatuses"]
    space.delete("it")
    (aside / record.name).unlink()
    aside.rmdir()
    node.wait_clean()


@pytest.mark.parametrize("running", [True, False], ids=["while-running", "while-away"])
def test_a_deleted_record_of_a_running_pod(running, node, space):
    seen = node.check(hold(space, "it", SMALL))
    if running:
        node.record(space.claim("it")).unlink()
    else:
        node.plugin.stop()
        node.record(space.claim("it")).unlink()
        node.start()
    assert node.check(space.pod("it")) == seen
    second = node.check(hold(space, "second", SMALL))["app"]
    assert second != seen["app"]
    space.delete("it", "second")
    node.wait_clean()


def with_foreign(node, index):
    """Make an instance as an administrator would; gives what tells of it."""
    node.simulation.run("mig", "on", "--gpu", str(index))
    node.simulation.run("instance", "create", "1g.10gb", "--start", "6", "--gpu", str(index))
    gpu = node.simulation.gpus()[index]
    (instance,) = gpu["instances"]
    return gpu["uuid"], instance["compute_instances"][0]["uuid"]


def without_foreign(node, index):
    node.simulation.run("instance", "destroy", "--all", "--gpu", str(index))
    node.simulation.run("mig", "off", "--gpu", str(index))


def test_an_instance_of_somebody_else_is_told_of_and_left_alone(hasty_node, space):
    uuid, instance = with_foreign(hasty_node, 7)
    assert instance in space.told("Node", NODE, "ForeignMigInstance", instance)
    space.add(claim("it", request("it", GPU, of_gpu(uuid))), pod("it", claims=["it"]))
    assert "cannot allocate all claims" in space.unschedulable("it"), "the whole GPU is tainted"
    beside = hasty_node.check(hold(space, "beside", of_gpu(uuid), profile("3g.40gb")))["app"][0]
    assert beside.gpu["uuid"] == uuid
    space.delete("beside")
    assert [each["compute_instances"][0]["uuid"] for each in hasty_node.simulation.gpu(uuid)["instances"]] == [instance]
    without_foreign(hasty_node, 7)
    assert hasty_node.check(space.running("it")[0])["app"][0].uuid == uuid, "it was waited for"


def test_an_instance_of_nobody_is_destroyed_where_that_is_wanted(node, space):
    seen = node.check(hold(space, "it", SMALL))
    uuid, instance = with_foreign(node, 7)
    node.plugin.stop()
    node.start(["--mig", "dynamic", "--reclaim-unknown-mig", "true"], program=hasty.PROGRAM)
    assert "destroyed" in space.told("Node", NODE, "ForeignMigInstance", f"{instance}.*destroyed")
    assert node.simulation.gpu(uuid)["instances"] == []
    assert node.check(space.pod("it")) == seen
    space.delete("it")
    node.simulation.run("mig", "off", "--gpu", "7")


# --- the kubelet and the machine ---------------------------------------------------------------------------


def test_the_kubelet_is_killed_while_a_claim_is_being_prepared(node, space):
    node.simulation.run("latency", CREATE, "3000")
    try:
        space.add(claim("it", request("it", MIG, SMALL)), pod("it", claims=["it"]))
        wait_for(lambda: list(node.records.glob("*.json")), "the claim to be begun", state=space.story)
        node.restart_kubelet(kill=True)
        node.check(space.running("it")[0])
        assert len(node.simulation.instances()) == 1
    finally:
        node.simulation.run("latency", CREATE, "0")


def reboot(node, *pods):
    """Lose power: processes, partitions and what lies in memory are gone; disks stay."""
    node.cluster.stop("kubelet", node=NODE, kill=True)
    node.plugin.stop(signal.SIGKILL)
    for each in pods:
        processes.kill(each)
    for spec in node.specs.iterdir():
        spec.unlink()
    node.simulation.run("reboot")
    assert not node.simulation.instances()


def restarted(space, before):
    """Wait until a pod's containers run again; gives the pod."""
    name, old = before["metadata"]["name"], container_ids(before)

    def again():
        now = space.pod(name)
        space.failures(name)
        states = now["status"]["containerStatuses"]
        return now if all(each["ready"] for each in states) and not old & container_ids(now) else None

    return wait_for(again, f"the containers of pod {name} to run again", state=space.story)


def container_ids(body):
    return {each.get("containerID") for each in body["status"]["containerStatuses"]}


@pytest.mark.parametrize("first", ["plugin", "kubelet"])
def test_the_machine_reboots(first, node, space):
    before = [hold(space, "part", SMALL), hold(space, "big", profile("3g.40gb")), hold(space, "gpu", device_class=GPU)]
    uuids = [node.check(each)["app"][0].uuid for each in before]
    reboot(node, *before)
    if first == "plugin":
        node.plugin.start()
        node.cluster.start("kubelet", node=NODE)
        node.plugin.wait_ready()
    else:
        node.cluster.start("kubelet", node=NODE)
        node.start()
    for each in before:
        space.wake(each["metadata"]["name"])
    devices = [node.check(restarted(space, each))["app"][0] for each in before]
    assert devices[2].uuid == uuids[2]
    assert devices[0].uuid != uuids[0]
    assert len(node.simulation.instances()) == 2
    space.delete("part", "big", "gpu")
    node.wait_clean()
