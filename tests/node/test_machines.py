"""Other GPUs than those of the demo: their slices are accepted, and a pod gets what they have."""

import pytest
from support.manifests import ANY, GPU, MIG, claim, pod, request
from support.sight import slices

MACHINES = {
    # machine: (MIG mode, whole GPUs offered, partitions offered)
    "2xa30": ("on", 0, 2 * 7),
    "2xa100-80gb": ("on", 0, 2 * 14),
    "16xh200": ("off", 16, 16 * 14),
    "2xgb200": ("on", 2, 2 * 14),
    "2xrtx-pro-6000": ("off", 2, 2 * 7),
    "4xl4": ("off", 4, 0),
    "1xt4": ("off", 1, 0),
    "1xgb10": ("off", 1, 0),
}
MIXTURE = """
driver: "570.86.15"
gpus:
  - {gpu: t4, count: 2}
  - {gpu: h100-80gb, mig: true, numa: 1}
  - {gpu: a100-80gb, mig: true}
  - {gpu: gb10}
"""


def counts(node):
    kinds = [each["attributes"]["type"]["string"] for each in node.published().values()]
    return kinds.count("gpu"), kinds.count("mig")


def expect_limits(node):
    """What the API server checks too; said here, it tells which machine would need another layout."""
    found = [each["spec"] for each in slices(node.server)]
    assert all(len(each.get("devices", ())) <= 64 and len(each.get("sharedCounters", ())) <= 8 for each in found)


def run(node, space, name, device_class):
    space.add(claim(name, request("it", device_class)), pod(name, claims=[name]))
    return node.check(space.running(name)[0])["app"][0]


@pytest.mark.parametrize(
    ("machine", "mig", "whole", "partitions"), [(k, *v) for k, v in MACHINES.items()], ids=MACHINES
)
def test_machine(machine, mig, whole, partitions, use_node, space):
    node = use_node(machine=machine, mig=mig)
    assert counts(node) == (whole, partitions)
    expect_limits(node)
    if partitions:
        assert run(node, space, "cut", MIG).instance is not None
        space.delete("cut")
    if whole:
        assert run(node, space, "whole", GPU).instance is None


def test_a_mixture(use_node, space):
    node = use_node(machine=MIXTURE)
    whole, partitions = counts(node)
    assert (whole, partitions) == (2 + 1 + 1, 14 + 14)
    devices = [run(node, space, f"any-{index}", ANY) for index in range(3)]
    devices.append(run(node, space, "gpu", GPU))
    models = [(device.gpu["model"], device.instance is None) for device in devices]
    # What cannot be partitioned is never taken where a partition suffices, and first where it does not.
    assert models == [("h100-80gb", False)] * 3 + [("t4", True)]


def test_a_mixture_that_is_static(use_node, space):
    before = (("instance", "create", "2g.20gb", "--gpu", "3"),)
    node = use_node(machine=MIXTURE, before=before, options=("--mig", "static"))
    assert counts(node) == (3, 1)
    assert run(node, space, "cut", MIG).instance["profile"] == "2g.20gb"
    assert run(node, space, "whole", GPU).instance is None
