"""Events and claim status: off the critical path, once, and with cause and next step."""

import datetime as dt
import threading
from pathlib import Path

import pytest
import structlog

from dradriver import api
from dradriver.gpu.model import MigInstance, Placement
from dradriver.kube import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    ServerError,
    UnreachableError,
)
from dradriver.kubelet import ClaimReference
from dradriver.prepare import telling
from dradriver.prepare.errands import QUEUED
from dradriver.prepare.plan import Plan, PlannedDevice
from dradriver.prepare.records import Made, Record, State
from dradriver.prepare.telling import DENIED_SECONDS, ClaimTeller

LIMIT = 30.0
CLAIM = ClaimReference(namespace="ns", name="c", uid="uid-c")
PARTITION = "gpu-0-mig-1g10gb-19-4"
FORBIDDEN = ForbiddenError(status=403, reason="Forbidden", message="cannot patch", target="PATCH c")
NO_DRIVER_RIGHT = InvalidError(
    status=422,
    reason="Invalid",
    message='changing status.devices requires resource="resourceclaims/driver" permission',
    target="PATCH c",
)
NOT_ALLOCATED = InvalidError(status=422, reason="Invalid", message="must be an allocated device", target="PATCH c")


class Client:
    """Remembers what is applied, and fails as told."""

    def __init__(self):
        self.applied = []
        self.error = None
        self.claim = {"metadata": {"namespace": "ns", "uid": CLAIM.uid}, "status": {}}
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def apply(self, resource, body, *, field_manager, subresource):
        self.entered.set()
        assert self.go_on.wait(LIMIT)
        self.applied.append((resource.plural, subresource, field_manager, body))
        if self.error is not None:
            raise self.error

    def get(self, resource, name, *, namespace):
        if isinstance(self.claim, Exception):
            raise self.claim
        return self.claim


class Events:
    """Keeps Events instead of writing them."""

    def __init__(self):
        self.happened = []

    def record(self, happening):
        self.happened.append(happening)


class Told:
    """A teller whose thread is through with everything once `done` returns."""

    def __init__(self):
        self.client, self.events, self.now = Client(), Events(), 1000.0
        self.teller = ClaimTeller(
            self.client,
            self.events,
            driver=api.DRIVER_NAME,
            node_name="node-a",
            wall_clock=lambda: dt.datetime(2026, 5, 6, 7, 8, 9, tzinfo=dt.UTC),
            clock=lambda: self.now,
        )

    def done(self):
        passed = threading.Event()
        self.teller.errands.soon(passed.set)
        assert passed.wait(LIMIT)

    def prepare(self, record):
        self.teller.prepared(record)
        self.done()


@pytest.fixture
def told():
    made = Told()
    made.teller.start()
    yield made
    made.client.go_on.set()
    made.teller.stop(LIMIT)


def record(*, name="c", share_id=None):
    part = PlannedDevice(
        requests=("r0",),
        pool="node-a",
        device=PARTITION,
        gpu_uuid="GPU-0",
        profile_id=19,
        profile_name="1g.10gb",
        placement=Placement(start=4, size=1),
        make=True,
        share_id=share_id,
    )
    plan = Plan(namespace="ns" if name else "", name=name, uid=CLAIM.uid, devices=(part,))
    made = {PARTITION: Made(gpu_instance_id=7, compute_instance_id=0, uuid="MIG-0")}
    return Record(boot_id="boot", state=State.PREPARED, plan=plan, made=made)


# --- status --------------------------------------------------------------------------------------


def test_the_entry_of_a_device_is_exact(told):
    told.prepare(record())
    ((plural, subresource, manager, body),) = told.client.applied
    assert (plural, subresource, manager) == ("resourceclaims", "status", "dradriver-node-a")
    assert body == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "ns", "name": "c", "uid": CLAIM.uid},
        "status": {
            "devices": [
                {
                    "driver": api.DRIVER_NAME,
                    "pool": "node-a",
                    "device": PARTITION,
                    "conditions": [
                        {
                            "type": "Ready",
                            "status": "True",
                            "reason": "Prepared",
                            "message": "prepared on node node-a",
                            "lastTransitionTime": "2026-05-06T07:08:09Z",
                        }
                    ],
                    "data": {
                        "uuid": "MIG-0",
                        "parentUUID": "GPU-0",
                        "gpuInstanceID": 7,
                        "computeInstanceID": 0,
                        "cdiDeviceIDs": [f"k8s.gpu.nvidia.com/claim={CLAIM.uid}-{PARTITION}"],
                    },
                }
            ]
        },
    }


def test_a_share_is_named_in_its_entry(told):
    told.prepare(record(share_id="0e6cbb4a-41ab-44e4-a2ad-0b3a4d2f5a11"))
    ((*_, body),) = told.client.applied
    (entry,) = body["status"]["devices"]
    assert entry["shareID"] == "0e6cbb4a-41ab-44e4-a2ad-0b3a4d2f5a11"
    assert entry["data"]["cdiDeviceIDs"][0].endswith(entry["shareID"])


def test_a_claim_without_a_name_gets_none(told):
    """A recovered one: its name is not known until the kubelet or the reconciler tells it."""
    told.prepare(record(name=""))
    assert told.client.applied == []


@pytest.mark.parametrize("error", [FORBIDDEN, NO_DRIVER_RIGHT])
def test_a_denied_status_is_told_once_and_tried_again_after_a_while(told, error):
    told.client.error = error
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            told.prepare(record())
        assert len(told.client.applied) == 1
        told.now += DENIED_SECONDS
        told.prepare(record())
        assert len(told.client.applied) == 2
    assert [line["log_level"] for line in logs if "lacks the right" in line["event"]] == ["warning"]
    told.client.error = None
    told.now += DENIED_SECONDS
    told.prepare(record())
    told.prepare(record())
    assert len(told.client.applied) == 4


@pytest.mark.parametrize(
    "error",
    [
        NOT_ALLOCATED,
        ConflictError(status=409, reason="Conflict", message="UID", target="PATCH c"),
        NotFoundError(status=404, reason="NotFound", message="gone", target="PATCH c"),
    ],
)
def test_a_claim_that_changed_is_no_matter(told, error):
    told.client.error = error
    with structlog.testing.capture_logs() as logs:
        told.prepare(record())
        told.prepare(record())
    assert len(told.client.applied) == 2
    assert not any(line["log_level"] in ("warning", "error") for line in logs)


@pytest.mark.parametrize(
    "error",
    [
        UnreachableError("PATCH c: connection refused"),
        ServerError(status=500, reason="InternalError", message="no", target="PATCH c"),
    ],
)
def test_a_failing_api_server_does_not_end_the_thread(told, error):
    told.client.error = error
    told.prepare(record())
    told.client.error = None
    told.prepare(record())
    assert len(told.client.applied) == 2


# --- off the critical path -----------------------------------------------------------------------


def test_a_slow_api_server_makes_nobody_wait(told):
    told.client.go_on.clear()
    told.teller.prepared(record())
    assert told.client.entered.wait(LIMIT)
    for _ in range(QUEUED + 10):
        told.teller.prepared(record())
    told.teller.failed(CLAIM, "prepare", "no room to tell this")
    told.client.go_on.set()
    told.teller.stop(LIMIT)
    assert len(told.client.applied) == QUEUED + 1


def test_a_stop_writes_what_waits(told):
    for _ in range(5):
        told.teller.prepared(record())
    told.teller.stop(LIMIT)
    assert len(told.client.applied) == 5


def test_a_stop_does_not_wait_for_a_server_that_hangs(told):
    told.client.go_on.clear()
    told.teller.prepared(record())
    assert told.client.entered.wait(LIMIT)
    told.teller.stop(0.01)
    assert told.client.applied == []


def test_a_teller_that_was_never_started_can_be_stopped():
    Told().teller.stop()


# --- Events --------------------------------------------------------------------------------------


def test_a_failed_prepare_is_told_on_the_claim_only(told):
    """The kubelet tells the pod, with the same words."""
    told.client.claim["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "uid-p"}]
    told.teller.failed(CLAIM, "prepare", "claim ns/c: cause; step")
    told.done()
    (happening,) = told.events.happened
    assert (happening.reason, happening.action, happening.note) == (
        "FailedPrepare",
        "Prepare",
        "claim ns/c: cause; step",
    )
    assert (happening.regarding.kind, happening.regarding.name, happening.regarding.uid) == (
        "ResourceClaim",
        "c",
        "uid-c",
    )


def test_a_failed_unprepare_is_told_on_claim_and_pods(told):
    told.client.claim["status"]["reservedFor"] = [
        {"resource": "pods", "name": "p", "uid": "uid-p"},
        {"resource": "jobs", "name": "j", "uid": "uid-j"},
    ]
    told.teller.failed(CLAIM, "unprepare", "claim ns/c: in use")
    told.done()
    assert [(one.regarding.kind, one.regarding.name, one.reason) for one in told.events.happened] == [
        ("ResourceClaim", "c", "FailedUnprepare"),
        ("Pod", "p", "FailedUnprepare"),
    ]


@pytest.mark.parametrize(
    "claim",
    [
        NotFoundError(status=404, reason="NotFound", message="gone", target="GET c"),
        UnreachableError("GET c: connection refused"),
        {"metadata": {"uid": "another"}, "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}]}},
        {"metadata": {"uid": CLAIM.uid}},
    ],
    ids=["gone", "unreachable", "another claim of that name", "no status"],
)
def test_pods_that_are_not_known_are_left_out(told, claim):
    told.client.claim = claim
    told.teller.failed(CLAIM, "unprepare", "claim ns/c: in use")
    told.done()
    assert [one.regarding.kind for one in told.events.happened] == ["ResourceClaim"]


FOREIGN = MigInstance(
    gpu_instance_id=3, profile_id=19, placement=Placement(start=4, size=1), compute_instance_id=0, uuid="MIG-9"
)
BARE = MigInstance(
    gpu_instance_id=3, profile_id=19, placement=Placement(start=4, size=1), compute_instance_id=None, uuid=None
)


@pytest.mark.parametrize(
    ("tell", "reason", "kind", "words"),
    [
        (
            lambda teller: teller.stale_claim(record(), "the claim does not exist any more"),
            "ReleasedStaleClaim",
            "ResourceClaim",
            ["claim ns/c (UID uid-c)", PARTITION, "node-a", "does not exist any more", "released"],
        ),
        (
            lambda teller: teller.stale_claim(record(name=""), "no claim of that UID exists"),
            "ReleasedStaleClaim",
            "Node",
            ["UID uid-c", PARTITION],
        ),
        (
            lambda teller: teller.lost_instance(record(), PARTITION),
            "PartitionLost",
            "ResourceClaim",
            ["claim ns/c", PARTITION, "node-a", "restart the pod"],
        ),
        (
            lambda teller: teller.damaged_record("uid-7", Path("/q/uid-7.json"), recovered=True),
            "RecordDamaged",
            "Node",
            ["uid-7", "/q/uid-7.json", "made again from the claim's CDI spec"],
        ),
        (
            lambda teller: teller.damaged_record("uid-7", Path("/q/uid-7.json"), recovered=False),
            "RecordDamaged",
            "Node",
            ["not known any more"],
        ),
        (
            lambda teller: teller.foreign_instance("GPU-0", FOREIGN, reclaimed=False),
            "ForeignMigInstance",
            "Node",
            ["GPU GPU-0 has MIG-9 at memory slice 4", "nvidia-smi mig -dci"],
        ),
        (
            lambda teller: teller.foreign_instance("GPU-0", BARE, reclaimed=True),
            "ForeignMigInstance",
            "Node",
            ["GPU instance 3 without compute instance", "destroyed (--reclaim-unknown-mig)"],
        ),
    ],
)
def test_every_event_names_object_cause_and_step(told, tell, reason, kind, words):
    tell(told.teller)
    (happening,) = told.events.happened
    assert (happening.reason, happening.regarding.kind, happening.type) == (reason, kind, "Warning")
    assert all(word in happening.note for word in words), happening.note
    assert happening.regarding.uid == ("node-a" if kind == "Node" else CLAIM.uid)


def test_the_reasons_are_those_that_users_are_told_of():
    text = (Path(telling.__file__).parents[2] / "docs" / "preparing.md").read_text()
    for reason in (*telling.REASONS.values(), "ReleasedStaleClaim", "PartitionLost", "RecordDamaged"):
        assert f"`{reason}`" in text
    assert "`ForeignMigInstance`" in text
