"""The health service: tells the kubelet how each device is, which shows it in the status of pods (KEP-4680).

Health is shown, nothing else: pods are kept away from a sick device by its taints.

What the kubelet does with a message, in its pkg/kubelet/cm/dra (the same in 1.34 to 1.37 where no release is named):

- It notes the time of arrival for every device named, whatever `last_updated_time` says, and takes a device for unknown
  once that is `health_check_timeout_seconds` ago (1.34: always 30 s), for those who look. It wakes nobody for it.
- A device left out stays as it was until its time is over.
- When the stream ends, all that was said is forgotten, also what another process of this driver has said. Thus after a
  rolling update it is the next repetition that brings the health back.
- A stream that ended is opened again after 5 s; in 1.37 not after `UNIMPLEMENTED`.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from dradriver.kubelet._grpc import grpc, stream_service
from dradriver.proto import dra_health_v1_pb2 as wire

_log = logging.getLogger(__name__)

RESEND_SECONDS: Final = 10.0
"""How often a list is sent again that has not changed: two may be missed before the kubelet stops believing it."""

TIMEOUT_SECONDS: Final = 30
"""How long the kubelet believes what it was told. It is its own default, said aloud in case that changes."""

STREAMS: Final = 8
"""Streams at once. A kubelet opens one, and a second one while it has not noticed yet that the first has broken."""

MESSAGE_BYTES: Final = 1024
"""Of UTF-8: what the kubelet and the API server take of a device's message."""

_END_SECONDS: Final = 0.5
_CUT: Final = "..."
_SERVICES: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


class Health(StrEnum):
    """How a device is, in the words of the pod's status."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


_WIRE: Final = {
    Health.HEALTHY: wire.HEALTHY,
    Health.UNHEALTHY: wire.UNHEALTHY,
    Health.UNKNOWN: wire.UNKNOWN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """How one device is.

    Attributes:
        pool: name of its pool, as in the ResourceSlice.
        device: its name in the pool.
        health: the verdict.
        message: why, for people; cut to 1024 bytes on its way.
        since: Unix time in seconds of the last change. The kubelet has no place for it, and so two verdicts that differ
            in nothing else are equal.
    """

    pool: str
    device: str
    health: Health
    message: str = ""
    since: int = field(compare=False)


_Devices: TypeAlias = Mapping[tuple[str, str], DeviceHealth]


@dataclass(frozen=True, slots=True)
class _List:
    """What was posted last; revision 0 stands for nothing yet."""

    revision: int
    devices: _Devices


@dataclass(frozen=True, slots=True)
class _Message:
    """A list as it is sent, and the Unix time it was made at, in seconds."""

    revision: int
    made: float
    data: bytes


class HealthBoard:
    """Where the health of all devices is posted, and where every stream reads it.

    Only the newest list counts: a stream that is slow misses those between. A list is serialized once for all streams,
    and again every `resend` seconds so that it bears a time of late.
    """

    def __init__(self, *, resend: float = RESEND_SECONDS, clock: Callable[[], float] = time.time) -> None:
        """Begin with nothing posted.

        Args:
            resend: seconds after which an unchanged list is sent again.
            clock: Unix time in seconds; what the kubelet is told as the time of the verdicts.
        """
        self._resend = resend
        self._clock = clock
        self._changed = threading.Condition()
        self._newest = _List(0, {})
        self._closed = False
        self._making = threading.Lock()
        self._message = _Message(0, 0.0, b"")

    @property
    def closed(self) -> bool:
        """Nothing is told any more."""
        return self._closed

    def post(self, devices: Iterable[DeviceHealth]) -> None:
        """Replace the list; streams send it now if it differs from before.

        From any thread, and without waiting for a stream. Of several verdicts on one device the last counts. Does
        nothing after `close`.

        Args:
            devices: all devices of the driver, the healthy ones too: the kubelet does not take an omission for news.
        """
        posted = {(device.pool, device.device): device for device in devices}
        with self._changed:
            if self._newest.revision and posted == self._newest.devices:
                return
            self._newest = _List(self._newest.revision + 1, posted)
            self._changed.notify_all()

    def close(self) -> None:
        """End all streams now, and refuse others; also twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def watch(self, cancelled: threading.Event) -> Iterator[bytes]:
        """Yield the list as serialized `NodeWatchResourcesResponse`: now, at each change, and every `resend` seconds.

        Waits for the first post if there was none. Ends after `close`, or after `cancel` of the same event.
        """
        sent = 0
        while self._due(sent, cancelled):
            message = self._serialized()
            sent = message.revision
            yield message.data

    def cancel(self, cancelled: threading.Event) -> None:
        """End the one `watch` that was given this event."""
        cancelled.set()
        with self._changed:
            self._changed.notify_all()

    def _due(self, sent: int, cancelled: threading.Event) -> bool:
        """Wait until something has to be sent; False where it is over."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or cancelled.is_set() or self._newest.revision != sent,
                timeout=self._resend if sent else None,
            )
            return not self._closed and not cancelled.is_set()

    def _serialized(self) -> _Message:
        # A lock of its own: who posts must not wait for this.
        with self._making:
            newest, now = self._newest, self._clock()
            # The clock may also be set back.
            fresh = 0 <= now - self._message.made < self._resend
            if not fresh or self._message.revision != newest.revision:
                self._message = _Message(newest.revision, now, _serialize(newest.devices.values(), now=int(now)))
            return self._message


class HealthService:
    """Serves a board to a bounded number of streams, each of which takes a thread while it lives.

    v1 and v1alpha1 are the same on the wire; what v1alpha1 lacks in older kubelets they skip.
    """

    def __init__(self, board: HealthBoard, *, streams: int = STREAMS, patience: float = _END_SECONDS) -> None:
        """Keep what is needed to serve.

        Args:
            board: what is told.
            streams: how many at once; further ones are refused with RESOURCE_EXHAUSTED, and come again after 5 s.
            patience: seconds that `stop` waits for a stream whose reader does not read, before it is cut off.
        """
        self._board = board
        self._streams = streams
        self._patience = patience
        self._changed = threading.Condition()
        self._open: set[grpc.ServicerContext] = set()

    def services(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """Both versions, for a server."""
        streams = {"NodeWatchResources": (self._watch, wire.NodeWatchResourcesRequest)}
        return tuple(stream_service(name, streams) for name in _SERVICES)

    def stop(self) -> None:
        """Close the board, which ends the streams; what is stuck after `patience` seconds is cancelled."""
        self._board.close()
        with self._changed:
            self._changed.wait_for(lambda: not self._open, self._patience)
            for context in self._open:
                context.cancel()

    def _watch(self, _request: wire.NodeWatchResourcesRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        cancelled = threading.Event()
        if not context.add_callback(lambda: self._board.cancel(cancelled)):
            return  # It has ended before it began.
        self._enter(context)
        try:
            yield from self._board.watch(cancelled)
        finally:
            self._leave(context)

    def _enter(self, context: grpc.ServicerContext) -> None:
        if self._board.closed:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the driver on this node is stopping: ask its successor")
        with self._changed:
            full = len(self._open) >= self._streams
            if not full:
                self._open.add(context)
        if full:
            text = f"{self._streams} streams of device health are open already: end one of them first"
            _log.warning("refused a stream: %s", text)
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    def _leave(self, context: grpc.ServicerContext) -> None:
        with self._changed:
            self._open.discard(context)
            self._changed.notify_all()


def shortened(message: str) -> str:
    """Cut a message to 1024 bytes where the kubelet would, but never inside a character, which it may do."""
    data = message.encode("utf-8", "backslashreplace")
    if len(data) <= MESSAGE_BYTES:
        return data.decode()
    return data[: MESSAGE_BYTES - len(_CUT)].decode(errors="ignore") + _CUT


def _serialize(devices: Iterable[DeviceHealth], *, now: int) -> bytes:
    """Make the message. Its time is that of sending, since a verdict that stands was reached anew just now."""
    return wire.NodeWatchResourcesResponse(devices=[_device(device, now) for device in devices]).SerializeToString()


def _device(device: DeviceHealth, now: int) -> wire.DeviceHealth:
    return wire.DeviceHealth(
        device=wire.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
        health=_WIRE[device.health],
        last_updated_time=now,
        health_check_timeout_seconds=TIMEOUT_SECONDS,
        message=shortened(device.message),
    )
