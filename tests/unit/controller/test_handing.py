import json
from dataclasses import replace

import pytest
from doubles.bridgeworld import OURS, foreign
from hypothesis import given
from hypothesis import strategies as st

from controller.api import FORMER_ANNOTATION
from controller.bridges.handing import Former, former_of, note_of, release

SELECTORS = [{"cel": {"expression": "true"}}]
LIMIT = 128 << 10


def noted(seen, **annotations):
    """A class that has been taken over."""
    return replace(seen, annotations={FORMER_ANNOTATION: note_of(seen), **annotations})


@given(
    st.dictionaries(st.sampled_from([*OURS, "team"]), st.text(max_size=5)),
    st.sampled_from(["", "nvidia.com/gpu"]),
)
def test_what_was_noted_is_read(labels, extended_name):
    found = former_of(noted(foreign("x-gpu", extended_name, labels=labels)))
    assert found == Former(
        labels={key: value for key, value in labels.items() if key in OURS},
        spec={"selectors": SELECTORS, "config": None, "extendedResourceName": extended_name or None},
    )


def test_a_class_that_selected_everything_does_so_again():
    seen = noted(replace(foreign("x-gpu"), spec={}))
    assert release(seen).spec == {"selectors": None, "config": None}


def test_it_is_given_back_without_a_name():
    assert release(noted(foreign("x-gpu"))).spec == {"selectors": SELECTORS, "config": None}


@pytest.mark.parametrize(
    "note", ["", "{", "[]", "7", "{}", '{"spec": 7}', '{"spec": null}', '{"labels": [1], "spec": {}}']
)
def test_of_a_note_that_is_not_understood_nothing_is_known(note):
    seen = replace(foreign("x-gpu"), annotations={FORMER_ANNOTATION: note})
    assert former_of(seen) == Former(labels={}, spec=None)
    assert (release(seen).labels, release(seen).spec) == ({}, {})


def test_labels_that_are_not_ours_are_not_brought_back():
    note = json.dumps({"labels": {"team": "a", OURS[0]: "Helm"}, "spec": {}})
    assert former_of(replace(foreign("x-gpu"), annotations={FORMER_ANNOTATION: note})).labels == {OURS[0]: "Helm"}


@pytest.mark.parametrize(("size", "is_kept"), [(1000, True), (LIMIT - 2000, True), (LIMIT, False)])
@pytest.mark.parametrize("where", ["spec", "annotations"])
def test_all_annotations_together_stay_within_their_bounds(size, is_kept, where):
    seen = foreign("x-gpu", labels={OURS[0]: "Helm"})
    if where == "spec":
        seen = replace(seen, spec={"selectors": [{"cel": {"expression": "é" * (size // 2)}}]})
    else:
        seen = replace(seen, annotations={"kubectl.kubernetes.io/last-applied-configuration": "é" * (size // 2)})
    found = former_of(replace(seen, annotations={FORMER_ANNOTATION: note_of(seen)}))
    assert (found.spec is not None) is is_kept
    assert found.labels == {OURS[0]: "Helm"}
