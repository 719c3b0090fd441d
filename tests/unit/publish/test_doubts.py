"""When the API server may have become another one: what is asked anew, what is sent anew, and how often."""

import pytest
from doubles.apiserver import PATIENCE, Fault
from doubles.offers import OWN, QUICK, Clock, is_write, names, settled
from doubles.pools import device_slice, node_slices, sick
from doubles.versions import Kubernetes

from dradriver.kube import Backoff, Pace
from dradriver.publish import Phase, probe_features
from dradriver.publish.publisher import _Cause
from dradriver.resource import Device, Layout, Slice

SLOW = Pace(backoff=Backoff(initial=3600, maximum=3600), healthy=0)
"""What is not brought about by something else does not happen within a test."""

TOGETHER = (
    Slice(counter_sets=node_slices(1)[0].counter_sets, devices=device_slice(0).devices),
)  # fmt: skip


def is_watch(request):
    return request.is_watch


def watched(server, publisher, number):
    """Whether that many watches have been opened, and the publisher has dealt with it."""
    return server.wait(lambda: server.count(is_watch) == number) and settled(server, publisher)


def test_a_server_that_ends_our_watch_and_is_back_is_a_doubt(server, publish):
    doubts = []
    publisher = publish(node_slices(), on_doubt=lambda: doubts.append(1), pace=SLOW)
    assert publisher.wait_published(PATIENCE)
    assert watched(server, publisher, 1)
    assert doubts == []
    for number in (1, 2):
        server.end_streams()
        assert server.wait(lambda number=number: len(doubts) == number)
        assert watched(server, publisher, number + 1) == 4


def test_a_server_that_was_down_at_the_start_is_a_doubt(server, publish):
    doubts = []
    server.fail(Fault(reset=True), times=8)
    publisher = publish(node_slices(), on_doubt=lambda: doubts.append(1))
    assert publisher.wait_published(PATIENCE)
    assert server.wait(lambda: len(doubts) == 1)


def test_daily_life_is_no_doubt(server, publish):
    doubts = []
    publisher = publish(node_slices(), on_doubt=lambda: doubts.append(1), pace=Pace(shortest=1, longest=1, healthy=0))
    assert publisher.wait_published(PATIENCE)
    for number in (2, 3):
        server.compact()
        assert server.wait(lambda number=number: server.count(is_watch) >= number)
        server.remove("resourceslices", OWN[1])
        settled(server, publisher)
    server.fail(Fault(status=409, reason="Conflict"), when=is_write)
    publisher.set_slices(node_slices(2))
    assert publisher.wait_published(PATIENCE)
    assert doubts == []


def test_a_refused_write_is_one_doubt_however_often_it_is_tried(server, publish):
    doubts = []
    server.strip = Kubernetes(minor=34)
    publisher = publish(node_slices(), on_doubt=lambda: doubts.append(1))
    assert server.wait(lambda: len(server.writes) >= 5)
    assert publisher.status.phase is Phase.FAILING
    assert doubts == [1]
    publisher.set_slices(node_slices(2))
    assert server.wait(lambda: len(doubts) == 2)


def test_who_may_not_write_is_not_in_doubt(server, publish):
    doubts = []
    server.fail(Fault(status=403, reason="Forbidden"), when=is_write, times=5)
    publisher = publish(node_slices(), on_doubt=lambda: doubts.append(1))
    assert publisher.wait_published(PATIENCE)
    assert doubts == []


def offering(client, publish):
    """A publisher whose owner asks and offers anew at each doubt, as the runtime does on a thread of its own."""
    made, seen = [], []

    def offer():
        features = probe_features(client, "gpu.example.com", "node-a")
        seen.append(features.layout)
        whole = (Slice(devices=(Device(name="gpu-0"),)),)
        made[0].set_slices({Layout.APART: node_slices(1), Layout.TOGETHER: TOGETHER, None: whole}[features.layout])

    made.append(publish(on_doubt=offer, pace=Pace(backoff=QUICK.backoff, healthy=0)))
    offer()
    return made[0], seen


@pytest.mark.parametrize(
    ("before", "after", "slices"),
    [
        (Kubernetes(minor=34), Kubernetes(minor=36), 2),
        (Kubernetes(minor=36), Kubernetes(minor=34), 1),
        (Kubernetes(minor=35, partitions=False, taints=False), Kubernetes(minor=36), 2),
    ],
    ids=["upgrade", "downgrade", "gates switched on"],
)
def test_the_layout_follows_the_server_without_a_restart(server, client, publish, before, after, slices):
    server.strip = before
    publisher, seen = offering(client, publish)
    assert publisher.wait_published(PATIENCE)
    assert server.wait(lambda: server.count(is_watch) == 1)
    server.strip = after
    server.end_streams()
    assert server.wait(lambda: len(seen) == 2)
    assert publisher.wait_published(PATIENCE)
    assert names(server) == OWN[:slices]
    assert seen[0] is not seen[1]


def test_gates_that_are_switched_off_under_an_offer_end_in_whole_gpus(server, client, publish):
    """The watch has told nothing: the write itself finds it out."""
    publisher, seen = offering(client, publish)
    assert publisher.wait_published(PATIENCE)
    server.strip = Kubernetes(minor=35, partitions=False, taints=False)
    publisher.set_slices(node_slices(2))
    assert server.wait(lambda: seen == [Layout.APART, None])
    assert publisher.wait_published(PATIENCE)
    (left,) = server.all("resourceslices")
    assert [device["name"] for device in left["spec"]["devices"]] == ["gpu-0"]


def test_a_server_that_answers_one_thing_and_stores_another_is_not_asked_in_a_loop(server, client, publish):
    """As several API servers of different versions behind one address do."""

    def strip(item):
        if server.requests[-1].is_write:
            Kubernetes(minor=36, partitions=False)(item)

    server.strip = strip
    publisher, seen = offering(client, publish)
    # Once at the start and then for each of the five doubts that may come at once.
    assert server.wait(lambda: len(seen) == 6)
    assert server.wait(lambda: publisher.status.phase is Phase.WITHDRAWN)
    settled_at = len(server.writes)
    assert settled_at <= 6 * 2
    assert names(server) == []


def test_what_was_left_out_is_sent_again_when_the_server_is_back(server, publish):
    server.strip = Kubernetes(minor=36, taints=False)
    doubts = []
    publisher = publish((device_slice(0, taints=(sick(),)),), on_doubt=lambda: doubts.append(1), pace=SLOW)
    assert publisher.wait_published(PATIENCE)
    assert "left out taints" in publisher.status.message
    assert server.wait(lambda: len(doubts) == 1)
    assert watched(server, publisher, 1) == 1
    server.end_streams()
    assert server.wait(lambda: len(doubts) == 2)
    assert watched(server, publisher, 2) == 2
    server.strip = lambda _item: None
    server.end_streams()
    assert server.wait(lambda: len(server.writes) == 3)
    assert publisher.wait_published(PATIENCE)
    assert server.wait(lambda: publisher.status.message == "")
    (item,) = server.all("resourceslices")
    assert all(device["taints"] for device in item["spec"]["devices"])


def test_a_server_that_is_back_is_written_to_at_once(server, publish):
    """Whatever the backoff has grown to meanwhile."""
    publisher = publish(node_slices(), pace=SLOW)
    assert publisher.wait_published(PATIENCE)
    assert server.wait(lambda: server.count(is_watch) == 1)
    server.fail(Fault(status=500), when=is_write)
    publisher.set_slices(node_slices(2))
    assert server.wait(lambda: publisher.status.phase is Phase.FAILING)
    server.end_streams()
    assert publisher.wait_published(PATIENCE)
    assert names(server) == OWN[:3]


def test_a_watch_that_rests_is_woken_by_a_publisher_that_gets_through(server, publish):
    server.fail(Fault(status=503), times=float("inf"))
    publisher = publish(node_slices(), pace=SLOW)
    assert server.wait(lambda: server.count(lambda request: request.query.get("resourceVersion") == "0") == 1)
    assert server.wait(lambda: publisher.status.phase is Phase.FAILING)
    server.heal()
    publisher.mark_dirty("the kubelet has registered us")
    assert publisher.wait_published(PATIENCE)
    assert server.wait(lambda: server.count(is_watch) == 1)
    server.remove("resourceslices", OWN[1])
    assert server.wait(lambda: OWN[1] in names(server))


def test_what_the_server_asks_for_is_not_shortened_by_anything(server, publish):
    clock = Clock()
    server.fail(Fault(status=429, headers={"Retry-After": "60"}), when=is_write)
    publisher = publish(node_slices(), pace=Pace(backoff=QUICK.backoff, clock=clock, healthy=0))
    assert server.wait(lambda: publisher.status.phase is Phase.FAILING)
    assert server.wait(lambda: server.count(is_watch) == 1)
    seen = server.count()
    publisher.set_slices(node_slices(2))
    publisher.mark_dirty("the kubelet has registered us")
    server.end_streams()
    server.put("resourceslices", {"metadata": {"name": "x"}, "spec": {"driver": "d", "nodeName": "n"}})
    assert server.wait(lambda: server.count(is_watch) == 2)
    assert server.wait(lambda: publisher._queue._later and not publisher._queue._ready)
    assert server.count() == seen + 1
    assert len(server.writes) == 1
    clock.leap += 61
    publisher._queue.add(_Cause.CHANGE)
    assert publisher.wait_published(PATIENCE)
    assert names(server) == [*OWN[:3], "x"]
