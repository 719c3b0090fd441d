import threading

import pytest
from doubles.apiserver import PATIENCE, Fault
from support.bridging import bridge, device_class

from controller.api import BRIDGES
from controller.watching import Watcher
from controller.watching.watcher import Listener
from dradriver.kube import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, Backoff, Pace

NAME = "nvidia.com/gpu"


class Follower:
    """A watcher with what it announced."""

    def __init__(self, client):
        self.news = []
        self.returned = threading.Event()
        pace = Pace(backoff=Backoff(initial=0.01, maximum=0.05))
        self.waiting = []
        self.watcher = Watcher(
            client,
            on_change=self.news.append,
            on_return=self.returned.set,
            on_waiting=lambda: self.waiting.append(1),
            pace=pace,
        )


@pytest.fixture
def follower(server, client):
    made = Follower(client)
    made.watcher.start()
    assert server.wait(lambda: made.watcher.has_synced)
    yield made
    made.watcher.stop(PATIENCE)


def slice_of(name, *devices, driver="gpu.nvidia.com"):
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": name, "pool": pool, "devices": [{"name": each} for each in devices]}
    return {"metadata": {"name": name}, "spec": spec}


def anything(_kind):
    return True


def absorbed(server, watcher, condition):
    """Wait until something is true of what was taken in."""

    def is_true():
        watcher.absorb()
        return condition()

    return server.wait(is_true)


def test_what_changes_reaches_the_census_when_it_is_absorbed(server, follower):
    watcher, census = follower.watcher, follower.watcher.census
    server.put("resourceslices", slice_of("a", "gpu-0", "gpu-1"))
    assert server.wait(lambda: watcher._stores[RESOURCE_SLICES].get("a"))
    assert census.devices(anything).published == 0
    assert absorbed(server, watcher, lambda: census.devices(anything).published == 2)
    assert False in follower.news
    server.remove("resourceslices", "a")
    assert absorbed(server, watcher, lambda: census.devices(anything).published == 0)


def test_slices_of_other_drivers_are_not_even_asked_for(server, follower):
    selectors = {r.query.get("fieldSelector") for r in server.requests if r.path.endswith("/resourceslices")}
    assert selectors == {"spec.driver=gpu.nvidia.com"}


def test_a_list_takes_away_what_it_does_not_have(server, follower):
    watcher, census = follower.watcher, follower.watcher.census
    server.put("resourceslices", slice_of("a", "gpu-0"))
    assert absorbed(server, watcher, lambda: census.devices(anything).published == 1)
    server.fail(Fault(status=503), times=40)
    server.end_streams()
    server.remove("resourceslices", "a")
    server.put("resourceslices", slice_of("b", "gpu-0", "gpu-1", "gpu-2"))
    server.compact()
    assert absorbed(server, watcher, lambda: census.devices(anything).published == 3)
    assert follower.returned.wait(PATIENCE)


def pod_of(name, **limits):
    container = {"name": "app", "resources": {"limits": {"nvidia.com/gpu": "1"} if limits.get("gpu") else {}}}
    spec = {"containers": [container], "nodeName": ""}
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": spec, "status": {"phase": "Pending"}}


def test_pods_that_wait_and_quotas_are_told_apart_from_what_is_counted(server, follower):
    watcher = follower.watcher
    watcher.absorb()
    follower.news.clear()
    server.put("pods", pod_of("a", gpu=True))
    server.put("pods", pod_of("b"))
    hard = {"status": {"hard": {"requests.nvidia.com/gpu": "1"}}}
    server.put("resourcequotas", {"metadata": {"name": "q", "namespace": "ns"}, **hard})
    server.put("resourcequotas", {"metadata": {"name": "empty", "namespace": "ns"}})
    assert server.wait(lambda: len(watcher.pods()) == len(watcher.quotas()) == 1)
    assert (watcher.pods()[0].name, watcher.quotas()[0].name) == ("a", "q")
    assert server.wait(lambda: follower.waiting)
    assert follower.news == []
    assert not watcher.absorb()


def test_only_pods_without_a_node_are_asked_for(server, follower):
    assert server.wait(lambda: any(r.path.endswith("/pods") for r in server.requests))
    selectors = {r.query.get("fieldSelector") for r in server.requests if r.path.endswith("/pods")}
    assert selectors == {"spec.nodeName=,status.phase=Pending"}


def test_without_the_right_to_see_pods_the_rest_works(server, client):
    server.fail(Fault(status=403, reason="Forbidden"), when=lambda r: r.path.endswith("/pods"), times=float("inf"))
    made = Follower(client)
    made.watcher.start()
    assert server.wait(lambda: made.watcher.has_synced and "pods" in made.watcher.trouble())
    made.watcher.stop(PATIENCE)


def test_who_carried_a_name_for_however_short_a_time_is_known_once(server, follower):
    watcher = follower.watcher
    server.put("deviceclasses", device_class("short", NAME))
    server.remove("deviceclasses", "short")
    server.put("deviceclasses", device_class("long", NAME))
    assert server.wait(lambda: set(watcher.classes()) == {"long"})
    assert watcher.take_carriers(NAME) == {"short", "long"}
    assert watcher.take_carriers(NAME) == frozenset()


def test_answers_to_our_own_writes_are_known_before_the_watch_tells(server, follower):
    watcher = follower.watcher
    item = device_class("ours", NAME)
    item["metadata"] |= {"uid": "u", "resourceVersion": "900"}
    before = len(follower.news)
    assert watcher.note_class(item).extended_name == NAME
    assert set(watcher.classes()) == {"ours"}
    assert follower.news[before:] == [True]
    watcher.note_class(item)
    assert follower.news[before:] == [True]
    watcher.forget(DEVICE_CLASSES, "ours", "u")
    assert watcher.classes() == {}


def test_bridges_are_there_as_objects(server, follower):
    server.put(BRIDGES.plural, bridge("b", NAME))
    assert server.wait(lambda: [item["metadata"]["name"] for item in follower.watcher.bridges()] == ["b"])
    assert follower.news[-1] is True


def test_threads_that_end_are_named(follower):
    assert follower.watcher.dead() == []
    follower.watcher.stop(PATIENCE)
    assert set(follower.watcher.dead()) == {
        "extendedresourcebridges",
        "deviceclasses",
        "resourceslices",
        "resourceclaims",
        "nodes",
        "pods",
        "resourcequotas",
    }


def test_a_listener_has_more_kept_and_is_told_of_every_key(server, client):
    made, keys = Follower(client), []
    listener = Listener(project=lambda item: len(item["spec"]["devices"]), on_change=keys.append)
    made.watcher.listen(RESOURCE_SLICES, listener)
    server.put("resourceslices", slice_of("a", "gpu-0", "gpu-1"))
    made.watcher.start()
    try:
        assert server.wait(lambda: made.watcher.has_synced)
        server.put("resourceslices", slice_of("b", "gpu-0"))
        assert server.wait(lambda: {key: item["more"] for key, item in made.watcher.items(RESOURCE_SLICES).items()})
        assert server.wait(lambda: keys == ["", "b"])
        assert made.watcher.item(RESOURCE_SLICES, "b")["more"] == 1
        assert made.watcher.item(RESOURCE_SLICES, "a")["seen"].pool == "a"
        assert made.watcher.item(RESOURCE_SLICES, "c") is None
    finally:
        made.watcher.stop(PATIENCE)


def test_nothing_more_is_kept_for_nobody(server, follower):
    server.put("resourceslices", slice_of("a", "gpu-0"))
    assert server.wait(lambda: follower.watcher.item(RESOURCE_SLICES, "a"))
    assert set(follower.watcher.item(RESOURCE_SLICES, "a")) == {"metadata", "seen"}


def test_news_of_a_process_that_does_not_lead_do_not_pile_up(server, follower):
    """Nobody absorbs them there, for months."""
    follower.watcher.absorb()
    before = len(follower.news)
    for number in range(50):
        server.put("resourceslices", slice_of("a", f"gpu-{number}"))
    assert server.wait(lambda: len(follower.news) >= before + 50)
    assert len([each for each in follower.watcher._news.take() if each == (RESOURCE_SLICES, "a")]) == 1


def test_claims_of_ever_new_names_are_folded_where_nobody_takes_them_in(server, follower):
    watcher = follower.watcher
    watcher._news._most = 10
    for number in range(40):
        name = f"claim-{number}"
        server.put("resourceclaims", {"metadata": {"name": name, "namespace": "ns"}, "spec": {"devices": {}}})
        server.remove("resourceclaims", name, "ns")
    server.put("resourceclaims", claim_of("left", "a-gpu"))
    assert server.wait(lambda: watcher.item(RESOURCE_CLAIMS, "ns/left"))
    assert len(watcher._news._keys[RESOURCE_CLAIMS]) == 1
    assert absorbed(server, watcher, lambda: watcher.census.users("a-gpu") == ("ns/left",))


def claim_of(name, class_name):
    requests = [{"name": "r", "exactly": {"deviceClassName": class_name}}]
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": {"devices": {"requests": requests}}}


def test_carriers_of_ever_new_names_are_not_all_remembered(follower):
    watcher = follower.watcher
    for number in range(3000):
        item = device_class("one", f"example.com/{number}")
        watcher.note_class(item | {"metadata": {"name": f"c{number % 2}", "uid": "u", "resourceVersion": "1"}})
    for number in range(3000):
        item = device_class("x", NAME)
        watcher.note_class(item | {"metadata": {"name": f"c{number}", "uid": "u", "resourceVersion": "1"}})
    assert len(watcher._carriers) <= 1000
    # That there were any is what matters.
    assert 0 < len(watcher.take_carriers(NAME)) <= 1000


class TestStatuses:
    """What we say of bridges is no news to us."""

    @pytest.fixture
    def known(self, server, follower):
        server.put(BRIDGES.plural, bridge("b", NAME))
        assert server.wait(follower.watcher.bridges)
        follower.watcher.absorb()
        follower.news.clear()
        return follower

    @staticmethod
    def say(server, text):
        return server.edit(BRIDGES.plural, "b", lambda item: item.update(status={"deviceClassName": text}))

    def test_an_answer_that_comes_first_wakes_nobody(self, server, known):
        item = bridge("b", NAME) | {"status": {"deviceClassName": "x"}}
        uid = known.watcher.bridges()[0]["metadata"]["uid"]
        item["metadata"] |= {"uid": uid, "resourceVersion": "900"}
        known.watcher.note_status(item)
        assert known.watcher.bridges()[0]["status"] == {"deviceClassName": "x"}
        assert known.news == []
        assert not known.watcher.absorb()

    def test_a_watch_that_comes_first_wakes_no_sooner_than_what_there_is_much_of(self, server, known):
        answer = self.say(server, "x")
        assert server.wait(lambda: known.news)
        known.watcher.note_status(answer)
        assert known.news == [False]
        assert not known.watcher.absorb()

    def test_what_somebody_else_says_of_a_bridge_is_looked_at(self, server, known):
        ours = self.say(server, "x")
        assert server.wait(lambda: known.news)
        known.watcher.note_status(ours)
        self.say(server, "y")
        assert absorbed(server, known.watcher, lambda: known.watcher.bridges()[0]["status"]["deviceClassName"] == "y")

    @pytest.mark.parametrize(
        "change",
        [
            lambda item: item["spec"].update(mode="Disabled"),
            lambda item: item["metadata"].update(annotations={"dradriver.dev/force-delete": "true"}),
            lambda item: item["metadata"].update(finalizers=["f"]),
            lambda item: item["metadata"].update(labels={"l": "x"}),
        ],
        ids=["spec", "annotation", "finalizer", "label"],
    )
    def test_everything_else_wakes_at_once(self, server, known, change):
        server.edit(BRIDGES.plural, "b", change)
        assert server.wait(lambda: known.news)
        assert known.news == [True]
        assert known.watcher.absorb()

    def test_its_end_wakes_at_once(self, server, known):
        server.remove(BRIDGES.plural, "b")
        assert server.wait(lambda: known.news)
        assert known.news == [True]
        assert known.watcher.absorb()
        assert (known.watcher._wants, known.watcher._statuses) == ({}, {})
