"""What a restart remembers."""

import json

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from dradriver.nodeconfig.memory import Remembered, recall, remember
from dradriver.nodeconfig.wanted import Labels

WHAT = Remembered(
    labels=Labels(config="a100", allocation="hold"), allocation="hold", name="a100", config={"gpus": [{"mig": "off"}]}
)


@pytest.mark.parametrize("what", [WHAT, Remembered(labels=Labels(), allocation="dra")])
def test_what_is_remembered_is_recalled(tmp_path, what):
    remember(tmp_path / "m.json", what)
    assert recall(tmp_path / "m.json") == what
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]


def test_nothing_is_nothing(tmp_path):
    assert recall(tmp_path / "m.json") is None


def test_what_cannot_be_kept_is_told_and_does_no_harm(tmp_path):
    with structlog.testing.capture_logs() as logs:
        remember(tmp_path / "nowhere" / "m.json", WHAT)
    assert [(entry["log_level"], entry["file"]) for entry in logs] == [("error", str(tmp_path / "nowhere" / "m.json"))]


def written(**changes):
    labels = {"config": "a", "allocation": ""}
    return {"version": 1, "labels": labels, "allocation": "dra", "name": "a", "config": {}} | changes


@pytest.mark.parametrize(
    "document",
    [
        written(version=2),
        written(labels=None),
        written(labels={"config": "a"}),
        written(labels={"config": 1, "allocation": ""}),
        written(allocation=None),
        written(name=[]),
        written(config=[]),
        {},
        [],
        None,
        1,
    ],
)
def test_what_is_damaged_is_told_and_forgotten(tmp_path, document):
    path = tmp_path / "m.json"
    path.write_text(json.dumps(document))
    with structlog.testing.capture_logs() as logs:
        assert recall(path) is None
    assert [entry["file"] for entry in logs] == [str(path)]


@given(st.binary(max_size=100))
def test_no_bytes_make_it_fail(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(data)
    assert recall(path) is None


def test_a_folder_in_its_place_is_forgotten_too(tmp_path):
    assert recall(tmp_path) is None
