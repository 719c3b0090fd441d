import os

import pytest
from bench.scheduler import KINDS, LAYOUTS, NVIDIA, Cost, _followed, _judged, processor_seconds, ratios

from dradriver.resource import validate

CHEAP, DEAR = Cost(cpu=20.0, rate=40.0), Cost(cpu=50.0, rate=10.0)


def devices(slices):
    return [device for part in slices for device in part.devices]


def test_nvidia_s_layout_is_the_one_that_was_seen():
    """Sets of fifteen counters, one slice for all of them, then one for each GPU, with the whole GPU first."""
    slices = LAYOUTS[NVIDIA]()
    assert [(len(part.counter_sets), len(part.devices)) for part in slices] == [(8, 0)] + [(0, 26)] * 8
    assert {len(each.counters) for each in slices[0].counter_sets} == {15}
    names = [device.name for device in slices[1].devices]
    assert names == sorted(names)
    assert names[0] == "gpu-0"
    assert sum(len(entry.counters) for device in slices[1].devices for entry in device.consumes) == 238
    assert {len(device.capacity) for device in devices(slices)} == {7}
    assert slices[1].devices[0].consumes[0].counters == slices[0].counter_sets[0].counters


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_keep_the_rules(layout):
    slices = LAYOUTS[layout]()
    validate(slices)
    types = [device.attributes["type"] for device in devices(slices)]
    assert types.count("gpu") == 8
    assert types.count("mig") == 8 * (14 if "standard" in layout else 25)


def test_nvidia_s_layout_holds_what_ours_with_all_profiles_holds():
    theirs, own = LAYOUTS[NVIDIA](), LAYOUTS["all, full"]()
    assert {device.name for device in devices(theirs)} == {device.name for device in devices(own)}
    said = [{device.name: (device.attributes, device.capacity) for device in devices(each)} for each in (theirs, own)]
    assert said[0] == said[1]


def claim(name, *, allocated):
    return {"metadata": {"name": name}, "status": {"allocation": {}} if not allocated else {"allocation": {"a": 1}}}


def test_a_batch_counts_from_the_first_allocation_to_the_last():
    events = [claim("a", allocated=False), claim("a", allocated=True), claim("a", allocated=True)]
    cost = _followed(iter([*events, claim("b", allocated=True), claim("c", allocated=True)]), os.getpid(), pods=2)
    assert cost.cpu >= 0
    assert cost.rate > 0


def test_a_batch_that_does_not_end_is_told():
    with pytest.raises(TimeoutError, match="1 of 2 claims"):
        _followed(iter([claim("a", allocated=True)]), os.getpid(), pods=2)


def test_processor_time_is_that_of_the_kernel():
    assert processor_seconds(os.getpid()) == pytest.approx(sum(os.times()[:2]), abs=0.05)


def test_ratios_compare_within_a_cycle_and_aims_their_median():
    found = {
        NVIDIA: {kind: [DEAR, CHEAP, DEAR] for kind in KINDS},
        "standard, full": {kind: [CHEAP, CHEAP, DEAR] for kind in KINDS},
        "standard, lean": {kind: [CHEAP, Cost(cpu=8.0, rate=1.0), CHEAP] for kind in KINDS},
    }
    assert ratios(found, "standard, full", "1g") == pytest.approx([0.4, 1.0, 1.0])
    assert _judged("standard, full", found)[2] == "1.00 missed"
    assert _judged("standard, lean", found)[2] == "0.40 met"
