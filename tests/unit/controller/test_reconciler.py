"""The worker on a small API server: what wakes it, what it does again, and when it ends."""

import threading

import pytest
from doubles.apiserver import PATIENCE, Fault
from support.bridging import bridge, device_class

from controller.acting import Actor, TakenError
from controller.api import BRIDGES, BaseKeeping, Mode
from controller.metrics import Metrics
from controller.reconciler import Reconciler, Wishes
from controller.watching import Watcher
from dradriver.kube import Backoff, KubeError, WorkQueue

NAME = "nvidia.com/gpu"
CLASS = "gpu.gpu.dradriver.dev"


class Working:
    """A reconciler with everything that is real behind it; the clock stands until a test moves it."""

    def __init__(self, client, **wishes):
        self.now, self.leads, self.answer, self.asked = 1000.0, True, "", 0
        self.lost = threading.Event()
        self.events, self.wakes, self.done = [], [], []
        self.queue = WorkQueue(backoff=Backoff(initial=0.02, maximum=0.05))
        self.watcher = Watcher(client, on_change=self._on_change, on_return=lambda: None)
        self.actor = Actor(client, self.watcher, may_act=lambda: self.leads, on_action=self.done.append)
        self.reconciler = Reconciler(
            self._ask,
            watcher=self.watcher,
            actor=self.actor,
            record=self.events.append,
            metrics=Metrics(version="1"),
            queue=self.queue,
            wishes=Wishes(identity="me", **wishes),
            on_lost=self.lost.set,
        )
        self.reconciler._clock = lambda: self.now

    def _ask(self):
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def _on_change(self, is_small):
        self.wakes.append(is_small)
        self.reconciler.wake(is_small)

    def reasons(self):
        return [event.reason for event in self.events]


@pytest.fixture
def begin(server, client):
    made = []

    def start(**wishes):
        working = Working(client, **wishes)
        made.append(working)
        working.watcher.start()
        assert server.wait(lambda: working.watcher.has_synced)
        working.reconciler.start()
        return working

    yield start
    for working in made:
        assert working.reconciler.stop(PATIENCE)
        working.watcher.stop(PATIENCE)


def spec_of(server, name=CLASS):
    found = {item["metadata"]["name"]: item["spec"] for item in server.all("deviceclasses")}
    return found.get(name)


def conditions(server, name="gpu"):
    found = {item["metadata"]["name"]: item for item in server.all(BRIDGES.plural)}
    return {
        each["type"]: (each["status"], each["reason"], each["message"])
        for each in found[name].get("status", {}).get("conditions", ())
    }


def carries(server, name=CLASS):
    return lambda: (spec_of(server, name) or {}).get("extendedResourceName") == NAME


def has_status(server, name="gpu"):
    return lambda: bool(conditions(server, name))


def test_a_bridge_becomes_a_class_and_is_told(server, begin):
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    working = begin()
    assert server.wait(has_status(server))
    assert carries(server)()
    assert server.wait(lambda: "WriteStatus" in working.done)
    assert working.done == ["AddFinalizer", "ApplyClass", "WriteStatus"]
    assert "ClassCreated" in working.reasons()


def test_what_fails_is_done_again(server, begin):
    server.fail(Fault(status=500), when=lambda request: request.is_write, times=3)
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    begin()
    assert server.wait(carries(server))


def test_a_defect_of_ours_does_not_end_it(server, begin):
    working = begin()
    decided = []
    situation = working.reconciler._situation

    def broken(name):
        decided.append(name)
        if len(decided) == 1:
            raise ZeroDivisionError
        return situation(name)

    working.reconciler._situation = broken
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    assert server.wait(carries(server))
    assert working.reconciler.alive


def test_a_name_that_was_taken_meanwhile_is_decided_anew(server, begin):
    working = begin()
    act, raised = working.actor.act, []

    def taken(actions):
        if actions and not raised:
            raised.append(1)
            raise TakenError("taken")
        act(actions)

    working.actor.act = taken
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    assert server.wait(carries(server))
    assert raised


def test_what_the_server_refuses_is_said_on_the_bridge(server, begin):
    refusal = Fault(status=422, reason="Invalid", message="no such function")
    server.fail(refusal, when=lambda request: request.is_write and "deviceclasses" in request.path, times=99)
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    begin()
    assert server.wait(lambda: conditions(server).get("Ready", ("", "", ""))[1] == "Refused")
    assert "no such function" in conditions(server)["Degraded"][2]


def test_who_may_not_act_any_more_ends_and_says_so(server, begin):
    working = begin()
    working.leads = False
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    assert working.lost.wait(PATIENCE)
    assert server.wait(lambda: not working.reconciler.alive)
    assert server.writes == []


def test_who_is_stopped_has_lost_nothing(server, begin):
    working = begin()
    assert working.reconciler.stop(PATIENCE)
    assert not working.lost.is_set()


def test_a_worker_that_hangs_in_a_call_is_named(server, begin):
    server.fail(Fault(silent=True), when=lambda request: request.is_write)
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    working = begin()
    assert server.wait(lambda: server.writes)
    assert not working.reconciler.stop(0.05)
    server.closed.set()


def test_its_own_statuses_do_not_wake_it_at_once(server, begin):
    """Else each change of a claim would cost a status, whatever is gathered."""
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    working = begin()
    assert server.wait(has_status(server))
    assert server.wait(lambda: working.queue._held == set())
    working.wakes.clear()
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}]
    spec = {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": pool, "devices": devices}
    server.put("resourceslices", {"metadata": {"name": "s"}, "spec": spec})
    assert server.wait(lambda: conditions(server)["Ready"][1] == "Serving")
    assert server.wait(lambda: working.queue._held == set())
    assert True not in working.wakes


# --- what the API server can ------------------------------------------------------------------------


def test_an_answer_that_was_overtaken_does_not_stand(server, begin):
    working = begin()

    def ask():
        # It becomes another version while its answer is on the way.
        working.asked += 1
        if working.asked == 1:
            working.reconciler.ask_again()
            return "old version"
        return ""

    working.reconciler._ask = ask
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    assert server.wait(carries(server))
    assert working.asked == 2


def test_a_question_without_an_answer_is_asked_again(server, begin):
    working = begin()
    working.answer = KubeError("no answer")
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    assert server.wait(lambda: working.asked >= 2)
    working.answer = ""
    assert server.wait(carries(server))


def test_the_same_answer_stands_a_while(server, begin):
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    working = begin()
    assert server.wait(has_status(server))
    server.put(BRIDGES.plural, bridge("b", "nvidia.com/b"))
    assert server.wait(has_status(server, "b"))
    assert working.asked == 1
    working.now += 600
    server.put(BRIDGES.plural, bridge("c", "nvidia.com/c"))
    assert server.wait(has_status(server, "c"))
    assert working.asked == 2


# --- names ------------------------------------------------------------------------------------------


def test_a_name_is_looked_at_from_time_to_time_as_long_as_a_bridge_wants_it(server, begin):
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    working = begin()
    assert server.wait(has_status(server))
    assert server.wait(lambda: NAME in working.queue._due)


def test_names_without_bridges_are_forgotten(server, begin):
    working = begin()
    assert server.wait(lambda: working.queue._held == set())
    for number in range(100):
        server.put("deviceclasses", device_class(f"c{number}", f"example.com/{number}"))
        working.reconciler._queue.add(f"example.com/{number}")
    assert server.wait(lambda: not working.queue._ready and not working.queue._held)
    assert [name for name in working.queue._due if "/" in name] == []
    assert working.reconciler._rivals == {}


def test_a_mode_is_known(server, begin):
    server.put(BRIDGES.plural, bridge("gpu", NAME, mode=str(Mode.DISABLED)))
    begin()
    assert server.wait(lambda: conditions(server).get("Ready", ("", "", ""))[1] == "Disabled")
    assert not carries(server)()


# --- classes without a bridge -----------------------------------------------------------------------


def strip(server):
    """The bridge goes with its finalizer taken away, which nobody is asked about."""
    server.edit(BRIDGES.plural, "gpu", lambda item: item["metadata"].update(finalizers=[]))
    server.remove(BRIDGES.plural, "gpu")


def made_and_left(server, begin):
    """A class whose bridge went while nobody worked."""
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    first = begin()
    assert server.wait(carries(server))
    assert server.wait(has_status(server))
    assert first.reconciler.stop(PATIENCE)
    strip(server)


def test_a_class_whose_bridge_is_gone_goes(server, begin):
    made_and_left(server, begin)
    second = begin()
    assert server.wait(lambda: server.names("deviceclasses") == [])
    assert server.wait(lambda: "OrphanDeleted" in second.reasons())
    assert second.done[:2] == ["ClearName", "DeleteClass"]


def test_a_class_whose_bridge_is_gone_waits_for_claims_without_the_name(server, begin):
    made_and_left(server, begin)
    requests = [{"name": "r", "exactly": {"deviceClassName": CLASS}}]
    claim = {"metadata": {"name": "c", "namespace": "ns"}, "spec": {"devices": {"requests": requests}}}
    server.put("resourceclaims", claim)
    second = begin()
    assert server.wait(lambda: "OrphanInUse" in second.reasons())
    assert spec_of(server) is not None
    assert not carries(server)()
    server.put("deviceclasses", device_class("x"))
    server.remove("resourceclaims", "c", "ns")
    assert server.wait(lambda: server.names("deviceclasses") == ["x"])
    assert second.reasons().count("OrphanInUse") == 1


def test_a_bridge_that_the_watch_has_not_told_of_yet_keeps_its_class(server, begin):
    """Classes and bridges are told by different watches, in any order."""
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    working = begin()
    assert server.wait(has_status(server))
    looked = []
    bridges = working.watcher.bridges
    working.watcher.bridges = lambda: looked.append(1) or []
    working.queue.add("orphans")
    assert server.wait(lambda: looked and working.queue._held == set())
    working.watcher.bridges = bridges
    assert carries(server)()
    assert "DeleteClass" not in working.done


def test_a_bridge_that_is_not_understood_keeps_its_class(server, begin):
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    first = begin()
    assert server.wait(has_status(server))
    assert first.reconciler.stop(PATIENCE)
    server.edit(BRIDGES.plural, "gpu", lambda item: item["spec"].update(mode="Unheard"))
    second = begin()
    server.put(BRIDGES.plural, bridge("b", "nvidia.com/b"))
    assert server.wait(has_status(server, "b"))
    assert server.wait(lambda: second.queue._held == set() and not second.queue._ready)
    assert carries(server)()


# --- somebody else writes too -----------------------------------------------------------------------


def falsified(item):
    item["spec"]["selectors"] = [{"cel": {"expression": "false"}}]
    item["metadata"]["managedFields"] = [{"manager": "helm", "fieldsV1": {"f:spec": {"f:selectors": {}}}}]


def is_falsified(server, name=CLASS):
    return lambda: spec_of(server, name)["selectors"] == [{"cel": {"expression": "false"}}]


def wait_rest(server, working):
    """Wait until there is nothing that could be worked on now."""

    def rests():
        queue = working.queue
        return not queue._held and not queue._ready and all(due > queue._clock() + 1 for due in queue._due.values())

    assert server.wait(rests)


def test_what_somebody_sets_back_again_and_again_is_written_ever_later(server, begin):
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    working = begin()
    assert server.wait(has_status(server))
    for round_ in range(3):
        wait_rest(server, working)
        server.edit("deviceclasses", CLASS, falsified)
        working.now += 2 ** (round_ + 1)
        working.queue.add(NAME)
        assert server.wait(lambda: not is_falsified(server)())
    wait_rest(server, working)
    server.edit("deviceclasses", CLASS, falsified)
    assert server.wait(lambda: conditions(server)["Conflict"][1] == "Contested")
    assert "field manager helm" in conditions(server)["Conflict"][2]
    wait_rest(server, working)
    assert is_falsified(server)()
    assert working.reasons().count("Contested") == 1
    working.now += 300
    working.queue.add(NAME)
    assert server.wait(lambda: not is_falsified(server)())


def test_who_sets_back_in_the_middle_of_a_take_over_is_paced_too(server, begin):
    """He is so fast that ours never gets the name, and each of his writes wakes us."""
    server.put("deviceclasses", device_class("theirs", NAME))
    working = begin()
    make_sure = working.actor._make_sure_that_nobody_has

    def too_late(name, *, but):
        server.put("deviceclasses", device_class("theirs", NAME))
        make_sure(name, but=but)

    working.actor._make_sure_that_nobody_has = too_late
    server.put(BRIDGES.plural, bridge("gpu", NAME, adopt=True))
    for round_ in range(4):
        assert server.wait(lambda: working.done.count("ClearName") > round_)  # noqa: B023 (called at once)
        wait_rest(server, working)
        working.now += 2 ** (round_ + 1)
        working.queue.add(NAME)
    wait_rest(server, working)
    assert working.done.count("ClearName") < 10
    assert server.wait(lambda: conditions(server)["Conflict"][1] == "Contested")
    assert not carries(server)()


def test_a_base_class_that_is_set_back_is_paced_too(server, begin):
    working = begin(base_classes=BaseKeeping.KEEP)
    name = "gpu.nvidia.com"
    assert server.wait(lambda: server.names("deviceclasses") == [name, "mig.nvidia.com"])
    server.edit("deviceclasses", name, falsified)
    assert server.wait(lambda: not is_falsified(server, name)())
    wait_rest(server, working)
    server.edit("deviceclasses", name, falsified)
    assert server.wait(lambda: working.watcher.classes()[name].managers)
    wait_rest(server, working)
    assert is_falsified(server, name)()
    working.now += 2
    working.queue.add("base")
    assert server.wait(lambda: not is_falsified(server, name)())


def test_a_class_that_is_being_deleted_is_waited_for_and_made_anew(server, begin):
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    working = begin()
    assert server.wait(has_status(server))
    server.edit("deviceclasses", CLASS, lambda item: item["metadata"].update(finalizers=["example.com/x"]))
    server.remove(BRIDGES.plural, "gpu")
    assert server.wait(lambda: server.names(BRIDGES.plural) == [])
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    assert server.wait(lambda: conditions(server).get("Ready", ("", "", ""))[1] == "ClassDeleting")
    assert "example.com/x" in conditions(server)["Ready"][2]
    wait_rest(server, working)
    assert working.done.count("ApplyClass") == 1
    server.edit("deviceclasses", CLASS, lambda item: item["metadata"].update(finalizers=[]))
    assert server.wait(lambda: working.done.count("ApplyClass") == 2)
    assert server.wait(carries(server))
    assert server.wait(lambda: conditions(server)["Ready"][1] == "NoDevices")


# --- bridges that it makes --------------------------------------------------------------------------


def partition(server, name="s", uid="1"):
    devices = [{"name": "m", "attributes": {"type": {"string": "mig"}, "profile": {"string": "1g.10gb"}}}]
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": pool, "devices": devices}
    server.put("resourceslices", {"metadata": {"name": name, "labels": {"l": uid}}, "spec": spec})


def posts(server):
    return [request for request in server.requests if request.method == "POST" and BRIDGES.plural in request.path]


def test_a_profile_whose_name_somebody_has_for_something_else_gets_another(server, begin):
    server.put(BRIDGES.plural, bridge("mig-1g.10gb", "example.com/mig"))
    partition(server)
    begin(discovery=Mode.ENABLED)
    assert server.wait(has_status_if(server, "mig-1g.10gb-discovered"))
    resources = {item["metadata"]["name"]: item["spec"]["resourceName"] for item in server.all(BRIDGES.plural)}
    assert resources == {"mig-1g.10gb": "example.com/mig", "mig-1g.10gb-discovered": "nvidia.com/mig-1g.10gb"}


def has_status_if(server, name):
    return lambda: name in server.names(BRIDGES.plural) and conditions(server, name)


def test_a_profile_for_which_no_name_is_free_is_told_once_and_not_asked_for(server, begin):
    for name in ("mig-1g.10gb", "mig-1g.10gb-discovered"):
        server.put(BRIDGES.plural, bridge(name, f"example.com/{name}"))
    partition(server)
    working = begin(discovery=Mode.ENABLED)
    assert server.wait(lambda: working.reasons().count("NameTaken") == 2)
    server.put(BRIDGES.plural, bridge("b", "nvidia.com/b"))
    assert server.wait(has_status(server, "b"))
    wait_rest(server, working)
    assert posts(server) == []
    assert working.reasons().count("NameTaken") == 2
