"""What the simulated hardware does: pure rules, each makes a new state from the old one or refuses.

The rules are those of NVIDIA's MIG user guide and of nvml.h, as far as they are published; where real hardware was
observed to do something that no document promises, the comment says so.
"""

import uuid as uuids
from dataclasses import dataclass, replace
from functools import reduce

from dradriver.simulation.codes import Refused, Return, require
from dradriver.simulation.models import Architecture, Engines, Profile, gpu_instance_ids
from dradriver.simulation.state import ComputeInstance, Event, Gpu, GpuInstance, State

EVENT_XID = 0x8
EVENT_MIG_CONFIG = 0x100
EVENT_RECOVERY_ACTION = 0x8000

# Errors and repair of memory with ECC.
_ECC_EVENTS = 0xE03

SUPPORTED_EVENTS = 0xFF9F
"""Every event type but those of no meaning on servers (reserved bits)."""

EVENT_TYPES = {
    "single-bit-ecc": 0x1,
    "double-bit-ecc": 0x2,
    "pstate": 0x4,
    "xid": EVENT_XID,
    "clock": 0x10,
    "power-source": 0x80,
    "mig-config": EVENT_MIG_CONFIG,
    "single-bit-ecc-storm": 0x200,
    "dram-retirement": 0x400,
    "dram-retirement-failure": 0x800,
    "non-fatal-poison": 0x1000,
    "fatal-poison": 0x2000,
    "gpu-unavailable": 0x4000,
    "recovery-action": EVENT_RECOVERY_ACTION,
}
"""Bits of nvmlEventType*, by names of the command line."""

EVENTS_KEPT = 128
"""How far a listener may fall behind before it loses events; the real driver's queue is limited too."""

RECOVERY = {
    "none": 0,
    "gpu-reset": 1,
    "node-reboot": 2,
    "drain-p2p": 3,
    "drain-and-reset": 4,
    "recover-imex-domain": 5,
    "bus-reset": 6,
    "system-reboot": 7,
}
"""Values of NVML field 230, what has to be done to bring a GPU back."""


@dataclass(frozen=True, slots=True)
class Fabric:
    """How a GPU is in its NVLink fabric, in NVML's numbers.

    Attributes:
        state: NVML_GPU_FABRIC_STATE_*.
        mask: NVML_GPU_FABRIC_HEALTH_MASK_*, each field shifted to its place; 0 = nothing is told.
        summary: NVML_GPU_FABRIC_HEALTH_SUMMARY_*.
    """

    state: int
    mask: int
    summary: int


# From bit 0: bandwidth not degraded, no recovery of routes, (routes unhealthy, bits 4 and 5), no recovery from access
# timeouts, nothing configured wrongly.
_WELL_BUT_ROUTES = 2 | 2 << 2 | 2 << 6 | 1 << 8

FABRIC = {
    "none": Fabric(0, 0, 0),
    "joining": Fabric(2, 0, 0),
    "healthy": Fabric(3, _WELL_BUT_ROUTES | 2 << 4, 1),
    "unhealthy": Fabric(3, _WELL_BUT_ROUTES | 1 << 4, 2),
}
"""States of a fabric, by names of the command line; an unhealthy one has unhealthy routes."""

COMPUTE_SLICES = (1, 2, 3, 4, 7, 8, 6)
"""Slices of a compute instance by NVML's enumeration index; 7 and 8 (REV1, 7_SLICE_NVL) are not offered."""

COMPUTE_PROFILE_COUNT = 9
MAX_COMPUTE_INSTANCES = 8


# --- events -------------------------------------------------------------------------------------


def emit(state: State, gpu: int, kind: int, data: int, *, times: int = 1, **where: int) -> State:
    """Queue an event for every listener of the GPU, as often as told; of very many only the last are kept."""
    resets, after = state.gpus[gpu].resets, state.next_event + times
    numbers = range(max(state.next_event, after - EVENTS_KEPT), after)
    events = [Event(number=number, gpu=gpu, type=kind, data=data, resets=resets, **where) for number in numbers]
    return replace(state, events=(*state.events, *events)[-EVENTS_KEPT:], next_event=after)


def supported_events(gpu: Gpu) -> int:
    """Event types that the GPU tells: those of MIG and ECC only where it has such.

    Without MIG this is UNVERIFIED; that ECC events need ECC is NVML's documentation of nvmlDeviceRegisterEvents.
    """
    missing = (0 if gpu.kind.mig_capable else EVENT_MIG_CONFIG) | (0 if gpu.kind.memory_mib else _ECC_EVENTS)
    return SUPPORTED_EVENTS & ~missing


def _mig_changed(state: State, gpu: int) -> State:
    return emit(state, gpu, EVENT_MIG_CONFIG, 0)


# --- health -------------------------------------------------------------------------------------


def fabric(gpu: Gpu) -> str:
    """Name the state of the NVLink fabric that the GPU is in: a key of `FABRIC`."""
    return gpu.fabric or ("healthy" if gpu.kind.nvlink_fabric else "none")


def remaps_rows(gpu: Gpu) -> bool:
    """It repairs its memory by spare rows: everything since Ampere with memory of its own."""
    return gpu.kind.architecture >= Architecture.AMPERE and gpu.kind.memory_mib is not None


def require_retired_pages(gpu: Gpu) -> None:
    """Refuse with NOT_SUPPORTED where bad memory is not retired by pages: since Ampere, and without own memory."""
    retires = not remaps_rows(gpu) and gpu.kind.memory_mib
    require(retires, Return.NOT_SUPPORTED, "this GPU retires no pages of memory")


def require_sram_status(gpu: Gpu) -> None:
    """Refuse with NOT_SUPPORTED where no threshold of errors in SRAM is told: before Ampere, without ECC."""
    counts = gpu.kind.architecture >= Architecture.AMPERE and gpu.kind.memory_mib
    require(counts, Return.NOT_SUPPORTED, "this GPU tells no status of its SRAM")


# --- MIG mode -----------------------------------------------------------------------------------


def set_mig_mode(state: State, index: int, *, enabled: bool) -> tuple[State, Return]:
    """Switch MIG mode, at once or at the next reset.

    Returns:
        The state after it, and the activation status: SUCCESS when in force, IN_USE when clients or instances hold
        the GPU, RESET_REQUIRED when it waits for a reset (before Hopper).

    Raises:
        Refused: NOT_SUPPORTED on a GPU without MIG.
    """
    gpu = state.gpus[index]
    require(gpu.kind.mig_capable, Return.NOT_SUPPORTED, "this GPU has no MIG")
    busy = bool(gpu.processes or gpu.instances) and enabled != gpu.mig
    if not gpu.kind.mig_needs_reset:
        return _switch_now(state, index, enabled=enabled, busy=busy)
    after = state if gpu.mig_pending == enabled else state.with_gpu(index, replace(gpu, mig_pending=enabled))
    if enabled == gpu.mig:
        return after, Return.SUCCESS
    return after, Return.IN_USE if busy else Return.RESET_REQUIRED


def _switch_now(state: State, index: int, *, enabled: bool, busy: bool) -> tuple[State, Return]:
    gpu = state.gpus[index]
    if busy:
        return state, Return.IN_USE
    if gpu.mig == enabled:
        return state, Return.SUCCESS
    switched = state.with_gpu(index, replace(gpu, mig=enabled, mig_pending=enabled))
    return _mig_changed(switched, index), Return.SUCCESS


# --- GPU instances ------------------------------------------------------------------------------


def mig_profile(gpu: Gpu, ident: int) -> Profile:
    """Find a profile by hardware id.

    Raises:
        Refused: NOT_SUPPORTED on a GPU without MIG, INVALID_ARGUMENT for an id it does not have.
    """
    require(gpu.kind.mig_capable, Return.NOT_SUPPORTED, "this GPU has no MIG")
    profile = gpu.profile(ident)
    if profile is None:
        raise Refused(Return.INVALID_ARGUMENT, f"this GPU has no profile with id {ident}")
    return profile


def require_mig(gpu: Gpu) -> None:
    """Refuse with NOT_SUPPORTED while MIG mode is off."""
    require(gpu.kind.mig_capable, Return.NOT_SUPPORTED, "this GPU has no MIG")
    require(gpu.mig, Return.NOT_SUPPORTED, "MIG mode is off")


def free_starts(gpu: Gpu, profile: Profile) -> tuple[int, ...]:
    """Starts at which an instance of the profile would overlap no other, whether or not engines are left."""
    return tuple(
        start
        for start in profile.starts
        if not any(instance.overlaps(start, profile.size) for instance in gpu.instances)
    )


def engines_left(gpu: Gpu, profile: Profile, wanted: int) -> bool:
    """Tell whether `wanted` more instances of the profile find enough media engines."""
    used = [mig_profile(gpu, instance.profile).engines for instance in gpu.instances]
    return reduce(Engines.plus, [*used, *[profile.engines] * (wanted - 1)], profile.engines).within(gpu.kind.engines)


def remaining_capacity(gpu: Gpu, profile: Profile) -> int:
    """How many more instances of the profile fit now."""
    slices = len(free_starts(gpu, profile))
    return next((count for count in range(slices, 0, -1) if engines_left(gpu, profile, count)), 0)


def create_gpu_instance(
    state: State, index: int, *, profile_id: int, start: int | None = None, size: int | None = None
) -> tuple[State, GpuInstance]:
    """Cut a GPU instance out of a GPU.

    Args:
        state: before.
        index: of the GPU.
        profile_id: hardware id.
        start: memory slice; None lets the hardware choose: it takes the highest one free, which can lead into a
            dead end (on an A100, profiles 19, 19, 14, 9 one after another do).
        size: memory slices; has to be the profile's.

    Raises:
        Refused: NOT_SUPPORTED with MIG off, INVALID_ARGUMENT for a profile or placement that the GPU does not have,
            INSUFFICIENT_RESOURCES where slices or media engines are taken.
    """
    gpu = state.gpus[index]
    require_mig(gpu)
    profile = mig_profile(gpu, profile_id)
    place = _place(gpu, profile, start, size)
    instance = GpuInstance(
        serial=state.next_serial,
        id=_free_gpu_instance_id(gpu, profile),
        profile=profile.id,
        start=place,
        size=profile.size,
    )
    after = _with_instances(state, index, (*gpu.instances, instance))
    return _mig_changed(replace(after, next_serial=state.next_serial + 1), index), instance


def _place(gpu: Gpu, profile: Profile, start: int | None, size: int | None) -> int:
    free = free_starts(gpu, profile)
    if start is not None:
        fits = start in profile.starts and size in {None, profile.size}
        require(fits, Return.INVALID_ARGUMENT, f"{profile.name} starts at {profile.starts}, size {profile.size}")
        free = tuple(place for place in free if place == start)
    require(free, Return.INSUFFICIENT_RESOURCES, f"no room for {profile.name}")
    require(engines_left(gpu, profile, 1), Return.INSUFFICIENT_RESOURCES, f"no media engines for {profile.name}")
    return free[-1]


def _free_gpu_instance_id(gpu: Gpu, profile: Profile) -> int:
    taken = {instance.id for instance in gpu.instances}
    return next(ident for ident in gpu_instance_ids(gpu.kind.grid, profile.size) if ident not in taken)


def _with_instances(state: State, index: int, instances: tuple[GpuInstance, ...]) -> State:
    return state.with_gpu(index, replace(state.gpus[index], instances=instances))


def destroy_gpu_instance(state: State, index: int, *, serial: int) -> State:
    """Give the slices of a GPU instance back.

    Raises:
        Refused: IN_USE while compute instances or processes are in it, NOT_FOUND when it is gone.
    """
    gpu = state.gpus[index]
    instance = gpu_instance(gpu, serial=serial)
    busy = any(process.gpu_instance == instance.id for process in gpu.processes)
    require(not instance.compute, Return.IN_USE, "compute instances are left in it")
    require(not busy, Return.IN_USE, "a process uses it")
    return _mig_changed(
        _with_instances(state, index, tuple(one for one in gpu.instances if one is not instance)), index
    )


def gpu_instance(gpu: Gpu, *, serial: int | None = None, ident: int | None = None) -> GpuInstance:
    """Find a GPU instance by serial or by id.

    Raises:
        Refused: NOT_FOUND.
    """
    found = next((one for one in gpu.instances if one.serial == serial or one.id == ident), None)
    if found is None:
        raise Refused(Return.NOT_FOUND, "there is no such GPU instance")
    return found


# --- compute instances --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProfile:
    """A kind of compute instance that a given GPU instance offers; engines are shared with its siblings."""

    id: int
    slices: int
    count: int
    name: str
    multiprocessors: int


def compute_profile(gpu: Gpu, instance: GpuInstance, index: int) -> ComputeProfile:
    """Tell what a compute profile means in a GPU instance.

    Which sizes exist, and how many multiprocessors a part of a GPU instance gets, is known for Ampere and UNVERIFIED
    for later GPUs.

    Raises:
        Refused: INVALID_ARGUMENT past the enumeration, NOT_SUPPORTED for a size that this GPU instance does not offer.
    """
    require(0 <= index < COMPUTE_PROFILE_COUNT, Return.INVALID_ARGUMENT)
    profile = mig_profile(gpu, instance.profile)
    slices = COMPUTE_SLICES[index] if index < len(COMPUTE_SLICES) else 0
    partial = 0 < slices < profile.slices and 2 * slices <= profile.slices + 1
    require(partial or slices == profile.slices, Return.NOT_SUPPORTED)
    return ComputeProfile(
        id=index,
        slices=slices,
        count=profile.slices // slices,
        name=f"{slices}c.{profile.name}" if partial else profile.name,
        multiprocessors=_one_slice(gpu) * slices if partial else profile.multiprocessors,
    )


def _one_slice(gpu: Gpu) -> int:
    return min(profile.multiprocessors for profile in gpu.profiles)


def compute_starts(profile: ComputeProfile) -> tuple[int, ...]:
    """Compute slices at which a compute instance may start; that they are multiples is UNVERIFIED."""
    return tuple(number * profile.slices for number in range(profile.count))


def free_compute_starts(instance: GpuInstance, profile: ComputeProfile) -> tuple[int, ...]:
    """Those at which it would overlap no other."""
    return tuple(
        start
        for start in compute_starts(profile)
        if not any(one.start < start + profile.slices and start < one.start + one.size for one in instance.compute)
    )


def create_compute_instance(
    state: State, index: int, *, serial: int, profile_id: int, start: int | None = None
) -> tuple[State, ComputeInstance]:
    """Make a compute instance, hence a MIG device, in a GPU instance; its UUID was never seen before.

    Raises:
        Refused: NOT_FOUND when the GPU instance is gone, INVALID_ARGUMENT or NOT_SUPPORTED for a profile that it
            does not offer, INSUFFICIENT_RESOURCES where its slices are taken.
    """
    gpu = state.gpus[index]
    instance = gpu_instance(gpu, serial=serial)
    profile = compute_profile(gpu, instance, profile_id)
    compute = ComputeInstance(
        serial=state.next_serial,
        id=_lowest_free({one.id for one in instance.compute}),
        profile=profile.id,
        start=_compute_place(instance, profile, start),
        size=profile.slices,
        uuid=f"MIG-{uuids.uuid4()}",
        index=_lowest_free({one.index for other in gpu.instances for one in other.compute}),
    )
    after = _with_compute(state, index, instance, (*instance.compute, compute))
    return _mig_changed(replace(after, next_serial=state.next_serial + 1), index), compute


def _compute_place(instance: GpuInstance, profile: ComputeProfile, start: int | None) -> int:
    require(start is None or start in compute_starts(profile), Return.INVALID_ARGUMENT)
    free = [place for place in free_compute_starts(instance, profile) if start in {None, place}]
    require(free, Return.INSUFFICIENT_RESOURCES, f"no room for {profile.name}")
    return free[0]


def _lowest_free(taken: set[int]) -> int:
    return next(number for number in range(len(taken) + 1) if number not in taken)


def _with_compute(state: State, index: int, instance: GpuInstance, compute: tuple[ComputeInstance, ...]) -> State:
    changed = replace(instance, compute=compute)
    others = state.gpus[index].instances
    return _with_instances(state, index, tuple(changed if one is instance else one for one in others))


def destroy_compute_instance(state: State, index: int, *, serial: int) -> State:
    """Take a MIG device away.

    Raises:
        Refused: IN_USE while a process runs on it, NOT_FOUND when it is gone.
    """
    gpu = state.gpus[index]
    instance, compute = compute_instance(gpu, serial=serial)
    busy = any(
        process.gpu_instance == instance.id and process.compute_instance == compute.id for process in gpu.processes
    )
    require(not busy, Return.IN_USE, "a process uses it")
    left = tuple(one for one in instance.compute if one is not compute)
    return _mig_changed(_with_compute(state, index, instance, left), index)


def compute_instance(gpu: Gpu, *, serial: int) -> tuple[GpuInstance, ComputeInstance]:
    """Find a compute instance and the GPU instance it is in.

    Raises:
        Refused: NOT_FOUND.
    """
    for instance in gpu.instances:
        for compute in instance.compute:
            if compute.serial == serial:
                return instance, compute
    raise Refused(Return.NOT_FOUND, "there is no such compute instance")
