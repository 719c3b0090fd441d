"""Names of extended resources, as the device plugin makes them of GPUs and MIG profiles."""

import re
from typing import Final

from controller.api import derived_class_name, resource_name_of_profile
from dradriver.api import PROFILE_NAME

DOMAIN: Final = "nvidia.com"
GPU: Final = f"{DOMAIN}/gpu"
SHARED: Final = ".shared"
"""Put behind the name of what is shared, where `renameByDefault` asks for it."""
LONGEST: Final = 63
"""Characters of a whole name, domain included; the device plugin's rule."""

_MIG: Final = f"{DOMAIN}/mig-"
_PART: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_PROFILE: Final = re.compile(r"([0-9]+g\.[0-9]+gb)(?:([.-])(.+))?")


def qualify(name: str) -> str | None:
    """Give the whole name for one that may lack its domain; None for what the device plugin refuses."""
    whole = name if name.startswith(f"{DOMAIN}/") else f"{DOMAIN}/{name}"
    return whole if len(whole) <= LONGEST and _PART.fullmatch(part_of(whole)) else None


def part_of(resource: str) -> str:
    """Give the name without its domain."""
    return resource.partition("/")[2]


def resource_of(profile: str) -> str:
    """Name the extended resource of a MIG profile under the strategy `mixed`: `1g.10gb+me` is `mig-1g.10gb.me`."""
    return resource_name_of_profile(profile)


def profile_of(resource: str) -> str | None:
    """Give the MIG profile that a name stands for, shared or not; None for a name that stands for none."""
    found = _PROFILE.fullmatch(unshared(resource).removeprefix(_MIG)) if resource.startswith(_MIG) else None
    if found is None:
        return None
    base, mark, rest = found.groups()
    profile = base if mark is None else f"{base}{'+' if mark == '.' else '-'}{rest}"
    return profile if PROFILE_NAME.fullmatch(profile) else None


def shared(resource: str) -> str:
    """Give the name for what is shared."""
    return resource + SHARED


def unshared(resource: str) -> str:
    """Give the name for what is not shared."""
    return resource.removesuffix(SHARED)


def is_ours(resource: str) -> bool:
    """Tell whether a resource is one that the device plugin may have made."""
    return unshared(resource) == GPU or profile_of(resource) is not None


def class_of(resource: str) -> str:
    """Name the DeviceClass that a bridge makes for an extended resource; it always has "gpu" in it."""
    return derived_class_name(resource)


def bridge_of(resource: str) -> str:
    """Name the bridge for an extended resource."""
    return part_of(resource)
