"""Documents in the files that people have."""

import json

import pytest

from dradriver.nodeconfig.manifest import Part, documents

CONFIG = b"apiVersion: dradriver.dev/v1alpha1\nkind: NodeConfigs\nconfigs: {}\n"


def config_map(data):
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": data}).encode()


@pytest.mark.parametrize("data", [CONFIG, b"", b"{", b"[]", b"kind: Pod", b"a: 1\n---\nb: 2", b"\xff"])
def test_what_is_no_config_map_is_the_document(data):
    assert documents(data) == (Part(data=data),)


def test_each_entry_of_a_config_map_is_one():
    found = documents(config_map({"nodes.yaml": CONFIG.decode(), "more": "x"}))
    assert found == (Part(place="data['nodes.yaml']", data=CONFIG), Part(place="data.more", data=b"x"))


def test_a_block_of_text_is_taken_as_it_is():
    text = "kind: ConfigMap\ndata:\n  a.yaml: |\n    x: off\n    # remark\n    y: 1\n"
    assert documents(text.encode()) == (Part(place="data['a.yaml']", data=b"x: off\n# remark\ny: 1\n"),)


@pytest.mark.parametrize("data", [None, [], {}, {"a": 1}])
def test_a_config_map_without_texts_has_none(data):
    assert documents(config_map(data)) == ()
