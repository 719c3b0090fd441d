from itertools import permutations

import pytest
from doubles.machines import gpus
from hypothesis import given
from hypothesis import strategies as st

from dradriver.gpu.model import Placement
from dradriver.gpu.packing import damage, distinct, potential, preferences, slices
from dradriver.gpu.profiles import parse_choice

SEVEN_SLICES = ["a100-40gb", "a100-80gb", "h100-80gb", "h100-nvl", "h200", "b200", "gb200"]


def at(size, *starts):
    return tuple(Placement(start=start, size=size) for start in starts)


ONE, DOUBLE, TWO = at(1, *range(7)), at(2, 0, 2, 4, 6), at(2, 0, 2, 4)
THREE, FOUR, SEVEN = at(4, 0, 4), at(4, 0), at(8, 0)
KINDS = {"1g": ONE, "double": DOUBLE, "2g": TWO, "3g": THREE, "4g": FOUR, "7g": SEVEN}
EVERY = distinct(KINDS.values())


def profiles(model, only=None):
    """Places of a real GPU's profiles, those of some compute and memory slices only if they are named."""
    (gpu,) = gpus(f"1x{model}", mig="on")
    found = parse_choice("all").select(gpu)
    if only is None:
        return [profile.placements for profile in found]
    wanted = [KINDS[kind] for kind in only]
    return [profile.placements for profile in found if profile.placements in wanted]


def starts(ordered):
    return {places: [place.start for place in order] for places, order in ordered.items()}


ALL = ["1g", "double", "2g", "3g", "4g", "7g"]
RIGHT_FIRST, LEFT_FIRST, ENDS_LAST = [6, 4, 5, 2, 3, 0, 1], [2, 3, 0, 1, 6, 4, 5], [2, 3, 0, 1, 4, 5, 6]
TABLE = [
    (ALL, {ONE: RIGHT_FIRST, DOUBLE: [6, 4, 0, 2], TWO: [4, 0, 2], THREE: [4, 0], FOUR: [0], SEVEN: [0]}),
    (["1g", "2g", "3g", "4g", "7g"], {ONE: RIGHT_FIRST, TWO: [4, 0, 2], THREE: [4, 0], FOUR: [0], SEVEN: [0]}),
    (["1g", "2g", "4g"], {ONE: RIGHT_FIRST, TWO: [4, 0, 2], FOUR: [0]}),
    (["1g", "2g", "3g", "7g"], {ONE: LEFT_FIRST, TWO: [0, 2, 4], THREE: [4, 0], SEVEN: [0]}),
    (["1g", "2g", "3g"], {ONE: LEFT_FIRST, TWO: [0, 2, 4], THREE: [4, 0]}),
    (
        ["1g", "double", "2g", "3g", "7g"],
        {ONE: ENDS_LAST, DOUBLE: [6, 4, 0, 2], TWO: [0, 2, 4], THREE: [4, 0], SEVEN: [0]},
    ),
]
"""Orders that were found best by simulation of many mixes of requests."""


@pytest.mark.parametrize("model", SEVEN_SLICES)
@pytest.mark.parametrize(("only", "expected"), TABLE, ids=["-".join(only) for only, _ in TABLE])
def test_gpus_with_seven_compute_slices_have_the_orders_that_pack_best(model, only, expected):
    assert starts(preferences(profiles(model, only))) == expected


@pytest.mark.parametrize("model", SEVEN_SLICES)
def test_media_variants_change_nothing(model):
    assert preferences(profiles(model)) == preferences(profiles(model, ALL))


def test_an_a30_has_the_order_that_packs_best():
    one, two, four = at(1, 0, 1, 2, 3), at(2, 0, 2), at(4, 0)
    assert starts(preferences(profiles("a30"))) == {one: [2, 3, 0, 1], two: [0, 2], four: [0]}


def test_an_rtx_pro_has_the_order_that_packs_best():
    one, two, four = at(3, 0, 3, 6, 9), at(6, 0, 6), at(12, 0)
    assert starts(preferences(profiles("rtx-pro-6000"))) == {one: [6, 9, 0, 3], two: [0, 6], four: [0]}


def test_small_ones_leave_the_only_place_of_4g():
    order = preferences([ONE, FOUR])[ONE]
    assert [place.start for place in order[:3]] == [4, 5, 6]


def test_small_ones_leave_the_half_whose_last_slice_they_cannot_use():
    assert preferences([ONE, THREE])[THREE] == at(4, 4, 0)
    assert preferences([ONE, THREE])[ONE] == ONE


def test_overlapping_places_follow_when_nothing_else_is_free():
    assert preferences([at(2, 0, 1, 2, 3)])[at(2, 0, 1, 2, 3)] == at(2, 0, 2, 3, 1)


def test_places_become_bits():
    assert slices() == 0
    assert slices(Placement(start=4, size=2), Placement(start=0, size=1)) == 0b110001


def test_profiles_with_the_same_places_are_one():
    assert distinct([reversed(TWO), ONE, TWO, [], ONE]) == (ONE, TWO)


def test_the_potential_is_what_could_still_be_made():
    assert potential(EVERY, 0) == 7 * 1 + 4 * 2 + 3 * 2 + 2 * 4 + 4 + 8
    assert potential(EVERY, slices(*FOUR)) == 3 * 1 + 2 * 2 + 2 + 4
    assert potential(EVERY, slices(*SEVEN)) == 0


def reachable(kinds):
    found, new = {0}, [0]
    while new:
        occupied = new.pop()
        after = {occupied | slices(place) for places in kinds for place in places if not occupied & slices(place)}
        new += after - found
        found |= after
    return found


DAMAGES = {
    "1g": [1, 3, 5, 7, 9, 13, 15, 17, 21],
    "double": [3, 6, 7, 10, 14, 15, 18, 22],
    "2g": [6, 10, 14, 18, 22],
    "3g": [13, 20, 21, 28],
    "4g": [20, 28],
    "7g": [41],
}


@pytest.mark.parametrize("kind", ALL)
def test_damages_of_an_h100_are_these(kind):
    kinds = distinct(profiles("h100-80gb"))
    assert kinds == EVERY
    states = reachable(kinds)
    assert len(states) == 192
    free = ((state, place) for state in states for place in KINDS[kind] if not state & slices(place))
    assert sorted({damage(kinds, state, place) for state, place in free}) == DAMAGES[kind]


@pytest.mark.parametrize(("model", "damages"), [("a30", {1: 7, 2: 8, 4: 12}), ("rtx-pro-6000", {3: 21, 6: 24, 12: 36})])
def test_on_an_empty_gpu_of_halves_and_quarters_all_places_are_alike(model, damages):
    kinds = distinct(profiles(model))
    assert len(reachable(kinds)) == 16
    for places in kinds:
        assert {damage(kinds, 0, place) for place in places} == {damages[places[0].size]}


@pytest.mark.parametrize("sequence", list(permutations(["1g", "2g", "4g"])))
def test_4g_2g_and_1g_fit_one_gpu_in_whatever_order_they_come(sequence):
    ordered, occupied = preferences(EVERY), 0
    for kind in sequence:
        place = next(place for place in ordered[KINDS[kind]] if not occupied & slices(place))
        occupied |= slices(place)
    assert occupied == 0b1111111


@st.composite
def geometries(draw):
    """Places of up to five profiles, each of one size, on a GPU with up to twelve memory slices."""
    length = draw(st.integers(1, 12))
    sizes = draw(st.lists(st.integers(1, length), min_size=1, max_size=5))
    return [at(size, *draw(st.sets(st.integers(0, length - size), min_size=1))) for size in sizes]


@given(geometries())
def test_each_place_of_each_profile_has_its_turn_once(found):
    ordered = preferences(found)
    assert set(ordered) == set(distinct(found))
    for places, order in ordered.items():
        assert tuple(sorted(order)) == places


@given(geometries(), st.randoms(use_true_random=False))
def test_neither_order_nor_repetition_of_the_input_matters(found, chance):
    shuffled = [chance.sample(places, k=len(places)) for places in [*found, *found[:2]]]
    chance.shuffle(shuffled)
    assert preferences(shuffled) == preferences(found)


@given(geometries())
def test_what_does_not_overlap_comes_before_what_does(found):
    for order in preferences(found).values():
        occupied, full = 0, False
        for place in order:
            if not full and slices(place) & occupied:
                full = True
                assert all(slices(other) & occupied for other in order[order.index(place) :])
            occupied |= slices(place)


@given(geometries(), st.integers(0, 2**12 - 1))
def test_a_place_does_at_least_the_damage_of_its_own_size(found, occupied):
    kinds = distinct(found)
    for place in (place for places in kinds for place in places if not slices(place) & occupied):
        assert place.size <= damage(kinds, occupied, place) <= potential(kinds, occupied)


@given(geometries())
def test_damages_add_up_to_the_lost_potential(found):
    kinds, occupied, lost = distinct(found), 0, 0
    for place in (place for places in reversed(kinds) for place in places):
        if not slices(place) & occupied:
            lost += damage(kinds, occupied, place)
            occupied |= slices(place)
    assert potential(kinds, 0) - lost == potential(kinds, occupied)
