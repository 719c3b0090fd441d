"""Profiles on drivers and in modes that the simulated node does not show."""

import pytest

from dradriver.gpu.model import Placement
from dradriver.nvml.errors import GpuLost

V2, V1 = "nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetGpuInstanceProfileInfo"
PLACES = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"


def profiles(nvml):
    (gpu,) = (gpu for gpu in nvml.gpus() if gpu.uuid == "GPU-0")
    return {one.id: one for one in gpu.profiles}


def test_names_come_from_nvml_without_its_prefix(nvml):
    assert [one.name for one in profiles(nvml).values()] == ["1g.10gb", "3g.40gb", "1g.10gb+me", "1g.20gb"]


def test_places_are_sorted(nvml):
    assert profiles(nvml)[9].placements == (Placement(start=0, size=4), Placement(start=4, size=4))


@pytest.mark.parametrize("how", ["missing", 3, 25])
def test_where_the_newer_query_does_not_answer_the_older_does_and_names_are_computed(fake, nvml, how):
    if how == "missing":
        fake.missing.add(V2)
    else:
        fake.failures[V2] = how
    assert [one.name for one in profiles(nvml).values()] == ["1g.10gb", "3g.40gb", "1g.10gb+me", "1g.20gb"]
    assert fake.calls[V1] > 0


def test_a_driver_without_either_has_no_profiles_but_the_gpu(fake, nvml):
    fake.missing |= {V1, V2}
    assert profiles(nvml) == {}
    assert len(nvml.gpus()) == 2


@pytest.mark.parametrize("code", [3, 4])
def test_a_profile_without_a_known_place_is_kept_without_one(fake, nvml, code):
    fake.failures[PLACES] = [code]
    found = profiles(nvml)
    assert set(found) == {9, 15, 19, 20}
    assert [key for key, profile in found.items() if not profile.placements] == [19]


def test_profiles_are_read_once(fake, nvml):
    nvml.gpus()
    before = fake.calls.copy()
    nvml.gpus()
    assert (fake.calls[V2], fake.calls[PLACES]) == (before[V2], before[PLACES])


def test_profiles_that_are_told_only_in_mig_mode_are_asked_for_again_when_it_changes(fake, nvml):
    for gpu in fake.gpus:
        gpu.mode = [0, 0]
    fake.failures |= {V1: 3, V2: 3}
    assert profiles(nvml) == {}
    asked = fake.calls[V2]
    assert profiles(nvml) == {}
    assert fake.calls[V2] == asked
    fake.failures.clear()
    for gpu in fake.gpus:
        gpu.mode = [1, 1]
    assert set(profiles(nvml)) == {19, 9, 20, 15}


def test_a_gpu_that_is_lost_meanwhile_is_not_a_gpu_without_profiles(fake, nvml):
    fake.failures[PLACES] = [0, 15, 15]
    assert len(nvml.gpus()) == 1
    (left_out,) = nvml.unreadable()
    assert isinstance(left_out.error, GpuLost)
