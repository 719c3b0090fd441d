"""What a plan wants otherwise than an object has it: field by field, why it matters, and the command that sets it."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from controller.api import BRIDGES
from controller.cli.writes import Write
from dradriver.api.problems import show_value

_MODE: Final = ("mode",)
_SELECT: Final = "select"
_MODES: Final[Mapping[object, str]] = {
    "Enabled": "the name is served before a node is ready, so a hiccup of a device plugin can hand out GPUs that its "
    "pods still hold",
    "Disabled": "the name is not served through DRA at all, so pods of nodes that have moved wait",
}
_RENAMED: Final = "pods may get shares of devices that have a name of their own, or miss those that they should get"
_SELECTED: Final = "pods that ask for the name get other devices than today"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field below `spec`.

    Attributes:
        path: of it, from `spec` on.
        found: what the object has; None for nothing.
        wanted: what the plan wants; None for nothing.
        why: what comes of it, a sentence; "" where nothing is known.
    """

    path: tuple[str, ...]
    found: object
    wanted: object
    why: str = ""

    def __str__(self) -> str:
        found = "is not set" if self.found is None else f"is {_shown(self.found)}"
        wanted = "nothing there" if self.wanted is None else _shown(self.wanted)
        told = f"spec.{'.'.join(self.path)} {found} and the plan wants {wanted}"
        return f"{told} (as it is, {self.why})" if self.why else told


def differences(item: Write) -> tuple[Difference, ...]:
    """Compare the fields of the plan with those of the object as it was seen; none where there is no object.

    Of what a bridge selects, fields that the plan does not have count too: all that are given must hold.
    """
    found, wanted = (item.live or {}).get("spec") or {}, item.body.get("spec") or {}
    return tuple(replace(one, why=_why(item, one)) for one in _compared((), found, wanted)) if item.live else ()


def _compared(path: tuple[str, ...], found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys((*wanted, *(found if path == (_SELECT,) else ()))):
        one, other = found.get(name), wanted.get(name)
        if isinstance(other, dict):
            yield from _compared((*path, name), one if isinstance(one, dict) else {}, other)
        elif one != other:
            yield Difference(path=(*path, name), found=one, wanted=other)


def _why(item: Write, one: Difference) -> str:
    if item.resource is not BRIDGES:
        return ""
    if one.path == _MODE:
        return _MODES.get(one.found, "")
    if one.path == (_SELECT, "renamed"):
        return _RENAMED
    return _SELECTED if one.path[0] == _SELECT else ""


def _shown(value: object) -> str:
    if isinstance(value, list | dict):
        return json.dumps(value)
    return value if isinstance(value, str) and value.isprintable() else show_value(value)


def patch(item: Write) -> str:
    """Give the command that sets the fields in which the object differs."""
    spec: dict[str, Any] = {}
    for one in differences(item):
        place = spec
        for step in one.path[:-1]:
            place = place.setdefault(step, {})
        place[one.path[-1]] = one.wanted
    metadata = item.body["metadata"]
    kind = "erb" if item.resource is BRIDGES else item.resource.kind.lower()
    where = ["-n", metadata["namespace"]] if metadata.get("namespace") else []
    merge = json.dumps({"spec": spec}, separators=(",", ":"))
    return shlex.join(["kubectl", "patch", kind, metadata["name"], *where, "--type=merge", "-p", merge])


def without_mode(item: Write) -> Write | None:
    """Give what is left of a bridge if its mode stays as somebody else has set it; None where more is in the way.

    What it selects is one thing: half of it would be neither theirs nor the plan's, so nothing there may contradict.
    """
    if item.resource is not BRIDGES or item.live is None:
        return None
    found = differences(item)
    if not any(one.path == _MODE for one in found) or any(one.found is not None for one in found if one.path != _MODE):
        return None
    spec = {name: value for name, value in item.body["spec"].items() if name not in _MODE}
    return replace(item, body=item.body | {"spec": spec})
