"""Looks at the pods that wait, with what the watcher knows, now and again while there are any."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from controller.api import Bridge
from controller.bridges import Waiting, matches
from controller.pending.explaining import Explanation, Facts, explain
from controller.pending.quotas import used_up
from controller.pending.summary import summarize
from controller.pending.supply import Supply, supply_of
from controller.pending.waiters import PATIENCE_SECONDS, Waiters
from controller.watching import PodShape, SeenPod, Watcher

DOMAIN: Final = "nvidia.com/"
"""Names in it are ours to explain, also where nobody has made a bridge."""

_MOST_COMPARED: Final = 200
"""Shapes of pods that are compared with nodes and numbers in one look. There are that many only where the scheduler has
something else to say of each; the others are explained like the first that wants the same."""


Wants: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look gave.

    Attributes:
        tell: pods that are to get an Event.
        waiting: for the bridges of each resource name; None as long as nobody can have waited long enough.
        again: whether another look is due though nothing changes.
    """

    tell: Sequence[tuple[SeenPod, Explanation]]
    waiting: Mapping[str, Waiting] | None
    again: bool


class Looker:
    """Explains pods. Not for several threads.

    Args:
        watcher: whose census was brought up to date.
        clock: monotonic seconds.
    """

    def __init__(self, watcher: Watcher, clock: Callable[[], float]) -> None:
        self._watcher = watcher
        self._clock = clock
        self._waiters = Waiters(clock)
        self._begun: float | None = None

    def look(self, bridges: Iterable[Bridge]) -> Look:
        """Look at all pods.

        Args:
            bridges: all of the cluster, with their statuses.
        """
        if self._begun is None:
            self._begun = self._clock()
        known = _bridges_of_names(bridges)
        outcome = self._waiters.look(self._watcher.pods(), _Explainer(self._watcher, known).explain)
        is_early = self._clock() - self._begun < PATIENCE_SECONDS
        quotas = self._watcher.quotas()
        waiting = {
            name: Waiting(
                pods=len(outcome.waiting.get(name, ())),
                condition=summarize(
                    outcome.waiting.get(name, ()), used_up(quotas, name, bridge.spec.device_class_name)
                ),
            )
            for name, bridge in known.items()
        }
        return Look(tell=outcome.tell, waiting=None if is_early else waiting, again=outcome.again or is_early)


def _bridges_of_names(bridges: Iterable[Bridge]) -> dict[str, Bridge]:
    """The bridge that has each name: the oldest that is not being deleted."""
    found: dict[str, Bridge] = {}
    for bridge in sorted(bridges, key=lambda each: (each.deleting, each.created, each.name)):
        found.setdefault(bridge.spec.resource_name, bridge)
    return found


class _Explainer:
    """Explains shapes of pods in one look, and gathers what is known of a resource once."""

    def __init__(self, watcher: Watcher, bridges: Mapping[str, Bridge]) -> None:
        self._census = watcher.census
        self._bridges = bridges
        self._carriers: dict[str, list[str]] = defaultdict(list)
        for each in watcher.classes().values():
            self._carriers[each.extended_name].append(each.name)
        self._kinds = watcher.census.kinds()
        self._served = [
            name
            for name, bridge in bridges.items()
            if any(matches(bridge.spec.select, kind) for kind in self._kinds) and not bridge.deleting
        ]
        self._facts: dict[str, Facts] = {}
        self._by_wants: dict[Wants, Sequence[Explanation]] = {}
        self._compared = 0

    def explain(self, shape: PodShape) -> Sequence[Explanation]:
        """Say why pods of a shape wait; what is certain comes first."""
        self._compared += 1
        if self._compared > _MOST_COMPARED and shape.wants in self._by_wants:
            return self._by_wants[shape.wants]
        total = sum(count for name, count in shape.wants if name in self._bridges)
        found = [explain(shape, count, total, self._of(name)) for name, count in shape.wants if self._is_ours(name)]
        explanations = sorted(found, key=lambda each: not each.is_certain)
        self._by_wants.setdefault(shape.wants, explanations)
        return explanations

    def _is_ours(self, name: str) -> bool:
        return name in self._bridges or (name.startswith(DOMAIN) and not self._carriers.get(name))

    def _of(self, name: str) -> Facts:
        if name not in self._facts:
            self._facts[name] = self._gather(name)
        facts = self._facts[name]
        return facts if self._compared <= _MOST_COMPARED else replace(facts, nodes={})

    def _gather(self, name: str) -> Facts:
        bridge = self._bridges.get(name)
        plugin = self._census.plugin_nodes(name)
        return Facts(
            resource_name=name,
            bridge=bridge,
            carriers=tuple(self._carriers.get(name, ())),
            supply=self._supply(bridge, plugin),
            plugin=plugin,
            nodes=self._census.known_nodes,
            kinds=self._kinds,
            known=self._served,
        )

    def _supply(self, bridge: Bridge | None, plugin: Mapping[str, int]) -> Supply | None:
        if bridge is None or bridge.spec.select.cel:
            return None
        return supply_of(self._census.places(partial(matches, bridge.spec.select)), plugin)
