"""From configurations to node configurations of our own driver."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from controller.importing.assigned import EMPTY_NAME, FILE_NAME, Assigned, Assignment, name_of
from controller.importing.deviceplugin import Config
from dradriver.api.node_config import API_VERSION, DEFAULT_NAME, KIND, is_name

_MIG: Final = {"none": "off", "single": "static", "mixed": "static"}
"""Instances that exist are offered, as the device plugin does; making them on demand would be something new."""

_ORDER: Final = {"distributed": "spread", "packed": "packed"}


def node_config(config: Config) -> dict[str, Any]:
    """Make the node configuration."""
    made: dict[str, Any] = {"gpus": [{"mig": _MIG[config.flags.mig_strategy]}]}
    if config.flags.mig_strategy != "none":
        made["order"] = _ORDER[config.flags.plugin.shared_devices_allocation_policy]
    return made | _sharing(config)


def _sharing(config: Config) -> dict[str, Any]:
    """Say how devices are shared: nothing, as long as node configurations have no field for it.

    This is the place to write `sharing: {replicas: N, rename: ...}`; the gap that says so is `habits.sharing`.
    """
    del config
    return {}


def document(assignment: Assignment) -> dict[str, Any]:
    """Make the document with all of them; one named `default` is for nodes without a label, as there."""
    configs = {label_of(one.name): node_config(one.config) for one in (*assignment.used, *assignment.unused)}
    if DEFAULT_NAME not in configs:
        configs |= _fallback(assignment)
    return {"apiVersion": API_VERSION, "kind": KIND, "configs": configs}


def _fallback(assignment: Assignment) -> dict[str, Any]:
    wanted = name_of(assignment.fallback)
    found = [one for one in (*assignment.used, *assignment.unused) if one.name == wanted]
    return {DEFAULT_NAME: node_config(found[0].config)} if found else {}


def label_of(name: str) -> str:
    """Name the node configuration of a configuration; a key that no label can hold is shortened to one that can."""
    if name in (EMPTY_NAME, FILE_NAME):
        return DEFAULT_NAME if name == FILE_NAME else "device-plugin-empty"
    return name if is_name(name) else f"config-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:10]}"


def labels(assignment: Assignment) -> Mapping[str, str]:
    """Give the label that each node needs; none for those that `default` is for."""
    return {
        node.name: label_of(one.name)
        for one in assignment.used
        for node in one.nodes
        if not _is_default(label_of(one.name), one, assignment)
    }


def _is_default(label: str, one: Assigned, assignment: Assignment) -> bool:
    if label == DEFAULT_NAME:
        return True
    named = {label_of(other.name) for other in (*assignment.used, *assignment.unused)}
    return DEFAULT_NAME not in named and name_of(assignment.fallback) == one.name
