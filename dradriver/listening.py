"""Hears at once what a look at the GPUs would find out some seconds later."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from dradriver.nvml import EventType, NvmlError

if TYPE_CHECKING:
    from dradriver.nvml import Events

TYPES: Final = EventType.MIG_CONFIG | EventType.GPU_UNAVAILABLE | EventType.RECOVERY_ACTION
"""After which another look at the GPUs may show something else."""

WAIT_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 5.0
"""How often NVML is tried while it is missing."""

_log = structlog.get_logger()


class Watchable(Protocol):
    """GPUs that tell of events, as `dradriver.nvml.Nvml` does."""

    def watch_events(self, types: EventType) -> "Events":
        """Listen from now on."""


class Listener:
    """A thread that waits for events of GPUs and wakes whoever looks at them.

    What it misses, while there is no NVML or a GPU cannot be heard, is found by the looks that go on all the same.

    Args:
        hardware: opens NVML if that is still to be done; raises NvmlError.
        wake: told why to look, and at which GPU or "" for all; must not block.
    """

    def __init__(self, hardware: Callable[[], Watchable], *, wake: Callable[[str, str], None]) -> None:
        self._hardware = hardware
        self._wake = wake
        self._events: Events | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

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
            except Exception:  # noqa: BLE001 (without events changes are seen later, which is no reason to end)
                _log.exception("events of the GPUs cannot be heard")
            self._stopping.wait(RETRY_SECONDS)

    def _listen(self) -> None:
        self._events = events = self._hardware().watch_events(TYPES)
        try:
            while not self._stopping.is_set():
                gaps = events.gaps
                event = events.wait(WAIT_SECONDS)
                if event is not None:
                    self._wake("a GPU tells of a change", event.gpu_uuid if event.type is EventType.MIG_CONFIG else "")
                elif events.gaps != gaps:
                    self._wake("a change may have gone unheard", "")
        finally:
            events.close()
