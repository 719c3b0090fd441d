"""Following the labels of one node on an API server."""

import threading

import pytest
from doubles.apiserver import PATIENCE, Fault

from dradriver.kube import Backoff, Pace
from dradriver.nodeconfig.labels import NodeLabels
from dradriver.nodeconfig.wanted import Labels

NODE = "node-a"
QUICK = Pace(backoff=Backoff(initial=0.01, maximum=0.05))


class Follower:
    def __init__(self, client):
        self.changed = threading.Condition()
        self.labels = NodeLabels(client, NODE, on_change=self.note, pace=QUICK)
        self.labels.start()

    def note(self):
        with self.changed:
            self.changed.notify_all()

    def wait(self, condition):
        with self.changed:
            return self.changed.wait_for(condition, PATIENCE)


@pytest.fixture
def follow(client):
    made = []

    def start():
        made.append(Follower(client))
        return made[-1]

    yield start
    for follower in made:
        assert follower.labels.stop(PATIENCE)
        assert not follower.labels.alive


def test_labels_are_read_and_followed(label, follow):
    label(config="a100")
    follower = follow()
    assert follower.wait(lambda: follower.labels.read() == Labels(config="a100"))
    label(config="b", allocation="hold")
    assert follower.wait(lambda: follower.labels.read() == Labels(config="b", allocation="hold"))
    label()
    assert follower.wait(lambda: follower.labels.read() == Labels())
    assert follower.labels.trouble() == ""
    assert follower.labels.alive


def test_the_annotation_is_read_and_followed_and_passed_on_as_it_stands(label, follow):
    label(config="a", clear=" gpu-0,,GPU-1 \n")
    follower = follow()
    assert follower.wait(lambda: follower.labels.read() == Labels(config="a", clear=" gpu-0,,GPU-1 \n"))
    label(config="a", clear="all")
    assert follower.wait(lambda: follower.labels.read() == Labels(config="a", clear="all"))
    label(config="a")
    assert follower.wait(lambda: follower.labels.read() == Labels(config="a"))


@pytest.mark.parametrize("metadata", [{}, {"labels": None, "annotations": None}, {"labels": {}, "annotations": {}}])
def test_a_node_without_any_label_is_read_too(server, follow, metadata):
    server.put("nodes", {"metadata": {"name": NODE} | metadata})
    follower = follow()
    assert follower.wait(lambda: follower.labels.read() == Labels())


def test_only_this_node_is_asked_for(server, label, follow):
    server.put("nodes", {"metadata": {"name": "node-b", "labels": {"dradriver.dev/config": "b"}}})
    label(config="a")
    follower = follow()
    assert follower.wait(lambda: follower.labels.read() == Labels(config="a"))
    assert server.wait(lambda: server.count(lambda request: request.is_watch) == 1)
    asked = [request for request in server.requests if request.path.endswith("/nodes")]
    assert {request.query["fieldSelector"] for request in asked} == {f"metadata.name={NODE}"}


def test_no_more_is_kept_than_is_needed(label, follow):
    label(config="a")
    follower = follow()
    assert follower.wait(lambda: follower.labels.read() is not None)
    label(config="b", clear="all")
    assert follower.wait(lambda: follower.labels.read() == Labels(config="b", clear="all"))
    (kept,) = follower.labels._store.snapshot().values()
    assert set(kept) == {"metadata"}
    assert set(kept["metadata"]) == {"name", "uid", "resourceVersion", "labels", "annotations"}
    assert set(kept["metadata"]["labels"]) == {"dradriver.dev/config"}
    assert kept["metadata"]["annotations"] == {"dradriver.dev/clear-health": "all"}


def test_before_the_first_answer_nothing_is_known_and_a_failure_is_told(server, label, follow):
    label(config="a")
    server.fail(Fault(status=503, message="tired"), times=float("inf"))
    follower = follow()
    assert server.wait(lambda: "are not known yet" in follower.labels.trouble())
    assert follower.labels.trouble().startswith(f"the labels of node {NODE} are not known yet: ")
    assert "tired" in follower.labels.trouble()
    assert follower.labels.read() is None
    server.heal()
    assert follower.wait(lambda: follower.labels.read() == Labels(config="a"))
    assert server.wait(lambda: follower.labels.trouble() == "")


def test_after_the_first_answer_an_outage_is_not_told_here(server, label, follow):
    label(config="a")
    follower = follow()
    assert follower.wait(lambda: follower.labels.read() is not None)
    server.fail(Fault(status=503), times=float("inf"))
    server.end_streams()
    assert server.wait(lambda: follower.labels._reflector.error is not None)
    assert follower.labels.trouble() == ""
    assert follower.labels.read() == Labels(config="a")


@pytest.mark.parametrize("late", [False, True], ids=["from the start", "later"])
def test_missing_rights_are_told_with_what_to_do(server, label, follow, late):
    label(config="a")
    denied = Fault(status=403, reason="Forbidden", message="no list for you")
    follower = None
    if late:
        follower = follow()
        assert follower.wait(lambda: follower.labels.read() is not None)
    server.fail(denied, times=float("inf"))
    server.end_streams()
    follower = follower or follow()
    assert server.wait(lambda: "cannot be seen" in follower.labels.trouble())
    assert "no list for you" in follower.labels.trouble()
    assert "apply deploy/rbac.yaml" in follower.labels.trouble()
    server.heal()
    assert server.wait(lambda: follower.labels.trouble() == "")


def test_a_node_that_does_not_exist_is_told(follow):
    follower = follow()
    assert follower.wait(lambda: follower.labels.trouble() != "")
    assert follower.labels.trouble() == (
        f"node {NODE} does not exist: --node-name must be the name of a Kubernetes node"
    )


def test_a_node_that_is_made_again_is_followed(server, label, follow):
    label(config="a")
    follower = follow()
    assert follower.wait(lambda: follower.labels.read() is not None)
    server.remove("nodes", NODE)
    assert follower.wait(lambda: follower.labels.read() is None)
    label(config="b")
    assert follower.wait(lambda: follower.labels.read() == Labels(config="b"))
