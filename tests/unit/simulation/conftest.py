"""A simulated node met through the real pynvml wrappers, as the driver meets it."""

import ctypes
import tempfile
from collections.abc import Callable, Iterator
from ctypes import byref, c_uint
from pathlib import Path

import pynvml
import pytest

from dradriver import simulation
from dradriver.simulation import administration, description
from dradriver.simulation.state import Gpu, State
from dradriver.simulation.store import Store

# What the tests of these rules do thousands of times is slow on a disk.
FAST = Path("/dev/shm")


class Node:
    """A simulated node whose NVML is initialised."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.store = Store(folder)

    @property
    def state(self) -> State:
        return self.store.read()

    def gpu(self, index=0) -> Gpu:
        return self.state.gpus[index]

    def do(self, change: Callable[..., State], *arguments, **named) -> None:
        self.store.update(lambda state: (change(state, *arguments, **named), None))

    def load(self) -> None:
        """Load the library anew, as another process would."""
        pynvml.nvmlLib = simulation.open_library(self.folder)
        pynvml._nvmlGetFunctionPointer_cache.clear()

    def begin_anew(self) -> None:
        """Shut NVML down and initialize it anew."""
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()

    def reset(self, index=0) -> None:
        """Reset a GPU, and begin anew so that it answers."""
        self.do(administration.reset, index)
        self.begin_anew()

    # --- pynvml's raw calls ---

    def handle(self, index=0):
        return pynvml.nvmlDeviceGetHandleByIndex(index)

    def profiles(self, index=0, version=2):
        found = []
        for number in range(1000):
            try:
                found.append(pynvml.nvmlDeviceGetGpuInstanceProfileInfo(self.handle(index), number, version=version))
            except pynvml.NVMLError_NotSupported:
                continue
            except pynvml.NVMLError_InvalidArgument:
                return found
        raise AssertionError("the enumeration has no end")

    def placements(self, profile, index=0):
        count = c_uint()
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(self.handle(index), profile, None, byref(count))
        array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(self.handle(index), profile, array, byref(count))
        return tuple((one.start, one.size) for one in array)

    def create(self, profile, start=None, size=None, index=0):
        if start is None:
            return pynvml.nvmlDeviceCreateGpuInstance(self.handle(index), profile)
        sizes = dict(self.placements(profile, index))
        placement = pynvml.c_nvmlGpuInstancePlacement_t(start, size or sizes.get(start, 1))
        return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(self.handle(index), profile, byref(placement))

    def create_mig(self, profile, start, compute=None, index=0):
        """A GPU instance with one compute instance: handles of both and of the MIG device."""
        instance = self.create(profile, start, index=index)
        slices = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
        whole = next(one for one in self.profiles(index) if one.id == profile).sliceCount
        made = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, slices[whole] if compute is None else compute)
        return instance, made, pynvml.nvmlComputeInstanceGetInfo_v2(made).device

    def instances(self, profile, index=0):
        array = (pynvml.c_nvmlGpuInstance_t * 16)()
        count = c_uint()
        pynvml.nvmlDeviceGetGpuInstances(self.handle(index), profile, array, byref(count))
        return [pynvml.nvmlGpuInstanceGetInfo(array[number]) for number in range(count.value)]

    def watch(self, mask=0x8, index=0):
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(self.handle(index), mask, events)
        return events


def address(handle) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    if not FAST.is_dir():
        yield tmp_path / "node"
        return
    with tempfile.TemporaryDirectory(dir=FAST, prefix="dradriver-test-") as name:
        yield Path(name) / "node"


@pytest.fixture
def make_node(folder, monkeypatch) -> Iterator[Callable[..., Node]]:
    monkeypatch.setattr(pynvml, "nvmlLib", None)

    def make(machine="1xh100-80gb", *, mig=True, driver=None) -> Node:
        Store(folder).create(description.build(description.read_machine(machine), mig=mig, driver=driver))
        node = Node(folder)
        node.load()
        pynvml.nvmlInit()
        return node

    yield make
    pynvml._nvmlGetFunctionPointer_cache.clear()


@pytest.fixture
def node(make_node) -> Node:
    return make_node()
