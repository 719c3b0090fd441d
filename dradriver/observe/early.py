"""What has to be done about logging before there is a log, without loading what makes the log."""

import logging
import sys
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


def tell() -> None:
    """Write to stderr what is kept still: of a start that failed before there was a log."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, HeldBack):
            told = [record for record in handler.records if record.levelno >= logging.INFO]
            handler.records.clear()
            sys.stderr.writelines(f"{record.levelname.lower()}: {record.getMessage()}\n" for record in told)


def without_rich() -> None:
    """Make structlog do without rich where that happens to be installed.

    It would be loaded at structlog's import, for tracebacks that no daemon prints, and take 150 ms and
    7 MiB. To be called before anything imports structlog; whoever needs rich itself must not call it.
    """
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # None is Python's mark for "not there"
