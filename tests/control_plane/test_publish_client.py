"""The client and reflector against a real API server."""

import threading
import uuid

import pytest
import yaml
from doubles.publishing import PATIENCE, until

from dradriver.kube import (
    EVENTS,
    LEASES,
    NODES,
    AlreadyExistsError,
    ConflictError,
    EventRecorder,
    Happening,
    InvalidError,
    NotFoundError,
    PatchKind,
    Reflector,
    Regarding,
    Selector,
    Store,
    UnauthorizedError,
    UnreachableError,
)
from dradriver.kube.connection import connect

pytestmark = pytest.mark.control_plane


@pytest.fixture
def lease(admin):
    """Creates leases of one label, which any API server has and nobody else looks at."""
    label = f"test-{uuid.uuid4().hex[:8]}"
    made = []

    def make(name="", **spec):
        metadata = {"name": f"{label}-{name or 0}", "namespace": "default", "labels": {"test": label}}
        made.append(metadata["name"])
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}

    make.selector = Selector(namespace="default", labels=f"test={label}")
    yield make
    for name in made:
        try:
            admin.delete(LEASES, name, namespace="default")
        except NotFoundError:
            continue


def test_life_of_an_object(admin, lease):
    created = admin.create(LEASES, lease(holderIdentity="a"))
    name = created["metadata"]["name"]
    with pytest.raises(AlreadyExistsError):
        admin.create(LEASES, lease(holderIdentity="a"))
    created["spec"]["holderIdentity"] = "b"
    replaced = admin.replace(LEASES, created)
    with pytest.raises(ConflictError, match="the object has been modified"):
        admin.replace(LEASES, created)
    patched = admin.patch(LEASES, name, {"spec": {"holderIdentity": "c"}}, namespace="default")
    assert patched["spec"]["holderIdentity"] == "c"
    operations = ({"op": "replace", "path": "/spec/holderIdentity", "value": "d"},)
    assert (
        admin.patch(LEASES, name, operations, kind=PatchKind.JSON, namespace="default")["spec"]["holderIdentity"] == "d"
    )
    applied = admin.apply(LEASES, lease(holderIdentity="e"), field_manager="test")
    assert applied["spec"]["holderIdentity"] == "e"
    with pytest.raises(ConflictError):
        admin.delete(LEASES, name, namespace="default", resource_version=replaced["metadata"]["resourceVersion"])
    admin.delete(LEASES, name, namespace="default", uid=applied["metadata"]["uid"])
    with pytest.raises(NotFoundError):
        admin.get(LEASES, name, namespace="default")


def test_unknown_fields_are_refused(admin, lease):
    with pytest.raises(InvalidError, match=r'unknown field "spec\.nonsense"'):
        admin.create(LEASES, lease(nonsense=1))


def test_dry_run_stores_nothing(admin, lease):
    name = admin.create(LEASES, lease(holderIdentity="a"), dry_run=True)["metadata"]["name"]
    with pytest.raises(NotFoundError):
        admin.get(LEASES, name, namespace="default")


def test_lists_come_in_pages(admin, lease):
    names = [admin.create(LEASES, lease(str(number)))["metadata"]["name"] for number in range(5)]
    listing = admin.list(LEASES, selector=lease.selector, limit=2)
    assert [item["metadata"]["name"] for item in listing.items] == names
    assert {item["kind"] for item in listing.items} == {"Lease"}


def rewritten(control_plane, folder, *, cluster=None, user=None):
    """The cluster's kubeconfig with other entries, in another folder."""
    document = yaml.safe_load(control_plane.kubeconfig.read_text())
    for entry in document["clusters"]:
        if authority := entry["cluster"].get("certificate-authority"):
            entry["cluster"]["certificate-authority"] = str(control_plane.kubeconfig.parent / authority)
        for name, value in (cluster or {}).items():
            entry["cluster"].pop(name, None)
            if value is not None:
                entry["cluster"][name] = value
    if user is not None:
        document["users"] = [{"name": entry["name"], "user": user} for entry in document["users"]]
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_bad_token_is_its_own_error(control_plane, tmp_path):
    client = connect(rewritten(control_plane, tmp_path, user={"token": "wrong"}))
    with pytest.raises(UnauthorizedError, match="check the token"):
        client.list(NODES)
    client.close()


NO_AUTHORITY = {"certificate-authority": None, "certificate-authority-data": None}


def test_a_server_that_cannot_be_verified_is_not_spoken_to(control_plane, tmp_path):
    client = connect(rewritten(control_plane, tmp_path, cluster=NO_AUTHORITY))
    with pytest.raises(UnreachableError, match="certificate verify failed"):
        client.list(NODES)
    client.close()


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_verification_can_be_given_up_in_the_kubeconfig(control_plane, tmp_path):
    cluster = {**NO_AUTHORITY, "insecure-skip-tls-verify": True}
    client = connect(rewritten(control_plane, tmp_path, cluster=cluster))
    assert client.list(NODES).resource_version
    client.close()


def test_the_host_name_is_verified(control_plane, tmp_path):
    client = connect(rewritten(control_plane, tmp_path, cluster={"tls-server-name": "elsewhere.example.com"}))
    with pytest.raises(UnreachableError, match="elsewhere"):
        client.list(NODES)
    client.close()


@pytest.mark.parametrize("strict", [True, False])
def test_tls_works_both_ways(control_plane, strict):
    client = connect(control_plane.kubeconfig, x509_strict=strict)
    assert client.list(NODES).resource_version
    client.close()


def test_a_reflector_follows_and_stops_at_once(admin, lease):
    store, changed = Store(), threading.Event()
    reflector = Reflector(admin, LEASES, store, selector=lease.selector, on_change=lambda _key: changed.set())
    reflector.start()
    assert reflector.wait_synced(PATIENCE)
    item = admin.create(LEASES, lease(holderIdentity="a"))
    until(store.snapshot)
    admin.delete(LEASES, item["metadata"]["name"], namespace="default")
    until(lambda: not store.snapshot())
    assert changed.is_set()
    assert reflector.stop(PATIENCE)


def test_events_are_accepted(admin):
    name = f"node-{uuid.uuid4().hex[:8]}"
    recorder = EventRecorder(admin, controller="dradriver.dev/test", instance="test")
    recorder.start()
    regarding = Regarding(api_version="v1", kind="Node", name=name, uid=name)
    recorder.record(Happening(regarding=regarding, reason="Tested", action="Test", note="all is well"))
    recorder.stop(PATIENCE)
    assert recorder.dropped == 0
    selector = Selector(namespace="default", fields=f"regarding.name={name}")
    (event,) = admin.list(EVENTS, selector=selector).items
    assert event["note"] == "all is well"
    admin.delete(EVENTS, event["metadata"]["name"], namespace="default")
