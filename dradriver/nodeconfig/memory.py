"""What was wanted of the node last, in a small file: a restart forgets nothing while file or API server fail.

The configuration itself is kept, not only its name, and so is its health policy: the file they came from may be broken
by then. Versions of the driver that know no health policies read past theirs, and leave none.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from dradriver import files
from dradriver.nodeconfig.wanted import Labels

VERSION = 1

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What held when it was written.

    Attributes:
        labels: of the node; the annotation is an order, which is not remembered.
        allocation: one of `api.Allocation`.
        name: of the configuration in force, "" for the flags alone.
        config: the configuration as plain data, None with the flags alone.
        health: the health policy that it names, as plain data; None where it names none, and where a version wrote
            that did not know any.
    """

    labels: Labels = field(default_factory=Labels)
    allocation: str
    name: str = ""
    config: Mapping[str, Any] | None = None
    health: Mapping[str, Any] | None = None


def recall(path: Path) -> Remembered | None:
    """Read what was remembered; None where there is nothing, or nothing usable, which is told in the log."""
    try:
        return _remembered(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _log.error("the configuration that was in force is forgotten", file=str(path), error=repr(error))
        return None


def remember(path: Path, what: Remembered) -> None:
    """Write it down; where that fails the next start has to do without, which is told in the log."""
    document = {
        "version": VERSION,
        "labels": {"config": what.labels.config, "allocation": what.labels.allocation},
        "allocation": what.allocation,
        "name": what.name,
        "config": what.config,
        "health": what.health,
    }
    try:
        files.write_durably(path, json.dumps(document))
    except OSError as error:
        _log.error("the configuration in force cannot be kept for the next start", file=str(path), error=str(error))


def _remembered(document: Any) -> Remembered:
    if document["version"] != VERSION:
        raise ValueError(f"version {document['version']!r} is not {VERSION}")
    labels = Labels(config=_text(document["labels"]["config"]), allocation=_text(document["labels"]["allocation"]))
    return Remembered(
        labels=labels,
        allocation=_text(document["allocation"]),
        name=_text(document["name"]),
        config=_mapping(document["config"]),
        health=_mapping(document.get("health")),
    )


def _mapping(value: object) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise TypeError(f"{value!r} is no mapping")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
