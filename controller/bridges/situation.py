"""What a decision about one extended resource name is made of, and what comes out of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.api import Bridge, BridgeStatus, Condition, DeviceTally, NodeTally
from controller.bridges.actions import Action
from controller.watching.model import SeenClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Pods that wait for an extended resource.

    Attributes:
        pods: how many.
        condition: why, for the status of bridges.
    """

    pods: int
    condition: Condition


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything that is known of one extended resource name.

    Attributes:
        resource_name: the name.
        bridges: all bridges that want it.
        classes: all DeviceClasses of the cluster by name.
        owners: of class names: which bridge has it, of all bridges of the cluster; see `owners_of`.
        users: of classes: claims that name them, as `namespace/name`.
        devices: numbers of devices by bridge; those with a CEL expression of their own are missing.
        nodes: numbers of nodes by bridge.
        unsupported: why the API server cannot do it, for people; "" if it can.
        writer: this process.
        rivals: classes that have carried the name at any moment since the last decision was carried out.
        waiting: pods that wait for it; None if that is not known yet.
    """

    resource_name: str
    bridges: tuple[Bridge, ...] = ()
    classes: Mapping[str, SeenClass] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    devices: Mapping[str, DeviceTally] = field(default_factory=dict)
    nodes: Mapping[str, NodeTally] = field(default_factory=dict)
    unsupported: str = ""
    writer: str = ""
    rivals: frozenset[str] = frozenset()
    waiting: Waiting | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """An Event on a bridge.

    Attributes:
        bridge: its name.
        uid: its uid.
        is_warning: else it is a normal one.
        reason: CamelCase word.
        action: CamelCase word, what was done or tried.
        note: sentence for a person.
    """

    bridge: str
    uid: str
    is_warning: bool = False
    reason: str
    action: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to be done about one extended resource name.

    Attributes:
        actions: in this order; if one fails, those behind it must not be done.
        statuses: by bridge, as they are to be once all actions are done.
        tellings: Events, once all actions are done.
        rivals: for the next situation of this name.
    """

    actions: tuple[Action, ...] = ()
    statuses: Mapping[str, BridgeStatus] = field(default_factory=dict)
    tellings: tuple[Telling, ...] = ()
    rivals: frozenset[str] = frozenset()
