"""What is wrong with the node at this moment, told to people: in the log, and as Events of the Node."""

import threading
from typing import Final

import structlog

from dradriver.kube import NODES, EventRecorder, EventType, Happening, Regarding

ACTION: Final = "Offer"

_log = structlog.get_logger()


class NodeReporter:
    """Tells each thing once when it begins or changes, and once when it is over. Any thread may call it."""

    def __init__(self, node_name: str) -> None:
        self._regarding = Regarding(api_version=NODES.api_version, kind=NODES.kind, name=node_name, uid=node_name)
        self._lock = threading.Lock()
        self._events: EventRecorder | None = None
        self._holding: dict[str, tuple[str, str]] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Everything that holds now, in words."""
        with self._lock:
            return tuple(note for _, note in self._holding.values())

    def attach(self, events: EventRecorder) -> None:
        """Write Events from now on, beginning with what holds already."""
        with self._lock:
            self._events = events
            for reason, note in self._holding.values():
                self._record(EventType.WARNING, reason, note)

    def holds(self, topic: str, reason: str, note: str) -> None:
        """Something is not as it should be.

        Args:
            topic: tells it from other such things, and finds it again.
            reason: CamelCase word, for machines.
            note: object, cause and next step.
        """
        with self._lock:
            if self._holding.get(topic) == (reason, note):
                return
            self._holding[topic] = (reason, note)
            _log.warning(note, reason=reason)
            self._record(EventType.WARNING, reason, note)

    def is_over(self, topic: str) -> None:
        """It is as it should be (again)."""
        with self._lock:
            found = self._holding.pop(topic, None)
            if found is not None:
                reason, note = found
                _log.info("this is over", reason=reason, note=note)
                self._record(EventType.NORMAL, reason, f"this is over: {note}")

    def _record(self, kind: EventType, reason: str, note: str) -> None:
        if self._events is not None:
            self._events.record(
                Happening(regarding=self._regarding, type=kind, reason=reason, action=ACTION, note=note)
            )
