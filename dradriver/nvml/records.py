"""What the NVML room hands out beside the data of `dradriver.gpu`."""

from dataclasses import dataclass

from dradriver.gpu.model import Gpu
from dradriver.nvml.errors import NvmlError


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableGpu:
    """A GPU that NVML counts but that cannot be read now.

    Attributes:
        index: NVML's index at this reading; not stable.
        uuid: None where NVML did not even tell this.
        pci_bus_id: as sysfs writes it; None where it could not be read.
        error: why; its text names the next step.
    """

    index: int
    uuid: str | None
    pci_bus_id: str | None
    error: NvmlError


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """One reading of the node: every GPU that NVML counts is in one of the two.

    Attributes:
        gpus: in PCI bus id order.
        unreadable: in order of NVML's index.
    """

    gpus: tuple[Gpu, ...]
    unreadable: tuple[UnreadableGpu, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that computes on a GPU.

    Attributes:
        pid: in the PID namespace that the driver reports for, mostly the host's.
        gpu_instance_id: None where the process is on the whole GPU.
        compute_instance_id: likewise.
    """

    pid: int
    gpu_instance_id: int | None
    compute_instance_id: int | None
