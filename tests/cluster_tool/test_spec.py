# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from localcluster import spec
from localcluster.common import DEFAULT_KUBERNETES, ClusterError
from localcluster.slots import Slot
from localcluster.spec import Wish

NAMES = st.from_regex(r"[A-Z][A-Za-z0-9]{0,20}", fullmatch=True)


def test_a_new_cluster_has_one_node_and_the_default_version():
    made = spec.fresh(Wish(), token="t")
    assert (made.nodes, made.kubernetes, made.complete) == (1, DEFAULT_KUBERNETES, False)
    assert made.node_names == ["node-a"]


@pytest.mark.parametrize("nodes", [-1, 27])
def test_there_are_limits_to_nodes(nodes):
    with pytest.raises(ClusterError, match="1 to 26 nodes"):
        spec.fresh(Wish(nodes=nodes), token="t")


def test_what_is_saved_is_what_is_loaded(layout, made):
    placed = dataclasses.replace(spec.placed(made, Slot(7)), complete=True)
    spec.save(layout, placed)
    assert spec.load(layout) == placed
    assert layout.state.stat().st_mode & 0o077 == 0, "the file holds the administrator's token"


def test_no_file_means_no_cluster(layout):
    assert spec.load(layout) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kubernetes": "1"}', '{"other": 1}'])
def test_a_broken_file_is_named_with_the_way_out(layout, text):
    layout.state.write_text(text)
    with pytest.raises(ClusterError, match=r"state\.json cannot be read.*hack/cluster down"):
        spec.load(layout)


def test_up_again_changes_nothing_and_may_add_nodes(made):
    assert spec.grown(made, Wish()) == made
    assert spec.grown(made, Wish(kubernetes=made.kubernetes, nodes=2)) == made
    assert spec.grown(made, Wish(nodes=5)).nodes == 5


@pytest.mark.parametrize(
    "wish",
    [
        Wish(kubernetes="1.34.3"),
        Wish(emulate="1.35"),
        Wish(feature_gates="A=true"),
        Wish(runtime_config="api/all=true"),
        Wish(nodes=1),
        Wish(nodes=0),
        Wish(nodes=27),
    ],
)
def test_up_again_refuses_what_contradicts(made, wish):
    with pytest.raises(ClusterError, match=r"hack/cluster down|1 to 26"):
        spec.grown(made, wish)


def test_a_control_plane_alone_stays_alone():
    alone = spec.fresh(Wish(nodes=0), token="t")
    assert spec.grown(alone, Wish()) == alone
    with pytest.raises(ClusterError, match="control plane alone"):
        spec.grown(alone, Wish(nodes=1))


@given(gates=st.dictionaries(NAMES, st.booleans()))
def test_gates_are_read_as_written(gates):
    text = ",".join(f"{name}={str(on).lower()}" for name, on in gates.items())
    assert spec.parse_gates(text) == gates


@pytest.mark.parametrize("text", ["A", "A=", "A=yes", "=true", "A=true;B=true", "A=true, B"])
def test_other_gates_are_refused(text):
    with pytest.raises(ClusterError, match="--feature-gates wants"):
        spec.parse_gates(text)
    with pytest.raises(ClusterError, match="--feature-gates wants"):
        spec.fresh(Wish(feature_gates=text), token="t")


@pytest.mark.parametrize(("name", "index"), [("node-a", 0), ("node-b", 1), ("node-z", 25)])
def test_a_node_name_tells_its_number(name, index):
    assert spec.index_of(name) == index
