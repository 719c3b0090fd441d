"""`Nvml` on a scripted driver: missing facts, unreadable GPUs, MIG mode, sessions that end."""

import pytest

from dradriver.gpu.model import MigMode, Placement
from dradriver.nvml.errors import (
    DriverMismatch,
    GpuLost,
    InUse,
    NoPermission,
    NotFound,
    NotSupported,
    ResetRequired,
    TimedOut,
    Uninitialized,
    UnknownError,
)
from dradriver.nvml.records import Process
from dradriver.nvml.session import LOST_PAUSE

ON, OFF = MigMode(current=True, pending=True), MigMode(current=False, pending=False)
SET_MODE, GET_MODE = "nvmlDeviceSetMigMode", "nvmlDeviceGetMigMode"


def gpu(nvml, uuid="GPU-0"):
    (found,) = (one for one in nvml.gpus() if one.uuid == uuid)
    return found


def test_versions(nvml):
    assert nvml.driver_version() == "580.105.08"
    assert nvml.cuda_driver_version() == (13, 1)


def test_gpus_come_in_bus_order_not_in_nvmls(nvml):
    assert [(one.uuid, one.pci_bus_id) for one in nvml.gpus()] == [("GPU-1", "0000:40:00.0"), ("GPU-0", "0000:41:00.0")]
    assert nvml.unreadable() == ()


def test_a_node_without_gpus_is_no_error(fake, nvml):
    fake.gpus.clear()
    assert nvml.gpus() == ()


# --- facts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "field", "value"),
    [
        ("nvmlDeviceGetMemoryInfo", "memory_bytes", None),
        ("nvmlDeviceGetAddressingMode", "addressing_mode", None),
        ("nvmlDeviceGetVirtualizationMode", "vgpu_guest", False),
        ("nvmlDeviceGetBrand", "brand", "Unknown"),
        ("nvmlDeviceGetArchitecture", "architecture", "Unknown"),
    ],
)
@pytest.mark.parametrize("how", ["missing", 3, 999])
def test_a_fact_that_nvml_does_not_tell_never_removes_a_gpu(fake, nvml, call, field, value, how):
    if how == "missing":
        fake.missing.add(call)
    else:
        fake.failures[call] = how
    assert getattr(gpu(nvml), field) == value


@pytest.mark.parametrize("how", ["missing", 4, "unknown field"])
@pytest.mark.parametrize(("architecture", "needs_reset"), [(7, True), (9, False)])
def test_a_driver_that_does_not_tell_about_resets_leaves_it_to_the_architecture(
    fake, nvml, architecture, needs_reset, how
):
    if how == "missing":
        fake.missing.add("nvmlDeviceGetFieldValues")
    elif how == 4:
        fake.failures["nvmlDeviceGetFieldValues"] = how
    fake.gpus[0].architecture = architecture
    assert gpu(nvml).mig_needs_reset is needs_reset


def test_an_unreadable_architecture_counts_as_needing_a_reset(fake, nvml):
    fake.missing.add("nvmlDeviceGetArchitecture")
    assert gpu(nvml).mig_needs_reset


def test_a_gpu_without_mig_has_no_mode_no_profiles_and_needs_no_reset(fake, nvml):
    fake.failures[GET_MODE] = 3
    fake.gpus[0].architecture = 7
    found = gpu(nvml)
    assert (found.mig_mode, found.profiles, found.instances, found.mig_needs_reset) == (None, (), (), False)
    assert fake.calls["nvmlDeviceGetGpuInstanceProfileInfoV"] == 0


def test_known_memory_stays_when_nvml_stops_telling_it(fake, nvml):
    memory = gpu(nvml).memory_bytes
    fake.failures["nvmlDeviceGetMemoryInfo"] = 999
    assert gpu(nvml).memory_bytes == memory > 0


def test_what_does_not_change_is_read_once_and_what_does_each_time(fake, nvml):
    nvml.gpus()
    first = fake.calls.copy()
    fake.gpus[0].mode = [1, 0]
    assert gpu(nvml).mig_mode == MigMode(current=True, pending=False)
    assert gpu(nvml).minor == 0
    once = ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3")
    assert {name: fake.calls[name] for name in once} == {name: first[name] for name in once}
    assert fake.calls["nvmlDeviceGetMinorNumber"] == 3 * first["nvmlDeviceGetMinorNumber"]


# --- GPUs that cannot be read --------------------------------------------------------------------


@pytest.mark.parametrize(("code", "kind"), [(4, NoPermission), (15, GpuLost), (999, UnknownError)])
def test_a_gpu_that_cannot_be_opened_is_told_by_its_index_and_the_others_are_there(fake, nvml, code, kind):
    fake.failures["nvmlDeviceGetHandleByIndex_v2"] = [code, code] if code == 15 else [code]
    inventory = nvml.inventory()
    assert [one.uuid for one in inventory.gpus] == ["GPU-1"]
    (left_out,) = inventory.unreadable
    assert (left_out.index, left_out.uuid, left_out.pci_bus_id) == (0, None, None)
    assert isinstance(left_out.error, kind)
    assert str(left_out.error).startswith("nvmlDeviceGetHandleByIndex for GPU 0 failed: ")
    assert nvml.unreadable() == inventory.unreadable


def test_a_gpu_that_is_lost_later_is_told_by_uuid_and_bus_id(fake, nvml):
    nvml.gpus()
    # Twice at the reading, when all are asked before the session is made anew, and in the new one; the other is well.
    fake.failures["nvmlDeviceGetMemoryInfo"] = [15, 15, 15, 0, 15, 15]
    assert [one.uuid for one in nvml.gpus()] == ["GPU-1"]
    (left_out,) = nvml.unreadable()
    assert (left_out.uuid, left_out.pci_bus_id) == ("GPU-0", "0000:41:00.0")
    assert len(nvml.gpus()) == 2
    assert nvml.unreadable() == ()


@pytest.mark.parametrize("call", ["nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMinorNumber", GET_MODE])
def test_a_gpu_without_an_essential_fact_is_left_out_until_it_is_told(fake, nvml, call):
    fake.failures[call] = [10]
    assert [one.uuid for one in nvml.gpus()] == ["GPU-1"]
    (left_out,) = nvml.unreadable()
    assert isinstance(left_out.error, TimedOut)
    assert len(nvml.gpus()) == 2


def test_a_lost_gpu_leads_to_a_new_session_after_a_pause(fake, nvml, clock):
    fake.failures["nvmlDeviceGetMemoryInfo"] = 15
    nvml.gpus()
    nvml.gpus()
    assert fake.calls["nvmlInitWithFlags"] == 1
    clock.now += LOST_PAUSE
    nvml.gpus()
    fake.failures.clear()
    assert len(nvml.gpus()) == 2
    assert fake.calls["nvmlInitWithFlags"] == 2


# --- the session --------------------------------------------------------------------------------


def test_a_call_into_an_ended_session_is_made_again_in_a_new_one(fake, nvml):
    nvml.gpus()
    fake.failures[GET_MODE] = [1]
    assert nvml.mig_mode("GPU-1") == ON
    assert fake.calls["nvmlInitWithFlags"] == 2


def test_an_ended_session_is_not_a_node_of_unreadable_gpus(fake, nvml):
    nvml.gpus()
    fake.failures["nvmlDeviceGetMemoryInfo"] = [1]
    assert len(nvml.gpus()) == 2
    assert nvml.unreadable() == ()


def test_a_call_is_made_again_only_once(fake, nvml):
    fake.failures[GET_MODE] = 1
    with pytest.raises(Uninitialized):
        nvml.mig_mode("GPU-1")
    assert fake.calls[GET_MODE] == 2


def test_an_upgraded_driver_is_told_as_what_it_is(fake, nvml):
    fake.failures |= {GET_MODE: [1], "nvmlInitWithFlags": 18}
    with pytest.raises(DriverMismatch, match="restart this process"):
        nvml.mig_mode("GPU-1")


def test_a_new_session_reads_everything_anew(fake, nvml):
    nvml.gpus()
    fake.gpus.reverse()
    for index, one in enumerate(fake.gpus):
        one.index = index
    nvml.renew()
    assert {one.uuid: one.minor for one in nvml.gpus()} == {"GPU-0": 0, "GPU-1": 1}


def test_an_unknown_gpu_is_not_found(nvml):
    with pytest.raises(NotFound, match="nvmlDeviceGetHandleByUUID for GPU-9"):
        nvml.mig_mode("GPU-9")


def test_a_gpu_is_found_although_another_cannot_be_opened(fake, nvml):
    fake.failures["nvmlDeviceGetHandleByIndex_v2"] = [15]
    assert nvml.mig_mode("GPU-1") == ON


def test_nvml_says_why_a_known_gpu_cannot_be_opened(fake, nvml):
    fake.failures |= {"nvmlDeviceGetHandleByIndex_v2": [15], "nvmlDeviceGetHandleByUUID": [15]}
    with pytest.raises(GpuLost, match="GPU-0"):
        nvml.mig_mode("GPU-0")


def test_an_ended_session_is_not_a_gpu_that_is_not_found(fake, nvml):
    fake.failures |= {"nvmlDeviceGetHandleByIndex_v2": [1], "nvmlDeviceGetHandleByUUID": 6}
    assert nvml.mig_mode("GPU-0") == ON


# --- MIG mode -----------------------------------------------------------------------------------


def test_a_mode_that_is_so_already_is_not_set(fake, nvml):
    nvml.set_mig_mode("GPU-0", enabled=True)
    assert fake.calls[SET_MODE] == 0


def test_a_mode_is_switched_at_once(nvml):
    nvml.set_mig_mode("GPU-0", enabled=False)
    assert nvml.mig_mode("GPU-0") == OFF
    assert nvml.mig_mode("GPU-1") == ON
    nvml.set_mig_mode("GPU-0", enabled=True)
    assert nvml.mig_mode("GPU-0") == ON


@pytest.mark.parametrize(("status", "kind"), [(19, InUse), (16, ResetRequired), (3, NotSupported)])
def test_an_activation_status_that_nvml_does_not_raise_is_raised_and_taken_back(fake, nvml, status, kind):
    fake.activation_status = status
    with pytest.raises(kind, match="nvmlDeviceSetMigMode for GPU-0"):
        nvml.set_mig_mode("GPU-0", enabled=False)
    assert nvml.mig_mode("GPU-0") == ON


def test_success_that_only_a_reset_makes_true_is_an_error_and_taken_back(fake, nvml):
    fake.gpus[0].architecture = 7
    fake.gpus[0].mode = [0, 0]
    with pytest.raises(ResetRequired, match="MIG mode turns on at the next GPU reset only"):
        nvml.set_mig_mode("GPU-0", enabled=True)
    assert nvml.mig_mode("GPU-0") == OFF


def test_a_pending_mode_of_an_administrator_is_not_taken_back(fake, nvml):
    fake.gpus[0].architecture = 7
    fake.gpus[0].mode = [0, 1]
    with pytest.raises(ResetRequired):
        nvml.set_mig_mode("GPU-0", enabled=True)
    assert nvml.mig_mode("GPU-0") == MigMode(current=False, pending=True)
    assert fake.calls[SET_MODE] == 1


def test_handles_are_asked_for_anew_after_a_switch_since_indices_may_move(fake, nvml):
    nvml.gpus()
    asked = fake.calls["nvmlDeviceGetHandleByIndex_v2"]
    nvml.set_mig_mode("GPU-0", enabled=False)
    assert fake.calls["nvmlDeviceGetHandleByIndex_v2"] > asked


def test_a_gpu_without_mig_cannot_be_switched(fake, nvml):
    fake.failures |= {GET_MODE: 3, SET_MODE: 3}
    assert nvml.mig_mode("GPU-0") is None
    with pytest.raises(NotSupported):
        nvml.set_mig_mode("GPU-0", enabled=True)


# --- processes ----------------------------------------------------------------------------------


def test_processes_on_the_whole_gpu_and_on_partitions(fake, nvml):
    fake.processes = [(10, 0xFFFFFFFF, 0xFFFFFFFF), (11, 7, 0)]
    assert nvml.processes("GPU-0") == (
        Process(pid=10, gpu_instance_id=None, compute_instance_id=None),
        Process(pid=11, gpu_instance_id=7, compute_instance_id=0),
    )


def test_no_processes(nvml):
    assert nvml.processes("GPU-0") == ()


def test_processes_that_come_up_while_they_are_listed_are_asked_for_again(fake, nvml):
    fake.processes = [(10, 7, 0)]
    swarm = [0]

    def grow():
        swarm[0] += 1
        if swarm[0] == 2:
            fake.processes = [(pid, 7, 0) for pid in range(20)]

    fake.hooks["nvmlDeviceGetComputeRunningProcesses_v3"] = grow
    assert len(nvml.processes("GPU-0")) == 20


@pytest.mark.parametrize(("code", "kind", "calls"), [(4, NoPermission, 1), (7, UnknownError, 3)])
def test_other_errors_of_the_list_are_told(fake, nvml, code, kind, calls):
    attempts = []
    query = "nvmlDeviceGetComputeRunningProcesses_v3"
    fake.processes = [(10, 7, 0)]
    # The wrapper asks twice, first for the size.
    fake.hooks[query] = lambda: attempts.append(fake.failures.__setitem__(query, code if len(attempts) % 2 else 0))
    with pytest.raises(kind):
        nvml.processes("GPU-0")
    assert fake.calls[query] == 2 * calls


# --- creating, in the places where NVML's reading and writing meet ----------------------------------


def test_the_placement_reaches_the_driver_as_it_was_given(fake, nvml):
    nvml.create_gpu_instance("GPU-0", profile_id=9, placement=Placement(start=4, size=4))
    (made,) = fake.gpus[0].instances.values()
    assert (made.profile_id, made.placement) == (9, (4, 4))


def test_creating_where_mig_is_off_is_not_supported(fake, nvml):
    fake.failures["nvmlDeviceCreateGpuInstanceWithPlacement"] = 3
    with pytest.raises(NotSupported, match="check the MIG mode"):
        nvml.create_gpu_instance("GPU-0", profile_id=9, placement=Placement(start=4, size=4))
