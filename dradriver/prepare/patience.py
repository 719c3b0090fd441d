"""How long a call may go on trying, and when it tries again."""

import random
import time
from collections.abc import Callable
from typing import Final

ANSWER_SECONDS: Final = 1.0
"""Kept of the deadline, so that the answer arrives before the kubelet has given up."""
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0


class Patience:
    """The time left of one call. Pauses double from 50 ms to 1 s, each a little different.

    Args:
        deadline: monotonic time in seconds at which the caller stops waiting.
        clock: monotonic seconds.
        sleep: waits that many seconds.
        chance: a number from 0 to 1.
    """

    def __init__(
        self,
        deadline: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.deadline = deadline
        self._clock = clock
        self._sleep = sleep
        self._chance = chance

    @property
    def answer_by(self) -> float:
        """Monotonic time in seconds at which the work must end, so that the answer arrives in time."""
        return self.deadline - ANSWER_SECONDS

    def now(self) -> float:
        """Monotonic time in seconds."""
        return self._clock()

    def left(self) -> float:
        """Seconds until the deadline; never negative."""
        return max(0.0, self.deadline - self._clock())

    def pause(self, attempt: int) -> bool:
        """Wait before the next attempt; False if the time does not suffice for another one.

        Args:
            attempt: how many have failed before this one, from 0.
        """
        seconds = min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) * (0.75 + self._chance() / 2)
        if self.left() < seconds + ANSWER_SECONDS:
            return False
        self._sleep(seconds)
        return True

    def at_most(self, seconds: float) -> "Patience":
        """Give a patience that ends with this one, or earlier after so many seconds."""
        deadline = min(self.deadline, self._clock() + seconds)
        return Patience(deadline, clock=self._clock, sleep=self._sleep, chance=self._chance)
