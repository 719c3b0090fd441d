"""Keeps log lines of the first moments until there is a log to write them to."""

import logging
from collections import deque
from typing import Final

_CAPACITY: Final = 1000


class HeldBack(logging.Handler):
    """Remembers records, the oldest ones go first when there are too many."""

    def __init__(self) -> None:
        super().__init__()
        self.records: deque[logging.LogRecord] = deque(maxlen=_CAPACITY)

    def emit(self, record: logging.LogRecord) -> None:
        """Remember it."""
        self.records.append(record)


def hold_back() -> None:
    """Keep what is logged from now on; `logs.configure` writes what its level lets through."""
    root = logging.getLogger()
    root.handlers[:] = [HeldBack()]
    root.setLevel(logging.DEBUG)
