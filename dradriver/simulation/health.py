"""NVML functions about what happens on GPUs: processes, events, memory repair, error counters, field values."""

from collections.abc import Callable
from typing import Any

from dradriver.simulation import hardware, memory
from dradriver.simulation.codes import Refused, Return, require
from dradriver.simulation.models import Architecture
from dradriver.simulation.session import Call, EventSet, Kind, Session, Table, make_handle
from dradriver.simulation.state import NOT_ATTRIBUTED, Event, Gpu, Process, RemappedRows

TABLE = Table()
_GPU = Kind.GPU
_ANY = Kind.GPU | Kind.MIG

_MIB = 1 << 20
_SRAM_V1 = 0x01000068
_REPAIR_V1 = 0x0100000C
_UNSIGNED_INT = 1
_SPARE_ROWS = 640


# --- processes ------------------------------------------------------------------------------------


@TABLE.add("nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3", takes=_ANY)
def _compute_processes(call: Call, count: Any, array: Any) -> None:
    processes = call.gpu.processes
    if call.kind is Kind.MIG:
        instance, compute = call.compute_instance()
        processes = tuple(
            one for one in processes if one.gpu_instance == instance.id and one.compute_instance == compute.id
        )
    _put_processes(count, array, processes)


@TABLE.add(
    "nvmlDeviceGetGraphicsRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    takes=_ANY,
)
def _other_processes(_call: Call, count: Any, array: Any) -> None:
    _put_processes(count, array, ())


def _put_processes(count: Any, array: Any, processes: tuple[Process, ...]) -> None:
    room = memory.uint(count)
    memory.put_uint(count, len(processes))
    require(room >= len(processes) and (array is not None or not processes), Return.INSUFFICIENT_SIZE)
    for target, process in zip(array or (), processes, strict=False):
        target.pid, target.usedGpuMemory = process.pid, process.memory_mib * _MIB
        target.gpuInstanceId = NOT_ATTRIBUTED if process.gpu_instance is None else process.gpu_instance
        target.computeInstanceId = NOT_ATTRIBUTED if process.compute_instance is None else process.compute_instance


# --- events ---------------------------------------------------------------------------------------


@TABLE.add("nvmlEventSetCreate")
def _create_set(call: Call, handle: Any) -> None:
    memory.put_handle(handle, call.session.add_event_set(EventSet(next_event=call.state.next_event)))


@TABLE.add("nvmlEventSetFree")
def _free_set(call: Call, handle: Any) -> None:
    require(call.session.event_sets.pop(memory.handle(handle), None), Return.INVALID_ARGUMENT)


@TABLE.add("nvmlDeviceGetSupportedEventTypes", takes=_GPU)
def _supported_events(call: Call, types: Any) -> None:
    memory.put_ulonglong(types, hardware.supported_events(call.gpu))


@TABLE.add("nvmlDeviceRegisterEvents", takes=_ANY)
def _register(call: Call, types: Any, handle: Any) -> None:
    require(call.kind is Kind.GPU, Return.NOT_SUPPORTED)
    wanted = memory.integer(types)
    require(wanted & ~hardware.supported_events(call.gpu) == 0, Return.NOT_SUPPORTED)
    events = _event_set(call, handle)
    events.watched[call.index] = (wanted | events.watched.get(call.index, (0, 0))[0], call.state.next_event)


def _event_set(call: Call, handle: Any) -> EventSet:
    found = call.session.event_sets.get(memory.handle(handle))
    if found is None:
        raise Refused(Return.INVALID_ARGUMENT)
    return found


@TABLE.add("nvmlEventSetWait_v2")
def _wait(call: Call, handle: Any, data: Any, timeout: Any) -> None:
    session, events = call.session, _event_set(call, handle)
    deadline = session.clock() + memory.integer(timeout) / 1000
    event = session.look_until(deadline, lambda: _next_event(session, events))
    if event is None:
        raise Refused(Return.TIMEOUT)
    _put_event(memory.structure(data), event)


def _next_event(session: Session, events: EventSet) -> Event | None:
    state = session.live_state()
    event = events.take(tuple(one for one in state.events if session.hears(one, state)))
    # What is queued comes first; then the loss of a watched GPU is told again by every wait.
    gone = not all(session.reaches(slot, state.gpus[slot]) for slot in events.watched)
    require(event or not gone, Return.GPU_IS_LOST)
    return event


def _put_event(target: Any, event: Event) -> None:
    memory.set_handle(target, "device", make_handle(_GPU, event.gpu))
    target.eventType, target.eventData = event.type, event.data
    target.gpuInstanceId, target.computeInstanceId = event.gpu_instance, event.compute_instance


# --- memory repair --------------------------------------------------------------------------------


@TABLE.add("nvmlDeviceGetRemappedRows", takes=_GPU)
def _remapped_rows(call: Call, correctable: Any, uncorrectable: Any, pending: Any, failure: Any) -> None:
    rows = _rows(call.gpu)
    require(not (call.gpu.mig and call.gpu.instances), Return.NOT_SUPPORTED)
    memory.put_uint(correctable, rows.correctable)
    memory.put_uint(uncorrectable, rows.uncorrectable)
    memory.put_uint(pending, int(rows.pending))
    memory.put_uint(failure, int(rows.failure))


def _rows(gpu: Gpu) -> RemappedRows:
    require(hardware.remaps_rows(gpu), Return.NOT_SUPPORTED)
    return gpu.rows


@TABLE.add("nvmlDeviceGetRowRemapperHistogram", takes=_GPU)
def _histogram(call: Call, values: Any) -> None:
    rows, target = _rows(call.gpu), memory.structure(values)
    used = min(rows.correctable + rows.uncorrectable, _SPARE_ROWS)
    target.max, target.high, target.partial, target.low, target.none = _SPARE_ROWS - used, used, 0, 0, 0


@TABLE.add("nvmlDeviceGetRepairStatus", takes=_GPU)
def _repair_status(call: Call, status: Any) -> None:
    target = memory.versioned(status, _REPAIR_V1)
    require(call.gpu.kind.architecture >= Architecture.BLACKWELL, Return.NOT_SUPPORTED)
    target.bChannelRepairPending, target.bTpcRepairPending = 0, 0


@TABLE.add("nvmlDeviceGetRetiredPages", takes=_GPU)
def _retired_pages(call: Call, _cause: Any, count: Any, _addresses: Any) -> None:
    hardware.require_retired_pages(call.gpu)
    memory.put_uint(count, 0)


@TABLE.add("nvmlDeviceGetRetiredPages_v2", takes=_GPU)
def _retired_pages_v2(call: Call, cause: Any, count: Any, addresses: Any, _times: Any = None) -> None:
    _retired_pages(call, cause, count, addresses)


@TABLE.add("nvmlDeviceGetRetiredPagesPendingStatus", takes=_GPU)
def _retired_pages_pending(call: Call, pending: Any) -> None:
    memory.put_uint(pending, _retired_pending(call.gpu))


# --- error correction -----------------------------------------------------------------------------


@TABLE.add("nvmlDeviceGetEccMode", takes=_GPU)
def _ecc_mode(call: Call, current: Any, pending: Any) -> None:
    _require_ecc(call)
    memory.put_uint(current, 1)
    memory.put_uint(pending, 1)


@TABLE.add("nvmlDeviceGetTotalEccErrors", takes=_GPU)
def _total_ecc_errors(call: Call, _kind: Any, _counter: Any, count: Any) -> None:
    _require_ecc(call)
    memory.put_ulonglong(count, 0)


@TABLE.add("nvmlDeviceGetMemoryErrorCounter", takes=_GPU)
def _memory_error_counter(call: Call, _kind: Any, _counter: Any, _location: Any, count: Any) -> None:
    _require_ecc(call)
    memory.put_ulonglong(count, 0)


@TABLE.add("nvmlDeviceGetSramEccErrorStatus", takes=_GPU)
def _sram_status(call: Call, status: Any) -> None:
    target = memory.versioned(status, _SRAM_V1)
    hardware.require_sram_status(call.gpu)
    for field, *_ in target._fields_:
        if field != "version":
            setattr(target, field, 0)
    target.bThresholdExceeded = int(call.gpu.sram_exceeded)


def _require_ecc(call: Call) -> None:
    require(call.gpu.kind.memory_mib, Return.NOT_SUPPORTED)


# --- field values ---------------------------------------------------------------------------------


@TABLE.add("nvmlDeviceGetFieldValues", takes=_GPU)
def _field_values(call: Call, count: Any, values: Any) -> None:
    array = memory.structure(values)
    for index in range(memory.integer(count)):
        _fill_field(call, array[index])


def _fill_field(call: Call, target: Any) -> None:
    target.timestamp, target.latencyUsec, target.valueType = 0, 0, _UNSIGNED_INT
    try:
        read = _FIELDS.get(target.fieldId)
        require(read, Return.NOT_SUPPORTED)
        target.value.uiVal = read(call.gpu) if read else 0
        target.nvmlReturn = Return.SUCCESS
    except Refused as refusal:
        target.nvmlReturn = refusal.code


def _resetless(gpu: Gpu) -> int:
    require(gpu.kind.mig_capable, Return.NOT_SUPPORTED)
    return int(not gpu.kind.mig_needs_reset)


def _retired_pending(gpu: Gpu) -> int:
    hardware.require_retired_pages(gpu)
    return int(gpu.retired_pending)


# The row fields answer also while MIG instances live; what hardware does then is UNVERIFIED.
_FIELDS: dict[int, Callable[[Gpu], int]] = {
    31: _retired_pending,
    142: lambda gpu: _rows(gpu).correctable,
    143: lambda gpu: _rows(gpu).uncorrectable,
    144: lambda gpu: int(_rows(gpu).pending),
    145: lambda gpu: int(_rows(gpu).failure),
    184: _resetless,
    199: _resetless,  # Queries without MIG mode came with switching without a reset; UNVERIFIED.
    226: lambda gpu: int(gpu.recovery == hardware.RECOVERY["gpu-reset"]),
    227: lambda gpu: int(gpu.recovery == hardware.RECOVERY["drain-and-reset"]),
    230: lambda gpu: gpu.recovery,
}
