"""The base classes `gpu.nvidia.com` and `mig.nvidia.com`, which claims name and which no bridge has to exist for.

One that is missing is made, one that is ours is kept true. One of somebody else is left alone, or taken over where that
is wanted. A bridge that names one has it: it is left to the bridge, and taken back when the bridge goes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from controller.api import BASE_CLASSES, BaseKeeping, Bridge, ConditionType
from controller.bridges.actions import Action, ApplyClass, ClearName
from controller.bridges.classes import base_class, has_spec, is_as_wanted, selects_alike
from controller.watching.model import SeenClass


class BaseState(StrEnum):
    """How a base class is."""

    KEPT = "kept"
    FOREIGN = "foreign"
    DIFFERS = "differs"
    BRIDGE = "bridge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An Event on a base class.

    Attributes:
        name: of the class.
        uid: of the class; "" for one that is made now.
        is_warning: else it is a normal one.
        reason: CamelCase word.
        note: sentence for a person.
    """

    name: str
    uid: str = ""
    is_warning: bool = False
    reason: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseDecision:
    """What is to be done about base classes.

    Attributes:
        actions: in this order.
        notices: Events, once all actions are done.
        states: of each class once they are done; for the next time.
    """

    actions: tuple[Action, ...]
    notices: tuple[Notice, ...]
    states: Mapping[str, BaseState]


def keep_base_classes(
    classes: Mapping[str, SeenClass],
    bridges: Iterable[Bridge],
    keeping: BaseKeeping,
    former: Mapping[str, BaseState],
) -> BaseDecision:
    """Decide about all base classes.

    Args:
        classes: all DeviceClasses by name.
        bridges: all bridges.
        keeping: what is done with those of somebody else.
        former: states of the time before, so that the same is not told again.
    """
    bridges = tuple(bridges)
    states = {name: _state(classes.get(name), name, bridges, keeping) for name in BASE_CLASSES}
    kept = [(name, classes.get(name)) for name, state in states.items() if state is BaseState.KEPT]
    news = (classes[name] for name, state in states.items() if state is BaseState.DIFFERS and former.get(name) != state)
    return BaseDecision(
        actions=tuple(action for name, seen in kept for action in restore(name, seen)),
        notices=(*(each for name, seen in kept for each in _restored(name, seen)), *map(_differs, news)),
        states=states,
    )


def restore(name: str, seen: SeenClass | None) -> Iterator[Action]:
    """Make a base class what it has to be. A name is taken from it first: to apply without it would leave it there."""
    wanted = base_class(name, seen)
    if seen is not None and seen.extended_name:
        yield ClearName(name=name, resource_version=seen.resource_version)
    if not _is_right(seen, wanted):
        yield wanted


def _is_right(seen: SeenClass | None, wanted: ApplyClass) -> bool:
    return seen is not None and not seen.bridge and is_as_wanted(seen, wanted)


def _state(seen: SeenClass | None, name: str, bridges: Iterable[Bridge], keeping: BaseKeeping) -> BaseState:
    claimants = [bridge for bridge in bridges if bridge.spec.device_class_name == name]
    if any(_has(bridge, seen) for bridge in claimants):
        return BaseState.BRIDGE
    if seen is None or seen.is_base or keeping is BaseKeeping.ADOPT:
        return BaseState.KEPT
    return BaseState.FOREIGN if selects_alike(seen) else BaseState.DIFFERS


def _has(bridge: Bridge, seen: SeenClass | None) -> bool:
    """Whether a bridge has the class, or is about to take it."""
    if seen is not None and seen.bridge:
        return seen.bridge == bridge.name
    conflict = bridge.status.condition(ConditionType.CONFLICT)
    yields = conflict is not None and conflict.holds and conflict.reason == "NameOfAnotherBridge"
    return not bridge.deleting and not yields and (bridge.spec.adopt or seen is None)


def _restored(name: str, seen: SeenClass | None) -> Iterator[Notice]:
    wanted = base_class(name, seen)
    if seen is None:
        yield Notice(name=name, reason="BaseClassCreated", note=f"DeviceClass {name} was missing and has been made")
    elif not seen.is_base:
        note = f"DeviceClass {name} was taken over, as --base-classes=adopt says"
        yield Notice(name=name, uid=seen.uid, reason="BaseClassAdopted", note=note)
    elif not has_spec(seen, wanted.spec) and not seen.bridge:
        note = (
            f"somebody changed DeviceClass {name}: it was put back; make a class of another name, or an "
            "ExtendedResourceBridge for an extended resource name"
        )
        yield Notice(name=name, uid=seen.uid, is_warning=True, reason="BaseClassReverted", note=note)


def _differs(seen: SeenClass) -> Notice:
    note = (
        f"DeviceClass {seen.name} was made by somebody else and selects or configures devices otherwise than "
        "this driver's claims expect; correct it, delete it to have it made anew, or start the controller with "
        "--base-classes=adopt"
    )
    return Notice(name=seen.name, uid=seen.uid, is_warning=True, reason="BaseClassDiffers", note=note)
