"""Device nodes of GPUs, of MIG partitions, and those that every container with a GPU needs."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from dradriver.cdi.errors import DeviceNodeError
from dradriver.cdi.spec import DeviceNode

CONTROL_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
REQUIRED_CONTROL_NODES: Final = ("nvidiactl", "nvidia-uvm")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTree:
    """Where device nodes and what the kernel tells of them are found.

    Attributes:
        dev: /dev as this process sees it.
        host_dev: the same folder as the host sees it.
        proc: /proc of the host.
        sys: /sys of the host.
        proc_devices: the file that lists device majors; another one only where /proc/devices is faked.
    """

    dev: Path
    host_dev: PurePosixPath
    proc: Path
    sys: Path
    proc_devices: Path

    def control_nodes(self) -> tuple[DeviceNode, ...]:
        """Find the nodes that every container with a GPU gets; modeset and uvm-tools only where they exist.

        Raises:
            DeviceNodeError: nvidiactl or nvidia-uvm is not there.
        """
        names = [name for name in CONTROL_NODES if name in REQUIRED_CONTROL_NODES or (self.dev / name).exists()]
        return tuple(self._existing(name) for name in names)

    def gpu_node(self, minor: int) -> DeviceNode:
        """Find the node of a GPU.

        Raises:
            DeviceNodeError: /dev/nvidia<minor> is not there.
        """
        return self._existing(f"nvidia{minor}")

    def drm_nodes(self, pci_bus_id: str) -> tuple[DeviceNode, ...]:
        """Find the graphics nodes of a GPU; most compute hosts have none."""
        folder = self.sys / "bus/pci/devices" / pci_bus_id / "drm"
        names = sorted(path.name for path in folder.glob("[cr]*[0-9]"))
        return tuple(self._existing(f"dri/{name}") for name in names if (self.dev / "dri" / name).exists())

    def partition_nodes(self, gpu_minor: int, *, gpu_instance: int, compute_instance: int) -> tuple[DeviceNode, ...]:
        """Find the two capability nodes that open a MIG partition: of its GPU instance and compute instance.

        The host's node files may be missing, since only nvidia-modprobe makes them; numbers are enough.

        Raises:
            DeviceNodeError: the kernel does not know the instance, or has no nvidia-caps.
        """
        instance = self.proc / f"driver/nvidia/capabilities/gpu{gpu_minor}/mig/gi{gpu_instance}"
        major = self.major("nvidia-caps")
        files = (instance / "access", instance / f"ci{compute_instance}" / "access")
        return tuple(self._capability(major, _capability_minor(file)) for file in files)

    def major(self, name: str) -> int:
        """Look a device major up.

        Raises:
            DeviceNodeError: the kernel has no such device.
        """
        for line in _read(self.proc_devices).splitlines():
            number, _, device = line.strip().partition(" ")
            if device == name and number.isdigit():
                return int(number)
        raise DeviceNodeError(f"{self.proc_devices} lists no {name}: is the NVIDIA kernel module loaded?")

    def _capability(self, major: int, minor: int) -> DeviceNode:
        name = f"nvidia-caps/nvidia-cap{minor}"
        host_path = self._on_host(name) if (self.dev / name).exists() else None
        return DeviceNode(path=f"/dev/{name}", host_path=host_path, major=major, minor=minor)

    def _existing(self, name: str) -> DeviceNode:
        path = self.dev / name
        try:
            status = path.stat()
        except OSError as error:
            raise DeviceNodeError(
                f"{path} is not there: load the driver's kernel module, or make the node with nvidia-modprobe"
            ) from error
        is_device = stat.S_ISCHR(status.st_mode)
        major, minor = (os.major(status.st_rdev), os.minor(status.st_rdev)) if is_device else self._numbers(name)
        return DeviceNode(path=f"/dev/{name}", host_path=self._on_host(name), major=major, minor=minor)

    def _numbers(self, name: str) -> tuple[int, int]:
        """Tell the numbers of a node that is only a placeholder file, as a simulation without root makes it."""
        fixed = {"nvidiactl": ("nvidia", 255), "nvidia-modeset": ("nvidia", 254)}
        uvm = {"nvidia-uvm": ("nvidia-uvm", 0), "nvidia-uvm-tools": ("nvidia-uvm", 1)}
        digits = name.removeprefix("nvidia")
        device, minor = (fixed | uvm).get(name) or ("nvidia", int(digits) if digits.isdigit() else -1)
        if minor < 0:
            raise DeviceNodeError(f"{self.dev / name} is not a character device")
        return self.major(device), minor

    def _on_host(self, name: str) -> str:
        # Not by `/`: paths of nodes are put together at every Prepare.
        return f"{self.host_dev}/{name}"


def _capability_minor(file: Path) -> int:
    for line in _read(file).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "DeviceFileMinor" and value.strip().isdigit():
            return int(value)
    raise DeviceNodeError(f"{file} names no DeviceFileMinor: is the driver's version supported?")


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise DeviceNodeError(f"cannot read {file}: {os.strerror(error.errno or 0)}") from error
