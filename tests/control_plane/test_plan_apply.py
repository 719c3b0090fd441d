"""`kubectl dra plan --from-cluster` and `--apply` on a real API server, and the real controller on what was applied."""

import json
import re
import shlex
import subprocess
import sys
from contextlib import suppress

import pytest
import yaml
from doubles.deviceplugin import daemon_set
from support.bridging import CRD, Controllers, install
from support.server import Server
from support.waiting import wait_for

from controller.api import BRIDGES
from controller.cli.live import DAEMON_SETS
from controller.cli.wanted import CONFIG_MAPS, FIELD_MANAGER, QUOTAS
from dradriver.api.node_config import decode
from dradriver.kube import NODES, PODS, RESOURCE_SLICES, AlreadyExistsError, NotFoundError, Resource

pytestmark = pytest.mark.control_plane

NAMESPACES = Resource(group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False)
CRDS = Resource(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    namespaced=False,
)
ACCOUNTS = Resource(group="", version="v1", plural="serviceaccounts", kind="ServiceAccount", namespaced=True)
GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
LABEL = "dradriver.dev/config"
MANIFEST = ("dradriver-node-config", "dradriver")
TEXTS = {
    "default": "version: v1\nflags: {migStrategy: none}\n",
    "cut": "version: v1\nflags: {migStrategy: mixed}\n",
    "sliced": (
        "version: v1\nflags: {migStrategy: none}\n"
        "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
    ),
}


@pytest.fixture(scope="module")
def server(control_plane, admin):
    made = Server(control_plane.kubeconfig, programs=control_plane.programs)
    install(made)
    for name in ("gpu-operator", "ml"):
        with suppress(AlreadyExistsError):
            admin.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield made
    made.close()


class World:
    """A cluster with a device plugin: its DaemonSet and ConfigMap, nodes, a pod, a quota."""

    def __init__(self, admin, server, kubeconfig):
        self.admin, self.server, self.kubeconfig = admin, server, kubeconfig
        self.made = []
        self.create(CONFIG_MAPS, "configs", namespace="gpu-operator", data=TEXTS)
        self.daemon_set("plugin", selector={"gpu": "true"})
        self.node("plain", gpu=8)
        self.node("halved", config="cut", gpu=1, mig=7)
        self.node("shared", config="sliced", shared=32)
        self.create(QUOTAS, "q", namespace="ml", spec={"hard": {f"requests.{GPU}": "8"}})

    def create(self, resource, name, namespace="", **content):
        metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **content.pop("metadata", {})}
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}
        self.made.append((resource, name, namespace))
        return self.admin.create(resource, body)

    def daemon_set(self, name, *, selector, env=None, car=None):
        spec = daemon_set(name, env=env, car={} if car is None else car, selector=selector)["spec"]
        for container in spec["template"]["spec"]["containers"]:
            container.setdefault("volumeMounts", [])
        for volume in spec["template"]["spec"]["volumes"]:
            if "hostPath" in volume:
                volume["hostPath"] = {"path": "/var/lib/kubelet/device-plugins"}
        labels = {"app": name}
        spec["template"]["metadata"] = {"labels": labels}
        spec["selector"] = {"matchLabels": labels}
        self.create(DAEMON_SETS, name, namespace="gpu-operator", spec=spec)

    def node(self, name, *, config="", labels=None, gpu=0, mig=0, shared=0):
        given = {"gpu": "true", **({"nvidia.com/device-plugin.config": config} if config else {}), **(labels or {})}
        self.create(NODES, name, metadata={"labels": given})
        counts = {GPU: gpu, MIG: mig, SHARED: shared}
        resources = {"cpu": "8", **{key: str(count) for key, count in counts.items() if count}}
        info = {"kubeletVersion": "v1.37.2", "containerRuntimeVersion": "containerd://2.1.4"}
        status = {"capacity": resources, "allocatable": resources, "nodeInfo": info}
        self.admin.patch(NODES, name, {"status": status}, subresource="status")

    def plan(self, *words, status=0, kubeconfig=None):
        """Run the program, as kubectl does; gives what it prints on both."""
        config = str(kubeconfig or self.kubeconfig)
        command = [sys.executable, "-m", "controller.cli", "plan", "--from-cluster", "--kubeconfig", config, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert status in (None, done.returncode), (done.stdout, done.stderr)
        return done

    def apply(self, *words, status=0, **more):
        """Apply; gives each object with what became of it, and what was told."""
        done = self.plan("--apply", *words, status=status, **more)
        rows = [line.split("   ") for line in done.stdout.splitlines()[1:]]
        return {row[0].strip(): row[-1].strip() for row in rows}, done.stderr

    def find(self, resource, name, namespace=""):
        try:
            return self.admin.get(resource, name, namespace=namespace)
        except NotFoundError:
            return None

    def node_configs(self):
        text = self.find(CONFIG_MAPS, *MANIFEST)["data"]["nodes.yaml"]
        decoded = decode(yaml.safe_load(text))
        assert decoded.all_problems() == ()
        return yaml.safe_load(text)["configs"]

    def label(self, node):
        return self.find(NODES, node)["metadata"]["labels"].get(LABEL)

    def drop(self, resource, name, namespace=""):
        if self.find(resource, name, namespace) is not None:
            self.admin.delete(resource, name, namespace=namespace)

    def clear(self):
        """Take away what was applied."""
        self.drop(CONFIG_MAPS, *MANIFEST)
        self.drop(QUOTAS, "q-claims", "ml")
        if self.find(CRDS, "extendedresourcebridges.dradriver.dev"):
            for item in self.admin.list(BRIDGES).items:
                self.drop(BRIDGES, item["metadata"]["name"])

    def end(self):
        self.clear()
        for resource, name, namespace in reversed(self.made):
            self.drop(resource, name, namespace)


@pytest.fixture
def world(admin, server, control_plane):
    made = World(admin, server, control_plane.kubeconfig)
    yield made
    made.end()


ALL = {
    "ExtendedResourceBridge gpu",
    "ExtendedResourceBridge gpu.shared",
    "ExtendedResourceBridge mig-1g.10gb",
    "ConfigMap dradriver/dradriver-node-config",
    "Node halved",
    "Node plain",
    "Node shared",
}
CONFIGS = {
    "default": {"gpus": [{"mig": "off"}]},
    "cut": {"gpus": [{"mig": "static"}], "order": "spread"},
    "sliced": {"gpus": [{"mig": "off", "sharing": {"replicas": 4, "rename": True}}], "order": "spread"},
}


def test_a_plan_reads_and_changes_nothing(world):
    done = world.plan("-o", "yaml")
    assert done.stderr == ""
    kinds = [(one["kind"], one["metadata"]["name"]) for one in yaml.safe_load_all(done.stdout)]
    assert kinds == [
        ("ExtendedResourceBridge", "gpu"),
        ("ExtendedResourceBridge", "gpu.shared"),
        ("ExtendedResourceBridge", "mig-1g.10gb"),
        ("ConfigMap", "dradriver-node-config"),
        ("ResourceQuota", "q-claims"),
    ]
    assert not world.admin.list(BRIDGES).items
    assert world.find(CONFIG_MAPS, *MANIFEST) is None
    assert [world.label(name) for name in ("plain", "halved", "shared")] == [None, None, None]


def test_a_second_apply_changes_nothing(world):
    outcomes, told = world.apply()
    assert told == ""
    assert outcomes == dict.fromkeys(ALL, "created") | {
        "Node plain": "unchanged",
        "Node halved": "changed",
        "Node shared": "changed",
    }
    assert {item["metadata"]["name"]: item["spec"]["select"] for item in world.admin.list(BRIDGES).items} == {
        "gpu": {"type": "gpu", "renamed": False},
        "gpu.shared": {"type": "gpu", "renamed": True},
        "mig-1g.10gb": {"type": "mig", "profile": "1g.10gb", "renamed": False},
    }
    assert world.node_configs() == CONFIGS
    assert [world.label(name) for name in ("plain", "halved", "shared")] == [None, "cut", "sliced"]
    assert world.find(QUOTAS, "q-claims", "ml") is None
    managers = {entry["manager"] for entry in world.find(BRIDGES, "gpu")["metadata"]["managedFields"]}
    assert managers == {FIELD_MANAGER}
    assert world.apply() == (dict.fromkeys(ALL, "unchanged"), "")


def test_a_dry_run_is_checked_by_the_server_and_stores_nothing(world):
    outcomes, told = world.apply("--dry-run", "--with-quotas")
    assert told == ""
    assert outcomes == dict.fromkeys(ALL, "created (dry run)") | {
        "Node plain": "unchanged (dry run)",
        "Node halved": "changed (dry run)",
        "Node shared": "changed (dry run)",
        "ResourceQuota ml/q-claims": "created (dry run)",
    }
    assert not world.admin.list(BRIDGES).items
    assert world.find(CONFIG_MAPS, *MANIFEST) is None
    assert world.label("halved") is None


def test_quotas_are_written_where_they_are_asked_for(world):
    assert world.apply("--with-quotas")[0]["ResourceQuota ml/q-claims"] == "created"
    assert world.find(QUOTAS, "q-claims", "ml")["spec"]["hard"] == {
        "gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "8"
    }
    assert world.apply("--with-quotas")[0]["ResourceQuota ml/q-claims"] == "unchanged"


def test_a_plan_that_changes_is_followed(world):
    world.apply()
    world.admin.patch(NODES, "halved", {"metadata": {"labels": {"nvidia.com/device-plugin.config": None}}})
    text = TEXTS["sliced"].replace("replicas: 4", "replicas: 6")
    world.admin.patch(CONFIG_MAPS, "configs", {"data": {"sliced": text}}, namespace="gpu-operator")
    outcomes, told = world.apply("--accept-gaps")
    assert told.startswith("kubectl dra plan: ExtendedResourceBridge mig-1g.10gb: an earlier --apply has written it")
    assert told.count("\n") == 1
    assert outcomes["ExtendedResourceBridge mig-1g.10gb"] == "no longer planned"
    assert outcomes["Node halved"] == "changed"
    assert world.label("halved") is None
    assert outcomes["ConfigMap dradriver/dradriver-node-config"] == "changed"
    assert world.node_configs()["sliced"]["gpus"][0]["sharing"] == {"replicas": 6, "rename": True}


def test_what_would_break_pods_is_refused_and_can_be_accepted(world):
    world.node("imex", config="nowhere", gpu=8)
    done = world.plan("--apply", status=3)
    assert "[breaks] the device plugin does not start on imex" in done.stdout
    assert "nothing was written" in done.stderr
    assert "--accept-gaps" in done.stderr
    assert not world.admin.list(BRIDGES).items
    assert world.find(CONFIG_MAPS, *MANIFEST) is None
    assert set(world.apply("--accept-gaps")[0]) == ALL


def test_mistakes_are_refused_too_and_stay_a_failure_where_they_are_accepted(world):
    world.admin.patch(CONFIG_MAPS, "configs", {"data": {"odd": "version: v2"}}, namespace="gpu-operator")
    assert "data.odd: version: is 'v2'; allowed: v1" in world.plan("--apply", status=3).stderr
    outcomes, _ = world.apply("--accept-gaps", status=1)
    assert outcomes["ExtendedResourceBridge gpu"] == "created"
    assert "odd" not in world.node_configs()


# --- what is somebody else's ----------------------------------------------------------------------


def bridge(name, resource, select, **spec):
    head = {"apiVersion": BRIDGES.api_version, "kind": BRIDGES.kind, "metadata": {"name": name}}
    return head | {"spec": {"resourceName": resource, "select": select, **spec}}


def test_a_bridge_of_another_name_for_the_resource_is_left_and_told(world):
    world.admin.create(BRIDGES, bridge("mine", GPU, {"cel": "true"}))
    outcomes, told = world.apply(status=1)
    assert outcomes["ExtendedResourceBridge gpu"] == "left as it is"
    assert "ExtendedResourceBridge gpu: nvidia.com/gpu has the bridge mine already" in told
    assert "kubectl delete erb mine" in told
    assert world.find(BRIDGES, "gpu") is None
    assert outcomes["ExtendedResourceBridge gpu.shared"] == "created"


def test_a_bridge_of_another_name_that_selects_the_same_will_do(world):
    world.admin.create(BRIDGES, bridge("mine", GPU, {"type": "gpu", "renamed": False}))
    outcomes, told = world.apply()
    assert outcomes["ExtendedResourceBridge mine"] == "unchanged"
    assert told.startswith("kubectl dra plan: ExtendedResourceBridge mine: spec.mode is Enabled and the plan wants")
    world.admin.patch(BRIDGES, "mine", {"spec": {"mode": "WhenReady"}})
    assert world.apply()[1] == ""
    assert world.find(BRIDGES, "gpu") is None


def test_a_bridge_that_somebody_has_edited_is_not_forced(world):
    world.apply()
    world.admin.patch(BRIDGES, "gpu", {"spec": {"mode": "Disabled"}}, field_manager="kubectl-edit")
    outcomes, told = world.apply(status=1)
    assert outcomes["ExtendedResourceBridge gpu"] == "left as it is"
    assert 'conflict with "kubectl-edit"' in told
    assert ".spec.mode" in told
    assert world.find(BRIDGES, "gpu")["spec"]["mode"] == "Disabled"
    assert outcomes["ExtendedResourceBridge gpu.shared"] == "unchanged"


def test_a_bridge_of_the_readme_keeps_its_mode_and_the_next_step_is_told(world, server):
    server.kubectl("apply", "-f", str(CRD.parent.parent / "bridges"))
    outcomes, told = world.apply(status=1)
    # All but the mode is there already.
    assert outcomes["ExtendedResourceBridge gpu"] == "left as it is"
    spec = world.find(BRIDGES, "gpu")["spec"]
    assert (spec["mode"], spec["select"]) == ("Enabled", {"type": "gpu", "renamed": False})
    assert "spec.mode is Enabled and the plan wants WhenReady (as it is, the name is served before" in told
    (command,) = re.findall(r"kubectl (patch erb gpu --type=merge -p '[^']*')", told)
    server.kubectl(*shlex.split(command))
    outcomes, told = world.apply()
    assert (outcomes["ExtendedResourceBridge gpu"], told) == ("unchanged", "")
    assert world.find(BRIDGES, "gpu")["spec"]["mode"] == "WhenReady"


def test_a_bridge_that_says_nothing_of_names_gets_what_nobody_has_set(world, server):
    server.kubectl("apply", "-f", "-", text=json.dumps(bridge("gpu", GPU, {"type": "gpu"})))
    outcomes, told = world.apply("--dry-run", status=1)
    assert outcomes["ExtendedResourceBridge gpu"] == "changed in part (dry run)"
    assert world.find(BRIDGES, "gpu")["spec"]["select"] == {"type": "gpu"}
    outcomes, told = world.apply(status=1)
    assert outcomes["ExtendedResourceBridge gpu"] == "changed in part"
    assert "its other fields are as planned" in told
    assert world.find(BRIDGES, "gpu")["spec"]["select"] == {"type": "gpu", "renamed": False}
    assert world.find(BRIDGES, "gpu")["spec"]["mode"] == "Enabled"
    assert world.apply(status=1)[0]["ExtendedResourceBridge gpu"] == "left as it is"


def test_a_selection_of_somebody_else_is_left_as_a_whole(world, server):
    theirs = {"type": "mig", "profile": "1g.10gb"}
    server.kubectl("apply", "-f", "-", text=json.dumps(bridge("gpu", GPU, theirs)))
    outcomes, told = world.apply(status=1)
    assert outcomes["ExtendedResourceBridge gpu"] == "left as it is"
    assert world.find(BRIDGES, "gpu")["spec"]["select"] == theirs
    assert "spec.select.profile is 1g.10gb and the plan wants nothing there" in told
    (command,) = re.findall(r"kubectl (patch erb gpu --type=merge -p '[^']*')", told)
    server.kubectl(*shlex.split(command))
    outcomes, told = world.apply()
    assert (outcomes["ExtendedResourceBridge gpu"], told) == ("unchanged", "")
    assert world.find(BRIDGES, "gpu")["spec"]["select"] == {"type": "gpu", "renamed": False}


def test_a_bridge_of_an_earlier_plan_is_told_with_the_command_that_deletes_it(world, server):
    world.apply()
    world.admin.patch(CONFIG_MAPS, "configs", {"data": {"sliced": TEXTS["default"]}}, namespace="gpu-operator")
    world.admin.patch(
        NODES, "shared", {"status": {"capacity": {SHARED: "0"}, "allocatable": {SHARED: "0"}}}, subresource="status"
    )
    outcomes, told = world.apply()
    assert outcomes["ExtendedResourceBridge gpu.shared"] == "no longer planned"
    (command,) = re.findall("kubectl (delete erb .*)", told)
    assert world.find(BRIDGES, "gpu.shared")
    server.kubectl(*command.split())
    outcomes, told = world.apply()
    assert ("ExtendedResourceBridge gpu.shared" in outcomes, told) == (False, "")


def test_a_bridge_of_the_name_for_another_resource_is_told(world):
    world.admin.create(BRIDGES, bridge("gpu", "nvidia.com/other", {"type": "gpu"}))
    _, told = world.apply(status=1)
    assert "ExtendedResourceBridge gpu: there is one of that name for nvidia.com/other" in told


def own_configs(world, **configs):
    document = {"apiVersion": "dradriver.dev/v1alpha1", "kind": "NodeConfigs", "configs": configs}
    metadata = {"name": MANIFEST[0], "namespace": MANIFEST[1]}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"nodes.yaml": json.dumps(document)}}
    return world.admin.create(CONFIG_MAPS, body)


def test_a_config_map_of_somebody_else_is_not_forced_and_labels_wait_for_it(world):
    own_configs(world, mine={"order": "packed"}, cut=CONFIGS["cut"])
    outcomes, told = world.apply(status=1)
    assert outcomes["ConfigMap dradriver/dradriver-node-config"] == "left as it is"
    assert "put the node configurations of the plan into it by hand" in told
    assert world.node_configs().keys() == {"mine", "cut"}
    # What it has as the plan wants it can be chosen by a label.
    assert world.label("halved") == "cut"
    assert outcomes["Node shared"] == "left as it is"
    assert "does not have the configuration sliced of the plan" in told
    assert world.label("shared") is None


def test_a_config_map_that_has_all_of_it_is_not_touched(world):
    made = own_configs(world, mine={"order": "packed"}, **CONFIGS)
    outcomes, told = world.apply()
    assert (outcomes["ConfigMap dradriver/dradriver-node-config"], told) == ("unchanged", "")
    found = world.find(CONFIG_MAPS, *MANIFEST)["metadata"]["resourceVersion"]
    assert found == made["metadata"]["resourceVersion"]


def test_what_an_earlier_plan_has_written_stays_beside_what_is_new(world):
    world.apply()
    world.admin.patch(CONFIG_MAPS, "configs", {"data": {"cut": None}}, namespace="gpu-operator")
    world.admin.delete(NODES, "halved")
    world.apply()
    assert world.node_configs().keys() == {"default", "cut", "sliced"}


def test_a_config_map_with_mistakes_is_left(world):
    own_configs(world)
    world.admin.patch(CONFIG_MAPS, MANIFEST[0], {"data": {"nodes.yaml": "a: ["}}, namespace=MANIFEST[1])
    assert "its nodes.yaml has mistakes" in world.apply(status=1)[1]


def test_a_label_of_somebody_else_is_left_and_told(world):
    world.admin.patch(NODES, "plain", {"metadata": {"labels": {LABEL: "theirs"}}}, field_manager="kubectl-label")
    outcomes, told = world.apply(status=1)
    assert outcomes["Node plain"] == "left as it is"
    assert "somebody has set its label dradriver.dev/config to theirs, and the plan wants none" in told
    assert "kubectl label node plain dradriver.dev/config-" in told
    assert world.label("plain") == "theirs"
    assert world.label("halved") == "cut"


# --- what is not there, and what must not be done ---------------------------------------------------


def test_a_cluster_without_the_crd_is_told_and_gets_the_rest(world, server):
    world.clear()
    server.kubectl("delete", "-f", str(CRD))
    try:
        outcomes, told = world.apply(status=1)
    finally:
        install(server)
    assert outcomes["ExtendedResourceBridges"] == "left as it is"
    assert "kubectl apply -f deploy/crds" in told
    assert outcomes["ConfigMap dradriver/dradriver-node-config"] == "created"
    assert outcomes["Node halved"] == "changed"


def test_a_crd_that_is_older_is_told(world, admin, server):
    old = json.loads(server.kubectl("get", "crd", "extendedresourcebridges.dradriver.dev", "-o", "json"))
    schema = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    select = schema["properties"]["spec"]["properties"]["select"]
    del select["properties"]["renamed"]
    admin.replace(
        CRDS, {"metadata": old["metadata"], "spec": old["spec"], "kind": old["kind"], "apiVersion": CRDS.api_version}
    )
    try:
        outcomes, told = {}, ""
        for _ in range(20):
            # The API server takes a moment to go by the new schema.
            world.clear()
            outcomes, told = world.apply(status=None)
            if told:
                break
    finally:
        install(server)
    assert outcomes["ExtendedResourceBridge gpu"] == "left as it is"
    assert "renamed" in told
    assert "bring it up to date and apply again: kubectl apply -f deploy/crds" in told


def test_without_rights_on_one_thing_the_rest_goes_on(world, server, tmp_path):
    world.create(ACCOUNTS, "planner", namespace="ml")
    rules = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]},
        {"apiGroups": ["dradriver.dev"], "resources": ["*"], "verbs": ["create", "patch"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]},
    ]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "planner"}}
    (tmp_path / "role.json").write_text(json.dumps(role | {"rules": rules}))
    server.kubectl("apply", "-f", str(tmp_path / "role.json"))
    server.kubectl("create", "clusterrolebinding", "planner", "--clusterrole=planner", "--serviceaccount=ml:planner")
    config = tmp_path / "kubeconfig"
    config.write_text(server.kubeconfig_for(server.kubectl("create", "token", "planner", "-n", "ml").strip()))
    try:
        outcomes, told = world.apply(status=1, kubeconfig=config)
    finally:
        server.kubectl("delete", "clusterrole,clusterrolebinding", "planner")
    assert outcomes["ExtendedResourceBridge gpu"] == "created"
    assert outcomes["ConfigMap dradriver/dradriver-node-config"] == "left as it is"
    assert "Forbidden" in told
    assert outcomes["Node halved"] == "left as it is"


# --- several device plugins -------------------------------------------------------------------------


def test_each_plugin_has_its_nodes_by_where_its_pods_run(world):
    car = {"DEFAULT_CONFIG": "cut"}
    world.daemon_set("second", selector={"pool": "second"}, env={"MIG_STRATEGY": "single"}, car=car)
    world.node("other", labels={"gpu": "false", "pool": "second"}, gpu=7)
    out = world.plan().stdout
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if "/" in line and len(line.split()) == 3}
    assert rows["other"] == ["second/cut", "second.cut"]
    assert rows["plain"] == ["plugin/default", "plugin.default"]
    world.admin.patch(NODES, "plain", {"metadata": {"labels": {"pool": "second"}}})
    told = " ".join(world.plan().stdout.split())
    assert "nodes have several device plugins, gpu-operator/plugin, gpu-operator/second" in told
    outcomes, _ = world.apply("--accept-gaps")
    assert outcomes["Node other"] == "changed"
    assert world.label("other") == "second.cut"
    assert world.node_configs()["second.cut"] == {"gpus": [{"mig": "static"}], "order": "spread"}


# --- the controller -------------------------------------------------------------------------------


def device(name, **attributes):
    values = {key: {"bool" if isinstance(value, bool) else "string": value} for key, value in attributes.items()}
    return {"name": name, "attributes": values, "capacity": {"memory": {"value": "80Gi"}}}


def test_the_controller_takes_the_bridges_once_a_node_has_moved(world, control_plane, server, admin, tmp_path):
    world.apply()
    controllers = Controllers(control_plane, server, admin, tmp_path)
    try:
        controllers.start()
        # Ready already where a node of another test is there still.
        wait_for(lambda: "Ready" in controllers.conditions("gpu"), "the controller to look at the bridge", seconds=60)
        # The nodes move: the device plugin is gone, slices are there.
        for name in ("plain", "halved", "shared"):
            gone = {GPU: "0", SHARED: "0", MIG: "0"}
            admin.patch(NODES, name, {"status": {"allocatable": gone}}, subresource="status")
        devices = {
            "plain": [device("gpu-0", type="gpu")],
            "halved": [device("gpu-0-mig-1g10gb-19-0", type="mig", profile="1g.10gb")],
            "shared": [device("gpu-0", type="gpu", sharing="time-slicing", renamed=True)],
        }
        for name, found in devices.items():
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": "gpu.nvidia.com", "nodeName": name, "pool": pool, "devices": found}
            world.create(RESOURCE_SLICES, f"plan-{name}", spec=spec)
        for name in ("gpu", "gpu.shared", "mig-1g.10gb"):
            controllers.wait_reason(name, "Serving")
        assert world.apply() == (dict.fromkeys(ALL, "unchanged"), "")
    finally:
        controllers.close()


def test_what_single_means_is_counted(world, control_plane, server, admin, tmp_path):
    single = "version: v1\nflags: {migStrategy: single}\n"
    world.admin.patch(
        CONFIG_MAPS, "configs", {"data": {"default": single, "cut": single, "sliced": None}}, namespace="gpu-operator"
    )
    world.admin.delete(NODES, "shared")
    outcomes, told = world.apply("--accept-gaps")
    assert (outcomes["ExtendedResourceBridge gpu"], told) == ("created", "")
    assert world.find(BRIDGES, "gpu")["spec"]["select"] == {"type": "any", "renamed": False}
    controllers = Controllers(control_plane, server, admin, tmp_path)
    try:
        controllers.start()
        devices = {
            "plain": [device("gpu-0", type="gpu")],
            "halved": [device(f"gpu-0-mig-1g10gb-19-{place}", type="mig", profile="1g.10gb") for place in (0, 1)],
        }
        for name, found in devices.items():
            admin.patch(NODES, name, {"status": {"allocatable": {GPU: "0", MIG: "0"}}}, subresource="status")
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": "gpu.nvidia.com", "nodeName": name, "pool": pool, "devices": found}
            world.create(RESOURCE_SLICES, f"single-{name}", spec=spec)
        controllers.wait_reason("gpu", "Serving")
        controllers.wait_counts("gpu", published=3, allocatable=3)
    finally:
        controllers.close()


def test_a_pod_in_the_cluster_is_named(world):
    limits = {"limits": {GPU: "2"}}
    # Nowhere, since a pod on a node without a kubelet never ends.
    spec = {"containers": [{"name": "c", "image": "x", "resources": limits}], "nodeSelector": {"no": "where"}}
    world.create(PODS, "seeker", namespace="default", spec=spec | {"automountServiceAccountToken": False})
    out = world.plan().stdout
    assert "pods:    Pod default/seeker" in out
    assert "limits:  ResourceQuota ml/q" in out
