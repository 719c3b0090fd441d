"""Which configuration holds for this node, and what to tell if it is not the one that was asked for. No I/O.

Who asks for what cannot be given keeps what he had: a configuration that is broken stays as it was last read, and a
label that names none changes nothing. Only a node that never had anything falls back, to what it would have without
its label.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dradriver import api
from dradriver.gpu.health import HealthWishes
from dradriver.gpu.policy import OfferPolicy
from dradriver.nodeconfig.memory import Remembered
from dradriver.nodeconfig.wanted import Labels, Wanted

if TYPE_CHECKING:
    from dradriver.api.node_config import Decoded, HealthPolicy, NodeConfig
    from dradriver.api.problems import Problem

DEFAULT_NAME: Final = "default"
"""The configuration of nodes without the label."""

_ALLOCATIONS: Final = (api.Allocation.DRA, api.Allocation.HOLD, api.Allocation.DEVICE_PLUGIN)
_MOST_TOLD: Final = 10
"""Mistakes that are told one by one; an Event has little room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _InForce:
    """A configuration, and the health policy that it names; no name and None for the flags alone."""

    name: str = ""
    config: "NodeConfig | None" = None
    health: "HealthPolicy | None" = None


class Choice:
    """Knows what the file says, or said last, and chooses from that. For one thread.

    Args:
        path: of the file, None without one.
        defaults: what the flags say.
    """

    def __init__(self, path: Path | None, defaults: OfferPolicy) -> None:
        self._path = path
        self._defaults = defaults
        # Per name the newest version without mistakes.
        self._known: dict[str, _InForce] = {}
        self._file: Decoded | None = None
        self._in_force: _InForce | None = None
        self._labels: Labels | None = None
        self._allocation: str = api.Allocation.DRA

    # --- what there is to choose from -----------------------------------------------------------------

    def take(self, file: "Decoded | None") -> None:
        """Take over what the file says now, None where it is missing; what is broken in it stays as it was."""
        self._file = file
        if file is not None and not file.problems:
            kept = {name: self._known[name] for name in file.broken if name in self._known}
            self._known = kept | {
                name: _InForce(name=name, config=config, health=file.health_policy(config))
                for name, config in file.configs.items()
            }

    def recall(self, remembered: Remembered, config: "NodeConfig | None", health: "HealthPolicy | None" = None) -> None:
        """Go on from what held in an earlier process; to be called after the first `take`.

        Args:
            remembered: what held.
            config: its configuration; None for the flags alone, and where it cannot be understood any more.
            health: the health policy that it names; None where it names none, and likewise.
        """
        self._labels = remembered.labels
        if remembered.allocation in _ALLOCATIONS:
            self._allocation = remembered.allocation
        name = remembered.name
        # A file that is missing from the start is somebody's decision, a mistake in it is none.
        if self._file is None or (name and config is None):
            return
        self._in_force = _InForce(name=name, config=config, health=health)
        if config is not None and self._broken(name):
            self._known[name] = self._in_force

    # --- choosing -------------------------------------------------------------------------------------

    def choose(self, labels: Labels | None, *, settled: bool, trouble: str = "") -> Wanted:
        """Say what holds now.

        Args:
            labels: of the node, None where they are not known: those that were known last are meant.
            settled: the labels were known at any time since this process started.
            trouble: why labels are not known, "" if they are.
        """
        # An order is obeyed while it stands there, labels count until others are seen. One that cannot be read is not
        # one that was taken away: it would be obeyed again when it is seen again.
        clear = None if labels is None else labels.clear
        self._labels = labels or self._labels
        if self._labels is None:
            # Only the flags can have been in force before.
            return self._wanted(_InForce(), settled=settled, problems=[trouble], clear=clear)
        allocation = self._labels.allocation or api.Allocation.DRA
        if allocation in _ALLOCATIONS:
            self._allocation = allocation
        self._in_force = self._chosen(self._labels.config)
        problems = [trouble, *self._file_problems(self._labels.config), *self._allocation_problems(allocation)]
        return self._wanted(self._in_force, settled=settled, problems=problems, clear=clear)

    def to_remember(self) -> Remembered:
        """Give what the next process has to know."""
        in_force = self._in_force or _InForce()
        return Remembered(
            labels=replace(self._labels or Labels(), clear=""),
            allocation=self._allocation,
            name=in_force.name,
            config=None if in_force.config is None else _encoded(in_force.config),
            health=None if in_force.health is None else _encoded_policy(in_force.health),
        )

    def _chosen(self, label: str) -> _InForce:
        name = label or DEFAULT_NAME
        if name in self._known:
            return self._known[name]
        if not label and not self._broken(DEFAULT_NAME):
            return _InForce()
        if self._in_force is not None:
            return self._in_force
        return self._known.get(DEFAULT_NAME, _InForce())

    def _broken(self, name: str) -> bool:
        return self._file is not None and (bool(self._file.problems) or name in self._file.broken)

    def _wanted(self, in_force: _InForce, *, settled: bool, problems: Iterable[str], clear: str | None) -> Wanted:
        config = in_force.config
        return Wanted(
            policy=self._defaults if config is None else _policy(config, self._defaults),
            name=in_force.name,
            health_policy="" if config is None else config.health_policy or "",
            health=HealthWishes() if in_force.health is None else _wishes(in_force.health),
            allocation=self._allocation,
            settled=settled,
            problems=tuple(filter(None, problems)),
            clear=clear,
        )

    # --- telling --------------------------------------------------------------------------------------

    def _file_problems(self, label: str) -> list[str]:
        """Say what keeps the wanted configuration from being in force, and what is instead."""
        told = self._faults(label)
        if not told:
            return []
        name = self._in_force.name if self._in_force is not None else ""
        holds = f"configuration {name!r} holds, as it was last read" if name else "the flags of the plugin hold"
        return [*told, f"node configuration: until this is corrected, {holds}"]

    def _faults(self, label: str) -> list[str]:
        asked = f"node label {api.CONFIG_LABEL}={label}"
        if self._path is None:
            return [f"{asked} names a configuration, but the plugin was started without --node-config"] * bool(label)
        if self._file is None:
            return [f"{self._path}: there is no such file; put the node configurations there, or drop --node-config"]
        name = label or DEFAULT_NAME
        mistakes = self._file.problems_of(name)
        if mistakes:
            return _told(self._path, mistakes)
        if label and label not in self._file.configs:
            there = _list([*self._file.configs, *self._file.broken])
            return [f"{asked}: {self._path} has no such configuration; there is {there}"]
        return []

    def _allocation_problems(self, allocation: str) -> list[str]:
        if allocation in _ALLOCATIONS:
            return []
        allowed = ", ".join(_ALLOCATIONS)
        label = f"{api.ALLOCATION_LABEL}={allocation}"
        return [f"node label {label} is none of {allowed}; the node stays with {self._allocation}"]


def _told(path: Path, mistakes: "tuple[Problem, ...]") -> list[str]:
    told = [f"{path}: {mistake}" for mistake in mistakes[:_MOST_TOLD]]
    more = len(mistakes) - _MOST_TOLD
    return [*told, f"{path}: {more} more mistakes, see `dradriver config check`"] if more > 0 else told


def _list(names: Iterable[str]) -> str:
    """Name them, as many as an Event has room for."""
    found = sorted(names)
    more = f" and {len(found) - _MOST_TOLD} more" if len(found) > _MOST_TOLD else ""
    return ", ".join(found[:_MOST_TOLD]) + more or "none"


def _policy(config: "NodeConfig", defaults: OfferPolicy) -> OfferPolicy:
    # Takes pydantic, which has been loaded where there is a configuration.
    from dradriver.nodeconfig.policy import make_policy  # noqa: PLC0415

    return make_policy(config, defaults)


def _wishes(policy: "HealthPolicy") -> HealthWishes:
    from dradriver.nodeconfig.policy import make_wishes  # noqa: PLC0415 (likewise)

    return make_wishes(policy)


def _encoded(config: "NodeConfig") -> dict[str, object]:
    from dradriver.api.node_config import encode_config  # noqa: PLC0415 (likewise)

    return encode_config(config)


def _encoded_policy(policy: "HealthPolicy") -> dict[str, object]:
    from dradriver.api.node_config import encode_policy  # noqa: PLC0415 (likewise)

    return encode_policy(policy)
