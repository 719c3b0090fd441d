"""Classes that were made for a bridge that does not exist any more.

A bridge's finalizer keeps it until its class can go. But somebody may take the finalizer away by hand, or the whole
CRD, and a write that was under way when another process began to lead may come after everything else. What is left
carries a name that belongs to nobody.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from controller.bridges.actions import Action, ClearName, DeleteClass
from controller.bridges.base import Notice, restore
from controller.bridges.handing import release
from controller.bridges.wording import listed
from controller.watching.model import SeenClass


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanDecision:
    """What is to be done about one class.

    Attributes:
        actions: in this order.
        notice: an Event on the class.
    """

    actions: tuple[Action, ...]
    notice: Notice


def orphans(classes: Mapping[str, SeenClass], bridges: Mapping[str, str]) -> Iterator[SeenClass]:
    """Find the classes that no bridge answers for, in the order of their names.

    Args:
        classes: all DeviceClasses by name.
        bridges: of all bridges by name: the class that each has; "" if that is not known, and may be any.
    """
    for seen in sorted(classes.values(), key=lambda each: each.name):
        if seen.is_ours and not _is_answered_for(seen, bridges):
            yield seen


def _is_answered_for(seen: SeenClass, bridges: Mapping[str, str]) -> bool:
    """Whether a bridge sees to a class; by the class's name where the label that names the bridge is gone."""
    if seen.bridge:
        return bridges.get(seen.bridge) in {"", seen.name}
    return not {"", seen.name}.isdisjoint(bridges.values())


def let_go(seen: SeenClass, users: Collection[str], *, is_wanted: bool) -> OrphanDecision:
    """Decide about one orphan. The name goes at once; the class stays as long as somebody needs it.

    Args:
        seen: the class.
        users: claims that name it, as `namespace/name`.
        is_wanted: a bridge, though not the one that it was made for, is to have it: that one decides about the rest.
    """
    if seen.is_base:
        return _decision(seen, restore(seen.name, seen), "OrphanRestored", "it is a base class again")
    if seen.is_adopted:
        return _decision(seen, (release(seen),), "OrphanReleased", "it was given back to whom it was taken over from")
    if is_wanted:
        return _decision(seen, _clear(seen), "OrphanCleared", "it carries no name until another bridge takes it")
    if users:
        note = (
            f"it carries no name any more, and goes when no claim uses it: {listed(sorted(users))}; delete their pods"
        )
        return _decision(seen, _clear(seen), "OrphanInUse", note)
    return _decision(seen, (*_clear(seen), *_delete(seen)), "OrphanDeleted", "it was deleted")


def _clear(seen: SeenClass) -> Iterator[Action]:
    if seen.extended_name:
        yield ClearName(name=seen.name, resource_version=seen.resource_version)


def _delete(seen: SeenClass) -> Iterator[Action]:
    if not seen.is_deleting:
        yield DeleteClass(name=seen.name, uid=seen.uid, resource_version=seen.resource_version)


def _decision(
    seen: SeenClass, actions: Collection[Action] | Iterator[Action], reason: str, note: str
) -> OrphanDecision:
    text = f"DeviceClass {seen.name} was made for ExtendedResourceBridge {seen.bridge}, which does not exist: {note}"
    notice = Notice(name=seen.name, uid=seen.uid, is_warning=True, reason=reason, note=text)
    return OrphanDecision(actions=tuple(actions), notice=notice)
