"""How much a partition blocks of what its GPU offers, and which places of a profile are to be tried first.

A partition costs more than its own memory slices: it takes a place away from every other partition that would overlap
it. The potential of a GPU is the sum of the sizes of all offered partitions that still have their place; the damage of
a partition is the potential it takes. A GPU that is filled by least damage refuses less.

Nothing here knows a GPU model: all follows from the places that are offered. Engines other than memory slices are left
out, as are variants of a profile with the same places (`+me`, `+gfx`), which would count the same place twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final, TypeAlias

from dradriver.gpu.model import Placement

Places: TypeAlias = tuple[Placement, ...]
"""All places of one profile, ascending and without repetition; profiles with equal ones are one to packing."""

_CERTAIN: Final = 5
_POSSIBLE: Final = 2
"""What a place weighs for each memory slice. Larger profiles are ordered before smaller ones, so their first choice is
known and counts in full; their other places count two fifths, since they are taken only on a GPU that is in use."""


def slices(*placements: Placement) -> int:
    """Tell which memory slices placements cover, as an integer whose bit i stands for slice i."""
    return reduce(or_, (((1 << place.size) - 1) << place.start for place in placements), 0)


def distinct(profiles: Iterable[Iterable[Placement]]) -> tuple[Places, ...]:
    """Reduce profiles to those that packing can tell apart, small ones first.

    Args:
        profiles: of each offered profile its offered places.
    """
    found = {tuple(sorted(set(placements))) for placements in profiles}
    return tuple(sorted((places for places in found if places), key=lambda places: (_size(places), places)))


def potential(profiles: Iterable[Places], occupied: int) -> int:
    """Sum the sizes, in memory slices, of all places that are free.

    Args:
        profiles: as `distinct` gives them.
        occupied: memory slices in use, as `slices` gives them.
    """
    return sum(place.size for places in profiles for place in places if not slices(place) & occupied)


def damage(profiles: Iterable[Places], occupied: int, placement: Placement) -> int:
    """Tell how much potential a partition at that place takes, in memory slices.

    Args:
        profiles: as `distinct` gives them.
        occupied: memory slices in use before, as `slices` gives them.
        placement: a free place, whether of these profiles or not.
    """
    profiles = tuple(profiles)
    return potential(profiles, occupied) - potential(profiles, occupied | slices(placement))


def preferences(profiles: Iterable[Places]) -> dict[Places, Places]:
    """Put the places of every profile in the order in which they are to be tried on any GPU in any state.

    Profiles are ordered from large to small. Each fills an empty GPU by least damage, and of places that do equal
    damage it takes the one that larger profiles want last. Where a profile's places overlap, those that no longer fit
    beside the ones before them follow as if the GPU were empty again.

    Returns:
        Of each profile, as `distinct` gives them, its places in order of preference.
    """
    profiles = distinct(profiles)
    ordered: dict[Places, Places] = {}
    for places in reversed(profiles):
        interests = tuple(_interests(places, profiles, ordered))
        ordered[places] = _fill(places, interests)
    return ordered


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interest:
    """What a place is worth to one profile.

    Attributes:
        slices: the memory slices of the place.
        weight: damage that its loss does.
        lateness: how late a larger profile wants it, times its size.
    """

    slices: int
    weight: int
    lateness: int


def _interests(places: Places, profiles: Sequence[Places], ordered: Mapping[Places, Places]) -> Iterable[_Interest]:
    for other in profiles:
        larger = _size(other) > _size(places)
        for rank, place in enumerate(ordered[other] if larger else other):
            certain = not larger or rank == 0
            yield _Interest(
                slices=slices(place),
                weight=place.size * (_CERTAIN if certain else _POSSIBLE),
                lateness=place.size * rank if larger else 0,
            )


def _fill(places: Places, interests: Sequence[_Interest]) -> Places:
    order: list[Placement] = []
    left, occupied = list(places), 0
    while left:
        free = [place for place in left if not slices(place) & occupied]
        if not free:
            free, occupied = left, 0
        best = min(free, key=lambda place: (*_cost(slices(place), occupied, interests), place))
        order.append(best)
        left.remove(best)
        occupied |= slices(best)
    return tuple(order)


def _cost(wanted: int, occupied: int, interests: Sequence[_Interest]) -> tuple[int, int]:
    hit = [interest for interest in interests if interest.slices & wanted]
    lost = sum(interest.weight for interest in hit if not interest.slices & occupied)
    return lost, -sum(interest.lateness for interest in hit)


def _size(places: Places) -> int:
    return max(place.size for place in places)
