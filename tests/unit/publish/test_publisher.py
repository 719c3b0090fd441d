import threading

import pytest
from doubles.apiserver import PATIENCE, Fault
from doubles.offers import OWN, QUICK, Clock, generations, is_post, is_write, names, on_slices, settled
from doubles.pools import DRIVER, NODE, counter_slice, device_slice, node_slices, sick

from dradriver.kube import Backoff, Pace
from dradriver.publish import Phase
from dradriver.publish.publisher import _Cause


def test_everything_is_published_with_owner_and_order(server, publish):
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    assert names(server) == OWN[:4]
    for item in server.all("resourceslices"):
        assert item["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "node-uid", "controller": True}
        ]
        assert item["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 4}
    assert publisher.status.slices == 4
    assert publisher.status.phase is Phase.PUBLISHED


def test_nothing_is_written_when_nothing_changes(server, publish):
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    publisher.set_slices(node_slices())
    assert publisher.published
    for _ in range(3):
        settled(server, publisher)
    server.end_streams()
    server.bookmark()
    assert settled(server, publisher) == 4


def test_a_restart_writes_nothing(server, publish):
    first = publish(node_slices())
    assert first.wait_published(PATIENCE)
    first.stop(PATIENCE)
    assert names(server) == OWN[:4]
    second = publish(node_slices())
    assert second.wait_published(PATIENCE)
    assert len(server.writes) == 4


def test_one_taint_is_one_write(server, publish):
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    slices = list(node_slices())
    slices[1] = device_slice(0, taints=(sick(),))
    publisher.set_slices(slices)
    assert not publisher.published
    assert publisher.wait_published(PATIENCE)
    assert [write.method for write in server.writes[4:]] == ["PUT"]
    assert generations(server) == {1}


def test_a_taint_keeps_its_time_through_everything(server, publish):
    taint = sick(since="2026-01-01T00:00:00Z")
    publisher = publish((counter_slice(1), device_slice(0, taints=(taint,))))
    assert publisher.wait_published(PATIENCE)
    publisher.set_slices((counter_slice(2), device_slice(0, taints=(sick(),)), device_slice(1)))
    assert publisher.wait_published(PATIENCE)
    assert generations(server) == {2}
    server.remove("resourceslices", OWN[1])
    assert server.wait(lambda: OWN[1] in names(server))
    (item,) = [item for item in server.all("resourceslices") if item["metadata"]["name"] == OWN[1]]
    assert {taint["timeAdded"] for device in item["spec"]["devices"] for taint in device["taints"]} == {
        "2026-01-01T00:00:00Z"
    }


def test_a_deleted_slice_comes_back_at_once(server, publish):
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    server.remove("resourceslices", OWN[2])
    assert server.wait(lambda: OWN[2] in names(server))
    assert settled(server, publisher) == 5


def test_a_slice_deleted_right_after_our_own_update_comes_back(server, publish):
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    for round_number in range(5):
        slices = list(node_slices())
        slices[1] = device_slice(0, memory=round_number + 1)
        publisher.set_slices(slices)
        assert publisher.wait_published(PATIENCE)
        server.remove("resourceslices", OWN[1])
        assert server.wait(lambda: OWN[1] in names(server))
    settled(server, publisher)
    assert names(server) == OWN[:4]


def test_a_slice_deleted_while_our_watch_is_dead_comes_back_on_registration(server, publish):
    server.fail(Fault(stream_silent=True), when=lambda request: request.is_watch, times=float("inf"))
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    for name in OWN[:4]:
        server.remove("resourceslices", name)
    publisher.mark_dirty("the kubelet registered us")
    assert server.wait(lambda: names(server) == OWN[:4])


def test_the_comparison_after_registration_is_repeated_after_the_wipe(server, publish):
    clock = Clock()
    server.fail(Fault(stream_silent=True), when=lambda request: request.is_watch, times=float("inf"))
    publisher = publish(node_slices(), pace=Pace(backoff=QUICK.backoff, clock=clock))
    assert publisher.wait_published(PATIENCE)
    settled(server, publisher)
    server.remove("resourceslices", OWN[0])
    clock.leap += 31
    publisher._queue.add(_Cause.CHANGE)
    assert server.wait(lambda: names(server) == OWN[:4])


def test_a_wipe_is_repaired(server, publish):
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    with server.changed:
        for name in OWN[:4]:
            server.remove("resourceslices", name)
    assert server.wait(lambda: names(server) == OWN[:4])
    assert publisher.wait_published(PATIENCE)
    assert generations(server) == {1}


def test_a_wipe_that_goes_on_while_it_is_repaired_is_no_contest(server, publish):
    publisher = publish(node_slices(8))
    assert publisher.wait_published(PATIENCE)
    for name in OWN[:9]:
        server.remove("resourceslices", name)
        assert server.wait(lambda: names(server) == OWN[:9])
    assert server.wait(lambda: publisher._meter.writes == ["create"] * 18)
    assert publisher.wait_published(PATIENCE)
    assert publisher._meter.failures == []


def test_an_edit_is_undone(server, publish):
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    server.edit("resourceslices", OWN[1], lambda item: item["spec"]["devices"].clear())
    assert server.wait(lambda: len(server.all("resourceslices")[1]["spec"].get("devices", [])) == 2)
    server.edit("resourceslices", OWN[1], lambda item: item["metadata"].pop("ownerReferences"))
    assert server.wait(lambda: "ownerReferences" in server.all("resourceslices")[1]["metadata"])


def test_a_foreign_edit_of_labels_is_let_be(server, publish):
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    server.edit("resourceslices", OWN[1], lambda item: item["metadata"].update(labels={"a": "b"}))
    assert settled(server, publisher) == 4


def test_a_predecessor_s_slices_go_last(server, publish):
    old = {"driver": DRIVER, "nodeName": NODE, "pool": {"name": NODE, "generation": 5, "resourceSliceCount": 1}}
    server.put("resourceslices", {"metadata": {"name": "old-x7k2p"}, "spec": old})
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    assert names(server) == OWN[:4]
    assert generations(server) == {6}
    assert [write.method for write in server.writes] == ["POST"] * 4 + ["DELETE"]


def test_other_drivers_and_nodes_are_not_touched(server, publish):
    for name, driver, node in (("a", "other.example.com", NODE), ("b", DRIVER, "node-b")):
        pool = {"name": node, "generation": 5, "resourceSliceCount": 1}
        server.put(
            "resourceslices", {"metadata": {"name": name}, "spec": {"driver": driver, "nodeName": node, "pool": pool}}
        )
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    publisher.set_slices(())
    assert publisher.wait_published(PATIENCE)
    assert names(server) == ["a", "b"]


def test_fewer_slices_are_a_new_generation(server, publish):
    publisher = publish(node_slices(3))
    assert publisher.wait_published(PATIENCE)
    publisher.set_slices(node_slices(2))
    assert publisher.wait_published(PATIENCE)
    assert (names(server), generations(server)) == (OWN[:3], {2})


def meddling(server, *, times):
    """Somebody labels slices, each just before a write of ours comes in."""
    left = [times]

    def meddle(request):
        if request.method == "PUT" and left[0] > 0:
            left[0] -= 1
            name = request.path.rpartition("/")[2]
            server.edit("resourceslices", name, lambda item: item["metadata"].update(labels={"n": str(left[0])}))
        return False

    server.fail(Fault(), when=meddle)


def test_a_conflict_is_settled_within_the_pass(server, publish):
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    meddling(server, times=2)
    slices = list(node_slices())
    slices[1] = device_slice(0, memory=7)
    publisher.set_slices(slices)
    assert publisher.wait_published(PATIENCE)
    assert publisher._meter.failures == []
    (edited,) = [item for item in server.all("resourceslices") if item["metadata"]["name"] == OWN[1]]
    assert edited["metadata"]["labels"] == {"n": "0"}
    assert edited["spec"]["devices"][0]["capacity"]["memory"]["value"] == "7"


def test_a_conflict_with_nobody_is_a_failure(server, publish):
    """A webhook or a quota may answer 409, too; asking again at once would lead nowhere."""
    publisher = publish(node_slices(), pace=Pace(backoff=Backoff(initial=3600, maximum=3600)))
    assert publisher.wait_published(PATIENCE)
    server.fail(Fault(status=409, reason="Conflict"), when=lambda request: request.method == "PUT", times=float("inf"))
    publisher.set_slices((counter_slice(3), *(device_slice(gpu, memory=5) for gpu in range(3))))
    assert server.wait(lambda: publisher.status.phase is Phase.FAILING)
    assert f"slice {OWN[1]}" in publisher.status.message
    assert "409 Conflict" in publisher.status.message
    assert [write.method for write in server.writes[4:]] == ["PUT"]


def test_a_predecessor_stays_while_anything_of_ours_is_missing(server, publish):
    """Somebody is quicker with one of our slices: the pool is not complete, so what it replaces must not go yet."""
    old = {"driver": DRIVER, "nodeName": NODE, "pool": {"name": NODE, "generation": 5, "resourceSliceCount": 1}}
    server.put("resourceslices", {"metadata": {"name": "old-x7k2p"}, "spec": old})
    seen = []

    def meddle(request):
        if is_post(request) and not seen:
            mine = {
                "driver": DRIVER,
                "nodeName": NODE,
                "pool": {"name": NODE, "generation": 4, "resourceSliceCount": 9},
            }
            server.put("resourceslices", {"metadata": {"name": OWN[0]}, "spec": mine})
        if request.method == "DELETE":
            seen.append({item["metadata"]["name"]: item["spec"]["pool"] for item in server.all("resourceslices")})
        return False

    server.fail(Fault(), when=meddle)
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    assert names(server) == OWN[:4]
    (moment,) = seen
    assert {moment[name]["generation"] for name in OWN[:4]} == {6}


def test_what_a_finalizer_keeps_is_deleted_once(server, publish):
    old = {"driver": DRIVER, "nodeName": NODE, "pool": {"name": NODE, "generation": 5, "resourceSliceCount": 1}}
    server.put("resourceslices", {"metadata": {"name": "old", "finalizers": ["example.com/f"]}, "spec": old})
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    assert names(server) == [*OWN[:4], "old"]
    assert settled(server, publisher) == 5
    server.edit("resourceslices", "old", lambda item: item["metadata"].pop("finalizers"))
    assert server.wait(lambda: names(server) == OWN[:4])
    assert settled(server, publisher) == 5


def test_a_name_that_exists_is_adopted(server, publish):
    """A lagging list hides what another instance has just created."""
    first = publish(node_slices())
    assert first.wait_published(PATIENCE)
    first.stop(PATIENCE)
    server.fail(
        Fault(status=200, raw=b'{"metadata":{"resourceVersion":"90"},"items":[]}'),
        when=lambda request: request.method == "GET" and on_slices(request) and not request.is_watch,
        times=2,
    )
    second = publish(node_slices())
    assert second.wait_published(PATIENCE)
    assert [write.method for write in server.writes[4:] if write.method != "POST"] == []
    assert second._meter.writes == []
    assert names(server) == OWN[:4]


def test_a_name_of_somebody_else_is_reported(server, publish):
    spec = {"driver": "other", "nodeName": "elsewhere", "pool": {"name": "x", "generation": 1, "resourceSliceCount": 1}}
    server.put("resourceslices", {"metadata": {"name": OWN[0]}, "spec": spec})
    publisher = publish(node_slices())
    assert server.wait(lambda: publisher.status.phase is Phase.FAILING)
    assert f"slice {OWN[0]} exists and belongs to driver 'other' on node 'elsewhere'" in publisher.status.message
    server.remove("resourceslices", OWN[0])
    assert publisher.wait_published(PATIENCE)


def test_a_write_whose_answer_was_lost_is_recognised(server, publish):
    server.fail(Fault(late=True), when=is_post, times=1)
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    assert names(server) == OWN[:4]


def test_trouble_passes_and_is_told(server, publish):
    told = []
    server.fail(Fault(status=500, message="etcd is tired"), when=is_write, times=3)
    publisher = publish(node_slices(), on_status=told.append)
    assert publisher.wait_published(PATIENCE)
    assert publisher._meter.failures == ["ServerError"] * 3
    assert [status.phase for status in told if status.phase is not Phase.PENDING] == [Phase.FAILING, Phase.PUBLISHED]
    (failing,) = [status for status in told if status.phase is Phase.FAILING]
    assert f"slice {OWN[0]}" in failing.message
    assert "etcd is tired" in failing.message


def test_an_interrupted_attempt_is_continued(server, publish):
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    server.fail(Fault(status=500), when=lambda request: request.method == "PUT" and OWN[2] in request.path)
    publisher.set_slices((counter_slice(3), *(device_slice(gpu, size=3) for gpu in range(3))))
    assert publisher.wait_published(PATIENCE)
    assert generations(server) == {2}
    assert [write.path[-len(OWN[0]) :] for write in server.writes[4:]] == [*OWN[:3], *OWN[2:4]]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(status=403, reason="Forbidden", message="user x cannot create"), "ClusterRole"),
        (
            Fault(status=422, reason="Invalid", message='slices "x" is forbidden: policy denied request: no'),
            "the policy must allow this node's slices",
        ),
        (Fault(status=422, reason="Invalid", message="spec.devices: Too many: 65"), "do not fit together"),
    ],
)
def test_a_refusal_is_explained_and_does_not_become_a_hot_loop(server, publish, fault, words):
    server.fail(fault, when=is_write, times=float("inf"))
    publisher = publish(node_slices(), pace=Pace(backoff=Backoff(initial=3600, maximum=3600)))
    assert server.wait(lambda: publisher.status.phase is Phase.FAILING)
    assert words in publisher.status.message
    for number in range(20):
        server.put("resourceslices", {"metadata": {"name": f"n{number}"}, "spec": {"driver": DRIVER, "nodeName": NODE}})
    assert server.wait(lambda: len(publisher._store.snapshot()) == 20)
    assert len(server.writes) == 1


def test_a_new_offer_does_not_wait_for_the_backoff(server, publish):
    server.fail(Fault(status=422, reason="Invalid"), when=is_write)
    publisher = publish(node_slices(), pace=Pace(backoff=Backoff(initial=3600, maximum=3600)))
    assert server.wait(lambda: len(server.writes) == 1)
    publisher.set_slices(node_slices(2))
    assert publisher.wait_published(PATIENCE)


def test_a_missing_node_is_waited_for(server, publish):
    server.remove("nodes", NODE)
    publisher = publish(node_slices())
    assert server.wait(lambda: server.count(lambda request: "nodes" in request.path) >= 2)
    assert f"node {NODE} does not exist" in publisher.status.message
    server.put("nodes", {"metadata": {"name": NODE, "uid": "late"}})
    assert publisher.wait_published(PATIENCE)


def test_a_recreated_node_is_the_new_owner(server, publish):
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    with server.changed:
        server.remove("nodes", NODE)
        server.put("nodes", {"metadata": {"name": NODE, "uid": "second"}})
        for name in OWN[:4]:
            server.remove("resourceslices", name)
    assert server.wait(lambda: names(server) == OWN[:4])
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in server.all("resourceslices")} == {"second"}


def test_stripped_counters_withdraw_the_offer(server, publish):
    def strip(item):
        for device in item["spec"].get("devices", []):
            device.pop("consumesCounters", None)

    server.strip = strip
    publisher = publish(node_slices())
    assert server.wait(lambda: publisher.status.phase is Phase.WITHDRAWN)
    assert names(server) == []
    assert "left out consumesCounters" in publisher.status.message
    assert "DRAPartitionableDevices" in publisher.status.message
    assert not publisher.published
    written = settled_reads(server, publisher)
    assert written == len(server.writes)
    server.strip = lambda _item: None
    publisher.set_slices(node_slices())
    assert publisher.wait_published(PATIENCE)
    assert names(server) == OWN[:4]


def settled_reads(server, publisher):
    before = len(server.writes)
    lists = server.count(lambda request: request.method == "GET")
    publisher.mark_dirty("test")
    assert server.wait(lambda: server.count(lambda request: request.method == "GET") > lists)
    return before


def test_stripped_taints_are_told_and_not_sent_again(server, publish):
    def strip(item):
        for device in item["spec"].get("devices", []):
            device.pop("taints", None)

    server.strip = strip
    publisher = publish((device_slice(0, taints=(sick(),)),))
    assert publisher.wait_published(PATIENCE)
    assert "DRADeviceTaints" in publisher.status.message
    assert settled(server, publisher) == 1


def test_somebody_who_undoes_everything_is_not_raced(server, publish):
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    stop = threading.Event()

    def undo():
        while not stop.is_set():
            with server.changed:
                for name in names(server):
                    server.remove("resourceslices", name)
                server.changed.wait(0.05)

    rival = threading.Thread(target=undo)
    rival.start()
    try:
        assert server.wait(lambda: publisher.status.message == "somebody undoes our writes")
    finally:
        stop.set()
        rival.join(PATIENCE)
    # Four at first, then what may be done at once, and a few while the rival stopped.
    assert len(server.writes) <= 4 + 60 + 8
    assert publisher.wait_published(PATIENCE)


def test_two_instances_with_different_offers_do_not_race(server, publish):
    other = (counter_slice(2), device_slice(0, memory=1), device_slice(1, memory=1))
    first, second = offers = publish(node_slices(2)), publish(other)
    assert server.wait(lambda: "somebody undoes our writes" in {publisher.status.message for publisher in offers})
    # Two first publications and what each may answer at once; what collides is written again.
    assert server.count(is_write) <= 2 * (3 + 60) * 2
    second.stop(PATIENCE)

    def memory():
        devices = [item["spec"]["devices"][0] for item in server.all("resourceslices")[1:]]
        return {device["capacity"]["memory"]["value"] for device in devices}

    # The first may have been content a moment before the last write of the second came to be known to it.
    assert server.wait(lambda: memory() == {"80Gi"})
    assert first.wait_published(PATIENCE)


def test_a_store_that_cannot_be_written_at_all_is_contested(server, publish):
    publisher = publish(node_slices(), pace=Pace(backoff=Backoff(initial=3600, maximum=3600)))
    assert publisher.wait_published(PATIENCE)
    meddling(server, times=float("inf"))
    publisher.set_slices((counter_slice(3), *(device_slice(gpu, memory=5) for gpu in range(3))))
    assert server.wait(lambda: publisher.status.phase is Phase.FAILING)
    assert "is a second instance of the driver running" in publisher.status.message


def test_two_instances_with_the_same_offer_agree(server, publish):
    first, second = publish(node_slices()), publish(node_slices())
    assert first.wait_published(PATIENCE)
    assert second.wait_published(PATIENCE)
    settled(server, first)
    settled(server, second)
    assert names(server) == OWN[:4]
    assert generations(server) == {1}


def test_stop_before_anything_leaves_nothing(server, publish):
    publisher = publish()
    publisher.stop(PATIENCE)
    assert names(server) == []
    assert not publisher.wait_published(0)


def test_a_server_that_is_down_at_the_start_is_waited_for(server, publish):
    server.fail(Fault(reset=True), times=12)
    publisher = publish(node_slices())
    assert publisher.wait_published(PATIENCE)
    assert "UnreachableError" in publisher._meter.failures


def test_the_newest_status_is_told_last_however_slow_a_teller_is(server, publish):
    told, entered, leave = [], threading.Event(), threading.Event()

    def note(status):
        if status.phase is Phase.PENDING and not entered.is_set():
            entered.set()
            leave.wait(PATIENCE)
        told.append(status)

    publisher = publish(on_status=note)
    offering = threading.Thread(target=publisher.set_slices, args=(node_slices(),))
    offering.start()
    assert entered.wait(PATIENCE)
    # What the slow teller keeps from being noticed is asked for here.
    publisher.mark_dirty("test")
    assert publisher.wait_published(PATIENCE)
    leave.set()
    offering.join(PATIENCE)
    assert server.wait(lambda: [status.phase for status in told] == [Phase.PENDING, Phase.PUBLISHED])
    assert told[-1] == publisher.status


def test_a_status_is_told_once(server, publish):
    told = []
    publisher = publish(node_slices(), on_status=told.append)
    assert publisher.wait_published(PATIENCE)
    for _ in range(3):
        settled(server, publisher)
    assert [status.phase for status in told] == [Phase.PENDING, Phase.PUBLISHED]


def test_it_is_alive_from_the_start_to_the_stop(publish):
    publisher = publish()
    assert publisher.alive
    publisher.stop(PATIENCE)
    assert not publisher.alive


class Hanging:
    """A thread that does not end; its waiting costs time of the clock."""

    def __init__(self, clock, waits):
        self.clock, self.waits, self.ident = clock, waits, 1

    def join(self, timeout):
        self.waits.append(timeout)
        self.clock.leap += timeout

    def is_alive(self):
        return True


def test_all_threads_have_one_time_to_end_in(publish):
    class Still:
        leap = 0.0

        def __call__(self):
            return self.leap

    clock, waits, ended = Still(), [], threading.Event()
    publisher = publish()
    own, reflector = publisher._thread, publisher._reflector._thread
    publisher._thread = publisher._reflector._thread = Hanging(clock, waits)
    publisher._pace = Pace(clock=clock)
    publisher._reflector._watch = type("Watch", (), {"abort": lambda _self: ended.set()})()
    publisher.stop(5.0)
    assert waits == [5.0, 0.0]
    assert ended.is_set()
    publisher._thread, publisher._reflector._thread = own, reflector
