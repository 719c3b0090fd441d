"""What a restart remembers."""

import json
from dataclasses import replace

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from dradriver.nodeconfig.memory import Remembered, recall, remember
from dradriver.nodeconfig.wanted import Labels

WHAT = Remembered(
    labels=Labels(config="a100", allocation="hold"),
    allocation="hold",
    name="a100",
    config={"gpus": [{"mig": "off"}], "healthPolicy": "patient"},
    health={"xids": {"31": "warn"}},
)
# Files as versions without health policies have written them.
EARLIER = (
    '{"version": 1, "labels": {"config": "a", "allocation": "hold"}, "allocation": "hold", "name": "a", '
    '"config": {"order": "spread", "healthPolicy": "patient"}}'
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
        written(health=[]),
        written(health="strict"),
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


def test_what_a_version_without_health_policies_wrote_is_read(tmp_path):
    (tmp_path / "m.json").write_text(EARLIER)
    assert recall(tmp_path / "m.json") == Remembered(
        labels=Labels(config="a", allocation="hold"),
        allocation="hold",
        name="a",
        config={"order": "spread", "healthPolicy": "patient"},
    )


def test_such_a_version_finds_all_that_it_looks_for_as_it_left_it(tmp_path):
    (tmp_path / "m.json").write_text(EARLIER)
    earlier = recall(tmp_path / "m.json")
    remember(tmp_path / "m.json", replace(earlier, health={"memory": "strict"}))
    now = json.loads((tmp_path / "m.json").read_text())
    assert now.pop("health") == {"memory": "strict"}
    assert now == json.loads(EARLIER)


def test_the_annotation_is_not_remembered(tmp_path):
    remember(tmp_path / "m.json", replace(WHAT, labels=Labels(clear="all-of-them")))
    assert "all-of-them" not in (tmp_path / "m.json").read_text()
