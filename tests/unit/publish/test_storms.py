"""An API server that does nothing but wrong for a while: how often it is asked, and what is there in the end.

Time is not measured but taken into account: however long a storm lasted on this machine, no more requests may have
come than the delays of the backoff leave room for.
"""

import itertools
import threading
import time
from dataclasses import dataclass

import pytest
from doubles.apiserver import PATIENCE, Fault
from doubles.offers import OWN, Clock, generations, names, settled
from doubles.pools import NODE, counter_slice, device_slice, node_slices, sick
from doubles.scheduler import moments, view

from dradriver.kube import Backoff, Client, Pace
from dradriver.publish import Phase
from dradriver.publish.publisher import _Cause

PACE = Pace(backoff=Backoff(initial=0.1, maximum=0.4), silence=0.3, chance=lambda: 0.0)
FAILURES = 6
"""So many failed attempts of the publisher make a storm, or so many watches."""

PASS = 7
"""Requests of one attempt of the publisher at most: a list, the node, a write and a look at what was in its way; a GET
whose connection breaks is sent twice."""

ROUND = 6
"""Requests of one attempt of the watch at most: two lists and the watch, each sent twice."""


@dataclass(frozen=True, kw_only=True)
class Storm:
    """What goes wrong, and for whom."""

    fault: Fault
    writes: bool = True
    reads: bool = True
    watches: bool = True

    def hits(self, request):
        if request.is_watch:
            return self.watches
        return self.writes if request.is_write else self.reads


WRITES = {"reads": False, "watches": False}
WATCHES = {"reads": False, "writes": False}
REFUSED = {
    "500": Storm(fault=Fault(status=500)),
    "503 from a proxy": Storm(fault=Fault(status=503, raw=b"<html>no upstream</html>")),
    "500 for writes": Storm(fault=Fault(status=500), **WRITES),
    "nonsense": Storm(fault=Fault(status=200, raw=b"<html>hello</html>")),
    "429": Storm(fault=Fault(status=429, headers={"Retry-After": "0"})),
    "401": Storm(fault=Fault(status=401, reason="Unauthorized")),
    "reset": Storm(fault=Fault(reset=True)),
    "time-out": Storm(fault=Fault(silent=True)),
    "time-out of writes": Storm(fault=Fault(silent=True), **WRITES),
    "409 for writes": Storm(fault=Fault(status=409, reason="Conflict"), **WRITES),
    "403 for writes": Storm(fault=Fault(status=403, reason="Forbidden"), **WRITES),
    "a webhook": Storm(
        fault=Fault(status=400, message='admission webhook "w.example.com" denied the request: not today'), **WRITES
    ),
}
STREAMS = {
    "410": Storm(fault=Fault(status=410, reason="Expired"), **WATCHES),
    "410 in the stream": Storm(fault=Fault(stream_status=410, reason="Expired"), **WATCHES),
    "500 in the stream": Storm(fault=Fault(stream_status=500), **WATCHES),
    "streams that end": Storm(fault=Fault(stream_ends=True), **WATCHES),
    "streams that say nothing": Storm(fault=Fault(stream_silent=True), **WATCHES),
    "watches that are not answered": Storm(fault=Fault(silent=True), **WATCHES),
}
LOST = {
    "answers to writes lost": Storm(fault=Fault(late=True), **WRITES),
    "answers cut off": Storm(fault=Fault(truncated=True), watches=False),
}


def is_watch(request):
    return request.is_watch


def table(storms):
    return pytest.mark.parametrize("storm", storms.values(), ids=storms.keys())


@pytest.fixture
def impatient(client):
    """As the client, but it waits a fifth of a second for an answer."""
    return Client(client._transport, timeout=0.2)


@pytest.fixture
def publisher(server, impatient, publish):
    """One that has published three GPUs and follows them."""
    made = publish(node_slices(), client=impatient, pace=PACE)
    assert made.wait_published(PATIENCE)
    assert server.wait(lambda: server.count(is_watch) == 1)
    yield made
    made.stop(PATIENCE)
    threads = {thread.name for thread in threading.enumerate()}
    assert not threads & {"publisher", "reflector-resourceslices"}
    look_back(server)


def look_back(server):
    """Through the history: what claims may hold was in every complete pool, and the generation only grew."""
    slices = [(kind, item) for _, plural, kind, item in server.history if plural == "resourceslices"]
    seen = [(view(moment.values(), NODE), moment) for moment in moments(slices)]
    complete = [(pool, moment) for pool, moment in seen if pool is not None]
    held = {name: used for name, used in complete[0][0].devices.items() if "gpu-0" in name}
    for pool, _ in complete:
        assert pool.problems == ()
        assert pool.lacks(held) == set()
    generations = [max(item["spec"]["pool"]["generation"] for item in moment.values()) for _, moment in complete]
    assert generations == sorted(generations)


def attempts(seconds):
    """How many attempts have room in that time if all fail."""
    delays = (PACE.backoff.delay(number, chance=PACE.chance) for number in itertools.count(1))
    return 1 + sum(1 for _ in itertools.takewhile(lambda due: due <= seconds, itertools.accumulate(delays)))


def weathered(server, publisher, storm, *, until, meanwhile=lambda: None):
    """Let it rage; returns how many requests came and how many attempts there was time for."""
    before, began = server.count(), time.monotonic()
    server.fail(storm.fault, when=storm.hits, times=float("inf"))
    server.end_streams()
    meanwhile()
    assert server.wait(until)
    with server.changed:
        asked, room = server.count() - before, attempts(time.monotonic() - began)
        server.heal()
    return asked, room


OTHER = (counter_slice(2), device_slice(0, taints=(sick(),)), device_slice(1, size=4))


@table(REFUSED)
def test_a_server_that_refuses_everything_is_asked_slowly_and_gets_the_newest_offer(server, publisher, storm):
    meter = publisher._meter

    def meanwhile():
        server.remove("resourceslices", OWN[1])
        publisher.set_slices(OTHER)

    asked, room = weathered(
        server, publisher, storm, until=lambda: len(meter.failures) >= FAILURES, meanwhile=meanwhile
    )
    # One chain of attempts after the deletion, one after the offer, and one after a watch that came back.
    assert len(meter.failures) <= 3 * room
    assert asked <= len(meter.failures) * PASS + room * ROUND
    assert publisher.status.phase is Phase.FAILING
    assert publisher.status.message
    assert publisher.wait_published(PATIENCE)
    assert names(server) == OWN[:3]
    assert len(generations(server)) == 1
    assert publisher.status.slices == 3


@table(STREAMS)
def test_a_watch_that_fails_is_renewed_slowly_and_what_it_missed_is_found(server, publisher, storm):
    watches = server.count(is_watch)
    asked, room = weathered(
        server,
        publisher,
        storm,
        until=lambda: server.count(is_watch) >= watches + FAILURES,
        meanwhile=lambda: server.remove("resourceslices", OWN[1]),
    )
    # The stream that ended, and the first expired position, are renewed at once; and the slice is put back.
    assert room + 2 >= FAILURES
    assert asked <= (room + 2) * ROUND + PASS
    assert server.wait(lambda: names(server) == OWN[:4])
    server.edit("resourceslices", OWN[2], lambda item: item["spec"]["devices"].pop())
    assert server.wait(lambda: len(server.all("resourceslices")[2]["spec"]["devices"]) == 2)
    assert publisher.wait_published(PATIENCE)
    assert publisher._meter.failures == []


@table(LOST)
def test_writes_whose_fate_is_unknown_are_looked_up_and_not_repeated(server, publisher, storm):
    meter = publisher._meter
    asked, room = weathered(
        server,
        publisher,
        storm,
        until=lambda: len(meter.failures) >= 3 or publisher.published,
        meanwhile=lambda: publisher.set_slices(OTHER),
    )
    assert asked <= 2 * room * PASS + room * ROUND
    assert publisher.wait_published(PATIENCE)
    assert names(server) == OWN[:3]
    assert generations(server) == {2}


def test_a_webhook_that_changes_slices_is_told_and_not_fought(server, publisher):
    def change(item):
        for device in item["spec"].get("devices", []):
            device.setdefault("attributes", {})["example.com/zone"] = {"string": "a"}

    server.strip = change
    publisher.set_slices(OTHER)
    assert publisher.wait_published(PATIENCE)
    assert "does an admission webhook change resource slices?" in publisher.status.message
    before = len(server.writes)
    assert settled(server, publisher) == before
    for returns in (1, 2):
        server.end_streams()
        # It may be another server, without that webhook; so the two slices with devices are sent once more.
        assert server.wait(lambda returns=returns: len(server.writes) == before + 2 * returns)
        assert settled(server, publisher) == before + 2 * returns
    server.strip = lambda _item: None
    publisher.set_slices(node_slices())
    assert publisher.wait_published(PATIENCE)
    assert publisher.status.message == ""
    assert names(server) == OWN[:4]


def test_a_watch_that_hides_everything_is_made_up_for_by_comparing(server, publish, impatient):
    """Bookmarks come, events do not: nothing tells that from a quiet cluster."""
    clock = Clock()
    server.fail(Fault(stream_silent=True), when=is_watch, times=float("inf"))
    publisher = publish(node_slices(), client=impatient, pace=Pace(backoff=PACE.backoff, clock=clock))
    assert publisher.wait_published(PATIENCE)
    assert server.wait(lambda: server.count(is_watch) == 1)
    server.remove("resourceslices", OWN[1])
    clock.leap = 700.0
    publisher._queue.add(_Cause.CHANGE)
    assert server.wait(lambda: names(server) == OWN[:4])
