"""`kubectl dra plan --from-cluster`, against an API server's double: it reads, and writes nothing."""

from contextlib import closing

import pytest
from doubles.apiserver import ApiServer, Fault
from doubles.deviceplugin import daemon_set, node, pod, quota

from controller.cli import run
from controller.cli.live import look, name_of
from controller.importing.installed import Installed
from dradriver.kube.connection import connect


def config_map(data):
    return {"kind": "ConfigMap", "metadata": {"name": "configs", "namespace": "gpu-operator"}, "data": data}


@pytest.fixture
def api():
    with ApiServer() as server:
        yield server


@pytest.fixture
def planned(api, tmp_path, capsys):
    def call(*words, status=0):
        config = str(api.kubeconfig(tmp_path))
        assert run(["plan", "--from-cluster", "--kubeconfig", config, *words]) == status
        assert {request.method for request in api.requests} == {"GET"}
        return capsys.readouterr()

    return call


@pytest.fixture
def filled(api):
    api.put("daemonsets", daemon_set(env={"MIG_STRATEGY": "mixed"}, car={"DEFAULT_CONFIG": "a"}))
    data = {"a": "version: v1", "b": "flags: {plugin: {deviceIDStrategy: index}}"}
    api.put(
        "configmaps", {"kind": "ConfigMap", "metadata": {"name": "configs", "namespace": "gpu-operator"}, "data": data}
    )
    api.put("nodes", node("n1", gpu=1, mig_1g_10gb=7))
    api.put("nodes", node("n2", config="b", gpu=8))
    api.put("pods", pod("p", {"nvidia.com/mig-1g.10gb": 1}, nodeName="n1"))
    api.put("resourcequotas", quota("q", {"requests.nvidia.com/gpu": 8}))
    return api


def test_everything_is_read_from_the_cluster(planned, filled):
    told = planned()
    assert told.err == ""
    for part in (
        "mig-1g.10gb   nvidia.com/mig-1g.10gb   WhenReady   type: mig, profile: 1g.10gb",
        "n1     a",
        "n2     b",
        "q-claims",
        "Pod ml/p",
        "told UUIDs, no indices",
    ):
        assert part in told.out
    assert "no bridge is made" not in told.out


def test_words_go_before_what_is_found(planned, filled):
    out = planned("--env", "MIG_STRATEGY=none", "--default-config", "b").out
    assert "n1     b" in out
    assert "nvidia.com/mig-1g.10gb, which nodes allocate today, gets no bridge" in out


def test_a_file_goes_before_the_plugins_config_map(planned, filled, tmp_path):
    file = tmp_path / "dp.yaml"
    file.write_text("flags: {migStrategy: none}")
    assert "n1     (file)" in planned("--device-plugin-config", str(file)).out


def test_a_plugin_without_a_config_map_has_its_environment(planned, api):
    api.put("daemonsets", daemon_set(env={"MIG_STRATEGY": "single"}))
    api.put("nodes", node("n1", gpu=7))
    assert "nobody checks any more that all MIG instances" in planned().out


def test_a_plugin_that_reads_one_entry_has_that_one(planned, api):
    mounts = [{"name": "available-configs", "mountPath": "/config"}]
    api.put("daemonsets", daemon_set(env={"CONFIG_FILE": "/config/dp.yaml"}, mounts=mounts))
    one = {
        "kind": "ConfigMap",
        "metadata": {"name": "configs", "namespace": "gpu-operator"},
        "data": {"dp.yaml": "version: v2"},
    }
    api.put("configmaps", one)
    assert "gpu-operator/configs: version: is 'v2'; allowed: v1" in planned(status=1).err
    api.put("configmaps", config_map({"other": "x"}))
    told = "DaemonSet gpu-operator/nvidia-device-plugin-daemonset: the ConfigMap gpu-operator/configs has no dp.yaml"
    assert told in planned(status=1).err


def test_no_plugin_is_told(planned, api):
    assert "there is no DaemonSet of NVIDIA's device plugin" in planned(status=1).err


def test_each_node_has_the_configuration_of_the_plugin_that_is_there(planned, api):
    a100 = daemon_set("a100", env={"MIG_STRATEGY": "mixed"}, selector={"pool": "a100"})
    h100 = daemon_set("h100", env={"MIG_STRATEGY": "none"}, selector={"pool": "h100"})
    for one in (a100, h100):
        api.put("daemonsets", one)
    api.put("nodes", node("n1", labels={"pool": "a100"}, gpu=1, mig_1g_10gb=7))
    api.put("nodes", node("n2", labels={"pool": "h100"}, gpu=8))
    api.put("nodes", node("n3", labels={"pool": "other"}, gpu=8))
    told = planned()
    assert "n1     a100/(file)                   a100\n" in told.out
    assert "n2     h100/(file)                   h100\n" in told.out
    assert "a100                 static" in told.out
    assert "h100                 off" in told.out
    assert "nodes with GPUs that no DaemonSet of NVIDIA's device plugin serves" in told.out
    assert "nodes:   n3" in told.out


def test_a_plugin_that_is_on_no_node_does_not_count(planned, api):
    api.put("daemonsets", daemon_set("left-over", car={}, selector={"no": "where"}))
    api.put("daemonsets", daemon_set("plugin", env={"MIG_STRATEGY": "single"}))
    api.put("nodes", node("n1", gpu=8))
    out = planned().out
    assert "n1     (file)                        -\n" in out
    assert "the device plugin gpu-operator/left-over is on no node with GPUs" in out


def test_plugins_of_one_name_are_told_apart_by_their_namespace():
    same = [Installed(namespace=namespace, name="plugin") for namespace in ("a", "b")]
    other = Installed(namespace="a", name="other")
    assert [name_of(one, [*same, other]) for one in (*same, other)] == ["a.plugin", "b.plugin", "other"]
    assert name_of(other, [other]) == ""


def test_shares_are_judged_by_the_servers_version(planned, api):
    api.put("daemonsets", daemon_set(car={}))
    text = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}"
    api.put("configmaps", config_map({"default": text}))
    api.put("nodes", node("n1", gpu=32))
    assert "need Kubernetes 1.36" not in planned().out
    api.minor = "35+"
    assert "[breaks] shares of nvidia.com/gpu need Kubernetes 1.36 or newer, and this is 1.35" in planned().out


def test_what_takes_room_is_not_kept(api, tmp_path):
    one = pod("p", {"nvidia.com/gpu": 1}, metadata={"managedFields": [{"manager": "x"}]})
    api.put("pods", one | {"status": {"phase": "Running", "containerStatuses": [{"name": "c"}]}})
    api.put("nodes", node("n1", gpu=8))
    with closing(connect(api.kubeconfig(tmp_path), user_agent="test")) as client:
        found = {item["kind"]: item for item in look(client).objects}
    assert found["Pod"]["status"] == {"phase": "Running"}
    assert "managedFields" not in found["Pod"]["metadata"]
    assert found["Node"]["status"].keys() == {"capacity", "allocatable", "nodeInfo"}


def test_a_config_map_that_is_not_there_is_told(planned, api):
    api.put("daemonsets", daemon_set(car={}))
    said = planned(status=1)
    assert said.out == ""
    assert said.err == (
        "kubectl dra plan: DaemonSet gpu-operator/nvidia-device-plugin-daemonset: the ConfigMap gpu-operator/configs "
        "is not there, so it does not start; make it, name another one in the DaemonSet, or plan for its nodes with a "
        "file: --from-cluster --device-plugin-config FILE\n"
    )


def test_a_config_map_that_must_not_be_read_is_told(planned, api):
    api.put("daemonsets", daemon_set(car={}))
    api.fail(Fault(status=403, reason="Forbidden"), when=lambda request: "configmaps" in request.path, times=9)
    said = planned(status=1).err
    assert "the ConfigMap gpu-operator/configs cannot be used: " in said
    assert "; correct that, name another one in the DaemonSet, or plan for its nodes with a file" in said


def test_a_plugin_without_its_config_map_does_not_keep_others_from_being_planned(planned, api):
    api.put("daemonsets", daemon_set("sound", env={"MIG_STRATEGY": "mixed"}, selector={"pool": "a"}))
    api.put("daemonsets", daemon_set("broken", car={}, selector={"pool": "b"}))
    api.put("nodes", node("n1", labels={"pool": "a"}, gpu=1, mig_1g_10gb=7))
    api.put("nodes", node("n2", labels={"pool": "b"}, gpu=8))
    said = planned(status=1)
    assert "DaemonSet gpu-operator/broken: the ConfigMap gpu-operator/configs is not there" in said.err
    assert said.err.count("is not there") == 1
    assert "n1     sound/(file)                  sound\n" in said.out
    assert "nvidia.com/mig-1g.10gb   WhenReady" in said.out
    assert "[breaks] nodes of a configuration with mistakes have no part in this plan" in said.out
    assert "nodes:   n2" in said.out


def test_where_no_plugin_has_its_config_map_each_is_told(planned, api):
    for name in ("a", "b"):
        api.put("daemonsets", daemon_set(name, car={}, selector={"pool": name}))
        api.put("nodes", node(name, labels={"pool": name}, gpu=1))
    said = planned(status=1)
    assert said.out == ""
    assert "DaemonSet gpu-operator/a: " in said.err
    assert "DaemonSet gpu-operator/b: " in said.err


def test_what_must_not_be_read_is_left_out_and_told(planned, filled):
    filled.fail(Fault(status=403, reason="Forbidden"), when=lambda request: "resourcequotas" in request.path, times=9)
    told = planned()
    assert (
        "kubectl dra plan: resourcequotas are left out: LIST" in told.err or "resourcequotas are left out" in told.err
    )
    assert "q-claims" not in told.out


def test_a_kind_that_the_cluster_does_not_have_is_no_trouble(planned, filled):
    filled.fail(Fault(status=404, reason="NotFound"), when=lambda request: "kueue" in request.path, times=9)
    assert planned().err == ""


def test_without_nodes_there_is_no_plan(planned, filled):
    filled.fail(Fault(status=403, reason="Forbidden"), when=lambda request: request.path.endswith("/nodes"), times=9)
    assert "the cluster cannot be read: " in planned(status=1).err


def test_a_kubeconfig_that_is_not_there_is_told(tmp_path, capsys):
    assert run(["plan", "--from-cluster", "--kubeconfig", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.startswith("kubectl dra plan: ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "give --device-plugin-config or --from-cluster"),
        (["--from-cluster", "--objects", "x"], "give --objects or --from-cluster, not both"),
        (["--device-plugin-config", "x", "--apply"], "--apply needs --from-cluster"),
        (["--from-cluster", "--apply", "-o", "yaml"], "give --apply, which tells what became of each object, or -o"),
        (["--from-cluster", "--dry-run"], "belong to --apply"),
        (["--from-cluster", "--accept-gaps"], "belong to --apply"),
        (["--from-cluster", "--with-quotas"], "belong to --apply"),
    ],
)
def test_words_that_do_not_go_together_are_told(words, told, capsys):
    with pytest.raises(SystemExit) as end:
        run(["plan", *words])
    assert end.value.code == 2
    assert told in capsys.readouterr().err


# --- applying, as far as it goes without server-side apply -----------------------------------------


def test_what_breaks_is_refused_before_anything_is_written(api, filled, tmp_path, capsys):
    api.put("nodes", node("n3", config="none", gpu=8))
    assert run(["plan", "--from-cluster", "--kubeconfig", str(api.kubeconfig(tmp_path)), "--apply"]) == 3
    assert {request.method for request in api.requests} == {"GET"}
    said = capsys.readouterr()
    assert "[breaks] the device plugin does not start on n3" in said.out
    assert "[differs]" not in said.out
    assert said.err.startswith("kubectl dra plan: nothing was written: 1 of the gaps told as [breaks] would break pods")
    assert "mistakes" not in said.err


def refused(api, tmp_path, capsys):
    assert run(["plan", "--from-cluster", "--kubeconfig", str(api.kubeconfig(tmp_path)), "--apply"]) == 3
    assert not api.writes
    return capsys.readouterr().err.splitlines()[-1]


def test_a_refusal_tells_mistakes_from_gaps(api, filled, tmp_path, capsys):
    api.put("configmaps", config_map({"a": "version: v1", "b": "version: v1", "c": "version: v2"}))
    told = refused(api, tmp_path, capsys)
    assert "nothing was written: configurations have mistakes, told above; correct the mistakes, or say" in told
    assert "gaps" not in told.partition("--accept-gaps")[0]
    api.put("nodes", node("n3", config="none", gpu=8))
    told = refused(api, tmp_path, capsys)
    assert "configurations have mistakes, told above, and 1 of the gaps told as [breaks] would break pods" in told
    assert "correct the mistakes and do what is said at the gaps, or say --accept-gaps" in told


def test_an_entry_that_is_not_known_does_not_read_like_a_strategy(planned, filled):
    filled.put("nodes", node("n3", config="none", gpu=8))
    (row,) = [line for line in planned().out.splitlines() if line.startswith("n3 ")]
    assert row.split() == ["n3", "(does", "not", "start)", "-"]


def test_each_thing_that_cannot_be_read_is_told_and_nothing_of_it_is_written(api, filled, tmp_path, capsys):
    def is_read(request):
        return "extendedresourcebridges" in request.path or "dradriver-node-config" in request.path

    api.fail(Fault(status=403, reason="Forbidden"), when=is_read, times=9)
    assert run(["plan", "--from-cluster", "--kubeconfig", str(api.kubeconfig(tmp_path)), "--apply"]) == 1
    said = capsys.readouterr()
    assert "ExtendedResourceBridges: cannot be read, so nothing was written: " in said.err
    assert "ConfigMap dradriver/dradriver-node-config: cannot be read, so nothing was written: " in said.err
    assert "its label dradriver.dev/config is left as it is, since the ConfigMap does not have" in said.err
    assert not api.writes
