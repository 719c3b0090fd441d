"""Shares of GPUs: several pods on one GPU, each of which sees exactly that one.

The scheduler (seen with 1.37.2) counts a share twice in the moment in which a claim is both on its way and written, so
a pod that comes in that moment may find the last share taken, and waits for the next change of anything. So pods come
one after the other where it matters, and what waits is woken up.
"""

import itertools
import json
import signal
from collections import Counter

import pytest
from support.bridging import bridge
from support.gpunode import NODE
from support.manifests import GPU, IMAGE, claim, container, pod, request
from support.sight import EXTENDED, claims_of, results
from support.waiting import wait_for

SHARED, SHARED_CLASS = "nvidia.com/gpu.shared", "gpu-shared.gpu.dradriver.dev"
UNWANTED = "dradriver.dev/not-offered"
CONFIGS = """
apiVersion: dradriver.dev/v1alpha1
kind: NodeConfigs
configs:
  default:
    gpus: [{sharing: {replicas: 4, rename: true}}]
  spread:
    gpus: [{sharing: {replicas: 4, rename: true}}]
    order: spread
  mixed:
    gpus: [{sharing: {replicas: 4, rename: true}, filter: {indices: [0]}}]
  whole:
    gpus: [{sharing: {replicas: 4}, filter: {indices: [77]}}]
"""
RENAMED = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].?renamed.orValue(false)"


def shares_of(node, name):
    """How many shares a device has, as it is published."""
    return node.published()[name]["capacity"]["shares"]["value"]


@pytest.fixture
def label(keeper):
    """The function that gives the node a configuration."""

    def to(value):
        text = f"dradriver.dev/config={value}" if value else "dradriver.dev/config-"
        keeper.server.kubectl("label", "node", NODE, "--overwrite", text)

    yield to
    to(None)


@pytest.fixture
def shared_class(keeper):
    """A class by which shares can be had as an extended resource."""
    keeper.server.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": SHARED_CLASS},
            "spec": {"extendedResourceName": SHARED, "selectors": [{"cel": {"expression": RENAMED}}]},
        }
    )
    yield
    keeper.server.delete("DeviceClass", SHARED_CLASS)


@pytest.fixture
def configured(label, use_node, tmp_path_factory):
    """Two GPUs of four shares each. The namespace of a test ends before the label does."""
    file = tmp_path_factory.mktemp("configs") / "configs.yaml"
    file.write_text(CONFIGS)
    found = use_node(machine="2xh100-80gb", options=("--node-config", str(file)))
    yield found
    found.spoilt = True


@pytest.fixture
def node(configured, shared_class):
    """The same, with a class by which shares can be had as an extended resource."""
    return configured


def sharer(name, amount=1):
    """A pod that knows limits only."""
    limits = {"resources": {"limits": {SHARED: str(amount)}}}
    return pod(name, {"name": "app", "image": IMAGE, "command": ["sleep", "86400"], **limits})


def gpu_of(node, found):
    """The one GPU that a pod sees."""
    (device,) = node.check(found)["app"]
    return device.name


def loads(node, pods):
    return Counter(gpu_of(node, each) for each in pods)


def order(node):
    """The devices as the scheduler tries them."""
    return list(node.published())


def tainted(node):
    return {
        name
        for name, device in node.published().items()
        if any(taint["key"] == UNWANTED for taint in device.get("taints", ()))
    }


def is_shared(node, name):
    return node.published()[name].get("allowMultipleAllocations", False)


@pytest.fixture
def deployment(node, space):
    """The function that sets how many replicas a Deployment of sharers has; it ends before the namespace does."""

    def scale(replicas):
        template = {"metadata": {"labels": {"app": "shared"}}, "spec": sharer("any")["spec"]}
        body = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "shared", "namespace": space.name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "shared"}}, "template": template},
        }
        node.server.kubectl("apply", "-f", "-", text=json.dumps(body))

    yield scale
    node.server.kubectl(
        "delete", "deployment", "-n", space.name, "shared", "--ignore-not-found", "--cascade=foreground"
    )


def come(space, *names):
    """Pods of one share each, one after the other; gives them running."""
    for name in names:
        space.add(sharer(name))
        space.running(name)
    return space.running(*names)


def wait_pods(space, count, running):
    """Wait until there are so many pods and so many of them run; gives their names, those that run first."""
    looks = itertools.count(1)

    def found():
        if (look := next(looks)) % 30 == 0:
            # A change of a node's labels makes the scheduler try again.
            space.server.kubectl("label", "node", NODE, "--overwrite", f"dradriver.dev/look={look}")
        pods = [each for each in space.pods() if "deletionTimestamp" not in each["metadata"]]
        ready = {each["metadata"]["name"] for each in pods if space._ready(each["metadata"]["name"])}
        names = sorted((each["metadata"]["name"] for each in pods), key=lambda name: (name not in ready, name))
        return names if (len(names), len(ready)) == (count, running) else None

    return wait_for(found, f"{running} of {count} pods to run", seconds=60, state=space.story)


def test_a_deployment_fills_the_shares_of_both_gpus_and_a_ninth_pod_waits(node, space, deployment):
    deployment(8)
    names = wait_pods(space, 8, 8)
    assert loads(node, space.running(*names)) == {"gpu-0": 4, "gpu-1": 4}
    (one,) = results(claims_of(node.server, space.pod(names[0]))[EXTENDED])
    assert one["consumedCapacity"]["shares"] == "1"
    assert one["consumedCapacity"].get("memory", "0") == "0"
    assert one["shareID"]
    deployment(9)
    *_, waiting = wait_pods(space, 9, 8)
    assert "cannot allocate all claims" in space.unschedulable(waiting)
    deployment(8)
    wait_pods(space, 8, 8)
    space.add(sharer("ninth"))
    space.unschedulable("ninth")
    deployment(7)
    assert sum(loads(node, space.running("ninth")).values()) == 1


def test_bridges_tell_shares_from_whole_gpus(controllers, configured, space, label):
    """One GPU is shared under its own name, the other one is whole: each name stands for its own."""
    label("mixed")
    wait_for(lambda: not is_shared(configured, "gpu-1"), "a whole GPU", state=configured.published)
    controllers.start()
    controllers.add(
        bridge("shared", SHARED, select={"type": "gpu", "sharing": "time-slicing"}),
        bridge("whole", "nvidia.com/gpu", select={"type": "gpu", "sharing": "none"}),
    )
    controllers.wait_reason("shared", "Serving")
    controllers.wait_reason("whole", "Serving")
    assert loads(configured, come(space, "one", "two", "three")) == {"gpu-0": 3}
    whole = sharer("whole")
    whole["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    space.add(whole)
    assert gpu_of(configured, space.running("whole")[0]) == "gpu-1"
    assert gpu_of(configured, come(space, "four")[0]) == "gpu-0"
    space.add(sharer("five"))
    space.unschedulable("five")


# --- order ----------------------------------------------------------------------------------------


def test_packed_fills_one_gpu_first(node, space):
    assert loads(node, come(space, *(f"p{number}" for number in range(5)))) == {"gpu-0": 4, "gpu-1": 1}


def test_spread_takes_the_gpu_with_most_free_shares_if_pods_come_slowly(node, space, label):
    label("spread")
    for number, there in enumerate([{"gpu-0": 1}, {"gpu-0": 1, "gpu-1": 1}, {"gpu-0": 2, "gpu-1": 1}], start=1):
        space.add(sharer(f"p{number}"))
        pods = space.running(*(f"p{each}" for each in range(1, number + 1)))
        assert loads(node, pods) == there
        freest = sorted(["gpu-0", "gpu-1"], key=lambda name: there.get(name, 0))
        wait_for(lambda freest=freest: order(node) == freest, f"the order {freest}", state=lambda: order(node))
    # What ends counts too.
    space.delete("p1")
    assert loads(node, space.running("p2", "p3")) == {"gpu-0": 1, "gpu-1": 1}
    wait_for(lambda: order(node) == ["gpu-0", "gpu-1"], "the order of equal GPUs", state=lambda: order(node))


# --- what is held stays as it is ------------------------------------------------------------------


def test_shares_stay_shares_until_the_last_is_gone(node, space, label):
    one, two = come(space, "one", "two")
    assert loads(node, [one, two]) == {"gpu-0": 2}
    label("whole")
    wait_for(lambda: tainted(node) == {"gpu-0"}, "the GPU with shares to be kept", state=node.published)
    wait_for(lambda: not is_shared(node, "gpu-1"), "the free GPU to be whole")
    assert is_shared(node, "gpu-0")
    assert shares_of(node, "gpu-0") == "2"
    # Nobody gets what is kept, neither whole nor as a share.
    space.add(claim("w1", request("it", GPU)), pod("w1", claims=["w1"]))
    assert gpu_of(node, space.running("w1")[0]) == "gpu-1"
    space.add(claim("w2", request("it", GPU)), pod("w2", claims=["w2"]))
    space.unschedulable("w2")
    space.delete("one")
    wait_for(lambda: shares_of(node, "gpu-0") == "1", "one share to be left", state=node.published)
    assert gpu_of(node, two) == "gpu-0"
    assert is_shared(node, "gpu-0")
    space.delete("two")
    assert gpu_of(node, space.running("w2")[0]) == "gpu-0"
    assert not any(is_shared(node, name) for name in node.published())


def test_a_whole_gpu_stays_whole_until_its_claim_is_gone(node, space, label):
    label("whole")
    wait_for(lambda: not any(is_shared(node, name) for name in node.published()), "whole GPUs", state=node.published)
    space.add(claim("w", request("it", GPU)), pod("w", claims=["w"]))
    whole = gpu_of(node, space.running("w")[0])
    label(None)
    wait_for(lambda: tainted(node) == {whole}, "the GPU that is in use to be kept", state=node.published)
    assert not is_shared(node, whole)
    (other,) = loads(node, come(space, *(f"p{number}" for number in range(4))))
    assert other != whole
    space.add(sharer("fifth"))
    space.unschedulable("fifth")
    space.delete("w")
    assert gpu_of(node, space.running("fifth")[0]) == whole


# --- claims ---------------------------------------------------------------------------------------


def test_a_claim_may_have_two_shares_of_one_gpu_and_its_container_sees_it_once(node, space):
    both = claim("both", request("a", GPU), request("b", GPU))
    space.add(both, pod("both", container("app", "both"), claims=["both"]))
    (found,) = space.running("both")
    assert gpu_of(node, found) == "gpu-0"
    first, second = results(space.claim("both"))
    assert first["shareID"] != second["shareID"]
    told = wait_for(lambda: space.claim("both")["status"].get("devices"), "the claim's devices to be told")
    assert {each["shareID"] for each in told} == {first["shareID"], second["shareID"]}
    assert len({name for each in told for name in each["data"]["cdiDeviceIDs"]}) == 2


def test_several_containers_of_a_pod_with_limits_see_a_gpu_each(node, space):
    parts = [{**sharer("x")["spec"]["containers"][0], "name": name} for name in ("first", "second")]
    space.add(pod("many", *parts))
    seen = node.check(space.running("many")[0])
    assert [len(devices) for devices in seen.values()] == [1, 1]


def test_more_than_one_share_for_a_container_is_more_than_one_gpu(node, space):
    space.add(sharer("two", 2), sharer("three", 3))
    assert len(node.check(space.running("two")[0])["app"]) == 2
    space.unschedulable("three")


def test_shares_outlive_the_plugin_and_end_in_any_order(node, space):
    pods = come(space, "one", "two", "three")
    assert loads(node, pods) == {"gpu-0": 3}
    node.plugin.stop(signal.SIGKILL)
    node.start()
    space.delete("two")
    assert loads(node, [pods[0], pods[2]]) == {"gpu-0": 2}
    node.plugin.stop(signal.SIGKILL)
    node.server.delete("Pod", "one", namespace=space.name, grace=1)
    node.start()
    space.gone("one")
    space.add(sharer("four"))
    assert gpu_of(node, space.running("four")[0]) == "gpu-0"
    assert len(list(node.records.glob("*.json"))) == 2


def test_what_ails_a_gpu_is_told_to_all_who_share_it(node, space):
    assert loads(node, come(space, "one", "two")) == {"gpu-0": 2}
    node.simulation.run("xid", "79", "--gpu", "0")
    for name in ("one", "two"):
        space.told("Pod", name, "DeviceUnhealthy", "gpu-0")
    space.add(sharer("other"))
    assert gpu_of(node, space.running("other")[0]) == "gpu-1"


def test_who_asks_for_more_gets_more_and_memory_is_only_counted(node, space):
    def wants(name, **amounts):
        space.add(claim(name, request("it", GPU, capacity={"requests": amounts})), pod(name, claims=[name]))

    wants("all", shares="4")
    assert gpu_of(node, space.running("all")[0]) == "gpu-0"
    wants("much", memory="60Gi")
    assert gpu_of(node, space.running("much")[0]) == "gpu-1"
    (result,) = results(space.claim("much"))
    assert result["consumedCapacity"] == {"memory": "60Gi", "shares": "1"}
    wants("more", memory="60Gi")
    space.unschedulable("more")
    wants("five", shares="5")
    space.unschedulable("five")
    space.add(sharer("any"))
    assert gpu_of(node, space.running("any")[0]) == "gpu-1"
