"""MIG mode, GPU instances, compute instances and MIG devices, as pynvml sees them."""

import ctypes
from ctypes import byref, c_uint

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.simulation import administration, description, hardware
from dradriver.simulation.codes import Refused
from dradriver.simulation.state import Process

ON, OFF = 1, 0
IN_USE, RESET_REQUIRED, DONE = 19, 16, 0


def process(pid=1, gi=None, ci=None):
    return Process(pid=pid, gpu_instance=gi, compute_instance=ci, memory_mib=100)


# --- mode -----------------------------------------------------------------------------------------


def test_hopper_switches_at_once(make_node):
    node = make_node(mig=False)
    assert pynvml.nvmlDeviceSetMigMode(node.handle(), ON) == DONE
    assert pynvml.nvmlDeviceGetMigMode(node.handle()) == [ON, ON]
    assert pynvml.nvmlDeviceSetMigMode(node.handle(), OFF) == DONE
    assert pynvml.nvmlDeviceGetMigMode(node.handle()) == [OFF, OFF]


@pytest.mark.parametrize("model", ["a30", "a100-40gb", "a100-80gb"])
def test_ampere_waits_for_a_reset(make_node, model):
    node = make_node(f"1x{model}", mig=False)
    assert pynvml.nvmlDeviceSetMigMode(node.handle(), ON) == RESET_REQUIRED
    assert pynvml.nvmlDeviceGetMigMode(node.handle()) == [OFF, ON]
    with pytest.raises(pynvml.NVMLError_NotSupported):
        node.create(0, 0)
    node.reset()
    assert pynvml.nvmlDeviceGetMigMode(node.handle()) == [ON, ON]
    assert node.create(0, 0)


def test_ampere_takes_a_pending_mode_back(make_node):
    node = make_node("1xa30", mig=False)
    pynvml.nvmlDeviceSetMigMode(node.handle(), ON)
    assert pynvml.nvmlDeviceSetMigMode(node.handle(), OFF) == DONE
    assert pynvml.nvmlDeviceGetMigMode(node.handle()) == [OFF, OFF]


def test_busy_hopper_says_so_in_the_status_and_changes_nothing(make_node):
    node = make_node(mig=False)
    node.do(administration.add_process, 0, process())
    assert pynvml.nvmlDeviceSetMigMode(node.handle(), ON) == IN_USE
    assert pynvml.nvmlDeviceGetMigMode(node.handle()) == [OFF, OFF]
    assert pynvml.nvmlDeviceSetMigMode(node.handle(), OFF) == DONE


def test_busy_ampere_keeps_the_wish(make_node):
    node = make_node("1xa30", mig=False)
    node.do(administration.add_process, 0, process())
    assert pynvml.nvmlDeviceSetMigMode(node.handle(), ON) == IN_USE
    assert pynvml.nvmlDeviceGetMigMode(node.handle()) == [OFF, ON]


def test_instances_keep_the_mode_on(node):
    node.create(19, 0)
    assert pynvml.nvmlDeviceSetMigMode(node.handle(), OFF) == IN_USE
    assert pynvml.nvmlDeviceGetMigMode(node.handle()) == [ON, ON]


@pytest.mark.parametrize("model", ["l4", "t4", "gb10"])
def test_gpus_without_mig_support_none_of_it(make_node, model):
    node = make_node(f"1x{model}")
    gpu = node.handle()
    for call in (
        lambda: pynvml.nvmlDeviceGetMigMode(gpu),
        lambda: pynvml.nvmlDeviceSetMigMode(gpu, ON),
        lambda: node.create(19),
        lambda: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 19),
        lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0),
    ):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call()
    assert node.profiles() == []
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == 0


def test_a_mode_that_does_not_exist(node):
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetMigMode(node.handle(), 2)


@pytest.mark.parametrize(
    ("model", "after_reload", "after_reset"),
    [("h100-80gb", OFF, ON), ("b200", OFF, ON), ("rtx-pro-6000", OFF, ON), ("a100-40gb", ON, ON), ("a30", ON, ON)],
)
def test_mode_over_reset_reload_and_reboot(make_node, model, after_reload, after_reset):
    node = make_node(f"1x{model}", mig=True)
    node.create(0, 0)
    for change, mode in (
        (lambda state: administration.reset(state, 0), after_reset),
        (administration.driver_reload, after_reload),
        (administration.reboot, after_reload),
    ):
        node.do(change)
        assert (node.gpu().mig, node.gpu().mig_pending) == (bool(mode), bool(mode))
        assert node.gpu().instances == ()


# --- profiles -------------------------------------------------------------------------------------


def test_enumeration_has_gaps_and_an_end(node):
    gpu = node.handle()
    for index in (0x05, 0x06, 0x08, 0x0A, 0x11):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, index)
    for index in (0x12, 0x13, 1000):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, index)


def test_index_is_not_id(node):
    assert pynvml.nvmlDeviceGetGpuInstanceProfileInfo(node.handle(), 4).id == 0
    assert pynvml.nvmlDeviceGetGpuInstanceProfileInfo(node.handle(), 0).id == 19


def test_both_versions_tell_the_same_but_for_the_name(node):
    old, new = node.profiles(version=1), node.profiles(version=2)
    assert [one.name for one in new] == [
        "MIG 1g.10gb", "MIG 2g.20gb", "MIG 3g.40gb", "MIG 4g.40gb", "MIG 7g.80gb", "MIG 1g.10gb+me", "MIG 1g.20gb",
    ]  # fmt: skip
    for one, other in zip(old, new, strict=True):
        for field, _ in one._fields_:
            assert getattr(one, field) == getattr(other, field)


def test_profile_by_id(node):
    assert pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(node.handle(), 9).name == "MIG 3g.40gb"
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(node.handle(), 4)


def test_a_wrong_version_word_is_a_mismatch(node):
    info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
    info.version = 0x03000098
    assert pynvml.nvmlLib.nvmlDeviceGetGpuInstanceProfileInfoV(node.handle(), 0, byref(info)) == 25
    assert pynvml.nvmlLib.nvmlDeviceGetGpuInstanceProfileInfoByIdV(node.handle(), 19, byref(info)) == 25
    instance = node.create(19, 0)
    compute = pynvml.c_nvmlComputeInstanceProfileInfo_v2_t()
    compute.version = 1
    call = pynvml.nvmlLib.nvmlGpuInstanceGetComputeInstanceProfileInfoV
    assert call(instance, 0, 0, byref(compute)) == 25


def test_what_is_told_with_mig_off(make_node):
    """Hopper tells everything; Ampere keeps names and nothing else back; nobody creates or counts."""
    node = make_node("1xh100-80gb", mig=False)
    assert len(node.profiles()) == 7
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(node.handle(), 19)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        node.instances(19)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetGpuInstanceById(node.handle(), 7)
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(node.handle()) == 0


def test_what_ampere_tells_with_mig_off(make_node):
    node = make_node("1xa100-40gb", mig=False)
    assert node.profiles(version=2) == []
    assert len(node.profiles(version=1)) == 7
    assert node.placements(9) == ((0, 4), (4, 4))


def test_placements_want_room(node):
    array = (pynvml.c_nvmlGpuInstancePlacement_t * 2)()
    with pytest.raises(pynvml.NVMLError_InsufficientSize):
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(node.handle(), 19, array, byref(c_uint(2)))


# --- GPU instances --------------------------------------------------------------------------------


def test_an_instance_is_what_was_asked_for(node):
    info = pynvml.nvmlGpuInstanceGetInfo(node.create(9, 4))
    assert (info.profileId, info.placement.start, info.placement.size, info.id) == (9, 4, 4, 1)
    assert pynvml.nvmlDeviceGetIndex(info.device) == 0
    assert [one.id for one in node.instances(9)] == [1]
    assert node.instances(19) == []


def test_overlap_is_refused_also_for_the_very_same(node):
    node.create(14, 2)
    for profile, start in ((14, 2), (19, 3), (9, 0), (0, 0)):
        with pytest.raises(pynvml.NVMLError_InsufficientResources):
            node.create(profile, start)
    assert node.create(19, 4)


def test_media_engines_run_out_before_slices(node):
    node.create(20, 0)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        node.create(20, 1)
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(node.handle(), 20) == 0
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(node.handle(), 19) == 6


@pytest.mark.parametrize(("profile", "start", "size"), [(9, 2, 4), (19, 7, 1), (14, 6, 2), (19, 0, 2), (0, 0, 7)])
def test_places_off_the_grid_are_no_arguments(node, profile, start, size):
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        node.create(profile, start, size)


def test_a_profile_that_is_not_there(node):
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        node.create(21, 0)


def test_choosing_freely_can_dead_end(make_node):
    node = make_node("1xa100-40gb")
    for profile in (19, 19, 14):
        node.create(profile)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        node.create(9)


def test_ids_are_not_sequential_and_used_again(node):
    ids = [pynvml.nvmlGpuInstanceGetInfo(node.create(profile, start)).id for profile, start in ((9, 0), (14, 4))]
    ids += [pynvml.nvmlGpuInstanceGetInfo(node.create(19, 6)).id]
    assert ids == [1, 3, 7]
    pynvml.nvmlGpuInstanceDestroy(pynvml.nvmlDeviceGetGpuInstanceById(node.handle(), 3))
    again = node.create(14, 4)
    assert pynvml.nvmlGpuInstanceGetInfo(again).id == 3


def test_a_handle_dies_with_its_instance_though_the_id_lives_on(node):
    old = node.create(19, 0)
    pynvml.nvmlGpuInstanceDestroy(old)
    new = node.create(19, 0)
    assert pynvml.nvmlGpuInstanceGetInfo(new).id == 7
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlGpuInstanceGetInfo(old)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlGpuInstanceDestroy(old)


def test_an_id_that_is_not_there(node):
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetGpuInstanceById(node.handle(), 7)


def test_instances_are_listed_by_hardware_id_only(node):
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        node.instances(1)


# --- compute instances and MIG devices --------------------------------------------------------------


def test_an_instance_with_compute_instances_stays(node):
    instance, compute, _ = node.create_mig(14, 0)
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlGpuInstanceDestroy(instance)
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert node.gpu().instances == ()


def test_a_process_keeps_its_compute_instance(node):
    instance, compute, _ = node.create_mig(19, 0)
    node.do(administration.add_process, 0, process(4711, 7, 0))
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlComputeInstanceDestroy(compute)
    node.do(administration.remove_process, 0, pid=4711)
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)


def test_compute_profiles_of_a_3g(make_node):
    node = make_node("1xa100-40gb")
    instance = node.create(9, 0)
    rows = {}
    for index in range(20):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, index, 0)
        except pynvml.NVMLError_NotSupported:
            continue
        except pynvml.NVMLError_InvalidArgument:
            break
        rows[info.id] = (info.name, info.sliceCount, info.instanceCount, info.multiprocessorCount)
    assert rows == {
        0: ("MIG 1c.3g.20gb", 1, 3, 14),
        1: ("MIG 2c.3g.20gb", 2, 1, 28),
        2: ("MIG 3g.20gb", 3, 1, 42),
    }
    assert index == 9


@pytest.mark.parametrize(
    ("profile", "counts"),
    [(0, {0: 7, 1: 3, 2: 2, 3: 1, 4: 1}), (5, {0: 4, 1: 2, 3: 1}), (14, {0: 2, 1: 1}), (19, {0: 1})],
)
def test_counts_of_compute_profiles(node, profile, counts):
    instance = node.create(profile, 0)
    found = {}
    for index in range(9):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, index, 0, version=1)
        except pynvml.NVMLError_NotSupported:
            continue
        found[info.id] = info.instanceCount
        assert pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, info.id) == info.instanceCount
        for _ in range(info.instanceCount):
            pynvml.nvmlGpuInstanceCreateComputeInstance(instance, info.id)
        with pytest.raises(pynvml.NVMLError_InsufficientResources):
            pynvml.nvmlGpuInstanceCreateComputeInstance(instance, info.id)
        array, count = (pynvml.c_nvmlComputeInstance_t * 8)(), c_uint()
        pynvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, array, byref(count))
        for number in range(count.value):
            pynvml.nvmlComputeInstanceDestroy(array[number])
    assert found == counts


def test_only_the_shared_engine_profile_exists(node):
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(node.create(19, 0), 0, 1)


def test_compute_instances_at_places(node):
    instance = node.create(0, 0)
    count = c_uint()
    pynvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements(instance, 1, None, byref(count))
    array = (pynvml.c_nvmlComputeInstancePlacement_t * count.value)()
    pynvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements(instance, 1, array, byref(count))
    assert [(one.start, one.size) for one in array] == [(0, 2), (2, 2), (4, 2)]
    place = pynvml.c_nvmlComputeInstancePlacement_t(2, 2)
    made = pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 1, byref(place))
    info = pynvml.nvmlComputeInstanceGetInfo(made)
    assert (info.placement.start, info.placement.size, info.profileId) == (2, 2, 1)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 1, byref(place))
    wrong = pynvml.c_nvmlComputeInstancePlacement_t(2, 1)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 1, byref(wrong))


def test_info_of_a_compute_instance_leads_to_the_mig_device(node):
    instance, compute, device = node.create_mig(14, 2)
    info = pynvml.nvmlComputeInstanceGetInfo_v2(compute)
    assert pynvml.nvmlGpuInstanceGetInfo(info.gpuInstance).id == pynvml.nvmlGpuInstanceGetInfo(instance).id
    uuid = pynvml.nvmlDeviceGetUUID(device)
    assert uuid.startswith("MIG-")
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid
    assert pynvml.nvmlDeviceIsMigDeviceHandle(device).value == 1
    assert pynvml.nvmlDeviceIsMigDeviceHandle(node.handle()).value == 0
    assert pynvml.nvmlDeviceGetGpuInstanceId(device) == 3
    assert pynvml.nvmlDeviceGetComputeInstanceId(device) == 0
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    assert pynvml.nvmlDeviceGetUUID(parent) == node.gpu().uuid
    again = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlComputeInstanceGetInfo_v2(again).device) == uuid
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 1)


def test_a_uuid_is_never_seen_twice(node):
    seen = set()
    for _ in range(5):
        instance, compute, device = node.create_mig(19, 0)
        seen.add(pynvml.nvmlDeviceGetUUID(device))
        pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)
    assert len(seen) == 5


def test_mig_indices_have_holes(node):
    made = [node.create_mig(19, start) for start in range(3)]
    assert [pynvml.nvmlDeviceGetIndex(device) for _, _, device in made] == [0, 1, 2]
    pynvml.nvmlComputeInstanceDestroy(made[1][1])
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(node.handle()) == 7
    found = []
    for index in range(7):
        try:
            found.append(pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(node.handle(), index)))
        except pynvml.NVMLError_NotFound:
            continue
    assert found == [0, 2]
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(node.handle(), 7)


def test_attributes_of_a_mig_device(node):
    _, _, device = node.create_mig(9, 4)
    found = pynvml.nvmlDeviceGetAttributes_v2(device)
    assert (found.multiprocessorCount, found.memorySizeMB) == (60, 40448)
    assert (found.gpuInstanceSliceCount, found.computeInstanceSliceCount) == (3, 3)
    assert (found.sharedCopyEngineCount, found.sharedDecoderCount, found.sharedJpegCount) == (3, 3, 3)
    assert pynvml.nvmlDeviceGetName(device) == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert pynvml.nvmlDeviceGetMemoryInfo(device).total == 40448 << 20


def test_attributes_of_a_part_of_an_instance(node):
    _, _, device = node.create_mig(9, 4, compute=0)
    found = pynvml.nvmlDeviceGetAttributes_v2(device)
    assert (found.gpuInstanceSliceCount, found.computeInstanceSliceCount) == (3, 1)
    assert found.memorySizeMB == 40448


def test_memory_differs_by_placement(make_node):
    node = make_node("1xa100-40gb")
    sizes = [pynvml.nvmlDeviceGetAttributes_v2(node.create_mig(9, start)[2]).memorySizeMB for start in (0, 4)]
    assert sizes == [20096, 20224]


def test_a_mig_handle_dies_with_its_device(node):
    _, compute, device = node.create_mig(19, 0)
    pynvml.nvmlComputeInstanceDestroy(compute)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetUUID(device)


def test_handles_of_the_wrong_kind(node):
    instance, compute, device = node.create_mig(19, 0)
    for call, handle in (
        (pynvml.nvmlDeviceGetUUID, instance),
        (pynvml.nvmlGpuInstanceGetInfo, compute),
        (pynvml.nvmlGpuInstanceDestroy, device),
        (pynvml.nvmlDeviceGetMinorNumber, device),
        (pynvml.nvmlDeviceGetAttributes_v2, node.handle()),
        (pynvml.nvmlDeviceGetUUID, ctypes.c_void_p(0x1234)),
        (pynvml.nvmlDeviceGetUUID, None),
    ):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call(handle)


# --- any order of operations ------------------------------------------------------------------------

OPERATIONS = st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 11)), max_size=40)


@settings(max_examples=150, deadline=None)
@given(model=st.sampled_from(["1xa30", "1xa100-80gb", "1xh200", "1xrtx-pro-6000"]), operations=OPERATIONS)
def test_rules_hold_in_any_order(model, operations):
    state = description.build(description.read_machine(model), mig=True)
    for create, which, where in operations:
        gpu = state.gpus[0]
        profile = gpu.profiles[which % len(gpu.profiles)]
        start = profile.starts[where % len(profile.starts)]
        room = start in hardware.free_starts(gpu, profile) and hardware.remaining_capacity(gpu, profile) > 0
        try:
            if create:
                after, made = hardware.create_gpu_instance(state, 0, profile_id=profile.id, start=start)
                assert room
                state, _ = hardware.create_compute_instance(after, 0, serial=made.serial, profile_id=0)
            elif gpu.instances:
                state = administration.destroy_instance(state, 0, ident=gpu.instances[which % len(gpu.instances)].id)
        except Refused:
            assert not room
        check(state.gpus[0])


def check(gpu):
    taken = [cell for one in gpu.instances for cell in range(one.start, one.start + one.size)]
    assert len(taken) == len(set(taken))
    assert max(taken, default=0) < gpu.kind.grid
    assert len({one.id for one in gpu.instances}) == len(gpu.instances)
    indices = [compute.index for one in gpu.instances for compute in one.compute]
    assert len(indices) == len(set(indices))
    assert max(indices, default=0) < gpu.kind.max_mig_devices
