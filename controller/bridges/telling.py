"""Events on bridges: what was done for them, and what changed with them."""

from collections.abc import Iterator

from controller.api import Bridge, BridgeStatus, Condition, ConditionType
from controller.bridges.actions import ApplyClass
from controller.bridges.classes import has_spec, was_edited
from controller.bridges.handing import former_of
from controller.bridges.situation import Telling
from controller.watching.model import SeenClass

_BAD = frozenset({ConditionType.CONFLICT, ConditionType.DEGRADED})
_WAITED_FOR = frozenset({"InUse"})
"""Reasons for not being ready that somebody ought to do something about."""


def cleared(bridge: Bridge, seen: SeenClass, resource_name: str) -> Telling:
    """A class lost the name for this bridge."""
    return _telling(
        bridge,
        "NameCleared",
        "Write",
        f"{resource_name} was taken from DeviceClass {seen.name}, for one class only may have it",
    )


def written(bridge: Bridge, seen: SeenClass | None, wanted: ApplyClass, *, is_healing: bool) -> Iterator[Telling]:
    """The bridge's class was written, if it was."""
    if seen is not None and seen.is_ours and has_spec(seen, wanted.spec):
        if seen.bridge in {"", bridge.name} and not wanted.labels.items() <= seen.labels.items():
            note = f"somebody changed labels of DeviceClass {wanted.name} of this bridge: they were put back"
            yield _telling(bridge, "ClassReverted", "Write", note, is_warning=True)
        if is_healing:
            yield _telling(
                bridge,
                "NameWrittenAgain",
                "Write",
                f"another class lost {bridge.spec.resource_name}; DeviceClass {wanted.name} was written again, since "
                "the scheduler would not know it any more",
            )
        return
    if seen is None:
        yield _telling(bridge, "ClassCreated", "Create", f"DeviceClass {wanted.name} was made for this bridge")
    elif not seen.is_ours:
        yield _telling(bridge, "ClassAdopted", "Write", f"DeviceClass {wanted.name} was taken over, as spec.adopt says")
    elif was_edited(seen):
        note = f"somebody changed DeviceClass {wanted.name} of this bridge: it was put back; change the bridge instead"
        yield _telling(bridge, "ClassReverted", "Write", note, is_warning=True)
    else:
        yield _telling(bridge, "ClassUpdated", "Write", f"DeviceClass {wanted.name} was written anew")


def dismissed(bridge: Bridge, seen: SeenClass | None) -> Iterator[Telling]:
    """The bridge goes; told of a class that stays, and is somebody else's."""
    if seen is None or seen.is_base or not seen.is_adopted:
        return
    former = former_of(seen)
    had = "" if former.spec is None else former.spec["extendedResourceName"]
    what = (
        "with its labels, but with the selectors and the configuration of this bridge, since what they were before is "
        "not known; write them anew"
        if former.spec is None
        else "with its labels, selectors and configuration"
    )
    name = f"; {had}, which it had, is not given to it again: set its spec.extendedResourceName" if had else ""
    yield _telling(bridge, "ClassReleased", "Write", f"DeviceClass {seen.name} is given back {what}{name}")


def changed(bridge: Bridge, status: BridgeStatus) -> Iterator[Telling]:
    """Conditions that are not as the bridge's status says."""
    for condition in status.conditions:
        former = bridge.status.condition(condition.type)
        if former is None or (former.holds, former.reason) != (condition.holds, condition.reason):
            yield from _condition(bridge, condition)


def _condition(bridge: Bridge, condition: Condition) -> Iterator[Telling]:
    if condition.type in _BAD and condition.holds:
        yield _telling(bridge, condition.reason, "Look", condition.message, is_warning=True)
    elif condition.type is ConditionType.READY and condition.holds:
        yield _telling(bridge, "Ready", "Look", condition.message)
    elif condition.reason in _WAITED_FOR:
        yield _telling(bridge, condition.reason, "Delete", condition.message, is_warning=True)


def _telling(bridge: Bridge, reason: str, action: str, note: str, *, is_warning: bool = False) -> Telling:
    return Telling(bridge=bridge.name, uid=bridge.uid, is_warning=is_warning, reason=reason, action=action, note=note)
