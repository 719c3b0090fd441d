import itertools
import threading

import pytest
from doubles.apiserver import PATIENCE, Fault

from dradriver.kube import (
    RESOURCE_SLICES,
    Backoff,
    ForbiddenError,
    GoneError,
    Pace,
    Reflector,
    Selector,
    Store,
    UnreachableError,
)

QUICK = Pace(backoff=Backoff(initial=0.01, maximum=0.05))


def thing(name, node="a"):
    return {"metadata": {"name": name}, "spec": {"nodeName": node}}


def is_list(request):
    return request.method == "GET" and not request.is_watch


def is_watch(request):
    return request.is_watch


class Follower:
    """A reflector on its thread, with the keys it announced."""

    def __init__(self, client, **options):
        self.store = Store()
        self.keys = []
        self.changed = threading.Condition()
        self.reflector = Reflector(
            client, RESOURCE_SLICES, self.store, on_change=self.note, **{"pace": QUICK, **options}
        )

    def note(self, key):
        with self.changed:
            self.keys.append(key)
            self.changed.notify_all()

    def wait(self, condition):
        with self.changed:
            return self.changed.wait_for(lambda: condition(self.store.snapshot()), PATIENCE)


def rests(follower):
    """Seconds of each rest, none of which is taken."""
    seconds = []
    follower.reflector._wait = lambda delay, **_: seconds.append(delay)
    return seconds


@pytest.fixture
def follow(client):
    made = []

    def start(**options):
        follower = Follower(client, **options)
        made.append(follower)
        follower.reflector.start()
        return follower

    yield start
    for follower in made:
        assert follower.reflector.stop(PATIENCE)


def test_lists_then_follows(server, follow):
    server.put("resourceslices", thing("first"))
    follower = follow()
    assert follower.reflector.wait_synced(PATIENCE)
    assert follower.reflector.has_synced
    server.put("resourceslices", thing("second"))
    assert follower.wait(lambda known: set(known) == {"first", "second"})
    server.edit("resourceslices", "second", lambda item: item.update(more=1))
    assert follower.wait(lambda known: known["second"].get("more") == 1)
    server.remove("resourceslices", "first")
    assert follower.wait(lambda known: set(known) == {"second"})
    assert follower.keys == ["", "second", "second", "first"]
    assert server.count(is_list) == 1


def test_only_what_was_selected(server, follow):
    follower = follow(selector=Selector(fields="spec.nodeName=a"))
    assert follower.reflector.wait_synced(PATIENCE)
    server.put("resourceslices", thing("other", node="b"))
    server.put("resourceslices", thing("mine"))
    assert follower.wait(lambda known: set(known) == {"mine"})


def test_list_may_be_served_from_the_cache(server, follow):
    follow().reflector.wait_synced(PATIENCE)
    assert server.requests[0].query["resourceVersion"] == "0"


def test_a_stream_that_ends_is_continued_where_it_was(server, follow):
    follower = follow()
    assert server.wait(lambda: server.count(is_watch) == 1)
    server.put("resourceslices", thing("a"))
    assert follower.wait(lambda known: "a" in known)
    server.end_streams()
    assert server.wait(lambda: server.count(is_watch) == 2)
    assert server.requests[-1].query["resourceVersion"] == str(server.version)
    assert server.count(is_list) == 1


def test_a_bookmark_moves_the_position(server, follow):
    follow()
    assert server.wait(lambda: server.count(is_watch) == 1)
    server.put("nodes", {"metadata": {"name": "elsewhere"}})
    server.bookmark()
    server.end_streams()
    assert server.wait(lambda: server.count(is_watch) == 2)
    assert server.requests[-1].query["resourceVersion"] == str(server.version)


@pytest.mark.parametrize("fault", [Fault(status=410, reason="Expired"), Fault(stream_status=410, reason="Expired")])
def test_an_expired_position_means_list_again(server, follow, fault):
    server.fail(fault, when=is_watch)
    follower = follow()
    assert server.wait(lambda: server.count(is_watch) == 2)
    assert server.count(is_list) == 2
    server.put("resourceslices", thing("a"))
    assert follower.wait(lambda known: "a" in known)


def test_what_vanished_while_nobody_watched_is_removed(server, follow):
    server.put("resourceslices", thing("a"))
    follower = follow()
    assert follower.wait(lambda known: "a" in known)
    assert server.wait(lambda: server.count(is_watch) == 1)
    server.fail(Fault(status=503), when=is_watch, times=2)
    with server.changed:
        server.end_streams()
        server.remove("resourceslices", "a")
        server.compact()
    assert follower.wait(lambda known: not known)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500),
        Fault(status=403, reason="Forbidden"),
        Fault(stream_status=410),
        Fault(stream_status=500),
        Fault(stream_ends=True),
        Fault(reset=True),
        Fault(status=429, headers={"Retry-After": "0"}),
    ],
    ids=str,
)
def test_a_server_in_trouble_is_not_asked_in_a_tight_loop(server, client, fault):
    """Rounds are counted against the delays they earned, on a clock that does not move."""
    server.fail(fault, when=is_watch, times=float("inf"))
    follower = Follower(client, pace=Pace(clock=lambda: 0.0, chance=lambda: 0.0))
    waits = rests(follower)
    follower.reflector.run(rounds=8)
    expired = fault.stream_status == 410
    slowest = 10 if fault.reset else 30
    assert waits == [min(delay, slowest) for delay in (0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30)][1 if expired else 0 :]
    assert server.count(is_watch) <= 16


def test_a_refused_connection_backs_off(server, client):
    server.__exit__()
    follower = Follower(client, pace=Pace(chance=lambda: 0.0))
    waits = rests(follower)
    follower.reflector.run(rounds=3)
    assert waits == [0.8, 1.6, 3.2]


def test_retry_after_is_obeyed(server, client):
    server.fail(Fault(status=429, headers={"Retry-After": "120"}))
    follower = Follower(client, pace=Pace(chance=lambda: 0.0))
    waits = rests(follower)
    follower.reflector.run(rounds=1)
    assert waits == [120]


def test_a_healthy_stream_resets_the_backoff(server, client):
    ticks = itertools.count(step=10)
    server.fail(Fault(stream_ends=True), when=is_watch, times=float("inf"))
    follower = Follower(client, pace=Pace(clock=lambda: float(next(ticks))))
    waits = rests(follower)
    follower.reflector.run(rounds=5)
    assert waits == []


def test_a_position_that_never_works_is_given_up(server, client):
    server.fail(Fault(status=504, reason="Timeout"), when=is_watch, times=3)
    follower = Follower(client, pace=Pace(clock=lambda: 0.0))
    rests(follower)
    server.fail(Fault(stream_ends=True), when=is_watch)
    follower.reflector.run(rounds=4)
    assert server.count(is_list) == 2


def test_a_lagging_server_is_asked_for_the_newest(server, client):
    server.lag()
    newer = server.put("resourceslices", thing("new"))
    follower = Follower(client)
    follower.store.put(newer, watched=True)
    server.fail(Fault(stream_ends=True), when=is_watch)
    follower.reflector.round()
    assert [request.query.get("resourceVersion") for request in server.requests if is_list(request)] == ["0", None]
    assert set(follower.store.snapshot()) == {"new"}


def test_a_silent_connection_is_given_up(server, client):
    server.fail(Fault(stream_silent=True), when=is_watch)
    follower = Follower(client, pace=Pace(silence=0.2))
    with pytest.raises(UnreachableError):
        follower.reflector.round()


def test_rounds_raise_what_happened(server, client):
    follower = Follower(client)
    server.fail(Fault(status=403, reason="Forbidden"))
    with pytest.raises(ForbiddenError):
        follower.reflector.round()
    assert not follower.reflector.has_synced
    server.fail(Fault(stream_status=410, reason="Expired"), when=is_watch)
    with pytest.raises(GoneError):
        follower.reflector.round()
    assert follower.reflector.has_synced


def test_stop_ends_a_quiet_stream_at_once(server, follow):
    follower = follow()
    assert server.wait(lambda: server.count(is_watch) == 1)
    assert follower.reflector.stop(PATIENCE)


def test_stop_interrupts_a_long_backoff(server, follow):
    server.fail(Fault(status=500), times=float("inf"))
    follower = follow(pace=Pace(backoff=Backoff(initial=3600, maximum=3600)))
    assert server.wait(lambda: server.count() == 1)
    assert follower.reflector.stop(PATIENCE)


def returned(server, client, *faults, when=is_watch, rounds=None, **options):
    """How often a server that does these things, one at a request, is noticed to be back."""
    returns = []
    for fault in faults:
        server.fail(fault, when=when)
    follower = Follower(client, on_return=lambda: returns.append(server.count()), **options)
    rests(follower)
    server.fail(Fault(stream_ends=True), when=is_watch, times=float("inf"))
    follower.reflector.run(rounds=len(faults) + 1 if rounds is None else rounds)
    return len(returns)


@pytest.mark.parametrize("fault", [Fault(status=500), Fault(status=403)], ids=str)
def test_a_server_that_answers_again_is_noticed_once(server, client, fault):
    assert returned(server, client, *[fault] * 2) == 1


def test_a_server_that_can_be_reached_again_is_noticed(server, client):
    assert returned(server, client, *[Fault(reset=True)] * 4, when=is_list, rounds=3) == 1


@pytest.mark.parametrize("fault", [Fault(stream_ends=True), Fault(stream_status=500)], ids=str)
def test_a_stream_that_ends_before_its_time_is_a_server_that_goes(server, client, fault):
    assert returned(server, client, *[fault] * 2) == 2


def test_a_stream_that_ends_in_time_is_daily_life(server, client):
    assert returned(server, client, Fault(stream_ends=True), pace=Pace(shortest=1, longest=1)) == 0


def test_an_expired_position_is_daily_life(server, client):
    assert returned(server, client, Fault(stream_status=410), Fault(status=410, reason="Expired")) == 0


def test_the_beginning_is_no_return(server, client):
    assert returned(server, client) == 0


def test_waking_ends_a_rest_after_no_answer(server, follow):
    server.fail(Fault(status=503), times=2)
    follower = follow(pace=Pace(backoff=Backoff(initial=3600, maximum=3600)))
    assert server.wait(lambda: server.count() == 1)
    assert server.wait(lambda: bool(follower.reflector.wake() or follower.reflector.has_synced))
    assert server.count(is_list) == 3


@pytest.mark.parametrize(
    "fault", [Fault(status=429, headers={"Retry-After": "3600"}), Fault(status=403), Fault(stream_ends=True)], ids=str
)
def test_waking_does_not_shorten_what_an_answer_asks_for(server, client, fault):
    server.fail(fault, times=float("inf"), when=is_watch)
    follower = Follower(client)
    rests = []
    follower.reflector._wait = lambda _delay, *, wakeable: rests.append(wakeable)
    follower.reflector.run(rounds=2)
    assert rests == [False, False]


def test_waking_one_that_does_not_rest_is_harmless(server, follow):
    follower = follow()
    assert server.wait(lambda: server.count(is_watch) == 1)
    follower.reflector.wake()
    server.put("resourceslices", thing("a"))
    assert follower.wait(lambda known: "a" in known)
    assert server.count() == 2


def test_stop_before_start_is_harmless(client):
    assert Follower(client).reflector.stop()


def test_a_defect_does_not_end_the_thread(server, follow):
    server.put("resourceslices", thing("a"))
    server.fail(Fault(status=200, raw=b'{"items":[{"no":"metadata"}],"metadata":{"resourceVersion":"1"}}'))
    follower = follow()
    assert follower.wait(lambda known: "a" in known)


def test_lengths_of_watches_are_spread():
    assert Pace(chance=lambda: 0.0).watch_seconds() == 240
    assert Pace(chance=lambda: 0.5).watch_seconds() == 360


def names_only(item):
    metadata = {key: item["metadata"][key] for key in ("name", "uid", "resourceVersion")}
    return {"metadata": metadata, "node": item["spec"]["nodeName"]}


def test_with_a_projection_only_that_is_kept(server, follow):
    server.put("resourceslices", thing("first"))
    follower = follow(project=names_only)
    assert follower.wait(lambda items: "first" in items)
    server.put("resourceslices", thing("second", node="b"))
    assert follower.wait(lambda items: "second" in items)
    items = follower.store.snapshot()
    assert {name: set(item) for name, item in items.items()} == {
        "first": {"metadata", "node"},
        "second": {"metadata", "node"},
    }
    assert items["second"]["node"] == "b"
    server.remove("resourceslices", "first")
    assert follower.wait(lambda items: "first" not in items)


def test_with_a_projection_a_list_is_read_page_by_page_from_the_newest_state(server, client):
    for index in range(1100):
        server.put("resourceslices", thing(f"t{index}"))
    store = Store()
    reflector = Reflector(client, RESOURCE_SLICES, store, project=names_only, pace=QUICK)
    reflector._list()
    lists = [request for request in server.requests if is_list(request)]
    assert [request.query.get("limit") for request in lists] == ["100"] * 11
    assert all("resourceVersion" not in request.query for request in lists)
    assert len(store.snapshot()) == 1100
