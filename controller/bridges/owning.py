"""Which bridge has the name of a DeviceClass, where several want it."""

from collections.abc import Iterable, Mapping

from controller.api import Bridge
from controller.watching.model import SeenClass


def owners_of(bridges: Iterable[Bridge], classes: Mapping[str, SeenClass]) -> dict[str, str]:
    """Say for each class name which bridge has it.

    That is the one for which the class was made, as long as that is there. Where there is no such class, it is the
    oldest of those that are to make one: a bridge that is deleted, or that leaves its extended resource to an older
    one, makes none and keeps the name from nobody.

    Args:
        bridges: all of the cluster.
        classes: all DeviceClasses by name.
    """
    ordered = sorted(bridges, key=by_age)
    owners = {each.spec.device_class_name: each.name for each in ordered if _was_made_for(each, classes)}
    for each in _makers(ordered):
        owners.setdefault(each.spec.device_class_name, each.name)
    return owners


def by_age(bridge: Bridge) -> tuple[str, str]:
    """Order bridges: of two that want the same the older has it, of two of one second the first by name."""
    return bridge.created, bridge.name


def _was_made_for(bridge: Bridge, classes: Mapping[str, SeenClass]) -> bool:
    seen = classes.get(bridge.spec.device_class_name)
    return seen is not None and seen.bridge == bridge.name


def _makers(ordered: Iterable[Bridge]) -> Iterable[Bridge]:
    """Of each extended resource the one bridge that has it, in order of age."""
    found: dict[str, Bridge] = {}
    for each in ordered:
        if not each.deleting:
            found.setdefault(each.spec.resource_name, each)
    return found.values()
