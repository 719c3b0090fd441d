"""What is held against GPUs, kept on disk: an error is reported once only, and a restart must not forget it."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import structlog

from dradriver import files
from dradriver.gpu.health import Place
from dradriver.gpu.model import Placement
from dradriver.health.condition import ORIGINS, RECOVERY, Cause, Condition, Offence

VERSION: Final = 1

_LAST_TIME: Final = 253402300800
"""Unix time at which the year 10000 begins, which no taint can name."""
_NUMBERS: Final = 1 << 64
_NUMBERED: Final = ("xid", RECOVERY)
"""Origins whose detail is a number."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What an earlier process knew.

    Attributes:
        boot_id: of the kernel that ran then.
        conditions: by UUID of the GPU.
        obeyed: the administrator's annotation that was obeyed last.
        problem: what of it could not be read, and what to do; "" where all is well.
    """

    boot_id: str = ""
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    obeyed: str = ""
    problem: str = ""


def load(path: Path) -> Known:
    """Read what an earlier process knew; of a damaged file, which is set aside, what can be read."""
    try:
        return read(path)
    except (OSError, ValueError) as error:
        salvaged = _salvaged(path)
        aside = _set_aside(path)
        problem = (
            f"{path} could not be read ({error}), so that errors which GPUs reported earlier may be forgotten: see "
            f"{aside} and the kernel's log for Xids, and taint the node where a GPU is not to be used"
        )
        return replace(salvaged, problem=problem)


def _salvaged(path: Path) -> Known:
    """Read GPU by GPU what can be read."""
    try:
        document = json.loads(path.read_text())
        entries, boot_id, obeyed = document["gpus"].items(), str(document["bootID"]), str(document.get("obeyed", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Known()
    conditions = {}
    for uuid, entry in entries:
        with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            conditions[str(uuid)] = _condition(entry)
    return Known(boot_id=boot_id, conditions=conditions, obeyed=obeyed)


def read(path: Path) -> Known:
    """Read it and change nothing, as who only looks; nothing is known where there is no file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    try:
        return decode(path.read_text())
    except FileNotFoundError:
        return Known()


def save(path: Path, known: Known) -> str:
    """Keep it, durably; returns why that is not possible, "" if it was, and never raises."""
    try:
        files.write_durably(path, encode(known))
    except OSError as error:
        return (
            f"{path} cannot be written ({error}), so that a restart of the plugin forgets what GPUs reported: "
            "make room on its file system, or move away what stands there"
        )
    return ""


def encode(known: Known) -> str:
    """Write it as JSON."""
    return json.dumps(
        {
            "version": VERSION,
            "bootID": known.boot_id,
            "obeyed": known.obeyed,
            "gpus": {uuid: asdict(condition) for uuid, condition in known.conditions.items()},
        }
    )


def decode(text: str) -> Known:
    """Understand it; fields of a newer version are left out.

    Raises:
        ValueError: it is damaged.
    """
    try:
        document = json.loads(text)
        return Known(
            boot_id=str(document["bootID"]),
            obeyed=str(document.get("obeyed", "")),
            conditions={str(uuid): _condition(entry) for uuid, entry in document["gpus"].items()},
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not what this program writes: {error!r}") from error


def _condition(entry: Mapping[str, Any]) -> Condition:
    condition = Condition(
        offences=tuple(_offence(one) for one in entry.get("offences") or ()),
        raises=tuple((origin, _time(at)) for origin, at in entry.get("raises") or () if origin in ORIGINS),
    )
    for one in entry["causes"]:
        # A newer version may know more origins, of which nothing can be said here.
        if one["origin"] in ORIGINS:
            condition = condition.put(_cause(one))
    return condition


def _cause(entry: Mapping[str, Any]) -> Cause:
    origin, detail = entry["origin"], _text(entry.get("detail", ""))
    if origin in _NUMBERED and not (detail == str(int(detail)) and 0 <= int(detail) < _NUMBERS):
        raise ValueError(f"{detail!r} is no number of {origin}")
    return Cause(
        origin=origin,
        detail=detail,
        place=_place(entry.get("place")),
        since=_time(entry["since"]),
        last=_time(entry["last"]),
        grave=_time_or_none(entry.get("grave")),
        mild=_time_or_none(entry.get("mild")),
        well=_time_or_none(entry.get("well")),
    )


def _offence(entry: Mapping[str, Any]) -> Offence:
    kind, claim = _text(entry["kind"]), _text(entry["claim"])
    return Offence(kind=kind, place=_place(entry.get("place")), claim=claim, at=_time(entry["at"]))


def _place(entry: Mapping[str, Any] | None) -> Place | None:
    if entry is None:
        return None
    placement = Placement(start=_count(entry["placement"]["start"]), size=_count(entry["placement"]["size"]))
    return Place(profile_id=_count(entry["profile_id"]), placement=placement)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _time(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < _LAST_TIME:
        raise ValueError(f"{value!r} is no Unix time")
    return float(value)


def _time_or_none(value: object) -> float | None:
    return None if value is None else _time(value)


def _set_aside(path: Path) -> Path:
    """Move a damaged file away; gives where it is then."""
    aside = path.with_name(f"{path.name}.damaged")
    try:
        path.replace(aside)
    except OSError as error:
        _log.warning("a damaged file stays", file=str(path), error=str(error))
        return path
    return aside
