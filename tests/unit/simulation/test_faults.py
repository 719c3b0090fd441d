"""Calls told to fail or to take time; and what a driver reload does to who uses NVML."""

import threading
from ctypes import c_uint, create_string_buffer

import pynvml
import pytest

from dradriver.simulation import administration
from dradriver.simulation.codes import Refused, Return
from dradriver.simulation.nvml_api import FUNCTIONS
from dradriver.simulation.session import Session
from dradriver.simulation.state import Fault, Latency, Process

CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


def fail(node, call, code, **more):
    node.do(administration.add_fault, Fault(call=call, code=code, **more))


def outcomes(call, times):
    found = []
    for _ in range(times):
        try:
            call()
            found.append(0)
        except pynvml.NVMLError as error:
            found.append(error.value)
    return found


@pytest.mark.parametrize(
    ("after", "times", "expected"),
    [
        (0, None, [19, 19, 19, 19]),
        (0, 1, [19, 0, 0, 0]),
        (2, 1, [0, 0, 19, 0]),
        (1, 2, [0, 19, 19, 0]),
        (3, None, [0, 0, 0, 19]),
    ],
)
def test_a_fault_lets_some_pass_and_strikes_some(node, after, times, expected):
    fail(node, "nvmlDeviceGetUUID", Return.IN_USE, after=after, times=times)
    gpu = node.handle()
    assert outcomes(lambda: pynvml.nvmlDeviceGetUUID(gpu), 4) == expected


def test_a_fault_that_is_used_up_is_gone(node):
    fail(node, "nvmlDeviceGetName", Return.UNKNOWN, times=1)
    gpu = node.handle()
    assert outcomes(lambda: pynvml.nvmlDeviceGetName(gpu), 2) == [999, 0]
    assert node.state.faults == ()


def test_faults_of_one_call_strike_in_turn(node):
    fail(node, "nvmlDeviceGetName", Return.UNKNOWN, times=1)
    fail(node, "nvmlDeviceGetName", Return.TIMEOUT, times=2)
    gpu = node.handle()
    assert outcomes(lambda: pynvml.nvmlDeviceGetName(gpu), 4) == [999, 10, 10, 0]


def test_a_fault_of_one_gpu_spares_the_others(make_node):
    node = make_node("2xh100-80gb")
    fail(node, "nvmlDeviceGetUUID", Return.UNKNOWN, gpu=1)
    fail(node, "nvmlDeviceGetHandleByIndex_v2", Return.NO_PERMISSION, gpu=1, after=1)
    handles = [node.handle(0), node.handle(1)]
    assert outcomes(lambda: pynvml.nvmlDeviceGetUUID(handles[0]), 2) == [0, 0]
    assert outcomes(lambda: pynvml.nvmlDeviceGetUUID(handles[1]), 2) == [999, 999]
    assert outcomes(lambda: node.handle(1), 1) == [4]
    assert outcomes(lambda: node.handle(0), 1) == [0]


@pytest.mark.parametrize(
    ("call", "symbol", "name"),
    [
        (pynvml.nvmlDeviceGetHandleByUUID, "nvmlDeviceGetHandleByUUID", "uuid"),
        (pynvml.nvmlDeviceGetHandleByPciBusId, "nvmlDeviceGetHandleByPciBusId_v2", "bus_id"),
        (pynvml.nvmlDeviceGetHandleBySerial, "nvmlDeviceGetHandleBySerial", "serial"),
    ],
)
def test_a_fault_of_one_gpu_strikes_who_looks_for_it(make_node, call, symbol, name):
    node = make_node("2xh100-80gb")
    fail(node, symbol, Return.UNKNOWN, gpu=1)
    found = [outcomes(lambda gpu=gpu: call(getattr(gpu, name)), 1) for gpu in node.state.gpus]
    assert found == [[0], [999]]
    assert outcomes(lambda: call("nobody"), 1) == [6]


def test_a_failed_creation_creates_nothing(node):
    fail(node, CREATE, Return.NO_PERMISSION, times=1)
    with pytest.raises(pynvml.NVMLError_NoPermission):
        node.create(19, 0)
    assert node.gpu().instances == ()
    node.create(19, 0)


def test_a_late_fault_creates_and_says_it_did_not(node):
    fail(node, CREATE, Return.UNKNOWN, times=1, late=True)
    with pytest.raises(pynvml.NVMLError_Unknown):
        node.create(19, 0)
    assert [one.start for one in node.gpu().instances] == [0]


def test_a_gpu_instance_without_its_compute_instance(node):
    """What a driver leaves that fails, or is killed, between the two steps."""
    fail(node, "nvmlGpuInstanceCreateComputeInstance", Return.INSUFFICIENT_RESOURCES, times=1)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        node.create_mig(19, 0)
    assert [one.compute for one in node.gpu().instances] == [()]


@pytest.mark.parametrize("code", [Return.DRIVER_NOT_LOADED, Return.LIBRARY_NOT_FOUND, Return.LIB_RM_VERSION_MISMATCH])
def test_initialisation_fails_as_told(node, code):
    pynvml.nvmlShutdown()
    fail(node, "nvmlInitWithFlags", code, times=1)
    assert outcomes(pynvml.nvmlInit, 2) == [code, 0]
    assert pynvml.nvmlDeviceGetCount() == 1


def test_a_function_of_a_newer_driver(node):
    fail(node, "nvmlDeviceGetGpuInstanceProfileInfoV", Return.FUNCTION_NOT_FOUND)
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        node.profiles()


def test_faults_are_cleared(node):
    fail(node, "nvmlDeviceGetUUID", Return.UNKNOWN)
    fail(node, "nvmlDeviceGetName", Return.UNKNOWN)
    node.do(administration.clear_faults, "nvmlDeviceGetUUID")
    assert [one.call for one in node.state.faults] == ["nvmlDeviceGetName"]
    node.do(administration.clear_faults)
    assert node.state.faults == ()


# --- latency --------------------------------------------------------------------------------------


def run(session, name, *arguments):
    return session.run(name, FUNCTIONS[name], arguments)


class Clock:
    """Time that passes only by sleeping; `slept` tells how long, and what happens then can be set."""

    def __init__(self, then=lambda: None):
        self.now = 0.0
        self.slept = []
        self._then = then

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds
        self._then()

    def session(self, folder):
        session = Session(folder, sleep=self.sleep, clock=lambda: self.now)
        session.start()
        return session


def name_of(session, handle):
    return run(session, "nvmlDeviceGetName", handle, create_string_buffer(96), c_uint(96))


def test_a_slow_call_sleeps_before_it_acts(node):
    made_meanwhile = []
    clock = Clock(then=lambda: made_meanwhile.extend(node.gpu().instances))
    session = clock.session(node.folder)
    node.do(administration.set_latency, CREATE, 250)
    place = pynvml.c_nvmlGpuInstancePlacement_t(0, 1)
    made = pynvml.c_nvmlGpuInstance_t()
    pointers = pynvml.byref(place), pynvml.byref(made)
    assert run(session, CREATE, node.handle(), 19, *pointers) == 0
    assert sum(clock.slept) == pytest.approx(0.25)
    assert made_meanwhile == []
    assert len(node.gpu().instances) == 1


def test_latency_is_taken_back(node):
    node.do(administration.set_latency, CREATE, 250)
    node.do(administration.set_latency, CREATE, 100)
    assert node.state.latencies == (Latency(CREATE, 100),)
    node.do(administration.set_latency, CREATE, 0)
    assert node.state.latencies == ()


def test_a_slow_gpu_holds_up_its_own_calls_only(make_node):
    node = make_node("2xh100-80gb")
    clock = Clock()
    session = clock.session(node.folder)
    node.do(administration.set_latency, "nvmlDeviceGetName", 300, 1)
    assert name_of(session, node.handle(0)) == 0
    assert clock.slept == []
    assert name_of(session, node.handle(1)) == 0
    assert sum(clock.slept) == pytest.approx(0.3)


def test_what_is_told_of_one_gpu_counts_before_what_is_told_of_any(make_node):
    node = make_node("2xh100-80gb")
    node.do(administration.set_latency, CREATE, 10)
    node.do(administration.set_latency, CREATE, 2000, 1)
    assert [node.state.latency(CREATE, gpu) for gpu in (-1, 0, 1)] == [0.01, 0.01, 2.0]
    node.do(administration.set_latency, CREATE, 0, 1)
    assert [node.state.latency(CREATE, gpu) for gpu in (0, 1)] == [0.01, 0.01]
    node.do(administration.set_latency, CREATE, 2000, 1)
    node.do(administration.set_latency, CREATE, 0)
    assert node.state.latencies == ()


@pytest.mark.parametrize(("shorter", "expected"), [(0, 0.1), (100, 0.1), (350, 0.35), (900, 0.9)])
def test_a_call_under_way_heeds_that_its_time_was_changed(node, shorter, expected):
    clock = Clock(then=lambda: shorten() if len(clock.slept) == 2 else None)

    def shorten():
        node.do(administration.set_latency, "nvmlDeviceGetName", shorter, 0)

    session = clock.session(node.folder)
    node.do(administration.set_latency, "nvmlDeviceGetName", 600_000, 0)
    assert name_of(session, node.handle()) == 0
    assert clock.now == pytest.approx(expected)


def test_a_call_that_hangs_comes_back_when_the_latency_is_taken_away(make_node):
    node = make_node("2xh100-80gb")
    node.do(administration.set_latency, "nvmlDeviceGetName", 600_000, 1)
    names = []
    hangs = node.handle(1)
    thread = threading.Thread(target=lambda: names.append(pynvml.nvmlDeviceGetName(hangs)))
    thread.start()
    assert pynvml.nvmlDeviceGetName(node.handle(0)) == "NVIDIA H100 80GB HBM3"
    assert names == []
    node.do(administration.set_latency, "nvmlDeviceGetName", 0, 1)
    thread.join(60)
    assert names == ["NVIDIA H100 80GB HBM3"]


def test_a_slow_change_of_one_gpu_holds_up_its_own_only(make_node):
    """While GPU 0 is being cut, GPU 1 can be, and everything can be read; a second cut of GPU 0 waits."""
    node = make_node("2xh100-80gb")
    node.do(administration.set_latency, CREATE, 1)
    sleeping, wake, order = threading.Event(), threading.Event(), []

    def sleep(_seconds):
        sleeping.set()
        assert wake.wait(60)

    def create(session, index, start):
        place, made = pynvml.c_nvmlGpuInstancePlacement_t(start, 1), pynvml.c_nvmlGpuInstance_t()
        order.append(
            (index, start, run(session, CREATE, node.handle(index), 19, pynvml.byref(place), pynvml.byref(made)))
        )

    slow = Session(node.folder, sleep=sleep)
    quick = Session(node.folder, sleep=lambda _seconds: None)
    slow.start()
    quick.start()
    threads = [threading.Thread(target=create, args=(slow, 0, 0))]
    threads[0].start()
    assert sleeping.wait(60)
    create(quick, 1, 0)
    assert order == [(1, 0, 0)]
    threads.append(threading.Thread(target=create, args=(quick, 0, 1)))
    threads[1].start()
    assert node.gpu(0).instances == ()
    wake.set()
    for thread in threads:
        thread.join(60)
    assert sorted(order) == [(0, 0, 0), (0, 1, 0), (1, 0, 0)]
    assert [one.start for one in node.gpu(0).instances] == [0, 1]


# --- reload and reboot ----------------------------------------------------------------------------


@pytest.mark.parametrize("change", [administration.driver_reload, administration.reboot])
def test_a_session_dies_with_its_driver(node, change):
    gpu = node.handle()
    node.do(change)
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetUUID(gpu)
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetUUID(node.handle()) == node.gpu().uuid


def test_an_upgraded_driver_wants_a_new_process(node):
    node.do(administration.driver_reload, "595.10.01")
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_LibRmVersionMismatch):
        pynvml.nvmlInit()
    node.load()
    pynvml.nvmlInit()
    assert pynvml.nvmlSystemGetDriverVersion() == "595.10.01"


def test_a_waiting_thread_hears_that_the_driver_went(node):
    events, codes = node.watch(), []

    def listen():
        codes.extend(outcomes(lambda: pynvml.nvmlEventSetWait_v2(events, 60_000), 1))

    thread = threading.Thread(target=listen)
    thread.start()
    node.do(administration.driver_reload)
    thread.join(60)
    assert codes == [1]


def test_a_reboot_gives_another_boot_id_and_ends_processes(make_node):
    node = make_node(mig=False)
    node.do(administration.add_process, 0, Process(pid=1, gpu_instance=None, compute_instance=None, memory_mib=1))
    before = node.state
    for change in (administration.driver_reload, lambda state: administration.reset(state, 0)):
        with pytest.raises(Refused, match="processes use"):
            node.do(change)
    node.do(administration.reboot)
    assert node.gpu().processes == ()
    assert node.state.boot_id != before.boot_id
    assert node.state.gpus[0].uuid == before.gpus[0].uuid
    boot_id = node.folder / "root/proc/sys/kernel/random/boot_id"
    assert boot_id.read_text().strip() == node.state.boot_id


def test_a_node_that_vanished_is_an_unknown_error(node):
    (node.folder / "state").unlink()
    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlDeviceGetCount()
