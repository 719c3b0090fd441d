"""One log line for each thing worth knowing, on stderr, as JSON for machines or as text for people.

Every line has `ts` (RFC 3339, UTC), `level` and `event`; lines about a claim have `claim_namespace`,
`claim_name` and `claim_uid`. Lines of libraries and of rooms that use `logging` come out the same way.
"""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Literal, TextIO, TypeAlias, get_args

import structlog
from structlog.typing import EventDict, Processor

from dradriver.observe.early import HeldBack

LogFormat: TypeAlias = Literal["json", "text"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

LOG_FORMATS: Final[tuple[LogFormat, ...]] = get_args(LogFormat)
LOG_LEVELS: Final[tuple[LogLevel, ...]] = get_args(LogLevel)

_CHATTY: Final = ("grpc", "urllib3", "kubernetes")
"""They log each connection or request; only what they warn of is worth a line."""

_FIRST: Final = ("ts", "level", "event")

_log = logging.getLogger(__name__)


def configure(*, log_format: LogFormat = "json", level: LogLevel = "info", stream: TextIO | None = None) -> None:
    """Set up the log of the whole process; to be called once, before the first line.

    Writes what `early.hold_back` has kept. Also catches warnings and exceptions that nobody handled, which
    would break a log of JSON lines.

    Args:
        log_format: how lines look.
        level: lines below it are dropped.
        stream: where lines go; stderr if not given.
    """
    target = stream or sys.stderr
    number = logging.getLevelNamesMapping()[level.upper()]
    render = _renderers(log_format, target)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            *_common(),
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(target),
        cache_logger_on_first_use=True,
    )
    _route_stdlib(target, number, render)
    sys.excepthook = _uncaught
    threading.excepthook = lambda info: _uncaught(info.exc_type, info.exc_value, info.exc_traceback)


@contextmanager
def about_claim(*, namespace: str, name: str, uid: str) -> Iterator[None]:
    """Give all lines of this thread the claim's fields while the block runs."""
    with structlog.contextvars.bound_contextvars(claim_namespace=namespace, claim_name=name, claim_uid=uid):
        yield


def _common() -> list[Processor]:
    return [structlog.processors.add_log_level, structlog.processors.StackInfoRenderer()]


def _stamp_record(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Give a record of `logging` the time it was made at, which may be before the log was set up."""
    created = datetime.fromtimestamp(event["_record"].created, UTC)
    event["ts"] = created.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return event


def _renderers(log_format: LogFormat, stream: TextIO) -> list[Processor]:
    if log_format == "json":
        return [structlog.processors.format_exc_info, _in_order, structlog.processors.JSONRenderer()]
    return [
        structlog.dev.ConsoleRenderer(
            colors=stream.isatty(),
            timestamp_key="ts",
            exception_formatter=structlog.dev.plain_traceback,
        )
    ]


def _in_order(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Put what every line has in front."""
    return {key: event[key] for key in _FIRST if key in event} | {
        key: value for key, value in event.items() if key not in _FIRST
    }


def _route_stdlib(stream: TextIO, level: int, render: list[Processor]) -> None:
    """Let `logging` write through the same processors."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.contextvars.merge_contextvars,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ExtraAdder(),
                _stamp_record,
                *_common(),
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    held = [record for old in root.handlers if isinstance(old, HeldBack) for record in old.records]
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    logging.captureWarnings(capture=True)
    # From Python 3.12 on each record would have the name of a task, and asyncio be loaded to find that there is none.
    vars(logging)["logAsyncioTasks"] = False
    for record in held:
        if logging.getLogger(record.name).isEnabledFor(record.levelno):
            root.handle(record)


def _uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error or kind(), trace)
        return
    _log.critical("nobody handled %s", kind.__name__, exc_info=(kind, error or kind(), trace))
