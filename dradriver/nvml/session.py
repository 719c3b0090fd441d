"""The life of NVML's initialization in this process, and when it starts anew.

Handles are valid within one initialization only. After a driver reload or a GPU reset they answer UNINITIALIZED or
GPU_IS_LOST for ever, and only a shutdown followed by a new initialization helps; it must not happen while another
thread is inside a call.
"""

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Final, Protocol

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
from dradriver.nvml.lives import Lives

LOST_PAUSE: Final = 30.0
"""Seconds between new initializations on behalf of a GPU that stays lost: on a large node each takes seconds."""

SLICE: Final = 1.0
"""Seconds that a hold may last."""

HANGS_AFTER: Final = 120.0
"""Seconds after which a call is taken to hang in the driver. The slowest that come back, switching MIG mode or creating
instances on a large node, take some ten seconds."""

_log = logging.getLogger(__name__)


class Ends(Protocol):
    """Who has something that ends with NVML's session."""

    def rescue(self, generation: int) -> None:
        """Save it now, without a use or a hold, in some milliseconds; never raises."""


class Session:
    """Initializes NVML, and initializes it anew where handles have become useless.

    A new initialization takes place on entry of the next use, when no other use is under way: nobody waits
    for it, and a call that hangs in the driver blocks no other. One that hangs for longer than `HANGS_AFTER` does not
    count any more, else it would keep the handles of all GPUs useless for good; should it ever return from the
    driver, the library may crash, which is no worse.

    A GPU that was read in this session and is lost now may just have been reset, so it leads to a new initialization at
    once; one that is lost in the new session, too, only every `LOST_PAUSE` seconds.

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
        self._lives = Lives(clock)
        self._endings: weakref.WeakSet[Ends] = weakref.WeakSet()
        self._stale = False
        self._closed = False
        self._starting = False
        self._initialized = False
        self._generation = 0
        self._started = 0.0
        self._start()

    @property
    def generation(self) -> int:
        """Counts initializations."""
        return self._generation

    @property
    def is_stale(self) -> bool:
        """Whether it is to be initialized anew, or just is."""
        return self._stale or self._starting

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
            self.note(error, generation)
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
            self.note(error, generation)
            raise
        finally:
            self._leave(hold)

    def note(self, error: NvmlError, generation: int) -> bool:
        """Look at an error that was caught within a use of this generation: it may mean that handles are useless.

        A loss of which NVML does not tell the GPU, as a wait for events ends with, means nothing here: who waits finds
        out which GPU it is.

        Returns:
            Whether there will be a new initialization because of it.
        """
        if generation != self._generation or not (is_session_gone(error) or self._is_reason(error)):
            return False
        if is_session_gone(error):
            self._lives.ended()
        self._stale = True
        return True

    def answered(self, gpu_uuid: str, generation: int, *, thorough: bool) -> None:
        """Note that a GPU could be read within a use of this generation; `thorough` as in `Lives.answered`."""
        if generation == self._generation:
            self._lives.answered(gpu_uuid, thorough=thorough)

    def returns(self, gpu_uuid: str) -> int:
        """Tell how often the GPU's handle died and it could be read again afterwards."""
        return self._lives.returns(gpu_uuid)

    def is_renewed(self, generation: int, seconds: float) -> bool:
        """Tell whether the next use is of another generation than this; not to be asked within a use.

        Where handles are known to be useless, this waits so many seconds for calls that are under way to end.
        """
        with self._lock:
            if not self.is_stale and generation == self._generation:
                return False
            return self._lock.wait_for(lambda: generation != self._generation or self._is_due(), seconds)

    def before_end(self, whom: "Ends") -> None:
        """Tell somebody, as long as he lives, before NVML is shut down to be initialized anew."""
        self._endings.add(whom)

    def renew(self) -> None:
        """Initialize anew at the next use."""
        self._stale = True

    def close(self) -> None:
        """Shut NVML down, or leave that to the last call under way. Later uses fail; a second close does nothing."""
        with self._lock:
            self._closed = True
            self._end()

    def _is_reason(self, error: NvmlError) -> bool:
        if error.gpu is None or not _is_dead(error):
            return False
        return self._lives.failed(error.gpu, error.code) or self._pause_is_over()

    def _pause_is_over(self) -> bool:
        return self._clock() - self._started >= LOST_PAUSE

    def _enter(self, use: object) -> int:
        generation = self._admit(use)
        while generation is None:
            self._restart()
            generation = self._admit(use)
        return generation

    def _admit(self, use: object) -> int | None:
        """Let a use in; None where the caller has to initialize NVML anew first, and nobody else may."""
        with self._lock:
            self._lock.wait_for(lambda: not (self._is_due() and self._is_held()), 2 * SLICE)
            self._lock.wait_for(lambda: self._closed or not self._starting)
            if self._closed:
                raise Uninitialized("nvmlInitWithFlags", UNINITIALIZED, cause="this session was closed")
            if self._is_due() and self._all_hang(self._held):
                self._starting = True
                return None
            self._entered[use] = self._clock()
            return self._generation

    def _hold(self, hold: object, generation: int) -> bool:
        with self._lock:
            if self._closed or self.is_stale or generation != self._generation:
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
        return self._stale and not (self._closed or self._starting) and self._all_hang(self._entered)

    def _is_held(self) -> bool:
        """Tell whether a hold is under way that will end soon."""
        return any(self._clock() - since <= 2 * SLICE for since in self._held.values())

    def _all_hang(self, tokens: dict[object, float]) -> bool:
        return all(self._clock() - since > HANGS_AFTER for since in tokens.values())

    def _end(self) -> None:
        if self._closed and not (self._starting or self._entered or self._held):
            self._stop()

    def _restart(self) -> None:
        """Initialize anew, without the lock: that may hang, and whoever leaves or closes is not to hang with it."""
        _log.warning("NVML is initialized anew: the driver was reloaded, or a GPU was lost, reset, added or removed")
        try:
            self._entered.clear()
            self._held.clear()
            for whom in tuple(self._endings):
                whom.rescue(self._generation)
            self._stop()
            self._start()
        finally:
            with self._lock:
                self._starting = False
                self._end()
                self._lock.notify_all()

    def _start(self) -> None:
        """Initialize; a node whose GPUs are all gone is no error, it has an empty list of GPUs."""
        self._started = self._clock()
        # What is asked for from here on is for the next one.
        self._stale = False
        try:
            call(None, pynvml.nvmlInitWithFlags, pynvml.NVML_INIT_FLAG_NO_GPUS)
        except NvmlError:
            self._stale = True
            raise
        self._lives.renewed()
        self._initialized = True
        self._generation += 1

    def _stop(self) -> None:
        if self._initialized:
            self._initialized = False
            with contextlib.suppress(NvmlError):
                call(None, pynvml.nvmlShutdown)


def _is_dead(error: NvmlError) -> bool:
    """Tell whether the GPU's handle may be useless; a mode that waits for a reset is no such thing."""
    return isinstance(error, GpuLost) or (
        isinstance(error, ResetRequired) and error.call != pynvml.nvmlDeviceSetMigMode.__name__
    )
