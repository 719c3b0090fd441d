import pytest
from doubles.bridgeworld import bridge

from controller.api import Mode, decode_bridge
from controller.bridges import discover, matches
from controller.bridges.discovery import GRACE_SECONDS, profiles
from controller.watching.model import DeviceKind

SMALL = "nvidia.com/mig-1g.10gb"


def mig(profile, *, renamed=False):
    return DeviceKind(type="mig", profile=profile, renamed=renamed)


def found(kinds=(), bridges=(), *, used=(), missing=None, now=0.0, mode=Mode.ENABLED):
    return discover(kinds, bridges, used=used, missing=missing or {}, mode=mode, now=now)


def discovered(name="mig-1g.10gb", resource_name=SMALL, **more):
    return bridge(name, resource_name=resource_name, is_discovered=True, **more)


def test_every_profile_gets_a_bridge_in_the_device_plugins_name():
    kinds = [mig("1g.10gb+me"), mig("1g.10gb"), mig("1g.24gb-me"), DeviceKind(type="gpu"), mig("1g.10gb")]
    made = [decode_bridge(body) for body in found(kinds, mode=Mode.WHEN_READY).create]
    assert [(each.name, each.spec.resource_name, each.spec.select.profile) for each in made] == [
        ("mig-1g.10gb", SMALL, "1g.10gb"),
        ("mig-1g.10gb.me", "nvidia.com/mig-1g.10gb.me", "1g.10gb+me"),
        ("mig-1g.24gb-me", "nvidia.com/mig-1g.24gb-me", "1g.24gb-me"),
    ]
    for each in made:
        assert each.is_discovered
        assert each.spec.mode is Mode.WHEN_READY
        assert each.spec.select.type == "mig"
        assert each.spec.select.renamed is False


def test_what_is_shared_under_a_name_of_its_own_has_a_bridge_of_its_own():
    kinds = [mig("1g.10gb"), mig("1g.10gb", renamed=True), mig("2g.20gb+me", renamed=True)]
    made = {body["metadata"]["name"]: decode_bridge(body).spec for body in found(kinds).create}
    assert {name: spec.resource_name for name, spec in made.items()} == {
        "mig-1g.10gb": SMALL,
        "mig-1g.10gb.shared": f"{SMALL}.shared",
        "mig-2g.20gb.me.shared": "nvidia.com/mig-2g.20gb.me.shared",
    }
    for kind in kinds:
        assert sum(matches(spec.select, kind) for spec in made.values()) == 1


def test_the_bridge_of_what_is_shared_goes_with_it():
    own = discovered("mig-1g.10gb.shared", f"{SMALL}.shared")
    late = found([mig("1g.10gb")], [own, discovered()], missing={own.name: 0.0}, now=GRACE_SECONDS)
    assert late.delete == (("mig-1g.10gb.shared", "uid-mig-1g.10gb.shared"),)
    assert found([mig("1g.10gb", renamed=True)], [own], missing={own.name: 0.0}, now=GRACE_SECONDS).delete == ()


def test_what_is_no_profile_gets_none():
    assert profiles([mig(""), mig("1g.10GB"), mig("a/b"), DeviceKind(type="gpu", profile="1g.10gb")]) == set()
    assert found([mig("a b")]).create == ()


@pytest.mark.parametrize("own", [bridge("mine", resource_name=SMALL), discovered()])
def test_a_name_that_has_a_bridge_gets_no_other(own):
    assert found([mig("1g.10gb")], [own]).create == ()


def test_a_bridge_goes_when_its_profile_has_been_missing_long_enough():
    own = discovered()
    first = found([], [own], now=100.0)
    assert (first.delete, first.missing) == ((), {"mig-1g.10gb": 100.0})
    later = found([], [own], missing=first.missing, now=100.0 + GRACE_SECONDS - 1)
    assert (later.delete, later.missing) == ((), first.missing)
    last = found([], [own], missing=later.missing, now=100.0 + GRACE_SECONDS)
    assert last.delete == (("mig-1g.10gb", "uid-mig-1g.10gb"),)


def test_a_profile_that_comes_back_begins_anew():
    own = discovered()
    first = found([], [own], now=0.0)
    back = found([mig("1g.10gb")], [own], missing=first.missing, now=GRACE_SECONDS)
    assert (back.delete, back.missing) == ((), {})
    assert found([], [own], missing=back.missing, now=GRACE_SECONDS + 1).delete == ()


def test_one_that_claims_use_stays():
    own = discovered()
    used = {own.spec.device_class_name}
    assert found([], [own], used=used, missing={own.name: 0.0}, now=10 * GRACE_SECONDS).delete == ()


@pytest.mark.parametrize("own", [bridge("mine", resource_name=SMALL), discovered(deleting=True)])
def test_bridges_of_people_and_those_that_go_already_are_left_alone(own):
    late = found([], [own], missing={own.name: 0.0}, now=10 * GRACE_SECONDS)
    assert (late.delete, late.missing) == ((), {})
