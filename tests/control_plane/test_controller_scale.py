"""The controller with some hundred nodes on a real API server: its numbers are right, and follow what happens."""

import pytest
from bench import controller as bench
from support.bridging import bridge
from support.fleet import GPUS, PARTITIONS, PROFILE, Fleet
from support.labelling import LABEL_MANAGER
from support.waiting import wait_for

from dradriver.kube import NODES, RESOURCE_SLICES

COUNT, CUT = 300, 20


@pytest.fixture
def fleet(admin):
    with Fleet(admin, nodes=COUNT, partitioned=CUT) as made:
        yield made


def test_numbers_of_devices_and_nodes(controllers, fleet, admin):
    product = {"productName": fleet.product}
    controllers.add(
        bridge("fleet-gpu", "example.com/fleet-gpu", select={"type": "gpu", **product}),
        bridge("fleet-mig", "example.com/fleet-mig", select={"profile": PROFILE, **product}),
    )
    controllers.start()
    controllers.wait_counts("fleet-gpu", published=COUNT * GPUS, allocatable=COUNT * GPUS, allocated=0, tainted=0)
    parts = CUT * GPUS * PARTITIONS
    controllers.wait_counts("fleet-mig", published=parts, allocatable=parts, allocated=0, tainted=0)
    assert controllers.find("fleet-gpu")["status"]["nodes"]["dra"] == COUNT
    assert controllers.find("fleet-mig")["status"]["nodes"]["dra"] == CUT
    sick = fleet.nodes[-10:]
    for node in sick:
        fleet.taint(node, tainted=True)
    controllers.wait_counts("fleet-gpu", published=COUNT * GPUS, allocatable=COUNT * GPUS - 10, tainted=10)
    for node in sick:
        fleet.taint(node, tainted=False)
    controllers.wait_counts("fleet-gpu", allocatable=COUNT * GPUS, tainted=0)
    gone = (*fleet.nodes[:5], *fleet.nodes[-95:])
    fleet.remove(gone)
    left = (COUNT - len(gone)) * GPUS
    controllers.wait_counts("fleet-gpu", published=left, allocatable=left)
    parts = (CUT - 5) * GPUS * PARTITIONS
    controllers.wait_counts("fleet-mig", published=parts, allocatable=parts)
    wait_for(
        lambda: controllers.find("fleet-gpu")["status"]["nodes"]["dra"] == COUNT - len(gone),
        "nodes that are gone not to be counted",
        state=lambda: controllers.find("fleet-gpu")["status"],
    )


def test_every_node_gets_its_labels_and_a_restart_writes_none(controllers, admin):
    with Fleet(admin, nodes=60, partitioned=5) as fleet:

        def labelled():
            found = [item["metadata"] for item in admin.list(NODES).items]
            return {
                item["name"]: item["labels"]["nvidia.com/gpu.count"]
                for item in found
                if item["name"] in fleet.nodes and "nvidia.com/gpu.count" in item.get("labels", {})
            }

        first = controllers.start("--node-labels", "WhenUnowned")
        wait_for(lambda: len(labelled()) == 60, "all nodes to be labelled", seconds=120, state=labelled)
        assert set(labelled().values()) == {str(GPUS)}
        item = admin.get(NODES, fleet.nodes[0])
        assert item["metadata"]["labels"][f"nvidia.com/mig-{PROFILE}.count"] == str(GPUS * PARTITIONS)
        assert LABEL_MANAGER in {entry["manager"] for entry in item["metadata"]["managedFields"]}
        first.stop()
        second = controllers.start("--node-labels", "WhenUnowned")
        wait_for(lambda: _metric(second, 'labelled_nodes{labels="ours"}') >= 60, "it to have looked", state=second.log)
        assert _metric(second, 'label_writes_total{outcome="written"}') == 0


def _metric(controller, name):
    lines = [line for line in controller.page("/metrics").splitlines() if f"controller_{name} " in line]
    return float(lines[0].rpartition(" ")[2]) if lines else 0.0


def test_the_benchmark_measures_everything_and_leaves_nothing(control_plane, admin, capsys, controllers):
    found = bench.run(admin, control_plane.kubeconfig, nodes=40, rounds=1, idle=0.2, patience=0.0)
    assert set(found) == {"no labels", "labels, first time", "labels, restarted"}
    assert found["no labels"].labels is None
    # All of them, and one that lost a GPU and got it back, for the look at its label.
    assert found["labels, first time"].writes >= 42
    assert 2 <= found["labels, restarted"].writes < 42
    assert all(each.rss > 10 and each.reactions for each in found.values())
    told = capsys.readouterr().out
    for words in ("nothing to follow: RSS", "first full status", "processor time at rest", "slice -> label"):
        assert words in told
    left = [item["metadata"]["name"] for kind in (NODES, RESOURCE_SLICES) for item in admin.list(kind).items]
    assert [name for name in left if name.startswith("fleet-")] == []
    assert controllers.all_bridges() == []
