import pytest

from controller.pending.names import alike

KNOWN = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/mig-7g.80gb",
    "example.com/fpga",
)


@pytest.mark.parametrize(
    "name", ["nvidia.com/gpuu", "nvidia.com/gup", "nvidia.com/GPU", "nvida.com/gpu", "amd.com/gpu"]
)
def test_a_slip_in_a_short_name(name):
    assert alike(name, KNOWN) == ["nvidia.com/gpu"]


def test_the_domain_makes_no_name_alike():
    assert alike("nvidia.com/x", KNOWN) == []
    assert alike("nvidia.com/nvidia", KNOWN) == []


def test_partitions_are_suggested_for_partitions():
    assert alike("nvidia.com/mig-7g.8gb", KNOWN) == ["nvidia.com/mig-7g.80gb", "nvidia.com/mig-1g.10gb"]
    assert alike("nvidia.com/mig-7g.80gb", ("nvidia.com/mgi-7g.80gb", "nvidia.com/mig-1g.10gb")) == [
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mgi-7g.80gb",
    ]


def test_a_few_only():
    assert len(alike("nvidia.com/mig-1g.10gb", [f"nvidia.com/mig-{number}g.10gb" for number in range(9)])) == 3
