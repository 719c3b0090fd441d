"""NVML functions about MIG: mode, profiles, GPU instances, compute instances, MIG devices."""

from collections.abc import Sequence
from typing import Any

from dradriver.simulation import hardware, memory
from dradriver.simulation.codes import Refused, Return, require
from dradriver.simulation.hardware import ComputeProfile
from dradriver.simulation.identity import instance_memory_mib
from dradriver.simulation.models import Architecture, Profile
from dradriver.simulation.session import Call, Kind, Table, make_handle

TABLE = Table()
_GPU = Kind.GPU
_MIG = Kind.MIG
_GI = Kind.GPU_INSTANCE
_CI = Kind.COMPUTE_INSTANCE

_PROFILE_COUNT = 0x12
_PROFILE_V2 = 0x02000098
_COMPUTE_PROFILE_V2 = 0x02000088


# --- mode -----------------------------------------------------------------------------------------


@TABLE.add("nvmlDeviceGetMigMode", takes=_GPU)
def _mode(call: Call, current: Any, pending: Any) -> None:
    require(call.gpu.kind.mig_capable, Return.NOT_SUPPORTED)
    memory.put_uint(current, int(call.gpu.mig))
    memory.put_uint(pending, int(call.gpu.mig_pending))


@TABLE.add("nvmlDeviceSetMigMode", takes=_GPU, serial=True)
def _set_mode(call: Call, mode: Any, activation: Any) -> None:
    number = memory.integer(mode)
    require(number in {0, 1}, Return.INVALID_ARGUMENT)
    status = call.update(lambda state: hardware.set_mig_mode(state, call.index, enabled=bool(number)))
    memory.put_uint(activation, status)


# --- GPU instance profiles ------------------------------------------------------------------------


@TABLE.add("nvmlDeviceGetGpuInstanceProfileInfo", takes=_GPU)
def _profile_info(call: Call, index: Any, info: Any) -> None:
    _fill_profile(memory.structure(info), _profile_by_index(call, memory.integer(index)))


@TABLE.add("nvmlDeviceGetGpuInstanceProfileInfoV", takes=_GPU)
def _profile_info_v(call: Call, index: Any, info: Any) -> None:
    profile = _profile_by_index(call, memory.integer(index))
    _put_named_profile(call, profile, info)


@TABLE.add("nvmlDeviceGetGpuInstanceProfileInfoByIdV", takes=_GPU)
def _profile_info_by_id(call: Call, ident: Any, info: Any) -> None:
    _put_named_profile(call, hardware.mig_profile(call.gpu, memory.integer(ident)), info)


def _profile_by_index(call: Call, index: int) -> Profile:
    require(0 <= index < _PROFILE_COUNT, Return.INVALID_ARGUMENT)
    found = next((profile for profile in call.gpu.profiles if profile.index == index), None)
    if found is None:
        raise Refused(Return.NOT_SUPPORTED)
    return found


def _put_named_profile(call: Call, profile: Profile, info: Any) -> None:
    target = memory.versioned(info, _PROFILE_V2)
    # Before Hopper the versioned query wants MIG mode on; the old one does not.
    require(call.gpu.mig or call.gpu.kind.architecture >= Architecture.HOPPER, Return.NOT_SUPPORTED)
    _fill_profile(target, profile)
    target.name = f"MIG {profile.name}".encode()


def _fill_profile(target: Any, profile: Profile) -> None:
    target.id, target.isP2pSupported = profile.id, 0
    target.sliceCount, target.instanceCount = profile.slices, profile.count
    target.multiprocessorCount, target.copyEngineCount = profile.multiprocessors, profile.copy_engines
    target.decoderCount, target.encoderCount = profile.engines.decoders, profile.engines.encoders
    target.jpegCount, target.ofaCount = profile.engines.jpegs, profile.engines.ofas
    target.memorySizeMB = profile.memory_mib


@TABLE.add("nvmlDeviceGetGpuInstancePossiblePlacements_v2", takes=_GPU)
def _placements(call: Call, ident: Any, array: Any, count: Any) -> None:
    profile = hardware.mig_profile(call.gpu, memory.integer(ident))
    _put_placements(array, count, [(start, profile.size) for start in profile.starts])


def _put_placements(array: Any, count: Any, placements: Sequence[tuple[int, int]]) -> None:
    if array is not None:
        require(memory.uint(count) >= len(placements), Return.INSUFFICIENT_SIZE)
        memory.put_pairs(array, placements)
    memory.put_uint(count, len(placements))


@TABLE.add("nvmlDeviceGetGpuInstanceRemainingCapacity", takes=_GPU)
def _capacity(call: Call, ident: Any, count: Any) -> None:
    hardware.require_mig(call.gpu)
    profile = hardware.mig_profile(call.gpu, memory.integer(ident))
    memory.put_uint(count, hardware.remaining_capacity(call.gpu, profile))


# --- GPU instances --------------------------------------------------------------------------------


@TABLE.add("nvmlDeviceCreateGpuInstance", takes=_GPU, serial=True)
def _create(call: Call, ident: Any, handle: Any) -> None:
    _create_at(call, handle, profile_id=memory.integer(ident))


@TABLE.add("nvmlDeviceCreateGpuInstanceWithPlacement", takes=_GPU, serial=True)
def _create_with_placement(call: Call, ident: Any, placement: Any, handle: Any) -> None:
    start, size = memory.pair(placement)
    _create_at(call, handle, profile_id=memory.integer(ident), start=start, size=size)


def _create_at(call: Call, handle: Any, **wanted: int) -> None:
    made = call.update(lambda state: hardware.create_gpu_instance(state, call.index, **wanted))
    memory.put_handle(handle, make_handle(_GI, call.index, made.serial))


@TABLE.add("nvmlGpuInstanceDestroy", takes=_GI, serial=True)
def _destroy(call: Call) -> None:
    call.update(lambda state: (hardware.destroy_gpu_instance(state, call.index, serial=call.serial), None))


@TABLE.add("nvmlDeviceGetGpuInstances", takes=_GPU)
def _instances(call: Call, ident: Any, array: Any, count: Any) -> None:
    hardware.require_mig(call.gpu)
    profile = hardware.mig_profile(call.gpu, memory.integer(ident))
    found = [one.serial for one in call.gpu.instances if one.profile == profile.id]
    memory.put_handles(array, [make_handle(_GI, call.index, serial) for serial in found])
    memory.put_uint(count, len(found))


@TABLE.add("nvmlDeviceGetGpuInstanceById", takes=_GPU)
def _instance_by_id(call: Call, ident: Any, handle: Any) -> None:
    hardware.require_mig(call.gpu)
    found = hardware.gpu_instance(call.gpu, ident=memory.integer(ident))
    memory.put_handle(handle, make_handle(_GI, call.index, found.serial))


@TABLE.add("nvmlGpuInstanceGetInfo", takes=_GI)
def _instance_info(call: Call, info: Any) -> None:
    target, instance = memory.structure(info), call.gpu_instance()
    memory.set_handle(target, "device", make_handle(_GPU, call.index))
    target.id, target.profileId = instance.id, instance.profile
    target.placement.start, target.placement.size = instance.start, instance.size


# --- compute instances ----------------------------------------------------------------------------


@TABLE.add("nvmlGpuInstanceGetComputeInstanceProfileInfo", takes=_GI)
def _compute_profile_info(call: Call, index: Any, engines: Any, info: Any) -> None:
    _fill_compute_profile(call, memory.structure(info), _compute_profile(call, index, engines))


@TABLE.add("nvmlGpuInstanceGetComputeInstanceProfileInfoV", takes=_GI)
def _compute_profile_info_v(call: Call, index: Any, engines: Any, info: Any) -> None:
    profile = _compute_profile(call, index, engines)
    target = memory.versioned(info, _COMPUTE_PROFILE_V2)
    _fill_compute_profile(call, target, profile)
    target.name = f"MIG {profile.name}".encode()


def _compute_profile(call: Call, index: Any, engines: Any = 0) -> ComputeProfile:
    require(memory.integer(engines) == 0, Return.INVALID_ARGUMENT)
    return hardware.compute_profile(call.gpu, call.gpu_instance(), memory.integer(index))


def _fill_compute_profile(call: Call, target: Any, profile: ComputeProfile) -> None:
    target.id, target.sliceCount, target.instanceCount = profile.id, profile.slices, profile.count
    target.multiprocessorCount = profile.multiprocessors
    _fill_shared(call, target)


def _fill_shared(call: Call, target: Any) -> None:
    whole = hardware.mig_profile(call.gpu, call.gpu_instance().profile)
    target.sharedCopyEngineCount = whole.copy_engines
    target.sharedDecoderCount, target.sharedEncoderCount = whole.engines.decoders, whole.engines.encoders
    target.sharedJpegCount, target.sharedOfaCount = whole.engines.jpegs, whole.engines.ofas


@TABLE.add("nvmlGpuInstanceGetComputeInstancePossiblePlacements", takes=_GI)
def _compute_placements(call: Call, ident: Any, array: Any, count: Any) -> None:
    profile = _compute_profile(call, ident)
    _put_placements(array, count, [(start, profile.slices) for start in hardware.compute_starts(profile)])


@TABLE.add("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", takes=_GI)
def _compute_capacity(call: Call, ident: Any, count: Any) -> None:
    free = hardware.free_compute_starts(call.gpu_instance(), _compute_profile(call, ident))
    memory.put_uint(count, len(free))


@TABLE.add("nvmlGpuInstanceCreateComputeInstance", takes=_GI, serial=True)
def _create_compute(call: Call, ident: Any, handle: Any) -> None:
    _create_compute_at(call, handle, profile_id=memory.integer(ident))


@TABLE.add("nvmlGpuInstanceCreateComputeInstanceWithPlacement", takes=_GI, serial=True)
def _create_compute_with_placement(call: Call, ident: Any, placement: Any, handle: Any) -> None:
    start, size = memory.pair(placement)
    require(size == _compute_profile(call, ident).slices, Return.INVALID_ARGUMENT)
    _create_compute_at(call, handle, profile_id=memory.integer(ident), start=start)


def _create_compute_at(call: Call, handle: Any, **wanted: int) -> None:
    made = call.update(lambda state: hardware.create_compute_instance(state, call.index, serial=call.serial, **wanted))
    memory.put_handle(handle, make_handle(_CI, call.index, made.serial))


@TABLE.add("nvmlComputeInstanceDestroy", takes=_CI, serial=True)
def _destroy_compute(call: Call) -> None:
    call.update(lambda state: (hardware.destroy_compute_instance(state, call.index, serial=call.serial), None))


@TABLE.add("nvmlGpuInstanceGetComputeInstances", takes=_GI)
def _compute_instances(call: Call, ident: Any, array: Any, count: Any) -> None:
    profile = _compute_profile(call, ident)
    found = [one.serial for one in call.gpu_instance().compute if one.profile == profile.id]
    memory.put_handles(array, [make_handle(_CI, call.index, serial) for serial in found])
    memory.put_uint(count, len(found))


@TABLE.add("nvmlGpuInstanceGetComputeInstanceById", takes=_GI)
def _compute_by_id(call: Call, ident: Any, handle: Any) -> None:
    wanted = memory.integer(ident)
    found = next((one for one in call.gpu_instance().compute if one.id == wanted), None)
    if found is None:
        raise Refused(Return.NOT_FOUND)
    memory.put_handle(handle, make_handle(_CI, call.index, found.serial))


@TABLE.add("nvmlComputeInstanceGetInfo_v2", takes=_CI)
def _compute_info(call: Call, info: Any) -> None:
    target = memory.structure(info)
    instance, compute = call.compute_instance()
    memory.set_handle(target, "device", make_handle(_MIG, call.index, compute.serial))
    memory.set_handle(target, "gpuInstance", make_handle(_GI, call.index, instance.serial))
    target.id, target.profileId = compute.id, compute.profile
    target.placement.start, target.placement.size = compute.start, compute.size


# --- MIG devices ----------------------------------------------------------------------------------


@TABLE.add("nvmlDeviceIsMigDeviceHandle", takes=_GPU | _MIG)
def _is_mig(call: Call, answer: Any) -> None:
    memory.put_uint(answer, int(call.kind is _MIG))


@TABLE.add("nvmlDeviceGetMaxMigDeviceCount", takes=_GPU)
def _max_mig_devices(call: Call, count: Any) -> None:
    memory.put_uint(count, call.gpu.kind.max_mig_devices if call.gpu.mig else 0)


@TABLE.add("nvmlDeviceGetMigDeviceHandleByIndex", takes=_GPU)
def _mig_by_index(call: Call, index: Any, device: Any) -> None:
    hardware.require_mig(call.gpu)
    number = memory.integer(index)
    require(0 <= number < call.gpu.kind.max_mig_devices, Return.INVALID_ARGUMENT)
    for instance in call.gpu.instances:
        for compute in instance.compute:
            if compute.index == number:
                memory.put_handle(device, make_handle(_MIG, call.index, compute.serial))
                return
    raise Refused(Return.NOT_FOUND)


@TABLE.add("nvmlDeviceGetGpuInstanceId", takes=_MIG)
def _gpu_instance_id(call: Call, ident: Any) -> None:
    memory.put_uint(ident, call.gpu_instance().id)


@TABLE.add("nvmlDeviceGetComputeInstanceId", takes=_MIG)
def _compute_instance_id(call: Call, ident: Any) -> None:
    memory.put_uint(ident, call.compute_instance()[1].id)


@TABLE.add("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", takes=_MIG)
def _parent(call: Call, device: Any) -> None:
    memory.put_handle(device, make_handle(_GPU, call.index))


@TABLE.add("nvmlDeviceGetAttributes_v2", takes=_MIG)
def _attributes(call: Call, attributes: Any) -> None:
    target = memory.structure(attributes)
    instance, compute = call.compute_instance()
    whole = hardware.mig_profile(call.gpu, instance.profile)
    part = hardware.compute_profile(call.gpu, instance, compute.profile)
    target.multiprocessorCount = part.multiprocessors
    target.gpuInstanceSliceCount, target.computeInstanceSliceCount = whole.slices, part.slices
    target.memorySizeMB = instance_memory_mib(call)
    _fill_shared(call, target)
