"""GPU instances and the compute instances in them: list, create, destroy.

NVML makes a partition in two steps, a GPU instance (memory and engines) and in it a compute instance (what a program
opens); only the second has a UUID. Between the two lies a bare GPU instance, which a crash may leave behind.
"""

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import pynvml

from dradriver.gpu.model import MigInstance, MigProfile, Placement
from dradriver.nvml.calls import Device, call, optional, read_instances, walk_enum
from dradriver.nvml.errors import NOT_SUPPORTED, InvalidArgument, NotFound, NotSupported, NvmlError

T = TypeVar("T")

# Variants that share a slice count with the plain compute instance of a size, and are not it.
_SPECIAL: Final = frozenset(
    {pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE_NVL}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProfile:
    """A kind of compute instance that a GPU instance offers.

    Attributes:
        id: what NVML's create and list calls take.
        slices: compute slices.
        max_instances: how many fit in the empty GPU instance.
        plain: not one of the special variants.
    """

    id: int
    slices: int
    max_instances: int
    plain: bool


ComputeProfilesOf = Callable[[Device, pynvml.c_nvmlGpuInstance_t, int], tuple[ComputeProfile, ...]]
"""Compute profiles of a live GPU instance of a profile id; a cache may answer."""


def read_compute_profiles(device: Device, instance: pynvml.c_nvmlGpuInstance_t) -> tuple[ComputeProfile, ...]:
    """Read what a live GPU instance can hold; NVML tells it no other way."""
    return _compute_version(device, instance, 2) or _compute_version(device, instance, 1)


def _compute_version(device: Device, instance: pynvml.c_nvmlGpuInstance_t, version: int) -> tuple[ComputeProfile, ...]:
    infos = walk_enum(
        lambda index: call(
            device.gpu,
            pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo,
            instance,
            index,
            pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
            version=version,
        )
    )
    return tuple(
        ComputeProfile(
            id=info.id,
            slices=info.sliceCount,
            max_instances=info.instanceCount,
            plain=index not in _SPECIAL,
        )
        for index, info in infos
    )


# --- list ---------------------------------------------------------------------------------------


def list_instances(
    device: Device, profiles: Iterable[MigProfile], compute_profiles: ComputeProfilesOf
) -> tuple[MigInstance, ...]:
    """List what exists now, in order of place.

    A GPU instance with several compute instances, as an administrator may make, gives one entry for each. What is
    destroyed while the list is made is left out.

    Args:
        device: a GPU with MIG mode on.
        profiles: its profiles; NVML lists by profile only.
        compute_profiles: tells the compute profiles of a GPU instance.
    """
    handles = (handle for profile in profiles for handle in _gpu_instances(device, profile))
    found = (instance for handle in handles for instance in _contents_unless_gone(device, handle, compute_profiles))
    return tuple(sorted(found, key=_place))


def _place(instance: MigInstance) -> tuple[Placement, int]:
    return instance.placement, instance.compute_instance_id or 0


def _contents_unless_gone(
    device: Device, handle: pynvml.c_nvmlGpuInstance_t, compute_profiles: ComputeProfilesOf
) -> tuple[MigInstance, ...]:
    try:
        return _contents(device, handle, compute_profiles)
    except (NotFound, InvalidArgument):
        return ()


def _gpu_instances(device: Device, profile: MigProfile) -> list[pynvml.c_nvmlGpuInstance_t]:
    space = (pynvml.c_nvmlGpuInstance_t * profile.max_instances)()
    return read_instances(device.gpu, pynvml.nvmlDeviceGetGpuInstances, device.handle, profile.id, space)


def _contents(
    device: Device, handle: pynvml.c_nvmlGpuInstance_t, compute_profiles: ComputeProfilesOf
) -> tuple[MigInstance, ...]:
    bare = read_bare(device, handle)
    filled = tuple(
        _fill(device, bare, compute)
        for profile in compute_profiles(device, handle, bare.profile_id)
        for compute in _compute_instances(device, handle, profile)
    )
    return filled or (bare,)


def _compute_instances(
    device: Device, handle: pynvml.c_nvmlGpuInstance_t, profile: ComputeProfile
) -> Iterator[pynvml.c_nvmlComputeInstance_t]:
    space = (pynvml.c_nvmlComputeInstance_t * profile.max_instances)()
    yield from read_instances(device.gpu, pynvml.nvmlGpuInstanceGetComputeInstances, handle, profile.id, space)


def read_bare(device: Device, handle: pynvml.c_nvmlGpuInstance_t) -> MigInstance:
    """Describe a GPU instance without what is in it."""
    info = call(device.gpu, pynvml.nvmlGpuInstanceGetInfo, handle)
    return MigInstance(
        gpu_instance_id=info.id,
        compute_instance_id=None,
        uuid=None,
        profile_id=info.profileId,
        placement=Placement(start=info.placement.start, size=info.placement.size),
    )


def _fill(device: Device, bare: MigInstance, compute: pynvml.c_nvmlComputeInstance_t) -> MigInstance:
    """Describe a compute instance in its GPU instance.

    Its info carries the MIG device's handle: walking the MIG devices to find it has been seen to take 10 s.
    """
    info = call(device.gpu, pynvml.nvmlComputeInstanceGetInfo_v2, compute)
    attributes = optional(lambda: call(device.gpu, pynvml.nvmlDeviceGetAttributes_v2, info.device))
    return MigInstance(
        gpu_instance_id=bare.gpu_instance_id,
        compute_instance_id=info.id,
        uuid=call(device.gpu, pynvml.nvmlDeviceGetUUID, info.device),
        profile_id=bare.profile_id,
        placement=bare.placement,
        memory_mib=attributes.memorySizeMB if attributes else None,
        compute_slices=attributes.computeInstanceSliceCount if attributes else None,
    )


# --- create -------------------------------------------------------------------------------------


def create_gpu_instance(device: Device, profile_id: int, placement: Placement) -> MigInstance:
    """Make a bare GPU instance at this place; none is left if it cannot be described."""
    place = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
    create = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement
    handle = call(device.gpu, create, device.handle, profile_id, ctypes.byref(place))
    return _or_undo(
        lambda: read_bare(device, handle),
        undo=lambda: call(device.gpu, pynvml.nvmlGpuInstanceDestroy, handle),
    )


def create_compute_instance(
    device: Device,
    gpu_instance_id: int,
    profiles: Iterable[MigProfile],
    compute_profiles: ComputeProfilesOf,
) -> MigInstance:
    """Make the compute instance that is as large as its GPU instance; none is left if it cannot be described."""
    handle = find_gpu_instance(device, gpu_instance_id)
    bare = read_bare(device, handle)
    profile = _whole(device, bare, profiles, compute_profiles(device, handle, bare.profile_id))
    compute = call(device.gpu, pynvml.nvmlGpuInstanceCreateComputeInstance, handle, profile.id)
    return _or_undo(
        lambda: _fill(device, bare, compute),
        undo=lambda: call(device.gpu, pynvml.nvmlComputeInstanceDestroy, compute),
    )


def _whole(
    device: Device, bare: MigInstance, profiles: Iterable[MigProfile], offered: Iterable[ComputeProfile]
) -> ComputeProfile:
    slices = next((profile.compute_slices for profile in profiles if profile.id == bare.profile_id), None)
    whole = next((profile for profile in offered if profile.plain and profile.slices == slices), None)
    if whole is None:
        raise NotSupported(
            "nvmlGpuInstanceGetComputeInstanceProfileInfo",
            NOT_SUPPORTED,
            device.gpu,
            cause=f"GPU instance {bare.gpu_instance_id} (profile {bare.profile_id}) offers no compute instance of "
            f"its own size, {'unknown' if slices is None else slices} slices",
        )
    return whole


def _or_undo(describe: Callable[[], T], *, undo: Callable[[], object]) -> T:
    try:
        return describe()
    except NvmlError:
        with contextlib.suppress(NvmlError):
            undo()
        raise


# --- destroy ------------------------------------------------------------------------------------


def find_gpu_instance(device: Device, gpu_instance_id: int) -> pynvml.c_nvmlGpuInstance_t:
    """Get a GPU instance's handle.

    Raises:
        NotFound: no instance has this id.
        NotSupported: MIG mode is off, so none exists.
    """
    return call(device.gpu, pynvml.nvmlDeviceGetGpuInstanceById, device.handle, gpu_instance_id)


def destroy_gpu_instance(device: Device, gpu_instance_id: int) -> None:
    """Destroy a GPU instance that holds no compute instance."""
    call(device.gpu, pynvml.nvmlGpuInstanceDestroy, find_gpu_instance(device, gpu_instance_id))


def destroy_compute_instance(device: Device, gpu_instance_id: int, compute_instance_id: int) -> None:
    """Destroy a compute instance; its GPU instance stays."""
    instance = find_gpu_instance(device, gpu_instance_id)
    find = pynvml.nvmlGpuInstanceGetComputeInstanceById
    compute = call(device.gpu, find, instance, compute_instance_id)
    call(device.gpu, pynvml.nvmlComputeInstanceDestroy, compute)
