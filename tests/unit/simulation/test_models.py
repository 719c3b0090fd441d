"""The tables against what NVIDIA's listings say, read through pynvml from a node of each kind."""

import functools
from collections import Counter

import pynvml
import pytest

from dradriver.simulation import hardware
from dradriver.simulation.models import MODELS, Engines, gpu_instance_ids

MIG_MODELS = [name for name, model in MODELS.items() if model.mig_capable]
SEVEN_SLICES = {0: 7, 5: 4, 9: 3, 14: 2, 15: 1, 19: 1, 20: 1}

# name of the smallest and largest profile, largest memory in MiB, multiprocessors of the largest
WHOLE = {
    "a30": ("1g.6gb", "4g.24gb", 24000, 56),
    "a100-40gb": ("1g.5gb", "7g.40gb", 40192, 98),
    "a100-80gb": ("1g.10gb", "7g.80gb", 80896, 98),
    "h100-80gb": ("1g.10gb", "7g.80gb", 81152, 132),
    "h100-nvl": ("1g.12gb", "7g.94gb", 95360, 132),
    "h200": ("1g.18gb", "7g.141gb", 143360, 132),
    "b200": ("1g.23gb", "7g.180gb", 182272, 148),
    "gb200": ("1g.23gb", "7g.186gb", 188416, 152),
    "rtx-pro-6000": ("1g.24gb", "4g.96gb", 97280, 188),
}
COUNTS = {
    "a30": {14: 4, 21: 1, 5: 2, 6: 1, 0: 1},
    "rtx-pro-6000": {14: 4, 21: 1, 47: 4, 65: 1, 67: 4, 5: 2, 35: 2, 64: 1, 66: 2, 0: 1, 32: 1},
}
SEVEN_COUNTS = {19: 7, 20: 1, 15: 4, 14: 3, 9: 2, 5: 1, 0: 1}


@pytest.mark.parametrize("model", MIG_MODELS)
def test_as_many_instances_of_each_profile_fit_as_the_listing_says(make_node, model):
    node = make_node(f"1x{model}")
    created = {}
    for profile in node.profiles():
        with pytest.raises(pynvml.NVMLError_InsufficientResources):  # noqa: PT012  # The loop ends by it.
            for _ in range(20):
                node.create(profile.id)
                created[profile.id] = created.get(profile.id, 0) + 1
        assert created[profile.id] == profile.instanceCount
        assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(node.handle(), profile.id) == 0
        for instance in node.gpu().instances:
            node.do(hardware.destroy_gpu_instance, 0, serial=instance.serial)
    assert created == COUNTS.get(model, SEVEN_COUNTS)


@pytest.mark.parametrize("model", MIG_MODELS)
def test_first_and_last_row_of_each_table(make_node, model):
    profiles = make_node(f"1x{model}").profiles()
    names = {profile.name.removeprefix("MIG ") for profile in profiles}
    whole = next(profile for profile in profiles if profile.id == 0)
    smallest, largest, memory, multiprocessors = WHOLE[model]
    assert {smallest, largest} <= names
    assert len(names) == len(profiles)
    assert (whole.memorySizeMB, whole.multiprocessorCount) == (memory, multiprocessors)


@pytest.mark.parametrize("model", [name for name in MIG_MODELS if MODELS[name].grid == 8])
def test_seven_slice_gpus_share_ids_and_compute_slices(make_node, model):
    assert {one.id: one.sliceCount for one in make_node(f"1x{model}").profiles()} == SEVEN_SLICES


def test_values_of_an_h100_row_by_row(node):
    rows = {
        one.id: (
            one.memorySizeMB, one.multiprocessorCount, one.copyEngineCount,
            one.decoderCount, one.encoderCount, one.jpegCount, one.ofaCount,
        )
        for one in node.profiles()
    }  # fmt: skip
    assert rows == {
        19: (9984, 16, 1, 1, 0, 1, 0),
        20: (9984, 16, 1, 1, 0, 1, 1),
        15: (20096, 26, 1, 1, 0, 1, 0),
        14: (20096, 32, 2, 2, 0, 2, 0),
        9: (40448, 60, 3, 3, 0, 3, 0),
        5: (40448, 64, 4, 4, 0, 4, 0),
        0: (81152, 132, 8, 7, 0, 7, 1),
    }


@pytest.mark.parametrize(
    ("model", "partitions"),
    [("a30", 13), ("a100-40gb", 25), ("h100-80gb", 25), ("gb200", 25), ("rtx-pro-6000", 30)],
)
def test_number_of_partitions(make_node, model, partitions):
    node = make_node(f"1x{model}")
    assert sum(len(node.placements(profile.id)) for profile in node.profiles()) == partitions


def test_placements_of_a_seven_slice_gpu(node):
    assert {one.id: node.placements(one.id) for one in node.profiles()} == {
        **dict.fromkeys((19, 20), tuple((start, 1) for start in range(7))),
        15: ((0, 2), (2, 2), (4, 2), (6, 2)),
        14: ((0, 2), (2, 2), (4, 2)),
        9: ((0, 4), (4, 4)),
        5: ((0, 4),),
        0: ((0, 8),),
    }


def test_placements_of_a_grid_of_twelve(make_node):
    node = make_node("1xrtx-pro-6000")
    quarters, halves = ((0, 3), (3, 3), (6, 3), (9, 3)), ((0, 6), (6, 6))
    assert {one.id: node.placements(one.id) for one in node.profiles()} == {
        **dict.fromkeys((14, 21, 47, 65, 67), quarters),
        **dict.fromkeys((5, 35, 64, 66), halves),
        **dict.fromkeys((0, 32), ((0, 12),)),
    }


def slice_feasible(places: dict[int, tuple[tuple[int, int], ...]]) -> dict[tuple[int, ...], list[tuple[int, int]]]:
    """Every multiset of profile ids that finds room, with one way to place it, from placements alone."""
    options = [(profile, start, size) for profile, row in places.items() for start, size in row]

    @functools.cache
    def packings(cell: int) -> frozenset[tuple[tuple[int, int], ...]]:
        grid = max(start + size for _, start, size in options)
        if cell >= grid:
            return frozenset({()})
        found = set(packings(cell + 1))
        for profile, start, size in options:
            if start == cell:
                found |= {((profile, start), *rest) for rest in packings(start + size)}
        return frozenset(found)

    return {tuple(sorted(profile for profile, _ in packing)): list(packing) for packing in packings(0)}


@pytest.mark.parametrize(
    ("model", "feasible", "allowed"),
    [("h100-80gb", 204, 128), ("a30", 31, 20), ("rtx-pro-6000", 222, 115)],
)
def test_multisets_that_the_hardware_allows(make_node, model, feasible, allowed):
    node = make_node(f"1x{model}")
    empty = node.gpu()
    candidates = slice_feasible({one.id: node.placements(one.id) for one in node.profiles()})
    refused = 0
    for packing in candidates.values():
        try:
            for profile, start in packing:
                node.create(profile, start)
        except pynvml.NVMLError_InsufficientResources:
            refused += 1
        node.do(lambda state: state.with_gpu(0, empty))
    assert (len(candidates), len(candidates) - refused) == (feasible, allowed)


@pytest.mark.parametrize("model", MIG_MODELS)
def test_engines_of_the_gpu_are_those_of_its_largest_profile(model):
    row = MODELS[model]
    whole = next(profile for profile in row.profiles if profile.id == 0)
    assert row.engines == whole.engines
    assert all(profile.engines.within(row.engines) for profile in row.profiles)


def test_engines_add_up_one_by_one():
    one = Engines(decoders=1, encoders=2, jpegs=3, ofas=4)
    assert one.plus(one) == Engines(decoders=2, encoders=4, jpegs=6, ofas=8)
    assert one.within(one)
    for field in ("decoders", "encoders", "jpegs", "ofas"):
        less = {name: getattr(one, name) - (name == field) for name in one.__slots__}
        assert not one.within(Engines(**less))


@pytest.mark.parametrize(
    ("grid", "size", "ids"),
    [
        (8, 8, [0]),
        (8, 4, [1, 2]),
        (8, 2, [3, 4, 5, 6]),
        (8, 1, list(range(7, 15))),
        (4, 4, [0]),
        (4, 2, [1, 2]),
        (4, 1, [3, 4, 5, 6]),
        (12, 3, [3, 4, 5, 6]),
    ],
)
def test_ids_of_instances_by_the_part_they_take(grid, size, ids):
    assert list(gpu_instance_ids(grid, size)) == ids


@pytest.mark.parametrize("model", MIG_MODELS)
def test_every_profile_has_ids_enough(model):
    row = MODELS[model]
    for profile in row.profiles:
        assert len(gpu_instance_ids(row.grid, profile.size)) >= len(profile.starts)


def test_names_are_those_the_memory_gives():
    """As go-nvlib computes them: eighths of the whole, rounded up, in GiB."""
    for name, row in MODELS.items():
        for profile in row.profiles:
            whole = -(-(row.memory_mib or 0) // 1024)
            eighths = -(-8 * profile.memory_mib // (row.memory_mib or 1))
            said = float(profile.name.split(".")[1].split("gb")[0])
            assert abs(said - eighths * whole / 8) <= 1, (name, profile.name)


def test_ids_and_indices_are_unique_within_a_gpu():
    for row in MODELS.values():
        assert max(Counter(profile.id for profile in row.profiles).values(), default=1) == 1
        assert max(Counter(profile.index for profile in row.profiles).values(), default=1) == 1
