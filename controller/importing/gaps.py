"""What will not be as it was: one entry for each thing, with the reason, whom it touches and what to do."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final


class Weight(Enum):
    """How much it matters; the value is the word for people."""

    BREAKS = "breaks"
    """Pods that run today will not run, or will not get what they ask for."""
    DIFFERS = "differs"
    """Pods run, and something that people or programs may rely on is otherwise."""
    NOTE = "note"
    """Nothing is lost; good to know."""


_ORDER: Final = {weight: place for place, weight in enumerate(Weight)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One thing that will not be as it was.

    Attributes:
        what: what is otherwise, a sentence.
        why: the reason, a sentence.
        todo: what to do about it, a sentence.
        weight: how much it matters.
        place: the field of the device plugin's configuration that it comes from; "" where it comes from none.
        configs: names of the configurations that have it.
        nodes: names of the nodes that it touches, as far as nodes were looked at.
        users: names of pods and of what makes pods.
        limits: names of quotas and queues.
    """

    what: str
    why: str
    todo: str
    weight: Weight = Weight.DIFFERS
    place: str = ""
    configs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()


def gather(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Make one entry of those that say the same of several configurations; the weightiest come first."""
    merged: dict[tuple[str, str], Gap] = {}
    for gap in gaps:
        key = (gap.place, gap.what)
        merged[key] = _together(merged[key], gap) if key in merged else gap
    return tuple(sorted(merged.values(), key=lambda gap: (_ORDER[gap.weight], not gap.place, gap.place)))


def _together(one: Gap, other: Gap) -> Gap:
    return replace(
        one,
        configs=_union(one.configs, other.configs),
        nodes=_union(one.nodes, other.nodes),
        users=_union(one.users, other.users),
        limits=_union(one.limits, other.limits),
    )


def _union(one: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*one, *other)))
