# Stubs for what dradriver uses of nvidia-ml-py, no more: a call that is missing here has not been checked
# against NVML's header. Handles are ctypes pointers to opaque structures.
import ctypes
from collections.abc import Sequence
from ctypes import _CArgObject, _Pointer
from typing import Any, Final

nvmlLib: object
_nvmlGetFunctionPointer_cache: dict[str, Any]

NVML_SUCCESS: Final[int]
NVML_INIT_FLAG_NO_GPUS: Final[int]
NVML_GPU_VIRTUALIZATION_MODE_VGPU: Final[int]
NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED: Final[int]
NVML_FI_DEV_RETIRED_PENDING: Final[int]
NVML_FI_DEV_REMAPPED_PENDING: Final[int]
NVML_FI_DEV_REMAPPED_FAILURE: Final[int]
NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: Final[int]
NVML_GPU_RECOVERY_ACTION_GPU_RESET: Final[int]
NVML_GPU_FABRIC_STATE_NOT_SUPPORTED: Final[int]
NVML_GPU_FABRIC_STATE_NOT_STARTED: Final[int]
NVML_GPU_FABRIC_STATE_IN_PROGRESS: Final[int]
NVML_GPU_FABRIC_STATE_COMPLETED: Final[int]
NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW: Final[int]
NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY: Final[int]
NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY: Final[int]
NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY: Final[int]
NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION: Final[int]
NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION: Final[int]
NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE: Final[int]
NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1: Final[int]
NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE_NVL: Final[int]
NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED: Final[int]

class NVMLError(Exception):
    value: int

# --- handles ------------------------------------------------------------------------------------

class struct_c_nvmlDevice_t(ctypes.Structure): ...
class c_nvmlDevice_t(_Pointer[struct_c_nvmlDevice_t]): ...
class struct_c_nvmlGpuInstance_t(ctypes.Structure): ...
class c_nvmlGpuInstance_t(_Pointer[struct_c_nvmlGpuInstance_t]): ...
class struct_c_nvmlComputeInstance_t(ctypes.Structure): ...
class c_nvmlComputeInstance_t(_Pointer[struct_c_nvmlComputeInstance_t]): ...
class struct_c_nvmlEventSet_t(ctypes.Structure): ...
class c_nvmlEventSet_t(_Pointer[struct_c_nvmlEventSet_t]): ...

# --- structures: as Python sees their fields ------------------------------------------------------

class nvmlFriendlyObject:
    pid: int
    usedGpuMemory: int | None
    gpuInstanceId: int
    computeInstanceId: int

class nvmlPciInfo_t(ctypes.Structure):
    domain: int
    bus: int
    device: int
    pciDeviceId: int
    pciSubSystemId: int
    busId: str

class c_nvmlMemory_t(ctypes.Structure):
    total: int
    free: int
    used: int

class c_nvmlValue_t(ctypes.Union):
    dVal: float
    uiVal: int
    ulVal: int
    ullVal: int
    sllVal: int
    siVal: int
    usVal: int

class c_nvmlFieldValue_t(ctypes.Structure):
    fieldId: int
    scopeId: int
    timestamp: int
    latencyUsec: int
    valueType: int
    nvmlReturn: int
    value: c_nvmlValue_t

class c_nvmlEccSramErrorStatus_v1_t(ctypes.Structure):
    version: int
    bThresholdExceeded: int

class c_nvmlGpuFabricInfo_v2_t(ctypes.Structure):
    version: int
    status: int
    cliqueId: int
    state: int
    healthMask: int

class c_nvmlGpuInstancePlacement_t(ctypes.Structure):
    start: int
    size: int

class c_nvmlGpuInstanceProfileInfo_t(ctypes.Structure):
    id: int
    isP2pSupported: int
    sliceCount: int
    instanceCount: int
    multiprocessorCount: int
    copyEngineCount: int
    decoderCount: int
    encoderCount: int
    jpegCount: int
    ofaCount: int
    memorySizeMB: int

class c_nvmlGpuInstanceProfileInfo_v2_t(c_nvmlGpuInstanceProfileInfo_t):
    version: int
    name: str

class c_nvmlGpuInstanceInfo_t(ctypes.Structure):
    device: c_nvmlDevice_t
    id: int
    profileId: int
    placement: c_nvmlGpuInstancePlacement_t

class c_nvmlComputeInstanceProfileInfo_t(ctypes.Structure):
    id: int
    sliceCount: int
    instanceCount: int
    multiprocessorCount: int
    sharedCopyEngineCount: int
    sharedDecoderCount: int
    sharedEncoderCount: int
    sharedJpegCount: int
    sharedOfaCount: int

class c_nvmlComputeInstanceProfileInfo_v2_t(c_nvmlComputeInstanceProfileInfo_t):
    version: int
    name: str

class c_nvmlComputeInstancePlacement_t(ctypes.Structure):
    start: int
    size: int

class c_nvmlComputeInstanceInfo_t(ctypes.Structure):
    device: c_nvmlDevice_t
    gpuInstance: c_nvmlGpuInstance_t
    id: int
    profileId: int
    placement: c_nvmlComputeInstancePlacement_t

class c_nvmlDeviceAttributes(ctypes.Structure):
    multiprocessorCount: int
    sharedCopyEngineCount: int
    sharedDecoderCount: int
    sharedEncoderCount: int
    sharedJpegCount: int
    sharedOfaCount: int
    gpuInstanceSliceCount: int
    computeInstanceSliceCount: int
    memorySizeMB: int

class c_nvmlEventData_t(ctypes.Structure):
    device: c_nvmlDevice_t
    eventType: int
    eventData: int
    gpuInstanceId: int
    computeInstanceId: int

# --- the library --------------------------------------------------------------------------------

def nvmlInitWithFlags(flags: int) -> None: ...
def nvmlShutdown() -> None: ...
def nvmlSystemGetDriverVersion() -> str: ...
def nvmlSystemGetCudaDriverVersion_v2() -> int: ...

# --- a GPU --------------------------------------------------------------------------------------

def nvmlDeviceGetCount() -> int: ...
def nvmlDeviceGetHandleByIndex(index: int) -> c_nvmlDevice_t: ...
def nvmlDeviceGetHandleByUUID(uuid: str) -> c_nvmlDevice_t: ...
def nvmlDeviceGetUUID(handle: c_nvmlDevice_t) -> str: ...
def nvmlDeviceGetName(handle: c_nvmlDevice_t) -> str: ...
def nvmlDeviceGetMinorNumber(handle: c_nvmlDevice_t) -> int: ...
def nvmlDeviceGetPciInfo(handle: c_nvmlDevice_t) -> nvmlPciInfo_t: ...
def nvmlDeviceGetBrand(handle: c_nvmlDevice_t) -> int: ...
def nvmlDeviceGetArchitecture(device: c_nvmlDevice_t) -> int: ...
def nvmlDeviceGetCudaComputeCapability(handle: c_nvmlDevice_t) -> tuple[int, int]: ...
def nvmlDeviceGetMemoryInfo(handle: c_nvmlDevice_t) -> c_nvmlMemory_t: ...
def nvmlDeviceGetAddressingMode(device: c_nvmlDevice_t) -> int: ...
def nvmlDeviceGetVirtualizationMode(handle: c_nvmlDevice_t) -> int: ...
def nvmlDeviceGetFieldValues(
    handle: c_nvmlDevice_t, fieldIds: Sequence[int | tuple[int, int]]
) -> ctypes.Array[c_nvmlFieldValue_t]: ...

# Correctable and uncorrectable remaps, whether one is pending, whether one failed.
def nvmlDeviceGetRemappedRows(device: c_nvmlDevice_t) -> tuple[int, int, int, int]: ...
def nvmlDeviceGetRetiredPagesPendingStatus(device: c_nvmlDevice_t) -> int: ...

# Structures are given as `byref` makes them; their constructor writes the version.
def nvmlDeviceGetSramEccErrorStatus(device: c_nvmlDevice_t, status: _CArgObject) -> int: ...
def nvmlDeviceGetGpuFabricInfoV(device: c_nvmlDevice_t, gpuFabricInfo: _CArgObject) -> int: ...
def nvmlDeviceGetComputeRunningProcesses_v3(handle: c_nvmlDevice_t) -> list[nvmlFriendlyObject]: ...

# --- events -------------------------------------------------------------------------------------

def nvmlEventSetCreate() -> c_nvmlEventSet_t: ...
def nvmlEventSetFree(eventSet: c_nvmlEventSet_t) -> None: ...
def nvmlDeviceGetSupportedEventTypes(handle: c_nvmlDevice_t) -> int: ...
def nvmlDeviceRegisterEvents(handle: c_nvmlDevice_t, eventTypes: int, eventSet: c_nvmlEventSet_t) -> None: ...
def nvmlEventSetWait_v2(eventSet: c_nvmlEventSet_t, timeoutms: int) -> c_nvmlEventData_t: ...

# --- MIG: "Ref" arguments are raw pointers, as `byref` makes them, or arrays ------------------------

def nvmlDeviceGetMigMode(device: c_nvmlDevice_t) -> list[int]: ...

# The answer is the activation status: not zero means that the mode did not change, and nothing is raised.
def nvmlDeviceSetMigMode(device: c_nvmlDevice_t, mode: int) -> int: ...
def nvmlDeviceGetGpuInstanceProfileInfo(
    device: c_nvmlDevice_t, profile: int, version: int = 2
) -> c_nvmlGpuInstanceProfileInfo_t: ...
def nvmlDeviceGetGpuInstancePossiblePlacements(
    device: c_nvmlDevice_t,
    profileId: int,
    placementsRef: ctypes.Array[c_nvmlGpuInstancePlacement_t] | None,
    countRef: _CArgObject,
) -> int: ...
def nvmlDeviceCreateGpuInstanceWithPlacement(
    device: c_nvmlDevice_t, profileId: int, placement: _CArgObject
) -> c_nvmlGpuInstance_t: ...
def nvmlGpuInstanceDestroy(gpuInstance: c_nvmlGpuInstance_t) -> int: ...
def nvmlDeviceGetGpuInstances(
    device: c_nvmlDevice_t,
    profileId: int,
    gpuInstancesRef: ctypes.Array[c_nvmlGpuInstance_t] | None,
    countRef: _CArgObject,
) -> int: ...
def nvmlDeviceGetGpuInstanceById(device: c_nvmlDevice_t, gpuInstanceId: int) -> c_nvmlGpuInstance_t: ...
def nvmlGpuInstanceGetInfo(gpuInstance: c_nvmlGpuInstance_t) -> c_nvmlGpuInstanceInfo_t: ...
def nvmlGpuInstanceGetComputeInstanceProfileInfo(
    device: c_nvmlGpuInstance_t, profile: int, engProfile: int, version: int = 2
) -> c_nvmlComputeInstanceProfileInfo_t: ...
def nvmlGpuInstanceCreateComputeInstance(
    gpuInstance: c_nvmlGpuInstance_t, profileId: int
) -> c_nvmlComputeInstance_t: ...
def nvmlComputeInstanceDestroy(computeInstance: c_nvmlComputeInstance_t) -> int: ...
def nvmlGpuInstanceGetComputeInstances(
    gpuInstance: c_nvmlGpuInstance_t,
    profileId: int,
    computeInstancesRef: ctypes.Array[c_nvmlComputeInstance_t] | None,
    countRef: _CArgObject,
) -> int: ...
def nvmlGpuInstanceGetComputeInstanceById(
    gpuInstance: c_nvmlGpuInstance_t, computeInstanceId: int
) -> c_nvmlComputeInstance_t: ...
def nvmlComputeInstanceGetInfo_v2(
    computeInstance: c_nvmlComputeInstance_t,
) -> c_nvmlComputeInstanceInfo_t: ...
def nvmlDeviceGetAttributes_v2(device: c_nvmlDevice_t) -> c_nvmlDeviceAttributes: ...
