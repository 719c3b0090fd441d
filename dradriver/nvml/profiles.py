"""What a GPU can be cut into, as NVML tells at run time.

No geometry is written down here: names and memory of a profile differ between drivers for one model of GPU. NVML knows
profiles by an *enum index*, which only the profile query takes, and by a *hardware id*, which everything else takes.
"""

import ctypes

import pynvml

from dradriver.gpu.model import MigProfile, Placement
from dradriver.nvml.calls import Device, call, walk_enum
from dradriver.nvml.errors import NoPermission, NotSupported
from dradriver.nvml.names import profile_name


def read_profiles(device: Device, memory_bytes: int | None) -> tuple[MigProfile, ...]:
    """Read all profiles of this GPU, in NVML's order.

    One whose places NVML does not tell has none here, and cannot be offered. It is kept all the same, since
    instances are listed by profile: what exists of it must not be overlooked.

    With MIG mode off the newer query says NOT_SUPPORTED on some GPUs where the older one, which tells no
    names, answers.

    Args:
        device: the GPU.
        memory_bytes: its memory, for names that have to be computed.

    Returns:
        Empty where the GPU cannot be cut, or tells nothing in its present mode or to this process.
    """
    return _read_version(device, 2, memory_bytes) or _read_version(device, 1, memory_bytes)


def _read_version(device: Device, version: int, memory_bytes: int | None) -> tuple[MigProfile, ...]:
    infos = walk_enum(
        lambda index: call(
            device.gpu, pynvml.nvmlDeviceGetGpuInstanceProfileInfo, device.handle, index, version=version
        )
    )
    return tuple(_profile(index, info, _placements(device, info.id), memory_bytes) for index, info in infos)


def _profile(
    index: int,
    info: pynvml.c_nvmlGpuInstanceProfileInfo_t | pynvml.c_nvmlGpuInstanceProfileInfo_v2_t,
    placements: tuple[Placement, ...],
    memory_bytes: int | None,
) -> MigProfile:
    name = getattr(info, "name", "").removeprefix("MIG ")
    return MigProfile(
        id=info.id,
        name=name
        or profile_name(index, slices=info.sliceCount, memory_mib=info.memorySizeMB, total_bytes=memory_bytes),
        compute_slices=info.sliceCount,
        max_instances=info.instanceCount,
        memory_mib=info.memorySizeMB,
        multiprocessors=info.multiprocessorCount,
        copy_engines=info.copyEngineCount,
        decoders=info.decoderCount,
        encoders=info.encoderCount,
        jpeg_engines=info.jpegCount,
        ofa_engines=info.ofaCount,
        placements=placements,
    )


def _placements(device: Device, profile_id: int) -> tuple[Placement, ...]:
    try:
        found = _raw_placements(device, profile_id)
    except (NotSupported, NoPermission):
        return ()
    return tuple(sorted(Placement(start=one.start, size=one.size) for one in found))


def _raw_placements(device: Device, profile_id: int) -> list[pynvml.c_nvmlGpuInstancePlacement_t]:
    """Ask for the count first: NVML writes all there are, whatever room the array has."""
    count = ctypes.c_uint()
    query = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    call(device.gpu, query, device.handle, profile_id, None, ctypes.byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    call(device.gpu, query, device.handle, profile_id, array, ctypes.byref(count))
    return list(array[: count.value])
