"""What is kept over restarts, and what other versions, crashes and editors make of it."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.gpu.health import Place
from dradriver.gpu.model import Placement
from dradriver.health import condition as found
from dradriver.health.condition import Cause, Condition, Offence, pass_time, rebooted
from dradriver.health.memory import Known, decode, encode, load, read, save
from dradriver.health.policy import default_policy
from dradriver.health.verdict import marks

HERE = Place(profile_id=19, placement=Placement(start=4, size=1))
XID = Cause(origin="xid", detail="79", place=HERE, since=1_700_000_000.5, last=1_700_000_060.0)
KNOWN = Known(
    boot_id="b0",
    obeyed="all@1",
    conditions={
        "GPU-1": Condition(
            causes=(
                XID,
                Cause(origin="xid", detail="31", since=1.0, last=2.0, grave=3.0, mild=4.0, well=5.0),
                Cause(origin="event", detail="fatal-poison", since=1.0, last=2.0),
                Cause(origin=found.RECOVERY, detail="6", since=1.0, last=2.0, well=3.5),
                Cause(origin=found.LOST, detail="GPU is lost", since=1.0, last=2.0),
            ),
            offences=(Offence(kind="application", place=HERE, claim="c", at=7.25),),
            raises=((found.RECOVERY, 1.0), (found.LOST, 2.0)),
        ),
        "GPU-2": Condition(),
    },
)


def document(known=KNOWN):
    return json.loads(encode(known))


def changed(*path, to):
    """The document with one place in it changed."""
    whole = document()
    spot = whole
    for step in path[:-1]:
        spot = spot[step]
    spot[path[-1]] = to
    return json.dumps(whole)


# --- there and back -------------------------------------------------------------------------------


def test_all_comes_back():
    assert decode(encode(KNOWN)) == KNOWN
    assert decode(encode(Known())) == Known()


def test_the_file_is_plain_json_with_a_version():
    assert document()["version"] == 1
    assert document()["gpus"]["GPU-1"]["causes"][0]["place"] == {
        "profile_id": 19,
        "placement": {"start": 4, "size": 1},
    }


def test_a_file_is_written_read_and_written_over(tmp_path):
    path = tmp_path / "health.json"
    assert load(path) == read(path) == Known()
    assert save(path, KNOWN) == ""
    assert load(path) == read(path) == KNOWN
    assert save(path, replace(KNOWN, boot_id="b1")) == ""
    assert load(path).boot_id == "b1"
    assert [entry.name for entry in tmp_path.iterdir()] == ["health.json"]


def test_a_damaged_file_is_set_aside_once_and_the_next_one_lives(tmp_path):
    path = tmp_path / "health.json"
    path.write_bytes(b"\xff{")
    found = load(path)
    assert replace(found, problem="") == Known()
    assert "health.json.damaged" in found.problem
    assert (tmp_path / "health.json.damaged").read_bytes() == b"\xff{"
    assert not path.exists()
    assert save(path, KNOWN) == ""
    assert load(path) == KNOWN


def test_who_only_looks_leaves_a_damaged_file_where_it_is(tmp_path):
    path = tmp_path / "health.json"
    path.write_text("{")
    with pytest.raises(ValueError, match="Expecting property name"):
        read(path)
    assert path.read_text() == "{"


def test_where_nothing_can_be_kept_is_told_and_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in save(tmp_path / "file" / "health.json", KNOWN)
    (tmp_path / "health.json").mkdir()
    assert "cannot be written" in save(tmp_path / "health.json", KNOWN)


# --- of another version ---------------------------------------------------------------------------


def test_what_a_newer_version_adds_is_left_out():
    whole = document()
    whole |= {"version": 2, "mood": "good"}
    gpu = whole["gpus"]["GPU-1"]
    gpu["weather"] = ["rain"]
    for entry in (*gpu["causes"], *gpu["offences"]):
        entry["shade"] = {"of": "grey"}
    gpu["causes"][0]["place"] |= {"floor": 3}
    gpu["causes"][0]["place"]["placement"] |= {"depth": 1}
    gpu["causes"] += [{"origin": "thermal", "detail": {"degrees": 90}}, {"origin": "noise"}]
    gpu["raises"] += [["thermal", 3.0]]
    assert decode(json.dumps(whole)) == KNOWN


def test_what_an_older_version_did_not_write_may_be_missing():
    text = json.dumps({"bootID": "b", "gpus": {"GPU-1": {"causes": [{"origin": "lost", "since": 1, "last": 2}]}}})
    assert decode(text).conditions["GPU-1"].causes == (Cause(origin="lost", since=1.0, last=2.0),)


def test_two_entries_for_one_cause_are_one():
    whole = document()
    whole["gpus"]["GPU-1"]["causes"] *= 3
    assert decode(json.dumps(whole)) == KNOWN


# --- bent -----------------------------------------------------------------------------------------

NO_TIMES = ["1", None, True, [], {}, -1, 1e300, 253402300800, math.nan, math.inf, -math.inf]
IN_CAUSE = ("gpus", "GPU-1", "causes", 0)


@pytest.mark.parametrize("value", NO_TIMES)
@pytest.mark.parametrize("path", [(*IN_CAUSE, "since"), (*IN_CAUSE, "last"), ("gpus", "GPU-1", "offences", 0, "at")])
def test_what_is_no_time_is_refused(path, value):
    with pytest.raises(ValueError, match="is no Unix time"):
        decode(changed(*path, to=value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("gpus",), []),
        (("gpus",), None),
        (("gpus", "GPU-1"), 7),
        (("gpus", "GPU-1"), []),
        (("gpus", "GPU-1", "causes"), None),
        (("gpus", "GPU-1", "causes"), 5),
        (("gpus", "GPU-1", "causes"), [[]]),
        (("gpus", "GPU-1", "causes"), ["xid"]),
        (("gpus", "GPU-1", "raises"), [1]),
        (("gpus", "GPU-1", "raises"), [["lost"]]),
        (("gpus", "GPU-1", "raises"), [[[], 1]]),
        (("gpus", "GPU-1", "raises"), [["lost", math.inf]]),
        (("gpus", "GPU-1", "offences"), [{}]),
        (("gpus", "GPU-1", "offences", 0, "claim"), 7),
        ((*IN_CAUSE, "origin"), []),
        ((*IN_CAUSE, "detail"), 79),
        ((*IN_CAUSE, "detail"), "seventy-nine"),
        ((*IN_CAUSE, "detail"), " 79"),
        ((*IN_CAUSE, "detail"), "٧٩"),
        ((*IN_CAUSE, "detail"), "-1"),
        ((*IN_CAUSE, "detail"), "9" * 30),
        ((*IN_CAUSE, "detail"), "9" * 10_000),
        (("gpus", "GPU-1", "causes", 3, "detail"), ""),
        (("gpus", "GPU-1", "causes", 3, "detail"), "gpu-reset"),
        ((*IN_CAUSE, "grave"), "x"),
        ((*IN_CAUSE, "place"), 7),
        ((*IN_CAUSE, "place"), {}),
        ((*IN_CAUSE, "place", "profile_id"), math.inf),
        ((*IN_CAUSE, "place", "profile_id"), True),
        ((*IN_CAUSE, "place", "placement"), None),
        ((*IN_CAUSE, "place", "placement", "start"), [1]),
        ((*IN_CAUSE, "place", "placement", "start"), -1),
    ],
)
def test_what_is_bent_is_refused(path, value):
    with pytest.raises(ValueError):
        decode(changed(*path, to=value))


@pytest.mark.parametrize("text", ["", "null", "[]", "7", '"x"', "{}", '{"bootID": "b"}', "[" * 100_000, "\0", "NaN"])
def test_what_is_something_else_is_refused(text):
    with pytest.raises(ValueError):
        decode(text)


def spots(value, path=()):
    yield path
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from spots(inner, (*path, step))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(path=st.sampled_from([path for path in spots(document()) if path]), value=ANYTHING)
def test_a_bent_file_is_either_refused_or_can_be_used(path, value):
    try:
        known = decode(changed(*path, to=value))
    except ValueError:
        return
    policy, now = default_policy(), 1_700_000_100.0
    for uuid, condition in known.conditions.items():
        for after in (pass_time(condition, policy, now), rebooted(condition, policy, now), condition):
            assert all(mark.text and mark.taint for mark in marks(after, policy, uuid))
    assert decode(encode(known)) == known


@given(cut=st.integers(0, len(encode(KNOWN)) - 1))
def test_half_a_file_is_refused(cut):
    with pytest.raises(ValueError):
        decode(encode(KNOWN)[:cut])
