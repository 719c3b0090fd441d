"""Autoscalers and exporters."""

import pytest
from doubles.deviceplugin import gap, node, plan, pod, said

from controller.importing import Weight

NONE = "flags: {migStrategy: none}"
PROVIDER = {"cloud.google.com/gke-accelerator": "h100"}


def exporter(*, args=(), **env):
    variables = [{"name": name, "value": value} for name, value in env.items()]
    container = {"name": "c", "image": "nvcr.io/nvidia/k8s/dcgm-exporter:4.5", "env": variables, "args": list(args)}
    return {
        "kind": "DaemonSet",
        "metadata": {"name": "dcgm", "namespace": "gpu-operator"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


def test_karpenters_nodes_are_named():
    found = gap(plan(NONE, node("a", gpu=8, labels={"karpenter.sh/nodepool": "x"}), node("b", gpu=8)), "Karpenter")
    assert (found.weight, found.nodes) == (Weight.BREAKS, ("a",))


def test_nodes_that_a_cluster_autoscaler_would_take_for_unready_are_named():
    through = {**PROVIDER, "cloud.google.com/gke-gpu-dra-driver": "true"}
    made = plan(NONE, node("a", gpu=8, labels=PROVIDER), node("b", gpu=8, labels=through), node("c", gpu=8))
    assert gap(made, "never get ready").nodes == ("a",)


def test_a_cluster_autoscaler_wants_nodes_alike():
    containers = [{"name": "c", "image": "registry.k8s.io/autoscaling/cluster-autoscaler:v1.37.0"}]
    made = plan(NONE, node("a", gpu=8), pod("ca", kind="Deployment", containers=containers))
    assert gap(made, "the Cluster Autoscaler starts nodes").users == ("Deployment ml/ca",)


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (exporter(), True),
        (exporter(KUBERNETES_ENABLE_DRA="false"), True),
        (exporter(KUBERNETES_ENABLE_DRA="true"), False),
        (exporter(args=["--kubernetes-enable-dra"]), False),
    ],
)
def test_an_exporter_that_does_not_read_claims_is_told(one, told):
    made = plan(NONE, node("a", gpu=8), one)
    assert ("dcgm-exporter" in said(made)) is told
    assert not told or gap(made, "dcgm-exporter").users == ("DaemonSet gpu-operator/dcgm",)


def test_nobody_is_told_of_what_is_not_there():
    for part in ("Karpenter", "Autoscaler", "dcgm"):
        assert part not in said(plan(NONE, node("a", gpu=8)))


@pytest.mark.parametrize(("name", "told"), [("high", True), ("", False)])
def test_a_priority_class_in_a_template_counts_as_a_priority(name, told):
    made = plan(NONE, node("a", gpu=8), pod("p", {"nvidia.com/gpu": 1}, kind="Deployment", priorityClassName=name))
    assert ("a pod of higher priority" in said(made)) is told
