import re
from dataclasses import replace

import pytest
from doubles.machines import gpus
from hypothesis import given
from hypothesis import strategies as st

from dradriver.gpu import names
from dradriver.gpu.model import MigProfile, Placement
from dradriver.gpu.names import number_of

GPU = gpus("1xt4")[0]


def profile(name, id_=19):
    return MigProfile(
        id=id_,
        name=name,
        compute_slices=1,
        max_instances=1,
        memory_mib=1,
        multiprocessors=1,
        copy_engines=1,
        decoders=0,
        encoders=0,
        jpeg_engines=0,
        ofa_engines=0,
        placements=(),
    )


def gpu(uuid, minor):
    return replace(GPU, uuid=uuid, minor=minor)


@pytest.mark.parametrize(
    ("name", "id_", "start", "expected"),
    [
        ("2g.47gb", 14, 0, "gpu-1-mig-2g47gb-14-0"),
        ("1g.24gb+me", 20, 5, "gpu-1-mig-1g24gb-me-20-5"),
        ("1g.24gb-me", 67, 9, "gpu-1-mig-1g24gb-me-67-9"),
        ("1g.24gb+me.all", 65, 3, "gpu-1-mig-1g24gb-meall-65-3"),
    ],
)
def test_partitions_are_named_as_by_nvidias_driver(name, id_, start, expected):
    assert names.partition_name(1, profile(name, id_), Placement(start=start, size=1)) == expected
    assert re.fullmatch(r"gpu-(\d+)-mig-(.+)-(\d+)-(\d+)", expected)


def test_new_gpus_get_their_minors():
    assert names.number_gpus([gpu("GPU-a", 0), gpu("GPU-b", 1)], {}) == {"GPU-a": 0, "GPU-b": 1}


def test_a_gpu_keeps_its_number_when_minors_move():
    known = {"GPU-a": 0, "GPU-b": 1}
    assert names.number_gpus([gpu("GPU-a", 1), gpu("GPU-b", 0)], known) == known


def test_a_new_gpu_never_takes_the_number_of_one_that_is_gone():
    assert names.number_gpus([gpu("GPU-c", 0)], {"GPU-a": 0}) == {"GPU-a": 0, "GPU-c": 1}


def test_a_displaced_gpu_does_not_take_the_minor_of_another_new_one():
    numbers = names.number_gpus([gpu("GPU-c", 0), gpu("GPU-d", 1)], {"GPU-a": 0})
    assert numbers == {"GPU-a": 0, "GPU-d": 1, "GPU-c": 2}


@given(st.lists(st.permutations(range(4)), min_size=1, max_size=6))
def test_numbers_are_unique_and_never_change(history):
    numbers: dict[str, int] = {}
    for minors in history:
        before = dict(numbers)
        numbers = names.number_gpus([gpu(f"GPU-{i}", minor) for i, minor in enumerate(minors)], numbers)
        assert before.items() <= numbers.items()
        assert len(set(numbers.values())) == len(numbers)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("gpu-0", 0),
        ("gpu-12-mig-1g10gb-19-3", 12),
        ("gpu-", None),
        ("gpu-01", None),
        ("gpu-1-vfio", None),
        ("gpu-12345", None),
        ("nic-1", None),
    ],
)
def test_the_number_is_read_back_from_a_name(name, number):
    assert number_of(name) == number
