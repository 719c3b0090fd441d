"""What happens to a node from outside: errors, resets, reboots, what an administrator does. Pure, as `hardware`."""

import secrets
import uuid
from dataclasses import replace
from typing import Any

from dradriver.simulation import hardware
from dradriver.simulation.codes import Refused, Return, require
from dradriver.simulation.hardware import EVENT_MIG_CONFIG, EVENT_RECOVERY_ACTION, EVENT_XID, RECOVERY, emit
from dradriver.simulation.models import Profile
from dradriver.simulation.state import (
    NOT_ATTRIBUTED,
    ComputeInstance,
    Fault,
    Gpu,
    GpuInstance,
    Latency,
    Process,
    RemappedRows,
    State,
)

_FELL_OFF_THE_BUS = 79

# Immediate action of NVIDIA's Xid catalogue, as far as it shows in field 230.
_RESET_XIDS = frozenset({46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158})
_RECOVERY_OF_XID = {**dict.fromkeys(_RESET_XIDS, RECOVERY["gpu-reset"]), _FELL_OFF_THE_BUS: RECOVERY["node-reboot"]}


# --- errors ---------------------------------------------------------------------------------------


def raise_xid(
    state: State,
    index: int,
    *,
    number: int,
    gpu_instance: int | None = None,
    compute_instance: int | None = None,
    recovery: int | None = None,
    times: int = 1,
) -> State:
    """Report an Xid; where it changes what has to be done to recover, report that too, once.

    Args:
        state: before.
        index: of the GPU.
        number: the Xid; 999 stands for an unknown one.
        gpu_instance: whose fault it is; None = the whole GPU's.
        compute_instance: likewise.
        recovery: new value of field 230; None = by the Xid catalogue.
        times: how often; as at one moment, so a listener hears no more than the queue holds.
    """
    after = emit(
        state,
        index,
        EVENT_XID,
        number,
        times=times,
        gpu_instance=NOT_ATTRIBUTED if gpu_instance is None else gpu_instance,
        compute_instance=NOT_ATTRIBUTED if compute_instance is None else compute_instance,
    )
    action = _RECOVERY_OF_XID.get(number, state.gpus[index].recovery) if recovery is None else recovery
    if action == state.gpus[index].recovery:
        return after
    return emit(_with(after, index, recovery=action), index, EVENT_RECOVERY_ACTION, action)


def lose(state: State, index: int) -> State:
    """Let a GPU fall off the bus: Xid 79, then every call answers GPU_IS_LOST."""
    if state.gpus[index].lost:
        return state
    return _with(raise_xid(state, index, number=_FELL_OFF_THE_BUS), index, lost=True)


def recover(state: State, index: int) -> State:
    """Bring a GPU back as if nothing had happened: not lost, nothing to recover, its instances still there."""
    gpu = state.gpus[index]
    after = _with(state, index, lost=False, recovery=0) if gpu.lost or gpu.recovery else state
    return emit(after, index, EVENT_RECOVERY_ACTION, 0) if gpu.recovery else after


def unplug(state: State, index: int) -> State:
    """Take a GPU out of its slot: nobody knows it any more, what was made of it and what used it is gone.

    Raises:
        Refused: NOT_FOUND where the slot is empty.
    """
    gpu = state.gpus[index]
    require(gpu.plugged, Return.NOT_FOUND, f"GPU {index} is unplugged already")
    return state.with_gpu(index, replace(_power_up(gpu), plugged=False))


def plug(state: State, index: int, *, other: bool = False) -> State:
    """Put a GPU back in its slot, as it is after power-up; sessions that are open do not know it.

    Args:
        state: before.
        index: of the slot.
        other: it is another GPU of the same model: bus id and minor stay, UUID and serial number do not.

    Raises:
        Refused: IN_USE where one is in the slot.
    """
    gpu = state.gpus[index]
    require(not gpu.plugged, Return.IN_USE, f"GPU {index} is plugged in: unplug it first")
    if other:
        gpu = _power_up(_of_another_board(gpu))
    return state.with_gpu(index, replace(gpu, plugged=True, pluggings=gpu.pluggings + 1))


def _of_another_board(gpu: Gpu) -> Gpu:
    return replace(
        gpu,
        uuid=new_uuid(),
        serial=new_serial(),
        mig_pending=False,
        rows=RemappedRows(),
        fabric=None,
        sram_exceeded=False,
    )


def new_uuid() -> str:
    """Give a UUID that no GPU has."""
    return f"GPU-{uuid.uuid4()}"


def new_serial() -> str:
    """Give a serial number that no board has."""
    return str(secrets.randbelow(9 * 10**12) + 10**12)


def remap(state: State, index: int, rows: RemappedRows) -> State:
    """Set a GPU's remapped rows."""
    return _with(state, index, rows=rows)


def tell(state: State, index: int, kind: str, *, data: int = 0, times: int = 1) -> State:
    """Report an event of any type; nothing else changes.

    Args:
        state: before.
        index: of the GPU.
        kind: a key of `hardware.EVENT_TYPES`.
        data: what comes with it.
        times: how often.

    Raises:
        Refused: NOT_SUPPORTED where the GPU tells no such events.
    """
    bit, gpu = hardware.EVENT_TYPES[kind], state.gpus[index]
    require(hardware.supported_events(gpu) & bit, Return.NOT_SUPPORTED, f"{gpu.model} tells no events {kind}")
    return emit(state, index, bit, data, times=times)


def set_fabric(state: State, index: int, name: str) -> State:
    """Set how a GPU is in its NVLink fabric, whether or not its model has one: a key of `hardware.FABRIC`."""
    return _with(state, index, fabric=name)


def set_sram_exceeded(state: State, index: int, *, exceeded: bool) -> State:
    """Set whether a GPU met more errors in SRAM than its maker allows.

    Raises:
        Refused: NOT_SUPPORTED on a GPU that does not tell.
    """
    hardware.require_sram_status(state.gpus[index])
    return _with(state, index, sram_exceeded=exceeded)


def set_retired_pending(state: State, index: int, *, pending: bool) -> State:
    """Set whether pages of a GPU's memory wait to be retired.

    Raises:
        Refused: NOT_SUPPORTED on a GPU that remaps rows instead.
    """
    hardware.require_retired_pages(state.gpus[index])
    return _with(state, index, retired_pending=pending)


# --- turning off and on ---------------------------------------------------------------------------


def reset(state: State, index: int) -> State:
    """Reset a GPU: instances gone, pending MIG mode and row remappings in force, nothing left to recover.

    NVML sessions that are open have lost it: they hear that it happens, and then GPU_IS_LOST until they are shut down
    and begun anew.

    Raises:
        Refused: IN_USE while processes use it, GPU_IS_LOST when it is off the bus.
    """
    gpu = state.gpus[index]
    require(not gpu.lost, Return.GPU_IS_LOST, f"GPU {index} is off the bus: recover it or reboot")
    require(not gpu.processes, Return.IN_USE, f"processes use GPU {index}: remove them first")
    fresh = replace(_power_up(gpu), mig=gpu.mig_pending, mig_pending=gpu.mig_pending, resets=gpu.resets + 1)
    # Told before it counts as reset, else the sessions of before would not hear it.
    told = emit(state, index, EVENT_MIG_CONFIG, 0) if gpu.instances or fresh.mig != gpu.mig else state
    told = emit(told, index, EVENT_RECOVERY_ACTION, 0) if gpu.recovery else told
    return told.with_gpu(index, fresh)


def driver_reload(state: State, version: str | None = None) -> State:
    """Load the driver anew, perhaps another version: NVML sessions die, instances are gone, MIG mode as after a reboot.

    Raises:
        Refused: IN_USE while processes use a GPU.
    """
    busy = [index for index, gpu in enumerate(state.gpus) if gpu.processes]
    require(not busy, Return.IN_USE, f"processes use GPU {', '.join(map(str, busy))}: remove them first")
    lost = tuple(gpu.lost for gpu in state.gpus)
    started = _start(state, version or state.driver)
    gpus = tuple(replace(gpu, lost=was) for gpu, was in zip(started.gpus, lost, strict=True))
    return replace(started, gpus=gpus)


def reboot(state: State) -> State:
    """Reboot the machine: as a driver reload, and processes are gone, lost GPUs back, the boot id another."""
    return replace(_start(state, state.driver), boot_id=str(uuid.uuid4()))


def _start(state: State, version: str) -> State:
    return replace(
        state,
        driver=version,
        driver_loads=state.driver_loads + 1,
        gpus=tuple(_power_up(gpu) for gpu in state.gpus),
        events=(),
    )


def _power_up(gpu: Gpu) -> Gpu:
    # Before Hopper the board remembers the mode; later ones start with MIG off.
    mig = gpu.kind.mig_capable and gpu.kind.mig_needs_reset and gpu.mig_pending
    return replace(
        gpu,
        mig=mig,
        mig_pending=mig,
        instances=(),
        processes=(),
        lost=False,
        recovery=0,
        compute_mode=0,
        rows=replace(gpu.rows, pending=False),
        retired_pending=False,
    )


# --- an administrator -----------------------------------------------------------------------------


def create_instance(
    state: State, index: int, *, profile: Profile, start: int | None, bare: bool
) -> tuple[State, tuple[GpuInstance, ComputeInstance | None]]:
    """Make a GPU instance and, unless `bare`, a compute instance that fills it.

    Raises:
        Refused: as `hardware.create_gpu_instance`.
    """
    after, instance = hardware.create_gpu_instance(state, index, profile_id=profile.id, start=start)
    if bare:
        return after, (instance, None)
    whole = hardware.COMPUTE_SLICES.index(profile.slices)
    after, compute = hardware.create_compute_instance(after, index, serial=instance.serial, profile_id=whole)
    return after, (instance, compute)


def destroy_instance(state: State, index: int, *, ident: int) -> State:
    """Destroy a GPU instance with the compute instances in it.

    Raises:
        Refused: NOT_FOUND, or IN_USE while processes run in it.
    """
    instance = hardware.gpu_instance(state.gpus[index], ident=ident)
    for compute in instance.compute:
        state = hardware.destroy_compute_instance(state, index, serial=compute.serial)
    return hardware.destroy_gpu_instance(state, index, serial=instance.serial)


def add_process(state: State, index: int, process: Process) -> State:
    """Let a process use a GPU, or one of its compute instances; one that is there already is replaced.

    Raises:
        Refused: NOT_FOUND for an instance that is not there, INVALID_ARGUMENT where the GPU has MIG on and none is
            named.
    """
    gpu = state.gpus[index]
    require(
        not gpu.mig or process.compute_instance is not None,
        Return.INVALID_ARGUMENT,
        f"GPU {index} has MIG on: name the instance that the process uses",
    )
    if process.gpu_instance is not None:
        instance = hardware.gpu_instance(gpu, ident=process.gpu_instance)
        present = any(one.id == process.compute_instance for one in instance.compute)
        require(present, Return.NOT_FOUND, f"GPU instance {instance.id} has no such compute instance")
    others = tuple(one for one in gpu.processes if not _same(one, process))
    return _with(state, index, processes=(*others, process))


def _same(one: Process, other: Process) -> bool:
    return (one.pid, one.gpu_instance, one.compute_instance) == (
        other.pid,
        other.gpu_instance,
        other.compute_instance,
    )


def remove_process(state: State, index: int, *, pid: int) -> State:
    """Let a process stop using a GPU.

    Raises:
        Refused: NOT_FOUND.
    """
    left = tuple(one for one in state.gpus[index].processes if one.pid != pid)
    require(len(left) < len(state.gpus[index].processes), Return.NOT_FOUND, f"no process {pid} uses GPU {index}")
    return _with(state, index, processes=left)


def change_minor(state: State, index: int, *, minor: int) -> State:
    """Give a GPU another device minor.

    Raises:
        Refused: IN_USE where another GPU has it.
    """
    holder = next((number for number, gpu in enumerate(state.gpus) if gpu.minor == minor), index)
    require(holder == index, Return.IN_USE, f"GPU {holder} has minor {minor}")
    return _with(state, index, minor=minor)


# --- faults ---------------------------------------------------------------------------------------


def add_fault(state: State, fault: Fault) -> State:
    """Let an NVML function fail; faults of one function strike in the order they were added."""
    return replace(state, faults=(*state.faults, fault))


def clear_faults(state: State, call: str | None = None) -> State:
    """Let a function, or all, work again."""
    return replace(state, faults=tuple(one for one in state.faults if call not in {None, one.call}))


def set_latency(state: State, call: str, milliseconds: float, gpu: int | None = None) -> State:
    """Let an NVML function take that long, on one GPU or (None) on any; 0 takes it back."""
    others = tuple(one for one in state.latencies if one.call != call or gpu not in {None, one.gpu})
    told = (Latency(call, milliseconds, gpu),) if milliseconds else ()
    return replace(state, latencies=(*others, *told))


def find_profile(gpu: Gpu, text: str) -> Profile:
    """Find a profile by name or hardware id.

    Raises:
        Refused: INVALID_ARGUMENT, listing what there is.
    """
    found = next((one for one in gpu.profiles if text in {one.name, str(one.id)}), None)
    if found is None:
        names = ", ".join(one.name for one in gpu.profiles) or "none, it has no MIG"
        raise Refused(Return.INVALID_ARGUMENT, f"no profile {text!r} on {gpu.model}; it has {names}")
    return found


def _with(state: State, index: int, **fields: Any) -> State:
    return state.with_gpu(index, replace(state.gpus[index], **fields))
