"""Shares of GPUs: what is published, what claims hold, and never together with counters."""

from dataclasses import replace

import pytest
from doubles.machines import gpus
from hypothesis import given
from hypothesis import strategies as st

from dradriver.gpu.model import MigInstance, MigMode
from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import Situation, make_offer
from dradriver.gpu.policy import Detail, GpuFilter, GpuRule, OfferPolicy, Order, Sharing
from dradriver.gpu.profiles import MigOffer
from dradriver.resource import Layout, RequestPolicy, Taint, lay_out, limits, validate

FOUR = Sharing(replicas=4)
RENAMED = Sharing(replicas=4, renamed=True)
UNWANTED = Taint(key="dradriver.dev/not-offered", effect="NoSchedule")
PARTITION = "gpu-0-mig-3g40gb-9-4"


def rule(sharing=FOUR, mig="static", **fields):
    return GpuRule(mig=MigOffer(mig), sharing=sharing, **fields)


def only(index):
    return GpuFilter(indices=frozenset({index}))


def offer(found, *rules, order=Order.PACKED, detail=Detail.FULL, **situation):
    found, (*filtered, default) = tuple(found), rules
    policy = OfferPolicy(rules=tuple(filtered), default=default, order=order, detail=detail)
    numbers = number_gpus(found, {})
    made = make_offer(found, pool="node-a", policy=policy, numbers=numbers, situation=Situation(**situation))
    validate(lay_out(made.pool))
    return made


def devices(made):
    return {device.name: device for group in made.pool.groups for device in group.devices}


def cut(gpu, *starts):
    """A GPU in MIG mode with instances of 1g.10gb."""
    profile = next(one for one in gpu.profiles if one.name == "1g.10gb")
    instances = tuple(
        MigInstance(
            gpu_instance_id=7 + start,
            compute_instance_id=0,
            uuid=f"MIG-{start}",
            profile_id=profile.id,
            placement=next(place for place in profile.placements if place.start == start),
            memory_mib=profile.memory_mib - 64,
        )
        for start in starts
    )
    return replace(gpu, mig_mode=MigMode(current=True, pending=True), instances=instances)


def name(start):
    return f"gpu-0-mig-1g10gb-19-{start}"


# --- what is published ----------------------------------------------------------------------------


def test_a_shared_gpu_gives_one_share_and_no_memory_to_who_asks_for_nothing():
    made = offer(gpus("2xh100-80gb"), rule(RENAMED))
    assert made.shared == {"gpu-0", "gpu-1"}
    for device in devices(made).values():
        assert device.shared
        assert device.capacity == {"memory": device.capacity["memory"], "shares": 4}
        assert device.policies == {"memory": RequestPolicy(default=0), "shares": RequestPolicy(default=1, least=1)}
        assert device.attributes["sharing"] == "time-slicing"
        assert device.attributes["renamed"] is True
        assert not device.consumes
        assert not device.taints
    assert made.plain == {"gpu-0", "gpu-1"}


def test_instances_of_an_administrator_are_shared_with_a_policy_for_every_capacity():
    made = offer([cut(gpus("1xh100-80gb")[0], 0, 1)], rule())
    assert list(devices(made)) == [name(0), name(1)]
    for device in devices(made).values():
        assert device.policies.keys() == device.capacity.keys()
        assert {entry for entry, policy in device.policies.items() if policy.default} == {"shares"}
        assert device.attributes["renamed"] is False


def test_all_devices_of_a_node_say_whether_they_are_shared_and_none_where_nobody_wants_that():
    first, second, third = gpus("3xh100-80gb")
    rules = [rule(RENAMED, filter=only(0)), rule(None, filter=only(1)), rule(None)]
    found = devices(offer([first, second, cut(third, 0)], *rules))
    assert {key: (one.attributes["sharing"], one.attributes["renamed"]) for key, one in found.items()} == {
        "gpu-0": ("time-slicing", True),
        "gpu-1": ("none", False),
        "gpu-2-mig-1g10gb-19-0": ("none", False),
    }
    for one in devices(offer([first, second, cut(third, 0)], rule(None))).values():
        assert not {"sharing", "renamed"} & one.attributes.keys()
        assert "shares" not in one.capacity
        assert not one.shared
    # A rule for GPUs that this node does not have is a rule all the same.
    for one in devices(offer([first], rule(FOUR, filter=only(9)), rule(None))).values():
        assert one.attributes["sharing"] == "none"


def test_a_lean_offer_keeps_what_shares_are_chosen_and_counted_by():
    found = devices(offer(gpus("1xh100-80gb"), rule(), detail=Detail.LEAN))["gpu-0"]
    assert {"sharing", "renamed"} <= found.attributes.keys()
    assert found.capacity.keys() == {"memory", "shares"} == found.policies.keys()


@pytest.mark.parametrize("detail", Detail)
@pytest.mark.parametrize("machine", ["1xh100-80gb", "1xa100-40gb", "1xa30", "1xgb200", "1xrtx-pro-6000"])
@pytest.mark.parametrize("sharing", [None, FOUR])
def test_no_instance_says_more_than_a_device_may(machine, detail, sharing):
    (gpu,) = gpus(machine)
    largest = max(gpu.profiles, key=lambda profile: profile.placements[0].size)
    instance = MigInstance(
        gpu_instance_id=0, compute_instance_id=0, uuid="MIG-0", profile_id=largest.id, placement=largest.placements[0]
    )
    gpu = replace(gpu, mig_mode=MigMode(current=True, pending=True), instances=(instance,), numa_node=0)
    gpu = replace(gpu, addressing_mode="HMM", pcie_root="pci0000:40")
    made = offer([gpu], rule(sharing), detail=detail)
    assert not made.refused
    (device,) = devices(made).values()
    most = limits.ATTRIBUTES_AND_CAPACITIES_PER_DEVICE
    slices = [name for name in device.capacity if name.startswith("memorySlice")]
    assert device.capacity["memory"]
    assert bool(slices) == (detail is Detail.FULL and "rtx" not in machine)
    assert len(device.attributes) + len(device.capacity) <= most


# --- never with counters --------------------------------------------------------------------------


def test_a_gpu_that_is_cut_for_claims_is_not_shared_and_the_offer_says_so():
    found = gpus("1xh100-80gb")
    made = offer(found, rule(mig="dynamic"))
    assert made.unshared == {found[0].uuid}
    assert not made.shared
    assert all(device.attributes["sharing"] == "none" for device in devices(made).values())
    assert devices(made)["gpu-0"].consumes
    assert not offer(found, rule()).unshared
    assert not offer(found, rule(None, mig="dynamic")).unshared


def test_a_gpu_that_cannot_be_cut_is_shared_whatever_the_flags_say_of_mig():
    (gpu,) = gpus("1xh100-80gb")
    made = offer([replace(gpu, profiles=(), mig_mode=None)], rule(mig="dynamic"))
    assert made.shared == {"gpu-0"}
    assert not made.unshared


def test_without_counters_a_gpu_that_is_to_be_cut_is_not_shared_either():
    made = offer(gpus("1xh100-80gb"), rule(mig="dynamic"), layout=None)
    assert list(devices(made)) == ["gpu-0"]
    assert not made.shared


@given(
    mig=st.sampled_from(MigOffer),
    sharing=st.sampled_from([None, FOUR, RENAMED]),
    starts=st.sets(st.integers(0, 6), max_size=3),
    held=st.dictionaries(
        st.sampled_from(["gpu-0", PARTITION, name(0), name(1), name(2), "gpu-1"]), st.booleans(), max_size=4
    ),
    layout=st.sampled_from([*Layout, None]),
    shareable=st.booleans(),
    taints=st.booleans(),
)
def test_whatever_claims_hold_no_device_is_shared_and_counted(mig, sharing, starts, held, layout, shareable, taints):
    first, second = gpus("2xh100-80gb")
    first = cut(first, *starts) if starts else first
    situation = {
        "held": dict.fromkeys(held, ""),
        "shares": {key: 2 for key, shared in held.items() if shared},
        "layout": layout,
        "shareable": shareable,
        "taints": taints,
    }
    made = make_offer(
        [first, second],
        pool="node-a",
        policy=OfferPolicy(default=GpuRule(mig=mig, sharing=sharing)),
        numbers=number_gpus([first, second], {}),
        situation=Situation(**situation),
    )
    found = devices(made)
    assert not made.refused
    assert made.shared == {key for key, device in found.items() if device.shared}
    for key, device in found.items():
        assert not (device.shared and device.consumes)
        if key in held and shareable:
            assert device.shared == held[key]
    # What is held stays.
    assert held.keys() <= found.keys()
    # Beside something shared on one GPU there is nothing else that could take its memory: no partition to be made.
    for number in (0, 1):
        here = [device for key, device in found.items() if key.startswith(f"gpu-{number}")]
        if any(device.shared for device in here):
            free = [device for device in here if device.name not in held]
            assert all(made.devices[device.name].instance or not made.devices[device.name].profile for device in free)


# --- what claims hold -----------------------------------------------------------------------------


def test_what_is_held_in_shares_stays_shared_without_room_for_more():
    made = offer(gpus("2xh100-80gb"), rule(None), held={"gpu-0": ""}, shares={"gpu-0": 3})
    kept, free = devices(made)["gpu-0"], devices(made)["gpu-1"]
    assert kept.shared
    assert kept.capacity["shares"] == 3
    assert kept.taints == (UNWANTED,)
    assert (kept.attributes["sharing"], free.attributes["sharing"]) == ("time-slicing", "none")
    assert not free.shared
    assert made.kept == {"gpu-0"}
    assert made.plain == {"gpu-1"}


def test_what_is_held_whole_stays_whole():
    made = offer(gpus("2xh100-80gb"), rule(), held={"gpu-0": ""})
    kept, free = devices(made)["gpu-0"], devices(made)["gpu-1"]
    assert not kept.shared
    assert "shares" not in kept.capacity
    assert kept.taints == (UNWANTED,)
    assert free.shared
    assert made.kept == {"gpu-0"}


def test_what_is_held_as_it_is_wanted_is_like_any_other():
    free = offer(gpus("2xh100-80gb"), rule())
    assert offer(gpus("2xh100-80gb"), rule(), held={"gpu-0": ""}, shares={"gpu-0": 4}).pool == free.pool


def test_fewer_replicas_than_are_held_take_nothing_away():
    found = devices(offer(gpus("1xh100-80gb"), rule(Sharing(replicas=2)), held={"gpu-0": ""}, shares={"gpu-0": 4}))
    assert found["gpu-0"].capacity["shares"] == 2
    assert not found["gpu-0"].taints


def test_a_gpu_with_shares_is_not_cut_before_the_last_is_gone():
    made = offer(gpus("1xh100-80gb"), rule(None, mig="dynamic"), held={"gpu-0": ""}, shares={"gpu-0": 1})
    assert list(devices(made)) == ["gpu-0"]
    assert devices(made)["gpu-0"].shared
    assert devices(made)["gpu-0"].taints == (UNWANTED,)


def test_a_gpu_with_partitions_is_not_shared_before_the_last_is_gone():
    made = offer(gpus("2xh100-80gb"), rule(), held={PARTITION: "MIG-1"})
    assert list(devices(made)) == [PARTITION, "gpu-1"]
    assert devices(made)[PARTITION].consumes
    assert devices(made)["gpu-1"].shared


def test_shares_of_a_gpu_that_was_put_into_mig_mode_are_kept_alone():
    made = offer([cut(gpus("1xh100-80gb")[0], 0)], rule(), held={"gpu-0": ""}, shares={"gpu-0": 2})
    assert list(devices(made)) == ["gpu-0"]
    assert devices(made)["gpu-0"].shared


def test_a_server_that_drops_shares_gets_whole_gpus_and_no_new_pods_beside_shares():
    made = offer(gpus("2xh100-80gb"), rule(RENAMED), shareable=False, held={"gpu-0": ""}, shares={"gpu-0": 2})
    assert not made.shared
    kept, free = devices(made)["gpu-0"], devices(made)["gpu-1"]
    assert kept.taints == (UNWANTED,)
    assert not free.taints
    assert (free.attributes["sharing"], free.attributes["renamed"]) == ("none", True)
    assert "shares" not in free.capacity


# --- order ----------------------------------------------------------------------------------------


def in_order(machine="4xh100-80gb", *, order=Order.SPREAD, **shares):
    held = {f"gpu-{number[1:]}": count for number, count in shares.items()}
    return list(devices(offer(gpus(machine), rule(), order=order, held=dict.fromkeys(held, ""), shares=held)))


def test_spread_begins_with_the_gpu_that_has_most_free_shares():
    assert in_order() == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert in_order(n0=1) == ["gpu-1", "gpu-2", "gpu-3", "gpu-0"]
    assert in_order(n0=1, n1=3, n2=2) == ["gpu-3", "gpu-0", "gpu-2", "gpu-1"]
    assert in_order(n0=4, n1=4, n2=4, n3=4) == in_order()


@pytest.mark.parametrize("order", [Order.PACKED, Order.NVIDIA])
def test_other_orders_do_not_depend_on_shares(order):
    assert in_order(order=order, n0=3, n2=1) == in_order(order=order)


def test_spread_counts_a_gpu_for_one_claim_as_one_share():
    rules = [rule(Sharing(replicas=2), filter=only(0)), rule(None)]
    found = gpus("2xh100-80gb")
    assert list(devices(offer(found, *rules, order=Order.SPREAD))) == ["gpu-0", "gpu-1"]
    full = offer(found, *rules, order=Order.SPREAD, held={"gpu-0": ""}, shares={"gpu-0": 2})
    assert list(devices(full)) == ["gpu-1", "gpu-0"]


def test_spread_orders_instances_of_one_profile_by_their_free_shares():
    gpu = cut(gpus("1xh100-80gb")[0], 0, 1, 2)
    before = list(devices(offer([gpu], rule(), order=Order.SPREAD)))
    held = {before[0]: ""}
    after = offer([gpu], rule(), order=Order.SPREAD, held=held, shares=dict.fromkeys(held, 1))
    assert list(devices(after)) == [*before[1:], before[0]]


def test_a_new_order_is_the_same_slice_with_the_same_devices():
    before, after = (
        lay_out(offer(gpus("8xh100-80gb"), rule(), order=Order.SPREAD, held=dict.fromkeys(held, ""), shares=held).pool)
        for held in ({}, {"gpu-3": 2, "gpu-0": 1})
    )
    assert len(before) == len(after) == 1
    assert {one.name: one for one in before[0].devices} == {one.name: one for one in after[0].devices}
