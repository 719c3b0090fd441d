from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.resource import (
    CounterConsumption,
    CounterSet,
    Device,
    RequestPolicy,
    Slice,
    Taint,
    Version,
    same_content,
    slice_spec,
)
from dradriver.resource.wire import carry_times, parse_quantity, quantity

POOL = {"name": "node-a", "generation": 1, "resourceSliceCount": 2}
GPU = Device(
    name="gpu-0",
    attributes={"type": "gpu", "index": 3, "healthy": True, "driverVersion": Version("580.105.8")},
    capacity={"memory": 85899345920, "decoders": 7},
    consumes=(CounterConsumption(counter_set="gpu-0-counter-set", counters={"memory-slice-0": 1}),),
    taints=(Taint(key="gpu.nvidia.com/xid", value="79", effect="NoSchedule"),),
)


def spec(*devices, generation=1):
    return slice_spec(
        Slice(devices=devices), driver="gpu.nvidia.com", node_name="node-a", pool={**POOL, "generation": generation}
    )


def test_a_device_becomes_the_json_of_the_api():
    assert spec(GPU) == {
        "driver": "gpu.nvidia.com",
        "nodeName": "node-a",
        "pool": POOL,
        "devices": [
            {
                "name": "gpu-0",
                "attributes": {
                    "type": {"string": "gpu"},
                    "index": {"int": 3},
                    "healthy": {"bool": True},
                    "driverVersion": {"version": "580.105.8"},
                },
                "capacity": {"memory": {"value": "80Gi"}, "decoders": {"value": "7"}},
                "consumesCounters": [
                    {"counterSet": "gpu-0-counter-set", "counters": {"memory-slice-0": {"value": "1"}}}
                ],
                "taints": [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}],
            }
        ],
    }


def test_counter_sets_stand_alone_in_their_slice():
    content = Slice(counter_sets=(CounterSet(name="a", counters={"memory-slice-0": 1}),))
    written = slice_spec(content, driver="d", node_name="n", pool=POOL)
    assert written["sharedCounters"] == [{"name": "a", "counters": {"memory-slice-0": {"value": "1"}}}]
    assert "devices" not in written


def test_an_empty_slice_has_neither_list():
    written = slice_spec(Slice(), driver="d", node_name="n", pool=POOL)
    assert set(written) == {"driver", "nodeName", "pool"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (1000, "1k"),
        (1024, "1Ki"),
        (1500, "1500"),
        (10468982784, "9984Mi"),
        (85899345920, "80Gi"),
        (3_000_000, "3M"),
    ],
)
def test_quantities_are_written_canonically(value, text):
    assert quantity(value) == text


@given(st.integers(min_value=0, max_value=2**60))
def test_quantities_survive_the_round_trip(value):
    assert parse_quantity(quantity(value)) == value


@pytest.mark.parametrize(
    ("text", "value"), [("1.5Gi", 1610612736), ("500m", Decimal("0.5")), ("1e3", 1000), ("12E", 12 * 10**18)]
)
def test_quantities_of_others_are_read(text, value):
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "80GB", "Gi", "1.2.3", "x", "1ee3"])
def test_what_is_no_quantity_is_told(text):
    with pytest.raises(ValueError, match="is not a Kubernetes quantity"):
        parse_quantity(text)


def test_generation_and_quantity_spelling_are_no_difference():
    observed = spec(GPU, generation=7)
    observed["devices"][0]["capacity"]["memory"]["value"] = "81920Mi"
    assert same_content(observed, spec(GPU))


def test_a_time_the_server_added_is_no_difference():
    observed = spec(GPU)
    observed["devices"][0]["taints"][0]["timeAdded"] = "2026-11-30T10:00:00Z"
    assert same_content(observed, spec(GPU))


@pytest.mark.parametrize(
    "change",
    [
        lambda device: device.pop("consumesCounters"),
        lambda device: device.pop("taints"),
        lambda device: device["attributes"].pop("type"),
        lambda device: device["attributes"].update(type={"string": "mig"}),
        lambda device: device["capacity"]["memory"].update(value="79Gi"),
        lambda device: device["taints"][0].update(effect="None"),
        lambda device: device.update(name="gpu-1"),
    ],
)
def test_every_other_difference_is_seen(change):
    observed = spec(GPU)
    change(observed["devices"][0])
    assert not same_content(observed, spec(GPU))


def test_the_order_of_devices_is_a_difference():
    other = Device(name="gpu-1")
    assert not same_content(spec(other, GPU), spec(GPU, other))


def test_a_known_time_is_carried_over_for_the_same_taint_only():
    observed = spec(GPU)
    observed["devices"][0]["taints"][0]["timeAdded"] = "2026-11-30T10:00:00Z"
    carried = carry_times(spec(GPU), [observed])
    assert carried["devices"][0]["taints"][0]["timeAdded"] == "2026-11-30T10:00:00Z"
    changed = spec(GPU)
    changed["devices"][0]["taints"][0]["value"] = "48"
    assert "timeAdded" not in carry_times(changed, [observed])["devices"][0]["taints"][0]


# --- shares ---------------------------------------------------------------------------------------

SHARED = Device(
    name="gpu-0",
    capacity={"memory": 80 << 30, "shares": 4},
    policies={"memory": RequestPolicy(default=0), "shares": RequestPolicy(default=1, least=1)},
)


def test_a_shared_device_says_what_a_claim_takes_of_each_capacity():
    assert spec(SHARED)["devices"] == [
        {
            "name": "gpu-0",
            "allowMultipleAllocations": True,
            "capacity": {
                "memory": {"value": "80Gi", "requestPolicy": {"default": "0"}},
                "shares": {
                    "value": "4",
                    "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "4", "step": "1"}},
                },
            },
        }
    ]
    assert SHARED.shared
    assert not GPU.shared
    assert "allowMultipleAllocations" not in spec(GPU)["devices"][0]


@pytest.mark.parametrize(("shares", "has_range"), [(1, False), (2, True), (3, True)])
def test_a_range_has_room_for_a_second_step(shares, has_range):
    """The API server refuses one that has not, and all of the slice with it."""
    device = replace(SHARED, capacity={"memory": 80 << 30, "shares": shares})
    policy = spec(device)["devices"][0]["capacity"]["shares"]["requestPolicy"]
    assert policy["default"] == "1"
    assert ("validRange" in policy) == has_range


def test_the_spelling_of_a_policy_is_no_difference():
    observed = spec(SHARED)
    capacity = observed["devices"][0]["capacity"]
    capacity["memory"]["value"] = "81920Mi"
    capacity["memory"]["requestPolicy"]["default"] = "0k"
    capacity["shares"]["requestPolicy"]["validRange"]["max"] = "4000m"
    assert same_content(observed, spec(SHARED))


@pytest.mark.parametrize(
    "change",
    [
        lambda device: device.pop("allowMultipleAllocations"),
        lambda device: device["capacity"]["memory"].pop("requestPolicy"),
        lambda device: device["capacity"]["memory"].update(value="79Gi"),
        lambda device: device["capacity"]["shares"]["requestPolicy"].update(default="2"),
        lambda device: device["capacity"]["shares"]["requestPolicy"].pop("validRange"),
        lambda device: device["capacity"]["shares"]["requestPolicy"]["validRange"].update(step="2"),
    ],
)
def test_every_difference_of_shares_is_seen(change):
    observed = spec(SHARED)
    change(observed["devices"][0])
    assert not same_content(observed, spec(SHARED))
