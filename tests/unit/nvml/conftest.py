"""A scripted NVML library, for what the simulated node does not show: old drivers, odd answers, races."""

import ctypes
import threading
from collections import Counter
from dataclasses import dataclass, field

import pynvml
import pytest

from dradriver.nvml.access import Nvml

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE, NO_SUCH_GPU = 0, 2, 3, 6, 7, 28
MIB = 1 << 20

# enum index → fields of the profile, as an H100 with 80 GB has them.
PROFILES = {
    0: {"id": 19, "sliceCount": 1, "instanceCount": 7, "memorySizeMB": 9984, "name": b"MIG 1g.10gb"},
    2: {"id": 9, "sliceCount": 3, "instanceCount": 2, "memorySizeMB": 40448, "name": b"MIG 3g.40gb"},
    7: {"id": 20, "sliceCount": 1, "instanceCount": 1, "memorySizeMB": 9984, "name": b"MIG 1g.10gb+me"},
    9: {"id": 15, "sliceCount": 1, "instanceCount": 4, "memorySizeMB": 20096, "name": b"MIG 1g.20gb"},
}
PLACEMENTS = {19: [(start, 1) for start in range(7)], 9: [(4, 4), (0, 4)], 20: [(0, 1)], 15: [(0, 2)]}
# enum index of compute instance profiles → (id, slices).
COMPUTE_PROFILES = {19: {7: (7, 1), 0: (0, 1)}, 9: {0: (0, 1), 1: (1, 2), 2: (2, 3)}, 20: {7: (7, 1)}}


@dataclass
class Instance:
    id: int
    profile_id: int
    placement: tuple[int, int]
    compute: dict[int, int] = field(default_factory=dict)  # id → compute profile id


@dataclass
class FakeGpu:
    """A GPU; `fields` answers nvmlDeviceGetFieldValues by id, `(code,)` where one is refused."""

    index: int
    mode: list[int] = field(default_factory=lambda: [1, 1])
    architecture: int = 9
    instances: dict[int, Instance] = field(default_factory=dict)
    fields: dict[int, int | tuple[int]] = field(default_factory=dict)
    remapped: tuple[int, int, int, int] | None = None
    retired: int | None = None
    sram: int | None = None
    fabric: tuple[int, int, int] | None = None  # state, status, health mask

    @property
    def uuid(self):
        return f"GPU-{self.index}"


def value(argument):
    """The handle's number, however it was passed."""
    return ctypes.cast(argument, ctypes.c_void_p).value


def put_handle(reference, number):
    ctypes.cast(reference, ctypes.POINTER(ctypes.c_void_p))[0] = number
    return SUCCESS


def put(reference, content):
    reference._obj.value = content
    return SUCCESS


def put_text(buffer, text):
    buffer.value = text.encode()
    return SUCCESS


def put_fields(reference, **fields):
    for name, content in fields.items():
        setattr(reference._obj, name, content)
    return SUCCESS


class FakeLibrary:
    """What stands in for the C library: an attribute for each function.

    failures: C function → codes that the next calls answer, or one code for all of them.
    missing: C functions that this driver does not have.
    hooks: C function → callable run just before the function.
    """

    def __init__(self):
        self.gpus = [FakeGpu(0), FakeGpu(1)]
        self.failures = {}
        self.missing = set()
        self.hooks = {}
        self.calls = Counter()
        self.activation_status = 0
        self.initialized = 0
        self.processes = []

    def __getattr__(self, name):
        implementation = FUNCTIONS.get(name)
        if implementation is None or name in self.missing:
            raise AttributeError(name)

        def function(*arguments):
            self.calls[name] += 1
            self.hooks.get(name, lambda: None)()
            return self._failure(name) or implementation(self, *arguments)

        return function

    def _failure(self, name):
        codes = self.failures.get(name, 0)
        if isinstance(codes, list):
            return codes.pop(0) if codes else 0
        return codes

    def gpu(self, handle):
        return self.gpus[value(handle) - 100]

    def gpu_instance(self, handle):
        number = value(handle)
        return self.gpus[number // 1000 - 1].instances.get(number % 1000)


def init(fake, _flags):
    fake.initialized += 1
    return SUCCESS


def shutdown(fake):
    fake.initialized -= 1
    return SUCCESS


def by_index(fake, index, reference):
    if index.value >= len(fake.gpus):
        return INVALID_ARGUMENT
    return put_handle(reference, 100 + index.value)


def by_uuid(fake, uuid, reference):
    for gpu in fake.gpus:
        if gpu.uuid.encode() == uuid.value:
            return put_handle(reference, 100 + gpu.index)
    return NOT_FOUND


def uuid_of(fake, handle, buffer, _size):
    number = value(handle)
    if number >= 1_000_000:
        return put_text(buffer, f"MIG-{number}")
    return put_text(buffer, fake.gpu(handle).uuid)


def pci_info(fake, handle, reference):
    bus = 0x41 - fake.gpu(handle).index
    return put_fields(reference, busId=f"00000000:{bus:02X}:00.0".encode(), pciDeviceId=0x233010DE)


def capability(_fake, _handle, major, minor):
    return put(major, 9) or put(minor, 0)


def memory_info(_fake, _handle, reference):
    return put_fields(reference, total=81559 * MIB)


def field_values(fake, handle, count, reference):
    for field_value in reference._obj[: count.value]:
        content = fake.gpu(handle).fields.get(field_value.fieldId, (NOT_SUPPORTED,))
        if isinstance(content, tuple):
            (field_value.nvmlReturn,) = content
        else:
            field_value.value.uiVal = content
    return SUCCESS


def remapped_rows(fake, handle, *references):
    rows = fake.gpu(handle).remapped
    return NOT_SUPPORTED if rows is None else max(map(put, references, rows))


def retired_pending(fake, handle, reference):
    pending = fake.gpu(handle).retired
    return NOT_SUPPORTED if pending is None else put(reference, pending)


def sram_status(fake, handle, reference):
    if reference._obj.version != 0x01000068:
        return 25
    exceeded = fake.gpu(handle).sram
    return NOT_SUPPORTED if exceeded is None else put_fields(reference, bThresholdExceeded=exceeded)


def fabric_info(fake, handle, reference):
    if reference._obj.version != 0x02000024:
        return 25
    info = fake.gpu(handle).fabric
    if info is None:
        return NOT_SUPPORTED
    return put_fields(reference, **dict(zip(("state", "status", "healthMask"), info, strict=True)))


def get_mode(fake, handle, current, pending):
    mode = fake.gpu(handle).mode
    return put(current, mode[0]) or put(pending, mode[1])


def set_mode(fake, handle, mode, status):
    gpu = fake.gpu(handle)
    gpu.mode[1] = mode
    if gpu.architecture >= 9 and not fake.activation_status:
        gpu.mode[0] = mode
    return put(status, fake.activation_status)


def profile_info(_fake, _handle, index, reference):
    if index > 9:
        return INVALID_ARGUMENT
    if index not in PROFILES:
        return NOT_SUPPORTED
    known = {name for name, *_ in reference._obj._fields_}
    return put_fields(reference, **{name: content for name, content in PROFILES[index].items() if name in known})


def possible_placements(_fake, _handle, profile_id, array, count):
    places = PLACEMENTS[profile_id]
    for index, place in enumerate(places if array is not None else ()):
        array[index].start, array[index].size = place
    return put(count, len(places))


def list_gpu_instances(fake, handle, profile_id, array, count):
    gpu = fake.gpu(handle)
    ids = [one.id for one in gpu.instances.values() if one.profile_id == profile_id]
    for index, number in enumerate(ids):
        put_handle(ctypes.byref(array, index * ctypes.sizeof(ctypes.c_void_p)), 1000 * (gpu.index + 1) + number)
    return put(count, len(ids))


def create_gpu_instance(fake, handle, profile_id, placement, reference):
    gpu = fake.gpu(handle)
    number = max(gpu.instances, default=6) + 1
    place = placement._obj.start, placement._obj.size
    gpu.instances[number] = Instance(number, profile_id, place)
    return put_handle(reference, 1000 * (gpu.index + 1) + number)


def gpu_instance_by_id(fake, handle, number, reference):
    gpu = fake.gpu(handle)
    return put_handle(reference, 1000 * (gpu.index + 1) + number) if number in gpu.instances else NOT_FOUND


def gpu_instance_info(fake, handle, reference):
    instance = fake.gpu_instance(handle)
    if instance is None:
        return INVALID_ARGUMENT
    reference._obj.placement.start, reference._obj.placement.size = instance.placement
    return put_fields(reference, id=instance.id, profileId=instance.profile_id)


def destroy_gpu_instance(fake, handle):
    number = value(handle)
    del fake.gpus[number // 1000 - 1].instances[number % 1000]
    return SUCCESS


def compute_profile_info(fake, handle, index, _engine, reference):
    offered = COMPUTE_PROFILES[fake.gpu_instance(handle).profile_id]
    if index > 8:
        return INVALID_ARGUMENT
    if index not in offered:
        return NOT_SUPPORTED
    number, slices = offered[index]
    return put_fields(reference, id=number, sliceCount=slices, instanceCount=3)


def compute_handle(handle, number):
    return 1_000_000 + value(handle) * 100 + number


def list_compute_instances(fake, handle, profile_id, array, count):
    ids = [number for number, profile in fake.gpu_instance(handle).compute.items() if profile == profile_id]
    for index, number in enumerate(ids):
        place = ctypes.byref(array, index * ctypes.sizeof(ctypes.c_void_p))
        put_handle(place, compute_handle(handle, number))
    return put(count, len(ids))


def create_compute_instance(fake, handle, profile_id, reference):
    compute = fake.gpu_instance(handle).compute
    number = len(compute)
    compute[number] = profile_id
    return put_handle(reference, compute_handle(handle, number))


def compute_instance_by_id(fake, handle, number, reference):
    known = number in fake.gpu_instance(handle).compute
    return put_handle(reference, compute_handle(handle, number)) if known else NOT_FOUND


def compute_instance_info(_fake, handle, reference):
    number = value(handle)
    place = ctypes.byref(reference._obj, type(reference._obj).device.offset)
    return put_fields(reference, id=number % 100) or put_handle(place, number)


def destroy_compute_instance(fake, handle):
    number = value(handle) - 1_000_000
    del fake.gpu_instance(ctypes.c_void_p(number // 100)).compute[number % 100]
    return SUCCESS


def attributes(_fake, _handle, reference):
    return put_fields(reference, memorySizeMB=9000)


def running_processes(fake, _handle, count, array):
    room, count._obj.value = count._obj.value, len(fake.processes)
    if room < len(fake.processes):
        return INSUFFICIENT_SIZE
    for index, (pid, gpu_instance, compute_instance) in enumerate(fake.processes):
        array[index].pid = pid
        array[index].gpuInstanceId, array[index].computeInstanceId = gpu_instance, compute_instance
    return SUCCESS


FUNCTIONS = {
    "nvmlInitWithFlags": init,
    "nvmlShutdown": shutdown,
    "nvmlSystemGetDriverVersion": lambda _, buffer, __: put_text(buffer, "580.105.08"),
    "nvmlSystemGetCudaDriverVersion_v2": lambda _, reference: put(reference, 13010),
    "nvmlDeviceGetCount_v2": lambda fake, reference: put(reference, len(fake.gpus)),
    "nvmlDeviceGetHandleByIndex_v2": by_index,
    "nvmlDeviceGetHandleByUUID": by_uuid,
    "nvmlDeviceGetUUID": uuid_of,
    "nvmlDeviceGetName": lambda _, __, buffer, ___: put_text(buffer, "NVIDIA H100 80GB HBM3"),
    "nvmlDeviceGetMinorNumber": lambda fake, handle, reference: put(reference, fake.gpu(handle).index),
    "nvmlDeviceGetPciInfo_v3": pci_info,
    "nvmlDeviceGetBrand": lambda _, __, reference: put(reference, 14),
    "nvmlDeviceGetArchitecture": lambda fake, handle, reference: put(reference, fake.gpu(handle).architecture),
    "nvmlDeviceGetCudaComputeCapability": capability,
    "nvmlDeviceGetMemoryInfo": memory_info,
    "nvmlDeviceGetAddressingMode": lambda _, __, reference: put_fields(reference, value=1),
    "nvmlDeviceGetVirtualizationMode": lambda _, __, reference: put(reference, 0),
    "nvmlDeviceGetFieldValues": field_values,
    "nvmlDeviceGetRemappedRows": remapped_rows,
    "nvmlDeviceGetRetiredPagesPendingStatus": retired_pending,
    "nvmlDeviceGetSramEccErrorStatus": sram_status,
    "nvmlDeviceGetGpuFabricInfoV": fabric_info,
    "nvmlDeviceGetMigMode": get_mode,
    "nvmlDeviceSetMigMode": set_mode,
    "nvmlDeviceGetGpuInstanceProfileInfoV": profile_info,
    "nvmlDeviceGetGpuInstanceProfileInfo": profile_info,
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2": possible_placements,
    "nvmlDeviceGetGpuInstances": list_gpu_instances,
    "nvmlDeviceCreateGpuInstanceWithPlacement": create_gpu_instance,
    "nvmlDeviceGetGpuInstanceById": gpu_instance_by_id,
    "nvmlGpuInstanceGetInfo": gpu_instance_info,
    "nvmlGpuInstanceDestroy": destroy_gpu_instance,
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV": compute_profile_info,
    "nvmlGpuInstanceGetComputeInstanceProfileInfo": compute_profile_info,
    "nvmlGpuInstanceGetComputeInstances": list_compute_instances,
    "nvmlGpuInstanceCreateComputeInstance": create_compute_instance,
    "nvmlGpuInstanceGetComputeInstanceById": compute_instance_by_id,
    "nvmlComputeInstanceGetInfo_v2": compute_instance_info,
    "nvmlComputeInstanceDestroy": destroy_compute_instance,
    "nvmlDeviceGetAttributes_v2": attributes,
    "nvmlDeviceGetComputeRunningProcesses_v3": running_processes,
}


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture(autouse=True)
def _own_library():
    """Leave pynvml as it was found: it keeps one library for the process."""
    before = pynvml.nvmlLib
    yield
    pynvml.nvmlLib = before
    pynvml._nvmlGetFunctionPointer_cache.clear()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def fake():
    library = FakeLibrary()
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    return library


@pytest.fixture
def opened(fake, clock, tmp_path):
    """Open a session on the fake when called, after a test has made its driver as it wants it."""
    sessions = []

    def start():
        sessions.append(Nvml(sys_root=tmp_path, clock=clock))
        return sessions[-1]

    yield start
    for session in sessions:
        session.close()


@pytest.fixture
def hang(monkeypatch):
    """Let a C function hang for the GPU at an index (None: whatever it is about), until `hang.leave()` or the end."""
    leave = threading.Event()

    def start(name, index=None):
        find, began = pynvml._nvmlGetFunctionPointer, threading.Event()

        def pointer(wanted):
            real = find(wanted)

            def hanging(*arguments):
                if index is None or _index(arguments[0]) == index:
                    began.set()
                    assert leave.wait(60)
                return real(*arguments)

            return hanging if wanted == name else real

        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", pointer)
        return began

    start.leave = leave.set
    yield start
    leave.set()


def _index(argument):
    """The index that a call is about: given as such, or in the handle of the double or of a simulated node."""
    if isinstance(argument, ctypes.c_uint):
        return argument.value
    number = value(argument)
    return number >> 28 & 0xFF if number > 1 << 40 else number - 100


@pytest.fixture
def nvml(opened):
    return opened()
