"""One GPU's identity and state, read fact by fact."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pynvml

from dradriver.gpu.model import MigMode
from dradriver.nvml.calls import Device, call, optional
from dradriver.nvml.errors import NotSupported
from dradriver.nvml.names import (
    UNKNOWN,
    addressing_mode_name,
    architecture_name,
    brand_name,
    switches_mig_without_reset,
    sysfs_bus_id,
)
from dradriver.nvml.sysfs import pci_facts

_ARCHITECTURE_UNREADABLE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What stays as it is while the driver stays loaded; fields as in `dradriver.gpu.model.Gpu`."""

    pci_bus_id: str
    pci_device_id: int | None
    product_name: str
    brand: str
    architecture: str
    compute_capability: tuple[int, int]
    resetless_mig: bool
    vgpu_guest: bool
    addressing_mode: str | None
    numa_node: int | None
    pcie_root: str | None


def read_facts(device: Device, sys_root: Path) -> Facts:
    """Read what does not change.

    Only bus id, product name and compute capability must be told: everything else that NVML refuses becomes None,
    `Unknown` or False.

    Raises:
        NvmlError: one of those three cannot be read, or the GPU or the session is gone.
    """
    gpu, handle = device.gpu, device.handle
    pci = call(gpu, pynvml.nvmlDeviceGetPciInfo, handle)
    pci_bus_id = sysfs_bus_id(pci.busId)
    architecture = optional(lambda: call(gpu, pynvml.nvmlDeviceGetArchitecture, handle))
    numa_node, pcie_root = pci_facts(sys_root, pci_bus_id)
    return Facts(
        pci_bus_id=pci_bus_id,
        pci_device_id=pci.pciDeviceId or None,
        product_name=call(gpu, pynvml.nvmlDeviceGetName, handle),
        brand=_brand(device),
        architecture=UNKNOWN if architecture is None else architecture_name(architecture),
        compute_capability=call(gpu, pynvml.nvmlDeviceGetCudaComputeCapability, handle),
        resetless_mig=_resetless_mig(device, architecture if architecture is not None else _ARCHITECTURE_UNREADABLE),
        vgpu_guest=_vgpu_guest(device),
        addressing_mode=_addressing_mode(device),
        numa_node=numa_node,
        pcie_root=pcie_root,
    )


def read_minor(device: Device) -> int:
    """Read the N of /dev/nvidiaN, which a switch of the MIG mode or a driver reload may change."""
    return call(device.gpu, pynvml.nvmlDeviceGetMinorNumber, device.handle)


def read_memory(device: Device) -> int | None:
    """Read the GPU's total memory in bytes; None where it has no memory of its own.

    Raises:
        GpuLost: this query reaches the hardware, while names and ids come from the driver's memory.
    """
    memory = optional(lambda: call(device.gpu, pynvml.nvmlDeviceGetMemoryInfo, device.handle))
    return memory.total if memory else None


def read_mig_mode(device: Device) -> MigMode | None:
    """Read MIG mode; None where the GPU has no MIG.

    Raises:
        NvmlError: anything but NOT_SUPPORTED, since "no MIG" would take away partitions that are in use.
    """
    try:
        current, pending = call(device.gpu, pynvml.nvmlDeviceGetMigMode, device.handle)
    except NotSupported:
        return None
    return MigMode(current=bool(current), pending=bool(pending))


def _brand(device: Device) -> str:
    code = optional(lambda: call(device.gpu, pynvml.nvmlDeviceGetBrand, device.handle))
    return UNKNOWN if code is None else brand_name(code)


def _addressing_mode(device: Device) -> str | None:
    code = optional(lambda: call(device.gpu, pynvml.nvmlDeviceGetAddressingMode, device.handle))
    return None if code is None else addressing_mode_name(code)


def _vgpu_guest(device: Device) -> bool:
    mode = optional(lambda: call(device.gpu, pynvml.nvmlDeviceGetVirtualizationMode, device.handle))
    return mode == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU


def _resetless_mig(device: Device, architecture: int) -> bool:
    """Ask the driver, where it is new enough to say; else go by architecture."""
    field = pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED
    values = optional(lambda: call(device.gpu, pynvml.nvmlDeviceGetFieldValues, device.handle, [field]))
    # Each field has its own return code: the call succeeds even where the field is not known.
    if values and values[0].nvmlReturn == pynvml.NVML_SUCCESS:
        return bool(values[0].value.uiVal)
    return switches_mig_without_reset(architecture)
