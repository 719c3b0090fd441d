"""How often a node's labels are written, so that no two programs wear the API server out by undoing each other."""

from dataclasses import dataclass, field
from typing import Final

_LEAST: Final = 2.0
_MOST: Final = 300.0
_CALM: Final = 600.0
"""Seconds after which a node that was left in peace may be written at once again."""


@dataclass(slots=True)
class Pace:
    """Time between writes to one node: twice as long each time, until nothing had to be written for a while.

    Attributes:
        least: seconds after the first write.
        most: seconds that it never exceeds.
    """

    least: float = _LEAST
    most: float = _MOST
    _due: dict[str, tuple[float, float]] = field(default_factory=dict)

    def wait(self, node: str, *, now: float) -> float:
        """Seconds until the node may be written; 0 for at once."""
        due, _ = self._due.get(node, (now, 0.0))
        return max(0.0, due - now)

    def wrote(self, node: str, *, now: float) -> None:
        """Note a write."""
        due, delay = self._due.get(node, (now, 0.0))
        delay = self.least if not delay or now - due > _CALM else min(self.most, delay * 2)
        self._due[node] = (now + delay, delay)

    def forget(self, node: str) -> None:
        """The node is gone."""
        self._due.pop(node, None)
