"""How often a node's labels are written, so that no two programs wear the API server out by undoing each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_LEAST: Final = 2.0
_MOST: Final = 300.0
_CALM: Final = 600.0
"""Seconds after which a node that was left in peace may be written at once again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The last write to a node: when, which labels (as a number), and seconds until the same ones may be written."""

    at: float
    labels: int
    delay: float


@dataclass(slots=True)
class Pace:
    """Time between writes to one node.

    The same labels are written again because somebody undid it: twice as late each time, until they were left in peace
    for a while. Other labels, of a node that has changed, need not wait for that.

    Attributes:
        least: seconds after any write.
        most: seconds that it never exceeds.
    """

    least: float = _LEAST
    most: float = _MOST
    _last: dict[str, _Written] = field(default_factory=dict)

    def wait(self, node: str, labels: Mapping[str, str], *, now: float) -> float:
        """Seconds until the node may be given these labels; 0 for at once."""
        last = self._last.get(node)
        if last is None:
            return 0.0
        delay = last.delay if last.labels == _number(labels) else min(self.least, last.delay)
        return max(0.0, last.at + delay - now)

    def wrote(self, node: str, labels: Mapping[str, str], *, now: float) -> None:
        """Note a write."""
        number, last = _number(labels), self._last.get(node)
        is_again = last is not None and last.labels == number and now - last.at - last.delay <= _CALM
        delay = min(self.most, last.delay * 2) if last is not None and is_again else self.least
        self._last[node] = _Written(at=now, labels=number, delay=delay)

    def forget(self, node: str) -> None:
        """The node is gone."""
        self._last.pop(node, None)


def _number(labels: Mapping[str, str]) -> int:
    """Tell labels from others, in less room than they take."""
    return hash(frozenset(labels.items()))
