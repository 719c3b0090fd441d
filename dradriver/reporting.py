"""What is wrong with the node at this moment, told to people: in the log, and as Events of the Node."""

import re
import threading
from collections.abc import Mapping
from typing import Final, NamedTuple

import structlog

from dradriver.kube import NODES, EventRecorder, EventType, Happening, Regarding

ACTION: Final = "Offer"

_log = structlog.get_logger()


class Note(NamedTuple):
    """Something that is not as it should be.

    Attributes:
        reason: CamelCase word, for machines.
        text: object, cause and next step.
    """

    reason: str
    text: str


class NodeReporter:
    """Tells each thing once when it begins or changes, and once when it is over. Any thread may call it."""

    def __init__(self, node_name: str) -> None:
        self._regarding = Regarding(api_version=NODES.api_version, kind=NODES.kind, name=node_name, uid=node_name)
        self._lock = threading.Lock()
        self._events: EventRecorder | None = None
        self._holding: dict[str, dict[str, Note]] = {}

    def attach(self, events: EventRecorder) -> None:
        """Write Events from now on, beginning with what holds already."""
        with self._lock:
            self._events = events
            for note in (note for notes in self._holding.values() for note in notes.values()):
                self._record(EventType.WARNING, note.reason, note.text)

    def set(self, subject: str, notes: Mapping[str, Note]) -> None:
        """Say all that is not as it should be of one subject; what was said before and is missing now is over.

        Args:
            subject: of which everything is said at once.
            notes: the keys find each again.
        """
        with self._lock:
            before = self._holding.get(subject, {})
            self._holding[subject] = dict(notes)
            for key, note in notes.items():
                if before.get(key) != note:
                    _log.warning(note.text, reason=note.reason)
                    self._record(EventType.WARNING, note.reason, note.text)
            for key in before.keys() - notes.keys():
                reason, text = before[key]
                _log.info("this is over", reason=reason, text=text)
                self._record(EventType.NORMAL, reason, f"over: {_beginning(text)}")

    def _record(self, kind: EventType, reason: str, text: str) -> None:
        if self._events is not None:
            self._events.record(
                Happening(regarding=self._regarding, type=kind, reason=reason, action=ACTION, note=text)
            )


def _beginning(text: str) -> str:
    """What it was about: the cause and the next step stand behind it, and were told when it began."""
    return re.split(r"[:;] | \(", text, maxsplit=1)[0]
