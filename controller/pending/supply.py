"""What there is of a resource, added up once for all pods that want it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from controller.api import DeviceTally


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Numbers of what pods can get through DRA, on nodes where no device plugin serves the name.

    Attributes:
        total: over all of these nodes.
        free: how much is allocatable by node, where there is any; "" for what is bound to no node.
        count: of these nodes.
        most: that any node has, those of the device plugin included.
        most_distinct: devices that any node has through DRA, however many shares they have.
        is_bound: all of it lies on nodes, so that no pod can have more than `most`.
    """

    total: DeviceTally
    free: Mapping[str, int]
    count: int
    most: int
    most_distinct: int
    is_bound: bool

    @property
    def most_free(self) -> int:
        """What is allocatable where most is."""
        return max(self.free.values(), default=0)

    def places_with(self, count: int) -> Collection[str]:
        """Nodes where so much is allocatable."""
        return [node for node, free in self.free.items() if free >= count]


def supply_of(places: Mapping[str, DeviceTally], plugin: Mapping[str, int]) -> Supply:
    """Add up.

    Args:
        places: numbers of a bridge's devices by node.
        plugin: how many of the resource the device plugin has, by node; it keeps DRA from serving it there.
    """
    served = {node: tally for node, tally in places.items() if node not in plugin}
    return Supply(
        total=_sum(served.values()),
        free={node: tally.allocatable for node, tally in served.items() if tally.allocatable},
        count=len(served),
        most=max([tally.published for tally in places.values()] + list(plugin.values()), default=0),
        most_distinct=max((tally.distinct for tally in places.values()), default=0),
        is_bound="" not in places,
    )


def _sum(tallies: Collection[DeviceTally]) -> DeviceTally:
    return DeviceTally(
        published=sum(each.published for each in tallies),
        allocatable=sum(each.allocatable for each in tallies),
        allocated=sum(each.allocated for each in tallies),
        tainted=sum(each.tainted for each in tallies),
        blocked=sum(each.blocked for each in tallies),
    )
