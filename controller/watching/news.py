"""What has changed since somebody looked last."""

import threading
from typing import Generic, TypeVar

Key = TypeVar("Key")


class News(Generic[Key]):
    """Keys in the order in which they came first, each once. Safe to share between threads.

    Once, since nobody looks in a process that does not lead: it may follow a cluster for months.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[Key, None] = {}

    def add(self, key: Key) -> None:
        """Note a change."""
        with self._lock:
            self._keys[key] = None

    def take(self) -> list[Key]:
        """Give all that has come, and begin anew."""
        with self._lock:
            taken, self._keys = self._keys, {}
        return list(taken)
