"""Keys that wait for work: each at most once, some later, failed ones again and again more slowly."""

import heapq
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from dradriver.kube.backoff import Backoff

Key = TypeVar("Key", bound=Hashable)


class WorkQueue(Generic[Key]):
    """A queue of keys for level-triggered workers. Safe to share between threads.

    A key that is added while it waits is there once. A key that is added while it is worked on comes back when
    `done` is called, so that two workers never hold the same key and no change is missed.

    Args:
        backoff: delays for `retry`.
        clock: monotonic seconds.
        chance: random number in [0, 1).
    """

    def __init__(
        self,
        *,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._chance = chance
        self._changed = threading.Condition()
        self._ready: deque[Key] = deque()
        self._waiting: set[Key] = set()
        self._held: set[Key] = set()
        self._later: list[tuple[float, int, Key]] = []
        self._due: dict[Key, float] = {}
        self._count = 0
        self._failures: dict[Key, int] = {}
        self._closed = False

    def add(self, key: Key) -> None:
        """Want the key worked on as soon as possible."""
        with self._changed:
            self._add(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Want the key worked on by then; an earlier time that was already asked for stands."""
        with self._changed:
            due = self._clock() + seconds
            if due < self._due.get(key, float("inf")):
                self._due[key] = due
                self._count += 1
                heapq.heappush(self._later, (due, self._count, key))
                self._changed.notify()

    def retry(self, key: Key, *, error: Exception | None = None) -> float:
        """Want the key again after its backoff (or the server's Retry-After); returns the seconds."""
        with self._changed:
            self._failures[key] = self._failures.get(key, 0) + 1
            delay = self._backoff.delay_for(error, self._failures[key], chance=self._chance)
        self.add_after(key, delay)
        return delay

    def forget(self, key: Key) -> None:
        """The key's work succeeded: its next failure is a first one."""
        with self._changed:
            self._failures.pop(key, None)

    def get(self, timeout: float | None = None) -> Key | None:
        """Wait for a key and hold it until `done`.

        Args:
            timeout: seconds, None for no limit.

        Returns:
            The key, or None after the time or when the queue is closed.
        """
        deadline = None if timeout is None else self._clock() + timeout
        with self._changed:
            while not self._closed:
                self._promote()
                if self._ready:
                    key = self._ready.popleft()
                    self._waiting.discard(key)
                    self._held.add(key)
                    return key
                patience = self._patience(deadline)
                if patience is not None and patience <= 0:
                    return None
                self._changed.wait(patience)
        return None

    def done(self, key: Key) -> None:
        """End holding a key."""
        with self._changed:
            self._held.discard(key)
            if key in self._waiting:
                self._ready.append(key)
                self._changed.notify()

    def close(self) -> None:
        """Let every `get` return None, now and later."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _add(self, key: Key) -> None:
        if self._closed or key in self._waiting:
            return
        self._waiting.add(key)
        if key not in self._held:
            self._ready.append(key)
            self._changed.notify()

    def _promote(self) -> None:
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            if self._due.get(key) == due:
                del self._due[key]
                self._add(key)

    def _patience(self, deadline: float | None) -> float | None:
        """Seconds until something can happen by itself; at most 0 when the caller's time is over."""
        now = self._clock()
        if deadline is not None and deadline <= now:
            return 0.0
        times = [deadline] if deadline is not None else []
        times += [self._later[0][0]] if self._later else []
        return max(1e-4, min(times) - now) if times else None
