"""Which GPUs' handles died, and which of them could be read again."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

from dradriver.nvml.errors import RESET_REQUIRED, UNINITIALIZED

RESETS: Final = 3
"""How many new initializations a GPU may lead to at once within `RESETS_SECONDS`, by being found dead after it could be
read: a GPU is not reset more often, and each takes seconds on a large node."""

RESETS_SECONDS: Final = 30.0

_ANSWERS: Final = 0


class Lives:
    """What each GPU, by UUID, answered last in this session; any thread may ask or tell.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._states: dict[str, int] = {}
        self._known: set[str] = set()
        self._dead: dict[str, int] = {}
        self._asked: dict[str, list[float]] = {}
        self._returns: Counter[str] = Counter()

    def answered(self, gpu_uuid: str, *, thorough: bool) -> None:
        """Note that a GPU could be read.

        Args:
            gpu_uuid: which.
            thorough: all was asked that may say that it must be reset. A GPU that said so answers much else as before.
        """
        with self._lock:
            if self._dead.get(gpu_uuid) == RESET_REQUIRED and not thorough:
                return
            self._states[gpu_uuid] = _ANSWERS
            self._known.add(gpu_uuid)
            self._returns[gpu_uuid] += self._dead.pop(gpu_uuid, None) is not None

    def failed(self, gpu_uuid: str, code: int) -> bool:
        """Note that a GPU is lost or must be reset (code); tells whether a new session may help at once.

        So it may where the GPU answered otherwise before: a reset makes handles useless, also those of a session that
        had just begun. One that has died before and does not answer in a new session either is lost indeed.
        """
        with self._lock:
            was_well = gpu_uuid in self._known and gpu_uuid not in self._dead
            if gpu_uuid in self._known:
                self._dead[gpu_uuid] = code
            state = self._states.get(gpu_uuid)
            self._states[gpu_uuid] = code
            changed = was_well if state is None else state != code
            return changed and self._may_ask(gpu_uuid)

    def _may_ask(self, gpu_uuid: str) -> bool:
        now = self._clock()
        asked = [time for time in self._asked.get(gpu_uuid, ()) if now - time < RESETS_SECONDS]
        may = len(asked) < RESETS
        self._asked[gpu_uuid] = [*asked, now] if may else asked
        return may

    def ended(self) -> None:
        """Note that the driver ended the session: the handles of all GPUs died."""
        with self._lock:
            self._dead |= dict.fromkeys(self._known, UNINITIALIZED)

    def renewed(self) -> None:
        """Note that there is a new session, in which no GPU was asked yet."""
        with self._lock:
            self._states.clear()

    def returns(self, gpu_uuid: str) -> int:
        """Tell how often the GPU's handle died and it could be read again afterwards."""
        with self._lock:
            return self._returns[gpu_uuid]
