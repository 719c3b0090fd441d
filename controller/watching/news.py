"""What has changed since somebody looked last."""

import threading
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Group = TypeVar("Group", bound=Hashable)

EVERYTHING: Final = ""
"""The key that stands for all keys of a group."""

_MOST: Final = 10_000
"""Keys of one group, beyond which whoever looks has to look at everything: sooner than memory grows without bound."""


class News(Generic[Group]):
    """Keys by group, in the order in which they came first, each once. Safe to share between threads.

    Nobody looks in a process that does not lead, and it may follow a cluster for months in which claims have ever new
    names. So what has become too much is folded into `EVERYTHING`, as is what came before such news.

    Args:
        most: keys of one group.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._keys: dict[Group, dict[str, None]] = {}

    def add(self, group: Group, key: str) -> None:
        """Note a change."""
        with self._lock:
            keys = self._keys.setdefault(group, {})
            if EVERYTHING in keys:
                return
            keys[key] = None
            if key == EVERYTHING or len(keys) > self._most:
                self._keys[group] = {EVERYTHING: None}

    def take(self) -> list[tuple[Group, str]]:
        """Give all that has come, and begin anew."""
        with self._lock:
            taken, self._keys = self._keys, {}
        return [(group, key) for group, keys in taken.items() for key in keys]
