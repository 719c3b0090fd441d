import dataclasses
import threading

import pytest
from doubles.apiserver import PATIENCE, Fault

from dradriver.kube import EventRecorder, EventType, Happening, Regarding

CLAIM = Regarding(api_version="resource.k8s.io/v1", kind="ResourceClaim", name="c", namespace="n", uid="u")
HAPPENING = Happening(regarding=CLAIM, type=EventType.WARNING, reason="Failed", action="Prepare", note="GPU 3 is lost")


@pytest.fixture
def recorder(client):
    made = EventRecorder(client, controller="dradriver.dev/plugin", instance="node-a")
    made.start()
    yield made
    made.stop()


def events(server):
    return server.all("events")


def test_an_event_has_what_the_api_demands(recorder, server):
    recorder.record(HAPPENING)
    assert server.wait(lambda: events(server))
    (event,) = events(server)
    assert event["metadata"]["namespace"] == "n"
    assert event["regarding"] == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "name": "c",
        "namespace": "n",
        "uid": "u",
    }
    assert (event["type"], event["reason"], event["action"]) == ("Warning", "Failed", "Prepare")
    assert (event["note"], event["reportingController"]) == ("GPU 3 is lost", "dradriver.dev/plugin")
    assert event["eventTime"].endswith("Z")
    assert len(event["eventTime"]) == len("2026-01-01T00:00:00.000000Z")


def test_events_of_cluster_scoped_objects_live_in_default(recorder, server):
    recorder.record(dataclasses.replace(HAPPENING, regarding=Regarding(api_version="v1", kind="Node", name="a")))
    assert server.wait(lambda: events(server))
    assert events(server)[0]["metadata"]["namespace"] == "default"


def test_the_same_event_is_written_once_in_its_window(client, server):
    now = [0.0]
    recorder = EventRecorder(client, controller="d", instance="i", clock=lambda: now[0])
    recorder.start()
    for moment in (0, 30, 59, 61):
        now[0] = moment
        recorder.record(HAPPENING)
    recorder.record(dataclasses.replace(HAPPENING, note="another"))
    recorder.stop(PATIENCE)
    assert [event["note"] for event in events(server)].count("GPU 3 is lost") == 2
    assert len(events(server)) == 3


def test_a_failing_server_costs_the_event_and_nothing_else(recorder, server):
    server.fail(Fault(status=500))
    recorder.record(HAPPENING)
    recorder.record(dataclasses.replace(HAPPENING, note="second"))
    assert server.wait(lambda: events(server))
    assert [event["note"] for event in events(server)] == ["second"]
    assert recorder.dropped == 1


@pytest.mark.parametrize("trouble", [Fault(status=500), Fault(reset=True)])
def test_an_event_that_was_not_written_is_no_repetition(recorder, server, trouble):
    server.fail(trouble)
    recorder.record(HAPPENING)
    assert server.wait(lambda: recorder.dropped == 1)
    recorder.record(HAPPENING)
    assert server.wait(lambda: events(server))


def test_an_event_for_which_there_was_no_room_is_no_repetition(client, server):
    recorder = EventRecorder(client, controller="d", instance="i", capacity=1)
    recorder.record(dataclasses.replace(HAPPENING, note="first"))
    recorder.record(HAPPENING)
    assert recorder.dropped == 1
    recorder.start()
    assert server.wait(lambda: events(server))
    recorder.record(HAPPENING)
    recorder.stop(PATIENCE)
    assert sorted(event["note"] for event in events(server)) == ["GPU 3 is lost", "first"]


@pytest.mark.parametrize("namespace", ["../x", "a/b", "a?b"])
def test_a_name_that_is_none_does_not_end_the_writing(recorder, server, namespace):
    bad = dataclasses.replace(CLAIM, namespace=namespace)
    recorder.record(dataclasses.replace(HAPPENING, regarding=bad))
    recorder.record(HAPPENING)
    assert server.wait(lambda: events(server))
    assert recorder.dropped == 1


def test_a_defect_does_not_end_the_writing(recorder, server, monkeypatch):
    def stumble(happening):
        monkeypatch.undo()
        raise RuntimeError("a defect")

    monkeypatch.setattr(recorder, "_event", stumble)
    recorder.record(HAPPENING)
    assert server.wait(lambda: recorder.dropped == 1)
    recorder.record(HAPPENING)
    assert server.wait(lambda: events(server))


def test_record_never_waits(client, server):
    recorder = EventRecorder(client, controller="d", instance="i", capacity=2)
    caller = threading.Thread(
        target=lambda: [recorder.record(dataclasses.replace(HAPPENING, note=str(n))) for n in range(10)]
    )
    caller.start()
    caller.join(PATIENCE)
    assert not caller.is_alive()
    assert recorder.dropped == 8


def test_a_long_note_is_cut_at_a_character(recorder, server):
    recorder.record(dataclasses.replace(HAPPENING, note="é" * 1000))
    assert server.wait(lambda: events(server))
    note = events(server)[0]["note"]
    assert len(note.encode()) == 1024
    assert set(note) == {"é"}
