"""The controller where it is killed, contradicted or robbed of what it needs, on a real API server."""

import re
import signal
import threading
import time
from contextlib import suppress

import pytest
from support import killed_writer
from support.bridging import bridge, device_class, unique
from support.delaying import Delaying
from support.waiting import wait_for

from controller.acting import Actor
from controller.api import BRIDGES
from controller.bridges import ApplyClass
from controller.watching import Watcher
from dradriver.kube import (
    DEVICE_CLASSES,
    LEASES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ConflictError,
    KubeError,
    NotFoundError,
)

_MOST_WRITES = 12


@pytest.fixture
def name():
    return unique("bridge")


@pytest.fixture
def resource(name):
    return f"nvidia.com/{name}"


@pytest.fixture
def theirs(admin, name):
    """A class of somebody else; it is removed at the end."""
    made = f"{name}-theirs"
    yield made
    with suppress(NotFoundError):
        admin.delete(DEVICE_CLASSES, made)


def lonely(name, resource_name, **spec):
    """A bridge that selects nothing, whatever other tests have published."""
    return bridge(name, resource_name, select={"type": "gpu", "productName": name}, **spec)


def class_of(name):
    return f"{name}.gpu.dradriver.dev"


def carried_twice(referee, resource):
    return [each for each in referee.carriers(resource) if len(each) > 1]


def free_lease(admin):
    """As after 15 s without a renewal."""
    admin.delete(LEASES, "dradriver-controller", namespace="dradriver")


def is_killed_before(controllers, nth, is_done):
    """Start a controller that kills itself before its nth write; whether it did, before all was done."""
    made = controllers.launch(program=killed_writer.program(nth))
    wait_for(lambda: not made.running or is_done(), "an end, or everything to be done", seconds=60, state=made.log)
    if made.running:
        assert made.stop() == 0
        return False
    assert made.wait_end() == -signal.SIGKILL
    return True


def test_killed_before_any_of_its_writes(controllers, admin, name):
    """Wherever a take-over is interrupted, never do two carry the name, and the next process finishes it."""
    nth, is_interrupted = 0, True
    while is_interrupted:
        nth += 1
        assert nth < _MOST_WRITES
        is_interrupted = interrupt_take_over(controllers, admin, f"{name}-{nth}", nth)
    # Both classes and the status, at the least.
    assert nth > 3


def interrupt_take_over(controllers, admin, name, nth):
    resource, theirs = f"nvidia.com/{name}", f"{name}-theirs"
    admin.create(DEVICE_CLASSES, device_class(theirs, resource))
    controllers.add(lonely(name, resource))
    controllers.start()
    controllers.wait_reason(name, "NameOnOtherClass")
    controllers.stop()
    with controllers.referee() as referee:
        controllers.change(name, adopt=True)
        killed = is_killed_before(controllers, nth, lambda: controllers.conditions(name)["Ready"][1] == "NoDevices")
        if killed:
            free_lease(admin)
        controllers.start()
        controllers.wait_carrier(resource, class_of(name))
        controllers.wait_reason(name, "NoDevices")
    assert carried_twice(referee, resource) == []
    assert referee.carriers(resource)[0] == {theirs}
    assert referee.carriers(resource)[-1] == {class_of(name)}
    controllers.delete(name)
    controllers.stop()
    admin.delete(DEVICE_CLASSES, theirs)
    return killed


def is_gift(method, target):
    """Whether a request gives a class its name; what is only asked for by a dry run does not."""
    return method == "PATCH" and "/deviceclasses/" in target and "force=" in target and "dryRun" not in target


def test_a_write_on_its_way_keeps_the_lease_and_what_it_leaves_behind_goes(
    controllers, admin, name, resource, tmp_path
):
    """Stopped while a write hangs somewhere; it is carried out when the bridge is gone already."""
    with Delaying(controllers.kubeconfig, tmp_path, is_gift) as proxy:
        first = controllers.start("--kubeconfig", str(proxy.kubeconfig))
        controllers.add(lonely(name, resource))
        assert proxy.kept.wait(30)
        holder = lease_holder(admin)
        assert first.stop() == 0
        assert lease_holder(admin) == holder
        assert any("lease not given back" in entry["event"] for entry in first.entries())
        admin.patch(BRIDGES, name, {"metadata": {"finalizers": None}})
        admin.delete(BRIDGES, name)
        proxy.release.set()
        assert proxy.delivered.wait(30)
    wait_for(lambda: controllers.carriers(resource) == {class_of(name)}, "the late write")
    assert lease_holder(admin) == holder
    controllers.start()
    wait_for(lambda: controllers.device_class(class_of(name)) is None, "the class to be gone", seconds=60)


def lease_holder(admin):
    return admin.get(LEASES, "dradriver-controller", namespace="dradriver")["spec"]["holderIdentity"]


def test_an_apply_that_saw_a_class_does_not_make_it_anew(admin, name):
    """Of Kubernetes: the resourceVersion alone would."""
    admin.create(DEVICE_CLASSES, device_class(name))
    seen = admin.get(DEVICE_CLASSES, name)["metadata"]
    admin.delete(DEVICE_CLASSES, name)
    action = ApplyClass(
        name=name,
        uid=seen["uid"],
        resource_version=seen["resourceVersion"],
        labels={},
        annotations={},
        spec={"selectors": []},
    )
    actor = Actor(admin, Watcher(admin, on_change=lambda _small: None), may_act=lambda: True)
    with pytest.raises(ConflictError, match="uid mismatch"):
        actor.act((action,))
    assert name not in {item["metadata"]["name"] for item in admin.list(DEVICE_CLASSES).items}


def test_a_class_whose_bridge_lost_its_finalizer_by_hand_goes(controllers, admin, name, resource):
    controllers.add(lonely(name, resource))
    first = controllers.start()
    controllers.wait_carrier(resource, class_of(name))
    first.stop()
    admin.patch(BRIDGES, name, {"metadata": {"finalizers": None}})
    admin.delete(BRIDGES, name)
    controllers.start()
    controllers.wait_carrier(resource)
    wait_for(lambda: controllers.device_class(class_of(name)) is None, "the class to be gone")


def test_a_class_that_is_being_deleted_is_waited_for(controllers, admin, name, resource):
    controllers.start()
    controllers.add(lonely(name, resource))
    controllers.wait_carrier(resource, class_of(name))
    controllers.wait_reason(name, "NoDevices")
    admin.patch(DEVICE_CLASSES, class_of(name), {"metadata": {"finalizers": ["example.com/x"]}})
    former = controllers.device_class(class_of(name))["metadata"]["uid"]
    controllers.delete(name)
    controllers.add(lonely(name, resource))
    assert "example.com/x" in controllers.wait_reason(name, "ClassDeleting")
    admin.patch(DEVICE_CLASSES, class_of(name), {"metadata": {"finalizers": None}})
    controllers.wait_reason(name, "NoDevices")
    assert controllers.device_class(class_of(name))["metadata"]["uid"] != former


class Opponent:
    """Somebody who gives the name back to his class as soon as it is taken from it."""

    def __init__(self, admin, name, resource):
        self._admin, self._name, self._resource = admin, name, resource
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        body = device_class(self._name, self._resource)
        while not self._ended.wait(0.001):
            try:
                self._admin.apply(DEVICE_CLASSES, body, field_manager="argocd")
            except KubeError:
                continue

    def stop(self):
        self._ended.set()
        self._thread.join()


def conflict_of(controllers, name):
    return controllers.conditions(name).get("Conflict", ("", "", ""))[1]


def test_who_is_contradicted_slows_down_and_says_who_it_is(controllers, admin, name, resource, theirs):
    controller = controllers.start()
    opponent = Opponent(admin, theirs, resource)
    try:
        wait_for(lambda: controllers.device_class(theirs) is not None, "their class")
        controllers.add(lonely(name, resource, adopt=True))
        wait_for(lambda: conflict_of(controllers, name) == "Contested", "it to say so", seconds=60)
        assert "argocd" in controllers.conditions(name)["Conflict"][2]
        controllers.told(name, "Contested")
        # Ours has given way.
        wait_for(lambda: controllers.carriers(resource) == {theirs}, "one class to have the name")
        acted = [each for each in controller.entries() if each["event"] == "acting"]
        assert len(acted) < 40
    finally:
        opponent.stop()


def claim_body(name):
    requests = [{"name": "r", "exactly": {"deviceClassName": "none.gpu"}}]
    head = {"apiVersion": RESOURCE_CLAIMS.api_version, "kind": RESOURCE_CLAIMS.kind}
    metadata = {"name": name, "namespace": "default"}
    return head | {"metadata": metadata, "spec": {"devices": {"requests": requests}}}


def allocated(device):
    result = {"request": "r", "driver": "gpu.nvidia.com", "pool": "churn", "device": device}
    return {"status": {"allocation": {"devices": {"results": [result]}}}}


@pytest.fixture
def claims(admin, name):
    """Claims, and a pool of devices that they can hold."""
    devices = [{"name": f"gpu-{n}", "attributes": {"type": {"string": "gpu"}}} for n in range(40)]
    pool = {"name": "churn", "generation": 1, "resourceSliceCount": 1}
    head = {"apiVersion": RESOURCE_SLICES.api_version, "kind": RESOURCE_SLICES.kind, "metadata": {"name": name}}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "churn", "pool": pool, "devices": devices}
    admin.create(RESOURCE_SLICES, head | {"spec": spec})
    names = [f"{name}-{n}" for n in range(40)]
    for each in names:
        admin.create(RESOURCE_CLAIMS, claim_body(each))
    yield names
    for each in names:
        admin.delete(RESOURCE_CLAIMS, each, namespace="default")
    admin.delete(RESOURCE_SLICES, name)


def test_a_busy_cluster_does_not_cost_a_status_for_each_claim(controllers, admin, name, resource, claims):
    """Its own statuses wake it no sooner than what changes all the time."""
    controller = controllers.start()
    for number in range(4):
        controllers.add(bridge(f"{name}-{number}", f"{resource}-{number}"))
        controllers.wait_carrier(f"{resource}-{number}", class_of(f"{name}-{number}"))
        controllers.wait_reason(f"{name}-{number}", "Serving")
    before, begun = statuses(controller), time.monotonic()
    for number, each in enumerate(claims):
        body = allocated(f"gpu-{number}")
        admin.patch(RESOURCE_CLAIMS, each, body, namespace="default", subresource="status")
        time.sleep(0.03)
    controllers.wait_counts(f"{name}-3", allocated=40)
    looks = (time.monotonic() - begun) / 0.5 + 2
    assert statuses(controller) - before <= 4 * looks


def statuses(controller):
    found = re.search(r'actions_total\{action="WriteStatus"\} (\S+)', controller.page("/metrics"))
    return float(found[1]) if found else 0.0
