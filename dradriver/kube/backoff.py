"""How long to wait before the next attempt."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from dradriver.kube.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential delays with jitter.

    Attributes:
        initial: seconds before the second attempt.
        maximum: seconds that no delay exceeds, jitter included.
        factor: growth from one delay to the next.
        jitter: largest share added at random, so that nodes that failed together do not return together.
    """

    initial: float = 0.8
    maximum: float = 30.0
    factor: float = 2.0
    jitter: float = 1.0

    def delay(self, failures: int, *, chance: Callable[[], float] = random.random) -> float:
        """Seconds to wait after that many failures in a row (0 for none)."""
        if failures < 1:
            return 0.0
        # The exponent is capped because a float overflows after a thousand doublings.
        grown = self.initial * self.factor ** min(failures - 1, 64)
        return min(self.maximum, grown * (1 + self.jitter * chance()))

    def delay_for(
        self, error: Exception | None, failures: int, *, chance: Callable[[], float] = random.random
    ) -> float:
        """As `delay`, but never shorter than what the server asked for in Retry-After."""
        wanted = error.retry_after if isinstance(error, ApiError) else None
        return max(self.delay(failures, chance=chance), wanted or 0.0)
