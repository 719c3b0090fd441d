"""Pods that know nothing of DRA: their limits, the controller's bridges, and what their containers see."""

import re
from collections import Counter
from contextlib import suppress

import pytest
from support.bridging import bridge, device_class
from support.cluster import REPOSITORY
from support.manifests import IMAGE, claim, pod, request
from support.sight import EXTENDED, claims_of
from support.waiting import wait_for

from dradriver.kube import DEVICE_CLASSES, RESOURCE_SLICES, NotFoundError

GPU, SMALL = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
GPU_BASE = "gpu.nvidia.com"
GPU_CLASS, SMALL_CLASS = "gpu.gpu.dradriver.dev", "mig-1g.10gb.gpu.dradriver.dev"
BRIDGES = (
    bridge("gpu", GPU),
    bridge("mig-1g.10gb", SMALL, select={"type": "mig", "profile": "1g.10gb"}),
)


@pytest.fixture
def bridges(node, controllers, space):
    """Both bridges, ready. The namespace ends before the bridges do."""
    controllers.start()
    controllers.add(*BRIDGES)
    for each in BRIDGES:
        controllers.wait_reason(each["metadata"]["name"], "Serving")
    return controllers


def limited(name, **limits):
    """A container that knows limits only, written with `_` for what a keyword may not have."""
    wanted = {{"gpu": GPU, "small": SMALL}[key]: str(value) for key, value in limits.items()}
    return {"name": name, "image": IMAGE, "command": ["sleep", "86400"], "resources": {"limits": wanted}}


def kinds(devices):
    return ["whole" if device.instance is None else device.instance["profile"] for device in devices]


def test_pods_with_limits_see_exactly_one_device_and_the_bridges_count_them(node, space, bridges):
    bridges.wait_counts("gpu", published=8, allocatable=8, allocated=0)
    bridges.wait_counts("mig-1g.10gb", published=56, allocatable=56, allocated=0)
    space.add(pod("whole", limited("app", gpu=1)), pod("small", limited("app", small=1)))
    whole, small = space.running("whole", "small")
    assert kinds(node.check(whole)["app"]) == ["whole"]
    assert kinds(node.check(small)["app"]) == ["1g.10gb"]
    claim = claims_of(node.server, small)[EXTENDED]
    assert claim["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"] == "true"
    (request,) = claim["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == SMALL_CLASS
    assert whole["status"]["extendedResourceClaimStatus"]["requestMappings"] == [
        {"containerName": "app", "requestName": "container-0-request-0", "resourceName": GPU}
    ]
    # A partition takes its GPU from those that are free, and one of the places for partitions; the whole GPU seven.
    bridges.wait_counts("gpu", published=8, allocatable=6, allocated=1)
    bridges.wait_counts("mig-1g.10gb", published=56, allocatable=56 - 7 - 1, allocated=1)
    space.delete("whole", "small")
    bridges.wait_counts("gpu", allocatable=8, allocated=0)
    bridges.wait_counts("mig-1g.10gb", allocatable=56, allocated=0)


def test_two_containers_and_an_init_container(node, space, bridges):
    init = limited("init", small=2) | {"command": ["sh", "-c", "env"]}
    spec = pod("many", limited("first", small=1), limited("second", gpu=1, small=2), initContainers=[init])
    space.add(spec)
    seen = node.check(space.running("many")[0])
    assert kinds(seen["first"]) == ["1g.10gb"]
    assert Counter(kinds(seen["second"])) == {"whole": 1, "1g.10gb": 2}
    assert len({device.uuid for devices in seen.values() for device in devices}) == 4
    log = node.server.kubectl("logs", "-n", space.name, "many", "-c", "init")
    listed = set(re.findall(r"MIG-[0-9a-f-]{36}", log))
    small = {device.uuid for devices in seen.values() for device in devices if device.instance}
    # The scheduler lets an init container use the devices of later ones, and gives it all of a request.
    assert len(listed) >= 2
    assert listed <= small
    bridges.wait_counts("mig-1g.10gb", allocated=3)


def test_more_than_there_is_waits_until_it_is_free(node, space, bridges):
    space.add(pod("eight", limited("app", gpu=8)))
    assert len(node.check(space.running("eight")[0])["app"]) == 8
    bridges.wait_counts("gpu", allocatable=0, allocated=8)
    space.add(pod("ninth", limited("app", gpu=1)))
    assert "cannot allocate all claims" in space.unschedulable("ninth")
    space.add(pod("small", limited("app", small=1)), pod("huge", limited("app", gpu=9)))
    note = space.told("Pod", "ninth", "NoDeviceFree")
    assert "the pod asks for 1 of nvidia.com/gpu, and no node has so many free: of 8 on 1 node 8 are allocated;" in note
    note = space.told("Pod", "small", "NoDeviceFree")
    assert "of 56 on 1 node 56 are without room beside other partitions;" in note
    assert "no node has more than 8" in space.told("Pod", "huge", "TooManyDevices")
    wait_for(lambda: bridges.find("gpu")["status"]["pods"]["pending"] == 2, "two pods in the status of the bridge")
    space.delete("eight")
    assert kinds(node.check(space.running("ninth")[0])["app"]) == ["whole"]
    space.running("small")
    wait_for(lambda: bridges.find("gpu")["status"]["pods"]["pending"] == 1, "one pod in the status of the bridge")


def test_a_pod_that_came_before_its_bridge_runs_when_the_bridge_comes(node, space, controllers):
    controllers.start()
    space.add(pod("early", limited("app", small=1)))
    assert f"Insufficient {SMALL}" in space.unschedulable("early")
    note = space.told("Pod", "early", "ClassMissing")
    assert note.startswith(f"no DeviceClass carries {SMALL}, and no device plugin serves it; make an Extended")
    controllers.add(BRIDGES[1])
    assert kinds(node.check(space.running("early")[0])["app"]) == ["1g.10gb"]


def test_two_bridges_for_one_name_and_the_younger_takes_over(node, space, bridges):
    bridges.add(bridge("second", GPU, deviceClassName="second.gpu.dradriver.dev"))
    bridges.wait_reason("second", "NameOfAnotherBridge")
    space.add(pod("one", limited("app", gpu=1)))
    node.check(space.running("one")[0])
    with bridges.referee() as referee:
        bridges.delete("gpu", wait=False)
        bridges.wait_reason("gpu", "InUse")
        bridges.wait_reason("second", "Serving")
        space.add(pod("two", limited("app", gpu=1)))
        assert kinds(node.check(space.running("two")[0])["app"]) == ["whole"]
    assert max(map(len, referee.carriers(GPU))) == 1
    # The one that had its GPU through the former class has lost nothing.
    assert kinds(node.check(space.running("one")[0])["app"]) == ["whole"]
    space.delete("one")
    wait_for(lambda: bridges.find("gpu") is None, "the deleted bridge to be gone", state=bridges.log)
    assert bridges.device_class(GPU_CLASS) is None


def test_a_foreign_class_with_the_name_comes_and_goes(node, space, bridges, admin):
    """The scheduler of 1.37.2 forgets a name whose other carrier goes; the controller sees to it that it comes back."""
    admin.create(DEVICE_CLASSES, device_class("foreign-gpu", GPU))
    assert "foreign-gpu" in bridges.wait_reason("gpu", "NameOnOtherClass")
    # The newer one has the name now, and selects nothing.
    space.add(pod("waits", limited("app", gpu=1)))
    space.unschedulable("waits")
    admin.delete(DEVICE_CLASSES, "foreign-gpu")
    assert kinds(node.check(space.running("waits")[0])["app"]) == ["whole"]
    bridges.wait_reason("gpu", "Serving")


def test_a_foreign_class_is_taken_over(node, space, bridges, admin):
    space.add(pod("before", limited("app", gpu=1)))
    node.check(space.running("before")[0])
    bridges.change("gpu", adopt=True)
    admin.create(DEVICE_CLASSES, device_class("foreign-gpu", GPU))
    try:
        bridges.wait_carrier(GPU, GPU_CLASS)
        space.add(pod("after", limited("app", gpu=1)))
        assert kinds(node.check(space.running("after")[0])["app"]) == ["whole"]
        node.check(space.running("before")[0])
    finally:
        admin.delete(DEVICE_CLASSES, "foreign-gpu")


def test_deleted_while_in_use(node, space, bridges):
    space.add(pod("user", limited("app", small=1)))
    (user,) = space.running("user")
    claim = user["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    bridges.delete("mig-1g.10gb", wait=False)
    assert f"{space.name}/{claim}" in bridges.wait_reason("mig-1g.10gb", "InUse")
    assert kinds(node.check(user)["app"]) == ["1g.10gb"]
    # Nobody else gets one any more.
    space.add(pod("late", limited("app", small=1)))
    assert f"Insufficient {SMALL}" in space.unschedulable("late")
    note = space.told("Pod", "late", "BridgeLeaving")
    assert note.startswith("ExtendedResourceBridge mig-1g.10gb: it is being deleted, and 1 claim uses DeviceClass")
    space.delete("user")
    wait_for(lambda: bridges.find("mig-1g.10gb") is None, "the bridge to be gone", state=bridges.log)
    assert bridges.device_class(SMALL_CLASS) is None


def test_forced_deletion_keeps_running_pods(node, space, bridges):
    space.add(pod("user", limited("app", gpu=1)))
    (user,) = space.running("user")
    bridges.delete("gpu", wait=False)
    bridges.wait_reason("gpu", "InUse")
    bridges.force("gpu")
    wait_for(lambda: bridges.find("gpu") is None, "the bridge to be gone", state=bridges.log)
    assert kinds(node.check(user)["app"]) == ["whole"]
    space.delete("user")


def test_the_base_class_is_adopted_for_the_name_and_given_back(node, space, controllers, keeper):
    controllers.start()
    before = controllers.device_class("gpu.nvidia.com")["spec"]
    controllers.add(bridge("base", GPU, deviceClassName="gpu.nvidia.com", adopt=True))
    controllers.wait_reason("base", "Serving")
    assert controllers.carriers(GPU) == {"gpu.nvidia.com"}
    space.add(pod("app", limited("app", gpu=1)))
    assert kinds(node.check(space.running("app")[0])["app"]) == ["whole"]
    controllers.delete("base")
    assert "extendedResourceName" not in controllers.device_class("gpu.nvidia.com")["spec"]
    node.check(space.running("app")[0])
    keeper.server.kubectl(
        "apply", "-f", str(REPOSITORY / "deploy/deviceclasses.yaml"), "--force-conflicts", "--server-side"
    )
    assert controllers.device_class("gpu.nvidia.com")["spec"] == before


def test_profiles_that_are_found_get_their_bridges(node, space, controllers):
    own = bridge("mine", SMALL, select={"profile": "1g.10gb"}, deviceClassName="mine.gpu.example.com")
    controllers.add(own)
    controllers.start("--discover-mig-profiles", "WhenReady")
    attributes = [device["attributes"] for device in node.published().values()]
    found = {each["profile"]["string"].replace("+", ".") for each in attributes if "profile" in each}
    assert {"1g.10gb", "2g.20gb"} <= found
    profiles = found - {"1g.10gb"}
    for profile in profiles:
        controllers.wait_reason(f"mig-{profile}", "Serving")
    # The name for which somebody has made one is left to that.
    assert {each["metadata"]["name"] for each in controllers.all_bridges()} == {f"mig-{each}" for each in profiles} | {
        "mine"
    }
    larger = limited("app") | {"resources": {"limits": {"nvidia.com/mig-2g.20gb": "1"}}}
    space.add(pod("larger", larger))
    assert kinds(node.check(space.running("larger")[0])["app"]) == ["2g.20gb"]


@pytest.fixture
def strangers(node, admin):
    """Devices that say nothing of themselves, of another driver and of ours; on no node, or ours would remove them."""
    names = []
    for driver in ("other.example.com", "gpu.nvidia.com"):
        pool = {"name": f"aaa-{driver}", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "allNodes": True, "pool": pool, "devices": [{"name": "bare"}]}
        body = {"apiVersion": RESOURCE_SLICES.api_version, "kind": RESOURCE_SLICES.kind, "spec": spec}
        body["metadata"] = {"name": f"aaa-{driver}"}
        names.append(admin.create(RESOURCE_SLICES, body)["metadata"]["name"])
    yield names
    for name in names:
        with suppress(NotFoundError):
            admin.delete(RESOURCE_SLICES, name)


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ({"type": "gpu", "sharing": "none"}, "whole"),
        ({"type": "gpu", "productName": "NVIDIA H100 80GB HBM3", "memory": {"min": "79Gi", "max": "81Gi"}}, "whole"),
        ({"type": "mig", "memory": {"min": "30Gi", "max": "45Gi"}}, "3g.40gb"),
        ({"profile": "2g.20gb", "cel": "device.attributes['gpu.nvidia.com'].brand != '' // why not"}, "2g.20gb"),
    ],
    ids=["sharing", "product and memory", "memory of partitions", "own expression"],
)
def test_what_a_bridge_selects_is_what_pods_get_beside_devices_of_others(
    node, space, controllers, strangers, select, expected
):
    controllers.start()
    controllers.add(bridge("it", "nvidia.com/it", select=select))
    controllers.wait_reason("it", "SelectedByExpression" if "cel" in select else "Serving")
    app = limited("app") | {"resources": {"limits": {"nvidia.com/it": "1"}}}
    space.add(pod("app", app))
    assert kinds(node.check(space.running("app")[0])["app"]) == [expected]
    if "cel" not in select:
        assert controllers.find("it")["status"]["devices"]["published"] == _count(node.published(), expected)
        controllers.wait_counts("it", allocated=1)


def _count(devices, expected):
    """How many published devices are like that one; larger and smaller partitions differ in profile."""
    names = {"3g.40gb": {"3g.40gb", "4g.40gb"}}.get(expected, {expected})
    attributes = [device["attributes"] for device in devices.values() if "attributes" in device]
    return sum(1 for each in attributes if each.get("profile", {"string": "whole"})["string"] in names)


def test_no_device_of_others_keeps_a_selector_from_an_answer(node, space, controllers, strangers):
    """The scheduler goes through all devices where none fits; one without guards shows that it meets the strangers."""
    controllers.start()
    nothing = {"type": "gpu", "productName": "none", "memory": {"min": "1Gi"}, "sharing": "none"}
    controllers.add(bridge("it", "nvidia.com/it", select=nothing))
    controllers.wait_reason("it", "NoDevices")
    controllers.wait_carrier("nvidia.com/it", "it.gpu.dradriver.dev")
    unguarded = "device.attributes['gpu.nvidia.com'].productName == 'none'"
    space.add(
        pod("guarded", limited("app") | {"resources": {"limits": {"nvidia.com/it": "1"}}}),
        claim("raw", request("r", GPU_BASE, unguarded)),
        pod("raw", claims=["raw"]),
    )
    assert "cannot allocate all claims" in space.unschedulable("guarded")
    assert "no such key" in space.event("raw", "FailedScheduling", "no such key")
