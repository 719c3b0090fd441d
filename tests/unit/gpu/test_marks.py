"""What is wrong with GPUs, on the devices of an offer."""

from dataclasses import replace

import pytest
from doubles.machines import gpus
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.gpu.health import EFFECTS, Effect, Mark, Place, marks_of
from dradriver.gpu.model import MigInstance, Placement
from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import Situation, device_marks, make_offer, mark_offer
from dradriver.gpu.policy import GpuRule, OfferPolicy, Order
from dradriver.gpu.profiles import MigOffer, parse_choice
from dradriver.resource import Layout, lay_out, validate

NONE, NO_SCHEDULE, NO_EXECUTE = EFFECTS
START = 1_700_000_000
AT = "2023-11-14T22:13:20Z"
XID, RECOVERY, MEMORY, LOST = (
    "gpu.nvidia.com/xid",
    "dradriver.dev/recovery",
    "dradriver.dev/memory",
    "gpu.nvidia.com/gpu-lost",
)
UNMONITORED, NOT_OFFERED = "gpu.nvidia.com/unmonitored", "dradriver.dev/not-offered"
ONE_G = "gpu-0-mig-1g10gb-19-4"
HERE = Place(profile_id=19, placement=Placement(start=4, size=1))


def mark(key=XID, effect=NO_SCHEDULE, *, value="", since=START, place=None):
    return Mark(key=key, value=value, effect=effect, since=since, text=f"{key} {effect}", place=place)


class Node:
    """GPUs and what is wanted of them."""

    def __init__(self, machine="2xh100-80gb", mig="dynamic", *, found=None, order=Order.PACKED):
        self.gpus = tuple(found or gpus(machine))
        self.policy = OfferPolicy(default=GpuRule(mig=MigOffer(mig), profiles=parse_choice("standard")), order=order)
        self.numbers = number_gpus(self.gpus, {})

    def offer(self, marks=None, **fields):
        situation = Situation(marks=marks or {}, **fields)
        return make_offer(self.gpus, pool="node-a", policy=self.policy, numbers=self.numbers, situation=situation)

    def marked(self, marks, **fields):
        """As the offering does when a GPU tells: from the offer before, without reading anything."""
        return mark_offer(self.offer(**fields), Situation(marks=marks, **fields))

    def uuid(self, number):
        return next(uuid for uuid, its in self.numbers.items() if its == number)


def devices(offer):
    return {device.name: device for group in offer.pool.groups for device in group.devices}


def taints(offer):
    return {
        name: {taint.key: taint.effect for taint in one.taints} for name, one in devices(offer).items() if one.taints
    }


def of_gpu(offer, number):
    return {name for name in devices(offer) if name == f"gpu-{number}" or name.startswith(f"gpu-{number}-")}


@pytest.fixture
def node():
    return Node()


# --- which devices --------------------------------------------------------------------------------


def test_a_mark_on_a_partition_hits_that_device_only(node):
    offer = node.marked({node.uuid(0): (mark(place=HERE, value="31"),)})
    assert taints(offer) == {ONE_G: {XID: NO_SCHEDULE}}
    (taint,) = devices(offer)[ONE_G].taints
    assert (taint.value, taint.time_added) == ("31", AT)


def test_a_mark_on_a_gpu_hits_it_and_every_partition_of_it(node):
    offer = node.marked({node.uuid(1): (mark(effect=NO_EXECUTE),)})
    assert taints(offer) == {name: {XID: NO_EXECUTE} for name in of_gpu(offer, 1)}
    assert len(of_gpu(offer, 1)) == 15


def test_devices_of_other_gpus_are_the_same_objects(node):
    before, after = node.offer(), None
    after = mark_offer(before, Situation(marks={node.uuid(1): (mark(),)}))
    for name in of_gpu(before, 0):
        assert devices(after)[name] is devices(before)[name]


def test_a_mark_on_a_gpu_that_is_not_there_hits_nothing(node):
    assert node.marked({"GPU-gone": (mark(),)}) == node.marked({})


@pytest.mark.parametrize(
    "place",
    [
        Place(profile_id=20, placement=Placement(start=4, size=1)),
        Place(profile_id=19, placement=Placement(start=7, size=1)),
    ],
)
def test_a_mark_on_a_partition_that_is_not_offered_hits_nothing(node, place):
    assert taints(node.marked({node.uuid(0): (mark(place=place),)})) == {}


def test_nothing_but_taints_changes(node):
    before = node.offer()
    after = mark_offer(before, Situation(marks={uuid: (mark(),) for uuid in node.numbers}))
    assert {name: replace(device, taints=()) for name, device in devices(after).items()} == devices(before)
    assert list(devices(after)) == list(devices(before))
    assert replace(after, pool=before.pool) == before


def test_without_marks_all_is_as_before(node):
    before = node.offer()
    sick = mark_offer(before, Situation(marks={node.uuid(0): (mark(),)}))
    assert mark_offer(sick, Situation()) == before


def test_whole_gpus_without_mig():
    node = Node("2xl4", "off")
    assert taints(node.marked({node.uuid(1): (mark(), mark(MEMORY, NONE))})) == {
        "gpu-1": {XID: NO_SCHEDULE, MEMORY: NONE}
    }


def test_static_partitions():
    gpu = gpus("1xh100-80gb", mig="on")[0]
    profile = next(one for one in gpu.profiles if one.id == 19)
    instances = tuple(
        MigInstance(
            gpu_instance_id=7 + index,
            compute_instance_id=0,
            uuid=f"MIG-{index}",
            profile_id=19,
            placement=place,
            memory_mib=profile.memory_mib,
        )
        for index, place in enumerate(profile.placements[3:5])
    )
    node = Node(found=[replace(gpu, instances=instances)], mig="static")
    assert set(devices(node.offer())) == {"gpu-0-mig-1g10gb-19-3", ONE_G}
    uuid = node.uuid(0)
    assert taints(node.marked({uuid: (mark(place=HERE),)})) == {ONE_G: {XID: NO_SCHEDULE}}
    assert taints(node.marked({uuid: (mark(),)})).keys() == devices(node.offer()).keys()


def test_a_partition_that_comes_into_being_later_has_the_taints_of_its_gpu():
    gpu = gpus("1xh100-80gb", mig="on")[0]
    profile = next(one for one in gpu.profiles if one.id == 19)
    made = MigInstance(
        gpu_instance_id=7,
        compute_instance_id=0,
        uuid="MIG-1",
        profile_id=19,
        placement=profile.placements[4],
        memory_mib=profile.memory_mib,
    )
    marks = {gpu.uuid: (mark(),)}
    assert devices(Node(found=[gpu], mig="static").offer(marks)) == {}
    assert taints(Node(found=[replace(gpu, instances=(made,))], mig="static").offer(marks)) == {
        ONE_G: {XID: NO_SCHEDULE}
    }


# --- which taints ---------------------------------------------------------------------------------


def test_of_two_with_one_key_the_graver_counts_and_then_the_older(node):
    uuid = node.uuid(0)
    marks = (
        mark(effect=NONE, value="31", since=START - 9),
        mark(effect=NO_EXECUTE, value="95", since=START + 5),
        mark(effect=NO_EXECUTE, value="79", since=START),
        mark(effect=NO_SCHEDULE, value="48", since=START - 5),
    )
    (taint,) = devices(node.marked({uuid: marks}))["gpu-0"].taints
    assert (taint.value, taint.effect, taint.time_added) == ("79", NO_EXECUTE, AT)


def test_a_partition_shows_the_graver_of_its_own_and_its_gpus(node):
    uuid = node.uuid(0)
    graver = node.marked({uuid: (mark(effect=NONE, value="31"), mark(effect=NO_SCHEDULE, value="999", place=HERE))})
    assert {one.value for one in devices(graver)[ONE_G].taints} == {"999"}
    assert {one.value for one in devices(graver)["gpu-0"].taints} == {"31"}
    milder = node.marked({uuid: (mark(effect=NO_EXECUTE, value="95"), mark(effect=NONE, value="31", place=HERE))})
    assert {one.value for one in devices(milder)[ONE_G].taints} == {"95"}


def test_a_taint_for_another_reason_stays_beside_and_the_graver_of_one_key_counts(node):
    uuid = node.uuid(0)
    gone = {"held": {ONE_G: "MIG-1"}, "absent": frozenset({uuid})}
    assert taints(node.marked({}, **gone))[ONE_G] == {LOST: NO_SCHEDULE}
    assert taints(node.marked({uuid: (mark(LOST, NO_EXECUTE),)}, **gone))[ONE_G] == {LOST: NO_EXECUTE}
    assert taints(node.marked({uuid: (mark(LOST, NONE),)}, **gone))[ONE_G] == {LOST: NO_SCHEDULE}
    assert taints(node.marked({uuid: (mark(XID, NONE),)}, **gone))[ONE_G] == {LOST: NO_SCHEDULE, XID: NONE}


def test_a_device_that_is_kept_for_its_claim_is_marked_too():
    node = Node(mig="off")
    offer = node.marked({node.uuid(0): (mark(effect=NO_EXECUTE),)}, held={ONE_G: "MIG-1"})
    assert taints(offer)[ONE_G] == {NOT_OFFERED: NO_SCHEDULE, XID: NO_EXECUTE}


MANY = [
    mark(UNMONITORED, NONE),
    mark(MEMORY, NO_SCHEDULE),
    mark(XID, NO_EXECUTE),
    mark(RECOVERY, NO_EXECUTE),
    mark(LOST, NO_SCHEDULE),
    *(mark(f"example.com/{number}", NO_SCHEDULE) for number in range(20)),
]


def test_no_device_has_more_taints_than_the_api_server_takes(node):
    offer = node.marked({node.uuid(0): tuple(MANY)})
    found = taints(offer)["gpu-0"]
    assert len(found) == 16
    assert {XID, RECOVERY} < found.keys()
    assert NONE not in found.values()
    validate(lay_out(offer.pool))


def test_where_effect_none_is_not_known_four_of_the_gravest_are_told(node):
    offer = node.marked({node.uuid(0): tuple(MANY)}, informational=False, layout=Layout.TOGETHER)
    assert len(taints(offer)["gpu-0"]) == 4
    assert list(taints(offer)["gpu-0"].values())[:2] == [NO_EXECUTE, NO_EXECUTE]
    only_told = node.marked({node.uuid(0): (mark(effect=NONE), mark(MEMORY, NONE, place=HERE))}, informational=False)
    assert taints(only_told) == {}
    beside = node.marked({node.uuid(0): (mark(effect=NONE), mark(MEMORY))}, informational=False)
    assert taints(beside)["gpu-0"] == {MEMORY: NO_SCHEDULE}
    validate(lay_out(offer.pool, Layout.TOGETHER), Layout.TOGETHER)


# --- API servers without taints -------------------------------------------------------------------


def test_without_taints_what_is_sick_is_withheld_unless_it_is_held(node):
    uuid = node.uuid(0)
    before = node.offer(taints=False, held={ONE_G: "MIG-1"})
    after = mark_offer(before, Situation(taints=False, held={ONE_G: "MIG-1"}, marks={uuid: (mark(),)}))
    assert set(devices(before)) - set(devices(after)) == of_gpu(before, 0) - {ONE_G}
    assert taints(after) == {}
    assert devices(after)[ONE_G] is devices(before)[ONE_G]
    assert after.plain == before.plain - of_gpu(before, 0)
    assert after.find("gpu-0") == before.find("gpu-0")
    validate(lay_out(after.pool))


def test_without_taints_what_only_tells_withholds_nothing(node):
    before = node.offer(taints=False)
    after = mark_offer(before, Situation(taints=False, marks={node.uuid(0): (mark(effect=NONE),)}))
    assert (after.pool, after.plain) == (before.pool, before.plain)


def test_without_taints_a_sick_partition_alone_is_withheld(node):
    before = node.offer(taints=False)
    after = mark_offer(before, Situation(taints=False, marks={node.uuid(0): (mark(place=HERE),)}))
    assert set(devices(before)) - set(devices(after)) == {ONE_G}
    assert mark_offer(after, Situation(taints=False)) == before


def test_without_taints_a_node_whose_gpus_are_all_sick_offers_nothing(node):
    after = node.marked({uuid: (mark(),) for uuid in node.numbers}, taints=False)
    assert after.pool.groups == ()
    assert mark_offer(after, Situation(taints=False)).pool == node.offer(taints=False).pool


# --- slices ---------------------------------------------------------------------------------------


def slices(offer, layout=Layout.APART):
    found = lay_out(offer.pool, layout)
    validate(found, layout)
    return [[device.name for device in part.devices] for part in found]


@pytest.mark.parametrize(
    ("machine", "mig", "layout"),
    [
        ("16xh100-80gb", "dynamic", Layout.APART),
        ("16xh100-80gb", "off", Layout.APART),
        ("8xh100-80gb", "dynamic", Layout.TOGETHER),
        ("2xl4", "off", Layout.APART),
    ],
)
@pytest.mark.parametrize("order", [Order.PACKED, Order.SPREAD, Order.NVIDIA])
def test_no_device_moves_to_another_slice_when_taints_come(machine, mig, layout, order):
    node = Node(machine, mig, order=order)
    informational = layout is Layout.APART
    before = node.offer(layout=layout, informational=informational)
    one = Situation(layout=layout, informational=informational, marks={node.uuid(1): (mark(), mark(RECOVERY))})
    every = replace(one, marks={uuid: tuple(MANY) for uuid in node.numbers})
    for situation in (one, every):
        after = mark_offer(before, situation)
        assert slices(after, layout) == slices(before, layout)
        assert taints(after)


def test_a_full_slice_takes_taints():
    single = gpus("1xl4")[0]
    found = [replace(single, uuid=f"GPU-{n}", minor=n, pci_bus_id=f"0000:{n:02x}:00.0") for n in range(130)]
    node = Node(found=found, mig="off")
    before = node.offer()
    assert [len(part) for part in slices(before)] == [64, 64, 2]
    after = mark_offer(before, Situation(marks={"GPU-5": (mark(),), "GPU-64": (mark(),)}))
    assert slices(after) == slices(before)
    assert taints(after).keys() == {"gpu-5", "gpu-64"}


def test_only_the_slice_of_a_sick_gpu_is_another_one():
    node = Node("16xh100-80gb")
    before = node.offer()
    after = mark_offer(before, Situation(marks={node.uuid(7): (mark(effect=NO_EXECUTE),)}))
    pairs = zip(lay_out(before.pool), lay_out(after.pool), strict=True)
    changed = [new for old, new in pairs if old != new]
    assert [{device.name for device in part.devices} for part in changed] == [of_gpu(before, 7)]
    assert taints(after).keys() == of_gpu(before, 7)
    assert len(of_gpu(before, 7)) == 15


# --- the same as a full offer ---------------------------------------------------------------------

NODE = Node("2xh100-80gb")
NAMES = sorted(devices(NODE.offer()))
places = st.sampled_from(
    [
        None,
        None,
        *(Place(profile_id=one.id, placement=place) for one in NODE.gpus[0].profiles for place in one.placements),
    ]
)
a_mark = st.builds(
    Mark,
    key=st.sampled_from([XID, RECOVERY, MEMORY, LOST, UNMONITORED, NOT_OFFERED]),
    value=st.sampled_from(["", "31", "79"]),
    effect=st.sampled_from(EFFECTS),
    since=st.integers(START, START + 3),
    text=st.just("text"),
    place=places,
)
all_marks = st.dictionaries(st.sampled_from(sorted(NODE.numbers)), st.lists(a_mark, max_size=6).map(tuple))
situations = st.fixed_dictionaries(
    {
        "held": st.dictionaries(st.sampled_from(NAMES), st.just("MIG-1"), max_size=4),
        "absent": st.frozensets(st.sampled_from(sorted(NODE.numbers)), max_size=1),
        "taints": st.booleans(),
        "informational": st.booleans(),
        "layout": st.sampled_from([Layout.APART, Layout.TOGETHER]),
    }
)


@settings(max_examples=60, deadline=None)
@given(earlier=all_marks, later=all_marks, fields=situations)
def test_marking_gives_what_a_full_offer_gives_whatever_was_marked_before(earlier, later, fields):
    before = NODE.offer(earlier, **fields)
    after = mark_offer(before, Situation(marks=later, **fields))
    assert after == NODE.offer(later, **fields)
    for device in devices(after).values():
        assert len({taint.key for taint in device.taints}) == len(device.taints)
    sick = {
        name for name in NAMES if any(one.gravity for one in device_marks(after.devices[name], Situation(marks=later)))
    }
    for name in sick & devices(after).keys():
        tainted = any(taint.effect != NONE for taint in devices(after)[name].taints)
        assert tainted if fields["taints"] else name in fields["held"]
    assert fields["held"].keys() <= devices(after).keys()


@given(st.lists(a_mark, max_size=12), places)
def test_marks_are_chosen_by_key_whatever_their_order(marks, place):
    chosen = marks_of(marks, place)
    assert set(chosen) <= set(marks)
    assert [one.taint for one in marks_of(reversed(marks), place)] == [one.taint for one in chosen]
    assert [one.gravity for one in chosen] == sorted((one.gravity for one in chosen), reverse=True)
    for one in marks:
        if one.place in (None, place):
            (winner,) = (other for other in chosen if other.key == one.key)
            assert (winner.gravity, -winner.since) >= (one.gravity, -one.since)
        if one.place is not None and place is None:
            assert one not in chosen


def test_how_grave_and_since_when():
    assert [mark(effect=effect).gravity for effect in EFFECTS] == [0, 1, 2]
    assert Effect.NONE == NONE
    assert mark(since=0).taint.time_added == "1970-01-01T00:00:00Z"
