"""In which order the controller starts and stops, and when it keeps its Lease."""

import threading
from dataclasses import replace

import pytest
from doubles.apiserver import PATIENCE, Fault
from support.bridging import bridge

from controller import manager as managing
from controller.api import BRIDGES
from controller.flags import parse
from controller.manager import LEASE, WRITE_SECONDS, Manager
from dradriver.ending import Ending
from dradriver.kube.elector import Terms

NAME = "nvidia.com/gpu"
CLASS = "gpu.gpu.dradriver.dev"


class Running:
    """A manager on a thread."""

    def __init__(self, server, folder, *arguments):
        self.server, self.ending = server, Ending()
        self.status = None
        kubeconfig = str(server.kubeconfig(folder))
        options = parse(["--kubeconfig", kubeconfig, "--base-classes", "off", *arguments])
        options = replace(options, http_endpoint="")
        self.manager = Manager(options, self.ending)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        self.status = self.manager.run()

    def end(self):
        self.ending.ask()
        return self.wait_end()

    def wait_end(self):
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.status

    @property
    def holder(self):
        leases = {item["metadata"]["name"]: item["spec"] for item in self.server.all("leases")}
        return leases.get(LEASE, {}).get("holderIdentity")


@pytest.fixture
def start(server, tmp_path, monkeypatch):
    monkeypatch.setattr(managing, "WRITE_SECONDS", 1.0)
    monkeypatch.setattr(managing, "_STOP_SECONDS", 5.0)
    monkeypatch.setattr(managing, "_LOOK_SECONDS", 0.05)
    made = []

    def begin(*arguments):
        made.append(Running(server, tmp_path, *arguments))
        return made[-1]

    yield begin
    for each in made:
        server.heal()
        each.end()
        # What kept its Lease would go on renewing it: here the process does not end.
        each.manager._elector.stop()


def has_class(server):
    return lambda: server.names("deviceclasses") == [CLASS]


def test_calls_that_write_end_before_another_may_lead():
    """As client-go's rule is: what begins right before the renew deadline ends before the Lease does."""
    terms = Terms()
    assert terms.lease - terms.renew > WRITE_SECONDS


def test_it_works_and_gives_the_lease_back(server, start):
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    running = start()
    assert server.wait(has_class(server))
    assert running.holder
    assert running.end() == 0
    assert running.holder == ""


def test_work_has_ended_before_the_lease_is_given_back(server, start):
    running = start()
    assert server.wait(lambda: running.manager._reconciler.alive)
    released = []
    stop = running.manager._elector.stop

    def stopped():
        released.append(running.manager._reconciler.alive)
        return stop()

    running.manager._elector.stop = stopped
    assert running.end() == 0
    assert released == [False]


def is_class_write(request):
    return request.is_write and "deviceclasses" in request.path


def test_the_lease_is_kept_while_a_write_is_on_its_way(server, start, monkeypatch):
    """A worker that hangs is left behind with it: its write may land at any moment."""
    monkeypatch.setattr(managing, "WRITE_SECONDS", 3.0)
    monkeypatch.setattr(managing, "_STOP_SECONDS", 0.1)
    server.fail(Fault(silent=True), when=is_class_write, times=99)
    running = start()
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    assert server.wait(lambda: server.count(is_class_write) == 1)
    assert running.end() == 0
    assert running.holder == running.manager._options.identity


def test_the_lease_is_kept_after_a_write_that_nobody_answered(server, start):
    server.fail(Fault(silent=True), when=is_class_write, times=99)
    running = start()
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    assert server.wait(lambda: running.manager._actor.is_in_doubt)
    assert running.end() == 0
    assert running.holder == running.manager._options.identity


def test_nothing_is_written_once_it_is_to_end(server, start):
    running = start()
    assert server.wait(running.manager._may_act)
    running.manager._stopping.set()
    assert not running.manager._may_act()
    assert running.manager._elector.leads


def test_a_moment_without_leading_ends_the_process(server, start):
    """Its reconciler has ended, though the elector may get the Lease renewed again."""
    running = start()
    assert server.wait(lambda: running.manager._reconciler.alive)
    running.manager._elector.__class__ = _Doubtful
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    assert running.wait_end() == 1


class _Doubtful(managing.Elector):
    """An elector that says no, and goes on."""

    @property
    def leads(self):
        return False


def test_who_waits_gives_nothing_back(server, start):
    first = start()
    assert server.wait(lambda: first.holder)
    second = start()
    assert server.wait(lambda: second.manager._elector.leader == first.holder)
    assert second.end() == 0
    assert first.holder == first.manager._options.identity
