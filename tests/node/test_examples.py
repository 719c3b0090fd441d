"""Every manifest that we show to users, and what its containers see."""

import pytest
from support.cluster import REPOSITORY

NOT_PODS = {"node-config"}
"""Examples for administrators; their own tests look at them."""
EXAMPLES = sorted(path for path in (REPOSITORY / "deploy/examples").glob("*.yaml") if path.stem not in NOT_PODS)

EXPECTED = {
    "any-30gib": {"any-30gib": {"app": ["3g.40gb"]}},
    "limits": {"limits-gpu": {"app": ["whole"]}, "limits-mig": {"app": ["1g.10gb"]}},
    "same-gpu": {"same-gpu": {"first": ["1g.10gb"], "second": ["1g.10gb"]}},
    "shared-claim": {"shared-claim": {"one": ["2g.20gb"], "other": ["2g.20gb"]}},
    "small-partitions": {"small-1": {"app": ["1g.10gb"]}, "small-2": {"app": ["1g.10gb"]}},
    "whole-gpu": {"whole-gpu": {"app": ["whole"]}},
}
"""File to pod to container to its devices: the profile of a partition, or `whole`."""

DISTINCT = {"any-30gib": 1, "limits": 2, "same-gpu": 2, "shared-claim": 1, "small-partitions": 2, "whole-gpu": 1}
"""How many different devices that takes."""


BRIDGED = {"limits"}
"""Files whose pods ask for extended resources."""


@pytest.fixture
def bridged(node, controllers, keeper):
    """The controller and the bridges that README.md tells users to make."""
    controllers.start("--discover-mig-profiles", "Enabled")
    keeper.server.kubectl("apply", "-f", str(REPOSITORY / "deploy/bridges"))
    for name in ("gpu", "mig-1g.10gb"):
        controllers.wait_reason(name, "Serving")


def kinds(devices):
    return ["whole" if device.instance is None else device.instance["profile"] for device in devices]


def test_every_example_is_expected_here():
    assert {path.stem for path in EXAMPLES} == set(EXPECTED)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.stem)
def test_example(file, node, space, request):
    if file.stem in BRIDGED:
        request.getfixturevalue("bridged")
    names = space.apply(file)
    seen = {pod["metadata"]["name"]: node.check(pod) for pod in space.running(*names)}
    assert {
        name: {container: kinds(devices) for container, devices in containers.items()}
        for name, containers in seen.items()
    } == EXPECTED[file.stem]
    assert (
        len({device.uuid for each in seen.values() for devices in each.values() for device in devices})
        == DISTINCT[file.stem]
    )
    space.delete(*names)
    node.wait_clean()


def test_the_pair_of_one_claim_lies_on_one_gpu(node, space):
    (name,) = space.apply(REPOSITORY / "deploy/examples/same-gpu.yaml")
    seen = node.check(space.running(name)[0])
    first, second = seen["first"][0], seen["second"][0]
    assert first.gpu["uuid"] == second.gpu["uuid"]
    assert first.uuid != second.uuid


def test_all_examples_beside_each_other(node, space, bridged):
    for file in EXAMPLES:
        names = space.apply(file)
    pods = space.running(*names)
    claims = [node.check(pod) for pod in pods]
    assert len(claims) == sum(map(len, EXPECTED.values()))
    partitions = [
        (gpu["uuid"], each["placement"]["start"]) for gpu in node.simulation.gpus() for each in gpu["instances"]
    ]
    assert len(partitions) == 7
