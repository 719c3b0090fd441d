"""`ExtendedResourceBridge` (dradriver.dev/v1alpha1): objects of the API server as frozen data, and back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from controller.api.names import DISCOVERED_LABEL, FORCE_DELETE_ANNOTATION, GROUP, VERSION, derived_class_name
from dradriver import api
from dradriver.kube import Object, Resource
from dradriver.resource import parse_quantity

BRIDGES: Final = Resource(
    group=GROUP, version=VERSION, plural="extendedresourcebridges", kind="ExtendedResourceBridge", namespaced=False
)


class BridgeError(ValueError):
    """A bridge that cannot be understood, which the CRD would have refused."""


_HOLDS: Final[Mapping[str, bool | None]] = {"True": True, "False": False, "Unknown": None}
"""How the API server spells whether a condition holds."""


class Mode(StrEnum):
    """When the class carries the extended resource name."""

    ENABLED = "Enabled"
    WHEN_READY = "WhenReady"
    DISABLED = "Disabled"


class BaseKeeping(StrEnum):
    """What the controller does with base classes that somebody else made: leave them alone, or take them over."""

    KEEP = "keep"
    ADOPT = "adopt"


class Sharing(StrEnum):
    """Values of a device's attribute `sharing`; a device without it is not shared. Ours are never `mps`."""

    NONE = api.Sharing.NONE
    TIME_SLICING = api.Sharing.TIME_SLICING
    MPS = "mps"


ANY_TYPE: Final = "any"
"""Value of `Select.type`: whole GPUs and partitions."""


class ConditionType(StrEnum):
    """Conditions of a bridge."""

    READY = "Ready"
    CONFLICT = "Conflict"
    DEGRADED = "Degraded"
    PODS_PENDING = "PodsPending"


_CONDITIONS: Final = frozenset(map(str, ConditionType))
_DEVICES: Final = ("published", "allocatable", "allocated", "tainted", "blocked")
"""What a status has of a `DeviceTally`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Select:
    """Which devices; all fields that are given must hold.

    Attributes:
        type: `gpu`, `mig`, or `any` for either; "" where it is not asked.
        profile: of a partition, as nvidia-smi spells it.
        profiles: of partitions, one of which each must have; whole GPUs, where `type` is `any`, have none.
        product_name: of the GPU, exactly.
        memory_min: bytes, included.
        memory_max: bytes, included.
        sharing: how it is shared; None for any way.
        renamed: whether pods get it by a name of its own while it is shared; None for either.
        cel: an expression on `device`.
    """

    type: str = ""
    profile: str = ""
    profiles: tuple[str, ...] = ()
    product_name: str = ""
    memory_min: int | None = None
    memory_max: int | None = None
    sharing: Sharing | None = None
    renamed: bool | None = None
    cel: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeSpec:
    """What the administrator wants.

    Attributes:
        resource_name: the extended resource, with its domain.
        select: which devices.
        config: opaque parameters for the driver.
        device_class_name: given, or derived from the resource name.
        mode: when the class carries the name.
        adopt: take over what others made.
    """

    resource_name: str
    select: Select
    config: tuple[Mapping[str, Any], ...] = ()
    device_class_name: str
    mode: Mode = Mode.ENABLED
    adopt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition.

    Attributes:
        type: which.
        holds: its status; None where nobody can tell.
        reason: CamelCase word, for machines.
        message: sentence for a person: object, cause, next step.
    """

    type: ConditionType
    holds: bool | None
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTally:
    """Numbers of what pods can get: devices, and of a device that several pods can have at once its shares.

    Attributes:
        published: that slices have.
        allocatable: each of which could be allocated now, though perhaps not all of them together.
        allocated: that claims hold.
        tainted: with a taint that keeps pods away.
        blocked: neither allocated nor tainted, but other partitions use up their counters, or their pool is incomplete.
        distinct: devices, however many shares they have; not part of a bridge's status.
        unlimited: devices that any number of requests can have at once; not part of a bridge's status.
        incomplete: not tainted, but in a pool whose slices are not all there, of which nothing new is allocated; not
            part of a bridge's status.
    """

    published: int = 0
    allocatable: int = 0
    allocated: int = 0
    tainted: int = 0
    blocked: int = 0
    distinct: int = field(default=0, compare=False)
    unlimited: int = field(default=0, compare=False)
    incomplete: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTally:
    """Numbers of nodes by what serves a resource name there.

    Attributes:
        device_plugin: its allocatable has the name, which the scheduler prefers to DRA.
        dra: it has a matching device without a taint that keeps pods away, in a pool whose slices are all there, and no
            device plugin serves the name. Whether the device is allocated does not matter: it serves, and is full.
        neither: all others that have GPUs in slices, or once had a device plugin for the name.
        tainted: of the latter, those whose matching devices are all tainted; not part of a bridge's status.
        incomplete: of the latter, those with matching devices whose pools lack slices; not part of a bridge's status.
    """

    device_plugin: int = 0
    dra: int = 0
    neither: int = 0
    tainted: int = field(default=0, compare=False)
    incomplete: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeStatus:
    """What the controller found; `pending` are pods that ask for the resource and wait for a node."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    device_class_name: str = ""
    devices: DeviceTally | None = None
    nodes: NodeTally | None = None
    pending: int = 0

    def condition(self, kind: ConditionType) -> Condition | None:
        """One of the conditions."""
        return next((each for each in self.conditions if each.type == kind), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """One bridge.

    Attributes:
        name: of the object.
        uid: of the object.
        resource_version: of the object, which guards writes to its finalizers.
        generation: of the spec.
        created: RFC 3339.
        finalizers: as they are.
        deleting: somebody has deleted it; only finalizers keep it.
        forced: it may go though claims use its class.
        is_discovered: the controller made it, for a profile that it found.
        spec: wanted.
        status: as it was found last.
    """

    name: str
    uid: str
    resource_version: str = ""
    generation: int = 1
    created: str = ""
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    forced: bool = False
    is_discovered: bool = False
    spec: BridgeSpec
    status: BridgeStatus = field(default_factory=BridgeStatus)


def resource_name_of(item: Object) -> str:
    """The extended resource of a bridge object, also of one that cannot be understood otherwise."""
    return str((item.get("spec") or {}).get("resourceName") or "")


def decode_bridge(item: Object) -> Bridge:
    """Read an object.

    Of its status, which is ours, conditions and numbers of another version are passed over, and one that is not
    understood at all counts as none: it is made anew, and never keeps a bridge from being worked on.

    Raises:
        BridgeError: it is not what the CRD allows; names the bridge.
    """
    metadata = item["metadata"]
    try:
        return Bridge(
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            resource_version=metadata.get("resourceVersion", ""),
            generation=metadata.get("generation", 1),
            created=metadata.get("creationTimestamp", ""),
            finalizers=tuple(metadata.get("finalizers") or ()),
            deleting="deletionTimestamp" in metadata,
            forced=(metadata.get("annotations") or {}).get(FORCE_DELETE_ANNOTATION) == "true",
            is_discovered=(metadata.get("labels") or {}).get(DISCOVERED_LABEL) == "true",
            spec=_spec(item["spec"]),
            status=_status_or_none(item.get("status") or {}),
        )
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise BridgeError(
            f"ExtendedResourceBridge {metadata['name']} is not understood near {error}; "
            "apply the CRD of this version (deploy/crds) and correct the bridge"
        ) from error


def _spec(spec: Mapping[str, Any]) -> BridgeSpec:
    resource_name = spec["resourceName"]
    return BridgeSpec(
        resource_name=resource_name,
        select=_select(spec["select"]),
        config=tuple(spec.get("config") or ()),
        device_class_name=spec.get("deviceClassName") or derived_class_name(resource_name),
        mode=Mode(spec.get("mode") or Mode.ENABLED),
        adopt=bool(spec.get("adopt")),
    )


def _select(select: Mapping[str, Any]) -> Select:
    memory = select.get("memory") or {}
    return Select(
        type=select.get("type", ""),
        profile=select.get("profile", ""),
        profiles=tuple(select.get("profiles") or ()),
        product_name=select.get("productName", ""),
        memory_min=_bytes(memory.get("min")),
        memory_max=_bytes(memory.get("max")),
        sharing=Sharing(select["sharing"]) if "sharing" in select else None,
        renamed=select.get("renamed"),
        cel=select.get("cel", ""),
    )


def _bytes(quantity: str | None) -> int | None:
    return None if quantity is None else int(parse_quantity(quantity))


def _status_or_none(status: Any) -> BridgeStatus:
    try:
        return _status(status)
    except (KeyError, TypeError, ValueError, AttributeError):
        return BridgeStatus()


def _status(status: Mapping[str, Any]) -> BridgeStatus:
    devices, nodes, pods = status.get("devices"), status.get("nodes"), status.get("pods") or {}
    return BridgeStatus(
        observed_generation=status.get("observedGeneration", 0),
        conditions=tuple(_condition(each) for each in status.get("conditions") or () if each["type"] in _CONDITIONS),
        device_class_name=status.get("deviceClassName", ""),
        devices=None if devices is None else DeviceTally(**{name: devices.get(name, 0) for name in _DEVICES}),
        nodes=None
        if nodes is None
        else NodeTally(
            device_plugin=nodes.get("devicePlugin", 0), dra=nodes.get("dra", 0), neither=nodes.get("neither", 0)
        ),
        pending=pods.get("pending", 0),
    )


def _condition(condition: Mapping[str, Any]) -> Condition:
    return Condition(
        type=ConditionType(condition["type"]),
        holds=_HOLDS[condition["status"]],
        reason=condition["reason"],
        message=condition["message"],
    )


def encode_status(status: BridgeStatus, *, former: Mapping[str, Any], now: str) -> Object:
    """Write a status as the API server keeps it.

    Args:
        status: what is to be told.
        former: the status that the object has; a condition that has not changed keeps its time.
        now: RFC 3339 time for those that have.
    """
    times = _times(former)
    body: Object = {
        "observedGeneration": status.observed_generation,
        "conditions": [_condition_body(each, status.observed_generation, times, now) for each in status.conditions],
        "deviceClassName": status.device_class_name,
        "pods": {"pending": status.pending},
    }
    if (devices := status.devices) is not None:
        body["devices"] = {name: getattr(devices, name) for name in _DEVICES}
    if (nodes := status.nodes) is not None:
        body["nodes"] = {"devicePlugin": nodes.device_plugin, "dra": nodes.dra, "neither": nodes.neither}
    return body


def _times(former: Mapping[str, Any]) -> Mapping[tuple[str, str], str]:
    """Since when conditions are as they are; none where the status is not understood."""
    try:
        return {(each["type"], each["status"]): each["lastTransitionTime"] for each in former.get("conditions") or ()}
    except (KeyError, TypeError, AttributeError):
        return {}


def _condition_body(condition: Condition, generation: int, times: Mapping[tuple[str, str], str], now: str) -> Object:
    value = next(word for word, holds in _HOLDS.items() if holds is condition.holds)
    return {
        "type": str(condition.type),
        "status": value,
        "reason": condition.reason,
        "message": condition.message,
        "observedGeneration": generation,
        "lastTransitionTime": times.get((condition.type, value), now),
    }
