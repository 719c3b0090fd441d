"""What --apply would write, decided without an API server; tests/control_plane/test_plan_*.py see it happen."""

import json

import pytest
import yaml
from doubles.deviceplugin import node, plan

from controller.cli.wanted import FIELD_MANAGER, LABEL, Refusal, Write, bridges, config_map, labels, node_configs
from controller.importing import make_plan, read, read_cluster
from dradriver.api.node_config import decode

GPU = "nvidia.com/gpu"
TEXTS = {"default": "version: v1", "cut": "flags: {migStrategy: mixed}"}
NODES = node("a", gpu=8), node("b", config="cut", gpu=1, mig_1g_10gb=7)
PLAN = plan(TEXTS, *NODES)
SELECT = {"type": "gpu", "renamed": False}


def live_bridge(name, resource=GPU, select=None):
    return {
        "kind": "ExtendedResourceBridge",
        "metadata": {"name": name},
        "spec": {"resourceName": resource, "select": select or SELECT},
    }


def live_map(**configs):
    document = {"apiVersion": "dradriver.dev/v1alpha1", "kind": "NodeConfigs", "configs": configs}
    return {"kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"nodes.yaml": json.dumps(document)}}


def live_node(name, label=None, manager=FIELD_MANAGER):
    fields = {"f:metadata": {"f:labels": {f"f:{LABEL}": {}}}}
    owned = [{"manager": manager, "fieldsV1": fields}] if label else []
    other = {"manager": "kubelet", "fieldsV1": {"f:status": {}}}
    metadata = {"name": name, "uid": f"uid-{name}", "managedFields": [other, *owned]}
    return {"metadata": metadata | ({"labels": {LABEL: label}} if label else {})}


def only(found):
    (one,) = found
    return one


# --- bridges --------------------------------------------------------------------------------------


def test_bridges_that_are_not_there_are_written():
    found = list(bridges(PLAN, []))
    assert [str(one) for one in found] == ["ExtendedResourceBridge gpu", "ExtendedResourceBridge mig-1g.10gb"]
    assert all(one.live is None and one.needed for one in found)


def test_a_bridge_of_the_same_name_is_applied_over():
    there = live_bridge("gpu", select={"cel": "true"})
    assert [one.live for one in bridges(PLAN, [there])] == [there, None]


def test_a_bridge_of_another_name_is_kept_where_it_selects_the_same_and_refused_where_not():
    kept = next(iter(bridges(PLAN, [live_bridge("mine")])))
    assert (str(kept), kept.needed) == ("ExtendedResourceBridge mine", False)
    refused = next(iter(bridges(PLAN, [live_bridge("mine", select={"type": "gpu"})])))
    assert isinstance(refused, Refusal)
    assert refused.object == "ExtendedResourceBridge gpu"
    assert "mine" in refused.why
    assert "spec.select.renamed is not set and the plan wants false" in refused.why
    assert "kubectl delete erb mine" in refused.todo
    assert 'kubectl patch erb mine --type=merge -p \'{"spec":{"select":{"renamed":false}' in refused.todo


def test_a_bridge_of_ours_beside_another_one_is_applied_all_the_same():
    assert isinstance(
        next(iter(bridges(PLAN, [live_bridge("gpu"), live_bridge("mine", select={"type": "mig"})]))), Write
    )


def test_a_bridge_of_the_name_for_another_resource_is_refused():
    refused = next(iter(bridges(PLAN, [live_bridge("gpu", "nvidia.com/x")])))
    assert str(refused).startswith("ExtendedResourceBridge gpu: there is one of that name for nvidia.com/x, ")


# --- node configurations --------------------------------------------------------------------------


def written(found):
    document = yaml.safe_load(found.item.body["data"]["nodes.yaml"])
    assert decode(document).all_problems() == ()
    return document["configs"]


def test_a_config_map_is_made_where_there_is_none():
    for live in (None, {"metadata": {"name": "x"}}, {"metadata": {"name": "x"}, "data": {"other": "y"}}):
        found = node_configs(PLAN, live)
        assert written(found) == PLAN.node_configs["configs"]
        assert (found.names, found.present) == ({"default", "cut"}, frozenset())


def test_configurations_are_merged_by_name_and_others_stay():
    found = node_configs(PLAN, live_map(mine={"order": "packed"}, cut={"order": "packed"}))
    assert written(found) == {"mine": {"order": "packed"}} | PLAN.node_configs["configs"]
    assert found.item.needed
    assert found.present == frozenset()


def test_nothing_is_needed_where_all_of_it_is_there():
    found = node_configs(PLAN, live_map(mine={}, **PLAN.node_configs["configs"]))
    assert not found.item.needed
    assert found.present == found.names


def test_health_policies_and_mistakes_of_single_configurations_stay():
    live = live_map(mine={"mig": "odd"})
    document = json.loads(live["data"]["nodes.yaml"]) | {"healthPolicies": {"own": {"memory": "strict"}}}
    live["data"]["nodes.yaml"] = json.dumps(document)
    merged = yaml.safe_load(node_configs(PLAN, live).item.body["data"]["nodes.yaml"])
    assert merged["healthPolicies"] == {"own": {"memory": "strict"}}
    assert merged["configs"].keys() == {"mine", "default", "cut"}


@pytest.mark.parametrize("text", ["a: [", "- 1", "x", "kind: Other", "configs: 5"])
def test_what_cannot_be_read_is_left(text):
    found = node_configs(PLAN, {"metadata": {"name": "x"}, "data": {"nodes.yaml": text}})
    assert isinstance(found.item, Refusal)
    assert "dradriver config check" in found.item.todo
    assert found.present == frozenset()


def test_too_many_configurations_are_left():
    found = node_configs(PLAN, live_map(**{f"c{index}": {} for index in range(256)}, cut=None))
    assert isinstance(found.item, Refusal)
    found = node_configs(PLAN, live_map(**{f"c{index}": {} for index in range(255)}))
    assert "at most 256 are allowed" in found.item.why


def test_a_plan_without_configurations_has_no_config_map():
    empty = make_plan({"a": read(b"version: v2")}, read_cluster([node("n", config="a", gpu=1)]))
    assert config_map(empty) is None


# --- labels ---------------------------------------------------------------------------------------

ALL = frozenset({"default", "cut"})


def test_a_label_is_set_where_it_is_missing_and_left_where_it_is_there():
    write = only(labels(PLAN, [live_node("b")], ALL))
    assert write.needed
    assert write.body["metadata"] == {"name": "b", "uid": "uid-b", "labels": {LABEL: "cut"}}
    assert not only(labels(PLAN, [live_node("b", "cut", "somebody")], ALL)).needed
    assert not only(labels(PLAN, [live_node("a")], ALL)).needed


def test_a_label_of_ours_is_changed_and_taken_away():
    assert only(labels(PLAN, [live_node("b", "old")], ALL)).body["metadata"]["labels"] == {LABEL: "cut"}
    write = only(labels(PLAN, [live_node("a", "old")], ALL))
    assert write.needed
    assert "labels" not in write.body["metadata"]


def test_a_label_of_somebody_else_is_left():
    for name, change in (("b", f"{LABEL}=cut --overwrite"), ("a", f"{LABEL}-")):
        refused = only(labels(PLAN, [live_node(name, "theirs", "kubectl-label")], ALL))
        assert refused.todo.endswith(f"kubectl label node {name} {change}")


def test_a_label_waits_for_its_configuration():
    refused = only(labels(PLAN, [live_node("b")], frozenset({"default"})))
    assert "does not have the configuration cut" in refused.why
    assert "does not have the configuration default" in only(labels(PLAN, [live_node("a")], frozenset({"cut"}))).why


def test_nodes_without_a_part_in_the_plan_are_not_touched():
    readings = {"default": read(b"version: v1"), "bad": read(b"version: v2")}
    made = make_plan(readings, read_cluster([node("a", gpu=8), node("b", config="bad", gpu=8), node("c", config="x")]))
    found = labels(made, [live_node("a"), live_node("b", "old"), live_node("c", "old"), live_node("d", "old")], ALL)
    assert [str(one) for one in found] == ["Node a"]
