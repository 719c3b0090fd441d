"""What the kernel tells about a PCI device that NVML does not."""

import re
from pathlib import Path
from typing import Final

_BUS_ID: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PCIE_ROOT: Final = re.compile(r"(?:^|/)(pci[0-9a-f]{4,}:[0-9a-f]{2})(?:/|$)")


def pci_facts(sys_root: Path, pci_bus_id: str) -> tuple[int | None, str | None]:
    """Read NUMA node and PCIe root complex of a device.

    The root is the first `pciDDDD:BB` in the device's place under /sys/devices, which is how Kubernetes defines the
    attribute `resource.kubernetes.io/pcieRoot`.

    Args:
        sys_root: where sysfs is mounted, `/sys`.
        pci_bus_id: as sysfs writes it, `0000:41:00.0`.

    Returns:
        NUMA node and root such as `pci0000:40`; each None where the kernel does not tell (a node below 0 means that).
    """
    device = sys_root / "bus/pci/devices" / pci_bus_id
    return _numa_node(device), _pcie_root(device)


def held_gpus(sys_root: Path) -> frozenset[str]:
    """List the PCI bus ids, as sysfs writes them, of the GPUs that the NVIDIA driver holds.

    One listing of a folder. Empty where the driver is not loaded or there is no PCI bus; GPUs that were given to
    another driver (vfio-pci) are left out, as NVML leaves them out.

    Args:
        sys_root: where sysfs is mounted, `/sys`.
    """
    try:
        names = [path.name for path in (sys_root / "bus/pci/drivers/nvidia").iterdir()]
    except OSError:
        return frozenset()
    return frozenset(name for name in names if _BUS_ID.fullmatch(name))


def _numa_node(device: Path) -> int | None:
    try:
        node = int((device / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _pcie_root(device: Path) -> str | None:
    try:
        found = _PCIE_ROOT.search(str(device.readlink()))
    except OSError:
        return None
    return found.group(1) if found else None
