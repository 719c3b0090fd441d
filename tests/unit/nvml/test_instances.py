"""GPU and compute instances, with the faults and races that the simulated node does not show."""

import pytest

from dradriver.gpu.model import MigInstance, Placement
from dradriver.nvml.errors import InsufficientResources, InUse, NotFound, NotSupported, TimedOut

GPU = "GPU-1"
LIST, GI_INFO, CI_INFO = "nvmlDeviceGetGpuInstances", "nvmlGpuInstanceGetInfo", "nvmlComputeInstanceGetInfo_v2"
CI_PROFILE = "nvmlGpuInstanceGetComputeInstanceProfileInfoV"


def create(nvml, profile_id=19, start=0, size=1):
    return nvml.create_gpu_instance(GPU, profile_id=profile_id, placement=Placement(start=start, size=size))


def partition(nvml, **place):
    bare = create(nvml, **place)
    return nvml.create_compute_instance(GPU, gpu_instance_id=bare.gpu_instance_id)


def test_a_new_gpu_instance_is_bare_and_where_it_was_wanted(nvml):
    made = create(nvml, start=3)
    assert made == MigInstance(
        gpu_instance_id=7, compute_instance_id=None, uuid=None, profile_id=19, placement=Placement(start=3, size=1)
    )
    assert nvml.instances(GPU) == (made,)
    assert nvml.instances("GPU-0") == ()


def test_a_compute_instance_gives_uuid_and_real_memory(nvml):
    made = partition(nvml, start=3)
    assert (made.gpu_instance_id, made.compute_instance_id, made.memory_mib) == (7, 0, 9000)
    assert made.uuid.startswith("MIG-")
    assert nvml.instances(GPU) == (made,)


def test_the_compute_instance_takes_all_of_its_gpu_instance(fake, nvml):
    partition(nvml, profile_id=9, size=4)
    assert fake.gpus[1].instances[7].compute == {0: 2}


def test_special_compute_profiles_of_the_same_size_are_not_chosen(fake, nvml):
    partition(nvml)
    assert fake.gpus[1].instances[7].compute == {0: 0}


def test_where_only_a_special_one_fits_nothing_is_guessed(fake, nvml):
    bare = create(nvml, profile_id=20)
    with pytest.raises(
        NotSupported, match=r"GPU instance 7 \(profile 20\) offers no compute instance of its own size, 1"
    ):
        nvml.create_compute_instance(GPU, gpu_instance_id=bare.gpu_instance_id)
    assert fake.gpus[1].instances[7].compute == {}


def test_compute_profiles_are_read_once_for_each_gpu_profile(fake, nvml):
    partition(nvml)
    asked = fake.calls[CI_PROFILE]
    partition(nvml, start=1)
    nvml.instances(GPU)
    assert fake.calls[CI_PROFILE] == asked


def test_an_older_driver_tells_compute_profiles_by_its_older_call(fake, nvml):
    fake.missing.add(CI_PROFILE)
    partition(nvml, profile_id=9, size=4)
    assert fake.gpus[1].instances[7].compute == {0: 2}


def test_several_compute_instances_in_one_are_each_listed(fake, nvml):
    create(nvml, profile_id=9, size=4)
    fake.gpus[1].instances[7].compute = {0: 0, 1: 1}
    assert [(one.gpu_instance_id, one.compute_instance_id) for one in nvml.instances(GPU)] == [(7, 0), (7, 1)]


def test_they_are_listed_by_place(nvml):
    for start in (5, 0, 3):
        create(nvml, start=start)
    create(nvml, profile_id=20, start=1)
    assert [one.placement.start for one in nvml.instances(GPU)] == [0, 1, 3, 5]


def test_memory_that_nvml_does_not_tell_is_none(fake, nvml):
    fake.missing.add("nvmlDeviceGetAttributes_v2")
    assert partition(nvml).memory_mib is None


def test_what_is_destroyed_while_the_list_is_made_is_left_out(fake, nvml):
    for start in range(3):
        create(nvml, start=start)
    fake.failures[GI_INFO] = [0, 6, 0]
    assert [one.placement.start for one in nvml.instances(GPU)] == [0, 2]


def test_one_that_vanishes_between_list_and_info_is_left_out(fake, nvml):
    create(nvml)
    fake.hooks[GI_INFO] = fake.gpus[1].instances.clear
    assert nvml.instances(GPU) == ()


def test_other_errors_are_not_taken_for_an_absence(fake, nvml):
    create(nvml)
    fake.failures[GI_INFO] = 10
    with pytest.raises(TimedOut):
        nvml.instances(GPU)


def test_a_gpu_instance_that_cannot_be_described_is_not_left_behind(fake, nvml):
    fake.failures[GI_INFO] = [10]
    with pytest.raises(TimedOut, match=GPU):
        create(nvml)
    assert fake.gpus[1].instances == {}


@pytest.mark.parametrize("call", [CI_INFO, "nvmlDeviceGetUUID"])
def test_a_compute_instance_that_cannot_be_described_is_not_left_behind(fake, nvml, call):
    bare = create(nvml)
    fake.failures[call] = [10]
    with pytest.raises(TimedOut):
        nvml.create_compute_instance(GPU, gpu_instance_id=bare.gpu_instance_id)
    assert fake.gpus[1].instances[7].compute == {}
    assert nvml.instances(GPU) == (bare,)


def test_a_failing_undo_does_not_hide_the_first_error(fake, nvml):
    fake.failures |= {GI_INFO: [10], "nvmlGpuInstanceDestroy": [19]}
    with pytest.raises(TimedOut):
        create(nvml)


def test_a_taken_place_is_told_apart(fake, nvml):
    fake.failures["nvmlDeviceCreateGpuInstanceWithPlacement"] = 23
    with pytest.raises(InsufficientResources, match="nvidia-smi mig -lgi"):
        create(nvml)


def test_both_are_destroyed_one_after_the_other(fake, nvml):
    made = partition(nvml)
    ids = {"gpu_instance_id": made.gpu_instance_id}
    nvml.destroy_compute_instance(GPU, **ids, compute_instance_id=made.compute_instance_id)
    assert [one.uuid for one in nvml.instances(GPU)] == [None]
    nvml.destroy_gpu_instance(GPU, **ids)
    assert fake.gpus[1].instances == {}
    with pytest.raises(NotFound):
        nvml.destroy_gpu_instance(GPU, **ids)


def test_a_missing_compute_instance_is_not_found(nvml):
    bare = create(nvml)
    with pytest.raises(NotFound, match="nvmlGpuInstanceGetComputeInstanceById for GPU-1"):
        nvml.destroy_compute_instance(GPU, gpu_instance_id=bare.gpu_instance_id, compute_instance_id=0)


def test_one_that_is_in_use_stays(fake, nvml):
    made = partition(nvml)
    fake.failures["nvmlComputeInstanceDestroy"] = 19
    with pytest.raises(InUse):
        nvml.destroy_compute_instance(GPU, gpu_instance_id=made.gpu_instance_id, compute_instance_id=0)
    assert nvml.instances(GPU) == (made,)


def test_nothing_is_asked_for_where_mig_is_off(fake, nvml):
    fake.gpus[1].mode = [0, 1]
    assert nvml.instances(GPU) == ()
    assert fake.calls[LIST] == 0
