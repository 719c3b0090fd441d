"""Devices, counter sets, pools and slices, as the scheduler sees them (resource.k8s.io/v1)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version (semver 2.0.0, at most 64 bytes), the attribute type CEL can compare."""

    text: str


AttributeValue: TypeAlias = str | int | bool | Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A device taint.

    Attributes:
        key: label name in the driver's domain.
        value: label value, may be empty.
        effect: `None` (informational), `NoSchedule` or `NoExecute`.
        time_added: RFC 3339 time; None lets the API server choose. An existing time is carried over by
            the publisher: a new one restarts every pod's tolerationSeconds.
    """

    key: str
    value: str = ""
    effect: str
    time_added: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterConsumption:
    """What one device takes from one counter set while it is allocated."""

    counter_set: str
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSet:
    """Quantities that the devices of one GPU share; unit as the counter's name says, mostly a count."""

    name: str
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPolicy:
    """What a claim takes of a capacity of a device that several claims may have.

    Attributes:
        default: what a claim takes that asks for nothing.
        least: smallest amount that can be asked for; others are rounded up to whole multiples of it. None where any
            amount can be.
    """

    default: int
    least: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device that can be allocated.

    Attributes:
        name: DNS label, unique in the pool.
        attributes: qualified name to value.
        capacity: qualified name to quantity; plain integers (memory in bytes).
        consumes: at most two entries, each of another counter set.
        taints: at most sixteen, one for each key and effect.
        policies: for each capacity, where several claims may have the device at once; none where one claim gets it.
            Never together with `consumes`: schedulers give such devices out twice.
    """

    name: str
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    consumes: tuple[CounterConsumption, ...] = ()
    taints: tuple[Taint, ...] = ()
    policies: Mapping[str, RequestPolicy] = field(default_factory=dict)

    @property
    def shared(self) -> bool:
        """Several claims may have it at once (`allowMultipleAllocations`)."""
        return bool(self.policies)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """Devices that belong together in one slice, as a rule a whole GPU and its partitions.

    A change of one GPU's health then costs one write, and no half of it is ever visible.

    Attributes:
        devices: in the order in which the scheduler shall try them.
        counter_sets: which the pool has because of them; devices of any group may consume from them.
    """

    devices: tuple[Device, ...]
    counter_sets: tuple[CounterSet, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Everything one node offers. The order of groups and devices is the order the scheduler tries them in."""

    name: str
    groups: tuple[DeviceGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The content of one ResourceSlice: devices, counter sets, or, on Kubernetes 1.34 only, both."""

    devices: tuple[Device, ...] = ()
    counter_sets: tuple[CounterSet, ...] = ()
