"""Kubernetes Events: what a person sees at the end of `kubectl describe`."""

import datetime as dt
import queue
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import structlog

from dradriver.kube.client import Client
from dradriver.kube.errors import KubeError
from dradriver.kube.resources import EVENTS, Object

log = structlog.get_logger(__name__)

_NOTE_LIMIT = 1024
_REMEMBERED = 512


class EventType(StrEnum):
    """The two types that exist."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Regarding:
    """The object an Event is about.

    Attributes:
        api_version: of the object.
        kind: of the object.
        name: of the object.
        namespace: "" for cluster-scoped objects; their Events live in `default`.
        uid: without it `kubectl describe` does not show the Event. For a Node kubectl expects its name here.
    """

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """What happened.

    Attributes:
        regarding: to which object.
        type: Normal or Warning.
        reason: CamelCase word, for machines.
        action: CamelCase word, what we did or tried.
        note: sentence for a person: object, cause, next step. Cut at 1024 bytes.
    """

    regarding: Regarding
    type: EventType = EventType.NORMAL
    reason: str
    action: str
    note: str


class EventRecorder:
    """Writes Events from a thread of its own. `record` never waits and never fails.

    Events are worth little to the machine: when too many wait, or the API server refuses, they are counted and
    dropped. The same one is written once in `window` seconds.

    Args:
        client: access to the API server.
        controller: `reportingController`, a qualified name.
        instance: `reportingInstance`, the pod or node.
        window: seconds.
        capacity: Events that may wait.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        client: Client,
        *,
        controller: str,
        instance: str,
        window: float = 60.0,
        capacity: int = 128,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._controller = controller
        self._instance = instance
        self._window = window
        self._clock = clock
        self._queue: queue.Queue[Happening | None] = queue.Queue(capacity)
        self._lock = threading.Lock()
        self._written: OrderedDict[Happening, float] = OrderedDict()
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def record(self, happening: Happening) -> None:
        """Note an Event for writing."""
        now = self._clock()
        with self._lock:
            last = self._written.get(happening)
            if last is not None and now - last < self._window:
                return
            try:
                self._queue.put_nowait(happening)
            except queue.Full:
                self.dropped += 1
                return
            self._note(happening, now)

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Write what waits, but not longer than that many seconds."""
        if self._thread is None:
            return
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

    def _note(self, happening: Happening, now: float) -> None:
        self._written[happening] = now
        self._written.move_to_end(happening)
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)

    def _run(self) -> None:
        while (happening := self._queue.get()) is not None:
            try:
                self._client.create(EVENTS, self._event(happening))
            except KubeError as error:
                self._drop(happening)
                log.warning("event not written", reason=happening.reason, error=str(error))
            except Exception:
                self._drop(happening)
                log.exception("defect in writing an event", reason=happening.reason)

    def _drop(self, happening: Happening) -> None:
        """Forget it, so that the next one of its kind is not taken for a repetition."""
        with self._lock:
            self.dropped += 1
            self._written.pop(happening, None)

    def _event(self, happening: Happening) -> Object:
        regarding = happening.regarding
        reference = {
            "apiVersion": regarding.api_version,
            "kind": regarding.kind,
            "name": regarding.name,
            "namespace": regarding.namespace,
            "uid": regarding.uid,
        }
        now = dt.datetime.now(dt.UTC)
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {
                "name": f"{regarding.name[:200]}.{uuid.uuid4().hex[:16]}",
                "namespace": regarding.namespace or "default",
            },
            "eventTime": now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "reportingController": self._controller,
            "reportingInstance": self._instance[:128],
            "action": happening.action,
            "reason": happening.reason,
            "type": happening.type,
            "note": happening.note.encode()[:_NOTE_LIMIT].decode(errors="ignore"),
            "regarding": {key: value for key, value in reference.items() if value},
        }
