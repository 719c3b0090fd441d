"""Random nodes and what is offered of them: GPUs of mixed kinds, every policy, held and lost devices, many taints."""

import contextlib
import io
import random
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from doubles.machines import gpus
from doubles.packings import packings

from dradriver.gpu.model import Gpu, MigInstance, MigMode, Placement
from dradriver.gpu.names import gpu_name, number_gpus, partition_name
from dradriver.gpu.offer import Offer, Situation, make_offer
from dradriver.gpu.policy import Detail, GpuFilter, GpuRule, OfferPolicy, Order
from dradriver.gpu.profiles import MigOffer, ProfileChoice
from dradriver.resource import Device, Layout, Pool, Taint, limits
from dradriver.resource.validate import EFFECTS
from dradriver.simulation.models import MODELS

MOST_GPUS: Final = 16
_SIZES: Final = (1, 1, 2, 2, 3, 4, 5, 8, MOST_GPUS)
"""Large nodes are slow to write and break few rules that small ones keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomNode:
    """What made an offer, to be shown where that is refused."""

    gpus: tuple[Gpu, ...]
    policy: OfferPolicy
    situation: Situation
    offer: Offer
    pool: Pool


def random_node(seed: int, *, layout: Layout = Layout.APART) -> RandomNode:
    """Make a node; the same one for the same seed."""
    chance = random.Random(seed)
    found = _machine(chance)
    policy = _policy(chance, found)
    situation = _situation(chance, found, layout)
    offer = make_offer(found, pool=f"node-{seed}", policy=policy, numbers=number_gpus(found, {}), situation=situation)
    pool = _with_taints(chance, offer.pool) if chance.random() < 0.5 else offer.pool
    return RandomNode(gpus=found, policy=policy, situation=situation, offer=offer, pool=pool)


def random_taint(chance: random.Random) -> Taint:
    """Any taint that the API allows."""
    prefix = random_subdomain(chance, limits.LABEL_PREFIX_LENGTH)
    name = random_label_text(chance, limits.LABEL_LENGTH)
    return Taint(
        key=f"{prefix}/{name}" if chance.random() < 0.8 else name,
        value=random_label_text(chance, limits.LABEL_LENGTH) if chance.random() < 0.5 else "",
        effect=chance.choice(sorted(EFFECTS)),
        time_added="2026-01-02T03:04:05Z" if chance.random() < 0.3 else None,
    )


def random_label(chance: random.Random, most: int) -> str:
    """A DNS label of at most that many characters, often just as many."""
    return _within(chance, most, inner=string.ascii_lowercase + string.digits + "-")


def random_label_text(chance: random.Random, most: int) -> str:
    """What the value of a label may be, and the end of its key."""
    return _within(chance, most, inner=string.ascii_letters + string.digits + "-_.")


def random_subdomain(chance: random.Random, most: int) -> str:
    """A DNS subdomain of at most that many characters."""
    labels = [random_label(chance, limits.NAME_LENGTH) for _ in range(chance.randint(1, 5))]
    while len(".".join(labels)) > most:
        labels.pop()
    return ".".join(labels) or "a"


def _within(chance: random.Random, most: int, *, inner: str) -> str:
    length = chance.choice((1, 2, chance.randint(1, most), most))
    outer = [letter for letter in inner if letter.isalnum()]
    middle = "".join(chance.choices(inner, k=max(length - 2, 0)))
    return "".join((chance.choice(outer), middle, chance.choice(outer)))[:length].rstrip("-_.") or "a"


# --- GPUs -----------------------------------------------------------------------------------------


@cache
def _sixteen(model: str) -> tuple[Gpu, ...]:
    with contextlib.redirect_stdout(io.StringIO()):
        return gpus(f"{MOST_GPUS}x{model}", mig="on" if MODELS[model].mig_capable else "")


def _machine(chance: random.Random) -> tuple[Gpu, ...]:
    models = chance.sample(sorted(MODELS), chance.choice((1, 1, 2, 4)))
    count = chance.choice(_SIZES)
    return tuple(_gpu(chance, chance.choice(models), number) for number in range(count))


def _gpu(chance: random.Random, model: str, number: int) -> Gpu:
    gpu = _sixteen(model)[number]
    mode = gpu.mig_mode and MigMode(current=chance.random() < 0.7, pending=False)
    return replace(
        gpu,
        minor=chance.choice((number, number, chance.randrange(200))),
        pci_bus_id=f"{chance.randrange(2):04x}:{number:02x}:00.0",
        mig_mode=mode,
        vgpu_guest=chance.random() < 0.05,
        numa_node=chance.choice((None, gpu.numa_node)),
        instances=_instances(chance, model) if mode and mode.current and chance.random() < 0.4 else (),
    )


def _instances(chance: random.Random, model: str) -> tuple[MigInstance, ...]:
    profiles = {profile.id: profile for profile in MODELS[model].profiles}
    places = chance.choice(packings(f"1x{model}", frozenset(profiles), whole=False).cover)
    return tuple(
        MigInstance(
            gpu_instance_id=number,
            compute_instance_id=0,
            uuid=chance.choice((None, f"MIG-{chance.randrange(10**12)}")),
            profile_id=place.profile,
            placement=Placement(start=place.start, size=profiles[place.profile].size),
            memory_mib=chance.choice((None, profiles[place.profile].memory_mib)),
        )
        for number, place in enumerate(chance.sample(places, chance.randint(1, len(places))))
    )


# --- what is wanted of them -----------------------------------------------------------------------


def _policy(chance: random.Random, found: Sequence[Gpu]) -> OfferPolicy:
    return OfferPolicy(
        rules=tuple(
            _rule(chance, found, GpuFilter(indices=frozenset({index})))
            for index in range(len(found))
            if chance.random() < 0.2
        ),
        default=_rule(chance, found, GpuFilter()),
        order=chance.choice(tuple(Order)),
        detail=chance.choice(tuple(Detail)),
    )


def _rule(chance: random.Random, found: Sequence[Gpu], wanted: GpuFilter) -> GpuRule:
    mig = chance.choice((MigOffer.DYNAMIC, MigOffer.DYNAMIC, MigOffer.STATIC, MigOffer.OFF))
    return GpuRule(filter=wanted, mig=mig, profiles=_choice(chance, found))


def _choice(chance: random.Random, found: Sequence[Gpu]) -> ProfileChoice:
    names = sorted({profile.name for gpu in found for profile in gpu.profiles})
    if names and chance.random() < 0.3:
        return ProfileChoice(names=frozenset(chance.sample(names, chance.randint(1, len(names)))))
    return ProfileChoice(rule=chance.choice(("standard", "all")))


def _situation(chance: random.Random, found: Sequence[Gpu], layout: Layout) -> Situation:
    numbers = number_gpus(found, {})
    possible = [name for gpu in found for name in _names(gpu, numbers[gpu.uuid])]
    held = chance.sample(possible, min(len(possible), chance.choice((0, 0, 1, 3))))
    return Situation(
        held={name: chance.choice(("", "MIG-1234")) for name in held},
        absent=frozenset(gpu.uuid for gpu in found if chance.random() < 0.1),
        layout=layout,
    )


def _names(gpu: Gpu, number: int) -> Iterable[str]:
    yield gpu_name(number)
    for profile in gpu.profiles:
        for placement in profile.placements:
            yield partition_name(number, profile, placement)


# --- taints ---------------------------------------------------------------------------------------


def _with_taints(chance: random.Random, pool: Pool) -> Pool:
    often = chance.choice((0.05, 0.3, 1.0))
    change = _tainter(chance, often)
    groups = tuple(replace(group, devices=tuple(map(change, group.devices))) for group in pool.groups)
    return replace(pool, groups=groups)


def _tainter(chance: random.Random, often: float) -> Callable[[Device], Device]:
    def tainted(device: Device) -> Device:
        if chance.random() >= often:
            return device
        room = limits.TAINTS_PER_DEVICE - len(device.taints)
        made = [random_taint(chance) for _ in range(chance.choice((1, 2, room)))]
        return replace(device, taints=(*device.taints, *{(taint.key, taint.effect): taint for taint in made}.values()))

    return tainted
