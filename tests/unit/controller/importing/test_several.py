"""Plans for clusters with several device plugins, or with nodes that have none."""

from doubles.deviceplugin import gap, node, said, selections

from controller.importing import Installation, Weight, make_plan, plan_all, read, read_cluster
from controller.importing.plan import NodePlan
from dradriver.api.node_config import decode

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
NONE, MIXED = "flags: {migStrategy: none}", "flags: {migStrategy: mixed}"
SLICED = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}"


def installed(name, texts, nodes, **more):
    env = more.get("env", {})
    readings = {key: read(text.encode(), env=env) for key, text in texts.items()}
    return Installation(name=name, readings=readings, nodes=frozenset(nodes), **more)


def planned_all(*installations, objects):
    return plan_all(installations, read_cluster(objects))


def test_several_plugins_have_each_their_nodes_and_configurations_of_the_same_name_are_two():
    nodes = node("a", gpu=8), node("b", gpu=1, mig_1g_10gb=7), node("c", config="s", gpu=32)
    made = planned_all(
        installed("x", {"default": NONE, "s": SLICED}, "ac"), installed("y", {"default": MIXED}, "b"), objects=nodes
    )
    assert made.nodes == {
        "a": NodePlan(config="x/default", label="x.default"),
        "b": NodePlan(config="y/default", label="y.default"),
        "c": NodePlan(config="x/s", label="x.s"),
    }
    assert made.node_configs["configs"].keys() == {"x.default", "x.s", "y.default"}
    assert decode(made.node_configs).all_problems() == ()
    assert selections(made) == {
        GPU: {"type": "gpu", "renamed": False},
        MIG: {"type": "mig", "profile": "1g.10gb", "renamed": False},
    }
    assert gap(made, "may get a share of a device").configs == ("x/s",)


def test_a_plugin_without_a_file_and_one_with_an_empty_fallback_have_names_too():
    nodes = node("a", gpu=8), node("b", gpu=8)
    made = planned_all(installed("x", {"": NONE}, "a"), installed("y", {"p": NONE, "q": NONE}, "b"), objects=nodes)
    assert made.nodes == {
        "a": NodePlan(config="x/(file)", label="x"),
        "b": NodePlan(config="y/(empty)", label="y.device-plugin-empty"),
    }


def test_nodes_of_no_plugin_are_told_where_they_serve_and_noted_where_they_do_not():
    nodes = node("a", gpu=8), node("b", gpu=8), node("c")
    made = planned_all(installed("", {"": NONE}, "a"), objects=nodes)
    assert made.nodes.keys() == {"a"}
    serving = gap(made, "that no DaemonSet of NVIDIA's device plugin serves")
    assert (serving.weight, serving.nodes) == (Weight.BREAKS, ("b",))
    idle = gap(made, "marked as having GPUs")
    assert (idle.weight, idle.nodes) == (Weight.NOTE, ("c",))


def test_the_environment_of_each_plugin_is_its_own():
    nodes = node("a", gpu=8), node("b", gpu=8)
    env = {"MIG_STRATEGY": "single", "DP_DISABLE_HEALTHCHECKS": "all"}
    made = planned_all(installed("x", {"": NONE}, "a", env=env), installed("y", {"": NONE}, "b"), objects=nodes)
    assert {name: config["gpus"][0]["mig"] for name, config in made.node_configs["configs"].items()} == {
        "x": "static",
        "y": "off",
    }
    assert gap(made, "DP_DISABLE_HEALTHCHECKS=all").nodes == ("a",)


def test_mistakes_are_told_by_plugin_and_key():
    made = planned_all(
        installed("x", {"default": "version: v2"}, "a"),
        installed("y", {"default": NONE}, "b"),
        objects=[node("a", gpu=1)],
    )
    assert made.problems.keys() == {"x/default"}
    assert made.nodes == {"a": NodePlan(config="x/default", planned=False)}


def test_a_cluster_that_is_too_old_is_told():
    made = make_plan({"": read(b"")}, read_cluster([node("a", gpu=1)], version=(1, 34)))
    assert "which is Kubernetes 1.34" in said(made, breaks=True)
    made = make_plan({"": read(b"")}, read_cluster([node("a", gpu=1)], version=(1, 35)))
    assert said(made, breaks=True) == ""
