"""What is kept of a cluster's objects."""

import contextlib

import pytest
from doubles.deviceplugin import container, node, pod, quota
from hypothesis import given
from hypothesis import strategies as st

from controller.importing import ClusterError, read_cluster


def user(one):
    (found,) = read_cluster([one]).users
    return found


def limit(one):
    (found,) = read_cluster([one]).limits
    return found


# --- nodes ----------------------------------------------------------------------------------------


def test_of_a_node_its_labels_and_what_it_allocates_of_ours_are_kept():
    found = read_cluster([node("a", labels={"x": "y"}, gpu=8, mig_1g_10gb=7)]).nodes["a"]
    assert found.resources == {"nvidia.com/gpu": 8, "nvidia.com/mig-1g.10gb": 7}
    assert found.labels["x"] == "y"


@pytest.mark.parametrize(
    ("written", "meant"), [("8", 8), (8, 8), ("1k", 1000), ("1Ki", None), ("-1", None), ("x", None)]
)
def test_quantities_are_whole_numbers_or_nothing(written, meant):
    found = read_cluster([node("a", gpu=written)]).nodes["a"].resources
    assert found == ({} if meant is None else {"nvidia.com/gpu": meant})


def test_names_of_layouts_that_are_gone_are_not():
    assert read_cluster([node("a", gpu=0, mig_1g_10gb=0)]).nodes["a"].resources == {}


def test_while_the_device_plugin_is_away_the_capacity_counts():
    one = node("a", gpu=8)
    one["status"]["allocatable"]["nvidia.com/gpu"] = "0"
    assert read_cluster([one]).nodes["a"].resources == {"nvidia.com/gpu": 8}


# --- users ----------------------------------------------------------------------------------------


def test_a_pods_requests_are_counted_by_container_and_together():
    one = pod("p", {"nvidia.com/gpu": 2, "cpu": 4}, init={"nvidia.com/gpu": 3}, nodeName="a", priority=7)
    one["spec"]["containers"].append(container({"nvidia.com/gpu": 1}))
    found = user(one)
    assert found.name == "Pod ml/p"
    assert found.requests == {"nvidia.com/gpu": 3}
    assert found.total == {"nvidia.com/gpu": 3}
    assert found.initial == ("nvidia.com/gpu",)
    assert (found.node, found.priority, found.scheduler, found.bound) == ("a", 7, "default-scheduler", False)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "ReplicaSet"])
def test_what_makes_pods_of_a_template_asks_for_them(kind):
    found = user(pod("p", {"nvidia.com/gpu": 1}, kind=kind))
    assert found.name == f"{kind} ml/p"
    assert found.requests == {"nvidia.com/gpu": 1}


def test_what_is_made_by_another_one_or_has_ended_does_not_ask():
    owned = pod("p", {"nvidia.com/gpu": 1}, kind="ReplicaSet", metadata={"ownerReferences": [{"kind": "Deployment"}]})
    ended = pod("q", {"nvidia.com/gpu": 1}, status={"phase": "Succeeded"})
    assert read_cluster([owned, ended, pod("r", {"cpu": 1}), pod("s", {"amd.com/gpu": 1})]).users == ()


def test_a_pod_that_only_chooses_nodes_or_sets_the_variable_has_to_do_with_gpus_too():
    term = {"matchExpressions": [{"key": "nvidia.com/gpu.memory", "operator": "Gt"}]}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"preference": {"matchExpressions": [{"key": "nvidia.com/gpu.family"}, {"key": "zone"}]}}
            ],
        }
    }
    found = user(pod("p", nodeSelector={"nvidia.com/gpu.product": "A100", "x": "y"}, affinity=affinity))
    assert found.labels == ("nvidia.com/gpu.family", "nvidia.com/gpu.memory", "nvidia.com/gpu.product")
    assert user(pod("p", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])).visible == "all"


def test_pods_that_come_with_their_node_are_known():
    static = pod("p", {"nvidia.com/gpu": 1}, metadata={"annotations": {"kubernetes.io/config.mirror": "x"}})
    assert user(static).bound
    assert user(pod("p", {"nvidia.com/gpu": 1}, kind="Job", nodeName="a")).bound


# --- limits and classes ---------------------------------------------------------------------------


def test_quotas_are_read_without_their_prefix():
    found = limit(quota("q", {"requests.nvidia.com/gpu": "8", "pods": 3}))
    assert (str(found), found.hard, found.scoped) == ("ResourceQuota ml/q", {"nvidia.com/gpu": "8"}, False)
    assert limit(quota("q", {"requests.nvidia.com/gpu": 8}, scopes=["BestEffort"])).scoped
    assert read_cluster([quota("q", {"pods": 3})]).limits == ()


def test_queues_of_three_kinds_are_told_apart():
    flavors = [{"name": "f", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 9}]}]
    kueue = {
        "kind": "ClusterQueue",
        "metadata": {"name": "k"},
        "spec": {"resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}]},
    }
    volcano = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "v"},
        "spec": {"capability": {"cpu": "8", "nvidia.com/gpu": "4"}},
    }
    kai = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "r"}, "spec": {"resources": {}}}
    found = read_cluster([kueue, volcano, kai]).limits
    assert [(str(one), one.hard) for one in found] == [
        ("ClusterQueue k", {"nvidia.com/gpu": "9"}),
        ("Queue v", {"nvidia.com/gpu": "4"}),
        ("KAI Queue r", {}),
    ]


def test_limit_ranges_classes_and_topologies_are_kept():
    ranges = {"kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": [{"max": {"nvidia.com/gpu": 1}}]}}
    one = {
        "kind": "DeviceClass",
        "metadata": {"name": "gpu.nvidia.com"},
        "spec": {"extendedResourceName": "nvidia.com/gpu"},
    }
    found = read_cluster([ranges, one, {"kind": "Topology", "metadata": {"name": "t"}}])
    assert found.limits[0].hard == {"nvidia.com/gpu": "1"}
    assert found.classes == {"nvidia.com/gpu": ("gpu.nvidia.com",)}
    assert found.topologies == ("t",)


def test_quotas_that_count_claims_are_kept():
    (found,) = read_cluster([quota("q", {"count/resourceclaims.resource.k8s.io": "3"})]).claim_quotas
    assert str(found) == "ResourceQuota ml/q"


# --- anything -------------------------------------------------------------------------------------


def test_lists_are_opened_with_and_without_kinds():
    bare = node("b", gpu=1)
    del bare["kind"]
    found = read_cluster([{"kind": "List", "items": [node("a", gpu=1), {"kind": "NodeList", "items": [bare]}]}])
    assert found.nodes.keys() == {"a", "b"}


@pytest.mark.parametrize("one", ["x", 5, None, [], {}, {"kind": 3}, {"kind": "List", "items": ["x"]}])
def test_what_is_no_object_is_told(one):
    with pytest.raises(ClusterError, match="has no `kind`: it is no Kubernetes object"):
        read_cluster([one])


_KINDS = st.sampled_from(
    [
        "Node",
        "Pod",
        "Deployment",
        "CronJob",
        "ResourceQuota",
        "Queue",
        "ClusterQueue",
        "LimitRange",
        "DeviceClass",
        "List",
    ]
)
_KEYS = st.sampled_from(
    [
        "metadata", "spec", "status", "name", "labels", "template", "jobTemplate", "containers", "initContainers",
        "limits", "resources", "hard", "max", "capacity", "allocatable", "affinity", "nodeAffinity", "env",
        "priority", "items", "nvidia.com/gpu", "resourceGroups", "flavors", "extendedResourceName", "nodeSelector",
    ]
)  # fmt: skip
_DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from(["8", "1k", "-1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
)


@given(
    st.lists(st.builds(lambda kind, body: {**body, "kind": kind}, _KINDS, st.dictionaries(_KEYS, _DATA, max_size=4)))
)
def test_objects_that_are_not_as_they_should_be_are_no_traceback(objects):
    with contextlib.suppress(ClusterError):
        read_cluster(objects)


def test_lists_in_lists_have_an_end():
    one = node("a")
    for _ in range(30):
        one = {"kind": "List", "items": [one]}
    with pytest.raises(ClusterError, match="more than 10 deep"):
        read_cluster([one])
