"""What node configurations can say of shares."""

import pytest
from doubles.deviceplugin import gap, node, plan, said

from controller.importing import Weight, make_plan, read, read_cluster
from dradriver.api.node_config import MOST_REPLICAS, decode

MIXED, PROFILE, OTHER = "flags: {migStrategy: mixed}\n", "mig-1g.10gb", "mig-2g.20gb"


def shared(*, rename=False, way="timeSlicing", flags=MIXED, **replicas):
    names = {"gpu": "gpu", "small": PROFILE, "big": OTHER}
    listed = ", ".join(f"{{name: {names[name]}, replicas: {count}}}" for name, count in replicas.items())
    return f"{flags}sharing: {{{way}: {{renameByDefault: {str(rename).lower()}, resources: [{listed}]}}}}"


def rule(made):
    (one,) = made.node_configs["configs"]["default"]["gpus"]
    return one.get("sharing")


@pytest.mark.parametrize("rename", [True, False])
def test_whole_gpus_are_shared_as_they_are(rename):
    made = plan(shared(flags="", gpu=4, rename=rename))
    assert rule(made) == {"replicas": 4, "rename": rename}
    assert decode(made.node_configs).all_problems() == ()
    assert said(made, breaks=True) == ""


def test_resources_that_are_shared_alike_are_shared():
    assert rule(plan(shared(gpu=3, small=3))) == {"replicas": 3, "rename": False}


def test_of_different_numbers_the_least_one_is_taken_and_told_where_it_is_less():
    made = plan(shared(gpu=8, small=2))
    assert rule(made) == {"replicas": 2, "rename": False}
    assert gap(made, "nvidia.com/gpu will have 2 pods for each device instead of 8").weight is Weight.DIFFERS
    assert "nvidia.com/mig-1g.10gb will have" not in said(made)


@pytest.mark.parametrize("one", [shared(gpu=2), shared(small=2)])
def test_where_some_are_shared_and_others_not_none_are(one):
    made = plan(one, profiles=["1g.10gb", "2g.20gb"])
    assert rule(made) is None
    assert gap(made, "will have one pod for each device instead of 2").weight is Weight.BREAKS


def test_only_what_nodes_have_counts():
    made = plan(shared(small=3, rename=True), node("a", mig_1g_10gb_shared=21))
    assert rule(made) == {"replicas": 3, "rename": True}
    made = plan(shared(small=3, rename=True), node("a", mig_1g_10gb_shared=21), node("b", gpu=1))
    assert rule(made) is None
    made = plan(shared(small=3), node("b", gpu=8))
    assert rule(made) is None
    assert "instead of 3" not in said(made)


def test_nodes_whose_plugin_is_away_count_with_everything():
    assert rule(plan(shared(gpu=3, small=3), node("a"))) == {"replicas": 3, "rename": False}


@pytest.mark.parametrize(("wanted", "written"), [(MOST_REPLICAS, MOST_REPLICAS), (MOST_REPLICAS + 1, MOST_REPLICAS)])
def test_there_is_a_most(wanted, written):
    made = plan(shared(flags="", gpu=wanted))
    assert rule(made) == {"replicas": written, "rename": False}
    assert (f"instead of {wanted}" in said(made, breaks=True)) is (wanted > written)


@pytest.mark.parametrize("rename", [True, False])
def test_mps_is_not_shared_at_all(rename):
    made = plan(shared(way="mps", flags="", gpu=4, rename=rename))
    assert rule(made) is None
    assert "order" not in made.node_configs["configs"]["default"]


@pytest.mark.parametrize(
    ("version", "weight"),
    [((1, 35), Weight.BREAKS), ((1, 36), None), ((1, 40), None), ((2, 0), None), (None, Weight.DIFFERS)],
)
def test_shares_need_a_version(version, weight):
    cluster = read_cluster([node("a", gpu=8)], version=version)
    made = make_plan({"": read(shared(flags="", gpu=4).encode())}, cluster)
    found = [one for one in made.gaps if "need Kubernetes 1.36" in one.what]
    assert [one.weight for one in found] == ([weight] if weight else [])
    assert not found or ("this is 1.35" in found[0].what) is (version is not None)
