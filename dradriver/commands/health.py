"""`dradriver health`: says what is held against this node's GPUs, has it forgotten, and prints what errors mean."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from dradriver import api
from dradriver.commands import policies, printing
from dradriver.commands import wishes as told
from dradriver.commands.known import Held, Known, boot_id, known, said
from dradriver.commands.wishes import CommandError, UsageError
from dradriver.health.requests import FOLDER, Requests, chosen
from dradriver.observe import logs

NAME: Final = "dradriver health"
TAKEN_SECONDS: Final = 15.0
"""A plugin that runs takes a request within seconds."""
SETTLED_SECONDS: Final = 2.0
"""After it has been taken the GPUs are asked at once; what they still say is kept by then."""
_LOOK_SECONDS: Final = 0.1

WELL: Final = 0
SICK: Final = 1
FAILED: Final = 2


class Form(StrEnum):
    """How it is printed."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where the plugin's files lie, and which kernel runs."""

    plugin: Path
    boot_id: str

    def read(self) -> Known:
        return known(self.plugin, boot_id=self.boot_id)


def main(arguments: Sequence[str]) -> int:
    """Do what the words say; returns the exit status, see `_DESCRIPTION`."""
    verbs: dict[str, Callable[[Sequence[str]], int]] = {"clear": _clear, "table": policies.main}
    logs.configure(log_format="text", level="error")
    try:
        if arguments and arguments[0] in verbs:
            return verbs[arguments[0]](arguments[1:])
        values = _parser(NAME, _DESCRIPTION).parse_args(arguments)
        return _show(_source(values).read(), values.output)
    except CommandError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return FAILED


_DESCRIPTION: Final = """\
Says what the plugin on this node holds against its GPUs.
`dradriver health clear GPU...` has it forget that, `dradriver health table` prints what errors of GPUs mean.
Exit status: 0 all GPUs take pods, 1 at least one takes no new ones, 2 it cannot be told."""


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=name,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-o", "--output", type=Form, choices=list(Form), default=Form.TEXT, help="text (default), json")
    parser.add_argument(
        "--kubelet-plugins-directory-path",
        type=Path,
        default=told.variable("KUBELET_PLUGINS_DIRECTORY_PATH", "/var/lib/kubelet/plugins"),
        metavar="DIR",
        help="the kubelet's folder of plugins (default: /var/lib/kubelet/plugins) [KUBELET_PLUGINS_DIRECTORY_PATH]",
    )
    parser.add_argument(
        "--simulation",
        type=Path,
        default=told.variable("SIMULATION") or None,
        metavar="DIR",
        help="the plugin runs on this simulated node [SIMULATION]",
    )
    return parser


def _source(values: argparse.Namespace) -> _Source:
    plugin = values.kubelet_plugins_directory_path / api.DRIVER_NAME
    return _Source(plugin=plugin, boot_id=boot_id(values.simulation))


# --- asking the plugin to forget ------------------------------------------------------------------


def _clear(arguments: Sequence[str]) -> int:
    parser = _parser(f"{NAME} clear", _CLEAR)
    parser.add_argument("what", nargs="+", metavar="GPU", help="all, gpu-3, a device of it, or its UUID")
    values = parser.parse_args(arguments)
    source = _source(values)
    before = source.read()
    uuids, unknown = chosen(values.what, before.nameable)
    if unknown or not uuids:
        there = ", ".join(map(before.name, before.ordered)) or "none"
        raise UsageError(f"no such GPU: {', '.join(unknown) or 'none is known'}; there is {there}")
    _ask(source.plugin, uuids)
    time.sleep(SETTLED_SECONDS)
    return _show(source.read(), values.output, uuids)


_CLEAR: Final = """\
Has the plugin forget what it holds against GPUs, and prints what is held then: what they still say when they are asked.
Exit status: 0 they take pods, 1 at least one takes no new ones, 2 it could not be done."""


def _ask(plugin: Path, words: Iterable[str]) -> None:
    try:
        request = Requests(plugin / FOLDER).ask(words)
        if _is_taken(request):
            return
        request.unlink()
    except FileNotFoundError:
        # Taken at the last moment.
        return
    except OSError as error:
        raise CommandError(f"the plugin cannot be asked: {error}; only root on the node may do so") from error
    raise CommandError(
        f"nobody took the request from {request.parent} within {TAKEN_SECONDS:.0f} s, and it is withdrawn: the plugin "
        "does not run on this node; start it and ask again"
    )


def _is_taken(request: Path) -> bool:
    end = time.monotonic() + TAKEN_SECONDS
    while request.exists():
        if time.monotonic() >= end:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


# --- telling --------------------------------------------------------------------------------------


def _show(found: Known, form: Form, uuids: Sequence[str] | None = None) -> int:
    """Print how GPUs are, all of them unless some are given; gives the exit status."""
    shown = found.ordered if uuids is None else uuids
    printing.write(_json(found, shown) if form is Form.JSON else _text(found, shown))
    if not found.written:
        print(
            f"{NAME}: the plugin has not run since this node was started: it was so before, but for what a start ends",
            file=sys.stderr,
        )
    if not shown:
        print(f"{NAME}: the plugin has seen no GPUs on this node yet", file=sys.stderr)
    return SICK if any(mark.gravity for uuid in shown for mark in found.marks.get(uuid, ())) else WELL


def _text(found: Known, uuids: Sequence[str]) -> str:
    named = {uuid: found.name(uuid) if uuid in found.numbers else "-" for uuid in uuids}
    rows = [(name, uuid, _state(found.held(uuid))) for uuid, name in named.items()]
    if not rows:
        return ""
    parts = ["\n" + _paragraph(found, uuid, one) for uuid in uuids for one in found.held(uuid)]
    return printing.aligned([("NAME", "UUID", "HEALTH"), *rows]) + "".join(parts)


def _state(held: Sequence[Held]) -> str:
    if not held:
        return "healthy"
    return held[0].marks[0].effect if held[0].marks[0].gravity else "warn"


def _paragraph(found: Known, uuid: str, held: Held) -> str:
    place = held.cause.place
    lines = [
        ("device", found.name(uuid) if place is None else found.partition(uuid, place)),
        ("taints", ", ".join(map(said, held.marks))),
        ("since", f"{_local(held.marks[0].since)} ({age(time.time() - held.marks[0].since)} ago)"),
        ("ends", "; ".join(_ends(held))),
        ("text", held.marks[0].text),
    ]
    return "".join(f"{label:<8}{text}\n" for label, text in lines)


def _ends(held: Held) -> Iterator[str]:
    if held.ending.at is not None:
        yield f"by itself at {_local(held.ending.at)}"
    yield held.ending.how


def _local(seconds: float) -> str:
    """Write a Unix time as a person reads it who sits at this machine."""
    return datetime.fromtimestamp(int(seconds), UTC).astimezone().isoformat()


def age(seconds: float) -> str:
    """Write how long something lasts, in the largest unit of which there are two: `45 s`, `90 min`, `3 days`."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def _json(found: Known, uuids: Iterable[str]) -> str:
    gpus = [_gpu(found, uuid) for uuid in uuids]
    return json.dumps({"currentBoot": found.written, "gpus": gpus}, indent=2) + "\n"


def _gpu(found: Known, uuid: str) -> dict[str, Any]:
    held = found.held(uuid)
    return {
        "name": found.name(uuid),
        "uuid": uuid,
        "healthy": not held,
        "effect": held[0].marks[0].effect if held else None,
        "causes": [_cause(found, uuid, one) for one in held],
    }


def _cause(found: Known, uuid: str, held: Held) -> dict[str, Any]:
    cause, at = held.cause, held.ending.at
    return {
        "origin": cause.origin,
        "detail": cause.detail,
        "partition": None if cause.place is None else found.partition(uuid, cause.place),
        "taints": [
            {"key": mark.key, "value": mark.value, "effect": mark.effect, "timeAdded": mark.taint.time_added}
            for mark in held.marks
        ],
        "since": _local(held.marks[0].since),
        "ends": {"how": held.ending.how, "at": None if at is None else _local(at)},
        "text": held.marks[0].text,
    }
