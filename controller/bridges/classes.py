"""The DeviceClass of a bridge: what is written, and whether what is there equals it."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from controller.api import (
    ADOPTED_ANNOTATION,
    BASE_CLASSES,
    BASE_LABEL,
    BRIDGE_LABEL,
    FIELD_MANAGER,
    FORMER_ANNOTATION,
    HASH_ANNOTATION,
    MANAGED_BY_LABEL,
    WRITER_ANNOTATION,
    Bridge,
    Select,
)
from controller.bridges.actions import ApplyClass
from controller.bridges.handing import note_of
from controller.bridges.selection import expressions
from controller.watching.model import SeenClass
from dradriver.api import DRIVER_NAME
from dradriver.kube import Object


def wanted_class(bridge: Bridge, seen: SeenClass | None, *, carries: bool, writer: str) -> ApplyClass:
    """Say what a bridge's class has to be.

    The writer's name makes every process write each class once: while no controller ran, the scheduler may have
    forgotten its name (see `deciding`), and any write brings that back.

    Args:
        bridge: whose.
        seen: the class that is there.
        carries: whether it has the extended resource name.
        writer: this process.
    """
    spec = class_spec(bridge, carries=carries)
    is_adopted = seen is not None and (seen.is_adopted or not (seen.is_ours or seen.is_base))
    is_base = bridge.spec.device_class_name in BASE_CLASSES and (seen is None or seen.is_base)
    return ApplyClass(
        name=bridge.spec.device_class_name,
        resource_version=seen.resource_version if seen else "",
        labels={MANAGED_BY_LABEL: FIELD_MANAGER, BRIDGE_LABEL: bridge.name} | ({BASE_LABEL: "true"} if is_base else {}),
        annotations={HASH_ANNOTATION: hash_of(spec), WRITER_ANNOTATION: writer}
        | (_adopted(seen) if seen is not None and is_adopted else {}),
        spec=spec,
    )


def _adopted(seen: SeenClass) -> dict[str, str]:
    """Remember what it was when it was taken over, and go on to remember it."""
    note = seen.annotations.get(FORMER_ANNOTATION, "") if seen.is_adopted and seen.hash else note_of(seen)
    return {ADOPTED_ANNOTATION: "true"} | ({FORMER_ANNOTATION: note} if note else {})


def base_class(name: str, seen: SeenClass | None) -> ApplyClass:
    """Say what a base class has to be: never with an extended resource name, which is a bridge's business."""
    spec: Object = {"selectors": _selectors(Select(type=BASE_CLASSES[name])), "config": []}
    return ApplyClass(
        name=name,
        resource_version=seen.resource_version if seen else "",
        labels={MANAGED_BY_LABEL: FIELD_MANAGER, BASE_LABEL: "true"},
        annotations={HASH_ANNOTATION: hash_of(spec)},
        spec=spec,
    )


def class_spec(bridge: Bridge, *, carries: bool) -> Object:
    """Write the spec of a bridge's class."""
    configs = [{"opaque": {"driver": DRIVER_NAME, "parameters": dict(each)}} for each in bridge.spec.config]
    spec: Object = {
        "selectors": _selectors(bridge.spec.select),
        # Also where it is empty: what others put there is not to stay.
        "config": configs,
    }
    return spec | ({"extendedResourceName": bridge.spec.resource_name} if carries else {})


def _selectors(select: Select) -> list[Object]:
    return [{"cel": {"expression": each}} for each in expressions(select)]


def is_as_wanted(seen: SeenClass, wanted: ApplyClass) -> bool:
    """Tell whether nothing has to be written."""
    return (
        has_spec(seen, wanted.spec)
        and wanted.labels.items() <= seen.labels.items()
        and wanted.annotations.items() <= seen.annotations.items()
    )


def was_edited(seen: SeenClass) -> bool:
    """Tell whether a class that we wrote is not any more what we wrote."""
    return seen.is_ours and seen.hash != hash_of(_ours(seen.spec))


def has_spec(seen: SeenClass, spec: Mapping[str, Any]) -> bool:
    """Tell whether a class has a spec, as far as that is ours."""
    return _ours(seen.spec) == _ours(spec)


def selects_alike(seen: SeenClass) -> bool:
    """Tell whether a base class of somebody else selects what ours does, in our words or in those of NVIDIA's chart."""
    kind = BASE_CLASSES[seen.name]
    found = [" ".join(each.get("cel", {}).get("expression", "").split()) for each in seen.spec.get("selectors") or ()]
    theirs = f"device.driver == '{DRIVER_NAME}' && device.attributes['{DRIVER_NAME}'].type == '{kind}'"
    return found in ([*expressions(Select(type=kind))], [theirs]) and not seen.spec.get("config")


def hash_of(spec: Mapping[str, Any]) -> str:
    """Give 16 hexadecimal digits for a spec."""
    text = json.dumps(_ours(spec), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _ours(spec: Mapping[str, Any]) -> Object:
    """The fields that we write; the API server leaves empty ones out."""
    return {name: spec.get(name) or None for name in ("selectors", "config", "extendedResourceName")}
