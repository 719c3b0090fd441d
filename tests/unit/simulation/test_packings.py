"""The tests' own list of what a GPU can hold, against figures that are known of real hardware."""

import pytest
from doubles.packings import WHOLE, Packings, Place

from dradriver.simulation.models import MODELS


def every(model, *, whole=False):
    return Packings(f"1x{model}", [profile.id for profile in MODELS[model].profiles], whole=whole)


@pytest.mark.parametrize(
    ("model", "count"), [("a100-40gb", 128), ("h100-80gb", 128), ("b200", 128), ("a30", 20), ("rtx-pro-6000", 115)]
)
def test_as_many_multisets_fit_as_on_real_gpus(model, count):
    assert len(every(model).allowed) == count
    assert len(every(model, whole=True).allowed) == count + 1


def test_as_many_of_one_profile_fit_as_listings_say():
    held = every("h100-80gb")
    for name, most in held.counts.items():
        assert max(len(names) for names in held.allowed if set(names) == {name}) == most


def test_largest_and_smallest_forbidden_enclose_what_is_allowed():
    held = every("a30", whole=True)
    assert {(WHOLE,), ("4g.24gb",), ("1g.6gb",) * 4} <= set(held.largest)
    assert {("1g.6gb",) * 5, ("1g.6gb+me",) * 2, ("1g.6gb", WHOLE)} <= set(held.smallest_forbidden)
    assert not set(held.smallest_forbidden) & held.allowed
    assert set(held.largest) <= held.allowed


def test_the_cover_has_every_two_places_that_go_together():
    held = every("h100-80gb")
    together = {frozenset((one, other)) for places in held.cover for one in places for other in places if one != other}
    assert frozenset((Place(9, 0), Place(9, 4))) in together
    assert frozenset((Place(9, 0), Place(19, 0))) not in together
    assert (Place(0, 0),) in held.cover
    assert all(held.holds(places) for places in held.cover)
