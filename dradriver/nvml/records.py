"""What the NVML room hands out beside the data of `dradriver.gpu`."""

from dataclasses import dataclass
from enum import IntFlag

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


class EventType(IntFlag):
    """What GPUs tell by themselves; values of nvmlEventType*. Which of them a GPU tells depends on it and the driver.

    XID: an error, whose number is the event's data (999 where the driver does not know it).
    MIG_CONFIG: somebody changed the GPU's MIG mode or instances.
    RECOVERY_ACTION: another action than before has to be taken to bring the GPU back.
    GPU_UNAVAILABLE: it cannot be used any more.
    """

    SINGLE_BIT_ECC = 0x1
    DOUBLE_BIT_ECC = 0x2
    PSTATE = 0x4
    XID = 0x8
    CLOCK = 0x10
    POWER_SOURCE = 0x80
    MIG_CONFIG = 0x100
    SINGLE_BIT_ECC_STORM = 0x200
    DRAM_RETIREMENT = 0x400
    DRAM_RETIREMENT_FAILURE = 0x800
    NON_FATAL_POISON = 0x1000
    FATAL_POISON = 0x2000
    GPU_UNAVAILABLE = 0x4000
    RECOVERY_ACTION = 0x8000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What a GPU told by itself.

    Attributes:
        gpu_uuid: of the GPU, also where one of its partitions is concerned.
        type: one type, maybe one that has no name here.
        data: the Xid, for events of type XID; for others what the driver gives, mostly 0.
        gpu_instance_id: None where it concerns the whole GPU, or the process lacks the privilege to know more.
        compute_instance_id: likewise.
    """

    gpu_uuid: str
    type: EventType
    data: int
    gpu_instance_id: int | None
    compute_instance_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """How a GPU says that it is; None for what it, its mode or its driver does not tell.

    Attributes:
        recovery: what has to be done to bring it back, by NVML's field 230 (nvmlDeviceGpuRecoveryAction_t): 0 nothing,
            1 reset the GPU, 2 reboot the node, 3 drain peer-to-peer, 4 drain and reset, 5 recover the IMEX domain,
            6 reset the bus, 7 reboot the system.
        remap_pending: rows of its memory are to be replaced at the next reset; before Ampere, pages to be retired.
        remap_failure: a row could not be replaced.
        sram_exceeded: more errors in SRAM than its maker allows.
        fabric: `healthy`, `unhealthy` or `joining`; None where it is in no NVLink fabric.
    """

    recovery: int | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    sram_exceeded: bool | None = None
    fabric: str | None = None
