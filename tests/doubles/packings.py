"""What one simulated GPU can hold at once, found by trying everything on the hardware itself.

The hardware knows memory slices, media engines and modes; it does not know the counters that the driver publishes.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from typing import TypeAlias

from dradriver.simulation import hardware
from dradriver.simulation.codes import Refused
from dradriver.simulation.description import build, read_machine
from dradriver.simulation.state import State

WHOLE = "gpu"
"""Stands among profile names for the GPU as a whole, which is free only while no instance is in it."""

Multiset: TypeAlias = tuple[str, ...]
"""Profile names in alphabetical order, each as often as it is wanted."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A profile, by hardware id, at a first memory slice."""

    profile: int
    start: int


class Packings:
    """All sets of GPU instances of the only GPU of a machine.

    Args:
        machine: such as `1xh100-80gb`.
        only: hardware ids of the profiles to be used.
        whole: the GPU can be had undivided, too.

    Attributes:
        names: of the profiles, by hardware id.
        counts: how many of a profile fit on the empty GPU as NVIDIA's listings say it, by name.
        places: where instances can lie.
    """

    def __init__(self, machine: str, only: Collection[int], *, whole: bool) -> None:
        self._empty = build(read_machine(machine), mig=True)
        profiles = [profile for profile in self._empty.gpus[0].profiles if profile.id in only]
        self.names = {profile.id: profile.name for profile in profiles}
        self.counts = {profile.name: profile.count for profile in profiles}
        self.whole = whole
        self.places = tuple(Place(profile.id, start) for profile in profiles for start in profile.starts)

    @property
    def kinds(self) -> tuple[str, ...]:
        """What can be asked for."""
        return (*self.names.values(), *([WHOLE] if self.whole else []))

    def holds(self, places: Iterable[Place]) -> bool:
        """Tell whether the hardware makes instances at all these places, one after another."""
        state: State | None = self._empty
        for place in places:
            state = None if state is None else _with(state, place)
        return state is not None

    @cached_property
    def allowed(self) -> frozenset[Multiset]:
        """Every multiset of profiles that fits in some way, the empty one included."""
        names = {multiset(self.names[place.profile] for place in places) for places in self._all()}
        return frozenset(names | ({(WHOLE,)} if self.whole else set()))

    @cached_property
    def largest(self) -> list[Multiset]:
        """Allowed multisets to which nothing can be added; all others are parts of them."""
        allowed = self.allowed
        return sorted(each for each in allowed if not any(_plus(each, kind) in allowed for kind in self.kinds))

    @cached_property
    def smallest_forbidden(self) -> list[Multiset]:
        """Multisets that do not fit, but do whatever is taken away; every other forbidden one contains one of them."""
        allowed = self.allowed
        more = {_plus(each, kind) for each in allowed for kind in self.kinds} - allowed
        return sorted(each for each in more if all(part in allowed for part in _parts(each)))

    @cached_property
    def cover(self) -> list[tuple[Place, ...]]:
        """A few sets to which nothing can be added, such that any two places that go together are in one of them."""
        left = {pair for pair in combinations(self.places, 2) if self.holds(pair)}
        every = {frozenset(places) for places in self._all()}
        full = [places for places in self._all() if not self._has_room(places, every)]
        chosen = [places for places in full if len(places) == 1]
        while left:
            chosen.append(max(full, key=lambda places: len(left & set(combinations(places, 2)))))
            left -= set(combinations(chosen[-1], 2))
        return chosen

    def _has_room(self, places: tuple[Place, ...], every: Collection[frozenset[Place]]) -> bool:
        return any(frozenset((*places, more)) in every for more in self.places if more not in places)

    def _all(self) -> Iterator[tuple[Place, ...]]:
        return self._extended(self._empty, first=0)

    def _extended(self, state: State, *, first: int) -> Iterator[tuple[Place, ...]]:
        yield ()
        for index in range(first, len(self.places)):
            if (after := _with(state, self.places[index])) is not None:
                for more in self._extended(after, first=index + 1):
                    yield (self.places[index], *more)


@cache
def packings(machine: str, only: frozenset[int], *, whole: bool) -> Packings:
    """The same, made once."""
    return Packings(machine, only, whole=whole)


def multiset(names: Iterable[str]) -> Multiset:
    """Profile names in the order in which they are compared."""
    return tuple(sorted(names))


def _with(state: State, place: Place) -> State | None:
    try:
        after, _ = hardware.create_gpu_instance(state, 0, profile_id=place.profile, start=place.start)
    except Refused:
        return None
    return after


def _plus(names: Multiset, kind: str) -> Multiset:
    return multiset((*names, kind))


def _parts(names: Multiset) -> Iterator[Multiset]:
    return (names[:index] + names[index + 1 :] for index in range(len(names)))
