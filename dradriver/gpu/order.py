"""In which order the scheduler is to try the devices of a node, and which of them share a slice.

The scheduler takes the first device that fits, slice after slice and within a slice in list order. So the order is the
policy: for a request that names a profile it chooses the place, for one that only says how much it needs it also
chooses how much too much it gets.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Generic, Protocol, TypeAlias, TypeVar

from dradriver.gpu import packing
from dradriver.gpu.model import MigProfile, Placement
from dradriver.gpu.policy import Order
from dradriver.resource import CounterSet, Device, DeviceGroup, limits


class Named(Protocol):
    """Something with the name of a device."""

    @property
    def name(self) -> str:
        """Name of the device."""


class Orderable(Named, Protocol):
    """What the order depends on: a whole GPU has neither profile nor placement, a partition has both."""

    @property
    def profile(self) -> MigProfile | None:
        """What kind of partition it is."""

    @property
    def placement(self) -> Placement | None:
        """Where it lies."""


T = TypeVar("T", bound=Orderable)


def in_order(
    gpus: Iterable[Iterable[T]], order: Order, *, free: Mapping[str, int] = MappingProxyType({})
) -> tuple[tuple[T, ...], ...]:
    """Divide the devices of a node into groups, and put groups and devices in the order they shall be tried in.

    `packed`: a group for each GPU, its partitions first, small before large and the least harmful place first, and the
    whole GPU behind them. A whole GPU is free only while its partitions are, so a request that would be content with a
    partition never reaches it as long as all GPUs offer the same profiles. Where they do not, whole GPUs follow after
    all partitions of the node (see `_wholes_apart`).

    `spread`: for each profile, small before large, the first place of every GPU, then the second of every GPU; whole
    GPUs at the very end; at most 64 devices in a group. Load is even, at a price: large partitions and whole GPUs are
    soon blocked, the devices of one GPU lie in several slices, and so a change of one GPU is several writes. Of whole
    GPUs, and of partitions of one profile, those with most free shares come first.

    `nvidia`: a group for each GPU, devices by name, so that the whole GPU comes first.

    Args:
        gpus: of each GPU, in the order of PCI bus ids, its devices; in which order they come is of no account.
        order: one of these.
        free: how many shares of each device that several claims may have are free; others count as one.

    Returns:
        Groups, none of them empty; each is to become a slice.
    """
    # A GPU that offers nothing must not make the others look unlike one another.
    devices = [gpu for gpu in map(_read, gpus) if gpu.profiles or gpu.wholes]
    if order is Order.NVIDIA:
        arranged = [sorted((*gpu.partitions, *gpu.wholes), key=_by_name) for gpu in devices]
    elif order is Order.SPREAD:
        arranged = _spread(devices, free)
    else:
        arranged = _packed(devices)
    return tuple(tuple(group) for group in arranged if group)


def regroup(groups: Iterable[DeviceGroup], arranged: Iterable[Iterable[Named]]) -> tuple[DeviceGroup, ...]:
    """Divide the devices of a pool anew.

    Args:
        groups: a group for each GPU.
        arranged: devices as `in_order` gives them; those that no group has are skipped.

    Returns:
        Groups as arranged. What is not arranged stands at the head of the first group with a device of the same GPU,
        or of all groups where there is none; each counter set lies with the first device that consumes from it.
    """
    groups = tuple(groups)
    counter_sets = {counter_set.name: counter_set for group in groups for counter_set in group.counter_sets}
    made = _divided(groups, [[named.name for named in names] for names in arranged])
    return tuple(_with_counter_sets(members, counter_sets) for members in made if members)


def _divided(groups: Sequence[DeviceGroup], arranged: Sequence[Sequence[str]]) -> list[list[Device]]:
    devices = {device.name: device for group in groups for device in group.devices}
    where = {name: index for index, names in enumerate(arranged) for name in names}
    ahead: list[list[Device]] = []
    made = [[devices[name] for name in names if name in devices] for names in arranged]
    for group in groups:
        rest = [device for device in group.devices if device.name not in where]
        found = [where[device.name] for device in group.devices if device.name in where]
        if found:
            made[min(found)][:0] = rest
        else:
            ahead.append(rest)
    return [*ahead, *made]


def _with_counter_sets(members: Sequence[Device], waiting: dict[str, CounterSet]) -> DeviceGroup:
    """Make a group with those counter sets of its devices that no group before it has."""
    wanted = dict.fromkeys(consumption.counter_set for device in members for consumption in device.consumes)
    found = tuple(waiting.pop(name) for name in wanted if name in waiting)
    return DeviceGroup(devices=tuple(members), counter_sets=found)


_Kind: TypeAlias = tuple[int, int, str, int]
"""Memory slices, compute slices, name and id of a profile. In this order small profiles come before large ones, and a
plain one before its variants, whose names begin with its own. GPUs of one model have the same ones, even where their
memory differs a little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offered(Generic[T]):
    """The devices of one GPU.

    Attributes:
        profiles: kind to partitions, in order of preference.
        wholes: the whole GPU, if it is offered.
    """

    profiles: dict[_Kind, list[T]]
    wholes: list[T]

    @property
    def partitions(self) -> list[T]:
        """All partitions in order."""
        return [device for kind in sorted(self.profiles) for device in self.profiles[kind]]


def _read(devices: Iterable[T]) -> _Offered[T]:
    found: dict[MigProfile, dict[Placement, T]] = {}
    wholes = []
    for device in devices:
        if device.profile is None or device.placement is None:
            wholes.append(device)
        else:
            found.setdefault(device.profile, {})[device.placement] = device
    return _Offered(profiles=dict(_preferred(found)), wholes=wholes)


def _preferred(profiles: Mapping[MigProfile, Mapping[Placement, T]]) -> Iterator[tuple[_Kind, list[T]]]:
    """Order the partitions of a GPU by the places that are offered, which may be fewer than the profiles have."""
    places = {profile: tuple(sorted(found)) for profile, found in profiles.items()}
    preferences = packing.preferences(places.values())
    for profile, found in profiles.items():
        size = max(place.size for place in found)
        kind = (size, profile.compute_slices, profile.name, profile.id)
        yield kind, [found[place] for place in preferences[places[profile]]]


def _by_name(device: Named) -> str:
    return device.name


def _packed(gpus: Sequence[_Offered[T]]) -> list[list[T]]:
    if len({frozenset(gpu.profiles) for gpu in gpus}) == 1:
        return [[*gpu.partitions, *gpu.wholes] for gpu in gpus]
    return [*(gpu.partitions for gpu in gpus), *_wholes_apart(gpus)]


def _wholes_apart(gpus: Sequence[_Offered[T]]) -> Iterator[list[T]]:
    """Give whole GPUs groups of their own, those whose loss takes least from partitions first.

    So GPUs that cannot be partitioned come first, each with a group; which of them is taken makes no difference, hence
    the usual order. Of the others, equal ones come in reverse order: partitions fill GPUs from the front, so the last
    is most likely to be empty and least likely to be needed. They share a group, since each slice has its price.
    """
    yield from (gpu.wholes for gpu in gpus if not gpu.profiles)
    partitionable = [gpu for gpu in reversed(gpus) if gpu.profiles]
    yield [whole for gpu in sorted(partitionable, key=_potential) for whole in gpu.wholes]


def _potential(gpu: _Offered[T]) -> int:
    places = ([device.placement for device in devices if device.placement] for devices in gpu.profiles.values())
    return packing.potential(packing.distinct(places), 0)


def _spread(gpus: Sequence[_Offered[T]], free: Mapping[str, int]) -> list[list[T]]:
    def fullness(device: T) -> int:
        return -free.get(device.name, 1)

    wholes = sorted(chain.from_iterable(_wholes_apart(gpus)), key=fullness)
    devices = [*chain.from_iterable(sorted(kind, key=fullness) for kind in _round_robin(gpus)), *wholes]
    most = limits.DEVICES_PER_SLICE_RESTRICTED
    return [devices[start : start + most] for start in range(0, len(devices), most)]


def _round_robin(gpus: Sequence[_Offered[T]]) -> Iterator[list[T]]:
    """Give for each profile the first place of every GPU, then the second of every GPU."""
    for kind in sorted({kind for gpu in gpus for kind in gpu.profiles}):
        choices = [gpu.profiles.get(kind, []) for gpu in gpus]
        ranks = range(max(len(places) for places in choices))
        yield [places[rank] for rank in ranks for places in choices if rank < len(places)]
