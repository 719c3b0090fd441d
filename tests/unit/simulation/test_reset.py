"""What a reset of a GPU means for who has it open, and what it leaves as it was."""

import threading

import pynvml
import pytest

from dradriver.simulation import administration as admin
from dradriver.simulation.codes import Refused
from dradriver.simulation.state import Event, Process, decode, encode

XID, RECOVERY = 0x8, 0x8000
LOST = pynvml.NVMLError_GpuIsLost


@pytest.fixture
def two(make_node):
    return make_node("2xh100-80gb")


def all_handles(node, index):
    """A GPU's own handle and those of one MIG device in it, each with a call that takes it."""
    instance, compute, device = node.create_mig(19, 0, index=index)
    return [
        (pynvml.nvmlDeviceGetUUID, node.handle(index)),
        (pynvml.nvmlDeviceGetMigMode, node.handle(index)),
        (pynvml.nvmlDeviceGetUUID, device),
        (pynvml.nvmlGpuInstanceGetInfo, instance),
        (pynvml.nvmlComputeInstanceDestroy, compute),
    ]


def test_handles_of_a_gpu_that_was_reset_are_lost_until_nvml_is_initialized_anew(two):
    calls = all_handles(two, 1)
    two.do(admin.reset, 1)
    for call, handle in calls:
        with pytest.raises(LOST):
            call(handle)
    two.begin_anew()
    assert pynvml.nvmlDeviceGetUUID(two.handle(1)) == two.gpu(1).uuid
    assert pynvml.nvmlDeviceGetMigMode(two.handle(1)) == [1, 1]
    assert two.create_mig(19, 0, index=1)


def test_nor_is_there_a_new_handle_for_it(two):
    two.do(admin.reset, 1)
    gpu = two.gpu(1)
    for find, name in (
        (pynvml.nvmlDeviceGetHandleByIndex, 1),
        (pynvml.nvmlDeviceGetHandleByUUID, gpu.uuid),
        (pynvml.nvmlDeviceGetHandleByPciBusId, gpu.bus_id),
        (pynvml.nvmlDeviceGetHandleBySerial, gpu.serial),
    ):
        with pytest.raises(LOST):
            find(name)


def test_a_mig_device_made_after_the_reset_is_lost_to_who_began_before(two):
    two.do(admin.reset, 1)
    profile = admin.find_profile(two.gpu(1), "1g.10gb")
    two.store.update(lambda state: admin.create_instance(state, 1, profile=profile, start=0, bare=False))
    uuid = two.gpu(1).instances[0].compute[0].uuid
    with pytest.raises(LOST):
        pynvml.nvmlDeviceGetHandleByUUID(uuid)
    two.begin_anew()
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid


def test_the_others_go_on_and_it_is_counted_still(two):
    other = two.handle(0)
    two.do(admin.reset, 1)
    assert pynvml.nvmlDeviceGetCount() == 2
    assert pynvml.nvmlDeviceGetUUID(other) == two.gpu(0).uuid
    assert pynvml.nvmlDeviceGetUUID(two.handle(0)) == two.gpu(0).uuid


def test_an_initialization_on_top_of_another_does_not_help(two):
    two.do(admin.reset, 1)
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    with pytest.raises(LOST):
        two.handle(1)


def test_every_reset_counts(two):
    for _ in range(2):
        two.do(admin.reset, 1)
        with pytest.raises(LOST):
            two.handle(1)
        two.begin_anew()
        assert pynvml.nvmlDeviceGetIndex(two.handle(1)) == 1


def test_a_wait_tells_what_is_queued_and_then_that_the_gpu_is_lost(two):
    events, others = two.watch(XID | RECOVERY, index=1), two.watch(XID, index=0)
    two.do(admin.raise_xid, 1, number=119)
    two.do(admin.reset, 1)
    two.do(admin.raise_xid, 1, number=31)
    told = [pynvml.nvmlEventSetWait_v2(events, 1) for _ in range(3)]
    assert [(one.eventType, one.eventData) for one in told] == [(XID, 119), (RECOVERY, 1), (RECOVERY, 0)]
    for _ in range(2):
        # Nor does what happened after the reset reach who began before it.
        with pytest.raises(LOST):
            pynvml.nvmlEventSetWait_v2(events, 60_000)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(others, 1)


def test_a_wait_under_way_ends_with_the_reset(two):
    events, codes = two.watch(XID, index=1), []

    def listen():
        try:
            pynvml.nvmlEventSetWait_v2(events, 3_600_000)
        except pynvml.NVMLError as error:
            codes.append(error.value)

    thread = threading.Thread(target=listen)
    thread.start()
    two.do(admin.reset, 1)
    thread.join(60)
    assert codes == [pynvml.NVML_ERROR_GPU_IS_LOST]


def test_events_after_the_reset_reach_who_began_after_it(two):
    two.reset(1)
    events = two.watch(XID, index=1)
    two.do(admin.raise_xid, 1, number=31)
    assert pynvml.nvmlEventSetWait_v2(events, 1).eventData == 31


def test_a_gpu_in_use_or_off_the_bus_is_not_reset(make_node):
    node = make_node("2xh100-80gb", mig=False)
    process = Process(pid=1, gpu_instance=None, compute_instance=None, memory_mib=1)
    node.do(admin.add_process, 0, process)
    node.do(admin.lose, 1)
    for index, reason in ((0, "IN_USE"), (1, "GPU_IS_LOST")):
        with pytest.raises(Refused, match=reason):
            node.do(admin.reset, index)
    assert [gpu.resets for gpu in node.state.gpus] == [0, 0]
    assert pynvml.nvmlDeviceGetUUID(node.handle(0)) == node.gpu(0).uuid


def test_a_state_from_before_resets_were_counted_is_read(two):
    two.do(admin.raise_xid, 1, number=31)
    now = encode(two.state)
    older = now.replace(b',"fabric":null,"sram_exceeded":false,"retired_pending":false', b"")
    older = older.replace(b',"resets":0', b"").replace(b",0]],", b"]],")
    assert (now.count(b'"resets"'), older.count(b'"resets"'), older.count(b"fabric")) == (2, 0, 0)
    assert decode(older) == two.state
    assert decode(older).events == (Event(number=1, gpu=1, type=XID, data=31),)
