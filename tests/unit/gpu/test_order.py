from dataclasses import dataclass, replace
from itertools import chain

import pytest
from doubles.machines import gpus
from hypothesis import given
from hypothesis import strategies as st

from dradriver.gpu.model import MigInstance, MigProfile, Placement
from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import make_offer
from dradriver.gpu.order import in_order, regroup
from dradriver.gpu.policy import GpuFilter, GpuRule, OfferPolicy, Order
from dradriver.gpu.profiles import MigOffer, parse_choice
from dradriver.resource import CounterConsumption, CounterSet, Device, DeviceGroup, Layout, lay_out, validate


@dataclass(frozen=True, slots=True)
class Part:
    """The least that can be put in order."""

    name: str
    profile: MigProfile | None = None
    placement: Placement | None = None


def profile(size, compute, starts, suffix="", number=1):
    return MigProfile(
        id=number,
        name=f"{compute}g.{size}gb{suffix}",
        compute_slices=compute,
        max_instances=len(starts),
        memory_mib=1024 * size,
        multiprocessors=1,
        copy_engines=0,
        decoders=0,
        encoders=0,
        jpeg_engines=0,
        ofa_engines=0,
        placements=tuple(Placement(start=start, size=size) for start in starts),
    )


ONE, ONE_ME = profile(1, 1, range(4)), profile(1, 1, range(4), "+me", 2)
DOUBLE, TWO = profile(2, 1, (0, 2), number=3), profile(2, 2, (0, 2), number=4)
FOUR = profile(4, 4, (0,), number=5)


def gpu(number, *profiles, whole=True):
    parts = [Part(f"gpu-{number}-{one.name}-{place.start}", one, place) for one in profiles for place in one.placements]
    return [Part(f"gpu-{number}"), *parts] if whole else parts


def names(groups):
    return [[part.name for part in group] for group in groups]


QUARTERS = [f"1g.1gb-{start}" for start in (2, 3, 0, 1)]


def test_packed_goes_from_gpu_to_gpu_and_from_small_to_large():
    packed = names(in_order([gpu(0, FOUR, TWO, ONE), gpu(1, TWO, ONE, FOUR)], Order.PACKED))
    assert packed == [
        [*(f"gpu-{n}-{part}" for part in [*QUARTERS, "2g.2gb-0", "2g.2gb-2", "4g.4gb-0"]), f"gpu-{n}"] for n in (0, 1)
    ]


def test_of_equally_many_memory_slices_fewer_compute_slices_come_first_and_plain_before_its_variants():
    (group,) = in_order([gpu(0, ONE_ME, TWO, DOUBLE, ONE)], Order.PACKED)
    assert list(dict.fromkeys(part.profile for part in group)) == [ONE, ONE_ME, DOUBLE, TWO, None]


def test_spread_gives_every_gpus_first_place_before_any_second():
    (group,) = names(in_order([gpu(0, ONE, TWO), gpu(1, ONE, TWO)], Order.SPREAD))
    ones = [f"gpu-{n}-{part}" for part in QUARTERS for n in (0, 1)]
    assert group == [*ones, "gpu-0-2g.2gb-0", "gpu-1-2g.2gb-0", "gpu-0-2g.2gb-2", "gpu-1-2g.2gb-2", "gpu-1", "gpu-0"]


def test_spread_has_at_most_64_devices_in_a_group():
    groups = in_order([gpu(n, ONE, TWO) for n in range(16)], Order.SPREAD)
    assert [len(group) for group in groups] == [64, 48]
    assert names(groups)[1][-16:] == [f"gpu-{n}" for n in reversed(range(16))]


def test_nvidias_order_is_by_name_with_the_whole_gpu_first():
    assert names(in_order([gpu(2, TWO, ONE), gpu(10)], Order.NVIDIA)) == [
        ["gpu-2", *(f"gpu-2-1g.1gb-{start}" for start in range(4)), "gpu-2-2g.2gb-0", "gpu-2-2g.2gb-2"],
        ["gpu-10"],
    ]


def test_gpus_without_partitions_stand_in_the_usual_order():
    assert names(in_order([gpu(n) for n in range(3)], Order.PACKED)) == [["gpu-0"], ["gpu-1"], ["gpu-2"]]


@pytest.mark.parametrize("order", [Order.PACKED, Order.SPREAD])
def test_among_unlike_gpus_whole_ones_follow_all_partitions_and_the_least_harmful_goes_first(order):
    node = [gpu(0, ONE), gpu(1), gpu(2, ONE), gpu(3, TWO, whole=False), gpu(4, ONE, TWO), gpu(5)]
    order_of_wholes = [part.name for part in chain(*in_order(node, order))][-5:]
    assert order_of_wholes == ["gpu-1", "gpu-5", "gpu-2", "gpu-0", "gpu-4"]


def test_among_unlike_gpus_whole_ones_that_can_be_partitioned_share_a_group():
    groups = names(in_order([gpu(0, ONE), gpu(1), gpu(2, TWO, whole=False), gpu(3, ONE), gpu(4)], Order.PACKED))
    assert [len(group) for group in groups] == [4, 2, 4, 1, 1, 2]
    assert groups[-3:] == [["gpu-1"], ["gpu-4"], ["gpu-3", "gpu-0"]]


@pytest.mark.parametrize("order", Order)
def test_a_node_or_gpu_without_devices_has_no_group(order):
    assert in_order([], order) == ()
    assert in_order([[], []], order) == ()
    assert len(in_order([[], gpu(1)], order)) == 1


def test_a_gpu_that_offers_nothing_changes_nothing_for_the_others():
    node = [gpu(0, ONE), gpu(1, ONE)]
    assert in_order([node[0], [], node[1]], Order.PACKED) == in_order(node, Order.PACKED)


# --- whatever the geometry --------------------------------------------------------------------------


@st.composite
def some_profiles(draw):
    length = draw(st.integers(1, 8))
    sizes = draw(st.lists(st.tuples(st.integers(1, length), st.integers(1, 7)), max_size=4))
    return [
        profile(size, compute, sorted(draw(st.sets(st.integers(0, length - size), min_size=1))), number=number)
        for number, (size, compute) in enumerate(sizes)
    ]


@st.composite
def nodes(draw):
    """GPUs of a few kinds in random order; of each any part of its devices."""
    kinds = draw(st.lists(some_profiles(), min_size=1, max_size=3))
    node = []
    for number in range(draw(st.integers(1, 6))):
        devices = gpu(number, *draw(st.sampled_from(kinds)))
        node.append(devices if draw(st.booleans()) else draw(st.lists(st.sampled_from(devices), unique=True)))
    return node


ORDERS = st.sampled_from(Order)
OURS = st.sampled_from([Order.PACKED, Order.SPREAD])


@given(nodes(), ORDERS)
def test_each_device_has_its_turn_once(node, order):
    arranged = in_order(node, order)
    assert all(arranged)
    assert sorted(part.name for part in chain(*arranged)) == sorted(part.name for part in chain(*node))


@given(nodes(), ORDERS, st.randoms(use_true_random=False))
def test_in_which_order_the_devices_of_a_gpu_come_does_not_matter(node, order, chance):
    shuffled = [chance.sample(devices, k=len(devices)) for devices in node]
    assert in_order(shuffled, order) == in_order(node, order) == in_order(map(iter, node), order)


@given(nodes(), OURS)
def test_no_partition_follows_a_whole_gpu_in_its_group(node, order):
    for group in in_order(node, order):
        wholes = [part.profile is None for part in group]
        assert wholes == sorted(wholes)


@given(nodes(), OURS)
def test_no_profile_follows_a_larger_one_in_its_group(node, order):
    for group in in_order(node, order):
        sizes = [part.placement.size for part in group if part.placement]
        assert sizes == sorted(sizes)


def gpu_of(part):
    return part.name.split("-")[1]


def overlaps(part, other):
    return gpu_of(part) == gpu_of(other) and (
        part.placement is None or other.placement is None or part.placement.overlaps(other.placement)
    )


@given(nodes(), OURS, st.data())
def test_no_loose_request_gets_a_whole_gpu_while_a_partition_would_do(node, order, data):
    devices, held = list(chain(*in_order(node, order))), []
    for _ in range(12):
        needed = data.draw(st.integers(1, 8))
        free = [part for part in devices if not any(overlaps(part, other) for other in held)]
        fitting = [part for part in free if part.placement is None or part.placement.size >= needed]
        if fitting:
            held.append(fitting[0])
            assert fitting[0].placement is not None or all(part.placement is None for part in fitting)
        if held and data.draw(st.booleans()):
            held.pop(data.draw(st.integers(0, len(held) - 1)))


# --- groups of a pool -------------------------------------------------------------------------------


def pool_group(number, *parts):
    counter_set = CounterSet(name=f"set-{number}", counters={"one": 1})
    consumes = (CounterConsumption(counter_set=counter_set.name, counters={"one": 1}),)
    return DeviceGroup(
        devices=tuple(Device(name=f"gpu-{number}-{part}", consumes=consumes) for part in parts),
        counter_sets=(counter_set,),
    )


def short(groups):
    return [
        ([device.name.removeprefix("gpu-") for device in group.devices], [one.name for one in group.counter_sets])
        for group in groups
    ]


def parts(*names_):
    return [Part(f"gpu-{name}") for name in names_]


def test_counter_sets_go_with_the_first_device_that_consumes_from_them():
    groups = [pool_group(0, "a", "b"), pool_group(1, "a")]
    assert short(regroup(groups, [parts("1-a", "0-b"), parts("0-a")])) == [
        (["1-a", "0-b"], ["set-1", "set-0"]),
        (["0-a"], []),
    ]


def test_devices_the_pool_lacks_are_skipped():
    groups = [pool_group(0, "a")]
    assert short(regroup(groups, [parts("0-b"), parts("0-a", "0-c")])) == [(["0-a"], ["set-0"])]


def test_what_is_not_arranged_stands_at_the_head_of_its_gpus_first_group():
    groups = [pool_group(0, "a", "held", "c"), pool_group(1, "held")]
    assert short(regroup(groups, [parts("0-c"), parts("0-a")])) == [
        (["1-held"], ["set-1"]),
        (["0-held", "0-c"], ["set-0"]),
        (["0-a"], []),
    ]


def test_an_arrangement_that_does_not_take_the_pool_apart_changes_nothing():
    groups = (pool_group(0, "a", "b"), DeviceGroup(devices=(Device(name="gpu-1-whole"),)))
    assert regroup(groups, [parts("0-a", "0-b"), parts("1-whole")]) == groups


# --- pools of real GPUs -----------------------------------------------------------------------------


def offer(machine, order, *rules, profiles="standard", mig="dynamic"):
    found = gpus(machine) if isinstance(machine, str) else machine
    default = GpuRule(mig=MigOffer(mig), profiles=parse_choice(profiles))
    policy = OfferPolicy(rules=rules, default=default, order=order)
    return make_offer(found, pool="node-a", policy=policy, numbers=number_gpus(found, {}))


MACHINES = ["8xh100-80gb", "4xa30", "8xa100-40gb", "8xrtx-pro-6000", "16xb200", "3xgb200", "8xh200", "4xl4"]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("profiles", ["standard", "all"])
@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("layout", Layout)
def test_every_order_of_every_machine_has_valid_slices_and_the_same_devices(machine, profiles, order, layout):
    made = offer(machine, order, profiles=profiles)
    slices = lay_out(made.pool, layout)
    validate(slices, layout)
    assert {device.name for part in slices for device in part.devices} == set(made.devices)
    by_name = offer(machine, Order.NVIDIA, profiles=profiles)
    assert sets(made) == sets(by_name)


def sets(made):
    return {one.name: one for group in made.pool.groups for one in group.counter_sets}


def test_spread_has_all_counter_sets_in_its_first_group():
    first, *others = offer("8xh100-80gb", Order.SPREAD).pool.groups
    assert [one.name for one in first.counter_sets] == [f"gpu-{n}-counter-set" for n in range(8)]
    assert [device.name for device in first.devices[:8]] == [f"gpu-{n}-mig-1g10gb-19-6" for n in range(8)]
    assert not any(group.counter_sets for group in others)


def test_packed_and_nvidias_have_a_group_for_each_gpu():
    for order in (Order.PACKED, Order.NVIDIA):
        for number, group in enumerate(offer("8xh100-80gb", order).pool.groups):
            assert {device.name.split("-")[1] for device in group.devices} == {str(number)}
            assert [one.name for one in group.counter_sets] == [f"gpu-{number}-counter-set"]


def test_gpus_kept_whole_are_tried_after_partitions_and_before_whole_gpus_that_can_be_partitioned():
    whole_only = GpuRule(filter=GpuFilter(indices=frozenset({0, 2})), mig=MigOffer.OFF)
    groups = offer("4xh100-80gb", Order.PACKED, whole_only).pool.groups
    first = [group.devices[0].name for group in groups]
    assert first == ["gpu-1-mig-1g10gb-19-6", "gpu-3-mig-1g10gb-19-6", "gpu-0", "gpu-2", "gpu-3"]
    assert [device.name for device in groups[-1].devices] == ["gpu-3", "gpu-1"]
    validate(lay_out(offer("4xh100-80gb", Order.PACKED, whole_only).pool))


def with_instances(machine, *starts):
    """GPUs in MIG mode; the first has `1g` instances, the second none, the third is not in MIG mode."""
    first, second, third = gpus(machine, mig="on")[:2] + gpus(machine, mig="off")[2:]
    small = min(first.profiles, key=lambda one: (one.placements[0].size, one.name))
    instances = tuple(
        MigInstance(
            gpu_instance_id=number,
            compute_instance_id=0,
            uuid=f"MIG-{start}",
            profile_id=small.id,
            placement=small.placements[start],
        )
        for number, start in enumerate(starts)
    )
    return (replace(first, instances=instances), second, third)


@pytest.mark.parametrize("order", [Order.PACKED, Order.SPREAD])
def test_existing_instances_come_before_whole_gpus(order):
    made = offer(with_instances("3xh100-80gb", 5, 1, 3), order, mig="static")
    assert [device.name for group in made.pool.groups for device in group.devices] == [
        *(f"gpu-0-mig-1g10gb-19-{start}" for start in (1, 3, 5)),
        "gpu-2",
    ]
