"""Classes of a bridge and of others: by what they are told apart, how one is taken over and given back."""

from dataclasses import replace

import pytest
from doubles.bridgeworld import NAME, OURS, World, bridge, foreign

from controller.api import Select
from controller.bridges import ReleaseClass

CLASS = "gpu.gpu.dradriver.dev"
MANAGED_BY, BRIDGE_LABEL = OURS[:2]


def kinds(decision):
    return [type(action) for action in decision.actions]


def reasons(world):
    return [telling.reason for telling in world.tellings]


@pytest.mark.parametrize(
    "labels",
    [
        {MANAGED_BY: "Helm", BRIDGE_LABEL: "gpu"},
        {BRIDGE_LABEL: "gpu"},
        {MANAGED_BY: "Helm"},
        {MANAGED_BY: "dradriver-controller"},
        {},
    ],
)
def test_labels_that_others_change_are_put_back_and_the_class_stays_ours(labels):
    world = World()
    world.add(bridge())
    world.settle()
    before = world.classes[CLASS].labels
    world.put_class(world.edited(CLASS, labels=labels | {"team": "a"}))
    world.settle()
    assert world.classes[CLASS].labels == before | {"team": "a"}
    assert not world.classes[CLASS].is_adopted
    assert world.reasons() == {"Ready": "Serving"}
    assert reasons(world)[-1] == "ClassReverted"
    assert "labels" in world.tellings[-1].note
    assert world.known == {NAME: CLASS}


@pytest.mark.parametrize("labels", [{MANAGED_BY: "Helm", BRIDGE_LABEL: "gpu"}, {}])
def test_a_class_whose_labels_others_changed_goes_with_its_bridge(labels):
    world = World()
    world.add(bridge())
    world.settle()
    world.put_class(world.edited(CLASS, labels=labels))
    world.delete("gpu")
    world.settle()
    assert (world.classes, world.bridges) == ({}, {})


def test_a_class_with_our_label_alone_is_of_somebody_else():
    world = World()
    made = foreign(CLASS, labels={MANAGED_BY: "dradriver-controller", BRIDGE_LABEL: "gpu"})
    world.add(made, bridge())
    world.settle()
    assert world.classes[CLASS].spec == made.spec
    assert world.reasons() == {"Ready": "ClassNotOurs", "Conflict": "ClassNotOurs"}
    world.delete("gpu")
    world.settle()
    assert world.carriers() == {CLASS}


@pytest.mark.parametrize("extended_name", ["", NAME])
def test_it_is_taken_over_where_that_is_wanted_and_given_back(extended_name):
    world = World()
    world.add(foreign(CLASS, extended_name=extended_name), bridge(adopt=True))
    world.settle()
    assert world.classes[CLASS].bridge == "gpu"
    assert world.carriers() == {CLASS}
    assert "ClassAdopted" in reasons(world)
    assert kinds(world.step()) == []
    world.users[CLASS] = {"a/claim"}
    world.delete("gpu")
    decision = world.step()
    assert ReleaseClass in kinds(decision)
    assert world.bridges == {}
    given_back = world.classes[CLASS]
    assert (given_back.bridge, given_back.extended_name, given_back.labels, given_back.annotations) == ("", "", {}, {})


@pytest.mark.parametrize("extended_name", ["", NAME, "nvidia.com/else"])
@pytest.mark.parametrize("config", [None, [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"a": 1}}}]])
@pytest.mark.parametrize("interrupted_after", [None, 0, 1, 2])
def test_what_is_given_back_is_what_it_was_but_for_the_name(extended_name, config, interrupted_after):
    theirs = foreign(
        CLASS,
        extended_name=extended_name,
        labels={MANAGED_BY: "Helm", "team": "a"},
        annotations={"meta.helm.sh/release-name": "gpus"},
    )
    if config is not None:
        theirs = replace(theirs, spec={**theirs.spec, "config": config})
    world = World()
    world.add(theirs, bridge(adopt=True))
    world.step(interrupted_after=interrupted_after)
    world.settle()
    assert world.carriers() == {CLASS}
    assert world.classes[CLASS].spec["selectors"] != theirs.spec["selectors"]
    world.change("gpu", select=Select(type="mig"))
    world.crash()
    world.settle()
    world.delete("gpu")
    world.settle()
    left = world.classes[CLASS]
    assert left.spec == {key: value for key, value in theirs.spec.items() if key != "extendedResourceName"}
    assert (left.labels, left.annotations) == (theirs.labels, theirs.annotations)
    told = world.tellings[-1]
    assert told.reason == "ClassReleased"
    assert "selectors and configuration" in told.note


def test_of_a_class_given_back_the_event_tells_which_name_it_had():
    world = World()
    world.add(foreign(CLASS, extended_name="nvidia.com/else"), bridge(adopt=True))
    world.step()
    world.delete("gpu")
    world.settle()
    assert "nvidia.com/else, which it had, is not given to it again" in world.tellings[-1].note


def test_one_whose_spec_was_too_large_to_be_kept_is_given_back_as_it_is_and_that_is_told():
    large = [{"cel": {"expression": "true // " + "x" * 9000}}] * 16
    theirs = replace(foreign(CLASS, extended_name="", labels={MANAGED_BY: "Helm"}), spec={"selectors": large})
    world = World()
    world.add(theirs, bridge(adopt=True))
    world.settle()
    ours = world.classes[CLASS].spec["selectors"]
    assert sum(map(len, world.classes[CLASS].annotations.values())) < 1000
    world.delete("gpu")
    world.settle()
    assert world.classes[CLASS].spec["selectors"] == ours
    assert world.classes[CLASS].labels == {MANAGED_BY: "Helm"}
    assert "write them anew" in world.tellings[-1].note


def test_one_adopted_by_an_older_version_is_given_back_as_it_is():
    world = World()
    world.add(foreign(CLASS, extended_name=""), bridge(adopt=True))
    world.settle()
    notes = {key: value for key, value in world.classes[CLASS].annotations.items() if key != "dradriver.dev/former"}
    world.put_class(world.edited(CLASS, annotations=notes))
    world.settle()
    assert "dradriver.dev/former" not in world.classes[CLASS].annotations
    world.delete("gpu")
    world.settle()
    assert (world.classes[CLASS].labels, world.classes[CLASS].annotations) == ({}, {})
    assert "write them anew" in world.tellings[-1].note
