"""Bridges for the MIG profiles that the cluster has, made and removed without a person.

They are bridges like others, in the names that the device plugin's strategy `mixed` uses, and marked by a label. A name
that somebody has made a bridge for is left to that one; so is one whose label somebody took away. Partitions that are
shared under a name of their own have one more bridge, and are not mixed with those that are not.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from controller.api import BRIDGES, DISCOVERED_LABEL, Bridge, Mode, resource_name_of_profile
from controller.watching.model import DeviceKind
from dradriver.api import PROFILE_NAME, DeviceType
from dradriver.kube import Object

GRACE_SECONDS: Final = 600.0
"""For which a profile has to be missing before its bridge goes: a node that restarts takes its slices away a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What is to be done.

    Attributes:
        create: bridges, as objects.
        delete: names and uids of bridges.
        missing: since when each profile is missing that has a bridge still; for the next time.
    """

    create: tuple[Object, ...] = ()
    delete: tuple[tuple[str, str], ...] = ()
    missing: Mapping[str, float]


def discover(
    kinds: Iterable[DeviceKind],
    bridges: Collection[Bridge],
    *,
    used: Collection[str],
    missing: Mapping[str, float],
    mode: Mode,
    now: float,
) -> Discovery:
    """Compare the profiles in slices with the bridges.

    Args:
        kinds: of all published devices.
        bridges: of the cluster.
        used: DeviceClasses that claims name.
        missing: from the time before.
        mode: of new bridges.
        now: seconds of a clock that never goes back.
    """
    wanted = {
        resource_name_of_profile(profile, renamed=renamed): (profile, renamed) for profile, renamed in profiles(kinds)
    }
    known = {bridge.spec.resource_name for bridge in bridges}
    create = tuple(
        _body(name, profile, mode, renamed=renamed)
        for name, (profile, renamed) in sorted(wanted.items())
        if name not in known
    )
    left_over = [each for each in bridges if each.is_discovered and not each.deleting]
    left_over = [each for each in left_over if each.spec.resource_name not in wanted]
    since = {each.name: missing.get(each.name, now) for each in left_over}
    delete = tuple(
        (each.name, each.uid)
        for each in left_over
        if now - since[each.name] >= GRACE_SECONDS and each.spec.device_class_name not in used
    )
    return Discovery(create=create, delete=delete, missing=since)


def profiles(kinds: Iterable[DeviceKind]) -> set[tuple[str, bool]]:
    """MIG profiles among kinds of devices, those that a bridge can be made for, and whether they are renamed."""
    found = {(kind.profile, kind.renamed) for kind in kinds if kind.type == DeviceType.MIG}
    return {(profile, renamed) for profile, renamed in found if PROFILE_NAME.fullmatch(profile)}


def _body(resource_name: str, profile: str, mode: Mode, *, renamed: bool) -> Object:
    name = re.sub(r"[^a-z0-9.-]", "-", resource_name.partition("/")[2].lower())
    return {
        "apiVersion": BRIDGES.api_version,
        "kind": BRIDGES.kind,
        "metadata": {"name": name, "labels": {DISCOVERED_LABEL: "true"}},
        "spec": {
            "resourceName": resource_name,
            "select": {"type": DeviceType.MIG, "profile": profile, "renamed": renamed},
            "mode": str(mode),
        },
    }
