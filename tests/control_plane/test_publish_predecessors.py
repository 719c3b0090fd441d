"""Slices that another driver or an older version of ours has left, with devices that claims hold, are taken over.

Claims are allocated by the real scheduler. What it can have seen is read from the API server's own history, event by
event.
"""

import pytest
from doubles.allocation import Claims
from doubles.publishing import DRIVER, PATIENCE, slice_body, until
from doubles.scheduler import moments, view

from dradriver.kube import RESOURCE_SLICES
from dradriver.publish import slice_name
from dradriver.resource import CounterConsumption, CounterSet, Device, Slice, slice_spec

pytestmark = pytest.mark.control_plane

GPUS = 2


def device(name, kind, gpu, amount):
    consumes = (CounterConsumption(counter_set=f"gpu-{gpu}", counters={"memory": amount}),)
    return Device(name=name, attributes={"type": kind}, consumes=consumes)


def counters():
    return Slice(counter_sets=tuple(CounterSet(name=f"gpu-{gpu}", counters={"memory": 8}) for gpu in range(GPUS)))


def gpu_devices(gpu):
    return (
        device(f"gpu-{gpu}", "gpu", gpu, 8),
        *(device(f"gpu-{gpu}-mig-{place}", "mig", gpu, 4) for place in (0, 4)),
    )


def theirs():
    """All devices in one slice behind the counters, the whole GPUs first."""
    return counters(), Slice(devices=tuple(one for gpu in range(GPUS) for one in gpu_devices(gpu)))


def ours():
    """The same devices, otherwise sorted and one slice for each GPU."""
    return (counters(), *(Slice(devices=gpu_devices(gpu)[::-1]) for gpu in range(GPUS)))


def leave(offer, slices, *, generation, pool, name=None):
    """Publish as somebody else does, under generated names where none are given."""
    numbers = {"name": pool, "generation": generation, "resourceSliceCount": len(slices)}
    made = []
    for index, content in enumerate(slices):
        spec = slice_spec(content, driver=DRIVER, node_name=offer.node, pool=numbers)
        body = slice_body(f"{index:05x}-{DRIVER}-{offer.node}-", spec, generated=True)
        if name is not None:
            body = slice_body(name(index), spec)
        made.append(offer.admin.create(RESOURCE_SLICES, body))
    return {item["metadata"]["name"]: item for item in made}


def newest(moment, pool):
    numbers = [item["spec"]["pool"] for item in moment.values()]
    return max(number["generation"] for number in numbers if number["name"] == pool)


def own_names(offer, count):
    return [slice_name(number, driver=DRIVER, node_name=offer.node) for number in range(count)]


def look_back(offer, before, version, held):
    """All moments from there to now, with the node's pool; no complete one lacks anything that claims may hold."""
    seen = [(moment, view(moment.values(), offer.node)) for moment in moments(offer.events_since(version), before)]
    for _, pool in seen:
        if pool is not None:
            assert pool.problems == ()
            assert pool.lacks(held) == set()
    assert seen[-1][1] is not None
    return seen


@pytest.mark.parametrize("generation", [1, 7])
def test_no_complete_pool_ever_lacks_what_a_claim_holds(offer, admin, generation):
    before = leave(offer, theirs(), generation=generation, pool=offer.node)
    held = view(before.values(), offer.node).devices
    with Claims(admin, offer.node) as claims:
        claims.ask("first", device="mig")
        until(lambda: claims.device("first"))
        version = admin.list(RESOURCE_SLICES).resource_version
        publisher = offer.publisher(ours())
        # While slices are exchanged, another pod wants the GPU whose partition is held, and one that is free.
        claims.ask("second", device="gpu")
        assert publisher.wait_published(PATIENCE)
        assert offer.names() == own_names(offer, GPUS + 1)
        assert offer.generations() == {generation + 1}
        seen = look_back(offer, before, version, held)
        assert seen[0][1] is not None
        print(f"incomplete after {sum(pool is None for _, pool in seen)} of {len(seen) - 1} events")
        until(lambda: claims.device("second"))
        first, second = claims.device("first"), claims.device("second")
        assert first.partition("-mig-")[0] != second
        claims.ask("third", device="gpu")
        until(lambda: claims.refused("third"))
        assert claims.device("third") == ""
        claims.release("first")
        until(lambda: claims.device("third"))
        assert {claims.device("second"), claims.device("third")} == {"gpu-0", "gpu-1"}


def test_a_predecessor_that_was_killed_half_way_is_replaced_as_well(offer, admin):
    """Its newest generation is incomplete, so nothing was allocatable before, and everything is afterwards."""
    before = leave(offer, theirs(), generation=3, pool=offer.node)
    held = view(before.values(), offer.node).devices
    before |= leave(offer, theirs()[:1], generation=4, pool=offer.node)
    half = next(item for item in offer.slices() if item["spec"]["pool"]["generation"] == 4)
    half["spec"]["pool"]["resourceSliceCount"] = 2
    admin.replace(RESOURCE_SLICES, half)
    before = {item["metadata"]["name"]: item for item in offer.slices()}
    version = admin.list(RESOURCE_SLICES).resource_version
    assert view(before.values(), offer.node) is None
    publisher = offer.publisher(ours())
    assert publisher.wait_published(PATIENCE)
    assert offer.names() == own_names(offer, GPUS + 1)
    assert offer.generations() == {5}
    assert look_back(offer, before, version, held)


@pytest.mark.parametrize("own", [False, True], ids=["generated names", "our names"])
def test_slices_of_another_pool_go_once_the_devices_are_in_ours(offer, admin, own):
    """An older version had another name for its pool; names of slices may be the same as ours."""
    before = leave(offer, theirs(), generation=2, pool=offer.node)
    names = (lambda index: own_names(offer, 9)[index]) if own else None
    before |= leave(offer, ours(), generation=9, pool=f"{offer.node}-old", name=names)
    held = view(before.values(), offer.node).devices
    version = admin.list(RESOURCE_SLICES).resource_version
    publisher = offer.publisher(ours())
    assert publisher.wait_published(PATIENCE)
    assert offer.names() == own_names(offer, GPUS + 1)
    assert {item["spec"]["pool"]["name"] for item in offer.slices()} == {offer.node}
    for moment, pool in look_back(offer, before, version, held):
        there = [item for item in moment.values() if item["spec"]["pool"]["name"] != offer.node]
        if not own and len(there) < GPUS + 1:
            assert pool is not None
            assert newest(moment, offer.node) == 3


def test_a_node_s_first_slices_are_nobody_s_successors(offer, admin):
    version = admin.list(RESOURCE_SLICES).resource_version
    publisher = offer.publisher(ours())
    assert publisher.wait_published(PATIENCE)
    assert [kind for kind, _ in offer.events_since(version)] == ["ADDED"] * (GPUS + 1)
    assert offer.generations() == {1}
