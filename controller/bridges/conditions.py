"""Conditions of a bridge in words: what is, why, and what to do about it."""

from collections.abc import Collection
from dataclasses import replace

from controller.api import (
    FORCE_DELETE_ANNOTATION,
    Bridge,
    BridgeSpec,
    BridgeStatus,
    Condition,
    ConditionType,
    DeviceTally,
    Mode,
    NodeTally,
)
from controller.bridges.situation import Situation
from controller.bridges.unmatched import why_unmatched
from controller.bridges.wording import listed

_FINE = Condition(type=ConditionType.DEGRADED, holds=False, reason="AsExpected", message="")
_NONE_WAITS = Condition(type=ConditionType.PODS_PENDING, holds=False, reason="NoneWaits", message="")
_PEACE = Condition(type=ConditionType.CONFLICT, holds=False, reason="NoConflict", message="")


def conflict_of(situation: Situation, bridge: Bridge, rivals: Collection[str]) -> Condition | None:
    """Say who else has what this bridge needs; None if nobody has.

    Args:
        situation: of its name.
        bridge: the one of several that has the name.
        rivals: classes that carry the name and that we may not touch.
    """
    name = bridge.spec.device_class_name
    seen = situation.classes.get(name)
    owner = situation.owners.get(name, bridge.name)
    if owner != bridge.name:
        return _conflict(
            "ClassOfAnotherBridge",
            f"DeviceClass {name} belongs to ExtendedResourceBridge {owner}; delete this bridge and make it again with "
            "another spec.deviceClassName",
        )
    if seen is not None and not seen.is_ours and not bridge.spec.adopt:
        whose = "is a base class, which claims name" if seen.is_base else "was made by somebody else"
        return _conflict(
            "ClassNotOurs",
            f"DeviceClass {name} {whose}; set spec.adopt: true to take it over, or make the bridge "
            "again with another spec.deviceClassName",
        )
    if rivals:
        return _conflict(
            "NameOnOtherClass",
            f"DeviceClass {listed(sorted(rivals))} made by somebody else carries {situation.resource_name} too; clear "
            "its spec.extendedResourceName, or set spec.adopt: true to have that done",
        )
    return None


def status_of(situation: Situation, bridge: Bridge, conflict: Condition | None, *, carries: bool) -> BridgeStatus:
    """Say how the bridge is that has its name.

    Args:
        situation: of its name.
        bridge: which.
        conflict: from `conflict_of`.
        carries: whether its class has the name once everything decided is done.
    """
    devices = situation.devices.get(bridge.name)
    nodes = situation.nodes.get(bridge.name, NodeTally())
    return BridgeStatus(
        observed_generation=bridge.generation,
        conditions=(
            _ready(
                bridge,
                nodes,
                devices,
                conflict,
                carries=carries,
                hint=why_unmatched(bridge.spec.select, situation.kinds),
            ),
            conflict or _PEACE,
            _degraded(devices),
        ),
        device_class_name=bridge.spec.device_class_name,
        devices=devices,
        nodes=nodes,
    )


def misconfigured(situation: Situation, bridge: Bridge, problem: str) -> BridgeStatus:
    """Say how a bridge is whose configuration the driver would not understand."""
    seen = situation.classes.get(bridge.spec.device_class_name)
    is_there = seen is not None and seen.bridge == bridge.name
    rest = "its DeviceClass stays as it was" if is_there else "its DeviceClass is not made"
    message = f"the driver would not understand {problem}; correct it; until then {rest}"
    degraded = Condition(type=ConditionType.DEGRADED, holds=True, reason="InvalidConfig", message=message)
    return BridgeStatus(
        observed_generation=bridge.generation,
        conditions=(_not_ready("InvalidConfig", message), _PEACE, degraded),
        device_class_name=bridge.spec.device_class_name,
        devices=situation.devices.get(bridge.name),
        nodes=situation.nodes.get(bridge.name),
    )


def yielding(bridge: Bridge, *, to: Bridge) -> BridgeStatus:
    """Say how a bridge is whose name an older one has."""
    message = (
        f"ExtendedResourceBridge {to.name}, which is older, has {bridge.spec.resource_name}; delete one of the two"
    )
    conflict = _conflict("NameOfAnotherBridge", message)
    return _only(bridge, (_not_ready(conflict.reason, message), conflict, _FINE))


def inert(bridge: Bridge, why: str) -> BridgeStatus:
    """Say how a bridge is on a cluster that cannot do it."""
    degraded = Condition(type=ConditionType.DEGRADED, holds=True, reason="NotSupported", message=why)
    return _only(bridge, (_not_ready("NotSupported", why), _PEACE, degraded))


def leaving(bridge: Bridge, users: Collection[str]) -> BridgeStatus:
    """Say how a bridge is that was deleted and is kept by claims."""
    claims = "claim uses" if len(users) == 1 else "claims use"
    message = (
        f"it is being deleted, and {len(users)} {claims} DeviceClass {bridge.spec.device_class_name}: "
        f"{listed(sorted(users))}; delete their pods, or force it with the annotation {FORCE_DELETE_ANNOTATION}=true"
    )
    return _only(bridge, (_not_ready("InUse", message), _PEACE, _FINE))


def with_waiting(situation: Situation, bridge: Bridge, status: BridgeStatus) -> BridgeStatus:
    """Say of pods what is known by now; before that, what the bridge says already stands."""
    waiting = situation.waiting
    teller = min(situation.bridges, key=lambda each: (each.deleting, each.created, each.name))
    if bridge.name != teller.name:
        condition, pending = _told_elsewhere(teller), 0
    elif waiting is None:
        condition = bridge.status.condition(ConditionType.PODS_PENDING) or _NONE_WAITS
        pending = bridge.status.pending
    else:
        condition, pending = waiting.condition, waiting.pods
    return replace(status, conditions=(*status.conditions, condition), pending=pending)


def _told_elsewhere(teller: Bridge) -> Condition:
    """The pods of a name are counted once, where `controller.pending` explains them: at the bridge that has it."""
    message = (
        f"ExtendedResourceBridge {teller.name} has {teller.spec.resource_name}, and tells of pods that wait for it"
    )
    return Condition(type=ConditionType.PODS_PENDING, holds=False, reason="ToldElsewhere", message=message)


def refused(status: BridgeStatus, why: str) -> BridgeStatus:
    """Say how a bridge is for which the API server refused a write; why is from `why_refused`."""
    degraded = Condition(type=ConditionType.DEGRADED, holds=True, reason="Refused", message=why)
    former = {each.type: each for each in status.conditions}
    now = former | {ConditionType.READY: _not_ready("Refused", why), ConditionType.DEGRADED: degraded}
    return replace(status, conditions=tuple(now.values()))


def _only(bridge: Bridge, conditions: tuple[Condition, ...]) -> BridgeStatus:
    return BridgeStatus(
        observed_generation=bridge.generation,
        conditions=conditions,
        device_class_name=bridge.spec.device_class_name,
    )


def _ready(
    bridge: Bridge,
    nodes: NodeTally,
    devices: DeviceTally | None,
    conflict: Condition | None,
    *,
    carries: bool,
    hint: str,
) -> Condition:
    spec = bridge.spec
    if conflict is not None:
        return _not_ready(conflict.reason, conflict.message)
    if spec.mode is Mode.DISABLED:
        return _not_ready("Disabled", f"spec.mode is Disabled; set it to Enabled to have pods get {spec.resource_name}")
    if nodes.dra and spec.select.cel:
        return _untold(spec, nodes)
    if nodes.dra:
        what = f"{_nodes(nodes.dra)} can serve {spec.resource_name} through DeviceClass {spec.device_class_name}"
        return Condition(type=ConditionType.READY, holds=True, reason="Serving", message=what)
    reason, message = _why_no_node(spec.resource_name, nodes, devices, hint)
    return _not_ready(reason, message if carries else f"{message}; the class gets the name when a node can serve it")


def _untold(spec: BridgeSpec, nodes: NodeTally) -> Condition:
    """The scheduler alone evaluates CEL, and tells nobody which devices an expression selects."""
    publish = "1 node publishes" if nodes.dra == 1 else f"{nodes.dra} nodes publish"
    message = (
        f"{publish} devices of the kinds that the other fields select; which of them the CEL expression selects only "
        f"the scheduler can tell; try a pod that asks for {spec.resource_name}, or say it without spec.select.cel"
    )
    return Condition(type=ConditionType.READY, holds=None, reason="SelectedByExpression", message=message)


def _why_no_node(resource_name: str, nodes: NodeTally, devices: DeviceTally | None, hint: str) -> tuple[str, str]:
    if nodes.incomplete:
        return "PoolsIncomplete", _incomplete(nodes)
    if nodes.tainted:
        return "AllTainted", _tainted(nodes)
    if nodes.device_plugin and (devices is None or devices.published):
        message = (
            f"the device plugin serves {resource_name} on {_nodes(nodes.device_plugin)}, and goes before DRA there; "
            "stop it on a node to move that node"
        )
        return "OnDevicePlugin", message
    message = (
        f"no node publishes a device that this bridge selects{f': {hint}' if hint else ''}; compare spec.select with "
        "`kubectl get resourceslices -o yaml`, and see whether the kubelet plugin runs on the nodes"
    )
    return "NoDevices", message


def _incomplete(nodes: NodeTally) -> str:
    more = f", and all devices on {_nodes(nodes.tainted)} are tainted" if nodes.tainted else ""
    return (
        f"{_nodes(nodes.incomplete)} with devices that this bridge selects lack slices of their pools, of which the "
        f"scheduler gives nothing before all are there{more}; compare spec.pool.resourceSliceCount with the slices "
        "in `kubectl get resourceslices -o yaml`, and see the log of the kubelet plugin there"
    )


def _tainted(nodes: NodeTally) -> str:
    return (
        f"all devices that this bridge selects on {_nodes(nodes.tainted)} have a taint that keeps pods away; see "
        "spec.devices[].taints in `kubectl get resourceslices -o yaml`, and take it away where the device is sound"
    )


def _degraded(devices: DeviceTally | None) -> Condition:
    if devices is None or not devices.published or devices.tainted < devices.published:
        return _FINE
    message = (
        f"all {devices.published} devices have a taint that keeps pods away; "
        "see spec.devices[].taints in `kubectl get resourceslices -o yaml`"
    )
    return Condition(type=ConditionType.DEGRADED, holds=True, reason="AllTainted", message=message)


def _not_ready(reason: str, message: str) -> Condition:
    return Condition(type=ConditionType.READY, holds=False, reason=reason, message=message)


def _conflict(reason: str, message: str) -> Condition:
    return Condition(type=ConditionType.CONFLICT, holds=True, reason=reason, message=message)


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"
