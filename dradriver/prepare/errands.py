"""A thread that runs errands to the API server, one after another: as soon as it can, or when their time has come.

Whoever has an errand never waits for it. What the API server does not answer is logged and dropped.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
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
        self.clock = clock
        self._name = name
        self._capacity = capacity
        self._changed = threading.Condition()
        self._waiting: deque[Act] = deque()
        self._dates: dict[Act, float] = {}
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Run what waits, but no longer than that many seconds, and nothing that has a date."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout)

    def soon(self, act: Act) -> None:
        """Run this after what waits already; where too much waits, it is left out."""
        with self._changed:
            if len(self._waiting) < self._capacity:
                self._waiting.append(act)
                self._changed.notify()
                return
        _log.warning("too much to tell, something is left out")

    def at(self, act: Act, when: float) -> None:
        """Run this once at that time; the same act has one date, the earliest it was given. It is never left out.

        Args:
            act: found again by equality, as methods of one object are.
            when: by the clock.
        """
        with self._changed:
            self._dates[act] = min(when, self._dates.get(act, when))
            self._changed.notify()

    def _run(self) -> None:
        while (act := self._next()) is not None:
            _do(act)

    def _next(self) -> Act | None:
        """Wait for an errand; None when it is time to end."""
        with self._changed:
            while True:
                if (due := self._take_due()) is not None:
                    return due
                if self._waiting:
                    return self._waiting.popleft()
                if self._stopping:
                    return None
                self._changed.wait(self._pause())

    def _take_due(self) -> Act | None:
        if not self._dates or self._stopping:
            return None
        act = min(self._dates, key=self._dates.__getitem__)
        if self._dates[act] > self.clock():
            return None
        del self._dates[act]
        return act

    def _pause(self) -> float | None:
        """Seconds until the next date; None where there is none."""
        return max(0.0, min(self._dates.values()) - self.clock()) if self._dates else None


def _do(act: Act) -> None:
    try:
        act()
    except KubeError as error:
        _log.warning("cannot be told now", error=str(error))
    except Exception:  # noqa: BLE001 (one errand that cannot be run must not keep the others from being run)
        _log.exception("defect in an errand")
