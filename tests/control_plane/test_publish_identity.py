"""What a service account may and may not, as the plugin really runs."""

import base64
import uuid

import pytest
import yaml
from doubles.pools import node_slices
from doubles.publishing import DRIVER, PATIENCE, until

from dradriver.kube import ForbiddenError, PatchKind, Resource
from dradriver.kube.connection import connect
from dradriver.publish import Phase, probe_features

pytestmark = pytest.mark.control_plane

ACCOUNTS = Resource(group="", version="v1", plural="serviceaccounts", kind="ServiceAccount", namespaced=True)
RBAC = "rbac.authorization.k8s.io"
ROLES = Resource(group=RBAC, version="v1", plural="clusterroles", kind="ClusterRole", namespaced=False)
BINDINGS = Resource(group=RBAC, version="v1", plural="clusterrolebindings", kind="ClusterRoleBinding", namespaced=False)
ADMISSION = "admissionregistration.k8s.io"
POLICIES = Resource(
    group=ADMISSION,
    version="v1",
    plural="validatingadmissionpolicies",
    kind="ValidatingAdmissionPolicy",
    namespaced=False,
)
POLICY_BINDINGS = Resource(
    group=ADMISSION,
    version="v1",
    plural="validatingadmissionpolicybindings",
    kind="ValidatingAdmissionPolicyBinding",
    namespaced=False,
)


def body(resource, name, **content):
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, **content}


class Identity:
    """A service account, its rights, and a client that is it."""

    def __init__(self, admin, kubeconfig, folder):
        self.admin = admin
        self.name = f"publish-{uuid.uuid4().hex[:8]}"
        self.made = []
        self._kubeconfig = kubeconfig
        self._folder = folder
        account = body(ACCOUNTS, self.name)
        account["metadata"]["namespace"] = "default"
        admin.create(ACCOUNTS, account)

    def make(self, resource, **content):
        self.admin.create(resource, body(resource, self.name, **content))
        self.made.append(resource)

    def allow(self, *rules):
        self.make(ROLES, rules=list(rules))
        subject = {"kind": "ServiceAccount", "name": self.name, "namespace": "default"}
        self.make(BINDINGS, roleRef={"apiGroup": RBAC, "kind": "ClusterRole", "name": self.name}, subjects=[subject])

    def client(self):
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
        path = ACCOUNTS.path(namespace="default", name=self.name, subresource="token")
        answer = self.admin._call("POST", path, body=request)
        document = yaml.safe_load(self._kubeconfig.read_text())
        document["users"] = [
            {"name": user["name"], "user": {"token": answer["status"]["token"]}} for user in document["users"]
        ]
        for cluster in document["clusters"]:
            authority = cluster["cluster"].pop("certificate-authority", None)
            if authority:
                data = (self._kubeconfig.parent / authority).read_bytes()
                cluster["cluster"]["certificate-authority-data"] = base64.b64encode(data).decode()
        path = self._folder / "kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return connect(path)

    def remove(self):
        for resource in reversed(self.made):
            self.admin.delete(resource, self.name)
        self.admin.delete(ACCOUNTS, self.name, namespace="default")


RULES = (
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices"],
        "verbs": ["get", "list", "watch", "create", "update", "delete"],
    },
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
)


@pytest.fixture
def identity(admin, control_plane, tmp_path):
    made = Identity(admin, control_plane.kubeconfig, tmp_path)
    yield made
    made.remove()


def test_the_few_rights_we_ask_for_are_enough(offer, identity):
    identity.allow(*RULES)
    client = identity.client()
    until(lambda: probe_features(client, DRIVER, offer.node).partitionable)
    publisher = offer.publisher(node_slices(), client=client)
    assert publisher.wait_published(PATIENCE), publisher.status
    offer.delete(offer.names()[0])
    until(lambda: len(offer.names()) == 4)
    publisher.set_slices(())
    assert publisher.wait_published(PATIENCE)
    assert offer.names() == []
    publisher.stop(PATIENCE)
    client.close()


def test_missing_rights_are_named(offer, identity):
    client = identity.client()
    with pytest.raises(ForbiddenError, match="ClusterRole"):
        probe_features(client, DRIVER, offer.node)
    publisher = offer.publisher(node_slices(), client=client)
    until(lambda: publisher.status.phase is Phase.FAILING)
    assert identity.name in publisher.status.message
    assert "cannot list resource" in publisher.status.message
    publisher.stop(PATIENCE)
    client.close()


def test_a_policy_that_denies_is_named_and_waited_for(offer, identity, admin):
    identity.allow(*RULES)
    user = f"system:serviceaccount:default:{identity.name}"
    identity.make(
        POLICIES,
        spec={
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["resource.k8s.io"],
                        "apiVersions": ["v1"],
                        "resources": ["resourceslices"],
                        "operations": ["CREATE", "UPDATE", "DELETE"],
                    }
                ]
            },
            "matchConditions": [{"name": "us", "expression": f"request.userInfo.username == '{user}'"}],
            "validations": [{"expression": "object.spec.nodeName == 'elsewhere'", "message": "not your node"}],
        },
    )
    identity.make(POLICY_BINDINGS, spec={"policyName": identity.name, "validationActions": ["Deny"]})
    client = identity.client()

    def denied():
        try:
            probe_features(client, DRIVER, offer.node)
        except ForbiddenError as error:
            return "not your node" in str(error)
        return False

    until(denied)
    publisher = offer.publisher(node_slices(), client=client)
    until(lambda: publisher.status.phase is Phase.FAILING and "not your node" in publisher.status.message)
    assert "the policy must allow this node's slices" in publisher.status.message
    assert offer.names() == []
    patch = ({"op": "replace", "path": "/spec/validationActions", "value": ["Audit"]},)
    admin.patch(POLICY_BINDINGS, identity.name, patch, kind=PatchKind.JSON)
    assert publisher.wait_published(PATIENCE)
    publisher.stop(PATIENCE)
    client.close()
