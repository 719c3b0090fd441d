"""How often something may happen at once, and how often in the long run."""

import time
from collections.abc import Callable


class Allowance:
    """A bucket of tokens that fills up again by itself.

    Args:
        burst: how many at once.
        interval: seconds for one more.
        clock: monotonic seconds.
    """

    def __init__(self, *, burst: int, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._interval = interval
        self._clock = clock
        self._full_at = clock()

    def take(self, number: int = 1) -> float:
        """Take so many (at most a burst) if they are there; returns 0.0 then, else the seconds until they are."""
        now = self._clock()
        full_at = max(self._full_at, now) + self._interval * min(number, self._burst)
        missing = full_at - now - self._burst * self._interval
        if missing > 1e-9:  # noqa: PLR2004 - clocks add up with rounding
            return missing
        self._full_at = full_at
        return 0.0
