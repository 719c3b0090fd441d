"""deploy/admission.yaml on a real API server: a plugin writes the slices of its own node and no others."""

import base64
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from doubles.publishing import until

from dradriver import api
from dradriver.kube import NODES, PODS, RESOURCE_SLICES, ForbiddenError, NotFoundError, PatchKind, Resource, Selector
from dradriver.kube.connection import connect
from dradriver.publish import probe_features

pytestmark = pytest.mark.control_plane

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RBAC = "rbac.authorization.k8s.io"
ADMISSION = "admissionregistration.k8s.io"
NAMESPACES = Resource(group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False)
ACCOUNTS = Resource(group="", version="v1", plural="serviceaccounts", kind="ServiceAccount", namespaced=True)
KINDS = {
    "ClusterRole": Resource(group=RBAC, version="v1", plural="clusterroles", kind="ClusterRole", namespaced=False),
    "ClusterRoleBinding": Resource(
        group=RBAC, version="v1", plural="clusterrolebindings", kind="ClusterRoleBinding", namespaced=False
    ),
    **{
        kind: Resource(group=ADMISSION, version="v1", plural=plural, kind=kind, namespaced=False)
        for kind, plural in (
            ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
            ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
        )
    },
}
ACCOUNT = "dradriver-kubelet-plugin"


class World:
    """Two nodes, the plugin's account under another name, its rights, and the policy for that account."""

    def __init__(self, admin, kubeconfig, folder):
        self.admin, self.kubeconfig, self.folder = admin, kubeconfig, folder
        self.name = f"own-node-{uuid.uuid4().hex[:8]}"
        self.own, self.other = f"{self.name}-a", f"{self.name}-b"
        self.made, self.clients = [], []
        self.create(NAMESPACES, self.name)
        self.admin.create(ACCOUNTS, body(ACCOUNTS, self.name, namespace=self.name))
        for node in (self.own, self.other):
            self.create(NODES, node, spec={"unschedulable": True})
        for file in ("rbac.yaml", "admission.yaml"):
            self.apply(file)

    def apply(self, file):
        """Apply what a user applies, for this account instead of the real one."""
        text = (DEPLOY / file).read_text()
        text = text.replace(f"serviceaccount:dradriver:{ACCOUNT}", f"serviceaccount:{self.name}:{self.name}")
        text = text.replace(ACCOUNT, self.name).replace("namespace: dradriver", f"namespace: {self.name}")
        for document in yaml.safe_load_all(text):
            if resource := KINDS.get(document["kind"]):
                for rule in document.get("rules", ()):
                    # More than the plugin has, since the policy is to hold for it too.
                    if rule["resources"] == ["resourceslices"]:
                        rule["verbs"] += ["patch", "deletecollection"]
                self.admin.create(resource, document)
                self.made.append((resource, document["metadata"]["name"]))

    def create(self, resource, name, **content):
        self.admin.create(resource, body(resource, name, **content))
        self.made.append((resource, name))

    def client(self, node=""):
        """Connect with a token bound to a pod on this node, or to none."""
        spec = {"expirationSeconds": 600}
        if node:
            pod = body(PODS, f"on-{node}", namespace=self.name)
            pod["spec"] = {
                "nodeName": node,
                "serviceAccountName": self.name,
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "plugin", "image": "none"}],
            }
            made = self.admin.create(PODS, pod)["metadata"]
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": made["name"], "uid": made["uid"]}
        path = ACCOUNTS.path(namespace=self.name, name=self.name, subresource="token")
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        self.clients.append(connect(self._kubeconfig(self.admin._call("POST", path, body=request)["status"]["token"])))
        return self.clients[-1]

    def _kubeconfig(self, token):
        document = yaml.safe_load(self.kubeconfig.read_text())
        document["users"] = [{"name": user["name"], "user": {"token": token}} for user in document["users"]]
        for cluster in document["clusters"]:
            if authority := cluster["cluster"].pop("certificate-authority", None):
                data = (self.kubeconfig.parent / authority).read_bytes()
                cluster["cluster"]["certificate-authority-data"] = base64.b64encode(data).decode()
        path = self.folder / f"kubeconfig-{len(self.clients)}"
        path.write_text(yaml.safe_dump(document))
        return path

    def slices(self, node):
        return self.admin.list(RESOURCE_SLICES, selector=Selector(fields=f"spec.nodeName={node}")).items

    def remove(self):
        for client in self.clients:
            client.close()
        for pod in self.admin.list(PODS, selector=Selector(namespace=self.name)).items:
            with suppress(NotFoundError):
                self.admin.delete(PODS, pod["metadata"]["name"], namespace=self.name)
        for item in self.admin.list(RESOURCE_SLICES).items:
            if item["metadata"]["name"].startswith(self.name):
                self.admin.delete(RESOURCE_SLICES, item["metadata"]["name"])
        for resource, name in reversed(self.made):
            self.admin.delete(resource, name)


def body(resource, name, namespace="", **content):
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}


def a_slice(name, node, **spec):
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return body(
        RESOURCE_SLICES,
        name,
        spec={"driver": api.DRIVER_NAME, "nodeName": node, "pool": pool, "devices": [{"name": "gpu-0"}], **spec},
    )


@pytest.fixture(scope="module")
def world(admin, control_plane, tmp_path_factory):
    made = World(admin, control_plane.kubeconfig, tmp_path_factory.mktemp("own-node"))
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def plugin(world):
    """A client of the plugin on its own node, once the policy is in force."""
    client = world.client(world.own)

    def denied():
        with suppress(ForbiddenError):
            client.create(RESOURCE_SLICES, a_slice(f"{world.name}-probe", world.other), dry_run=True)
            return False
        return True

    until(denied)
    return client


@pytest.fixture
def foreign(world, admin):
    """A slice of the other node."""
    made = admin.create(RESOURCE_SLICES, a_slice(f"{world.name}-foreign", world.other))
    yield made
    admin.delete(RESOURCE_SLICES, made["metadata"]["name"])


def test_slices_of_the_own_node_are_written_changed_and_deleted(world, plugin):
    probe_features(plugin, api.DRIVER_NAME, world.own)
    made = plugin.create(RESOURCE_SLICES, a_slice(f"{world.name}-own", world.own))
    made["spec"]["pool"]["generation"] = 2
    assert plugin.replace(RESOURCE_SLICES, made)["spec"]["pool"]["generation"] == 2
    plugin.delete(RESOURCE_SLICES, made["metadata"]["name"])
    assert world.slices(world.own) == ()


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_slice_of_another_node_is_denied(world, plugin, dry_run):
    words = f"the slice is of node '{world.other}', but the plugin runs on node '{world.own}'"
    with pytest.raises(ForbiddenError, match=words):
        plugin.create(RESOURCE_SLICES, a_slice(f"{world.name}-x", world.other), dry_run=dry_run)


def test_what_another_node_offers_is_neither_changed_nor_deleted(world, plugin, foreign):
    name = foreign["metadata"]["name"]
    with pytest.raises(ForbiddenError, match="but the plugin runs on"):
        plugin.replace(RESOURCE_SLICES, {**foreign, "spec": {**foreign["spec"], "devices": []}})
    with pytest.raises(ForbiddenError, match="but the plugin runs on"):
        plugin.patch(RESOURCE_SLICES, name, {"metadata": {"labels": {"a": "b"}}}, kind=PatchKind.MERGE)
    with pytest.raises(ForbiddenError, match="but the plugin runs on"):
        plugin.delete(RESOURCE_SLICES, name)
    (now,) = world.slices(world.other)
    assert now["metadata"]["resourceVersion"] == foreign["metadata"]["resourceVersion"]


def test_deleting_a_collection_takes_no_slice_of_another_node(world, plugin, foreign):
    path = RESOURCE_SLICES.path()
    with pytest.raises(ForbiddenError, match="but the plugin runs on"):
        plugin._call("DELETE", path, query={"fieldSelector": f"spec.nodeName={world.other}"})
    assert [item["metadata"]["uid"] for item in world.slices(world.other)] == [foreign["metadata"]["uid"]]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"driver": "other.example.com"}, "driver gpu.nvidia.com"),
        ({"nodeName": None, "allNodes": True}, "of node ''"),
        ({"pool": {"name": "theirs", "generation": 1, "resourceSliceCount": 1}}, "pool that has the node's name"),
    ],
)
def test_slices_of_other_kinds_are_denied(world, plugin, spec, words):
    item = a_slice(f"{world.name}-x", world.own, **spec)
    item["spec"] = {key: value for key, value in item["spec"].items() if value is not None}
    with pytest.raises(ForbiddenError, match=words):
        plugin.create(RESOURCE_SLICES, item)


def test_a_token_that_is_bound_to_no_pod_is_denied(world, plugin):
    with pytest.raises(ForbiddenError, match="not bound to a pod on a node"):
        world.client().create(RESOURCE_SLICES, a_slice(f"{world.name}-x", world.own))


def test_others_are_not_concerned(world, plugin, admin):
    admin.create(RESOURCE_SLICES, a_slice(f"{world.name}-x", world.other, driver="other.example.com"), dry_run=True)
