"""Devices that several pods can have at once, through plain extended names, by a real scheduler."""

from collections import Counter

import pytest
from support.bridging import bridge
from support.yard import Yard, gpu

from dradriver.kube import RESOURCE_CLAIMS


@pytest.fixture
def yard(admin):
    made = Yard(admin)
    yield made
    made.close()


def shared(name, product, shares):
    """A GPU that pods get under a name of its own."""
    device = gpu(name, product, allowMultipleAllocations=True)
    device["attributes"] |= {"sharing": {"string": "time-slicing"}, "renamed": {"bool": True}}
    policy = {"default": "1", "validRange": {"min": "1", "max": str(shares), "step": "1"}}
    device["capacity"] = {"shares": {"value": str(shares), "requestPolicy": policy}}
    return device


def test_shares_are_what_is_counted(controllers, yard, admin):
    yard.add_node(*(shared(f"gpu-{number}", yard.name, 4) for number in range(2)), gpu("gpu-2", yard.name))
    controllers.start()
    plain, renamed = f"{yard.name}-plain", yard.name
    controllers.add(
        bridge(plain, f"{yard.resource}-plain", select=yard.select | {"renamed": False}),
        bridge(renamed, yard.resource, select=yard.select | {"sharing": "time-slicing", "renamed": True}),
    )
    controllers.wait_counts(plain, published=1, allocatable=1)
    controllers.wait_counts(renamed, published=8, allocatable=8, allocated=0)
    yard.add_pod("two", 2)
    yard.wait_placed("two")
    controllers.wait_counts(renamed, published=8, allocatable=6, allocated=2)
    for number in range(6):
        yard.add_pod(f"one-{number}")
        yard.wait_placed(f"one-{number}")
    controllers.wait_counts(renamed, published=8, allocatable=0, allocated=8)
    yard.add_pod("three", 3)
    yard.add_pod("ninth")
    note = yard.told("three", "TooManyDevices")
    assert note == (
        f"a container asks for 3 of {yard.resource}, which have to be different devices, and no node has more than 2, "
        "though each can be shared; ask for less"
    )
    note = yard.told("ninth", "NoDeviceFree")
    assert "no node has so many free: of 8 on 1 node 8 are allocated;" in note
    claims = [each for each in admin.list(RESOURCE_CLAIMS).items if each["metadata"]["namespace"] == yard.name]
    results = [result for each in claims for result in each["status"]["allocation"]["devices"]["results"]]
    assert Counter(result["device"] for result in results) == {"gpu-0": 4, "gpu-1": 4}
    assert all(result["shareID"] and "shares" in str(result["consumedCapacity"]) for result in results)
    yard.remove_pod("two")
    yard.wait_placed("ninth")
    controllers.wait_counts(renamed, allocatable=1, allocated=7)
    controllers.wait_counts(plain, published=1, allocatable=1, allocated=0)
