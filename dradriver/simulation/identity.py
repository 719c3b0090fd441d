"""NVML functions that tell what a node and its GPUs are, and their simple settings."""

import uuid
from dataclasses import replace
from typing import Any

from dradriver.simulation import memory
from dradriver.simulation.codes import Refused, Return, require
from dradriver.simulation.hardware import FABRIC, Fabric
from dradriver.simulation.hardware import fabric as fabric_name
from dradriver.simulation.models import Architecture, Model
from dradriver.simulation.session import Call, Kind, Table, make_handle
from dradriver.simulation.state import Gpu

TABLE = Table()
_GPU = Kind.GPU
_ANY = Kind.GPU | Kind.MIG

_MIB = 1 << 20
_MEMORY_V2 = 0x02000028
_ADDRESSING_V1 = 0x01000008
_PCI_EXT_V1 = 0x01000040
_FABRIC_V2 = 0x02000024
_FABRIC_V3 = 0x03000028
_RESERVED_MIB = 512
_MAX_COMPUTE_MODE = 3

# The CUDA version that a driver branch brings, newest first.
_CUDA = (
    (615, 13040), (610, 13030), (595, 13020), (590, 13010), (580, 13000), (575, 12090), (570, 12080), (565, 12070),
    (560, 12060), (555, 12050), (550, 12040), (545, 12030), (535, 12020), (525, 12000), (510, 11060),
    (470, 11040), (0, 11000),
)  # fmt: skip


# --- library and system ---------------------------------------------------------------------------


@TABLE.add("nvmlInitWithFlags")
def _init_with_flags(call: Call, _flags: Any) -> None:
    call.session.start()


@TABLE.add("nvmlShutdown")
def _shutdown(call: Call) -> None:
    call.session.stop()


@TABLE.add("nvmlSystemGetDriverVersion")
def _driver_version(call: Call, buffer: Any, length: Any) -> None:
    memory.put_text(buffer, length, call.state.driver)


@TABLE.add("nvmlSystemGetNVMLVersion")
def _nvml_version(call: Call, buffer: Any, length: Any) -> None:
    memory.put_text(buffer, length, f"{cuda_version(call.state.driver) // 1000}.{call.state.driver}")


@TABLE.add("nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2")
def _cuda_driver_version(call: Call, version: Any) -> None:
    memory.put_int(version, cuda_version(call.state.driver))


def cuda_version(driver: str) -> int:
    """CUDA version of a driver, as NVML packs it: 13000 is 13.0."""
    branch = int(driver.partition(".")[0])
    return next(version for first, version in _CUDA if branch >= first)


# --- handles --------------------------------------------------------------------------------------


@TABLE.add("nvmlDeviceGetCount_v2")
def _count(call: Call, count: Any) -> None:
    memory.put_uint(count, len(call.slots))


@TABLE.add("nvmlDeviceGetHandleByIndex_v2")
def _handle_by_index(call: Call, index: Any, device: Any) -> None:
    number, slots = memory.integer(index), call.slots
    require(0 <= number < len(slots), Return.INVALID_ARGUMENT)
    _put_gpu(call, device, slots[number])


@TABLE.add("nvmlDeviceGetHandleByUUID")
def _handle_by_uuid(call: Call, wanted: Any, device: Any) -> None:
    name = memory.text(wanted)
    for index in call.slots:
        gpu = call.state.gpus[index]
        if gpu.uuid == name:
            _put_gpu(call, device, index)
            return
        for instance in gpu.instances:
            for compute in instance.compute:
                if compute.uuid == name:
                    _require_reached(call, index)
                    memory.put_handle(device, make_handle(Kind.MIG, index, compute.serial))
                    return
    raise Refused(Return.NOT_FOUND)


@TABLE.add("nvmlDeviceGetHandleByPciBusId_v2")
def _handle_by_bus_id(call: Call, wanted: Any, device: Any) -> None:
    name = memory.text(wanted).lower()
    _put_gpu(call, device, _find(call, lambda gpu: name in {gpu.bus_id, f"0000{gpu.bus_id}", gpu.bus_id[5:]}))


@TABLE.add("nvmlDeviceGetHandleBySerial")
def _handle_by_serial(call: Call, wanted: Any, device: Any) -> None:
    _put_gpu(call, device, _find(call, lambda gpu: gpu.serial == memory.text(wanted)))


def _find(call: Call, matches: Any) -> int:
    found = next((index for index in call.slots if matches(call.state.gpus[index])), None)
    if found is None:
        raise Refused(Return.NOT_FOUND)
    return found


def _put_gpu(call: Call, device: Any, index: int) -> None:
    _require_reached(call, index)
    memory.put_handle(device, make_handle(Kind.GPU, index))


def _require_reached(call: Call, index: int) -> None:
    require(call.session.reaches(index, call.state.gpus[index]), Return.GPU_IS_LOST)


# --- names and numbers ----------------------------------------------------------------------------


@TABLE.add("nvmlDeviceGetUUID", takes=_ANY)
def _uuid(call: Call, buffer: Any, length: Any) -> None:
    name = call.gpu.uuid if call.kind is Kind.GPU else call.compute_instance()[1].uuid
    memory.put_text(buffer, length, name)


@TABLE.add("nvmlDeviceGetName", takes=_ANY)
def _name(call: Call, buffer: Any, length: Any) -> None:
    memory.put_text(buffer, length, _product(call))


def _product(call: Call) -> str:
    if call.kind is Kind.GPU:
        return call.gpu.kind.product
    profile = call.gpu.profile(call.gpu_instance().profile)
    return f"{call.gpu.kind.product} MIG {profile.name if profile else ''}".rstrip()


@TABLE.add("nvmlDeviceGetSerial", takes=_GPU)
def _serial(call: Call, buffer: Any, length: Any) -> None:
    require(call.gpu.kind.memory_mib, Return.NOT_SUPPORTED)  # A chip soldered beside the CPU has none of its own.
    memory.put_text(buffer, length, call.gpu.serial)


@TABLE.add("nvmlDeviceGetMinorNumber", takes=_GPU)
def _minor(call: Call, minor: Any) -> None:
    memory.put_uint(minor, call.gpu.minor)


@TABLE.add("nvmlDeviceGetIndex", takes=_ANY)
def _index(call: Call, index: Any) -> None:
    number = call.slots.index(call.index) if call.kind is Kind.GPU else call.compute_instance()[1].index
    memory.put_uint(index, number)


@TABLE.add("nvmlDeviceGetBoardId", takes=_GPU)
def _board_id(call: Call, board: Any) -> None:
    memory.put_uint(board, _bus(call.gpu) << 8)


@TABLE.add("nvmlDeviceGetMultiGpuBoard", takes=_GPU)
def _multi_gpu_board(_call: Call, multi: Any) -> None:
    memory.put_uint(multi, 0)


@TABLE.add("nvmlDeviceGetPciInfo_v3", takes=_GPU)
def _pci_info(call: Call, info: Any) -> None:
    target = memory.structure(info)
    _fill_pci(call.gpu, target)
    target.busIdLegacy = call.gpu.bus_id.upper().encode()


@TABLE.add("nvmlDeviceGetPciInfoExt", takes=_GPU)
def _pci_info_ext(call: Call, info: Any) -> None:
    target = memory.versioned(info, _PCI_EXT_V1)
    _fill_pci(call.gpu, target)
    target.baseClass, target.subClass = 0x03, 0x02


def _fill_pci(gpu: Gpu, target: Any) -> None:
    target.domain, target.bus, target.device = 0, _bus(gpu), 0
    target.pciDeviceId, target.pciSubSystemId = gpu.kind.device_id, gpu.kind.device_id
    target.busId = f"0000{gpu.bus_id}".upper().encode()


def _bus(gpu: Gpu) -> int:
    return int(gpu.bus_id[5:7], 16)


@TABLE.add("nvmlDeviceGetBrand", takes=_GPU)
def _brand(call: Call, brand: Any) -> None:
    memory.put_uint(brand, call.gpu.kind.brand)


@TABLE.add("nvmlDeviceGetArchitecture", takes=_ANY)
def _architecture(call: Call, architecture: Any) -> None:
    memory.put_uint(architecture, call.gpu.kind.architecture)


@TABLE.add("nvmlDeviceGetCudaComputeCapability", takes=_ANY)
def _compute_capability(call: Call, major: Any, minor: Any) -> None:
    memory.put_int(major, call.gpu.kind.compute_capability[0])
    memory.put_int(minor, call.gpu.kind.compute_capability[1])


# --- memory and placement -------------------------------------------------------------------------


@TABLE.add("nvmlDeviceGetMemoryInfo", takes=_ANY)
def _memory(call: Call, info: Any) -> None:
    target = memory.structure(info)
    total, used, reserved = _amounts(call)
    # The first version counts what the driver keeps for itself as used.
    target.total, target.used, target.free = total, used + reserved, total - used - reserved


@TABLE.add("nvmlDeviceGetMemoryInfo_v2", takes=_ANY)
def _memory_v2(call: Call, info: Any) -> None:
    target = memory.versioned(info, _MEMORY_V2)
    target.total, target.used, target.reserved = _amounts(call)
    target.free = target.total - target.used - target.reserved


def _amounts(call: Call) -> tuple[int, int, int]:
    """Bytes: total, used by processes, reserved."""
    if call.kind is Kind.MIG:
        instance = call.gpu_instance()
        total, reserved = instance_memory_mib(call), 0
        users = [one for one in call.gpu.processes if one.gpu_instance == instance.id]
    else:
        total, reserved, users = call.gpu.kind.memory_mib or 0, _RESERVED_MIB, list(call.gpu.processes)
    require(total, Return.NOT_SUPPORTED)
    used = min(sum(process.memory_mib for process in users), total - reserved)
    return total * _MIB, used * _MIB, reserved * _MIB


def instance_memory_mib(call: Call) -> int:
    """MiB of the GPU instance behind the handle, which can differ from what its profile says."""
    instance = call.gpu_instance()
    profile = call.gpu.profile(instance.profile)
    return profile.memory_of(instance.start) if profile else 0


@TABLE.add("nvmlDeviceGetBAR1MemoryInfo", takes=_ANY)
def _bar1(call: Call, info: Any) -> None:
    target = memory.structure(info)
    total = 1 << (_amounts(call)[0] - 1).bit_length()
    target.bar1Total, target.bar1Used, target.bar1Free = total, 0, total


@TABLE.add("nvmlDeviceGetAddressingMode", takes=_GPU)
def _addressing_mode(call: Call, mode: Any) -> None:
    target = memory.versioned(mode, _ADDRESSING_V1)
    target.value = int(call.gpu.kind.addressing)


@TABLE.add("nvmlDeviceGetNumaNodeId", takes=_GPU)
def _numa_node(_call: Call, _node: Any) -> None:
    # It names the NUMA node of the GPU's own memory, which only some driver settings on coherent machines make.
    raise Refused(Return.NOT_SUPPORTED)


@TABLE.add("nvmlDeviceGetVirtualizationMode", takes=_GPU)
def _virtualization_mode(_call: Call, mode: Any) -> None:
    memory.put_uint(mode, 0)


# --- settings -------------------------------------------------------------------------------------


@TABLE.add("nvmlDeviceGetComputeMode", takes=_GPU)
def _compute_mode(call: Call, mode: Any) -> None:
    memory.put_uint(mode, call.gpu.compute_mode)


@TABLE.add("nvmlDeviceSetComputeMode", takes=_GPU)
def _set_compute_mode(call: Call, mode: Any) -> None:
    number = memory.integer(mode)
    require(0 <= number <= _MAX_COMPUTE_MODE, Return.INVALID_ARGUMENT)
    _change(call, compute_mode=number)


@TABLE.add("nvmlDeviceGetPersistenceMode", takes=_GPU)
def _persistence_mode(call: Call, mode: Any) -> None:
    memory.put_uint(mode, int(call.gpu.persistence))


@TABLE.add("nvmlDeviceSetPersistenceMode", takes=_GPU)
def _set_persistence_mode(call: Call, mode: Any) -> None:
    number = memory.integer(mode)
    require(number in {0, 1}, Return.INVALID_ARGUMENT)
    _change(call, persistence=bool(number))


def _change(call: Call, **fields: Any) -> None:
    index = call.index
    call.update(lambda state: (state.with_gpu(index, replace(state.gpus[index], **fields)), None))


# --- NVLink fabric --------------------------------------------------------------------------------


@TABLE.add("nvmlDeviceGetGpuFabricInfo", takes=_GPU)
def _fabric_info(call: Call, info: Any) -> None:
    _fill_fabric(call, memory.structure(info))


@TABLE.add("nvmlDeviceGetGpuFabricInfoV", takes=_GPU)
def _fabric_info_v(call: Call, info: Any) -> None:
    target = memory.versioned(info, _FABRIC_V2, _FABRIC_V3)
    fabric = _fill_fabric(call, target)
    target.healthMask = fabric.mask
    if target.version == _FABRIC_V3:
        target.healthSummary = fabric.summary


def _fill_fabric(call: Call, target: Any) -> Fabric:
    fabric = FABRIC[fabric_name(call.gpu)]
    target.status, target.cliqueId, target.state = 0, 0, fabric.state
    joined = fabric.summary and _multi_node(call.gpu.kind)
    target.clusterUuid[:] = _cluster(call) if joined else bytes(16)
    return fabric


def _multi_node(kind: Model) -> bool:
    return kind.nvlink_fabric and kind.architecture is Architecture.BLACKWELL and kind.name.startswith("gb")


def _cluster(call: Call) -> bytes:
    return uuid.uuid5(uuid.NAMESPACE_OID, call.state.gpus[0].uuid).bytes
