"""What the kubelet is told of each device: the story of its taints, whatever the API server keeps of them."""

import pytest
from doubles.machines import gpus

from dradriver.gpu.health import EFFECTS, Effect, Mark, Place
from dradriver.gpu.model import Placement
from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import make_offer
from dradriver.gpu.policy import GpuRule, OfferPolicy
from dradriver.gpu.profiles import MigOffer
from dradriver.nodeconfig import Wanted
from dradriver.offering.picture import Picture, Shown
from dradriver.offering.verdicts import told_health
from dradriver.prepare.node import Node
from dradriver.publish import Features
from dradriver.resource import Layout

XID, MEMORY, LOST, UNMONITORED = (
    "gpu.nvidia.com/xid",
    "dradriver.dev/memory",
    "gpu.nvidia.com/gpu-lost",
    "gpu.nvidia.com/unmonitored",
)
ONE_G = "gpu-0-mig-1g10gb-19-4"
HERE = Place(profile_id=19, placement=Placement(start=4, size=1))
GPUS = gpus("2xh100-80gb")
FIRST, SECOND = (gpu.uuid for gpu in GPUS)
NOW = 1_800_000_000


def mark(key=XID, effect=Effect.NO_SCHEDULE, *, text="sick", since=5, place=None):
    return Mark(key=key, effect=effect, since=since, text=text, place=place)


def told(marks=None, *, mig="dynamic", absent=frozenset(), held=None, features=None):
    numbers = number_gpus(GPUS, {})
    policy = OfferPolicy(default=GpuRule(mig=MigOffer(mig)))
    picture = Picture(
        gpus=GPUS,
        numbers=numbers,
        wanted=Wanted(policy=policy),
        features=features,
        absent=absent,
        gone=frozenset(),
        held=held or {},
        marks=marks or {},
    )
    offer = make_offer(GPUS, pool="node-a", policy=policy, numbers=numbers, situation=picture.situation)
    node = Node(gpus={gpu.uuid: gpu for gpu in GPUS}, offer=offer, hardware=None)
    every = list(told_health(Shown(picture=picture, node=node), NOW))
    assert {one.pool for one in every} == {"node-a"}
    assert len({one.device for one in every}) == len(every)
    return {one.device: (one.health.value, one.message, one.since) for one in every}


WELL = ("Healthy", "", NOW)


def test_each_device_is_told_also_those_that_are_well():
    found = told()
    assert len(found) == 30
    assert set(found.values()) == {WELL}


def test_a_sick_partition_is_told_alone_and_a_sick_gpu_with_all_its_partitions():
    alone = told({FIRST: (mark(place=HERE),)})
    assert {name for name, said in alone.items() if said != WELL} == {ONE_G}
    assert alone[ONE_G] == ("Unhealthy", "sick", 5)
    every = told({FIRST: (mark(),)})
    assert {name for name, said in every.items() if said != WELL} == {
        name for name in every if name.startswith("gpu-0")
    }


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([mark(effect=Effect.NONE)], ("Healthy", "sick", 5)),
        ([mark(effect=Effect.NO_SCHEDULE)], ("Unhealthy", "sick", 5)),
        ([mark(effect=Effect.NO_EXECUTE)], ("Unhealthy", "sick", 5)),
        ([mark(UNMONITORED, Effect.NONE)], ("Unknown", "sick", 5)),
        ([mark(UNMONITORED, Effect.NO_SCHEDULE)], ("Unhealthy", "sick", 5)),
        ([mark(), mark(MEMORY)], ("Unhealthy", "sick", 5)),
        (
            [mark(effect=Effect.NONE, text="mild"), mark(MEMORY, text="grave", since=9)],
            ("Unhealthy", "grave; mild", 9),
        ),
        ([mark(UNMONITORED, Effect.NONE, text="deaf"), mark(text="sick")], ("Unhealthy", "sick; deaf", 5)),
    ],
)
def test_the_gravest_decides_and_all_is_told_once(marks, expected):
    assert told({FIRST: tuple(marks)})["gpu-0"] == expected


@pytest.mark.parametrize("effect", EFFECTS)
def test_what_the_api_server_does_not_keep_is_told_all_the_same(effect):
    marks = {FIRST: (mark(effect=effect),)}
    held = {"gpu-0": ""}
    for taints, layout in ((True, Layout.TOGETHER), (False, Layout.APART)):
        features = Features(layout=layout, taints=taints, informational_taints=False)
        assert told(marks, held=held, features=features)["gpu-0"] == told(marks)["gpu-0"]


def test_a_device_that_is_withheld_is_not_told():
    features = Features(layout=Layout.APART, taints=False, informational_taints=False)
    assert told({FIRST: (mark(),)}, features=features).keys() == {name for name in told() if name.startswith("gpu-1")}


def test_a_device_that_is_there_for_its_claim_only_is_told():
    assert told({FIRST: (mark(),)}, mig="off", held={ONE_G: "MIG-1"})[ONE_G] == ("Unhealthy", "sick", 5)


def test_a_gpu_that_is_gone_is_told_with_what_is_known_of_it():
    found = told(absent=frozenset({SECOND}))
    assert found["gpu-0"] == WELL
    health, message, since = found["gpu-1"]
    assert (health, since) == ("Unhealthy", NOW)
    assert SECOND in message
    known = told({SECOND: (mark(LOST, Effect.NO_EXECUTE, text="lost"),)}, absent=frozenset({SECOND}))
    assert known["gpu-1"] == ("Unhealthy", "lost", 5)
