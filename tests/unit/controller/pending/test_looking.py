import pytest
from doubles.bridgeworld import bridge
from doubles.watching import Told

from controller.api import Select
from controller.pending import Looker
from controller.pending.waiters import PATIENCE_SECONDS
from controller.watching import (
    DeviceKind,
    PodShape,
    SeenClaim,
    SeenClass,
    SeenDevice,
    SeenNode,
    SeenPod,
    SeenQuota,
    SeenSlice,
)

NAME = "nvidia.com/gpu"
GPU = DeviceKind(type="gpu")


class Scene:
    """A bridge with two GPUs on a node, and a clock."""

    def __init__(self):
        self.now = 50.0
        self.told = Told(known_classes=[carrier()])
        self.told.census.put_slice("n", SeenSlice(pool="n", node="n", devices=devices(2)))
        self.told.census.put_node("n", SeenNode(name="n", labels=(("zone", "a"),)))
        self.looker = Looker(self.told, lambda: self.now)
        self.bridges = [bridge()]

    def look(self):
        return self.looker.look(self.bridges)

    def later(self):
        self.look()
        self.now += PATIENCE_SECONDS
        return self.look()

    def reasons(self):
        return {pod.name: explanation.reason for pod, explanation in self.later().tell}


@pytest.fixture
def scene():
    return Scene()


def carrier(name=NAME):
    return SeenClass(name="gpu.gpu.dradriver.dev", spec={"extendedResourceName": name})


def devices(count):
    return tuple(SeenDevice(name=f"gpu-{number}", kind=GPU) for number in range(count))


def pod(name, count=1, *, resource=NAME, more=(), **shape):
    return SeenPod(
        name=name, namespace="ns", uid=name, shape=PodShape(wants=tuple(sorted([(resource, count), *more])), **shape)
    )


def test_nothing_is_said_of_pods_before_they_can_have_waited(scene):
    scene.told.known_pods = [pod("p", 3)]
    assert scene.look().waiting is None
    scene.now += PATIENCE_SECONDS
    found = scene.look().waiting[NAME]
    assert (found.pods, found.condition.reason) == (1, "TooManyDevices")


def test_who_waits_for_what_is_taken(scene):
    held = SeenClaim(name="a/c", devices=(("n", "gpu-0"), ("n", "gpu-1")))
    scene.told.census.put_claim("c", held)
    scene.told.known_pods = [pod("p")]
    assert scene.reasons() == {"p": "NoDeviceFree"}
    scene.told.census.put_claim("c", None)
    scene.told.known_pods = []
    assert scene.look().waiting[NAME].condition.reason == "NoneWaits"


def test_nodes_are_compared(scene):
    scene.told.known_pods = [pod("p", selector=(("zone", "b"),)), pod("q", selector=(("zone", "a"),))]
    assert scene.reasons() == {"p": "NodesExcluded"}
    assert scene.look().waiting[NAME].pods == 2


def test_whose_names_are_ours(scene):
    """Those of bridges, and those of the domain that nobody carries."""
    scene.told.known_classes.append(SeenClass(name="theirs", spec={"extendedResourceName": "nvidia.com/theirs"}))
    scene.told.known_pods = [
        pod("bridged", 3),
        pod("missing", resource="nvidia.com/missing"),
        pod("theirs", resource="nvidia.com/theirs"),
        pod("other", resource="example.com/x"),
    ]
    assert scene.reasons() == {"bridged": "TooManyDevices", "missing": "ClassMissing"}


def test_only_names_are_suggested_whose_bridges_have_devices(scene):
    scene.bridges += [
        bridge("empty", resource_name="nvidia.com/gpus", select=Select(type="gpu", product_name="none")),
        bridge("full", resource_name="nvidia.com/gpux"),
    ]
    scene.told.known_pods = [pod("p", resource="nvidia.com/gpuu")]
    (_, explanation), *_ = scene.later().tell
    assert explanation.message.endswith("or ask for one that has a bridge: nvidia.com/gpu, nvidia.com/gpux")


def test_what_is_published_instead_is_told(scene):
    scene.bridges = [bridge(select=Select(type="mig"))]
    scene.told.known_pods = [pod("p")]
    (_, explanation), *_ = scene.later().tell
    assert (explanation.reason, "no device with spec.select.type mig is published" in explanation.message) == (
        "NoDevices",
        True,
    )


def test_of_several_resources_the_one_that_is_certain_is_told(scene):
    scene.told.known_pods = [pod("p", more=[("nvidia.com/missing", 1)])]
    assert scene.reasons() == {"p": "ClassMissing"}
    # It counts to the bridge whose resource it waits for, too.
    assert scene.look().waiting[NAME].condition.reason == "NotScheduled"


def test_only_devices_through_classes_count_to_a_claim(scene):
    scene.told.census.put_slice("n", SeenSlice(pool="n", node="n", devices=devices(40)))
    scene.told.known_pods = [pod("p", 30, more=[("example.com/x", 30)]), pod("q", 33)]
    assert scene.reasons() == {"q": "TooManyDevices"}


def test_the_oldest_bridge_that_stays_has_the_name(scene):
    scene.bridges = [
        bridge("young", created="3", select=Select(type="gpu")),
        bridge("old", created="2", select=Select(type="mig")),
        bridge("gone", created="1", deleting=True),
    ]
    scene.told.known_pods = [pod("p")]
    (_, explanation), *_ = scene.later().tell
    assert "ExtendedResourceBridge old" in explanation.message


def test_what_a_user_selects_by_an_expression_is_not_counted(scene):
    scene.bridges = [bridge(select=Select(cel="true"))]
    scene.told.known_pods = [pod("p", 99)]
    assert scene.reasons() == {"p": "TooManyDevices"}
    scene.told.known_pods = [pod("q", 9)]
    assert scene.reasons() == {}


def test_quotas_are_told_of_a_bridge_for_which_nobody_waits(scene):
    scene.told.known_quotas = [SeenQuota(name="q", namespace="ns", limits=((f"requests.{NAME}", 8, 8),))]
    assert "ResourceQuota ns/q" in scene.later().waiting[NAME].condition.message


def test_ten_thousand_pods_of_whom_the_scheduler_says_something_else_each(scene):
    scene.told.known_pods = [pod(f"p{number}", 3, said=f"0/{number} nodes") for number in range(10_000)]
    found = scene.later().waiting[NAME]
    assert (found.pods, found.condition.reason) == (10_000, "TooManyDevices")
    assert found.condition.message.count("waits") + found.condition.message.count("pods wait") == 1
