"""Why a pod gets no device of one extended resource.

Nothing here imitates the scheduler. What is said follows from numbers that bound it: a device that is not allocatable
cannot be had by any rule, while one that is may still not be had. Where nothing follows, facts are told and the
scheduler's own words.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from controller.api import Bridge, ConditionType
from controller.bridges import why_unmatched
from controller.pending.names import alike
from controller.pending.nodes import why_excluded
from controller.pending.supply import Supply
from controller.watching.model import DeviceKind, PodShape, SeenNode
from controller.watching.waiting import QUOTA_MARK

CLAIM_LIMIT: Final = 32
"""Devices in one claim. Source: the API's limit of results in an allocation."""

_MOST_NAMED: Final = 3
_NOT_READY: Final = {
    "Disabled": "BridgeDisabled",
    "InUse": "BridgeLeaving",
    "NotSupported": "NotSupported",
    "Refused": "BridgeRefused",
    "InvalidConfig": "BridgeRefused",
}
"""Reasons for which a bridge is not ready, and what pods are told then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of one extended resource.

    Attributes:
        resource_name: the resource.
        bridge: the one that has the name, with its status; None if there is none.
        carriers: DeviceClasses that carry the name.
        supply: what the bridge selects; None if that is not known.
        plugin: how many the device plugin has, by node.
        nodes: by name.
        kinds: every kind of device that is published.
        known: resource names that pods can ask for instead: of bridges whose devices are published.
    """

    resource_name: str
    bridge: Bridge | None = None
    carriers: Collection[str] = ()
    supply: Supply | None = None
    plugin: Mapping[str, int] = field(default_factory=dict)
    nodes: Mapping[str, SeenNode] = field(default_factory=dict)
    kinds: Collection[DeviceKind] = ()
    known: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a pod waits.

    Attributes:
        resource_name: which of its resources keeps it.
        reason: CamelCase word, for machines.
        message: sentence for a person: cause and next step.
        is_certain: it follows from what is known; else facts are told that may explain it.
    """

    resource_name: str
    reason: str
    message: str
    is_certain: bool = True


def explain(shape: PodShape, count: int, total: int, facts: Facts) -> Explanation:
    """Say why a pod waits, as far as one resource is the cause.

    Args:
        shape: of the pod.
        count: how many it wants of the resource.
        total: how many devices it wants through classes, of all resources.
        facts: of the resource.
    """
    return next(_causes(shape, count, total, facts))


def _causes(shape: PodShape, count: int, total: int, facts: Facts) -> Iterator[Explanation]:
    """All causes that hold, the plainest first; the last holds always."""
    if shape.said.startswith(QUOTA_MARK):
        yield _quota(shape, facts)
    if facts.bridge is None:
        yield from _unbridged(shape, count, facts)
    else:
        yield from _bridge_trouble(facts.bridge, facts)
        if total > CLAIM_LIMIT and not facts.plugin:
            yield _too_many_for_a_claim(total, facts)
        if facts.supply is not None:
            yield from _numbers(shape, count, facts, facts.supply)
    yield _unknown(shape, count, facts)


def _because(facts: Facts, reason: str, message: str, *, is_certain: bool = True) -> Explanation:
    return Explanation(resource_name=facts.resource_name, reason=reason, message=message, is_certain=is_certain)


def _quota(shape: PodShape, facts: Facts) -> Explanation:
    return _because(
        facts,
        "QuotaExceeded",
        f"the scheduler may not make the pod's claim: {shape.said}; raise that quota, or end pods of this namespace "
        "whose claims count to it",
    )


# --- no bridge ------------------------------------------------------------------------------------


def _unbridged(shape: PodShape, count: int, facts: Facts) -> Iterator[Explanation]:
    name = facts.resource_name
    if facts.carriers:
        return
    if facts.plugin:
        yield from _on_plugin_only(shape, count, facts)
    else:
        yield _because(
            facts,
            "ClassMissing",
            f"no DeviceClass carries {name}, and no device plugin serves it; make an ExtendedResourceBridge with "
            f"spec.resourceName {name}{_similar(facts)}",
        )


def _on_plugin_only(shape: PodShape, count: int, facts: Facts) -> Iterator[Explanation]:
    name, most = facts.resource_name, max(facts.plugin.values())
    bridge = "make an ExtendedResourceBridge for the name, by which nodes with DRA serve it"
    if count > most:
        yield _because(
            facts,
            "TooManyDevices",
            f"the pod asks for {count} of {name}, which comes from the device plugin only, and that has {most} at most "
            f"on one node; ask for less, spread them over several pods, or {bridge}",
        )
    yield from _excluded_for_good(shape, count, facts, [node for node, has in facts.plugin.items() if has >= count])
    yield _because(
        facts,
        "OnDevicePlugin",
        f"{name} comes from the device plugin only, {_on_plugin(shape, facts)}; wait until pods there end, or {bridge}",
    )


def _similar(facts: Facts) -> str:
    close = alike(facts.resource_name, facts.known)
    return f", or ask for one that has a bridge: {', '.join(close)}" if close else ""


# --- the bridge -----------------------------------------------------------------------------------


def _bridge_trouble(bridge: Bridge, facts: Facts) -> Iterator[Explanation]:
    """What keeps its class from having the name; where a device plugin has the resource too, that may serve it."""
    ready, conflict = (bridge.status.condition(kind) for kind in (ConditionType.READY, ConditionType.CONFLICT))
    if conflict is not None and conflict.holds:
        yield _because(facts, "BridgeConflict", _of_bridge(bridge, conflict.message))
    elif ready is not None and not ready.holds and ready.reason in _NOT_READY and not facts.plugin:
        yield _because(facts, _NOT_READY[ready.reason], _of_bridge(bridge, ready.message))
    elif ready is not None and not ready.holds and not facts.carriers and not facts.plugin:
        yield _because(facts, "BridgeNotReady", _of_bridge(bridge, ready.message))


def _of_bridge(bridge: Bridge, message: str) -> str:
    return f"ExtendedResourceBridge {bridge.name}: {message}"


# --- numbers --------------------------------------------------------------------------------------


def _too_many_for_a_claim(total: int, facts: Facts) -> Explanation:
    return _because(
        facts,
        "TooManyDevices",
        f"the pod asks for {total} devices, and a claim can have {CLAIM_LIMIT} at most; spread them over several pods",
    )


def _numbers(shape: PodShape, count: int, facts: Facts, supply: Supply) -> Iterator[Explanation]:
    if supply.most == 0:
        yield _no_devices(facts)
    elif count > supply.most and supply.is_bound and not supply.unlimited:
        yield _because(
            facts,
            "TooManyDevices",
            f"the pod asks for {count} of {facts.resource_name}, and no node has more than {supply.most}; ask for "
            "less, or spread them over several pods",
        )
    elif (at_once := _at_once(shape, facts)) > supply.most_distinct and supply.is_bound and not facts.plugin:
        yield _because(
            facts,
            "TooManyDevices",
            f"a container asks for {at_once} of {facts.resource_name}, which have to be different devices, and no "
            f"node has more than {supply.most_distinct}, though each can be shared; ask for less",
        )
    else:
        yield from _places(shape, count, facts, supply)


def _places(shape: PodShape, count: int, facts: Facts, supply: Supply) -> Iterator[Explanation]:
    """What keeps the pod from nodes that have enough: from all of them first, since there waiting does not help."""
    at_once = _at_once(shape, facts)
    enough, free = supply.could_serve(count, at_once), supply.places_with(count, at_once)
    if supply.is_bound and not enough:
        yield _to_be_moved(count, facts, supply)
    if supply.is_bound:
        yield from _excluded_for_good(shape, count, facts, enough)
    if not free:
        yield _none_free(shape, count, facts, supply)
    elif supply.is_bound and not facts.plugin:
        yield from _excluded_now(shape, count, facts, free)


def _to_be_moved(count: int, facts: Facts, supply: Supply) -> Explanation:
    """Only nodes on which the device plugin keeps DRA away publish so many."""
    return _because(
        facts,
        "OnDevicePlugin",
        f"the pod asks for {count} of {facts.resource_name}, and no node has more than {supply.most_served} as it is "
        f"served now, though one that the device plugin serves publishes {supply.most}; ask for less, or move that "
        "node to DRA",
    )


def _no_devices(facts: Facts) -> Explanation:
    bridge = facts.bridge
    hint = why_unmatched(bridge.spec.select, facts.kinds) if bridge else ""
    return _because(
        facts,
        "NoDevices",
        f"no node publishes a device that ExtendedResourceBridge {bridge.name if bridge else ''} selects"
        f"{f': {hint}' if hint else ''}; see its status, and whether the kubelet plugin runs on the nodes",
    )


def _at_once(shape: PodShape, facts: Facts) -> int:
    """The most that one container wants. Source: a request of a claim gets no device twice, whatever shares it has."""
    return dict(shape.largest).get(facts.resource_name, 0)


def _none_free(shape: PodShape, count: int, facts: Facts, supply: Supply) -> Explanation:
    plugin = f"the device plugin still serves {facts.resource_name}, {_on_plugin(shape, facts)}" if facts.plugin else ""
    if not supply.count:
        return _because(facts, "OnDevicePlugin", f"{plugin}; wait until pods there end, or move a node to DRA")
    wanted = f"the pod asks for {count} of {facts.resource_name}, and no node has so many free"
    parts = [f"{wanted}: {_census(supply)}", *([plugin] if plugin else [])]
    steps = []
    if supply.is_waited_for(count, _at_once(shape, facts)):
        steps.append("wait until pods that hold them end (`kubectl get resourceclaims -A`)")
    if supply.total.tainted:
        steps.append("see to the tainted ones (spec.devices[].taints in `kubectl get resourceslices -o yaml`)")
    if supply.total.incomplete:
        steps.append(
            "see the log of the kubelet plugin on nodes that have fewer slices than spec.pool.resourceSliceCount in "
            "`kubectl get resourceslices -o yaml`"
        )
    return _because(facts, "NoDeviceFree", f"{'; '.join(parts)}; {', or '.join(steps)}")


def _on_plugin(shape: PodShape, facts: Facts) -> str:
    """Where it is served so. The pod waits, so whatever is free there, none of these nodes is fit for it."""
    total, count = sum(facts.plugin.values()), len(facts.plugin)
    fit = "it is not fit" if count == 1 else "none of them is fit"
    return f"on {number_of_nodes(count)} with {total} in all, and {fit} for the pod now{_scheduler(shape)}"


def _census(supply: Supply) -> str:
    """Numbers of what is there, and where it is."""
    total = supply.total
    parts = {
        "allocated": total.allocated,
        "tainted": total.tainted,
        "without room beside other partitions" + (" or in incomplete pools" if total.incomplete else ""): total.blocked,
        "free": total.allocatable,
    }
    said = ", ".join(f"{number} {'is' if number == 1 else 'are'} {what}" for what, number in parts.items() if number)
    free = f", at most {supply.most_free} on one node" if total.allocatable else ""
    return f"of {total.published} on {number_of_nodes(supply.count)} {said}{free}"


def _excluded_for_good(shape: PodShape, count: int, facts: Facts, enough: Collection[str]) -> Iterator[Explanation]:
    """None of the nodes that have so many is for the pod, whoever holds them now."""
    if why := _why_excluded(shape, facts, enough):
        what = f"{_that_have(enough)} {count} of {facts.resource_name} or more, free or not"
        yield _because(facts, "NodesExcluded", f"only {what}, but {why}")


def _excluded_now(shape: PodShape, count: int, facts: Facts, free: Collection[str]) -> Iterator[Explanation]:
    if why := _why_excluded(shape, facts, free):
        what = f"{_that_have(free)} {count} of {facts.resource_name} free"
        yield _because(
            facts, "NodesExcluded", f"{what}, but {why}; or wait until pods end on other nodes that have such devices"
        )


def _why_excluded(shape: PodShape, facts: Facts, names: Collection[str]) -> str:
    """Give nothing also where a node is not known, which may be the right one."""
    found = [node for name in names if (node := facts.nodes.get(name)) is not None]
    return why_excluded(shape, found) if found and len(found) == len(names) else ""


def _that_have(names: Collection[str]) -> str:
    """Say which nodes, a few by name."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    have = "has" if len(names) == 1 else "have"
    return f"{number_of_nodes(len(names))} ({', '.join(sorted(names)[:_MOST_NAMED])}{more}) {have}"


# --- what is not known ----------------------------------------------------------------------------


def _unknown(shape: PodShape, count: int, facts: Facts) -> Explanation:
    known = f"the pod asks for {count} of {facts.resource_name}"
    if facts.supply is not None:
        enough = len(facts.supply.places_with(count, _at_once(shape, facts)))
        known += f", which {number_of_nodes(enough)} {'seems' if enough == 1 else 'seem'} to have free"
    return _because(facts, "NotScheduled", f"{known}{_scheduler(shape)}", is_certain=False)


def _scheduler(shape: PodShape) -> str:
    return f' (the scheduler says: "{shape.said}")' if shape.said else ""


def number_of_nodes(count: int) -> str:
    """Say a number of nodes."""
    return f"{count} node" if count == 1 else f"{count} nodes"
