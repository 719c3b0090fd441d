"""How MIG is offered: as it is, in every possible cut, or not at all."""

import pytest
from support.manifests import ANY, GPU, MIG, claim, pod, profile, request
from support.waiting import wait_for

MIXED = """
gpus:
  - {gpu: h100-80gb, mig: true}
  - {gpu: h100-80gb, mig: true}
  - {gpu: h100-80gb, mig: false}
"""
MADE = (
    ("instance", "create", "3g.40gb", "--gpu", "0", "--start", "4"),
    ("instance", "create", "1g.10gb", "--gpu", "0", "--start", "0"),
)


@pytest.fixture
def static(use_node):
    """A node that an administrator has cut: two instances on the first GPU, none on the second, the third whole."""
    return use_node(machine=MIXED, before=MADE, options=("--mig", "static"))


def uuids(node):
    return {
        compute["uuid"]
        for gpu in node.simulation.gpus()
        for each in gpu["instances"]
        for compute in each["compute_instances"]
    }


def test_static_offers_what_is_there(static):
    published = static.published()
    kinds = sorted(each["attributes"]["type"]["string"] for each in published.values())
    assert kinds == ["gpu", "mig", "mig"]
    offered = {each["attributes"]["uuid"]["string"] for each in published.values()}
    assert offered == {*uuids(static), static.simulation.gpus()[2]["uuid"]}
    assert not any("consumesCounters" in each for each in published.values())


@pytest.mark.parametrize("wish", ["1g.10gb", "3g.40gb"])
def test_a_static_instance_outlives_its_pod(wish, static, space):
    before = uuids(static)
    for name in ("one", "two"):
        space.add(claim(name, request("it", MIG, profile(wish))), pod(name, claims=[name]))
        (device,) = static.check(space.running(name)[0])["app"]
        assert device.instance["profile"] == wish
        space.delete(name)
        static.wait_clean()
    assert uuids(static) == before


def test_static_instances_run_out(static, space):
    for name in ("one", "two", "three", "four"):
        space.add(claim(name, request("it", ANY)), pod(name, claims=[name]))
    assert "cannot allocate all claims" in wait_for_one_left(static, space)


def wait_for_one_left(node, space):
    """Three pods run, one does not; which one is the scheduler's choice."""
    names = {each["metadata"]["name"] for each in space.pods()}
    running = {name for name in names if pod_has_node(space, name)}
    (left,) = names - running
    for each in space.running(*running):
        node.check(each)
    return space.unschedulable(left)


def pod_has_node(space, name):
    def decided():
        conditions = space.pod(name)["status"].get("conditions", ())
        return next((each for each in conditions if each["type"] == "PodScheduled"), None)

    return wait_for(decided, f"a decision on pod {name}", state=space.story)["status"] == "True"


def test_a_whole_gpu_beside_static_instances(static, space):
    space.add(claim("gpu", request("it", GPU)), pod("gpu", claims=["gpu"]))
    (device,) = static.check(space.running("gpu")[0])["app"]
    assert device.uuid == static.simulation.gpus()[2]["uuid"]


def test_off_offers_gpus_without_mig_only(use_node, space):
    node = use_node(machine=MIXED, before=MADE, options=("--mig", "off"))
    (offered,) = node.published().values()
    whole = node.simulation.gpus()[2]["uuid"]
    assert offered["attributes"]["uuid"]["string"] == whole
    space.add(
        claim("gpu", request("it", ANY)),
        claim("mig", request("it", MIG)),
        pod("gpu", claims=["gpu"]),
        pod("mig", claims=["mig"]),
    )
    assert node.check(space.running("gpu")[0])["app"][0].uuid == whole
    space.unschedulable("mig")


PROFILES = {
    "standard": {"1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"},
    "all": {"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"},
    "1g.20gb,3g.40gb": {"1g.20gb", "3g.40gb"},
}


@pytest.mark.parametrize(("choice", "expected"), PROFILES.items(), ids=PROFILES)
def test_dynamic_offers_the_profiles_it_was_told(choice, expected, use_node, space):
    node = use_node(machine="1xh100-80gb", options=("--mig", "dynamic", "--profiles", choice))
    attributes = [each["attributes"] for each in node.published().values()]
    assert {each["profile"]["string"] for each in attributes if "profile" in each} == expected
    for index, name in enumerate(sorted(expected, key=len)[-1:]):
        space.add(claim(f"it-{index}", request("it", MIG, profile(name))), pod(f"it-{index}", claims=[f"it-{index}"]))
        assert node.check(space.running(f"it-{index}")[0])["app"][0].instance["profile"] == name
