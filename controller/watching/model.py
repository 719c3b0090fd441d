"""What is kept of objects. Most of it is the same on thousands of nodes, and is there only once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from controller.api import ADOPTED_ANNOTATION, BRIDGE_LABEL, FIELD_MANAGER, HASH_ANNOTATION, MANAGED_BY_LABEL

Counters: TypeAlias = tuple[tuple[str, int], ...]
"""Name and value of counters, sorted."""

CounterSets: TypeAlias = tuple[tuple[str, Counters], ...]
"""Counter sets by name, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """What bridges select devices by.

    Attributes:
        type: `gpu` or `mig`; "" where the device does not say.
        profile: of a partition.
        product_name: of the GPU.
        memory: bytes; None where the device does not say.
        sharing: how it is shared; "" where it is not.
    """

    type: str = ""
    profile: str = ""
    product_name: str = ""
    memory: int | None = None
    sharing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDevice:
    """One published device.

    Attributes:
        name: in its pool.
        kind: what it is.
        is_tainted: with a taint that keeps pods away.
        consumes: from the counter sets of its pool while it is allocated.
    """

    name: str
    kind: DeviceKind
    is_tainted: bool = False
    consumes: CounterSets = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSlice:
    """One ResourceSlice of the driver.

    Attributes:
        pool: name.
        node: name of the node, "" if it is not bound to one.
        generation: of the pool; only slices of the greatest count.
        total: number of slices that the pool has in this generation.
        devices: in order.
        counters: shared counters of the pool that stand in this slice.
    """

    pool: str
    node: str = ""
    generation: int = 1
    total: int = 1
    devices: tuple[SeenDevice, ...] = ()
    counters: CounterSets = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenClaim:
    """One ResourceClaim.

    Attributes:
        name: with its namespace, as `namespace/name`.
        classes: DeviceClasses that its requests name.
        devices: pool and device of what is allocated of the driver's, but for admin access, which takes nothing.
    """

    name: str
    classes: tuple[str, ...] = ()
    devices: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """One Node.

    Attributes:
        name: of the node.
        allocatable: extended resources; 0 where a device plugin has been and is gone, since the kubelet keeps the key.
    """

    name: str
    allocatable: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenClass:
    """One DeviceClass; there are few, so all of the spec is kept.

    Attributes:
        name: of the class.
        uid: of the class.
        resource_version: guards writes.
        created: RFC 3339; of two classes with one extended name the scheduler uses the newer.
        labels: of the class.
        annotations: of the class.
        spec: as decoded JSON.
    """

    name: str
    uid: str = ""
    resource_version: str = ""
    created: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def extended_name(self) -> str:
        """The extended resource name that it carries, or ""."""
        return str(self.spec.get("extendedResourceName") or "")

    @property
    def bridge(self) -> str:
        """Name of the bridge that it was made for by a controller; "" for a class of somebody else."""
        return self.labels.get(BRIDGE_LABEL, "") if self.labels.get(MANAGED_BY_LABEL) == FIELD_MANAGER else ""

    @property
    def is_adopted(self) -> bool:
        """Whether somebody else made it before a bridge took it over."""
        return self.annotations.get(ADOPTED_ANNOTATION) == "true"

    @property
    def hash(self) -> str:
        """Of the spec that the controller wrote last."""
        return self.annotations.get(HASH_ANNOTATION, "")
