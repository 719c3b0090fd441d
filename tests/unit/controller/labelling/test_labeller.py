"""What the labeller does where the API server does not want it; what it writes is seen on a real one."""

import pytest
from doubles.apiserver import PATIENCE, ApiServer, Fault
from doubles.publications import gpu

from controller.labelling import LABEL_MANAGER, Labeller
from controller.labelling.labeller import Terms
from controller.labelling.pacing import Pace
from controller.watching import Watcher
from dradriver.kube import Backoff
from dradriver.kube.connection import connect

NODES = 20


@pytest.fixture
def server():
    with ApiServer() as running:
        yield running


@pytest.fixture
def run(server, tmp_path):
    """Starts a labeller with short times; `leads` says whether it may act, `terms` are its own."""
    made = []

    def start(leads=lambda: True, **terms):
        client = connect(server.kubeconfig(tmp_path))
        watcher = Watcher(client, on_change=lambda _is_small: None)
        outcomes = []
        times = {
            "gather": 0.01,
            "between": 0.0,
            "pace": Pace(least=0.01),
            "backoff": Backoff(initial=0.02, maximum=0.1),
        }
        labeller = Labeller(client, watcher, may_act=leads, on_write=outcomes.append, terms=Terms(**times | terms))
        watcher.start()
        assert server.wait(lambda: watcher.has_synced)
        made.append((client, watcher, labeller))
        labeller.start()
        return labeller, outcomes

    yield start
    for client, watcher, labeller in made:
        labeller.stop()
        watcher.stop(PATIENCE)
        client.close()


def publish(server, node, *devices):
    server.put("nodes", {"metadata": {"name": node}})
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": list(devices)}
    server.put("resourceslices", {"metadata": {"name": f"slice-{node}"}, "spec": spec})


def patches(server):
    return [request for request in server.requests if request.method == "PATCH"]


def test_it_applies_under_its_own_name_and_without_force(server, run):
    publish(server, "a", gpu(0))
    run()
    assert server.wait(lambda: patches(server))
    request = patches(server)[0]
    assert request.path == "/api/v1/nodes/a"
    assert (request.query["fieldManager"], request.query["force"]) == (LABEL_MANAGER, "false")
    assert set(request.body) == {"apiVersion", "kind", "metadata"}
    assert set(request.body["metadata"]) == {"name", "uid", "labels"}


def test_nothing_is_written_by_a_process_that_does_not_lead(server, run):
    publish(server, "a", gpu(0))
    labeller, outcomes = run(leads=lambda: False)
    assert server.wait(lambda: labeller.has_ended)
    assert (outcomes, patches(server)) == ([], [])


def test_a_refusal_of_the_right_is_tried_again_and_no_node_is_forgotten(server, run):
    for number in range(NODES):
        publish(server, f"node-{number}", gpu(0))
    server.fail(Fault(status=403, reason="Forbidden"), when=lambda r: r.method == "PATCH", times=NODES // 2)
    _, outcomes = run()
    assert server.wait(lambda: {r.path for r in patches(server)} == {f"/api/v1/nodes/node-{n}" for n in range(NODES)})
    assert server.wait(lambda: outcomes.count("written") >= NODES)
    assert outcomes.count("failed") == NODES // 2


def test_a_conflict_is_looked_at_anew(server, run):
    publish(server, "a", gpu(0))
    server.fail(Fault(status=409, reason="Conflict"), when=lambda r: r.method == "PATCH", times=2)
    _, outcomes = run()
    assert server.wait(lambda: "written" in outcomes)
    assert outcomes[:3] == ["conflict", "conflict", "written"]


def test_a_node_that_does_not_exist_is_not_labelled(server, run):
    publish(server, "a", gpu(0))
    publish(server, "ghost", gpu(0))
    server.remove("nodes", "ghost")
    _, outcomes = run()
    assert server.wait(lambda: outcomes == ["written"])
    assert [request.path for request in patches(server)] == ["/api/v1/nodes/a"]


def test_a_slice_that_moves_to_another_node_is_not_left_with_the_former_one(server, run):
    publish(server, "a", gpu(0))
    publish(server, "b", gpu(0))
    labeller, outcomes = run()
    assert server.wait(lambda: len(outcomes) == 2)
    assert {node: set(keys) for node, keys in labeller._slices_of.items()} == {"a": {"slice-a"}, "b": {"slice-b"}}
    server.edit("resourceslices", "slice-a", lambda item: item["spec"].update(nodeName="b"))
    assert server.wait(lambda: labeller._slices_of["b"] == {"slice-a", "slice-b"})
    assert not labeller._slices_of["a"]


def test_what_was_known_of_a_node_that_is_gone_goes(server, run):
    publish(server, "a", gpu(0))
    labeller, outcomes = run()
    assert server.wait(lambda: outcomes == ["written"])
    server.remove("resourceslices", "slice-a")
    server.remove("nodes", "a")
    assert server.wait(lambda: not labeller._slices_of)
    assert (labeller._node_of, labeller._gone, labeller._labelled, labeller._yielding) == ({}, {}, set(), set())


def test_a_defect_costs_no_thread(server, run, monkeypatch):
    """Whatever a slice has: the next change is another try."""
    calls = []

    def broken(*_arguments, **_more):
        calls.append(1)
        raise ZeroDivisionError

    monkeypatch.setattr("controller.labelling.labeller.plan", broken)
    publish(server, "a", gpu(0))
    labeller, _ = run()
    assert server.wait(lambda: len(calls) > 1)
    assert not labeller.has_ended
