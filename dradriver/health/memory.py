"""What is held against GPUs, kept on disk: an error is reported once only, and a restart must not forget it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import structlog

from dradriver import files
from dradriver.gpu.health import Place
from dradriver.gpu.model import Placement
from dradriver.health.condition import ORIGINS, Cause, Condition, Offence

VERSION: Final = 1

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What an earlier process knew.

    Attributes:
        boot_id: of the kernel that ran then.
        conditions: by UUID of the GPU.
        obeyed: the administrator's annotation that was obeyed last.
    """

    boot_id: str = ""
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    obeyed: str = ""


def load(path: Path) -> Known:
    """Read what an earlier process knew; a damaged file is set aside, and nothing is known then."""
    try:
        return read(path)
    except (OSError, ValueError) as error:
        _log.error("what was held against GPUs is not known any more", file=str(path), error=str(error))
        _set_aside(path)
        return Known()


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


def save(path: Path, known: Known) -> bool:
    """Keep it, durably; returns whether that went well, and never raises."""
    try:
        files.write_durably(path, encode(known))
    except OSError as error:
        _log.error("what is held against GPUs cannot be kept over a restart", file=str(path), error=str(error))
        return False
    return True


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
    return Condition(
        # A newer version may know more origins, of which nothing can be said here.
        causes=tuple(cause for one in entry["causes"] if (cause := _cause(one)).origin in ORIGINS),
        offences=tuple(Offence(**_known(Offence, one)) for one in entry.get("offences") or ()),
        raises=tuple((str(origin), float(at)) for origin, at in entry.get("raises") or ()),
    )


def _cause(entry: Mapping[str, Any]) -> Cause:
    cause = Cause(**_known(Cause, entry))
    if not isinstance(cause.origin, str) or not isinstance(cause.detail, str):
        raise TypeError(f"a cause is {entry}")
    if cause.origin == "xid":
        int(cause.detail)
    float(cause.since), float(cause.last)
    return cause


def _known(kind: type, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Choose the fields that this version knows; a place becomes one again."""
    names = {one.name for one in fields(kind)}
    chosen = {name: value for name, value in entry.items() if name in names}
    place = chosen.get("place")
    if place is not None:
        placement = Placement(**place["placement"])
        chosen["place"] = Place(profile_id=int(place["profile_id"]), placement=placement)
    return chosen


def _set_aside(path: Path) -> None:
    try:
        path.replace(path.with_name(f"{path.name}.damaged"))
    except OSError as error:
        _log.warning("a damaged file stays", file=str(path), error=str(error))
