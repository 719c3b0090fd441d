"""Classes whose bridge is gone: what is found, and what becomes of them."""

import pytest

from controller.api import HASH_ANNOTATION
from controller.bridges import ApplyClass, ClearName, DeleteClass, ReleaseClass, let_go, orphans
from controller.watching.model import SeenClass

NAME = "nvidia.com/gpu"
OURS = {"app.kubernetes.io/managed-by": "dradriver-controller"}


def made_for(bridge, name="a-gpu", extended=NAME, *, labels=(), **more):
    spec = {"extendedResourceName": extended} if extended else {}
    marks = OURS | {"dradriver.dev/bridge": bridge} | dict(labels)
    notes = {HASH_ANNOTATION: "0"} | more.pop("annotations", {})
    return SeenClass(name=name, uid="u", resource_version="7", labels=marks, annotations=notes, spec=spec, **more)


def found(seen, bridges):
    return [each.name for each in orphans({seen.name: seen}, bridges)]


@pytest.mark.parametrize(
    ("bridges", "is_orphan"),
    [
        ({}, True),
        ({"other": "a-gpu"}, True),
        ({"mine": "a-gpu"}, False),
        ({"mine": "another-class"}, True),
        ({"mine": ""}, False),
    ],
    ids=[
        "no bridge",
        "another bridge wants it",
        "its bridge",
        "its bridge has another",
        "its bridge is not understood",
    ],
)
def test_a_class_is_an_orphan_if_its_bridge_does_not_answer_for_it(bridges, is_orphan):
    assert found(made_for("mine"), bridges) == (["a-gpu"] if is_orphan else [])


def test_classes_of_others_are_none_of_ours():
    assert found(SeenClass(name="x", spec={"extendedResourceName": NAME}), {}) == []
    # A label alone says little: anybody can write it.
    assert found(SeenClass(name="x", labels={"dradriver.dev/bridge": "gone"}), {}) == []


@pytest.mark.parametrize(
    ("bridges", "is_orphan"),
    [({}, True), ({"other": "b-gpu"}, True), ({"mine": "a-gpu"}, False), ({"mine": ""}, False)],
)
def test_a_class_without_the_label_is_known_by_its_name(bridges, is_orphan):
    """Who has the class writes the label again."""
    unmarked = SeenClass(name="a-gpu", annotations={HASH_ANNOTATION: "0"}, spec={"extendedResourceName": NAME})
    assert found(unmarked, bridges) == (["a-gpu"] if is_orphan else [])


def test_they_come_in_the_order_of_their_names():
    classes = {name: made_for("gone", name) for name in ("c", "a", "b")}
    assert [each.name for each in orphans(classes, {})] == ["a", "b", "c"]


def test_what_nobody_uses_loses_its_name_and_goes():
    decision = let_go(made_for("gone"), (), is_wanted=False)
    assert decision.actions == (
        ClearName(name="a-gpu", resource_version="7"),
        DeleteClass(name="a-gpu", uid="u", resource_version="7"),
    )
    assert decision.notice.reason == "OrphanDeleted"
    assert "made for ExtendedResourceBridge gone, which does not exist" in decision.notice.note


def test_what_claims_use_loses_its_name_and_stays():
    decision = let_go(made_for("gone"), [f"ns/c{n:02}" for n in range(12)], is_wanted=False)
    assert decision.actions == (ClearName(name="a-gpu", resource_version="7"),)
    assert decision.notice.reason == "OrphanInUse"
    assert "ns/c00" in decision.notice.note
    assert "and 2 more" in decision.notice.note
    again = let_go(made_for("gone", extended=""), ["ns/c"], is_wanted=False)
    assert again.actions == ()


def test_what_another_bridge_is_to_have_is_not_deleted():
    assert let_go(made_for("gone"), (), is_wanted=True).actions == (ClearName(name="a-gpu", resource_version="7"),)
    assert let_go(made_for("gone", extended=""), (), is_wanted=True).actions == ()


def test_what_is_deleted_already_is_not_deleted_again():
    dying = made_for("gone", is_deleting=True, finalizers=("example.com/x",))
    assert let_go(dying, (), is_wanted=False).actions == (ClearName(name="a-gpu", resource_version="7"),)
    assert let_go(made_for("gone", extended="", is_deleting=True), (), is_wanted=False).actions == ()


def test_what_was_taken_over_is_given_back():
    adopted = made_for("gone", annotations={"dradriver.dev/adopted": "true"})
    assert let_go(adopted, ["ns/c"], is_wanted=False).actions == (ReleaseClass(name="a-gpu", resource_version="7"),)


def test_a_base_class_is_kept_for_claims():
    base = made_for("gone", "gpu.nvidia.com", labels={"dradriver.dev/base-class": "true"})
    decision = let_go(base, (), is_wanted=False)
    assert [type(action) for action in decision.actions] == [ClearName, ApplyClass]
    assert decision.actions[-1].extended_name == ""
