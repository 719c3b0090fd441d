"""Which configuration a node has, and where configurations are found."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.importing import SourceError, choose, read, read_source
from controller.importing.choice import LABEL
from controller.importing.sources import ONLY


def labelled(value):
    return {LABEL: value}


# --- the choice -----------------------------------------------------------------------------------


def test_one_file_is_for_every_node():
    assert choose([ONLY], labelled("a")).key == ONLY
    assert choose([ONLY], {}).key == ONLY


def test_the_label_decides():
    assert choose(["a", "default"], labelled("a")).key == "a"


def test_a_label_that_names_nothing_is_no_fallback():
    found = choose(["a", "default"], labelled("b"))
    assert found.key is None
    assert found.trouble == f"the label {LABEL} names 'b', which the ConfigMap does not have; it has a, default"


def test_an_empty_label_is_none():
    assert choose(["a", "default"], labelled("")).key == "default"


def test_the_side_cars_default_goes_before_the_fallbacks():
    assert choose(["a", "default"], {}, default="a").key == "a"
    assert choose(["a", "default"], labelled("default"), default="a").key == "default"
    assert choose(["a"], {}, default="b").trouble.startswith("the side-car's default is 'b', which")


@pytest.mark.parametrize(
    ("keys", "key", "empty"),
    [(["a", "default"], "default", False), (["a"], "a", False), (["a", "b"], "", True), ([], "", True)],
)
def test_the_fallbacks_come_in_the_plugins_order(keys, key, empty):
    found = choose(keys, {})
    assert (found.key, found.empty) == (key, empty)


def test_the_fallbacks_can_be_others():
    assert choose(["a", "default"], {}, fallbacks=("single", "empty")).empty
    assert choose(["a", "b"], {}, fallbacks=("named", "single")).key is None
    assert "named, single" in choose(["a", "b"], {}, fallbacks=("named", "single")).trouble


@given(st.lists(st.text()), st.dictionaries(st.text() | st.just(LABEL), st.text()), st.text())
def test_a_choice_is_one_of_the_keys_or_empty_or_none_with_the_reason(keys, labels, default):
    found = choose(keys, labels, default=default)
    assert (found.key is None) == bool(found.trouble)
    assert found.key is None or found.empty or found.key in keys


# --- the source -----------------------------------------------------------------------------------


def config_map(data=None, **more):
    meta = {"name": "dp", "namespace": "gpu-operator", "uid": "x", "managedFields": [{}]}
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data, **more}).encode()


def test_a_config_map_has_a_configuration_under_each_key():
    found = read_source(config_map({"a": "version: v1", "b.yaml": ""}))
    assert found.texts == {"a": b"version: v1", "b.yaml": b""}
    assert found.name == "gpu-operator/dp"
    assert found.place("b.yaml") == "data['b.yaml']"
    assert not found.is_file


def test_binary_entries_are_files_too():
    found = read_source(config_map(None, binaryData={"a": base64.b64encode(b"version: v1").decode(), "b": "?"}))
    assert found.texts == {"a": b"version: v1"}
    assert [str(problem) for problem in found.problems] == ["binaryData.b: must be a text in base64"]


@pytest.mark.parametrize("data", [b"version: v1", b"imex: {}", b"a: [", b"[]", b"\xff"])
def test_everything_without_a_kind_is_one_file(data):
    found = read_source(data)
    assert found.texts == {ONLY: data}
    assert (found.is_file, found.place(ONLY)) == (True, "")


def test_an_entry_that_is_no_text_is_told():
    found = read_source(config_map({"a": {"version": "v1"}, "b": "x"}))
    assert found.texts.keys() == {"b"}
    assert [str(problem) for problem in found.problems] == [
        "data.a: is a mapping; must be a text: write `a: |` and the configuration below it"
    ]
    assert "must be a mapping of keys" in str(read_source(config_map(["a"])).problems[0])


@pytest.mark.parametrize("data", [None, {}])
def test_a_config_map_without_entries_is_refused(data):
    with pytest.raises(SourceError, match="the ConfigMap has no data; give the one"):
        read_source(config_map(data))


def test_another_kind_is_refused():
    with pytest.raises(SourceError, match="it is of kind 'Secret'; give a ConfigMap"):
        read_source(b"kind: Secret")


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf# x\n", b"foo: bar", b"{}", b"1: 2"])
def test_what_says_nothing_is_refused(data):
    with pytest.raises(SourceError, match="write `version: v1` for a configuration of defaults"):
        read_source(data)


def test_a_config_map_of_something_else_is_refused_and_an_empty_entry_is_none():
    with pytest.raises(SourceError, match=r"no entry of the ConfigMap gpu-operator/dp \(a, b\) has a field"):
        read_source(config_map({"a": "x: 1", "b": "y: 1"}))
    assert read_source(config_map({"a": "x: 1", "b": "# defaults"})).texts.keys() == {"a", "b"}
    assert read_source(config_map({"a": "x: 1", "b": "FLAGS: {}"})).texts.keys() == {"a", "b"}


def test_half_a_surrogate_pair_is_a_mistake_and_no_traceback():
    found = read_source(b'{"kind": "ConfigMap", "data": {"a": "version: \\ud800"}}')
    assert all(read(text).problems for text in found.texts.values())


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_bytes_are_too_strange(data):
    try:
        found = read_source(data)
    except SourceError:
        return
    for text in found.texts.values():
        read(text)
