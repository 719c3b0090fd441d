"""Events and claims' device status on a real API server, with the rights of deploy/rbac.yaml and no other."""

import base64
import uuid
from pathlib import Path

import pytest
import structlog
import yaml
from doubles.publishing import until

from dradriver import api
from dradriver.gpu.health import Effect, Mark
from dradriver.gpu.model import MigInstance, Placement
from dradriver.kube import NODES, PODS, RESOURCE_CLAIMS, EventRecorder, PatchKind, Resource, Selector
from dradriver.kube.connection import connect
from dradriver.kubelet import ClaimReference
from dradriver.prepare import eviction, telling
from dradriver.prepare.health_telling import HealthTeller
from dradriver.prepare.plan import Plan, PlannedDevice
from dradriver.prepare.records import Made, Record, State
from dradriver.prepare.telling import ClaimTeller

pytestmark = pytest.mark.control_plane

RBAC_FILE = Path(__file__).resolve().parents[2] / "deploy" / "rbac.yaml"
RBAC = "rbac.authorization.k8s.io"
NAMESPACES = Resource(group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False)
ACCOUNTS = Resource(group="", version="v1", plural="serviceaccounts", kind="ServiceAccount", namespaced=True)
ROLES = Resource(group=RBAC, version="v1", plural="clusterroles", kind="ClusterRole", namespaced=False)
BINDINGS = Resource(group=RBAC, version="v1", plural="clusterrolebindings", kind="ClusterRoleBinding", namespaced=False)
EVENTS = Resource(group="events.k8s.io", version="v1", plural="events", kind="Event", namespaced=True)
CLASS = Resource(group="resource.k8s.io", version="v1", plural="deviceclasses", kind="DeviceClass", namespaced=False)
GPU = "GPU-00000000-0000-0000-0000-000000000001"
MIG = "MIG-00000000-0000-0000-0000-000000000002"
PARTITION = "gpu-0-mig-1g10gb-19-4"


def rules(*, without=()):
    """Give the rules of deploy/rbac.yaml, but those for some resources."""
    documents = list(yaml.safe_load_all(RBAC_FILE.read_text()))
    (role,) = [document for document in documents if document["kind"] == "ClusterRole"]
    return [rule for rule in role["rules"] if not set(rule["resources"]) & set(without)]


class Plugin:
    """What a plugin's pod has: a namespace, a node, an account, and a token bound to the pod on that node."""

    def __init__(self, admin, kubeconfig, folder):
        self.admin, self.kubeconfig, self.folder = admin, kubeconfig, folder
        self.name = f"status-{uuid.uuid4().hex[:8]}"
        self.node = self.name
        self.clients, self.cluster_wide = [], []
        self.create(NAMESPACES)
        self.create(NODES, spec={"unschedulable": True})
        self.create(ACCOUNTS, namespace=self.name)
        spec = {
            "nodeName": self.node,
            "serviceAccountName": self.name,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "plugin", "image": "none"}],
            "tolerations": [{"operator": "Exists"}],
        }
        self.pod = self.create(PODS, namespace=self.name, spec=spec)

    def create(self, resource, namespace="", name="", **content):
        metadata = {"name": name or self.name} | ({"namespace": namespace} if namespace else {})
        made = self.admin.create(
            resource,
            {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content},
        )
        if not namespace:
            self.cluster_wide.append((resource, metadata["name"]))
        return made

    def allow(self, allowed):
        self.create(ROLES, rules=allowed)
        subject = {"kind": "ServiceAccount", "name": self.name, "namespace": self.name}
        self.create(BINDINGS, roleRef={"apiGroup": RBAC, "kind": "ClusterRole", "name": self.name}, subjects=[subject])

    def client(self, *, bound=True):
        """Connect with a token of the account, bound to the pod or not."""
        spec = {"expirationSeconds": 600}
        if bound:
            metadata = self.pod["metadata"]
            spec["boundObjectRef"] = {
                "kind": "Pod",
                "apiVersion": "v1",
                "name": metadata["name"],
                "uid": metadata["uid"],
            }
        path = ACCOUNTS.path(namespace=self.name, name=self.name, subresource="token")
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token = self.admin._call("POST", path, body=request)["status"]["token"]
        self.clients.append(connect(self._kubeconfig(token)))
        return self.clients[-1]

    def _kubeconfig(self, token):
        document = yaml.safe_load(self.kubeconfig.read_text())
        document["users"] = [{"name": user["name"], "user": {"token": token}} for user in document["users"]]
        for cluster in document["clusters"]:
            authority = cluster["cluster"].pop("certificate-authority", None)
            if authority:
                data = (self.kubeconfig.parent / authority).read_bytes()
                cluster["cluster"]["certificate-authority-data"] = base64.b64encode(data).decode()
        path = self.folder / f"kubeconfig-{len(self.clients)}"
        path.write_text(yaml.safe_dump(document))
        return path

    def claim(self, *devices, node="", driver=api.DRIVER_NAME):
        """Make a claim that is allocated to a node, as the scheduler would."""
        name = f"claim-{uuid.uuid4().hex[:6]}"
        requests = [{"name": f"r{index}", "exactly": {"deviceClassName": "none"}} for index, _ in enumerate(devices)]
        self.create(RESOURCE_CLAIMS, namespace=self.name, name=name, spec={"devices": {"requests": requests}})
        results = [
            {"request": f"r{index}", "driver": driver, "pool": self.node, "device": device}
            for index, device in enumerate(devices)
        ]
        term = {"key": "metadata.name", "operator": "In", "values": [node or self.node]}
        allocation = {
            "devices": {"results": results},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [term]}]},
        }
        made = self.admin.patch(
            RESOURCE_CLAIMS,
            name,
            {"status": {"allocation": allocation}},
            kind=PatchKind.MERGE,
            namespace=self.name,
            subresource="status",
        )
        return ClaimReference(namespace=self.name, name=name, uid=made["metadata"]["uid"])

    def status(self, claim):
        body = self.admin.get(RESOURCE_CLAIMS, claim.name, namespace=claim.namespace)
        return (body.get("status") or {}).get("devices") or []

    def events(self, reason, namespace=""):
        found = self.admin.list(EVENTS, selector=Selector(namespace=namespace or self.name)).items
        return [event for event in found if event["reason"] == reason and event["reportingInstance"] == self.node]

    def remove(self):
        for client in self.clients:
            client.close()
        self.admin.delete(PODS, self.name, namespace=self.name)
        for event in self.admin.list(EVENTS, selector=Selector(namespace="default")).items:
            if event.get("reportingInstance") == self.node:
                self.admin.delete(EVENTS, event["metadata"]["name"], namespace="default")
        for resource, name in reversed(self.cluster_wide):
            self.admin.delete(resource, name)


@pytest.fixture
def plugin(admin, control_plane, tmp_path):
    made = Plugin(admin, control_plane.kubeconfig, tmp_path)
    yield made
    made.remove()


@pytest.fixture
def tell():
    """Make a teller that writes with a client's rights; it is through with everything when told to `settle`."""
    made = []

    def make(plugin, client):
        events = EventRecorder(client, controller=api.DRIVER_NAME, instance=plugin.node)
        events.start()
        teller = ClaimTeller(client, events, driver=api.DRIVER_NAME, node_name=plugin.node)
        teller.start()
        made.append((teller, events))
        return teller

    yield make
    for teller, events in made:
        teller.stop(30)
        events.stop(30)


def record(plugin, claim):
    """A claim with a whole GPU and a partition."""
    whole = PlannedDevice(requests=("r0",), pool=plugin.node, device="gpu-1", gpu_uuid=GPU)
    part = PlannedDevice(
        requests=("r1",),
        pool=plugin.node,
        device=PARTITION,
        gpu_uuid=GPU,
        profile_id=19,
        profile_name="1g.10gb",
        placement=Placement(start=4, size=1),
        make=True,
    )
    plan = Plan(namespace=claim.namespace, name=claim.name, uid=claim.uid, devices=(whole, part))
    made = {PARTITION: Made(gpu_instance_id=7, compute_instance_id=0, uuid=MIG)}
    return Record(boot_id="boot", state=State.PREPARED, plan=plan, made=made)


def entry(devices, name):
    (found,) = [device for device in devices if device["device"] == name]
    return found


# --- status --------------------------------------------------------------------------------------


def test_the_rights_we_ask_for_write_the_devices_of_a_claim(plugin, tell):
    plugin.allow(rules())
    claim = plugin.claim("gpu-1", PARTITION)
    tell(plugin, plugin.client()).prepared(record(plugin, claim))
    until(lambda: plugin.status(claim))
    devices = plugin.status(claim)
    assert len(devices) == 2
    partition = entry(devices, PARTITION)
    (ready,) = partition.pop("conditions")
    assert ready.pop("lastTransitionTime")
    assert ready == {
        "type": "Ready",
        "status": "True",
        "reason": "Prepared",
        "message": f"prepared on node {plugin.node}",
    }
    assert partition == {
        "driver": api.DRIVER_NAME,
        "pool": plugin.node,
        "device": PARTITION,
        "data": {
            "uuid": MIG,
            "parentUUID": GPU,
            "gpuInstanceID": 7,
            "computeInstanceID": 0,
            "cdiDeviceIDs": [f"k8s.gpu.nvidia.com/claim={claim.uid}-{PARTITION}"],
        },
    }
    assert entry(devices, "gpu-1")["data"] == {
        "uuid": GPU,
        "cdiDeviceIDs": [f"k8s.gpu.nvidia.com/claim={claim.uid}-gpu-1"],
    }


def test_a_status_is_written_again_without_conflict(plugin, tell):
    plugin.allow(rules())
    claim = plugin.claim("gpu-1", PARTITION)
    teller = tell(plugin, plugin.client())
    teller.prepared(record(plugin, claim))
    until(lambda: plugin.status(claim))
    first = record(plugin, claim)
    changed = Made(gpu_instance_id=9, compute_instance_id=1, uuid=MIG)
    teller.prepared(Record(boot_id="boot", state=State.PREPARED, plan=first.plan, made={PARTITION: changed}))
    until(lambda: entry(plugin.status(claim), PARTITION)["data"]["gpuInstanceID"] == 9)
    assert len(plugin.status(claim)) == 2


@pytest.mark.parametrize("without", ["resourceclaims/status", "resourceclaims/driver"])
def test_without_the_right_it_is_denied_once_told_once_and_nothing_else_suffers(plugin, tell, without):
    plugin.allow(rules(without=[without]))
    claims = [plugin.claim("gpu-1", PARTITION) for _ in range(3)]
    client = plugin.client()
    asked = []
    apply = client.apply

    def counted(*arguments, **more):
        asked.append(arguments)
        return apply(*arguments, **more)

    client.apply = counted
    with structlog.testing.capture_logs() as logs:
        teller = tell(plugin, client)
        for claim in claims:
            teller.prepared(record(plugin, claim))
        teller.failed(claims[0], "prepare", "claim x: no; do this")
        until(lambda: plugin.events("FailedPrepare"))
    assert len(asked) == 1
    told = [line for line in logs if "lacks the right" in line["event"]]
    assert [line["log_level"] for line in told] == ["warning"]
    assert without in told[0]["error"]
    assert not any(plugin.status(claim) for claim in claims)


def test_a_token_bound_to_no_pod_is_denied(plugin, tell):
    """The least right is for the claims of the plugin's own node, which only a bound token tells."""
    plugin.allow(rules())
    claim = plugin.claim("gpu-1", PARTITION)
    with structlog.testing.capture_logs() as logs:
        teller = tell(plugin, plugin.client(bound=False))
        teller.prepared(record(plugin, claim))
        until(lambda: any("lacks the right" in line["event"] for line in logs))
    assert plugin.status(claim) == []


def test_the_claims_of_other_nodes_cannot_be_written(plugin, tell):
    plugin.allow(rules())
    elsewhere = plugin.claim("gpu-1", PARTITION, node="another-node")
    with structlog.testing.capture_logs() as logs:
        tell(plugin, plugin.client()).prepared(record(plugin, elsewhere))
        until(lambda: any("lacks the right" in line["event"] for line in logs))
    assert plugin.status(elsewhere) == []


def test_rights_that_are_given_later_are_used(plugin, tell, monkeypatch):
    claim = plugin.claim("gpu-1", PARTITION)
    teller = tell(plugin, plugin.client())
    with structlog.testing.capture_logs() as logs:
        teller.prepared(record(plugin, claim))
        until(lambda: any("lacks the right" in line["event"] for line in logs))
    plugin.allow(rules())
    monkeypatch.setattr(telling, "DENIED_SECONDS", 0.0)

    def written():
        teller.prepared(record(plugin, claim))
        return plugin.status(claim)

    until(written)


@pytest.mark.parametrize("devices", [["gpu-2"], ["gpu-1"]])
def test_a_claim_that_was_allocated_anew_keeps_its_status_and_the_right_is_not_given_up(plugin, tell, devices):
    plugin.allow(rules())
    changed, claim = plugin.claim(*devices), plugin.claim("gpu-1", PARTITION)
    with structlog.testing.capture_logs() as logs:
        teller = tell(plugin, plugin.client())
        teller.prepared(record(plugin, changed))
        teller.prepared(record(plugin, claim))
        until(lambda: plugin.status(claim))
    assert plugin.status(changed) == []
    assert not any(line["log_level"] == "warning" for line in logs)


def test_another_claim_of_the_same_name_gets_nothing(plugin, tell):
    plugin.allow(rules())
    claim, other = plugin.claim("gpu-1", PARTITION), plugin.claim("gpu-1", PARTITION)
    teller = tell(plugin, plugin.client())
    earlier = ClaimReference(namespace=claim.namespace, name=claim.name, uid=str(uuid.uuid4()))
    gone = ClaimReference(namespace=claim.namespace, name="gone", uid=str(uuid.uuid4()))
    teller.prepared(record(plugin, earlier))
    teller.prepared(record(plugin, gone))
    teller.prepared(record(plugin, other))
    until(lambda: plugin.status(other))
    assert plugin.status(claim) == []


# --- Events --------------------------------------------------------------------------------------


def test_a_failed_prepare_is_told_on_the_claim(plugin, tell):
    plugin.allow(rules())
    claim = plugin.claim("gpu-1")
    tell(plugin, plugin.client()).failed(claim, "prepare", "claim ns/c: no driver; install it")
    until(lambda: plugin.events("FailedPrepare"))
    (event,) = plugin.events("FailedPrepare")
    assert event["type"] == "Warning"
    assert event["action"] == "Prepare"
    assert event["note"] == "claim ns/c: no driver; install it"
    assert event["reportingController"] == api.DRIVER_NAME
    assert (event["regarding"]["kind"], event["regarding"]["uid"]) == ("ResourceClaim", claim.uid)


def test_a_failed_unprepare_is_told_on_the_pods_too(plugin, tell):
    """The kubelet says nothing of it, and the pod stays Terminating for no visible reason."""
    plugin.allow(rules())
    claim = plugin.claim("gpu-1")
    user = {"resource": "pods", "name": plugin.pod["metadata"]["name"], "uid": plugin.pod["metadata"]["uid"]}
    plugin.admin.patch(
        RESOURCE_CLAIMS,
        claim.name,
        {"status": {"reservedFor": [user]}},
        kind=PatchKind.MERGE,
        namespace=claim.namespace,
        subresource="status",
    )
    tell(plugin, plugin.client()).failed(claim, "unprepare", "claim ns/c: in use by 7 (sh); end it")
    until(lambda: len(plugin.events("FailedUnprepare")) == 2)
    regarding = {event["regarding"]["kind"]: event["regarding"]["uid"] for event in plugin.events("FailedUnprepare")}
    assert regarding == {"ResourceClaim": claim.uid, "Pod": user["uid"]}


def test_what_concerns_the_node_is_told_on_the_node(plugin, tell):
    plugin.allow(rules())
    teller = tell(plugin, plugin.client())
    instance = MigInstance(
        gpu_instance_id=3,
        profile_id=19,
        placement=Placement(start=4, size=1),
        compute_instance_id=0,
        uuid=MIG,
    )
    teller.foreign_instance(GPU, instance, reclaimed=False)
    teller.damaged_record("uid-7", Path("/somewhere/uid-7.json"), recovered=True)
    until(lambda: plugin.events("ForeignMigInstance", "default") and plugin.events("RecordDamaged", "default"))
    (event,) = plugin.events("ForeignMigInstance", "default")
    # `kubectl describe node` looks for the node's name as UID.
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": plugin.node, "uid": plugin.node}
    assert MIG in event["note"]


def test_what_happens_to_a_running_claim_is_told_on_it(plugin, tell):
    plugin.allow(rules())
    claim = plugin.claim("gpu-1", PARTITION)
    teller = tell(plugin, plugin.client())
    teller.lost_instance(record(plugin, claim), PARTITION)
    teller.stale_claim(record(plugin, claim), "the claim does not exist any more")
    until(lambda: plugin.events("PartitionLost") and plugin.events("ReleasedStaleClaim"))
    for reason in ("PartitionLost", "ReleasedStaleClaim"):
        (event,) = plugin.events(reason)
        assert event["regarding"]["uid"] == claim.uid


def test_without_the_right_to_write_events_the_status_is_written(plugin, tell):
    plugin.allow(rules(without=["events"]))
    claim = plugin.claim("gpu-1", PARTITION)
    teller = tell(plugin, plugin.client())
    teller.failed(claim, "prepare", "claim ns/c: no")
    teller.prepared(record(plugin, claim))
    until(lambda: plugin.status(claim))
    assert plugin.events("FailedPrepare") == []


# --- reading -------------------------------------------------------------------------------------


def test_claims_are_read_and_listed_with_the_same_rights(plugin):
    plugin.allow(rules())
    claim = plugin.claim("gpu-1")
    client = plugin.client()
    until(lambda: client.get(RESOURCE_CLAIMS, claim.name, namespace=claim.namespace))
    assert claim.uid in {item["metadata"]["uid"] for item in client.list(RESOURCE_CLAIMS).items}


# --- health of devices ---------------------------------------------------------------------------

LOST = Mark(key=api.TaintKey.XID, value="79", effect=Effect.NO_EXECUTE, since=0, text="GPU x reported Xid 79: reboot")


def use(plugin, claim):
    """Have the plugin's own pod use a claim; no kubelet runs it, and nobody evicts it without slices."""
    metadata = plugin.pod["metadata"]
    users = [{"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}]
    body = {"status": {"reservedFor": users}}
    plugin.admin.patch(RESOURCE_CLAIMS, claim.name, body, namespace=plugin.name, subresource="status")


def health(plugin, teller, client, claim):
    """Make a teller of health in the thread of a claims' teller; gives it and the counts of pods."""
    counts = []
    around = eviction.Around(
        client=client,
        events=teller._events,
        errands=teller.errands,
        driver=api.DRIVER_NAME,
        node_name=plugin.node,
        on_not_evicted=counts.append,
    )
    return HealthTeller(around, records=lambda: [record(plugin, claim)]), counts


def told_kinds(plugin, reason):
    return sorted(event["regarding"]["kind"] for event in plugin.events(reason))


@pytest.mark.parametrize("without", [[], ["pods"]], ids=["all rights", "pods may not be read"])
def test_claim_and_pod_are_told_of_a_sick_device_that_the_pod_is_not_evicted_and_when_it_is_over(
    plugin, tell, monkeypatch, without
):
    monkeypatch.setattr(eviction, "EVICTION_SECONDS", 0.0)
    plugin.allow(rules(without=without))
    claim, client = plugin.claim("gpu-1", PARTITION), plugin.client()
    use(plugin, claim)
    with structlog.testing.capture_logs() as logs:
        teller, counts = health(plugin, tell(plugin, client), client, claim)
        teller.told({GPU: (LOST,)})
        # Of both devices; but that a pod is not evicted is told once.
        until(lambda: told_kinds(plugin, "DeviceUnhealthy") == ["Pod"] * 2 + ["ResourceClaim"] * 2)
        until(lambda: told_kinds(plugin, "NotEvicted") == ["Pod", "ResourceClaim"])
        until(lambda: counts[-1] == 1)
        teller.told({})
        until(lambda: told_kinds(plugin, "DeviceHealthy") == ["Pod"] * 2 + ["ResourceClaim"] * 2)
        until(lambda: counts[-1] == 0)
    denied = [line["event"] for line in logs if line["log_level"] == "warning"]
    assert denied == ["pods cannot be read, so those that end slowly are told as not evicted"] * bool(without)
    (event,) = [event for event in plugin.events("NotEvicted") if event["regarding"]["kind"] == "Pod"]
    assert event["regarding"]["uid"] == plugin.pod["metadata"]["uid"]
    assert f"kubectl delete pod -n {plugin.name} {plugin.name}" in event["note"]
