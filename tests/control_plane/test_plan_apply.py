"""`kubectl dra plan --from-cluster` and `--apply` on a real API server, and the real controller on what was applied."""

import json

import pytest
import yaml
from support.bridging import CRD, Controllers, install
from support.planning import (
    ACCOUNTS,
    ALL,
    CONFIGS,
    CRDS,
    GPU,
    LABEL,
    MANIFEST,
    MIG,
    SHARED,
    TEXTS,
)
from support.waiting import wait_for

from controller.api import BRIDGES
from controller.cli.wanted import CONFIG_MAPS, FIELD_MANAGER, QUOTAS
from dradriver.kube import NODES, PODS, RESOURCE_SLICES

pytestmark = pytest.mark.control_plane


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


def test_a_cluster_without_the_crd_is_told_and_gets_the_rest(world, planned):
    world.clear()
    planned.kubectl("delete", "-f", str(CRD))
    try:
        outcomes, told = world.apply(status=1)
    finally:
        install(planned)
    assert outcomes["ExtendedResourceBridges"] == "left as it is"
    assert "kubectl apply -f deploy/crds" in told
    assert outcomes["ConfigMap dradriver/dradriver-node-config"] == "created"
    assert outcomes["Node halved"] == "changed"


def test_a_crd_that_is_older_is_told(world, admin, planned):
    old = json.loads(planned.kubectl("get", "crd", "extendedresourcebridges.dradriver.dev", "-o", "json"))
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
        install(planned)
    assert outcomes["ExtendedResourceBridge gpu"] == "left as it is"
    assert "renamed" in told
    assert "bring it up to date and apply again: kubectl apply -f deploy/crds" in told


def test_without_rights_on_one_thing_the_rest_goes_on(world, planned, tmp_path):
    world.create(ACCOUNTS, "planner", namespace="ml")
    rules = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]},
        {"apiGroups": ["dradriver.dev"], "resources": ["*"], "verbs": ["create", "patch"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]},
    ]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "planner"}}
    (tmp_path / "role.json").write_text(json.dumps(role | {"rules": rules}))
    planned.kubectl("apply", "-f", str(tmp_path / "role.json"))
    planned.kubectl("create", "clusterrolebinding", "planner", "--clusterrole=planner", "--serviceaccount=ml:planner")
    config = tmp_path / "kubeconfig"
    config.write_text(planned.kubeconfig_for(planned.kubectl("create", "token", "planner", "-n", "ml").strip()))
    try:
        outcomes, told = world.apply(status=1, kubeconfig=config)
    finally:
        planned.kubectl("delete", "clusterrole,clusterrolebinding", "planner")
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


def test_the_controller_takes_the_bridges_once_a_node_has_moved(world, control_plane, planned, admin, tmp_path):
    world.apply()
    controllers = Controllers(control_plane, planned, admin, tmp_path)
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


def test_what_single_means_is_counted(world, control_plane, planned, admin, tmp_path):
    single = "version: v1\nflags: {migStrategy: single}\n"
    world.admin.patch(
        CONFIG_MAPS, "configs", {"data": {"default": single, "cut": single, "sliced": None}}, namespace="gpu-operator"
    )
    world.admin.delete(NODES, "shared")
    outcomes, told = world.apply("--accept-gaps")
    assert (outcomes["ExtendedResourceBridge gpu"], told) == ("created", "")
    assert world.find(BRIDGES, "gpu")["spec"]["select"] == {"type": "any", "renamed": False}
    controllers = Controllers(control_plane, planned, admin, tmp_path)
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
