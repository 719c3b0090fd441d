"""On which nodes a DaemonSet is."""

import pytest
from doubles.deviceplugin import daemon_set, node, pod
from hypothesis import given
from hypothesis import strategies as st

from controller.importing import read_cluster
from controller.importing.cluster import Node
from controller.importing.installed import find_plugins
from controller.importing.placement import Where, place, where


def expression(key, operator, *values):
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def affinity(*terms):
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def term(*expressions):
    return {"matchExpressions": list(expressions)}


def allowed(spec, *, labels=None, taints=(), name="n"):
    return where(spec).allows(Node(name=name, labels=labels or {}, taints=tuple(taints)))


def test_without_any_wish_it_is_everywhere():
    assert allowed({})
    assert Where() == where({"nodeSelector": None, "affinity": {}, "tolerations": None})


def test_a_selector_wants_all_of_its_labels():
    spec = {"nodeSelector": {"a": "1", "b": "2"}}
    assert allowed(spec, labels={"a": "1", "b": "2", "c": "3"})
    assert not allowed(spec, labels={"a": "1"})
    assert not allowed(spec, labels={"a": "1", "b": "3"})


@pytest.mark.parametrize(
    ("one", "yes", "no"),
    [
        (expression("a", "In", "1", "2"), {"a": "2"}, {"a": "3"}),
        (expression("a", "In", "1"), {"a": "1"}, {}),
        (expression("a", "NotIn", "1"), {"a": "2"}, {"a": "1"}),
        (expression("a", "NotIn", "1"), {}, {"a": "1"}),
        (expression("a", "Exists"), {"a": ""}, {}),
        (expression("a", "DoesNotExist"), {}, {"a": ""}),
        (expression("a", "Gt", "5"), {"a": "6"}, {"a": "5"}),
        (expression("a", "Lt", "5"), {"a": "4"}, {"a": "5"}),
        (expression("a", "Gt", "5"), {"a": "10"}, {"a": "many"}),
    ],
)
def test_operators_mean_what_kubernetes_means(one, yes, no):
    spec = {"affinity": affinity(term(one))}
    assert allowed(spec, labels=yes)
    assert not allowed(spec, labels=no)


def test_one_term_is_enough_and_all_of_it_must_hold():
    spec = {
        "affinity": affinity(
            term(expression("a", "Exists"), expression("b", "Exists")), term(expression("c", "Exists"))
        )
    }
    assert allowed(spec, labels={"a": "", "b": ""})
    assert allowed(spec, labels={"c": ""})
    assert not allowed(spec, labels={"a": ""})


def test_a_term_may_name_the_node_and_an_empty_one_chooses_none():
    spec = {"affinity": affinity({"matchFields": [expression("metadata.name", "In", "m")]})}
    assert allowed(spec, name="m")
    assert not allowed(spec, name="n")
    assert not allowed({"affinity": affinity({})})
    assert not allowed({"affinity": affinity(term(expression("a", "Unknown")))}, labels={"a": "1"})


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "nvidia.com/gpu", "value": "present"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Equal", "value": "other"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"value": "present"}, False),
    ],
)
def test_taints_are_tolerated_as_kubernetes_does(toleration, tolerated):
    taint = ("nvidia.com/gpu", "present", "NoSchedule")
    assert allowed({"tolerations": [toleration]}, taints=[taint]) is tolerated


def test_some_taints_keep_no_daemon_set_away():
    assert allowed({}, taints=[("a", "", "PreferNoSchedule"), ("node.kubernetes.io/unschedulable", "", "NoSchedule")])
    assert not allowed({}, taints=[("a", "", "NoExecute")])


# --- several --------------------------------------------------------------------------------------


def placed(*objects, **selectors):
    plugins = find_plugins([daemon_set(name, selector=selector) for name, selector in selectors.items()])
    return place([one.candidate for one in plugins], read_cluster(objects))


def running(plugin, on, *, phase="Running"):
    owner = {"kind": "DaemonSet", "name": plugin}
    metadata = {"ownerReferences": [owner]}
    return pod(f"{plugin}-x", namespace="gpu-operator", nodeName=on, metadata=metadata, status={"phase": phase})


def test_each_node_has_the_one_that_is_for_it():
    nodes = node("a", labels={"pool": "1"}, gpu=8), node("b", labels={"pool": "2"}, gpu=8), node("c", gpu=8)
    found = placed(*nodes, one={"pool": "1"}, two={"pool": "2"})
    assert found.nodes == ({"a"}, {"b"})
    assert found.gaps == ()


def test_two_for_one_node_are_told_and_the_first_counts():
    found = placed(node("a", gpu=8), node("b", gpu=8), one={}, two={})
    assert found.nodes == ({"a", "b"}, frozenset())
    gap = found.gaps[0]
    assert "gpu-operator/one, gpu-operator/two; the plan goes by gpu-operator/one" in gap.what
    assert gap.nodes == ("a", "b")


def test_one_that_runs_goes_before_one_that_would():
    found = placed(node("a", gpu=8), running("two", "a"), one={}, two={"pool": "elsewhere"})
    assert found.nodes == (frozenset(), {"a"})
    assert [gap.what for gap in found.gaps] == [
        "the device plugin gpu-operator/one is on no node with GPUs, and has no part in this plan"
    ]


def test_where_no_node_has_gpus_none_is_said_to_be_idle():
    assert placed(one={}, two={}).gaps == ()


def test_one_whose_pod_is_over_does_not_run():
    assert placed(node("a", gpu=8), running("two", "a", phase="Failed"), one={}, two={"x": "y"}).nodes[0] == {"a"}


_ANY = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.dictionaries(st.just("key"), st.text(max_size=2)))


@given(
    st.dictionaries(
        st.sampled_from(["nodeSelector", "affinity", "tolerations"]), _ANY | st.dictionaries(st.text(max_size=2), _ANY)
    )
)
def test_nothing_is_too_strange(spec):
    assert where(spec).allows(Node(name="n", taints=(("a", "b", "NoSchedule"),))) in (True, False)
