"""A thread that runs errands to the API server, one after another: as soon as it can, or when their time has come.

Whoever has an errand never waits for it. What the API server does not answer is logged and dropped.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeAlias

import structlog

from dradriver.kube import KubeError

QUEUED: Final = 256

Act: TypeAlias = Callable[[], None]

_log = structlog.get_logger()


class Errands:
    """The thread, and what it still has to do.

    Args:
        name: of the thread.
        capacity: errands that may wait; more are left out.
        clock: monotonic seconds.

    Attributes:
        clock: by which dates are given.
    """

    def __init__(self, name: str, *, capacity: int = QUEUED, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self.clock = clock
        self._queue: queue.Queue[Act | None] = queue.Queue(capacity)
        self._lock = threading.Lock()
        self._dates: dict[Act, float] = {}
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Do what waits, but no longer than that many seconds, and not what has a later date."""
        if self._thread is None:
            return
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

    def soon(self, act: Act) -> None:
        """Do this after what waits already; where too much waits, it is left out."""
        try:
            self._queue.put_nowait(act)
        except queue.Full:
            _log.warning("too much to tell, something is left out")

    def at(self, act: Act, when: float) -> None:
        """Do this once at that time; the same act has one date, the earliest it was given. It is never left out.

        Args:
            act: found again by equality, as methods of one object are.
            when: by the clock.
        """
        with self._lock:
            self._dates[act] = min(when, self._dates.get(act, when))
        # Where the queue is full the thread is at work, and looks at the dates after each errand.
        with suppress(queue.Full):
            self._queue.put_nowait(_nothing)

    def _run(self) -> None:
        while (act := self._next()) is not None:
            _do(act)
            for due in self._due():
                _do(due)

    def _next(self) -> Act | None:
        try:
            return self._queue.get(timeout=self._pause())
        except queue.Empty:
            return _nothing

    def _pause(self) -> float | None:
        """Seconds until the next date; None where there is none."""
        with self._lock:
            return max(0.0, min(self._dates.values()) - self.clock()) if self._dates else None

    def _due(self) -> Iterator[Act]:
        now = self.clock()
        with self._lock:
            due = [act for act, when in self._dates.items() if when <= now]
            for act in due:
                del self._dates[act]
        return iter(due)


def _do(act: Act) -> None:
    try:
        act()
    except KubeError as error:
        _log.warning("cannot be told now", error=str(error))
    except Exception:  # noqa: BLE001 (one errand that cannot be run must not keep the others from being run)
        _log.exception("defect in an errand")


def _nothing() -> None:
    """Make the thread look at the dates."""
