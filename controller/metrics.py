"""What the controller counts, for Prometheus. No label holds the name of an object."""

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from controller.api import BridgeStatus, ConditionType
from controller.bridges import BaseState

_STATES: Final = ("ready", "conflict", "degraded", "other")
_BASE_STATES: Final = tuple(map(str, BaseState))


class Metrics:
    """Every metric of one controller, in a registry of its own.

    Args:
        version: of this program.
        wall_clock: Unix time in seconds.
    """

    def __init__(self, *, version: str, wall_clock: Callable[[], float] = time.time) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's last untyped function
        self.registry = CollectorRegistry()
        self._wall_clock = wall_clock
        self._leader = Gauge("dradriver_controller_leader", "1 while this process leads.", registry=self.registry)
        bridges = Gauge(
            "dradriver_controller_bridges", "ExtendedResourceBridges by state.", ["state"], registry=self.registry
        )
        self._bridges = {state: bridges.labels(state) for state in _STATES}
        base = Gauge(
            "dradriver_controller_base_classes",
            "Classes gpu.nvidia.com and mig.nvidia.com by who has them; differs: somebody else, with other contents.",
            ["state"],
            registry=self.registry,
        )
        self._base = {state: base.labels(state) for state in _BASE_STATES}
        self._pending = Gauge(
            "dradriver_controller_pending_pods",
            "Pods that have waited some seconds for a node and ask for a bridge's resource.",
            registry=self.registry,
        )
        self._actions = Counter(
            "dradriver_controller_actions_total", "Writes by what they do.", ["action"], registry=self.registry
        )
        self._failures = Counter(
            "dradriver_controller_failures_total", "Attempts that failed.", ["reason"], registry=self.registry
        )
        self._label_writes = Counter(
            "dradriver_controller_label_writes_total",
            "Attempts to write a node's labels, by how they ended.",
            ["outcome"],
            registry=self.registry,
        )
        nodes = Gauge(
            "dradriver_controller_labelled_nodes",
            "Nodes with labels of ours, and nodes of whose labels somebody else holds some.",
            ["labels"],
            registry=self.registry,
        )
        self._labelled, self._yielding = nodes.labels("ours"), nodes.labels("foreign")
        self._last_success = Gauge(
            "dradriver_last_success_timestamp_seconds",
            "Unix time at which a loop last did its work.",
            ["loop"],
            registry=self.registry,
        )
        build = Gauge("dradriver_build_info", "Constant 1; what is running.", ["version"], registry=self.registry)
        build.labels(version).set(1)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)

    def set_leading(self, *, leads: bool) -> None:
        """State whether this process leads."""
        self._leader.set(int(leads))

    def set_bridges(self, statuses: Iterable[BridgeStatus]) -> None:
        """State how the bridges are."""
        counts = Tally(_state(status) for status in statuses)
        for state, gauge in self._bridges.items():
            gauge.set(counts[state])

    def set_base_classes(self, states: Iterable[str]) -> None:
        """State how the base classes are."""
        counts = Tally(states)
        for state, gauge in self._base.items():
            gauge.set(counts[state])

    def set_pending(self, pods: int) -> None:
        """State how many pods wait."""
        self._pending.set(pods)

    def acted(self, action: str) -> None:
        """Count a write."""
        self._actions.labels(action).inc()

    def failed(self, reason: str) -> None:
        """Count an attempt that failed, by the class of its error."""
        self._failures.labels(reason).inc()

    def label_written(self, outcome: str) -> None:
        """Count an attempt to write a node's labels, by how it ended."""
        self._label_writes.labels(outcome).inc()

    def set_labelled(self, labelled: int, yielding: int) -> None:
        """State on how many nodes there are labels of ours, and on how many somebody else holds some.

        The labeller has done its work whenever it says so.
        """
        self._labelled.set(labelled)
        self._yielding.set(yielding)
        self.succeeded("labels")

    def succeeded(self, loop: str) -> None:
        """Note that a loop has done its work just now."""
        self._last_success.labels(loop).set(self._wall_clock())


def _state(status: BridgeStatus) -> str:
    """The worst of a bridge's conditions."""
    holding = {condition.type for condition in status.conditions if condition.holds}
    order = (ConditionType.CONFLICT, ConditionType.DEGRADED, ConditionType.READY)
    return next((str(kind).lower() for kind in order if kind in holding), "other")
