"""What the controller knows of the cluster: small projections of many objects, counted as they change."""

from controller.watching.census import Census
from controller.watching.model import DeviceKind, SeenClaim, SeenClass, SeenDevice, SeenNode, SeenSlice
from controller.watching.watcher import Watcher

__all__ = ["Census", "DeviceKind", "SeenClaim", "SeenClass", "SeenDevice", "SeenNode", "SeenSlice", "Watcher"]
