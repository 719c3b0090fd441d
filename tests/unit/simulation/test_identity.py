"""What NVML tells of a node and its GPUs."""

import subprocess
import sys
from ctypes import byref, create_string_buffer
from pathlib import Path

import pynvml
import pytest

from dradriver import simulation
from dradriver.simulation import administration
from dradriver.simulation.errors import StateMissing
from dradriver.simulation.identity import cuda_version
from dradriver.simulation.models import MODELS
from dradriver.simulation.nvml_api import FUNCTIONS
from dradriver.simulation.state import Process

GIB = 1 << 30


def test_nothing_works_before_initialisation(node):
    pynvml.nvmlShutdown()
    for call in (pynvml.nvmlDeviceGetCount, pynvml.nvmlSystemGetDriverVersion, pynvml.nvmlShutdown):
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            call()


def test_initialisation_is_counted(node):
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 1
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def test_versions(make_node):
    make_node(driver="590.44.01")
    assert pynvml.nvmlSystemGetDriverVersion() == "590.44.01"
    assert pynvml.nvmlSystemGetNVMLVersion() == "13.590.44.01"
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == pynvml.nvmlSystemGetCudaDriverVersion() == 13010


@pytest.mark.parametrize(
    ("driver", "cuda"), [("580.105.08", 13000), ("579.1", 12090), ("999.1", 13040), ("100.1", 11000)]
)
def test_cuda_version_of_a_driver(driver, cuda):
    assert cuda_version(driver) == cuda


def test_handles_by_every_name(make_node):
    node = make_node("3xh100-80gb")
    gpu = node.gpu(2)
    for handle in (
        pynvml.nvmlDeviceGetHandleByIndex(2),
        pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid),
        pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid.encode()),
        pynvml.nvmlDeviceGetHandleBySerial(gpu.serial),
        pynvml.nvmlDeviceGetHandleByPciBusId(gpu.bus_id),
        pynvml.nvmlDeviceGetHandleByPciBusId(gpu.bus_id[5:]),
        pynvml.nvmlDeviceGetHandleByPciBusId(f"0000{gpu.bus_id}".upper()),
    ):
        assert pynvml.nvmlDeviceGetUUID(handle) == gpu.uuid
        assert pynvml.nvmlDeviceGetIndex(handle) == pynvml.nvmlDeviceGetMinorNumber(handle) == 2
        assert pynvml.nvmlDeviceGetSerial(handle) == gpu.serial


def test_names_of_nobody(node):
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        node.handle(1)
    for call, name in (
        (pynvml.nvmlDeviceGetHandleByUUID, "GPU-0"),
        (pynvml.nvmlDeviceGetHandleBySerial, "0"),
        (pynvml.nvmlDeviceGetHandleByPciBusId, "0000:ff:00.0"),
    ):
        with pytest.raises(pynvml.NVMLError_NotFound):
            call(name)


@pytest.mark.parametrize("model", MODELS)
def test_identity_of_every_kind(make_node, model):
    node = make_node(f"1x{model}")
    gpu, row = node.handle(), MODELS[model]
    info = pynvml.nvmlDeviceGetPciInfo(gpu)
    assert pynvml.nvmlDeviceGetName(gpu) == row.product
    assert pynvml.nvmlDeviceGetBrand(gpu) == row.brand
    assert pynvml.nvmlDeviceGetArchitecture(gpu) == row.architecture
    assert pynvml.nvmlDeviceGetCudaComputeCapability(gpu) == row.compute_capability
    assert pynvml.nvmlDeviceGetAddressingMode(gpu) == row.addressing
    assert pynvml.nvmlDeviceGetVirtualizationMode(gpu) == 0
    assert pynvml.nvmlDeviceGetMultiGpuBoard(gpu) == 0
    assert info.pciDeviceId == row.device_id
    assert info.pciDeviceId & 0xFFFF == 0x10DE
    assert (info.busId, info.busIdLegacy) == ("00000000:09:00.0", "0000:09:00.0")
    assert (info.domain, info.bus, info.device) == (0, 9, 0)
    assert pynvml.nvmlDeviceGetBoardId(gpu) == 0x900
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetNumaNodeId(gpu)


def test_pci_class(node):
    info = pynvml.nvmlPciInfoExt_v1_t()
    with pytest.raises(pynvml.NVMLError) as wrong:
        pynvml.nvmlDeviceGetPciInfoExt(node.handle(), byref(info))
    assert wrong.value.value == 25
    info.version = pynvml.nvmlPciInfoExt_v1
    pynvml.nvmlDeviceGetPciInfoExt(node.handle(), byref(info))
    assert (info.baseClass, info.subClass, info.bus) == (3, 2, 9)


# --- memory ---------------------------------------------------------------------------------------


def test_memory_adds_up(node):
    node.reset()
    one = pynvml.nvmlDeviceGetMemoryInfo(node.handle())
    two = pynvml.nvmlDeviceGetMemoryInfo(node.handle(), version=pynvml.nvmlMemory_v2)
    assert one.total == two.total == 81559 << 20
    assert one.total == one.used + one.free
    assert two.total == two.used + two.free + two.reserved
    assert two.used == 0


def test_memory_of_processes_counts(make_node):
    node = make_node(mig=False)
    process = Process(pid=1, gpu_instance=None, compute_instance=None, memory_mib=2048)
    node.do(administration.add_process, 0, process)
    assert pynvml.nvmlDeviceGetMemoryInfo(node.handle(), version=pynvml.nvmlMemory_v2).used == 2 * GIB


def test_more_memory_used_than_there_is_is_all_of_it(make_node):
    node = make_node(mig=False)
    process = Process(pid=1, gpu_instance=None, compute_instance=None, memory_mib=1 << 20)
    node.do(administration.add_process, 0, process)
    assert pynvml.nvmlDeviceGetMemoryInfo(node.handle()).free == 0


def test_a_gpu_without_memory_of_its_own(make_node):
    gpu = make_node("1xgb10").handle()
    for call in (
        lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu),
        lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2),
        lambda: pynvml.nvmlDeviceGetBAR1MemoryInfo(gpu),
        lambda: pynvml.nvmlDeviceGetSerial(gpu),
        lambda: pynvml.nvmlDeviceGetRemappedRows(gpu),
        lambda: pynvml.nvmlDeviceGetEccMode(gpu),
    ):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call()


def test_bar1_is_a_power_of_two_that_holds_the_memory(node):
    assert pynvml.nvmlDeviceGetBAR1MemoryInfo(node.handle()).bar1Total == 128 * GIB


def test_memory_version_word(node):
    info = pynvml.c_nvmlMemory_v2_t()
    assert pynvml.nvmlLib.nvmlDeviceGetMemoryInfo_v2(node.handle(), byref(info)) == 25


# --- settings and fabric --------------------------------------------------------------------------


def test_settings_are_kept(node):
    gpu = node.handle()
    assert (pynvml.nvmlDeviceGetComputeMode(gpu), pynvml.nvmlDeviceGetPersistenceMode(gpu)) == (0, 1)
    pynvml.nvmlDeviceSetComputeMode(gpu, 3)
    pynvml.nvmlDeviceSetPersistenceMode(gpu, 0)
    assert (pynvml.nvmlDeviceGetComputeMode(gpu), pynvml.nvmlDeviceGetPersistenceMode(gpu)) == (3, 0)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetComputeMode(gpu, 4)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetPersistenceMode(gpu, 2)


@pytest.mark.parametrize(("model", "state", "cluster"), [("h100-80gb", 3, False), ("gb200", 3, True), ("l4", 0, False)])
def test_fabric(make_node, model, state, cluster):
    node = make_node(f"2x{model}")
    two, three, old = (
        pynvml.c_nvmlGpuFabricInfo_v2_t(),
        pynvml.c_nvmlGpuFabricInfo_v3_t(),
        pynvml.c_nvmlGpuFabricInfo_t(),
    )
    pynvml.nvmlDeviceGetGpuFabricInfoV(node.handle(), byref(two))
    pynvml.nvmlDeviceGetGpuFabricInfoV(node.handle(1), byref(three))
    pynvml.nvmlDeviceGetGpuFabricInfo(node.handle(), byref(old))
    assert two.state == three.state == old.state == state
    assert bytes(two.clusterUuid) == bytes(three.clusterUuid) == bytes(old.clusterUuid)
    assert any(two.clusterUuid) is cluster
    assert three.healthSummary == (1 if state else 0)
    two.version = 7
    assert pynvml.nvmlLib.nvmlDeviceGetGpuFabricInfoV(node.handle(), byref(two)) == 25


@pytest.mark.parametrize(
    ("name", "state", "routes", "summary"),
    [
        ("none", 0, pynvml.NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_NOT_SUPPORTED, 0),
        ("joining", pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS, 0, 0),
        (
            "healthy",
            pynvml.NVML_GPU_FABRIC_STATE_COMPLETED,
            pynvml.NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_FALSE,
            1,
        ),
        (
            "unhealthy",
            pynvml.NVML_GPU_FABRIC_STATE_COMPLETED,
            pynvml.NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE,
            2,
        ),
    ],
)
@pytest.mark.parametrize("model", ["gb200", "l4"])
def test_fabrics_in_every_state(make_node, model, name, state, routes, summary):
    node = make_node(f"2x{model}")
    untouched = fabric_of(node, 1)
    node.do(administration.set_fabric, 0, name)
    found = fabric_of(node, 0)
    assert (found.state, found.healthSummary) == (state, summary)
    shift = pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY
    assert found.healthMask >> shift & pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY == routes
    assert any(found.clusterUuid) is (model == "gb200" and state == 3)
    assert bytes(fabric_of(node, 1)) == bytes(untouched)


def fabric_of(node, index):
    info = pynvml.c_nvmlGpuFabricInfo_v3_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(node.handle(index), byref(info))
    return info


def test_a_healthy_fabric_is_well_in_every_respect(node):
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(node.handle(), byref(info))
    told = {
        name: info.healthMask >> getattr(pynvml, f"NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_{name}") & width
        for name, width in (
            ("DEGRADED_BW", 3),
            ("ROUTE_RECOVERY", 3),
            ("ROUTE_UNHEALTHY", 3),
            ("ACCESS_TIMEOUT_RECOVERY", 3),
            ("INCORRECT_CONFIGURATION", 15),
        )
    }
    assert told == {
        "DEGRADED_BW": pynvml.NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE,
        "ROUTE_RECOVERY": pynvml.NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_RECOVERY_FALSE,
        "ROUTE_UNHEALTHY": pynvml.NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_FALSE,
        "ACCESS_TIMEOUT_RECOVERY": pynvml.NVML_GPU_FABRIC_HEALTH_MASK_ACCESS_TIMEOUT_RECOVERY_FALSE,
        "INCORRECT_CONFIGURATION": pynvml.NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE,
    }


# --- the library itself ---------------------------------------------------------------------------


def test_a_short_buffer_is_refused(node):
    buffer = create_string_buffer(5)
    assert pynvml.nvmlLib.nvmlDeviceGetUUID(node.handle(), buffer, 5) == 7
    assert pynvml.nvmlLib.nvmlDeviceGetUUID(node.handle(), None, 5) == 2


def test_null_pointers_are_refused(node):
    for name in ("nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMigMode"):
        arguments = (None, None) if name.endswith("MigMode") else (None,)
        assert getattr(pynvml.nvmlLib, name)(node.handle(), *arguments) == 2


def test_what_the_library_lacks_is_not_found(node):
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetFanSpeed(node.handle())
    del pynvml.nvmlLib.nvmlDeviceGetName
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetName(node.handle())


def test_errors_have_texts(node):
    assert pynvml.nvmlErrorString(19) == "In use"
    assert pynvml.nvmlErrorString(12345) == "Unknown error code"


def test_every_function_is_one_that_pynvml_asks_for(node):
    """So that no name is misspelt: each stands in the wrapper's source."""
    source = Path(pynvml.__file__).read_text()
    assert [name for name in FUNCTIONS if f'"{name}"' not in source] == []


def test_a_folder_without_a_node(tmp_path):
    with pytest.raises(StateMissing, match="create 1xh100-80gb"):
        simulation.open_library(tmp_path)
    with pytest.raises(StateMissing, match="no simulated node"):
        simulation.root(tmp_path / "nowhere")


def test_only_the_caller_needs_pynvml():
    """The command line does without it, and the plugin without the simulation."""
    program = "import sys, dradriver.simulation.__main__; print('pynvml' in sys.modules, 'yaml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
