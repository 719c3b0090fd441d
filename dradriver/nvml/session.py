"""The life of NVML's initialization in this process, and when it starts anew.

Handles are valid within one initialization only. After a driver reload or a GPU reset they answer UNINITIALIZED or
GPU_IS_LOST for ever, and only a shutdown followed by a new initialization helps; it must not happen while another
thread is inside a call.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Final

import pynvml

from dradriver.nvml.calls import call
from dradriver.nvml.errors import (
    UNINITIALIZED,
    GpuLost,
    NvmlError,
    ResetRequired,
    Uninitialized,
    is_session_gone,
)

LOST_PAUSE: Final = 30.0
"""Seconds between new initializations on behalf of a lost GPU: on a large node each takes seconds."""

SLICE: Final = 1.0
"""Seconds that a hold may last."""

HANGS_AFTER: Final = 120.0
"""Seconds after which a call is taken to hang in the driver. The slowest that come back, switching MIG mode or creating
instances on a large node, take some ten seconds."""

_log = logging.getLogger(__name__)


class Session:
    """Initializes NVML, and initializes it anew where handles have become useless.

    A new initialization takes place on entry of the next use, when no other use is under way: nobody waits
    for it, and a call that hangs in the driver blocks no other. One that hangs for longer than `HANGS_AFTER` does not
    count any more, else it would keep the handles of all GPUs useless for good; should it ever return from the
    driver, the library may crash, which is no worse.

    So nothing may wait within a use: who waits for events does so in slices, each within a `hold` of the generation
    that the last use gave. A new initialization waits for them to end, since NVML crashes where it is shut down under a
    call, and no other begins meanwhile. A hold that is not over in time is taken as a use that hangs.

    Args:
        clock: monotonic seconds.

    Raises:
        NvmlError: NVML cannot be initialized, mostly a DriverUnavailable.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Condition()
        self._entered: dict[object, float] = {}
        self._held: dict[object, float] = {}
        self._stale = False
        self._closed = False
        self._initialized = False
        self._generation = 0
        self._started = 0.0
        self._start()

    @contextlib.contextmanager
    def use(self) -> Iterator[int]:
        """Keep the session while calls are made; gives its generation, which counts initializations.

        Raises:
            Uninitialized: it was closed.
            DriverUnavailable: a new initialization was due and failed; the next use tries again.
        """
        use = object()
        generation = self._enter(use)
        try:
            yield generation
        except NvmlError as error:
            self.note(error)
            raise
        finally:
            self._leave(use)

    @contextlib.contextmanager
    def hold(self, generation: int) -> Iterator[bool]:
        """Keep what belongs to this generation for at most `SLICE` seconds, in which one call may wait.

        Gives False where it is not to be touched any more: the session is another or closed, or to be made anew.
        """
        hold = object()
        held = self._hold(hold, generation)
        try:
            yield held
        except NvmlError as error:
            self.note(error)
            raise
        finally:
            self._leave(hold)

    def note(self, error: NvmlError) -> None:
        """Look at an error that was caught within a use: it may mean that handles are useless."""
        if is_session_gone(error) or (isinstance(error, (GpuLost, ResetRequired)) and self._pause_is_over()):
            self._stale = True

    def renew(self) -> None:
        """Initialize anew at the next use."""
        self._stale = True

    def close(self) -> None:
        """Shut NVML down, or leave that to the last call under way. Later uses fail; a second close does nothing."""
        with self._lock:
            self._closed = True
            self._end()

    def _pause_is_over(self) -> bool:
        return self._clock() - self._started >= LOST_PAUSE

    def _enter(self, use: object) -> int:
        with self._lock:
            self._lock.wait_for(lambda: not (self._is_due() and self._is_held()), 2 * SLICE)
            if self._closed:
                raise Uninitialized("nvmlInitWithFlags", UNINITIALIZED, cause="this session was closed")
            if self._is_due() and self._all_hang(self._held):
                self._restart()
            self._entered[use] = self._clock()
            return self._generation

    def _hold(self, hold: object, generation: int) -> bool:
        with self._lock:
            if self._closed or self._stale or generation != self._generation:
                return False
            self._held[hold] = self._clock()
            return True

    def _leave(self, token: object) -> None:
        with self._lock:
            self._entered.pop(token, None)
            self._held.pop(token, None)
            self._end()
            self._lock.notify_all()

    def _is_due(self) -> bool:
        return self._stale and not self._closed and self._all_hang(self._entered)

    def _is_held(self) -> bool:
        """Tell whether a hold is under way that will end soon."""
        return any(self._clock() - since <= 2 * SLICE for since in self._held.values())

    def _all_hang(self, tokens: dict[object, float]) -> bool:
        return all(self._clock() - since > HANGS_AFTER for since in tokens.values())

    def _end(self) -> None:
        if self._closed and not self._entered and not self._held:
            self._stop()

    def _restart(self) -> None:
        self._entered.clear()
        self._held.clear()
        _log.warning("NVML is initialized anew: the driver was reloaded, or a GPU was lost, reset, added or removed")
        self._stop()
        self._start()

    def _start(self) -> None:
        """Initialize; a node whose GPUs are all gone is no error, it has an empty list of GPUs."""
        self._started = self._clock()
        call(None, pynvml.nvmlInitWithFlags, pynvml.NVML_INIT_FLAG_NO_GPUS)
        self._initialized = True
        self._generation += 1
        self._stale = False

    def _stop(self) -> None:
        if self._initialized:
            self._initialized = False
            with contextlib.suppress(NvmlError):
                call(None, pynvml.nvmlShutdown)
