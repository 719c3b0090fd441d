"""GPUs that are taken out of a running node and put back, as NVML and the host's files show it."""

from ctypes import byref

import pynvml
import pytest

from dradriver import simulation
from dradriver.simulation import administration as admin
from dradriver.simulation.codes import Refused
from dradriver.simulation.state import Fault, Process, RemappedRows
from dradriver.simulation.store import Store

XID = 0x8


@pytest.fixture
def four(make_node):
    return make_node("4xh100-80gb")


def uuids():
    return [
        pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
        for index in range(pynvml.nvmlDeviceGetCount())
    ]


def start_anew():
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()


def all_names(root):
    return {str(path.relative_to(root)) for path in root.rglob("*")}


# --- unplug ---------------------------------------------------------------------------------------


def test_the_indices_behind_an_unplugged_gpu_move_up_and_minors_stay(four):
    before = uuids()
    four.do(admin.unplug, 1)
    assert uuids() == [before[0], before[2], before[3]]
    handles = [four.handle(index) for index in range(3)]
    assert [pynvml.nvmlDeviceGetIndex(handle) for handle in handles] == [0, 1, 2]
    assert [pynvml.nvmlDeviceGetMinorNumber(handle) for handle in handles] == [0, 2, 3]
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        four.handle(3)


@pytest.mark.parametrize(
    ("find", "name"),
    [
        (pynvml.nvmlDeviceGetHandleByUUID, "uuid"),
        (pynvml.nvmlDeviceGetHandleByPciBusId, "bus_id"),
        (pynvml.nvmlDeviceGetHandleBySerial, "serial"),
    ],
)
def test_an_unplugged_gpu_is_found_by_no_name(four, find, name):
    four.do(admin.unplug, 1)
    with pytest.raises(pynvml.NVMLError_NotFound):
        find(getattr(four.gpu(1), name))
    assert pynvml.nvmlDeviceGetIndex(find(getattr(four.gpu(2), name))) == 1


def test_handles_of_an_unplugged_gpu_are_lost_and_those_of_others_are_not(four):
    old, other = four.handle(1), four.handle(2)
    gpu_instance, compute_instance, device = four.create_mig(19, 0, index=1)
    uuid = pynvml.nvmlDeviceGetUUID(device)
    four.do(admin.unplug, 1)
    for call, handle in (
        (pynvml.nvmlDeviceGetUUID, old),
        (pynvml.nvmlDeviceGetUUID, device),
        (pynvml.nvmlGpuInstanceGetInfo, gpu_instance),
        (pynvml.nvmlComputeInstanceDestroy, compute_instance),
    ):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            call(handle)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID(uuid)
    assert pynvml.nvmlDeviceGetUUID(other) == four.gpu(2).uuid


def test_nothing_of_an_unplugged_gpu_is_left_among_the_hosts_files(four):
    root = simulation.root(four.folder)
    four.create_mig(19, 0, index=1)
    with_it = all_names(root)
    gpu = four.gpu(1)
    four.do(admin.unplug, 1)
    left = all_names(root)
    assert not {name for name in left if gpu.bus_id in name}
    gone = with_it - left
    assert {
        "dev/nvidia1",
        f"proc/driver/nvidia/gpus/{gpu.bus_id}",
        "proc/driver/nvidia/capabilities/gpu1",
        f"sys/bus/pci/devices/{gpu.bus_id}",
        f"sys/bus/pci/drivers/nvidia/{gpu.bus_id}",
    } <= gone
    assert {"dev/nvidia0", "dev/nvidia2", "proc/driver/nvidia/capabilities/gpu2"} <= left
    # Made from nothing it looks the same.
    (four.folder / "rendered").touch()
    Store(four.folder).render()
    assert all_names(root) == left


def test_files_of_the_last_gpu_go_and_come_back(make_node):
    node = make_node("1xh100-80gb")
    root = simulation.root(node.folder)
    before = all_names(root)
    node.do(admin.unplug, 0)
    assert pynvml.nvmlDeviceGetCount() == 0
    assert not list((root / "sys").rglob("*09:00.0"))
    node.do(admin.plug, 0)
    assert all_names(root) == before


def test_what_the_driver_is_bound_to_leads_to_the_device(four):
    root = simulation.root(four.folder)
    bound = root / "sys/bus/pci/drivers/nvidia"
    assert sorted(path.name for path in bound.iterdir()) == [gpu.bus_id for gpu in four.state.gpus]
    for gpu in four.state.gpus:
        assert (bound / gpu.bus_id).resolve() == (root / "sys/bus/pci/devices" / gpu.bus_id).resolve()
        assert (bound / gpu.bus_id / "vendor").read_text() == "0x10de\n"


def test_a_wait_for_events_of_an_unplugged_gpu_says_that_it_is_lost(four):
    watched, others = four.watch(XID, index=1), four.watch(XID, index=2)
    four.do(admin.raise_xid, 1, number=31)
    four.do(admin.unplug, 1)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlEventSetWait_v2(watched, 1)
    four.do(admin.raise_xid, 2, number=43)
    event = pynvml.nvmlEventSetWait_v2(others, 1)
    assert (pynvml.nvmlDeviceGetUUID(event.device), event.eventData) == (four.gpu(2).uuid, 43)


def test_a_fault_of_one_gpu_follows_it_to_another_index(four):
    four.do(admin.add_fault, Fault(call="nvmlDeviceGetHandleByIndex_v2", code=999, gpu=2))
    four.do(admin.unplug, 0)
    assert pynvml.nvmlDeviceGetUUID(four.handle(0)) == four.gpu(1).uuid
    with pytest.raises(pynvml.NVMLError_Unknown):
        four.handle(1)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        four.handle(7)


# --- plug -----------------------------------------------------------------------------------------


def test_an_open_session_does_not_know_a_gpu_that_was_plugged_in(four):
    before, old = uuids(), four.handle(1)
    four.do(admin.unplug, 1)
    four.do(admin.plug, 1)
    for _ in range(2):
        assert uuids() == [before[0], before[2], before[3]]
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetUUID(old)
        # A second initialisation on top of the first is only counted.
        pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    start_anew()
    assert pynvml.nvmlDeviceGetCount() == 3
    pynvml.nvmlShutdown()
    start_anew()
    assert uuids() == before


def test_a_session_that_begins_without_a_gpu_never_meets_it(four):
    before = uuids()
    four.do(admin.unplug, 3)
    start_anew()
    four.do(admin.plug, 3)
    assert uuids() == before[:3]
    start_anew()
    assert uuids() == before


def test_events_of_a_plugged_in_gpu_do_not_reach_old_sessions(four):
    old = four.watch(XID, index=1)
    four.do(admin.unplug, 1)
    four.do(admin.plug, 1)
    four.do(admin.raise_xid, 1, number=31)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlEventSetWait_v2(old, 1)


def test_a_gpu_comes_back_with_its_names_and_nothing_else(four):
    four.create_mig(19, 0, index=1)
    process = Process(pid=7, gpu_instance=7, compute_instance=0, memory_mib=1)
    four.do(admin.add_process, 1, process)
    four.do(admin.remap, 1, RemappedRows(uncorrectable=2, pending=True))
    four.do(admin.lose, 1)
    before = four.gpu(1)
    four.do(admin.unplug, 1)
    assert (four.gpu(1).instances, four.gpu(1).processes) == ((), ())
    four.do(admin.plug, 1)
    after = four.gpu(1)
    names = ("uuid", "serial", "bus_id", "minor", "pcie_root", "numa_node", "model")
    assert [getattr(after, name) for name in names] == [getattr(before, name) for name in names]
    assert (after.instances, after.processes, after.lost, after.recovery) == ((), (), False, 0)
    assert (after.mig, after.mig_pending, after.rows) == (False, False, RemappedRows(uncorrectable=2))


def test_the_board_of_an_older_gpu_remembers_mig_mode_and_another_board_does_not(make_node):
    node = make_node("2xa100-80gb")
    for slot, other, mig in ((0, False, True), (1, True, False)):
        node.do(admin.unplug, slot)
        node.do(admin.plug, slot, other=other)
        assert (node.gpu(slot).mig, node.gpu(slot).mig_pending) == (mig, mig)


def test_another_gpu_in_the_same_slot(four):
    before, old = four.gpu(1), four.handle(1)
    four.do(admin.remap, 1, RemappedRows(correctable=1))
    four.do(admin.unplug, 1)
    four.do(admin.plug, 1, other=True)
    after = four.gpu(1)
    assert (after.bus_id, after.minor, after.model) == (before.bus_id, before.minor, before.model)
    assert after.uuid != before.uuid
    assert after.serial != before.serial
    assert after.rows == RemappedRows()
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetUUID(old)
    start_anew()
    assert uuids() == [gpu.uuid for gpu in four.state.gpus]
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID(before.uuid)
    information = simulation.root(four.folder) / "proc/driver/nvidia/gpus" / after.bus_id / "information"
    assert after.uuid in information.read_text()


def test_a_plugged_in_gpu_can_be_used(four):
    four.do(admin.unplug, 1)
    four.do(admin.plug, 1)
    start_anew()
    pynvml.nvmlDeviceSetMigMode(four.handle(1), 1)
    made = pynvml.c_nvmlGpuInstancePlacement_t(0, 1)
    pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(four.handle(1), 19, byref(made))
    assert [one.start for one in four.gpu(1).instances] == [0]
    assert not four.gpu(2).instances


@pytest.mark.parametrize("happens", [admin.driver_reload, admin.reboot])
def test_a_gpu_stays_out_of_its_slot_until_it_is_plugged_in(four, happens):
    four.do(admin.unplug, 2)
    four.do(happens)
    start_anew()
    assert four.gpu(2).uuid not in uuids()
    assert pynvml.nvmlDeviceGetCount() == 3


def test_a_slot_is_full_or_empty(four):
    with pytest.raises(Refused, match=r"GPU 1 is plugged in: unplug it first \(IN_USE\)"):
        four.do(admin.plug, 1)
    four.do(admin.unplug, 1)
    with pytest.raises(Refused, match=r"GPU 1 is unplugged already \(NOT_FOUND\)"):
        four.do(admin.unplug, 1)
