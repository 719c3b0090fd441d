"""Plans for clusters: nodes that differ, who is touched, labels, quotas, queues."""

import pytest
from doubles.deviceplugin import gap, node, plan, pod, quota, said, selections
from hypothesis import given
from hypothesis import strategies as st

from controller.importing import Weight, make_plan, read, read_cluster
from controller.importing.plan import NodePlan
from dradriver.api.node_config import decode

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
PLAIN, RENAMED_GPU = {"type": "gpu", "renamed": False}, {"type": "gpu", "renamed": True}
NONE, SINGLE, MIXED = (f"flags: {{migStrategy: {way}}}" for way in ("none", "single", "mixed"))
SLICED = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}"
RENAMED = "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 4}]}}"
MPS = "sharing: {mps: {renameByDefault: true, resources: [{name: gpu, replicas: 2}]}}"


def cut(name, profile, **more):
    """A node whose GPUs feature discovery calls cut into such instances."""
    return node(name, labels={"nvidia.com/gpu.product": f"NVIDIA-H100-MIG-{profile}"}, gpu=7, **more)


# --- nodes ----------------------------------------------------------------------------------------


def test_each_node_gets_its_own_and_the_label_that_says_so():
    made = plan(
        {"default": NONE, "big": MIXED},
        node("a", gpu=8), node("b", config="big", gpu=1, mig_1g_10gb=7), node("c", config="default", gpu=8),
        {"kind": "Node", "metadata": {"name": "without"}},
    )  # fmt: skip
    assert made.nodes == {
        "a": NodePlan(config="default"), "b": NodePlan(config="big", label="big"), "c": NodePlan(config="default"),
    }  # fmt: skip
    assert selections(made) == {GPU: PLAIN, MIG: {"type": "mig", "profile": "1g.10gb", "renamed": False}}


def test_one_entry_is_for_all_and_is_the_default_here_too():
    made = plan({"any": MIXED}, node("a", gpu=8))
    assert made.node_configs["configs"].keys() == {"any", "default"}
    assert made.node_configs["configs"]["default"] == made.node_configs["configs"]["any"]
    assert made.nodes == {"a": NodePlan(config="any")}


def test_the_side_cars_default_needs_labels_where_another_one_has_that_name():
    made = plan({"default": NONE, "big": MIXED}, node("a", gpu=8), default="big")
    assert made.nodes == {"a": NodePlan(config="big", label="big")}


def test_nodes_without_a_configuration_have_defaults_where_the_fallback_is_empty():
    made = plan({"a": NONE, "b": MIXED}, node("n", gpu=8))
    assert made.nodes == {"n": NodePlan(config="(empty)")}
    assert made.node_configs["configs"]["default"] == {"gpus": [{"mig": "off"}]}
    assert decode(made.node_configs).all_problems() == ()


def test_a_label_that_names_nothing_leaves_the_node_out():
    made = plan({"a": NONE}, node("n", config="b", gpu=8), node("m", gpu=8))
    found = gap(made, "the device plugin does not start on n")
    assert (found.nodes, found.weight) == (("n",), Weight.BREAKS)
    assert "names 'b', which the ConfigMap does not have" in found.why
    assert made.nodes["n"] == NodePlan(config="", planned=False)


def test_a_configuration_with_mistakes_leaves_its_nodes_out_and_the_others_are_planned():
    readings = {"a": read(NONE.encode()), "b": read(b"version: v2")}
    made = make_plan(readings, read_cluster([node("n", config="b"), node("m", config="a", gpu=1)]))
    assert made.problems.keys() == {"b"}
    assert gap(made, "with mistakes").nodes == ("n",)
    assert made.node_configs["configs"].keys() == {"a"}


def test_a_configuration_that_no_node_has_makes_no_bridges():
    made = plan({"default": NONE, "old": MIXED}, node("a", gpu=8), pod("p", {MIG: 1}))
    assert selections(made) == {GPU: PLAIN}
    assert "the configuration old, which no node has" in said(made)
    assert "nothing serves nvidia.com/mig-1g.10gb after the move" in said(made, breaks=True)
    assert made.node_configs["configs"].keys() == {"default", "old"}


def test_a_key_that_no_label_can_hold_gets_another_name():
    made = plan({"k" * 80: NONE, "default": NONE}, node("a", gpu=1), default="k" * 80)
    label = made.nodes["a"].label
    assert label in made.node_configs["configs"]
    assert decode(made.node_configs).all_problems() == ()


# --- one name on nodes that differ ----------------------------------------------------------------


def test_single_beside_none_takes_what_the_node_has():
    assert selections(plan({"default": NONE, "s": SINGLE}))[GPU] == {"type": "any", "renamed": False}


def test_single_beside_mixed_without_nodes_is_the_narrower_one():
    made = plan({"m": MIXED, "s": SINGLE}, profiles=["1g.10gb"], fallbacks=())
    assert selections(made)[GPU] == PLAIN
    assert gap(made, "is not served on nodes with the strategy single").weight is Weight.BREAKS


def test_single_beside_mixed_is_told_apart_where_profiles_differ():
    made = plan({"m": MIXED, "s": SINGLE}, node("a", config="m", gpu=1, mig_1g_10gb=7), cut("b", "3g.40gb", config="s"))
    assert selections(made)[GPU] == {"type": "any", "profiles": ["3g.40gb"], "renamed": False}
    assert "is not served" not in said(made)


def test_single_beside_mixed_with_the_same_profile_is_not_served():
    made = plan(
        {"m": MIXED, "s": SINGLE},
        node("a", config="m", gpu=1, mig_1g_10gb=7), cut("b", "1g.10gb", config="s"), pod("p", {GPU: 1}),
        quota("q", {"requests.nvidia.com/gpu": 8}),
    )  # fmt: skip
    found = gap(made, "is not served on nodes with the strategy single")
    assert (found.nodes, found.users, found.limits) == (("b",), ("Pod ml/p",), ("ResourceQuota ml/q",))
    assert "of the profile 1g.10gb" in found.why
    assert selections(made)[GPU] == PLAIN


def test_single_without_partitions_means_whole_gpus():
    whole = node("b", config="s", labels={"nvidia.com/gpu.product": "NVIDIA-H100"}, gpu=8)
    made = plan({"m": MIXED, "s": SINGLE}, node("a", config="m", gpu=1, mig_1g_10gb=7), whole)
    assert selections(made)[GPU] == PLAIN
    assert "is not served" not in said(made)


def test_single_with_a_layout_that_is_refused_today_is_told():
    made = plan(SINGLE, cut("b", "INVALID"), cut("c", "1g.10gb"))
    assert gap(made, "serve nothing today").what.startswith("GPUs of b, which")


def test_renamed_shares_are_kept_apart_from_whole_gpus():
    made = plan({"default": NONE, "s": RENAMED})
    assert selections(made) == {GPU: PLAIN, "nvidia.com/gpu.shared": RENAMED_GPU}
    assert made.node_configs["configs"] == {
        "default": {"gpus": [{"mig": "off"}]},
        "s": {"gpus": [{"mig": "off", "sharing": {"replicas": 4, "rename": True}}], "order": "spread"},
    }


def test_one_way_to_share_under_two_names_is_told_apart_by_the_devices():
    nodes = node("a", config="s", gpu=4), node("b", config="r", gpu_shared=4)
    made = plan({"s": SLICED, "r": RENAMED}, *nodes, pod("p", {GPU: 1}))
    assert selections(made) == {GPU: PLAIN, "nvidia.com/gpu.shared": RENAMED_GPU}
    rules = {
        name: config["gpus"][0]["sharing"] for name, config in made.node_configs["configs"].items() if name != "default"
    }
    assert rules == {"s": {"replicas": 4, "rename": False}, "r": {"replicas": 4, "rename": True}}
    assert said(made, breaks=True) == ""


def test_mps_makes_no_shares_and_the_name_finds_none():
    made = plan({"default": NONE, "s": SLICED, "m": MPS})
    assert selections(made) == {GPU: PLAIN, "nvidia.com/gpu.shared": RENAMED_GPU}
    assert made.node_configs["configs"]["m"] == {"gpus": [{"mig": "off"}]}
    found = gap(made, "nvidia.com/gpu.shared will have no devices, while today each has 2 shares")
    assert (found.weight, found.configs) == (Weight.BREAKS, ("m",))
    assert "this driver has no MPS" in found.why


def test_shares_of_instances_are_told_apart_from_instances_by_the_way_they_are_shared():
    made = plan({"m": MIXED, "s": f"{SINGLE}\n{RENAMED}"}, profiles=["1g.10gb"], fallbacks=())
    assert selections(made)["nvidia.com/gpu.shared"] == {"type": "any", "renamed": True}
    assert "is not served" not in said(made)


def test_shares_of_instances_under_both_kinds_of_names_are_not():
    mixed = f"{MIXED}\n{RENAMED.replace('name: gpu', 'name: mig-1g.10gb')}"
    made = plan({"m": mixed, "s": f"{SINGLE}\n{RENAMED}"}, fallbacks=())
    assert gap(made, "nvidia.com/gpu.shared is not served").configs == ("s",)


# --- what nodes must have -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("v1.34.9", True),
        ("v1.35.0", False),
        ("v1.37.2-gke.1", False),
        ("v1.9.0", True),
        ("unknown", False),
        (None, False),
    ],
)
def test_old_kubelets_are_told(version, old):
    made = plan(NONE, node("a", kubelet=version, gpu=8), node("b", gpu=8))
    assert ("kubelet older than 1.35" in said(made, breaks=True)) is old
    assert not old or gap(made, "kubelet older").nodes == ("a",)


@pytest.mark.parametrize(
    ("runtime", "old"),
    [("containerd://1.6.36", True), ("containerd://1.7.0-rc.1", False), ("cri-o://1.30.1", False), ("", False)],
)
def test_old_runtimes_are_told(runtime, old):
    made = plan(NONE, node("a", runtime=runtime, gpu=8))
    assert ("containerd older than 1.7" in said(made, breaks=True)) is old


def test_nodes_without_gpus_may_be_old():
    one = node("a", kubelet="v1.30.0")
    one["metadata"]["labels"] = {}
    assert "kubelet older" not in said(plan(NONE, one, node("b", gpu=1)))


# --- profiles -------------------------------------------------------------------------------------


def test_profiles_come_from_nodes_labels_pods_quotas_and_whoever_asks():
    made = plan(
        MIXED,
        node("a", labels={"nvidia.com/mig-2g.20gb.count": "3"}, gpu=1, mig_1g_10gb=7),
        pod("p", {"nvidia.com/mig-3g.40gb": 1}), quota("q", {"requests.nvidia.com/mig-4g.40gb": "1"}),
        profiles=["7g.80gb"],
    )  # fmt: skip
    found = [select["profile"] for select in selections(made).values() if "profile" in select]
    assert found == ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
    assert "no bridge is made" not in said(made)


def test_profiles_without_mixed_nodes_make_no_bridges():
    assert selections(plan(NONE, profiles=["1g.10gb"])) == {GPU: PLAIN}


# --- whom it touches ------------------------------------------------------------------------------


def test_gaps_of_a_configuration_name_its_nodes_and_who_may_run_there():
    made = plan(
        {"default": NONE, "s": SLICED},
        node("a", gpu=8), node("b", config="s", gpu=32),
        pod("on-a", {GPU: 1}, nodeName="a"), pod("on-b", {GPU: 1}, nodeName="b"),
        pod("any", {GPU: 2}, kind="Deployment"),
    )  # fmt: skip
    found = gap(made, "need Kubernetes 1.36")
    assert (found.nodes, found.configs) == (("b",), ("s",))
    assert found.users == ("Deployment ml/any", "Pod ml/on-b")
    assert gap(made, "gets shares of different devices").users == ("Deployment ml/any",)


def test_a_name_that_nothing_makes_is_told_with_who_asks():
    made = plan(NONE, node("a", gpu=8), pod("p", {"nvidia.com/gpu.shared": 1}), pod("q", {"nvidia.com/gpumem": 1}))
    assert gap(made, "nothing serves nvidia.com/gpu.shared").users == ("Pod ml/p",)
    assert "no name of NVIDIA's device plugin" in gap(made, "nothing serves nvidia.com/gpumem").why


def test_what_nodes_allocate_and_no_configuration_makes_is_told():
    found = gap(plan(NONE, node("a", gpu=8, mig_1g_10gb=7)), "nvidia.com/mig-1g.10gb, which nodes allocate today")
    assert found.nodes == ("a",)
    assert "--env" in found.todo


@pytest.mark.parametrize(
    ("one", "part"),
    [
        (pod("p", {GPU: 1}, priority=1000), "a pod of higher priority"),
        (pod("p", {GPU: 2}), "not those that lie closest together"),
        (pod("p", {GPU: 1}, init={GPU: 1}), "an init container may see more"),
        (pod("p", {GPU: 40}), "more than 32 devices is not scheduled"),
        (pod("p", {GPU: 1}, kind="Job", nodeName="a"), "pods that come with their node"),
        (pod("p", {GPU: 1}, schedulerName="volcano"), "pods are placed by volcano"),
        (pod("p", {GPU: 1}, runtimeClassName="nvidia"), "the runtime class for GPUs"),
        (pod("p", {GPU: 1}), "TopologyManager"),
        (pod("p", {GPU: 1}), "among nodes with free GPUs"),
        (pod("p", {GPU: 1}), "wait in Terminating"),
        (pod("p", {GPU: 1}), "a sick GPU takes no new pods"),
        (
            pod("p", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
            "NVIDIA_VISIBLE_DEVICES that the pod sets",
        ),
        (
            pod("p", nodeSelector={"nvidia.com/gpu.product": "A100"}),
            "feature discovery: nvidia.com/gpu.product",
        ),
    ],
)
def test_habits_are_told_of_those_whom_they_touch(one, part):
    harmless = pod("harmless", {GPU: 1})
    made = plan(NONE, node("a", gpu=8), one, harmless)
    assert one["metadata"]["name"] in gap(made, part).users[0]
    alone = said(plan(NONE, node("a", gpu=8), pod("p", {"cpu": 1})))
    assert part not in alone


def test_the_operators_own_pods_may_see_all_gpus():
    everything = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    selector = {"nvidia.com/gpu.deploy.dcgm": "true"}
    operand = pod("p", kind="DaemonSet", env=everything, nodeSelector=selector)
    assert "NVIDIA_VISIBLE_DEVICES that the pod sets" not in said(plan(NONE, node("a", gpu=1), operand))


@pytest.mark.parametrize("value", ["void", "none"])
def test_a_variable_that_hides_gpus_is_no_trouble(value):
    one = pod("p", {GPU: 1}, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}])
    assert "NVIDIA_VISIBLE_DEVICES that the pod sets" not in said(plan(NONE, node("a", gpu=1), one))


def test_a_label_that_steers_the_operator_is_none_that_pods_lose():
    one = pod("p", {GPU: 1}, nodeSelector={"nvidia.com/mig.config": "all-1g.10gb"})
    assert "feature discovery" not in said(plan(NONE, node("a", gpu=1), one))


def test_the_environments_other_variables_are_told():
    made = plan(NONE, env={"DP_DISABLE_HEALTHCHECKS": "all", "KUBELET_SOCKET": "/x", "CDI_DISABLE_HOOKS": ""})
    assert "DP_DISABLE_HEALTHCHECKS=all has no counterpart" in said(made)
    assert "KUBELET_SOCKET has no counterpart" in said(made)
    assert "CDI_DISABLE_HOOKS" not in said(made)


def test_a_class_that_has_the_name_is_left_there_until_somebody_says_otherwise():
    theirs = {"kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"}, "spec": {"extendedResourceName": GPU}}
    ours = {"kind": "DeviceClass", "metadata": {"name": "gpu.gpu.dradriver.dev"}, "spec": {"extendedResourceName": GPU}}
    assert "`adopt: true`" in gap(plan(NONE, theirs, ours), "is carried by the DeviceClass gpu.nvidia.com").todo
    assert "is carried by" not in said(plan(NONE, ours))


# --- quotas and queues ----------------------------------------------------------------------------


def test_a_quota_gets_one_for_claims_beside_it():
    made = plan(NONE, node("a", gpu=8), quota("q", {"requests.nvidia.com/gpu": "8", "pods": "9"}))
    assert made.limits.quotas == (
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "q-claims", "namespace": "ml"},
            "spec": {"hard": {"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "8"}},
        },
    )
    assert gap(made, "goes on to count pods").limits == ("ResourceQuota ml/q",)
    assert gap(made, "outside of the quotas of today").limits == ("ResourceQuota ml/q",)


def test_a_quota_with_scopes_cannot_count_claims():
    made = plan(NONE, quota("q", {"requests.nvidia.com/gpu": "8"}, scopeSelector={"matchExpressions": []} | {"x": 1}))
    assert made.limits.quotas == ()
    assert gap(made, "quotas with scopes limit pods only").limits == ("ResourceQuota ml/q",)


def test_a_quota_by_profile_does_not_count_claims_by_profile():
    made = plan(MIXED, node("a", mig_1g_10gb=7), quota("q", {f"requests.{MIG}": "3"}))
    assert made.limits.quotas == ()
    assert "mig.nvidia.com.deviceclass.resource.k8s.io/devices" in gap(made, "count against no quota by profile").todo


def test_a_quota_of_claims_counts_pods_from_then_on():
    found = gap(
        plan(NONE, quota("q", {"count/resourceclaims.resource.k8s.io": "3"})), "counts each pod with an extended"
    )
    assert (found.limits, found.weight) == (("ResourceQuota ml/q",), Weight.BREAKS)


def test_a_quota_on_what_is_gone_counts_nothing():
    assert gap(plan(NONE, quota("q", {f"requests.{MIG}": 1})), "count nothing after the move").limits


def test_where_one_share_is_the_limit_there_is_a_limit_range_to_copy():
    made = plan("sharing: {mps: {renameByDefault: true, resources: [{name: gpu, replicas: 2}]}}")
    assert [one["spec"]["limits"] for one in made.limits.ranges] == [
        [{"type": "Container", "max": {"nvidia.com/gpu.shared": "1"}}]
    ]
    assert plan(SLICED).limits.ranges == ()


def test_a_limit_range_is_not_offered_for_a_name_that_whole_gpus_have_too():
    strict = SLICED.replace("resources:", "failRequestsGreaterThanOne: true, resources:")
    assert plan({"default": NONE, "s": strict}).limits.ranges == ()
    assert plan(strict).limits.ranges != ()


def test_kueue_gets_a_mapping_for_each_bridge():
    made = plan(MIXED, profiles=["1g.10gb"])
    assert made.limits.kueue == {
        "resources": {
            "deviceClassMappings": [
                {"name": GPU, "deviceClassNames": ["gpu.gpu.dradriver.dev", "gpu.nvidia.com"]},
                {"name": MIG, "deviceClassNames": ["mig-1g.10gb.gpu.dradriver.dev"]},
            ]
        }
    }


def test_kueue_is_told_of_where_it_is_used():
    flavors = [{"name": "f", "resources": [{"name": GPU, "nominalQuota": 9}]}]
    queue = {"kind": "ClusterQueue", "metadata": {"name": "k"}, "spec": {"resourceGroups": [{"flavors": flavors}]}}
    made = plan(NONE, queue, {"kind": "Topology", "metadata": {"name": "t"}})
    assert gap(made, "Kueue goes on to charge").limits == ("ClusterQueue k",)
    assert "ResourceClaimTemplates" in gap(made, "use a ResourceClaim directly").why
    assert gap(made, "topology-aware scheduling").limits == ("Topology t",)
    assert "Kueue" not in said(plan(NONE, node("a", gpu=1)))


def test_volcanos_queues_get_keys_for_classes():
    queue = {"kind": "Queue", "metadata": {"name": "v"}, "spec": {"capability": {GPU: "4", "cpu": "8"}}}
    made = plan(NONE, queue)
    assert made.limits.volcano["capabilities"] == {"v": {"deviceclass/gpu.gpu.dradriver.dev": "4"}}
    assert gap(made, "capabilities of Volcano's queues").limits == ("Queue v",)
    assert "capabilities" not in plan(NONE).limits.volcano


def test_kai_needs_rights_and_has_no_profiles_and_no_fractions():
    queue = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "r"}}
    made = plan(MIXED, queue, node("a", gpu=1, mig_1g_10gb=7), pod("p", {MIG: 1}, schedulerName="kai-scheduler"))
    assert made.limits.kai["rules"][0]["resources"] == ["resourceclaims/binding"]
    assert gap(made, "KAI does not serve nvidia.com/mig-1g.10gb").users == ("Pod ml/p",)
    assert gap(made, "fractions of GPUs").weight is Weight.BREAKS
    assert gap(made, "quotas of KAI's queues hold").limits == ("KAI Queue r",)


# --- anything -------------------------------------------------------------------------------------

_TEXTS = st.sampled_from([NONE, SINGLE, MIXED, SLICED, RENAMED, MPS, f"{SINGLE}\n{RENAMED}", "version: v3", ""])
_NODES = st.builds(
    lambda name, config, gpus, instances: node(name, config=config, gpu=gpus, mig_1g_10gb=instances),
    st.sampled_from("abcd"), st.sampled_from(["", "x", "y", "z"]), st.integers(0, 8), st.integers(0, 7),
)  # fmt: skip
_PODS = st.builds(
    lambda name, resource, count: pod(name, {resource: count}),
    st.sampled_from("pqr"), st.sampled_from([GPU, f"{GPU}.shared", MIG, "nvidia.com/x"]), st.integers(1, 50),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["x", "y", "default"]), _TEXTS), st.lists(_NODES | _PODS, max_size=8))
def test_every_plan_is_sound(texts, objects):
    made = make_plan({key: read(text.encode()) for key, text in texts.items()}, read_cluster(objects))
    assert decode(made.node_configs).all_problems() == ()
    names = [one["metadata"]["name"] for one in made.bridges]
    assert len(set(names)) == len(names)
    assert all(one["spec"]["select"] for one in made.bridges)
    labels = {wanted.label for wanted in made.nodes.values()} - {""}
    assert labels <= made.node_configs["configs"].keys()
    told = {(one.place, one.what) for one in made.gaps}
    assert len(told) == len(made.gaps)


# --- what must not be said, and where the line is ---------------------------------------------------


def test_a_profile_is_a_name_of_mixed_nodes_only():
    sliced = SLICED.replace("name: gpu", "name: mig-1g.10gb")
    made = plan({"m": MIXED, "n": sliced}, profiles=["1g.10gb"], fallbacks=())
    assert "nvidia.com/mig-1g.10gb is not shared, since no device has that name" in said(made)
    assert "instead of 4" not in said(made)


def test_only_what_is_named_is_shared():
    made = plan(f"{MIXED}\n{SLICED}", profiles=["1g.10gb"])
    assert [one.what for one in made.gaps if "instead of 4" in one.what] == [
        "nvidia.com/gpu will have one pod for each device instead of 4"
    ]
    assert "MIG instances behind" not in said(made)


def test_single_beside_mixed_whose_profiles_nobody_knows_is_the_narrower_one():
    made = plan({"m": MIXED, "s": SINGLE}, fallbacks=())
    assert selections(made) == {GPU: PLAIN}
    assert "of the profile" not in gap(made, "is not served on nodes with the strategy single").why


@pytest.mark.parametrize("labels", [{}, {"nvidia.com/gpu.product": "H100-MIG-odd"}])
def test_single_beside_mixed_without_a_telling_label_is_the_narrower_one(labels):
    nodes = node("a", config="m", gpu=1, mig_1g_10gb=7), cut("b", "3g.40gb", config="s")
    made = plan({"m": MIXED, "s": SINGLE}, *nodes, node("c", config="s", labels=labels, gpu=7))
    assert selections(made)[GPU] == PLAIN
    assert "is not served" in said(made, breaks=True)


def test_a_label_of_shared_instances_tells_the_profile_too():
    shared = node("b", config="s", labels={"nvidia.com/gpu.product": "H100-MIG-3g.40gb-SHARED"}, gpu=7)
    made = plan({"m": MIXED, "s": SINGLE}, node("a", config="m", gpu=1, mig_1g_10gb=7), shared)
    assert selections(made)[GPU]["profiles"] == ["3g.40gb"]


def test_one_file_is_every_nodes():
    assert plan(NONE, node("a", config="ignored", gpu=8)).nodes == {"a": NodePlan(config="(file)")}


def test_without_nodes_no_configuration_is_unused():
    assert "which no node has" not in said(plan({"default": NONE, "b": MIXED}))


def test_the_empty_configuration_has_a_name_that_nodes_do_not_need():
    made = plan({"a": NONE, "b": MIXED}, node("n", gpu=8), node("m", config="b", gpu=1))
    assert made.node_configs["configs"].keys() == {"a", "b", "default", "device-plugin-empty"}
    assert made.nodes["n"].label == ""


def test_the_empty_configuration_is_no_default_where_an_entry_has_that_name():
    made = plan({"default": MIXED, "b": NONE}, node("n", gpu=8), fallbacks=("empty",))
    assert made.node_configs["configs"]["default"]["gpus"] == [{"mig": "static"}]
    assert made.nodes["n"] == NodePlan(config="(empty)", label="device-plugin-empty")


def test_nothing_is_said_of_limits_that_there_are_not():
    told = said(plan(MIXED, node("a", gpu=1, mig_1g_10gb=7), pod("p", {GPU: 1})))
    for part in (
        "quota",
        "Kueue",
        "Volcano",
        "KAI",
        "count nothing",
        "LimitRange",
        "ResourceClaim directly",
        "fractions",
    ):
        assert part not in told


def test_a_scheduler_of_another_name_is_not_kai():
    told = said(plan(NONE, node("a", gpu=1), pod("p", {GPU: 1}, schedulerName="mine")))
    assert "pods are placed by mine" in told
    assert "KAI" not in told


def test_kais_pods_are_enough_to_speak_of_it_and_profiles_only_where_there_are_some():
    made = plan(NONE, node("a", gpu=1), pod("p", {GPU: 1}, schedulerName="kai-scheduler"))
    assert gap(made, "quotas of KAI's queues hold").users == ("Pod ml/p",)
    assert "KAI does not serve" not in said(made)


def test_limits_of_other_kinds_are_no_quotas_of_pods():
    ranges = {"kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": [{"max": {GPU: 1}}]}}
    made = plan(NONE, node("a", gpu=1), ranges)
    assert made.limits.quotas == ()
    assert "goes on to count pods" not in said(made)
    assert "count nothing after the move" not in said(made)


@pytest.mark.parametrize(
    ("one", "part", "told"),
    [
        (pod("p", {GPU: 1}, priority=0), "a pod of higher priority", False),
        (pod("p", {GPU: 1}, priority=1), "a pod of higher priority", True),
        (pod("p", {GPU: 1}), "closest together", False),
        (pod("p", {GPU: 32}), "more than 32 devices", False),
        (pod("p", {GPU: 33}), "more than 32 devices", True),
        (pod("p", {GPU: 1}, init={"cpu": 1}), "an init container", False),
        (pod("p", {GPU: 1}), "pods are placed by", False),
        (pod("p", {GPU: 1}), "pods that come with their node", False),
        (pod("p", {GPU: 1}), "runtime class", False),
    ],
)
def test_habits_have_a_line(one, part, told):
    assert (part in said(plan(NONE, node("a", gpu=8), one))) is told


def test_a_name_that_could_be_ours_has_another_reason_than_one_that_could_not():
    made = plan(NONE, node("a", gpu=8), pod("p", {MIG: 1}), pod("q", {"nvidia.com/gpumem": 1}))
    assert gap(made, f"nothing serves {MIG}").why == "no configuration that a node has makes this name"
    assert gap(made, "nothing serves nvidia.com/gpumem").why == "it is no name of NVIDIA's device plugin"


def test_labels_are_listed_where_pods_choose_by_them():
    assert gap(plan(NONE), "from GPU feature discovery").what.endswith("discovery")
