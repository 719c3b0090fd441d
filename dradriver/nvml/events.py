"""What GPUs tell by themselves: one thread waits for the events of all GPUs of the node.

An event set belongs to one NVML session, and NVML keeps nothing that happened before a GPU was registered in it. So a
reader of events must look at the GPUs themselves whenever something may have gone unheard: `Events.gaps` counts that.
Events only say sooner what such a look would say, too.
"""

import contextlib
import ctypes
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final

import pynvml

from dradriver.nvml.bounded import Bounded
from dradriver.nvml.cache import Cache
from dradriver.nvml.calls import Device, call, instance_id
from dradriver.nvml.errors import NOT_SUPPORTED, NotSupported, NvmlError, TimedOut, is_session_gone
from dradriver.nvml.node import key_of
from dradriver.nvml.records import Event, EventType
from dradriver.nvml.session import SLICE, Session

REGISTER_SECONDS: Final = 5.0
"""How long it may take to open a GPU and register it."""

LOOK_PAUSE: Final = 30.0
"""Seconds between looks for GPUs that are not registered: opening one that is lost can take seconds."""

FAILURE_PAUSE: Final = 1.0
"""Seconds between attempts once two have failed with no good wait between them."""

MOST_RESCUED: Final = 1024
"""Events that are taken out of an event set that ends; of more the oldest are lost."""

_EARLY_PAUSE: Final = 0.1
"""Seconds to wait where NVML came back before the time without an event, as it may."""


@dataclass(slots=True)
class _Watch:
    """An event set, and who is registered in it.

    Attributes:
        mark: generation of the session, and drops of its handles, that it belongs to.
        handle: of the event set.
        uuids: UUID by address of the GPU's handle.
        registered: types by UUID, as registrations write them, also one that comes back late.
        busy: GPUs whose registration is under way, maybe hanging.
        watched: registered types by UUID, as last looked at.
        unwatched: why a GPU is not registered.
        looked: when that was tried, in seconds of the clock.
    """

    mark: tuple[int, int]
    handle: pynvml.c_nvmlEventSet_t
    uuids: dict[int, str] = field(default_factory=dict)
    registered: dict[str, EventType] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)
    watched: Mapping[str, EventType] = field(default_factory=dict)
    unwatched: Mapping[str, NvmlError] = field(default_factory=dict)
    looked: float = 0.0

    @property
    def generation(self) -> int:
        """The session's generation."""
        return self.mark[0]


class Events:
    """Events of all GPUs of the node, from its making on.

    Each GPU is registered for those types that it supports. One that cannot be, or hangs, is told in `unwatched`, does
    not stop the others, and is tried again every `LOOK_PAUSE` seconds. When the session was made anew, or a switch of
    MIG mode made handles useless, there is a new event set by the next `wait`.

    One thread waits; of several each event reaches one only, so each reader has an object of his own, which gets every
    event. All else may be done by any thread.

    Args:
        session: NVML's session.
        cache_of: gives the handles of a generation, within a use of the session.
        bounded: makes the calls that are about one GPU.
        types: what to listen for.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        session: Session,
        cache_of: Callable[[int], Cache],
        bounded: Bounded,
        types: EventType,
        clock: Callable[[], float],
    ) -> None:
        self._session = session
        self._cache_of = cache_of
        self._bounded = bounded
        self._types = types
        self._clock = clock
        self._turn = threading.Lock()
        self._closed = threading.Event()
        self._watch: _Watch | None = None
        self._gaps = 0
        self._last_wait = clock()
        self._failed = False
        self._broken = False
        self._again = -math.inf
        self._rescued: deque[Event] = deque(maxlen=MOST_RESCUED)
        session.before_end(self)
        # What is wrong is for the reader, who gets it by his first wait.
        with contextlib.suppress(NvmlError):
            self._current()

    @property
    def watched(self) -> Mapping[str, EventType]:
        """Types of events that are heard, by UUID of the GPU."""
        watch = self._watch
        return MappingProxyType(watch.watched if watch else {})

    @property
    def unwatched(self) -> Mapping[str, NvmlError]:
        """Why a GPU is not heard, by UUID, or by `GPU <index>` where NVML does not tell that."""
        watch = self._watch
        return MappingProxyType(watch.unwatched if watch else {})

    @property
    def gaps(self) -> int:
        """How often events may have gone unheard: counts event sets, the first one too, and GPUs that joined later."""
        return self._gaps

    @property
    def last_wait(self) -> float:
        """When a wait, or a slice of one, last came back, well or not; in seconds of the clock.

        Before the first it is when this was made. A reader who waits again and again and finds it older than some
        seconds has a thread that ended, or hangs in the driver.
        """
        return self._last_wait

    @property
    def closed(self) -> bool:
        """Whether it was closed; `wait` then returns at once, for ever."""
        return self._closed.is_set()

    def wait(self, seconds: float) -> Event | None:
        """Wait for the next event, in slices of at most 1 s.

        Returns:
            None where the time is over, `gaps` has grown, or this was closed.

        Raises:
            DriverUnavailable: there is no session; each wait tries for one.
            Uninitialized: the session just ended, or was closed.
            GpuLost: a GPU is lost, NVML does not tell which; the others are heard on by the next wait.
            NvmlError: what else ended the wait. The next one makes a new event set; after a second failure with no good
                wait between there is a pause first, so a reader may call again at once.
        """
        deadline, gaps = self._clock() + seconds, self._gaps
        while not self._closed.is_set():
            if self._rescued:
                self._last_wait = self._clock()
                return self._rescued.popleft()
            event = self._take_turn(deadline)
            if event or self._gaps != gaps or self._clock() >= deadline:
                return event
        return None

    def rescue(self, generation: int) -> None:
        """Take out what is queued, for the next waits, before the event set ends with its session.

        Called by the session when nobody is within a call: what happened on one GPU is not to be lost since another was
        reset.
        """
        watch = self._watch
        if watch is not None and watch.generation == generation and not self._closed.is_set():
            self._save(watch)

    def _save(self, watch: _Watch) -> None:
        with contextlib.suppress(NvmlError):
            for _ in range(MOST_RESCUED):
                data = _wait(watch, 0.0)
                if data is None:
                    return
                self._rescued.append(_event(watch, data))

    def close(self) -> None:
        """Stop listening. A wait under way ends within a second and frees the event set; this waits for nobody."""
        self._closed.set()
        self._free_if_idle()

    # --- one slice ----------------------------------------------------------------------------

    def _take_turn(self, deadline: float) -> Event | None:
        try:
            with self._turn:
                return self._paced(min(deadline, self._clock() + SLICE))
        finally:
            self._last_wait = self._clock()
            if self._closed.is_set():
                self._free_if_idle()

    def _paced(self, end: float) -> Event | None:
        """Attempt one slice, unless a pause after failures is on."""
        if self._clock() < self._again:
            self._idle(min(end, self._again))
            return None
        try:
            return self._slice(end)
        except NvmlError:
            self._again = self._clock() + FAILURE_PAUSE if self._failed else -math.inf
            self._failed = True
            raise

    def _slice(self, end: float) -> Event | None:
        gaps = self._gaps
        watch = self._current()
        if self._gaps != gaps:
            return None
        if not watch.uuids:
            self._idle(end)
            return None
        with self._session.hold(watch.generation) as held:
            event = self._read(watch, end) if held else None
        if event is None:
            # The session waits for a call to end before it is made anew; or NVML came back early.
            self._idle(min(end, self._clock() + _EARLY_PAUSE))
        return event

    def _read(self, watch: _Watch, end: float) -> Event | None:
        try:
            data = _wait(watch, end - self._clock())
            self._failed = False
            return None if data is None else _event(watch, data)
        except NvmlError:
            self._broken = True
            raise

    def _idle(self, end: float) -> None:
        left = end - self._clock()
        if left > 0:
            self._closed.wait(left)

    # --- the event set ------------------------------------------------------------------------

    def _current(self) -> _Watch:
        """Give the event set of the session as it is now, with every GPU in it that can be."""
        with self._session.use() as generation:
            cache = self._cache_of(generation)
            watch = self._watch
            if watch is None or self._broken or watch.mark != (generation, cache.drops):
                return self._replace(watch, cache)
            if self._clock() - watch.looked >= LOOK_PAUSE:
                self._gaps += self._register(watch, cache)
            return watch

    def _replace(self, old: _Watch | None, cache: Cache) -> _Watch:
        """Make a new event set, and only then free the old one, which ended by itself with its session."""
        new = _Watch((cache.generation, cache.drops), call(None, pynvml.nvmlEventSetCreate))
        try:
            self._register(new, cache)
        except NvmlError:
            _free(new)
            raise
        self._watch, self._broken = new, False
        self._gaps += 1
        if old is not None and old.generation == new.generation:
            self._save(old)
            _free(old)
        return new

    def _register(self, watch: _Watch, cache: Cache) -> int:
        """Register every GPU that is not registered yet; gives how many could be."""
        calls = tuple(
            (key_of(self._bounded, cache, index), REGISTER_SECONDS, partial(self._join, watch, cache, index))
            for index in range(cache.count())
        )
        unwatched = {}
        for (key, *_), error in zip(calls, self._bounded.each(calls), strict=True):
            if error is not None:
                if is_session_gone(error):
                    raise error
                unwatched[error.gpu or key] = error
        watched = dict(watch.registered)
        joined = len(watched) - len(watch.watched)
        watch.watched, watch.unwatched, watch.looked = watched, unwatched, self._clock()
        return joined

    def _join(self, watch: _Watch, cache: Cache, index: int) -> None:
        """Register one GPU, in a thread that may hang, so within a use of its own."""
        watch.busy.add(index)
        try:
            with self._session.use() as generation:
                if generation == watch.generation:
                    device = cache.device(index)
                    if _address(device.handle) not in watch.uuids:
                        watch.registered[device.gpu] = _register_one(watch, device, self._types)
        finally:
            watch.busy.discard(index)

    def _free_if_idle(self) -> None:
        """Free the event set, unless a thread is within a wait: that one does it when it comes out."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            watch, self._watch = self._watch, None
            if watch is not None:
                self._free_held(watch)
        finally:
            self._turn.release()

    def _free_held(self, watch: _Watch) -> None:
        with self._session.hold(watch.generation) as held:
            if held:
                _free(watch)


def _register_one(watch: _Watch, device: Device, types: EventType) -> EventType:
    """Register a GPU for the types it supports; NVML refuses all of them where it does not support one."""
    ask = pynvml.nvmlDeviceGetSupportedEventTypes
    supported = types & call(device.gpu, ask, device.handle)
    if not supported:
        raise NotSupported(ask.__name__, NOT_SUPPORTED, device.gpu, cause="it tells no events of the types asked for")
    call(device.gpu, pynvml.nvmlDeviceRegisterEvents, device.handle, int(supported), watch.handle)
    watch.uuids[_address(device.handle)] = device.gpu
    return supported


def _wait(watch: _Watch, seconds: float) -> pynvml.c_nvmlEventData_t | None:
    # Never 0: by some descriptions that waits without end.
    milliseconds = max(1, math.ceil(seconds * 1000))
    try:
        return call(None, pynvml.nvmlEventSetWait_v2, watch.handle, milliseconds)
    except TimedOut:
        return None


def _event(watch: _Watch, data: pynvml.c_nvmlEventData_t) -> Event:
    known = watch.uuids.get(_address(data.device))
    return Event(
        gpu_uuid=known or call(None, pynvml.nvmlDeviceGetUUID, data.device),
        type=EventType(data.eventType),
        data=data.eventData,
        gpu_instance_id=instance_id(data.gpuInstanceId),
        compute_instance_id=instance_id(data.computeInstanceId),
    )


def _address(handle: pynvml.c_nvmlDevice_t) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _free(watch: _Watch) -> None:
    """Free an event set; one that a hanging registration uses is left to the session's end."""
    if watch.busy:
        return
    with contextlib.suppress(NvmlError):
        call(None, pynvml.nvmlEventSetFree, watch.handle)
