"""The order in which we publish devices, as the real scheduler follows it: the first one that fits.

What fits is asked of the simulated hardware, GPU by GPU, so that the answer does not come from our counters.
"""

import random
from dataclasses import dataclass, field, replace

import pytest
from doubles.machines import gpus
from doubles.packings import Packings, Place, packings
from support.manifests import request
from support.stage import Stage

from dradriver.gpu.model import Gpu
from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import Offer, make_offer
from dradriver.gpu.policy import GpuRule, OfferPolicy, Order
from dradriver.gpu.profiles import MigOffer, parse_choice
from dradriver.resource import Device, Slice, lay_out
from dradriver.simulation.models import MODELS

pytestmark = pytest.mark.control_plane

MIXED = ("h100-80gb", "t4", "a30", "h100-80gb", "rtx-pro-6000", "l4")
NODES = {
    "h100": ("h100-80gb", "h100-80gb"),
    "rtx": ("rtx-pro-6000", "rtx-pro-6000"),
    "a30": ("a30", "a30", "a30"),
    "mixed": MIXED,
}
STEPS = 16
GIB = 2**30


def machine(models: tuple[str, ...]) -> tuple[Gpu, ...]:
    """A node with these GPUs, in the order of their bus ids. MIG mode is on where there is one."""
    kinds = {model: iter(gpus(f"{models.count(model)}x{model}", mig=mig(model))) for model in models}
    found = (next(kinds[model]) for model in models)
    return tuple(replace(gpu, minor=n, pci_bus_id=f"0000:{n:02x}:00.0") for n, gpu in enumerate(found))


def mig(model: str) -> str:
    return "on" if MODELS[model].mig_capable else ""


def offer(models: tuple[str, ...], *, order: Order, profiles: str = "all") -> Offer:
    rule = GpuRule(mig=MigOffer.DYNAMIC, profiles=parse_choice(profiles))
    found = machine(models)
    policy = OfferPolicy(default=rule, order=order)
    return make_offer(found, pool="any", policy=policy, numbers=number_gpus(found, {}))


def hardware(gpu: Gpu) -> Packings:
    model = next(name for name, model in MODELS.items() if model.product == gpu.product_name)
    return packings(f"1x{model}", frozenset(profile.id for profile in gpu.profiles), whole=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a pod asks for: a profile, a whole GPU (both empty), or so much memory of anything, in bytes."""

    profile: str = ""
    memory: int = 0

    def fits(self, device: Device) -> bool:
        if self.memory:
            return device.capacity["memory"] >= self.memory
        return device.attributes.get("profile", "") == self.profile

    def request(self, stage: Stage):
        if self.memory:
            return request("it", stage.any, f"{stage.capacity('memory')}.compareTo(quantity('{self.memory}')) >= 0")
        if self.profile:
            return request("it", stage.mig, f"{stage.attribute('profile')} == '{self.profile}'")
        return request("it", stage.gpu)


@dataclass(kw_only=True)
class Node:
    """What is published, and what is in use."""

    offer: Offer
    used: set[str] = field(default_factory=set)

    @property
    def slices(self) -> tuple[Slice, ...]:
        return lay_out(self.offer.pool)

    @property
    def devices(self) -> list[Device]:
        """In the order in which they are published."""
        return [device for part in self.slices for device in part.devices]

    def first(self, wish: Wish) -> Device | None:
        """The first device that does and that the hardware can give."""
        return next((device for device in self.devices if wish.fits(device) and self._is_free(device.name)), None)

    def _is_free(self, name: str) -> bool:
        gpu = self.offer.devices[name].gpu
        beside = [other for other in self.used if self.offer.devices[other].gpu is gpu]
        if any(self._place(other) is None for other in [*beside, name]):
            return not beside
        return hardware(gpu).holds(self._place(other) for other in [*beside, name])

    def _place(self, name: str) -> Place | None:
        device = self.offer.devices[name]
        return Place(device.profile.id, device.placement.start) if device.profile and device.placement else None

    def random_wish(self, chance: random.Random) -> Wish:
        device = chance.choice(self.devices)
        if chance.random() < 0.4:
            return Wish(memory=device.capacity["memory"])
        return Wish(profile=str(device.attributes.get("profile", "")))


def give(stage: Stage, nodes: dict[str, Node], wishes: dict[str, Wish], *, step: int) -> dict[str, str]:
    """One pod on each node; names of the devices they got, "" where there was none."""
    stage.add_pods({f"{name}-{step}": (name, [wish.request(stage)]) for name, wish in wishes.items()})
    said = stage.verdicts([f"{name}-{step}" for name in wishes])
    got = {name: "".join(said[f"{name}-{step}"].devices) for name in wishes}
    for name, device in got.items():
        nodes[name].used |= {device} - {""}
    return got


@pytest.fixture
def stage(admin, control_plane):
    with Stage(admin, control_plane.kubeconfig) as made:
        yield made


def test_pods_get_the_first_device_that_fits_in_the_order_of_publishing(stage):
    chance = random.Random(1)
    nodes = {
        f"{name}-{order}": Node(offer=offer(models, order=order)) for name, models in NODES.items() for order in Order
    }
    stage.add_nodes({name: node.slices for name, node in nodes.items()})
    with stage.scheduler():
        for step in range(STEPS):
            wishes = {name: node.random_wish(chance) for name, node in nodes.items()}
            expected = {name: nodes[name].first(wish) for name, wish in wishes.items()}
            got = give(stage, nodes, wishes, step=step)
            assert got == {name: device.name if device else "" for name, device in expected.items()}, wishes
    assert sum(len(node.used) for node in nodes.values()) > len(nodes) * STEPS / 3


def drain(stage: Stage, nodes: dict[str, Node], wish: Wish) -> dict[str, list[str]]:
    """Ask every node for the same until it has no more; the devices they gave, in that order."""
    given: dict[str, list[str]] = {name: [] for name in nodes}
    open_ = dict.fromkeys(nodes, wish)
    for step in range(100):
        for name, device in give(stage, nodes, open_, step=step).items():
            if device:
                given[name].append(device)
            else:
                del open_[name]
        if not open_:
            break
    return given


def test_loose_requests_leave_whole_gpus_to_the_end(stage):
    """GPUs without partitions have less than all others and come first of the whole ones, but after all partitions."""
    nodes = {
        f"{profiles}-{name}": Node(offer=offer(NODES[name], order=Order.PACKED, profiles=profiles))
        for profiles in ("standard", "all")
        for name in ("h100", "mixed")
    }
    stage.add_nodes({name: node.slices for name, node in nodes.items()})
    with stage.scheduler():
        given = drain(stage, nodes, Wish(memory=5 * GIB))
    for name, devices in given.items():
        kinds = ["mig" if "-mig-" in device else "gpu" for device in devices]
        assert kinds == sorted(kinds, reverse=True), (name, devices)
        wholes = [nodes[name].offer.devices[device].gpu.product_name for device in devices if "-mig-" not in device]
        assert wholes == ([] if "h100" in name else ["Tesla T4", "NVIDIA L4"])
        assert kinds.count("mig") == (14 if "h100" in name else 7 + 4 + 7 + 4)


def test_in_nvidia_s_order_loose_requests_take_whole_gpus_first(stage):
    nodes = {"node": Node(offer=offer(NODES["h100"], order=Order.NVIDIA))}
    stage.add_nodes({"node": nodes["node"].slices})
    with stage.scheduler():
        assert drain(stage, nodes, Wish(memory=5 * GIB)) == {"node": ["gpu-0", "gpu-1"]}


def test_partitions_are_packed_or_spread_as_asked(stage):
    """Eight small partitions of two GPUs: seven of one and one of the other, or four of each."""
    nodes = {str(order): Node(offer=offer(NODES["h100"], order=order)) for order in (Order.PACKED, Order.SPREAD)}
    stage.add_nodes({name: node.slices for name, node in nodes.items()})
    with stage.scheduler():
        wishes = dict.fromkeys(nodes, Wish(profile="1g.10gb"))
        given = [give(stage, nodes, wishes, step=step) for step in range(8)]
    on_first = {name: [got[name].startswith("gpu-0-") for got in given] for name in nodes}
    assert on_first == {"packed": [True] * 7 + [False], "spread": [True, False] * 4}


def test_packed_partitions_leave_room_for_the_largest_one(stage):
    """Three slices taken: the other four lie side by side, which they do not where places are taken by name."""
    nodes = {
        str(order): Node(offer=offer(("h100-80gb",), order=order, profiles="standard"))
        for order in (Order.PACKED, Order.NVIDIA)
    }
    stage.add_nodes({name: node.slices for name, node in nodes.items()})
    with stage.scheduler():
        for step in range(3):
            give(stage, nodes, dict.fromkeys(nodes, Wish(profile="1g.10gb")), step=step)
        got = give(stage, nodes, dict.fromkeys(nodes, Wish(profile="4g.40gb")), step=3)
    assert got == {"packed": "gpu-0-mig-4g40gb-5-0", "nvidia": ""}
