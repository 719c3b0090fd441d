"""What is offered follows the hardware, the configuration and the node's labels, with no restart."""

import pytest
from support.gpunode import NODE
from support.manifests import GPU, MIG, claim, of_gpu, pod, profile, request
from support.sight import slices
from support.waiting import wait_for

LOST, UNWANTED, FOREIGN = "gpu.nvidia.com/gpu-lost", "dradriver.dev/not-offered", "dradriver.dev/foreign-mig-instance"

CONFIGS = """
apiVersion: dradriver.dev/v1alpha1
kind: NodeConfigs
configs:
  default:
    gpus: [{mig: static}]
  cut:
    gpus: [{mig: dynamic, profiles: [1g.10gb, 3g.40gb]}]
    order: nvidia
    publish: lean
"""


def tainted(node, key):
    """Devices with such a taint."""
    published = node.published()
    return {name for name, each in published.items() if any(one["key"] == key for one in each.get("taints") or ())}


def wait_offered(node, condition, what):
    wait_for(lambda: condition(set(node.published())), what, state=lambda: sorted(node.published()))


# --- hardware -------------------------------------------------------------------------------------


@pytest.fixture
def static(use_node):
    """Two GPUs in MIG mode, of which nothing is cut yet."""
    return use_node(machine="2xh100-80gb", mig="on", options=("--mig", "static"))


def test_an_instance_that_an_administrator_makes_is_offered_and_used(static, space):
    uuid = static.simulation.gpus()[0]["uuid"]
    assert static.published() == {}
    static.simulation.run("instance", "create", "3g.40gb", "--gpu", "0", "--start", "4")
    wait_offered(static, bool, "the instance to be offered")
    space.add(claim("one", request("it", MIG, of_gpu(uuid))), pod("one", claims=["one"]))
    (device,) = static.check(space.running("one")[0])["app"]
    assert device.instance["profile"] == "3g.40gb"
    space.delete("one")
    static.simulation.run("instance", "destroy", "--gpu", "0", "--all")
    wait_offered(static, lambda names: not names, "nothing to be offered")


def test_places_that_a_foreign_instance_takes_are_not_given_out(use_node, space):
    node = use_node(machine="1xh100-80gb")
    before = set(node.published())
    node.simulation.run("mig", "--gpu", "0", "on")
    node.simulation.run("instance", "create", "4g.40gb", "--gpu", "0", "--start", "0")
    wait_for(lambda: "gpu-0" in tainted(node, FOREIGN), "the whole GPU to be tainted")
    for name in ("one", "two", "three"):
        space.add(claim(name, request("it", MIG, profile("1g.10gb"))), pod(name, claims=[name]))
    found = [node.check(each)["app"][0] for each in space.running("one", "two", "three")]
    assert {device.instance["placement"]["start"] for device in found} == {4, 5, 6}
    space.delete("one", "two", "three")
    node.simulation.run("instance", "destroy", "--gpu", "0", "--all")
    wait_for(lambda: not tainted(node, FOREIGN), "all places to be free")
    assert set(node.published()) == before
    node.simulation.run("mig", "--gpu", "0", "off")


def test_a_lost_gpu_is_passed_over_and_comes_back(use_node, space):
    node = use_node(machine="2xh100-80gb", options=("--mig", "static"))
    first, second = (gpu["uuid"] for gpu in node.simulation.gpus())
    node.simulation.run("lose", "--gpu", "0")
    wait_for(lambda: tainted(node, LOST) == {"gpu-0"}, "the lost GPU to be tainted")
    space.told("Node", NODE, "GpuLost", first)
    space.add(claim("one", request("it", GPU)), pod("one", claims=["one"]))
    assert node.check(space.running("one")[0])["app"][0].uuid == second
    node.simulation.run("recover", "--gpu", "0")
    wait_for(lambda: not tainted(node, LOST), "the GPU to be as before", seconds=60)
    space.add(claim("two", request("it", GPU)), pod("two", claims=["two"]))
    assert node.check(space.running("two")[0])["app"][0].uuid == first


# --- configuration --------------------------------------------------------------------------------


@pytest.fixture
def configured(use_node, tmp_path_factory):
    """Two GPUs with a file of configurations, and the function that labels the node."""
    file = tmp_path_factory.mktemp("configs") / "configs.yaml"
    file.write_text(CONFIGS)
    node = use_node(machine="2xh100-80gb", options=("--node-config", str(file)))

    def label(key, value):
        text = f"{key}-" if value is None else f"{key}={value}"
        node.server.kubectl("label", "node", NODE, "--overwrite", text)

    yield node, file, label
    for key in ("dradriver.dev/config", "dradriver.dev/allocation"):
        label(key, None)
    node.spoilt = True


def test_a_label_chooses_another_configuration_and_claims_keep_what_they_hold(configured, space):
    node, _, label = configured
    assert set(node.published()) == {"gpu-0", "gpu-1"}
    label("dradriver.dev/config", "cut")
    wait_offered(node, lambda names: len(names) > 2, "partitions to be offered")
    lean = {"type", "profile", "parentUUID", "productName", "resource.kubernetes.io/pcieRoot"}
    device = node.published()["gpu-0-mig-3g40gb-9-4"]
    assert set(device["attributes"]) == lean
    assert set(device["capacity"]) == {"memory"}
    space.add(claim("one", request("it", MIG, profile("3g.40gb"))), pod("one", claims=["one"]))
    (held,) = node.check(space.running("one")[0])["app"]
    label("dradriver.dev/config", None)
    wait_for(lambda: len(tainted(node, UNWANTED)) == 1, "one device to be kept for its claim")
    (kept,) = tainted(node, UNWANTED)
    assert set(node.published()) == {kept, "gpu-1"}
    assert node.check(space.running("one")[0])["app"] == [held]
    space.delete("one")
    wait_offered(node, lambda names: names == {"gpu-0", "gpu-1"}, "whole GPUs to be offered")


def test_a_broken_file_keeps_what_was_good_and_is_told(configured, space):
    node, file, label = configured
    label("dradriver.dev/config", "cut")
    wait_offered(node, lambda names: len(names) > 2, "partitions to be offered")
    before = node.versions()
    file.write_text(CONFIGS.replace("mig: dynamic", "mig: sometimes"))
    said = space.told("Node", NODE, "NodeConfigurationProblem", "sometimes")
    assert str(file) in said
    assert "configs.cut.gpus[0].mig" in said
    assert node.versions() == before
    file.write_text(CONFIGS.replace("[1g.10gb, 3g.40gb]", "[1g.10gb]"))
    wait_offered(node, lambda names: not any("3g" in name for name in names), "3g.40gb to be offered no more")


def test_a_node_that_is_held_takes_no_claim_and_serves_those_it_has(configured, space):
    node, _, label = configured
    space.add(claim("one", request("it", GPU)), pod("one", claims=["one"]))
    (held,) = node.check(space.running("one")[0])["app"]
    label("dradriver.dev/allocation", "hold")
    wait_offered(node, lambda names: not names, "nothing to be offered")
    assert len(slices(node.server)) == 1
    space.add(claim("two", request("it", GPU)), pod("two", claims=["two"]))
    assert "cannot allocate all claims" in space.unschedulable("two")
    label("dradriver.dev/allocation", None)
    (other,) = node.check(space.running("two")[0])["app"]
    assert other.uuid != held.uuid
    assert node.check(space.running("one")[0])["app"] == [held]


def test_what_a_claim_holds_outlives_a_restart_with_other_flags(use_node, space):
    node = use_node(machine="2xh100-80gb")
    space.add(claim("one", request("it", MIG, profile("1g.10gb"))), pod("one", claims=["one"]))
    (held,) = node.check(space.running("one")[0])["app"]
    node.plugin.stop()
    node.start(("--mig", "static"))
    wait_for(lambda: len(tainted(node, UNWANTED)) == 1, "one device to be kept for its claim")
    assert node.check(space.running("one")[0])["app"] == [held]
    space.delete("one")
    wait_offered(node, lambda names: names == {"gpu-0", "gpu-1"}, "whole GPUs to be offered")
    assert node.simulation.instances() == set()


# --- GPUs that come and go ------------------------------------------------------------------------


def test_gpus_are_taken_out_and_put_in_without_a_restart(use_node, space):
    node = use_node(machine="3xh100-80gb", options=("--mig", "static"))
    uuids = [gpu["uuid"] for gpu in node.simulation.gpus()]
    space.add(claim("one", request("it", GPU, of_gpu(uuids[1]))), pod("one", claims=["one"]))
    space.running("one")
    node.simulation.run("unplug", "--gpu", "2")
    wait_offered(node, lambda names: names == {"gpu-0", "gpu-1"}, "the GPU that was taken out to be offered no more")
    space.told("Node", NODE, "GpuGone", uuids[2])
    node.simulation.run("unplug", "--gpu", "1")
    wait_for(lambda: tainted(node, LOST) == {"gpu-1"}, "the GPU of the claim to be tainted")
    node.simulation.run("plug", "--gpu", "1")
    node.simulation.run("plug", "--gpu", "2")
    wait_offered(node, lambda names: names == {"gpu-0", "gpu-1", "gpu-2"}, "all GPUs to be offered")
    wait_for(lambda: not tainted(node, LOST), "no GPU to be tainted")
    space.add(claim("two", request("it", GPU, of_gpu(uuids[2]))), pod("two", claims=["two"]))
    assert node.check(space.running("two")[0])["app"][0].uuid == uuids[2]


def test_another_gpu_in_the_same_place_gets_another_name_until_the_reboot(use_node):
    node = use_node(machine="2xh100-80gb", options=("--mig", "static"))
    node.simulation.run("unplug", "--gpu", "1")
    wait_offered(node, lambda names: names == {"gpu-0"}, "one GPU to be offered")
    node.simulation.run("plug", "--gpu", "1", "--replace")
    wait_offered(node, lambda names: names == {"gpu-0", "gpu-2"}, "the new GPU to be offered")
    node.accept_hardware()
    node.spoilt = True
