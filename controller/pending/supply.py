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
        has: how much each node has, free or not, as it is served now: through DRA or by its device plugin.
        sound: the same without what is tainted or in an incomplete pool; nobody gets more by waiting until pods end.
        unlimited: nodes with devices that any number of requests can have.
        count: of these nodes.
        most: that any node has, also through DRA where a device plugin serves the name.
        most_distinct: devices that any node has through DRA, however many shares they have.
        is_bound: all of it lies on nodes, so that no pod can have more than `most`.
    """

    total: DeviceTally
    free: Mapping[str, int]
    has: Mapping[str, int]
    sound: Mapping[str, int]
    unlimited: Collection[str]
    count: int
    most: int
    most_distinct: int
    is_bound: bool

    @property
    def most_free(self) -> int:
        """What is allocatable where most is."""
        return max(self.free.values(), default=0)

    @property
    def most_served(self) -> int:
        """What the node has that has most, as it is served now."""
        return max(self.has.values(), default=0)

    def places_with(self, count: int, at_once: int) -> Collection[str]:
        """Nodes where so much is allocatable.

        Args:
            count: that a pod wants.
            at_once: that one of its containers wants, all of them different devices.
        """
        return self._enough(self.free, count, at_once)

    def could_serve(self, count: int, at_once: int) -> Collection[str]:
        """Nodes that have so much, free or not, as it is served now."""
        return self._enough(self.has, count, at_once)

    def is_waited_for(self, count: int, at_once: int) -> bool:
        """Whether so much may become free when pods end, though nothing else changes."""
        return not self.is_bound or bool(self._enough(self.sound, count, at_once))

    def _enough(self, numbers: Mapping[str, int], count: int, at_once: int) -> Collection[str]:
        """Of a device without limit a pod may have the same for several containers."""
        return [
            node for node, number in numbers.items() if number >= (max(at_once, 1) if node in self.unlimited else count)
        ]


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
        has={node: tally.published for node, tally in served.items()} | dict(plugin),
        sound={node: tally.published - tally.tainted - tally.incomplete for node, tally in served.items()}
        | dict(plugin),
        unlimited=frozenset(node for node, tally in places.items() if tally.unlimited) - plugin.keys(),
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
        incomplete=sum(each.incomplete for each in tallies),
    )
