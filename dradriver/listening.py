"""Hears at once what a look at the GPUs would find out some seconds later."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from dradriver.nvml import DriverUnavailable, Event, EventType, NvmlError

if TYPE_CHECKING:
    from dradriver.nvml import Events

WAIT_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 5.0
"""How often NVML is tried while it is missing."""

_log = structlog.get_logger()


class Watchable(Protocol):
    """GPUs that tell of events, as `dradriver.nvml.Nvml` does."""

    def watch_events(self, types: EventType) -> "Events":
        """Listen from now on."""


class Listener:
    """A thread that waits for events of GPUs and passes them on.

    What it misses, while there is no NVML or a GPU cannot be heard, is found by the looks that go on all the same.

    Args:
        hardware: opens NVML if that is still to be done; raises NvmlError.
        types: what to listen for.
        hear: told each event; the next one waits until it returns.
        missed: told that events may have gone unheard.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        hardware: Callable[[], Watchable],
        *,
        types: EventType,
        hear: Callable[[Event], None],
        missed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hardware = hardware
        self._types = types
        self._hear = hear
        self._missed = missed
        self._clock = clock
        self._alive_at = clock()
        self._trouble = ""
        self._events: Events | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

    def why_unheard(self, gpu_uuid: str) -> str | None:
        """Say why a GPU cannot be heard; None where it is, or nobody has begun to listen yet."""
        if self._trouble:
            return self._trouble
        events = self._events
        if events is None or gpu_uuid in events.watched:
            return None
        error = events.unwatched.get(gpu_uuid)
        return "it could not be opened to listen to it" if error is None else str(error)

    @property
    def silence(self) -> float:
        """Seconds since the thread has shown that it lives; more than some ten of them mean that a call hangs."""
        return self._clock() - self._alive_at

    def start(self) -> None:
        """Listen from now on."""
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """End within that many seconds."""
        self._stopping.set()
        if self._events is not None:
            self._events.close()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except NvmlError as error:
                _log.debug("events of the GPUs cannot be heard now", error=str(error))
                self._trouble = str(error)
            except Exception as error:  # noqa: BLE001 (without events changes are seen later, which is no reason to end)
                _log.exception("events of the GPUs cannot be heard")
                self._trouble = repr(error)
            self._alive_at = self._clock()
            self._stopping.wait(RETRY_SECONDS)

    def _listen(self) -> None:
        self._events = events = self._hardware().watch_events(self._types)
        try:
            while not self._stopping.is_set():
                self._take(events)
        finally:
            events.close()

    def _take(self, events: "Events") -> None:
        """Wait once. After an error the next wait finds its way back by itself, and pauses where that is due."""
        gaps = events.gaps
        try:
            event = events.wait(WAIT_SECONDS)
            self._trouble = ""
        except DriverUnavailable as error:
            event, self._trouble = None, str(error)
        except NvmlError as error:
            _log.debug("the GPUs are listened to anew", error=str(error))
            event = None
        self._alive_at = self._clock()
        if event is not None:
            self._hear(event)
        elif events.gaps != gaps:
            self._missed()
