"""Which object names discovered bridges get."""

from controller.acting import named
from controller.api import Mode
from controller.bridges import discover
from controller.watching.model import DeviceKind

PROFILE = DeviceKind(type="mig", profile="1g.10gb")
RESOURCE = "nvidia.com/mig-1g.10gb"


def found(*kinds):
    return discover(kinds or [PROFILE], [], used=(), missing={}, mode=Mode.ENABLED, now=0.0).create


def names(made):
    return [body["metadata"]["name"] for body in made]


def test_a_name_that_is_free_is_taken():
    made, clashes = named(found(), {"other": "example.com/x"})
    assert (names(made), clashes) == (["mig-1g.10gb"], [])
    assert made == list(found())


def test_where_somebody_has_the_name_for_something_else_it_gets_another():
    made, clashes = named(found(), {"mig-1g.10gb": "example.com/mig"})
    assert (names(made), clashes) == (["mig-1g.10gb-discovered"], [])
    assert made[0]["spec"]["resourceName"] == RESOURCE
    assert made[0]["metadata"]["labels"] == {"dradriver.dev/discovered": "true"}


def test_where_both_are_taken_it_is_told_and_not_made():
    taken = {"mig-1g.10gb": "example.com/mig", "mig-1g.10gb-discovered": "example.com/other"}
    made, (clash,) = named(found(), taken)
    assert made == []
    assert clash.taken == tuple(taken)
    assert f"no bridge can be made for {RESOURCE}" in clash.note


def test_a_bridge_for_the_same_resource_that_is_not_understood_is_left_alone():
    assert named(found(), {"mig-1g.10gb": RESOURCE}) == ([], [])
    assert named(found(), {"mig-1g.10gb": "x/y", "mig-1g.10gb-discovered": RESOURCE}) == ([], [])


def test_two_that_are_made_at_once_do_not_meet():
    twice = [*found(), *found()]
    other = twice[1] | {"spec": twice[1]["spec"] | {"resourceName": "example.com/mig-1g.10gb"}}
    made, clashes = named([twice[0], other], {})
    assert (names(made), clashes) == (["mig-1g.10gb", "mig-1g.10gb-discovered"], [])
