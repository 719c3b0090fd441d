"""The controller as a process, with its own rights, on a real API server and scheduler."""

import re
import signal

import pytest
from support.bridging import bridge, device_class, unique
from support.waiting import wait_for

from controller.api import BRIDGES
from dradriver.kube import DEVICE_CLASSES, LEASES, RESOURCE_CLAIMS, RESOURCE_SLICES

NODE = "bridge-node"


@pytest.fixture
def hand_made(admin):
    """Makes a class of somebody else; it is removed at the end."""
    made = []

    def make(name, extended_name=""):
        made.append(name)
        return admin.create(DEVICE_CLASSES, device_class(name, extended_name))

    yield make
    present = {item["metadata"]["name"] for item in admin.list(DEVICE_CLASSES).items}
    for name in present.intersection(made):
        admin.delete(DEVICE_CLASSES, name)


@pytest.fixture
def published(admin):
    """Publishes devices of a node that does not exist."""
    made = []

    def publish(*devices, pool=NODE, total=1):
        name = unique("slice")
        body = {
            "apiVersion": RESOURCE_SLICES.api_version,
            "kind": RESOURCE_SLICES.kind,
            "metadata": {"name": name},
            "spec": {
                "driver": "gpu.nvidia.com",
                "nodeName": pool,
                "pool": {"name": pool, "generation": 1, "resourceSliceCount": total},
                "devices": list(devices),
            },
        }
        made.append(name)
        return admin.create(RESOURCE_SLICES, body)

    yield publish
    for name in made:
        admin.delete(RESOURCE_SLICES, name)


def gpu(name, product="H100", memory="80Gi", **more):
    return {
        "name": name,
        "attributes": {"type": {"string": "gpu"}, "productName": {"string": product}},
        "capacity": {"memory": {"value": memory}},
        **more,
    }


def mig(name, profile, product):
    attributes = {"type": "mig", "profile": profile, "productName": product}
    return {"name": name, "attributes": {key: {"string": value} for key, value in attributes.items()}}


def lonely(name, resource_name):
    """A bridge that selects nothing, whatever other tests have published."""
    return bridge(name, resource_name, select={"type": "gpu", "productName": name})


def class_of(resource_name):
    return f"{resource_name.partition('/')[2]}.gpu.dradriver.dev"


@pytest.fixture
def name():
    return unique("bridge")


@pytest.fixture
def resource(name):
    return f"nvidia.com/{name}"


def test_a_bridge_becomes_a_class_and_says_what_it_selects(controllers, published, name, resource):
    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
    published(gpu("gpu-0", product=name), gpu("gpu-1", product=name, taints=[taint]), gpu("gpu-2", product="other"))
    controllers.start()
    controllers.add(bridge(name, resource, select={"type": "gpu", "productName": name, "memory": {"min": "80Gi"}}))
    message = controllers.wait_reason(name, "Serving")
    assert message == f"1 node can serve {resource} through DeviceClass {class_of(resource)}"
    controllers.wait_counts(name, published=2, allocatable=1, allocated=0, tainted=1)
    made = controllers.device_class(class_of(resource))
    assert made["spec"]["extendedResourceName"] == resource
    assert made["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "dradriver-controller",
        "dradriver.dev/bridge": name,
    }
    managers = {each["manager"] for each in made["metadata"]["managedFields"]}
    assert managers == {"dradriver-controller"}
    controllers.told(name, "ClassCreated")
    controllers.delete(name)
    assert controllers.device_class(class_of(resource)) is None


def test_the_numbers_follow_slices_and_claims(controllers, published, admin, server, name, resource):
    controllers.start()
    controllers.add(bridge(name, resource, select={"profile": "7g.80gb", "productName": name}))
    assert "no node publishes" in controllers.wait_reason(name, "NoDevices")
    published(mig("a", "7g.80gb", name), mig("b", "7g.80gb", name), mig("c", "1g.10gb", name), pool=name)
    controllers.wait_counts(name, published=2, allocatable=2)
    controllers.wait_reason(name, "Serving")
    published(mig("a", "7g.80gb", name), pool=f"{name}-other")
    controllers.wait_counts(name, published=3)
    claim = _allocated_claim(admin, server, name, class_of(resource), device="b")
    controllers.wait_counts(name, published=3, allocatable=2, allocated=1)
    controllers.delete(name, wait=False)
    assert f"default/{name}" in controllers.wait_reason(name, "InUse")
    controllers.told(name, "InUse")
    assert controllers.carriers(resource) == set()
    assert controllers.device_class(class_of(resource)) is not None
    _remove_claim(admin, claim)
    wait_for(lambda: controllers.find(name) is None, "the bridge to be gone", state=controllers.log)
    assert controllers.device_class(class_of(resource)) is None


def test_the_deletion_is_forced_by_the_annotation(controllers, admin, server, name, resource):
    controllers.start()
    controllers.add(bridge(name, resource))
    controllers.wait_carrier(resource, class_of(resource))
    claim = _allocated_claim(admin, server, name, class_of(resource), device="gpu-0")
    controllers.delete(name, wait=False)
    controllers.wait_reason(name, "InUse")
    controllers.force(name)
    wait_for(lambda: controllers.find(name) is None, "the bridge to be gone", state=controllers.log)
    assert admin.get(RESOURCE_CLAIMS, name, namespace="default")["status"]["allocation"]
    _remove_claim(admin, claim)


def _allocated_claim(admin, server, name, class_name, *, device):
    """A claim that holds a device, as the scheduler would have allocated it."""
    request = {"name": "r", "exactly": {"deviceClassName": class_name}}
    body = {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }
    stored = admin.create(RESOURCE_CLAIMS, body)
    result = {"request": "r", "driver": "gpu.nvidia.com", "pool": name, "device": device}
    status = {"allocation": {"devices": {"results": [result]}}}
    return admin.replace(RESOURCE_CLAIMS, stored | {"status": status}, subresource="status")


def _remove_claim(admin, claim):
    metadata = claim["metadata"]
    admin.patch(RESOURCE_CLAIMS, metadata["name"], {"metadata": {"finalizers": None}}, namespace=metadata["namespace"])
    admin.delete(RESOURCE_CLAIMS, metadata["name"], namespace=metadata["namespace"])


# --- two who want the same ------------------------------------------------------------------------


def test_two_bridges_of_one_name(controllers, name, resource):
    controllers.start()
    young = f"{name}-young"
    with controllers.referee() as referee:
        controllers.add(bridge(name, resource))
        controllers.wait_carrier(resource, class_of(resource))
        controllers.add(bridge(young, resource, deviceClassName=f"{young}.gpu.dradriver.dev"))
        assert name in controllers.wait_reason(young, "NameOfAnotherBridge")
        assert controllers.conditions(young)["Conflict"][0] == "True"
        assert controllers.device_class(f"{young}.gpu.dradriver.dev") is None
        controllers.delete(name)
        controllers.wait_carrier(resource, f"{young}.gpu.dradriver.dev")
        wait_for(lambda: controllers.conditions(young)["Conflict"][0] == "False", "the conflict to be over")
    assert max(map(len, referee.carriers(resource))) == 1


def test_a_bridge_that_yields_its_resource_leaves_the_class_name_to_others(controllers, name, resource):
    controllers.start()
    controllers.add(lonely(name, resource))
    controllers.wait_reason(name, "NoDevices")
    shared = f"{name}-shared.gpu.example.com"
    controllers.add(lonely(f"{name}-2", resource) | {"spec": _with_class(lonely(f"{name}-2", resource), shared)})
    controllers.wait_reason(f"{name}-2", "NameOfAnotherBridge")
    other = lonely(f"{name}-3", f"{resource}-3")
    controllers.add(other | {"spec": _with_class(other, shared)})
    controllers.wait_reason(f"{name}-3", "NoDevices")
    controllers.wait_carrier(f"{resource}-3", shared)
    controllers.delete(name)
    assert f"{name}-3" in controllers.wait_reason(f"{name}-2", "ClassOfAnotherBridge")
    controllers.delete(f"{name}-3")
    controllers.wait_reason(f"{name}-2", "NoDevices")
    controllers.wait_carrier(resource, shared)


def _with_class(body, class_name):
    return body["spec"] | {"deviceClassName": class_name}


def test_a_hand_made_class_with_the_name_is_reported_and_taken_over_where_that_is_wanted(
    controllers, hand_made, name, resource
):
    hand_made(f"{name}-hand-made", resource)
    controllers.start()
    with controllers.referee() as referee:
        controllers.add(bridge(name, resource))
        assert f"{name}-hand-made" in controllers.wait_reason(name, "NameOnOtherClass")
        assert controllers.carriers(resource) == {f"{name}-hand-made"}
        controllers.told(name, "NameOnOtherClass")
        controllers.change(name, adopt=True)
        controllers.wait_carrier(resource, class_of(resource))
        controllers.told(name, "NameCleared")
    assert controllers.device_class(f"{name}-hand-made") is not None
    assert referee.carriers(resource) == [
        frozenset({f"{name}-hand-made"}),
        frozenset(),
        frozenset({class_of(resource)}),
    ]


def test_our_class_is_written_again_when_a_rival_has_gone(controllers, hand_made, admin, name, resource):
    controllers.start()
    controllers.add(bridge(name, resource))
    controllers.wait_carrier(resource, class_of(resource))
    with controllers.referee() as referee:
        hand_made(f"{name}-rival", resource)
        controllers.wait_reason(name, "NameOnOtherClass")
        admin.delete(DEVICE_CLASSES, f"{name}-rival")
        controllers.told(name, "NameWrittenAgain")
    assert referee.carriers(resource)[-3:] == [
        frozenset({class_of(resource)}),
        frozenset(),
        frozenset({class_of(resource)}),
    ]


def test_a_rival_that_comes_and_goes_at_once_is_noticed(controllers, hand_made, admin, name, resource):
    controllers.start()
    controllers.add(bridge(name, resource))
    controllers.wait_carrier(resource, class_of(resource))
    hand_made(f"{name}-rival", resource)
    admin.delete(DEVICE_CLASSES, f"{name}-rival")
    controllers.told(name, "NameWrittenAgain")
    controllers.wait_carrier(resource, class_of(resource))


def test_a_base_class_is_adopted_and_given_back(controllers, hand_made, admin, name, resource):
    base = f"{name}.gpu.example.com"
    hand_made(base, f"{resource}-theirs")
    mark = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm", "team": "a"}, "annotations": {"note": "x"}}}
    config = [{"opaque": {"driver": "example.com", "parameters": {"a": 1}}}]
    admin.patch(DEVICE_CLASSES, base, mark | {"spec": {"config": config}})
    before = controllers.device_class(base)
    controllers.start()
    controllers.add(bridge(name, resource, deviceClassName=base))
    controllers.wait_reason(name, "ClassNotOurs")
    assert controllers.device_class(base)["spec"]["selectors"][0]["cel"]["expression"] == "false"
    controllers.change(name, adopt=True)
    controllers.wait_carrier(resource, base)
    adopted = controllers.device_class(base)
    assert "has(device.attributes" in adopted["spec"]["selectors"][0]["cel"]["expression"]
    assert "config" not in adopted["spec"]
    controllers.delete(name)
    left = controllers.device_class(base)
    assert left["spec"] == {key: value for key, value in before["spec"].items() if key != "extendedResourceName"}
    for part in ("labels", "annotations"):
        assert left["metadata"][part] == before["metadata"][part]
    assert f"{resource}-theirs, which it had" in controllers.told(name, "ClassReleased")


def test_edits_of_others_are_put_back(controllers, admin, name, resource):
    controllers.start()
    controllers.add(bridge(name, resource))
    controllers.wait_carrier(resource, class_of(resource))
    before = controllers.device_class(class_of(resource))["spec"]
    edits = [
        {"selectors": [{"cel": {"expression": "false"}}]},
        {"extendedResourceName": None},
        {"extendedResourceName": f"{resource}-else"},
    ]
    for edit in edits:
        admin.patch(DEVICE_CLASSES, class_of(resource), {"spec": edit})
        wait_for(
            lambda: controllers.device_class(class_of(resource))["spec"] == before,
            "the class to be as before",
            seconds=30,
            state=controllers.log,
        )
    controllers.told(name, "ClassReverted")
    admin.delete(DEVICE_CLASSES, class_of(resource))
    controllers.wait_carrier(resource, class_of(resource))


def test_labels_that_others_set_are_put_back_and_the_class_goes_with_its_bridge(controllers, admin, name, resource):
    controller = controllers.start()
    controllers.add(lonely(name, resource))
    controllers.wait_reason(name, "NoDevices")
    before = controllers.device_class(class_of(resource))["metadata"]["labels"]
    for labels in ({"app.kubernetes.io/managed-by": "Helm"}, {"dradriver.dev/bridge": None}):
        admin.patch(DEVICE_CLASSES, class_of(resource), {"metadata": {"labels": labels}})
        wait_for(
            lambda: controllers.device_class(class_of(resource))["metadata"].get("labels") == before,
            "the labels to be as before",
            state=controllers.log,
        )
    assert "labels" in controllers.told(name, "ClassReverted")
    assert controllers.conditions(name)["Conflict"][0] == "False"
    controller.stop()
    admin.patch(DEVICE_CLASSES, class_of(resource), {"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}})
    controllers.delete(name, wait=False)
    controllers.start()
    wait_for(lambda: controllers.find(name) is None, "the bridge to be gone", state=controllers.log)
    assert controllers.device_class(class_of(resource)) is None


def test_a_status_of_another_version_does_not_freeze_a_bridge(controllers, admin, name, resource):
    controller = controllers.start()
    controllers.add(lonely(name, resource))
    controllers.wait_reason(name, "NoDevices")
    controller.stop()
    strange = {"reason": "A", "message": "a", "lastTransitionTime": "2026-01-01T00:00:00Z", "status": "Unknown"}
    status = {"conditions": [strange | {"type": kind} for kind in ("Paused", "Ready")]}
    admin.patch(BRIDGES, name, {"status": status}, subresource="status")
    controllers.start()
    controllers.wait_reason(name, "NoDevices")
    controllers.change(name, mode="Disabled")
    controllers.wait_reason(name, "Disabled")
    before = controllers.find(name)["metadata"]["resourceVersion"]
    controllers.add(lonely(f"{name}-2", f"{resource}-2"))
    controllers.wait_reason(f"{name}-2", "NoDevices")
    assert controllers.find(name)["metadata"]["resourceVersion"] == before
    controllers.delete(name)
    assert controllers.device_class(class_of(resource)) is None


def test_modes(controllers, published, name, resource):
    controllers.start()
    controllers.add(bridge(name, resource, select={"type": "gpu", "productName": name}, mode="WhenReady"))
    assert "the class gets the name when" in controllers.wait_reason(name, "NoDevices")
    assert controllers.device_class(class_of(resource)) is not None
    assert controllers.carriers(resource) == set()
    published(gpu("gpu-0", product=name))
    controllers.wait_carrier(resource, class_of(resource))
    controllers.change(name, mode="Disabled")
    controllers.wait_carrier(resource)
    controllers.wait_reason(name, "Disabled")
    controllers.change(name, mode="Enabled")
    controllers.wait_carrier(resource, class_of(resource))


def test_a_name_waits_for_a_device_that_pods_can_have(controllers, published, admin, name, resource):
    """As a node moves from the device plugin: devices are published tainted, and the taint goes when all is well."""
    controllers.start()
    controllers.add(bridge(name, resource, select={"type": "gpu", "productName": name}, mode="WhenReady"))
    taint = {"key": "example.com/migrating", "value": "true", "effect": "NoSchedule"}
    first = published(gpu("gpu-0", product=name, taints=[taint]), pool=name)
    assert "taint that keeps pods away" in controllers.wait_reason(name, "AllTainted")
    assert controllers.conditions(name)["Ready"][0] == "False"
    assert controllers.carriers(resource) == set()
    published(gpu("gpu-0", product=name), pool=f"{name}-2", total=2)
    assert "lack slices" in controllers.wait_reason(name, "PoolsIncomplete")
    assert controllers.carriers(resource) == set()
    devices = [gpu("gpu-0", product=name)]
    admin.patch(RESOURCE_SLICES, first["metadata"]["name"], {"spec": {"devices": devices}})
    assert controllers.wait_reason(name, "Serving").startswith("1 node can serve")
    controllers.wait_carrier(resource, class_of(resource))


def test_of_an_expression_it_is_said_that_nobody_knows(controllers, published, name, resource):
    published(gpu("gpu-0", product=name), pool=name)
    controllers.start()
    select = {"productName": name, "cel": "device.attributes['gpu.nvidia.com'].productName == 'other'"}
    controllers.add(bridge(name, resource, select=select, mode="WhenReady"))
    assert "only the scheduler can tell" in controllers.wait_reason(name, "SelectedByExpression")
    assert controllers.conditions(name)["Ready"][0] == "Unknown"
    controllers.wait_carrier(resource, class_of(resource))


def test_a_selector_that_does_not_compile_is_told(controllers, name, resource):
    controllers.start()
    controllers.add(bridge(name, resource, select={"cel": "device.driver =="}))
    assert "Syntax error" in controllers.wait_reason(name, "Refused")
    assert controllers.conditions(name)["Degraded"][0] == "True"
    controllers.change(name, select={"cel": "device.driver == 'gpu.nvidia.com'"})
    controllers.wait_carrier(resource, class_of(resource))
    wait_for(lambda: controllers.conditions(name)["Degraded"][0] == "False", "it to be well again")


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_another_process_takes_over(controllers, name, resource, number):
    first = controllers.start()
    second = controllers.start(leads=False)
    assert not controllers.leads(second)
    controllers.add(bridge(name, resource))
    controllers.wait_carrier(resource, class_of(resource))
    assert first.stop(number) == (0 if number is signal.SIGTERM else -signal.SIGKILL)
    wait_for(lambda: controllers.leads(second), "the second to lead", seconds=60)
    controllers.change(name, mode="Disabled")
    controllers.wait_carrier(resource)


def test_a_process_whose_lease_is_taken_ends(controllers, admin):
    first = controllers.start()
    admin.patch(LEASES, "dradriver-controller", {"spec": {"holderIdentity": "thief"}}, namespace="dradriver")
    assert first.wait_end() == 1
    assert any(entry["event"] == "leadership lost" for entry in first.entries())


@pytest.mark.parametrize("round_", range(3))
def test_killed_in_the_middle_of_a_take_over(controllers, hand_made, admin, name, resource, round_):
    """Whenever it happens, never do two carry the name, and the next process finishes it."""
    hand_made(f"{name}-hand-made", resource)
    first = controllers.start()
    controllers.add(lonely(name, resource))
    controllers.wait_reason(name, "NameOnOtherClass")
    with controllers.referee() as referee:
        controllers.change(name, adopt=True)
        wait_for(lambda: len(referee.carriers(resource)) > round_, "the take-over to have begun", seconds=30)
        first.stop(signal.SIGKILL)
        # As after 15 s without a renewal.
        admin.delete(LEASES, "dradriver-controller", namespace="dradriver")
        controllers.start()
        controllers.wait_carrier(resource, class_of(resource))
        controllers.wait_reason(name, "NoDevices")
    assert max(map(len, referee.carriers(resource))) == 1


def test_at_rest_it_writes_nothing(controllers, name, resource):
    controller = controllers.start()
    controllers.add(lonely(name, resource))
    controllers.wait_reason(name, "NoDevices")
    wait_for(lambda: "ClassCreated" in _events(controllers, name), "the events")
    before = controllers.find(name)["metadata"]["resourceVersion"]
    controllers.add(lonely(f"{name}-2", f"{resource}-2"))
    controllers.wait_reason(f"{name}-2", "NoDevices")
    assert controllers.find(name)["metadata"]["resourceVersion"] == before
    page = controller.page("/metrics")
    actions = dict(re.findall(r'dradriver_controller_actions_total\{action="(\w+)"\} (\S+)', page))
    assert actions == {"AddFinalizer": "2.0", "ApplyClass": "2.0", "WriteStatus": "2.0"}
    assert "dradriver_controller_leader 1.0" in page
    assert controller.page("/healthz") == "ok\n"


def _events(controllers, name):
    selector = f"involvedObject.kind={BRIDGES.kind},involvedObject.name={name}"
    return {each["reason"] for each in controllers.server.list("Event", namespace="default", fieldSelector=selector)}
