"""Whose program an error was: which partition a report names, and which claims hold it."""

from dataclasses import replace

import pytest

from dradriver.gpu.health import Place
from dradriver.gpu.model import Gpu, MigInstance, Placement
from dradriver.offering.holders import allocated, claims_of, handed, place_of, recorded, shares
from dradriver.prepare.plan import Plan, PlannedDevice
from dradriver.prepare.records import Made, Record, State

FIRST, SECOND = Placement(start=0, size=1), Placement(start=4, size=4)
HERE, THERE = Place(profile_id=19, placement=FIRST), Place(profile_id=9, placement=SECOND)


def planned(device="gpu-0", gpu="GPU-0", place=None, **fields):
    at = {} if place is None else {"profile_id": place.profile_id, "placement": place.placement}
    return PlannedDevice(requests=("r",), pool="node-a", device=device, gpu_uuid=gpu, **at, **fields)


def record(uid, *devices, boot_id="now", **made):
    plan = Plan(uid=uid, namespace="ns", name=uid, devices=devices)
    return Record(boot_id=boot_id, state=State.PREPARED, plan=plan, made=made)


def made(instance_id):
    return Made(gpu_instance_id=instance_id, compute_instance_id=0, uuid=f"MIG-{instance_id}")


def gpu(*instances):
    return Gpu(
        uuid="GPU-0",
        minor=0,
        pci_bus_id="0000:00:00.0",
        product_name="",
        brand="",
        architecture="",
        compute_capability=(9, 0),
        driver_version="",
        cuda_driver_version=(13, 0),
        instances=instances,
    )


RECORDS = [
    record("first", planned("a", place=HERE), a=made(7)),
    record("second", planned("b", place=THERE), b=made(8)),
    record("both", planned("c", place=HERE, gpu="GPU-1"), planned("d", place=THERE), c=made(7), d=made(9)),
    record("whole", planned("gpu-2", gpu="GPU-2")),
    record("watcher", planned("gpu-0", admin_access=True), planned("a", place=HERE, admin_access=True)),
]


@pytest.mark.parametrize(
    ("uuid", "place", "expected"),
    [
        ("GPU-0", None, ["first", "second", "both"]),
        ("GPU-0", HERE, ["first"]),
        ("GPU-0", THERE, ["second", "both"]),
        ("GPU-1", HERE, ["both"]),
        ("GPU-1", THERE, []),
        ("GPU-1", None, ["both"]),
        ("GPU-2", None, ["whole"]),
        ("GPU-2", HERE, []),
        ("GPU-3", None, []),
        ("GPU-0", Place(profile_id=20, placement=FIRST), []),
    ],
)
def test_claims_that_hold_something_of_a_gpu_or_one_partition(uuid, place, expected):
    assert [found.plan.uid for found in claims_of(RECORDS, uuid, place)] == expected


@pytest.mark.parametrize(("number", "place"), [(7, HERE), (8, THERE), (9, THERE), (10, None), (0, None)])
def test_the_place_of_an_instance_that_a_claim_holds(number, place):
    assert place_of(RECORDS, gpu(), "now", number) == place


def test_the_place_of_an_instance_that_an_administrator_made():
    other = MigInstance(gpu_instance_id=3, compute_instance_id=None, uuid=None, profile_id=9, placement=SECOND)
    assert place_of(RECORDS, gpu(other), "now", 3) == THERE
    assert place_of([], gpu(other), "now", 4) is None


def test_ids_of_another_boot_say_nothing():
    old = [replace(one, boot_id="before") for one in RECORDS]
    assert place_of(old, gpu(), "now", 7) is None


def test_the_instance_of_another_gpu_is_not_meant():
    assert place_of(RECORDS[2:3], gpu(), "now", 7) is None


def test_nobody_knows_the_instances_of_a_gpu_that_is_not_known():
    assert place_of(RECORDS, None, "now", 7) is None


# --- shares ---------------------------------------------------------------------------------------

SHARERS = [
    record("one", planned(share_id="s1"), planned("gpu-1", gpu="GPU-1", share_id="s2")),
    record("two", planned(share_id="s3"), planned(share_id="s4")),
    record("whole", planned("gpu-2", gpu="GPU-2")),
    record("watcher", planned("gpu-3", admin_access=True), planned("gpu-0", share_id="s5", admin_access=True)),
]


def test_holds_are_counted_by_device_and_by_how_it_is_held():
    assert handed(SHARERS) == {("gpu-0", True): 3, ("gpu-1", True): 1, ("gpu-2", False): 1}
    assert shares(handed(SHARERS)) == {"gpu-0": 3, "gpu-1": 1}
    assert recorded(SHARERS, "now").keys() == {"gpu-0", "gpu-1", "gpu-2"}


def test_a_claim_may_take_several_shares_at_once():
    greedy = record("greedy", planned(share_id="s6", shares=4), planned("gpu-1", gpu="GPU-1", share_id="s7", shares=2))
    assert shares(handed([*SHARERS, greedy])) == {"gpu-0": 7, "gpu-1": 3}


def test_what_only_the_api_server_knows_is_held_too_and_records_know_the_number():
    found = handed(SHARERS, [("gpu-0", True), ("gpu-4", True), ("gpu-5", False)])
    assert shares(found) == {"gpu-0": 3, "gpu-1": 1, "gpu-4": 1}
    assert found["gpu-5", False] == 1


def test_a_device_that_somebody_holds_undivided_is_not_in_shares():
    assert shares({("gpu-0", True): 2, ("gpu-0", False): 1, ("gpu-1", True): 1}) == {"gpu-1": 1}


def test_an_allocation_tells_shares_from_whole_devices():
    def result(device, **more):
        return {"driver": "gpu.nvidia.com", "pool": "node-a", "device": device, "request": "r", **more}

    results = [
        result("gpu-0", shareID="s1"),
        result("gpu-0", shareID="s2"),
        result("gpu-1"),
        result("gpu-2", shareID="s3", adminAccess=True),
        result("gpu-3", shareID="s4") | {"pool": "node-b"},
        result("gpu-4") | {"driver": "other.example.com"},
    ]
    claims = [{"status": {"allocation": {"devices": {"results": results}}}}, {}, {"status": {}}]
    assert allocated(claims, driver="gpu.nvidia.com", pool="node-a") == {("gpu-0", True), ("gpu-1", False)}
