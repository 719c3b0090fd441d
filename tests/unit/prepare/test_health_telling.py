"""What users are told of the health of their devices: whom, once, in which words."""

import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from doubles.ailing import GPU, LOST, MILD, OTHER, PARTITION, PLACE, SICK, WHOLE, Ailing, mark
from doubles.apiserver import PATIENCE, Fault

from dradriver import api
from dradriver.gpu.health import Effect, Place
from dradriver.gpu.model import Placement
from dradriver.kube import EventRecorder
from dradriver.prepare import eviction, health_telling
from dradriver.prepare.errands import QUEUED
from dradriver.prepare.records import State

REPORTED, UNHEALTHY, HEALTHY = "DeviceReported", "DeviceUnhealthy", "DeviceHealthy"
ON_BOTH = [(UNHEALTHY, "ResourceClaim", "c"), (UNHEALTHY, "Pod", "p")]
WELL = [(HEALTHY, "ResourceClaim", "c"), (HEALTHY, "Pod", "p")]


@pytest.fixture
def node(server, client):
    made = Ailing(server=server, client=client)
    yield made
    made.errands.stop(PATIENCE)


# --- whom ----------------------------------------------------------------------------------------


def test_claim_and_pods_are_told_of_a_sick_device_and_when_it_is_over(node):
    node.hold("c", pods=("p", "q"))
    node.tell(gpu=(SICK,))
    assert node.told == [*ON_BOTH, (UNHEALTHY, "Pod", "q")]
    assert {(one.type, one.action) for one in node.events.happened} == {("Warning", "WatchHealth")}
    node.events.happened.clear()
    node.tell()
    assert node.told == [*WELL, (HEALTHY, "Pod", "q")]
    assert {one.type for one in node.events.happened} == {"Normal"}


def test_events_name_their_objects_by_uid(node):
    node.hold("c")
    node.tell(gpu=(SICK,))
    claim, pod = (one.regarding for one in node.events.happened)
    assert (claim.api_version, claim.namespace, claim.uid) == ("resource.k8s.io/v1", "ns", "uid-c")
    assert (pod.api_version, pod.namespace, pod.uid) == ("v1", "ns", "uid-p")


def test_pods_with_extended_resources_are_told_like_all_others(node):
    """Their status never shows how their devices are."""
    node.hold("c", extended=True)
    node.tell(gpu=(LOST,))
    assert node.told == ON_BOTH


@pytest.mark.parametrize(
    ("devices", "where", "is_hit"),
    [
        ((WHOLE,), None, True),
        ((PARTITION,), None, True),
        ((PARTITION,), PLACE, True),
        ((WHOLE,), PLACE, False),
        ((PARTITION,), Place(profile_id=19, placement=Placement(start=5, size=1)), False),
        ((OTHER,), None, False),
    ],
)
def test_only_those_who_hold_what_is_sick_are_told(node, devices, where, is_hit):
    node.hold("c", *devices)
    node.tell(gpu=(mark(Effect.NO_EXECUTE, place=where),))
    assert node.told == (ON_BOTH if is_hit else [])


def test_each_sick_device_of_a_claim_is_told_and_the_claim_read_once(node):
    node.hold("c", WHOLE, OTHER)
    node.tell(gpu=(SICK,), other=(SICK,))
    assert node.told == ON_BOTH * 2
    assert [re.search(r"device (\S+)", note)[1] for note in node.notes] == ["gpu-0", "gpu-0", "gpu-1", "gpu-1"]
    assert node.asked("resourceclaims") == 1
    node.events.happened.clear()
    node.tell(other=(SICK,))
    assert node.told == WELL
    assert all("device gpu-0" in note for note in node.notes)


def test_two_shares_of_a_sick_device_are_one_device_to_their_claim(node):
    node.hold("c", replace(WHOLE, share_id="one"), replace(WHOLE, requests=("other",), share_id="two"))
    node.hold("d", replace(WHOLE, share_id="three"), pods=("q",))
    node.tell(gpu=(SICK,))
    assert sorted(node.told) == sorted([*ON_BOTH, (UNHEALTHY, "ResourceClaim", "d"), (UNHEALTHY, "Pod", "q")])


def test_what_only_tells_is_told_on_the_claim_alone(node):
    """The pod's owner looks there for the Xid that his program caused; nothing has to be done for the pod."""
    node.hold("c")
    node.tell(gpu=(MILD,))
    assert node.told == [(REPORTED, "ResourceClaim", "c")]
    assert node.events.happened[0].type == "Normal"
    assert node.asked("resourceclaims") == 0
    node.tell()
    assert len(node.told) == 1


def test_that_nobody_hears_a_gpu_is_not_told_to_those_who_use_it(node):
    node.hold("c")
    node.tell(gpu=(mark(Effect.NONE, key=api.TaintKey.UNMONITORED, value=""),))
    assert node.told == []
    node.tell(gpu=(mark(Effect.NO_SCHEDULE, key=api.TaintKey.UNMONITORED, value=""),))
    assert node.told == ON_BOTH


def test_admin_access_is_told_what_evicts_it_but_of_no_others_program(node):
    node.hold("c", replace(PARTITION, admin_access=True))
    node.tell(gpu=(MILD,))
    assert node.told == []
    node.tell(gpu=(LOST,))
    assert node.told == ON_BOTH


def test_claims_without_a_name_and_those_being_undone_are_left_out(node):
    node.hold("c", state=State.UNPREPARING)
    node.hold("")
    node.tell(gpu=(LOST,))
    assert node.told == []


def test_a_claim_that_is_being_prepared_is_told(node):
    node.hold("c", state=State.PREPARING)
    node.tell(gpu=(LOST,))
    assert node.told == ON_BOTH


# --- once ----------------------------------------------------------------------------------------


def test_the_same_is_told_once_however_often_it_is_said(node):
    node.hold("c")
    for since in range(50):
        node.tell(gpu=(mark(Effect.NO_EXECUTE, since=since, text=f"words {since}"),))
    assert node.told == ON_BOTH


def test_only_what_is_new_is_told_when_more_comes(node):
    node.hold("c")
    node.tell(gpu=(SICK,))
    gone = mark(Effect.NO_EXECUTE, key=api.TaintKey.GPU_LOST, value="", text="GPU GPU-0 is lost: reset it")
    node.tell(gpu=(SICK, gone))
    assert node.told == ON_BOTH * 2
    assert "is lost" in node.notes[2]
    assert "Xid 48" not in node.notes[2]
    # One of two is over: it is not well yet.
    node.tell(gpu=(gone,))
    assert len(node.told) == 4
    node.tell()
    assert node.told[4:] == WELL


def test_a_graver_effect_is_news(node):
    node.hold("c")
    node.tell(gpu=(mark(Effect.NONE),))
    node.tell(gpu=(mark(Effect.NO_SCHEDULE),))
    node.tell(gpu=(mark(Effect.NO_EXECUTE),))
    assert node.told == [(REPORTED, "ResourceClaim", "c"), *ON_BOTH, *ON_BOTH]


def test_what_turns_out_to_be_harmless_is_over(node):
    node.hold("c")
    node.tell(gpu=(SICK,))
    node.tell(gpu=(mark(Effect.NONE, value="48"),))
    node.tell()
    assert node.told == [*ON_BOTH, *WELL]


def test_who_comes_later_is_told_neither_what_was_nor_that_it_is_over(node):
    """Its owner tolerates the taint, or another one's program caused the error."""
    node.tell(gpu=(SICK, MILD))
    node.hold("c")
    node.tell(gpu=(SICK, MILD, mark(Effect.NONE, key=api.TaintKey.MEMORY, value="contained", text="94")))
    assert node.told == [(REPORTED, "ResourceClaim", "c")]
    node.tell()
    assert len(node.told) == 1


def test_who_has_gone_is_told_nothing_more_and_his_successor_neither(node):
    node.hold("c")
    node.tell(gpu=(SICK,))
    del node.records["c"]
    node.tell(gpu=(SICK, MILD))
    node.hold("d", pods=("q",))
    node.tell()
    assert node.told == ON_BOTH


@pytest.mark.parametrize("successor", [None, "another"])
def test_a_claim_that_has_gone_from_the_api_server_is_told_nothing(node, server, successor):
    node.hold("c")
    server.remove("resourceclaims", "c", "ns")
    if successor:
        server.put("resourceclaims", {"metadata": {"namespace": "ns", "name": "c", "uid": successor}})
    node.tell(gpu=(SICK,))
    assert node.told == []


def test_what_an_earlier_process_has_told_is_not_told_again_but_its_end_is(node):
    node.hold("c")
    node.hold("d", OTHER, pods=("q",))
    node.teller.resume({GPU: (SICK,)})
    node.tell(gpu=(SICK,))
    assert node.told == []
    node.tell(other=(SICK,))
    assert sorted(node.told) == sorted([*WELL, (UNHEALTHY, "ResourceClaim", "d"), (UNHEALTHY, "Pod", "q")])


def test_an_api_server_that_does_not_answer_makes_nobody_wait_and_the_next_news_is_told(node, server):
    node.hold("c")
    server.fail(Fault(status=500, reason="InternalError"), times=100)
    with structlog.testing.capture_logs() as logs:
        node.tell(gpu=(SICK,))
    assert node.told == []
    assert [line["event"] for line in logs] == ["cannot be told now"]
    server.heal()
    node.tell()
    assert node.told == WELL


def test_a_storm_makes_no_more_than_can_wait(node):
    """While the API server hangs, whatever is reported: nobody waits, and what waits is bounded."""
    node.hold("c")
    hanging, answered = threading.Event(), threading.Event()
    node.errands.soon(lambda: (hanging.set(), answered.wait(PATIENCE)))
    assert hanging.wait(PATIENCE)
    with structlog.testing.capture_logs() as logs:
        for number in range(QUEUED + 10):
            node.teller.told({GPU: (mark(Effect.NO_SCHEDULE, value=str(number)),)})
    answered.set()
    node.errands.stop(PATIENCE)
    assert sum("left out" in line["event"] for line in logs) == 10
    assert len(node.told) == 2 * QUEUED


def test_the_real_recorder_writes_what_is_told(server, client):
    events = EventRecorder(client, controller=api.DRIVER_NAME, instance="node-a")
    events.start()
    node = Ailing(server=server, client=client, events=events)
    node.hold("c", extended=True)
    node.teller.told({GPU: (LOST,)})
    assert server.wait(lambda: len(server.all("events")) == 2)
    assert {(one["regarding"]["kind"], one["type"], one["reason"]) for one in server.all("events")} == {
        ("ResourceClaim", "Warning", UNHEALTHY),
        ("Pod", "Warning", UNHEALTHY),
    }
    node.errands.stop(PATIENCE)
    events.stop(PATIENCE)


# --- in which words ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deserved", "kept", "words"),
    [
        (LOST, True, ["Xid 79", "reboot", "is evicted, unless its claim tolerates gpu.nvidia.com/xid with the effect"]),
        (LOST, False, ["Xid 79", "keeps no device taints", "delete it"]),
        (SICK, True, ["Xid 48", "goes on running", "nobody else gets the device"]),
        (MILD, True, ["Xid 13", "look at the program", "goes on running", "handed out as before"]),
    ],
)
def test_a_note_names_claim_device_node_cause_and_what_comes_next(node, deserved, kept, words):
    node.taints_kept = kept
    node.hold("c")
    node.tell(gpu=(deserved,))
    note = node.notes[0]
    assert note.startswith(f"claim ns/c, device {PARTITION.device} on node node-a: GPU GPU-0 reported")
    assert all(word in note for word in words), note
    assert set(node.notes) == {note}


def test_the_gravest_mark_says_what_comes_next_and_a_text_is_said_once(node):
    node.hold("c")
    text = "GPU GPU-0 reported Xid 79 (lost): reboot"
    recovery = mark(Effect.NO_SCHEDULE, key=api.TaintKey.RECOVERY, value="node-reboot", text=text)
    node.tell(gpu=(recovery, LOST))
    assert node.notes[0].count(text) == 1
    assert "is evicted" in node.notes[0]


def test_all_taints_are_named_that_have_to_be_tolerated(node):
    """Whoever tolerates one of them only is evicted for the other."""
    node.hold("c")
    recovery = mark(Effect.NO_EXECUTE, key=api.TaintKey.RECOVERY, value="node-reboot", text="reboot the node")
    memory = mark(Effect.NO_SCHEDULE, key=api.TaintKey.MEMORY, value="remap-failed", text="replace it")
    node.tell(gpu=(recovery, LOST, memory))
    first, second = sorted((api.TaintKey.RECOVERY, api.TaintKey.XID))
    assert f"unless its claim tolerates {first} and {second} with the effect NoExecute" in node.notes[0]


def test_long_texts_do_not_hide_the_next_step(node):
    node.hold("c")
    keys = (api.TaintKey.XID, api.TaintKey.GPU_LOST, api.TaintKey.MEMORY, api.TaintKey.RECOVERY)
    node.tell(gpu=tuple(mark(Effect.NO_EXECUTE, key=key, text=f"{key} " + "very long " * 60) for key in keys))
    assert len(node.notes[0].encode()) <= 1024
    assert "is evicted" in node.notes[0]


def test_a_note_of_what_is_over_names_claim_and_device(node):
    node.hold("c")
    node.tell(gpu=(LOST,))
    node.tell()
    assert node.notes[-1].startswith(f"claim ns/c, device {PARTITION.device} on node node-a, is well again")


def test_the_reasons_are_those_that_users_are_told_of():
    text = (Path(health_telling.__file__).parents[2] / "docs" / "reference.md").read_text()
    for reason in (UNHEALTHY, REPORTED, HEALTHY, eviction.NOT_EVICTED):
        assert f"`{reason}`" in text
    assert (health_telling.UNHEALTHY, health_telling.REPORTED, health_telling.HEALTHY) == (UNHEALTHY, REPORTED, HEALTHY)
