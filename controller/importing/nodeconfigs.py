"""From configurations to node configurations of our own driver."""

from collections.abc import Mapping
from typing import Any, Final

from controller.importing.assigned import Assigned, Assignment
from controller.importing.deviceplugin import Config
from controller.importing.shares import Shares
from dradriver.api.node_config import API_VERSION, DEFAULT_NAME, KIND

_MIG: Final = {"none": "off", "single": "static", "mixed": "static"}
"""Instances that exist are offered, as the device plugin does; making them on demand would be something new."""

_ORDER: Final = {"distributed": "spread", "packed": "packed"}


def node_config(config: Config, shares: Shares) -> dict[str, Any]:
    """Make the node configuration."""
    rule: dict[str, Any] = {"mig": _MIG[config.flags.mig_strategy]}
    if shares.replicas:
        rule["sharing"] = {"replicas": shares.replicas, "rename": shares.rename}
    made: dict[str, Any] = {"gpus": [rule]}
    if config.flags.mig_strategy != "none" or shares.replicas:
        made["order"] = _ORDER[config.flags.plugin.shared_devices_allocation_policy]
    return made


def document(assignment: Assignment, shares: Mapping[str, Shares]) -> dict[str, Any]:
    """Make the document with all of them; one named `default` is for nodes without a label, as there.

    Args:
        assignment: the configurations.
        shares: name of each to what can be said of its sharing.
    """
    configs = {one.label: node_config(one.config, shares[one.name]) for one in assignment.all}
    if DEFAULT_NAME not in configs and (fallback := _fallback(assignment)):
        configs[DEFAULT_NAME] = node_config(fallback.config, shares[fallback.name])
    return {"apiVersion": API_VERSION, "kind": KIND, "configs": configs}


def _fallback(assignment: Assignment) -> Assigned | None:
    return next((one for one in assignment.all if one.name == assignment.fallback), None)


def labels(assignment: Assignment) -> Mapping[str, str]:
    """Give the label that each node needs; none for those that `default` is for."""
    taken = any(one.label == DEFAULT_NAME for one in assignment.all)
    return {
        node.name: one.label
        for one in assignment.used
        for node in one.nodes
        if one.label != DEFAULT_NAME and (taken or one.name != assignment.fallback)
    }
