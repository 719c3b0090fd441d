import re

from hypothesis import given
from hypothesis import strategies as st

from dradriver.publish import slice_name

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def test_an_ordinary_name_is_readable():
    assert slice_name(3, driver="gpu.nvidia.com", node_name="node-a") == "00003-gpu.nvidia.com-node-a"


@given(st.integers(0, 99999), st.text(max_size=300), st.text(max_size=300))
def test_every_name_is_legal_and_stable(index, driver, node):
    name = slice_name(index, driver=driver, node_name=node)
    assert len(name) <= 253
    assert SUBDOMAIN.fullmatch(name)
    assert name == slice_name(index, driver=driver, node_name=node)


@given(st.lists(st.integers(0, 99999), unique=True, min_size=2))
def test_names_sort_like_their_numbers(indexes):
    names = [slice_name(index, driver="d", node_name="n") for index in sorted(indexes)]
    assert names == sorted(names)


def test_long_names_of_different_nodes_differ():
    long = "a" * 250
    assert slice_name(0, driver="d", node_name=long + "b") != slice_name(0, driver="d", node_name=long + "c")
    assert slice_name(0, driver="d", node_name="Node") != slice_name(0, driver="d", node_name="node")
