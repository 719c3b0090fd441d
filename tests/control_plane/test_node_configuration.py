"""Node labels on a real API server, with the rights of deploy/rbac.yaml."""

import base64
import json
import uuid
from pathlib import Path

import pytest
import yaml
from doubles.publishing import PATIENCE, until

from dradriver import api
from dradriver.gpu.policy import OfferPolicy, Order
from dradriver.kube import NODES, Backoff, Pace, PatchKind, Resource
from dradriver.kube.connection import connect
from dradriver.nodeconfig import NodeConfiguration

pytestmark = pytest.mark.control_plane

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RBAC = "rbac.authorization.k8s.io"
ACCOUNTS = Resource(group="", version="v1", plural="serviceaccounts", kind="ServiceAccount", namespaced=True)
ROLES = Resource(group=RBAC, version="v1", plural="clusterroles", kind="ClusterRole", namespaced=False)
BINDINGS = Resource(group=RBAC, version="v1", plural="clusterrolebindings", kind="ClusterRoleBinding", namespaced=False)
QUICK = Pace(backoff=Backoff(initial=0.1, maximum=0.5))


def rules():
    (role,) = [
        document
        for document in yaml.safe_load_all((DEPLOY / "rbac.yaml").read_text())
        if document["kind"] == "ClusterRole"
    ]
    return role["rules"]


class World:
    """A node with labels, an account that is the plugin's, and a configuration that follows the node."""

    def __init__(self, admin, kubeconfig, folder):
        self.admin, self.kubeconfig, self.folder = admin, kubeconfig, folder
        self.name = f"node-config-{uuid.uuid4().hex[:8]}"
        self.file = folder / "nodes.yaml"
        self.made, self.told = [], []
        self.create(NODES, spec={"unschedulable": True})
        self.create(ACCOUNTS, namespace="default")
        self.client = connect(self._kubeconfig_of_account())
        self.configuration = NodeConfiguration(
            self.file,
            remembered=folder / "node-config.json",
            node_name=self.name,
            defaults=OfferPolicy(order=Order.NVIDIA),
            on_change=self.told.append,
            pace=QUICK,
        )

    def create(self, resource, namespace="", **content):
        metadata = {"name": self.name} | ({"namespace": namespace} if namespace else {})
        document = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}
        self.admin.create(resource, document)
        self.made.append((resource, namespace))

    def allow(self, allowed):
        self.create(ROLES, rules=allowed)
        subject = {"kind": "ServiceAccount", "name": self.name, "namespace": "default"}
        self.create(BINDINGS, roleRef={"apiGroup": RBAC, "kind": "ClusterRole", "name": self.name}, subjects=[subject])

    def _kubeconfig_of_account(self):
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
        path = ACCOUNTS.path(namespace="default", name=self.name, subresource="token")
        token = self.admin._call("POST", path, body=request)["status"]["token"]
        document = yaml.safe_load(self.kubeconfig.read_text())
        document["users"] = [{"name": user["name"], "user": {"token": token}} for user in document["users"]]
        for cluster in document["clusters"]:
            authority = cluster["cluster"].pop("certificate-authority", None)
            if authority:
                data = (self.kubeconfig.parent / authority).read_bytes()
                cluster["cluster"]["certificate-authority-data"] = base64.b64encode(data).decode()
        path = self.folder / "kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path

    def label(self, **labels):
        """Set these labels; None takes one away, as `kubectl label node NODE name-` does."""
        own = {f"dradriver.dev/{name}": value for name, value in labels.items()}
        self.admin.patch(NODES, self.name, {"metadata": {"labels": own}}, kind=PatchKind.MERGE)

    def annotate(self, value):
        """Order that health is cleared, as `kubectl annotate` does; None takes that back."""
        own = {api.CLEAR_HEALTH_ANNOTATION: value}
        self.admin.patch(NODES, self.name, {"metadata": {"annotations": own}}, kind=PatchKind.MERGE)

    def say(self, **orders):
        configs = {name: {"order": order} for name, order in orders.items()}
        document = {"apiVersion": "dradriver.dev/v1alpha1", "kind": "NodeConfigs", "configs": configs}
        self.file.with_suffix(".new").write_text(json.dumps(document))
        self.file.with_suffix(".new").rename(self.file)

    def start(self):
        self.configuration.load()
        self.configuration.start(self.client)

    @property
    def current(self):
        return self.configuration.current

    def end(self):
        assert self.configuration.stop(PATIENCE)
        self.client.close()
        for resource, namespace in reversed(self.made):
            self.admin.delete(resource, self.name, namespace=namespace)


@pytest.fixture
def world(admin, control_plane, tmp_path):
    made = World(admin, control_plane.kubeconfig, tmp_path)
    yield made
    made.end()


def test_the_rights_of_the_manifest_are_enough_to_follow_the_node(world):
    world.allow(rules())
    world.say(a="packed", b="spread")
    world.label(config="a")
    world.start()
    until(lambda: world.current.settled)
    assert (world.current.name, world.current.policy.order, world.current.problems) == ("a", Order.PACKED, ())
    world.label(config="b", allocation=api.Allocation.HOLD)
    until(lambda: world.current.name == "b" and world.current.hold)
    world.label(config=None, allocation=None)
    until(lambda: world.current.name == "" and not world.current.hold)
    assert world.current.policy.order is Order.NVIDIA
    world.say(default="spread")
    until(lambda: world.current.name == "default")
    assert world.configuration.alive


def test_the_order_to_clear_health_comes_from_the_node_and_is_not_kept(world):
    world.allow(rules())
    world.say(default="spread")
    world.annotate("all")
    world.start()
    until(lambda: world.current.settled)
    assert world.current.clear == "all"
    kept = (world.folder / "node-config.json").read_text()
    world.annotate("gpu-0, GPU-1")
    until(lambda: world.current.clear == "gpu-0, GPU-1")
    world.annotate(None)
    until(lambda: world.told[-1].clear == "")
    assert list(dict.fromkeys(wanted.clear for wanted in world.told if wanted.settled)) == ["all", "gpu-0, GPU-1", ""]
    assert (world.folder / "node-config.json").read_text() == kept


def test_rights_from_before_labels_were_read_are_told_and_nothing_is_settled(world):
    others = [rule for rule in rules() if rule["resources"] != ["nodes"]]
    world.allow([*others, {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}])
    world.say(default="spread")
    world.start()
    until(lambda: bool(world.current.problems))
    (told,) = world.current.problems
    assert "cannot list resource" in told
    assert "apply deploy/rbac.yaml" in told
    assert not world.current.settled
    world.admin.patch(ROLES, world.name, {"rules": rules()}, kind=PatchKind.MERGE)
    # Labels are known after the list; the trouble is over once they can be watched, too.
    until(lambda: world.current.settled and not world.current.problems)
    assert world.current.name == "default"
