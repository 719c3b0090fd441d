"""What is kept of objects. Most of it is the same on thousands of nodes, and is there only once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from controller.api import (
    ADOPTED_ANNOTATION,
    BASE_CLASSES,
    BASE_LABEL,
    BRIDGE_LABEL,
    HASH_ANNOTATION,
)

Counters: TypeAlias = tuple[tuple[str, int], ...]
"""Name and value of counters, sorted."""

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Keys and values, sorted."""

CounterSets: TypeAlias = tuple[tuple[str, Counters], ...]
"""Counter sets by name, sorted."""


UNLIMITED: Final = -1
"""Shares of a device that several pods can have at once, and that does not say how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """What bridges select devices by.

    Attributes:
        type: `gpu` or `mig`; "" where the device does not say.
        profile: of a partition.
        product_name: of the GPU.
        memory: bytes; None where the device does not say.
        sharing: how it is shared; "" where it is not.
        renamed: pods get it by a name of its own while it is shared.
    """

    type: str = ""
    profile: str = ""
    product_name: str = ""
    memory: int | None = None
    sharing: str = ""
    renamed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDevice:
    """One published device.

    Attributes:
        name: in its pool.
        kind: what it is.
        is_tainted: with a taint that keeps pods away.
        consumes: from the counter sets of its pool while it is allocated.
        shares: how many pods can have it at once; 0 for one that only one can have, `UNLIMITED` where nobody counts.
    """

    name: str
    kind: DeviceKind
    is_tainted: bool = False
    consumes: CounterSets = ()
    shares: int = 0


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
        shares: pool, device and number of shares of those that others may have too.
    """

    name: str
    classes: tuple[str, ...] = ()
    devices: tuple[tuple[str, str], ...] = ()
    shares: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A taint of a node, or what a pod tolerates of it.

    Attributes:
        key: of the taint; "" in a toleration for all of them.
        value: of the taint.
        effect: `NoSchedule` or `NoExecute`; "" in a toleration for both.
        operator: of a toleration.
    """

    key: str
    value: str = ""
    effect: str = ""
    operator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """One Node.

    Attributes:
        name: of the node.
        allocatable: extended resources; 0 where a device plugin has been and is gone, since the kubelet keeps the key.
        labels: of the node, sorted.
        taints: that keep pods away, in order.
    """

    name: str
    allocatable: tuple[tuple[str, int], ...] = ()
    labels: Labels = ()
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodShape:
    """What decides where a pod that waits can run; pods of one workload have the same.

    Attributes:
        wants: extended resources with their numbers, as the scheduler adds them up over containers; sorted.
        largest: of each of them, the most that one container wants; sorted.
        selector: of nodes, sorted.
        tolerations: of nodes' taints.
        has_affinity: it has rules for nodes or pods that are not looked at here.
        is_gated: somebody holds it back before the scheduler sees it.
        said: what the scheduler said of it last.
    """

    wants: tuple[tuple[str, int], ...] = ()
    largest: tuple[tuple[str, int], ...] = ()
    selector: Labels = ()
    tolerations: tuple[Taint, ...] = ()
    has_affinity: bool = False
    is_gated: bool = False
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPod:
    """One pod that has no node yet.

    Attributes:
        name: of the pod.
        namespace: of the pod.
        uid: of the pod.
        shape: what it asks for.
    """

    name: str
    namespace: str
    uid: str
    shape: PodShape


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenQuota:
    """One ResourceQuota.

    Attributes:
        name: of the quota.
        namespace: of the quota.
        limits: key, what is used of it and what may be, for keys that devices can count to; sorted.
    """

    name: str
    namespace: str
    limits: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenClass:
    """One DeviceClass; there are few, so all of the spec is kept.

    It is a controller's if it has the annotation with the hash, which is ours alone: others, such as Helm, set the
    label `app.kubernetes.io/managed-by` on whatever they apply.

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
        return self.labels.get(BRIDGE_LABEL, "") if self.hash else ""

    @property
    def is_ours(self) -> bool:
        """Whether a controller wrote it for a bridge, also where somebody took the label away that says for which."""
        return bool(self.bridge) or (bool(self.hash) and not self.is_base)

    @property
    def is_base(self) -> bool:
        """Whether a controller keeps it for claims, also while a bridge has it."""
        is_unmarked = self.name in BASE_CLASSES and not self.bridge and not self.is_adopted
        return bool(self.hash) and (self.labels.get(BASE_LABEL) == "true" or is_unmarked)

    @property
    def is_adopted(self) -> bool:
        """Whether somebody else made it before a bridge took it over."""
        return self.annotations.get(ADOPTED_ANNOTATION) == "true"

    @property
    def hash(self) -> str:
        """Of the spec that the controller wrote last."""
        return self.annotations.get(HASH_ANNOTATION, "")
