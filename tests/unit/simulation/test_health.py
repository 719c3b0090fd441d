"""Processes, field values, memory repair, error counters, events."""

import threading
from ctypes import byref, c_ulonglong

import pynvml
import pytest

from dradriver.simulation import administration, hardware
from dradriver.simulation.codes import Refused, Return
from dradriver.simulation.session import EventSet, Session
from dradriver.simulation.state import Event, Process, RemappedRows

NOBODY = 0xFFFFFFFF
MIG_CHANGED, XID, RECOVERY = 0x100, 0x8, 0x8000


def add_process(node, pid, gi=None, ci=None, index=0):
    process = Process(pid=pid, gpu_instance=gi, compute_instance=ci, memory_mib=64)
    node.do(administration.add_process, index, process)


def fields(node, *ids, index=0):
    return [
        value.value.uiVal if value.nvmlReturn == 0 else f"error {value.nvmlReturn}"
        for value in pynvml.nvmlDeviceGetFieldValues(node.handle(index), list(ids))
    ]


# --- processes ------------------------------------------------------------------------------------


def test_processes_of_a_gpu(make_node):
    node = make_node("2xh100-80gb", mig=False)
    add_process(node, 11)
    add_process(node, 12)
    found = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(node.handle())
    assert [(one.pid, one.usedGpuMemory, one.gpuInstanceId, one.computeInstanceId) for one in found] == [
        (11, 64 << 20, NOBODY, NOBODY),
        (12, 64 << 20, NOBODY, NOBODY),
    ]
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(node.handle(1)) == []
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(node.handle()) == []
    assert pynvml.nvmlDeviceGetMPSComputeRunningProcesses(node.handle()) == []


def test_processes_of_mig_devices(node):
    devices = [node.create_mig(19, start)[2] for start in (0, 1)]
    add_process(node, 21, 7, 0)
    add_process(node, 22, 8, 0)
    whole = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(node.handle())
    assert [(one.pid, one.gpuInstanceId, one.computeInstanceId) for one in whole] == [(21, 7, 0), (22, 8, 0)]
    assert [one.pid for one in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(devices[1])] == [22]
    assert pynvml.nvmlDeviceGetMemoryInfo(devices[0]).used == 64 << 20


def test_a_process_needs_an_instance_where_mig_is_on(node):
    with pytest.raises(Refused, match="name the instance"):
        add_process(node, 1)
    with pytest.raises(Refused, match="no such GPU instance"):
        add_process(node, 1, 7, 0)
    node.create(19, 0)
    with pytest.raises(Refused, match="no such compute instance"):
        add_process(node, 1, 7, 0)


def test_a_process_that_is_there_is_replaced_and_one_that_is_not_cannot_leave(make_node):
    node = make_node(mig=False)
    add_process(node, 1)
    add_process(node, 1)
    assert len(node.gpu().processes) == 1
    with pytest.raises(Refused, match="no process 2"):
        node.do(administration.remove_process, 0, pid=2)


# --- field values and memory repair ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "resetless"),
    [("h100-80gb", 1), ("b200", 1), ("a100-40gb", 0), ("l4", "error 3"), ("gb10", "error 3")],
)
def test_fields_about_mig(make_node, model, resetless):
    assert fields(make_node(f"1x{model}"), 184, 199) == [resetless, resetless]


def test_fields_about_rows(node):
    node.do(administration.remap, 0, RemappedRows(correctable=1, uncorrectable=2, pending=True, failure=False))
    assert fields(node, 142, 143, 144, 145, 230) == [1, 2, 1, 0, 0]
    assert pynvml.nvmlDeviceGetRemappedRows(node.handle()) == (1, 2, 1, 0)
    histogram = pynvml.nvmlDeviceGetRowRemapperHistogram(node.handle())
    assert (histogram.max, histogram.high) == (637, 3)


def test_fields_nobody_knows_fail_alone(node):
    assert fields(node, 9999, 230, 31) == ["error 3", 0, "error 3"]


def test_rows_are_not_told_while_instances_live(node):
    assert pynvml.nvmlDeviceGetRemappedRows(node.handle()) == (0, 0, 0, 0)
    node.create(19, 0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetRemappedRows(node.handle())
    assert fields(node, 144) == [0]


def test_a_reset_puts_remappings_in_force(node):
    node.do(administration.remap, 0, RemappedRows(uncorrectable=1, pending=True, failure=True))
    node.reset()
    assert pynvml.nvmlDeviceGetRemappedRows(node.handle()) == (0, 1, 0, 1)


def test_old_gpus_retire_pages_instead(make_node):
    node = make_node("1xt4")
    assert pynvml.nvmlDeviceGetRetiredPages(node.handle(), 0) == []
    assert pynvml.nvmlDeviceGetRetiredPages_v2(node.handle(), 0) == []
    assert pynvml.nvmlDeviceGetRetiredPagesPendingStatus(node.handle()) == 0
    assert fields(node, 31, 142) == [0, "error 3"]
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetRemappedRows(node.handle())


def test_new_gpus_retire_no_pages(node):
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetRetiredPages(node.handle(), 0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetRetiredPagesPendingStatus(node.handle())


def test_pages_wait_to_be_retired_until_the_reset(make_node):
    node = make_node("1xt4")
    node.do(administration.set_retired_pending, 0, pending=True)
    assert pynvml.nvmlDeviceGetRetiredPagesPendingStatus(node.handle()) == 1
    assert fields(node, 31) == [1]
    node.reset()
    assert pynvml.nvmlDeviceGetRetiredPagesPendingStatus(node.handle()) == 0
    assert fields(node, 31) == [0]


@pytest.mark.parametrize("model", ["h100-80gb", "gb10"])
def test_no_pages_wait_where_none_are_retired(make_node, model):
    node = make_node(f"1x{model}")
    with pytest.raises(Refused, match="retires no pages"):
        node.do(administration.set_retired_pending, 0, pending=True)


def sram_exceeded(node, index=0):
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(node.handle(index), byref(status))
    return status.bThresholdExceeded


def test_errors_in_sram_beyond_the_threshold_stay_with_the_board(make_node):
    node = make_node("2xh100-80gb")
    node.do(administration.set_sram_exceeded, 1, exceeded=True)
    assert [sram_exceeded(node, index) for index in (0, 1)] == [0, 1]
    node.reset(1)
    assert sram_exceeded(node, 1) == 1
    node.do(administration.reboot)
    node.begin_anew()
    assert sram_exceeded(node, 1) == 1
    node.do(administration.set_sram_exceeded, 1, exceeded=False)
    assert sram_exceeded(node, 1) == 0


def test_another_board_has_marks_of_its_own(node):
    node.do(administration.set_sram_exceeded, 0, exceeded=True)
    node.do(administration.set_fabric, 0, "unhealthy")
    node.do(administration.unplug, 0)
    node.do(administration.plug, 0, other=True)
    assert (node.gpu().sram_exceeded, hardware.fabric(node.gpu())) == (False, "healthy")


@pytest.mark.parametrize("model", ["t4", "gb10"])
def test_no_sram_status_where_there_is_none(make_node, model):
    node = make_node(f"1x{model}")
    with pytest.raises(Refused, match="no status of its SRAM"):
        node.do(administration.set_sram_exceeded, 0, exceeded=True)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        sram_exceeded(node)


def test_error_counters_are_clean(node):
    gpu = node.handle()
    assert pynvml.nvmlDeviceGetEccMode(gpu) == [1, 1]
    assert pynvml.nvmlDeviceGetTotalEccErrors(gpu, 0, 0) == 0
    assert pynvml.nvmlDeviceGetMemoryErrorCounter(gpu, 0, 0, 0) == 0
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(gpu, byref(status))
    assert status.bThresholdExceeded == 0


def test_channel_repair_is_blackwells(make_node):
    assert pynvml.nvmlDeviceGetRepairStatus(make_node("1xb200").handle()) == [0, 0]


def test_channel_repair_is_not_hoppers(node):
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetRepairStatus(node.handle())


# --- events ---------------------------------------------------------------------------------------


def wait(events, milliseconds=0):
    found = pynvml.nvmlEventSetWait_v2(events, milliseconds)
    return found.eventType, found.eventData, found.gpuInstanceId, found.computeInstanceId


def test_an_xid_is_told_to_who_listens(make_node):
    node = make_node("2xh100-80gb")
    events = node.watch(XID, 1)
    node.do(administration.raise_xid, 1, number=31)
    found = pynvml.nvmlEventSetWait_v2(events, 1000)
    assert (found.eventType, found.eventData) == (XID, 31)
    assert (found.gpuInstanceId, found.computeInstanceId) == (NOBODY, NOBODY)
    assert pynvml.nvmlDeviceGetUUID(found.device) == node.gpu(1).uuid
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 0)


def test_only_what_happens_after_the_registration_is_told(node):
    node.do(administration.raise_xid, 0, number=13)
    events = pynvml.nvmlEventSetCreate()
    node.do(administration.raise_xid, 0, number=31)
    pynvml.nvmlDeviceRegisterEvents(node.handle(), XID, events)
    node.do(administration.raise_xid, 0, number=43)
    assert wait(events) == (XID, 43, NOBODY, NOBODY)


def test_listeners_do_not_steal_from_each_other(node):
    first, second = node.watch(), node.watch()
    node.do(administration.raise_xid, 0, number=13, gpu_instance=7, compute_instance=0)
    assert wait(first) == wait(second) == (XID, 13, 7, 0)


def test_only_wanted_types_of_wanted_gpus_are_told(make_node):
    node = make_node("2xh100-80gb")
    events = node.watch(MIG_CHANGED, 0)
    node.do(administration.raise_xid, 0, number=13)
    node.create(19, 0, index=1)
    node.create(19, 0)
    assert wait(events) == (MIG_CHANGED, 0, NOBODY, NOBODY)
    with pytest.raises(pynvml.NVMLError_Timeout):
        wait(events)


def test_a_second_registration_adds_types(node):
    events = node.watch(MIG_CHANGED)
    pynvml.nvmlDeviceRegisterEvents(node.handle(), XID, events)
    node.create(19, 0)
    node.do(administration.raise_xid, 0, number=13)
    assert [wait(events)[0], wait(events)[0]] == [MIG_CHANGED, XID]


def test_what_cannot_be_registered(node):
    events = pynvml.nvmlEventSetCreate()
    supported = pynvml.nvmlDeviceGetSupportedEventTypes(node.handle())
    assert supported & (XID | MIG_CHANGED | RECOVERY) == XID | MIG_CHANGED | RECOVERY
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceRegisterEvents(node.handle(), supported | 0x20, events)
    _, _, device = node.create_mig(19, 0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceRegisterEvents(device, XID, events)


def test_a_freed_set_is_gone(node):
    events = node.watch()
    pynvml.nvmlEventSetFree(events)
    for call in (
        lambda: pynvml.nvmlEventSetFree(events),
        lambda: wait(events),
        lambda: pynvml.nvmlDeviceRegisterEvents(node.handle(), XID, events),
    ):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call()


def test_sets_end_with_the_session(node):
    events = node.watch()
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        wait(events)


def test_a_waiting_thread_is_told_at_once(node):
    events, found = node.watch(), []
    listener = threading.Thread(target=lambda: found.append(wait(events, 60_000)))
    listener.start()
    node.do(administration.raise_xid, 0, number=999)
    listener.join(timeout=60)
    assert found == [(XID, 999, NOBODY, NOBODY)]


def test_waiting_ends_by_its_own_clock(node):
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    session = Session(node.folder, sleep=sleep, clock=lambda: now[0])
    session.start()
    handle = session.add_event_set(EventSet(next_event=1))
    function = pynvml.nvmlLib.nvmlEventSetWait_v2.args[2]
    code = session.run("nvmlEventSetWait_v2", function, (handle, byref(pynvml.c_nvmlEventData_t()), 170))
    assert code == Return.TIMEOUT
    assert slept == pytest.approx([0.05, 0.05, 0.05, 0.02])


def test_the_queue_is_limited_but_counts_on(node):
    events = node.watch()
    for number in range(1, hardware.EVENTS_KEPT + 11):
        node.do(administration.raise_xid, 0, number=1000 + number)
    assert wait(events)[1] == 1011
    assert len(node.state.events) == hardware.EVENTS_KEPT
    assert node.state.next_event == hardware.EVENTS_KEPT + 11


def test_of_very_many_events_the_last_are_kept(node):
    events = node.watch(XID | RECOVERY)
    node.do(administration.raise_xid, 0, number=119, times=1_000_000)
    assert node.state.next_event == 1_000_002
    told = [wait(events)[:2] for _ in range(hardware.EVENTS_KEPT)]
    assert told == [(XID, 119)] * (hardware.EVENTS_KEPT - 1) + [(RECOVERY, 1)]
    with pytest.raises(pynvml.NVMLError_Timeout):
        wait(events)
    assert len({one.number for one in node.state.events}) == hardware.EVENTS_KEPT


def test_few_events_at_once_are_all_kept(node):
    events = node.watch()
    node.do(administration.raise_xid, 0, number=31, times=3)
    node.do(administration.raise_xid, 0, number=43)
    assert [wait(events)[1] for _ in range(4)] == [31, 31, 31, 43]
    assert [one.number for one in node.state.events] == [1, 2, 3, 4]


def test_the_names_of_event_types_are_nvmls():
    names = {
        "single-bit-ecc": pynvml.nvmlEventTypeSingleBitEccError,
        "double-bit-ecc": pynvml.nvmlEventTypeDoubleBitEccError,
        "pstate": pynvml.nvmlEventTypePState,
        "xid": pynvml.nvmlEventTypeXidCriticalError,
        "clock": pynvml.nvmlEventTypeClock,
        "power-source": pynvml.nvmlEventTypePowerSourceChange,
        "mig-config": pynvml.nvmlEventMigConfigChange,
        "single-bit-ecc-storm": pynvml.nvmlEventTypeSingleBitEccErrorStorm,
        "dram-retirement": pynvml.nvmlEventTypeDramRetirementEvent,
        "dram-retirement-failure": pynvml.nvmlEventTypeDramRetirementFailure,
        "non-fatal-poison": pynvml.nvmlEventTypeNonFatalPoisonError,
        "fatal-poison": pynvml.nvmlEventTypeFatalPoisonError,
        "gpu-unavailable": pynvml.nvmlEventTypeGpuUnavailableError,
        "recovery-action": pynvml.nvmlEventTypeGpuRecoveryAction,
    }
    assert names == hardware.EVENT_TYPES
    assert sum(names.values()) == hardware.SUPPORTED_EVENTS


@pytest.mark.parametrize("kind", sorted(hardware.EVENT_TYPES))
def test_events_of_every_type_are_told(node, kind):
    bit = hardware.EVENT_TYPES[kind]
    events = node.watch(bit)
    node.do(administration.tell, 0, kind, data=7)
    assert wait(events) == (bit, 7, NOBODY, NOBODY)


@pytest.mark.parametrize(("model", "kind"), [("l4", "mig-config"), ("gb10", "double-bit-ecc")])
def test_events_that_a_gpu_does_not_tell_are_refused(make_node, model, kind):
    node = make_node(f"1x{model}")
    with pytest.raises(Refused, match=f"{model} tells no events {kind}"):
        node.do(administration.tell, 0, kind)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        node.watch(hardware.EVENT_TYPES[kind])


def test_an_event_set_remembers_what_it_told():
    events = [Event(number=number, gpu=0, type=XID, data=number) for number in (1, 2, 3)]
    listener = EventSet(next_event=1, watched={0: (XID, 2)})
    assert [one and one.data for one in (listener.take(tuple(events)) for _ in range(3))] == [2, 3, None]


# --- recovery and loss ----------------------------------------------------------------------------


@pytest.mark.parametrize(("xid", "action"), [(31, 0), (94, 0), (48, 0), (95, 1), (119, 1), (79, 2)])
def test_xids_ask_for_recovery_as_the_catalogue_says(node, xid, action):
    events = node.watch(XID | RECOVERY)
    node.do(administration.raise_xid, 0, number=xid)
    assert fields(node, 230) == [action]
    assert wait(events)[:2] == (XID, xid)
    if action:
        assert wait(events)[:2] == (RECOVERY, action)
    with pytest.raises(pynvml.NVMLError_Timeout):
        wait(events)


def test_recovery_can_be_named(node):
    node.do(administration.raise_xid, 0, number=154, recovery=hardware.RECOVERY["drain-and-reset"])
    assert fields(node, 230, 226, 227) == [4, 0, 1]
    node.reset()
    assert fields(node, 230) == [0]


def test_a_reset_is_told(node):
    node.create(19, 0)
    node.do(administration.raise_xid, 0, number=119)
    events = node.watch(MIG_CHANGED | RECOVERY)
    node.do(administration.reset, 0)
    assert [wait(events)[:2], wait(events)[:2]] == [(MIG_CHANGED, 0), (RECOVERY, 0)]
    node.begin_anew()
    events = node.watch(MIG_CHANGED | RECOVERY)
    node.do(administration.reset, 0)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        wait(events)


def test_a_lost_gpu_answers_nothing_and_the_others_do(make_node):
    node = make_node("2xh100-80gb")
    lost, alive = node.handle(0), node.handle(1)
    instance, compute, device = node.create_mig(19, 0)
    node.do(administration.lose, 0)
    for call, handle in (
        (pynvml.nvmlDeviceGetUUID, lost),
        (pynvml.nvmlDeviceGetUUID, device),
        (pynvml.nvmlGpuInstanceGetInfo, instance),
        (pynvml.nvmlComputeInstanceDestroy, compute),
        (pynvml.nvmlDeviceGetHandleByIndex, 0),
        (pynvml.nvmlDeviceGetHandleByUUID, node.gpu().uuid),
    ):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            call(handle)
    assert pynvml.nvmlDeviceGetCount() == 2
    assert pynvml.nvmlDeviceGetUUID(alive) == node.gpu(1).uuid


def test_losing_a_gpu_is_told_first_and_then_by_every_wait(node):
    events = node.watch()
    node.do(administration.lose, 0)
    assert wait(events)[:2] == (XID, 79)
    for _ in range(2):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            wait(events, 60_000)


def test_losing_twice_is_losing_once(node):
    node.do(administration.lose, 0)
    generation = node.state.generation
    node.do(administration.lose, 0)
    assert node.state.generation == generation


def test_a_recovered_gpu_is_as_it_was(node):
    node.create_mig(19, 0)
    before = node.gpu()
    node.do(administration.lose, 0)
    node.do(administration.recover, 0)
    assert node.gpu() == before
    assert fields(node, 230) == [0]


def test_a_lost_gpu_cannot_be_reset_but_rebooted(node):
    node.do(administration.lose, 0)
    with pytest.raises(Refused, match="off the bus"):
        node.do(administration.reset, 0)
    node.do(administration.driver_reload)
    assert node.gpu().lost
    node.do(administration.reboot)
    assert not node.gpu().lost


def test_supported_types_fit_the_field(node):
    types = c_ulonglong()
    assert pynvml.nvmlLib.nvmlDeviceGetSupportedEventTypes(node.handle(), byref(types)) == 0
    assert types.value == 0xFF9F
