"""Named conditions that all have to hold before we call ourselves ready."""

import threading
from collections.abc import Iterable, Mapping
from typing import Final

NOT_YET: Final = "not yet"


class Readiness:
    """A fixed set of conditions, none of which holds at first. Safe to use from any thread."""

    def __init__(self, names: Iterable[str]) -> None:
        """Name the conditions, in the order in which they are shown."""
        self._lock = threading.Lock()
        self._reasons: dict[str, str | None] = dict.fromkeys(names, NOT_YET)

    def met(self, name: str) -> None:
        """Note that a condition holds.

        Raises:
            KeyError: there is no such condition.
        """
        self._set(name, None)

    def unmet(self, name: str, reason: str) -> None:
        """Note that a condition does not hold, and why, in words for people.

        Raises:
            KeyError: there is no such condition.
        """
        self._set(name, reason)

    @property
    def ready(self) -> bool:
        """Every condition holds."""
        return all(reason is None for reason in self.report().values())

    def report(self) -> Mapping[str, str | None]:
        """Why each condition does not hold; None where it does."""
        with self._lock:
            return dict(self._reasons)

    def _set(self, name: str, reason: str | None) -> None:
        with self._lock:
            if name not in self._reasons:
                raise KeyError(f"no readiness condition {name!r}, only {', '.join(self._reasons)}")
            self._reasons[name] = reason
