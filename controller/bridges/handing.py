"""Classes of somebody else that a bridge takes over: what they were before, and how they are given back.

What is taken over is written down in an annotation of the class itself, so that every later process can give it back.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from controller.api import BASE_LABEL, BRIDGE_LABEL, FORMER_ANNOTATION, MANAGED_BY_LABEL
from controller.bridges.actions import ReleaseClass
from controller.watching.model import SeenClass
from dradriver.kube import Object

_MOST_BYTES: Final = 128 << 10
"""Of all annotations that are there and this one. The API server takes 256 KiB; the owner may want some of it."""

_FIELDS: Final = ("selectors", "config", "extendedResourceName")
_LABELS: Final = (MANAGED_BY_LABEL, BRIDGE_LABEL, BASE_LABEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """What a class was before it was taken over.

    Attributes:
        labels: of those that we write, what they were.
        spec: of the fields that we write, what they were; None if that was too large to be kept, or is not known.
    """

    labels: Mapping[str, str]
    spec: Mapping[str, Any] | None


def note_of(seen: SeenClass) -> str:
    """Write down what a class of somebody else is, as far as that is written over. Too large a spec is left out."""
    labels = {name: seen.labels[name] for name in _LABELS if name in seen.labels}
    spec = {name: seen.spec[name] for name in _FIELDS if seen.spec.get(name)}
    text = _json({"labels": labels, "spec": spec})
    taken = sum(len(name.encode()) + len(value.encode()) for name, value in seen.annotations.items())
    return text if taken + len(text.encode()) <= _MOST_BYTES else _json({"labels": labels})


def former_of(seen: SeenClass) -> Former:
    """Read what a class was; of one that does not tell it, nothing is known."""
    try:
        note = json.loads(seen.annotations.get(FORMER_ANNOTATION) or "{}")
        spec = None if note.get("spec") is None else {name: note["spec"].get(name) for name in _FIELDS}
        labels = {name: str(value) for name, value in (note.get("labels") or {}).items() if name in _LABELS}
    except (ValueError, AttributeError, TypeError):
        return Former(labels={}, spec=None)
    return Former(labels=labels, spec=spec)


def release(seen: SeenClass) -> ReleaseClass:
    """Give a class back as it was, but for its extended resource name: no name is given to a class by going."""
    former = former_of(seen)
    spec: Object = {} if former.spec is None else {name: former.spec[name] for name in ("selectors", "config")}
    return ReleaseClass(name=seen.name, resource_version=seen.resource_version, labels=former.labels, spec=spec)


def _json(value: Object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
