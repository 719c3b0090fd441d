import pytest

from controller.pending.nodes import untolerated, why_excluded
from controller.watching import PodShape, SeenNode, Taint

GPU = Taint(key="gpu", value="yes", effect="NoSchedule")


def node(*taints, **labels):
    return SeenNode(name="n", labels=tuple(sorted(labels.items())), taints=taints)


def toleration(operator="Equal", key="gpu", value="yes", effect=""):
    return Taint(key=key, value=value, effect=effect, operator=operator)


@pytest.mark.parametrize(
    "tolerated",
    [
        toleration(),
        toleration(effect="NoSchedule"),
        toleration("Exists", value=""),
        toleration("Exists", key="", value=""),
        # Newer than what is known here: nothing certain follows.
        toleration("Gt", value="1"),
    ],
)
def test_what_is_tolerated(tolerated):
    assert untolerated(PodShape(tolerations=(tolerated,)), node(GPU)) == ()


@pytest.mark.parametrize(
    "other",
    [toleration(value="no"), toleration(key="cpu"), toleration(effect="NoExecute"), toleration("Exists", key="cpu")],
)
def test_what_is_not(other):
    assert untolerated(PodShape(tolerations=(other,)), node(GPU)) == (GPU,)


def test_one_node_that_may_do_is_enough():
    assert why_excluded(PodShape(selector=(("zone", "a"),)), [node(zone="b"), node(zone="a")]) == ""
    assert why_excluded(PodShape(), [node(GPU), node()]) == ""


def test_taints_of_those_that_are_selected():
    shape = PodShape(selector=(("zone", "a"),))
    found = why_excluded(shape, [node(zone="b"), node(GPU, zone="a")])
    assert found.startswith("those that the pod's node selector matches have taints")


def test_all_words_of_a_selector_have_to_fit():
    found = why_excluded(PodShape(selector=(("disk", "ssd"), ("zone", "a"))), [node(zone="a")])
    assert "disk=ssd,zone=a matches none" in found


def test_few_taints_are_named():
    taints = [Taint(key=f"k{number}", effect="NoExecute") for number in range(5)]
    assert "k0:NoExecute, k1:NoExecute, k2:NoExecute and 2 more" in why_excluded(PodShape(), [node(*taints)])
