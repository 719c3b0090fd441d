"""What the controller knows of the cluster: small projections of many objects, counted as they change."""

from controller.watching.census import Census
from controller.watching.model import (
    DeviceKind,
    PodShape,
    SeenClaim,
    SeenClass,
    SeenDevice,
    SeenNode,
    SeenPod,
    SeenQuota,
    SeenSlice,
    Taint,
)
from controller.watching.watcher import Watcher

__all__ = [
    "Census",
    "DeviceKind",
    "PodShape",
    "SeenClaim",
    "SeenClass",
    "SeenDevice",
    "SeenNode",
    "SeenPod",
    "SeenQuota",
    "SeenSlice",
    "Taint",
    "Watcher",
]
