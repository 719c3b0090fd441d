import threading

import pytest
from doubles.apiserver import PATIENCE, Fault

from dradriver.kube import LEASES, Elector, Terms
from dradriver.kube.connection import connect

NAMESPACE, NAME = "dradriver", "controller"


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def elector(client, identity="one", clock=None, **more):
    terms = Terms(clock=clock or Clock(), chance=lambda: 0.0)
    return Elector(client, namespace=NAMESPACE, name=NAME, identity=identity, terms=terms, **more)


def lease(server):
    (found,) = server.all("leases")
    return found["spec"]


def is_write(request):
    return request.is_write


def test_the_first_one_creates_the_lease_in_the_form_that_others_read(server, client):
    one = elector(client)
    assert one._try(4)
    assert one.leads
    spec = lease(server)
    assert spec["holderIdentity"] == "one"
    assert (spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (15, 0)
    assert spec["acquireTime"].endswith("Z")
    assert spec["acquireTime"] == spec["renewTime"]


def test_a_lease_that_changes_is_held_whatever_its_times_say(server, client):
    clock = Clock()
    assert elector(client, "one")._try(4)
    two = elector(client, "two", clock)
    server.edit("leases", NAME, lambda item: item["spec"].update(renewTime="1999-01-01T00:00:00.000000Z"), NAMESPACE)
    for number in range(5):
        assert not two._try(4)
        clock.now += 14
        server.edit("leases", NAME, lambda item, n=number: item["spec"].update(renewTime=f"t{n}"), NAMESPACE)
    assert not two.leads
    assert two.leader == "one"


def test_a_lease_that_does_not_change_for_its_duration_is_taken_over(server, client):
    clock = Clock()
    assert elector(client, "one")._try(4)
    two = elector(client, "two", clock)
    assert not two._try(4)
    clock.now += 14.9
    assert not two._try(4)
    clock.now += 0.2
    assert two._try(4)
    assert lease(server)["holderIdentity"] == "two"
    assert lease(server)["leaseTransitions"] == 1


def test_the_duration_is_that_of_the_lease_and_not_our_own(server, client):
    clock = Clock()
    assert elector(client, "one")._try(4)
    server.edit("leases", NAME, lambda item: item["spec"].update(leaseDurationSeconds=60), NAMESPACE)
    two = elector(client, "two", clock)
    assert not two._try(4)
    clock.now += 59
    assert not two._try(4)
    clock.now += 2
    assert two._try(4)


@pytest.mark.parametrize(("told", "waited"), [(100_000, 60), (None, 15), (0, 15), (20, 20)])
def test_a_duration_that_nobody_keeps_is_not_waited_for(server, client, told, waited):
    clock = Clock()
    assert elector(client, "one")._try(4)
    server.edit("leases", NAME, lambda item: item["spec"].update(leaseDurationSeconds=told), NAMESPACE)
    two = elector(client, "two", clock)
    assert not two._try(4)
    clock.now += waited - 0.1
    assert not two._try(4)
    clock.now += 0.2
    assert two._try(4)


def test_the_leader_puts_the_duration_right(server, client):
    one = elector(client, "one")
    assert one._try(4)
    server.edit("leases", NAME, lambda item: item["spec"].update(leaseDurationSeconds=100_000), NAMESPACE)
    assert not one._try(4)
    assert one._try(4)
    assert lease(server)["leaseDurationSeconds"] == 15


def test_transitions_end_where_the_field_does(server, client):
    clock = Clock()
    assert elector(client, "one")._try(4)
    server.edit("leases", NAME, lambda item: item["spec"].update(leaseTransitions=2**31 - 1), NAMESPACE)
    two = elector(client, "two", clock)
    assert not two._try(4)
    clock.now += 16
    assert two._try(4)
    assert lease(server)["leaseTransitions"] == 2**31 - 1


def test_a_released_lease_is_taken_at_once(server, client):
    one = elector(client, "one")
    assert one._try(4)
    one._release()
    assert (lease(server)["holderIdentity"], lease(server)["leaseDurationSeconds"]) == ("", 1)
    two = elector(client, "two")
    assert two._try(4)
    assert lease(server)["holderIdentity"] == "two"
    assert lease(server)["leaseDurationSeconds"] == 15


def test_of_two_that_take_it_at_the_same_time_one_gets_it(server, client):
    clock = Clock()
    assert elector(client, "old")._try(4)
    one, two = elector(client, "one", clock), elector(client, "two", clock)
    assert not one._try(4)
    assert not two._try(4)
    clock.now += 20
    two._make_or_see = lambda deadline, look=two._make_or_see: (look(deadline), one._try(4))[0]
    assert not two._try(4)
    assert one.leads
    assert not two.leads
    assert lease(server)["holderIdentity"] == "one"


def test_renewing_is_one_request_and_keeps_what_others_wrote(server, client):
    one = elector(client)
    assert one._try(4)
    server.edit("leases", NAME, lambda item: item["metadata"].update(labels={"by": "somebody"}), NAMESPACE)
    assert not one._try(4)
    requests = server.count()
    assert one._try(4)
    assert server.count() == requests + 1
    (found,) = server.all("leases")
    assert found["metadata"]["labels"] == {"by": "somebody"}


def test_a_lease_that_somebody_deletes_is_made_anew_at_once(server, client):
    one = elector(client)
    assert one._try(4)
    server.remove("leases", NAME, NAMESPACE)
    assert one._try(4)
    assert lease(server)["holderIdentity"] == "one"


def test_a_lease_that_somebody_else_made_after_its_deletion_is_lost(server, client):
    lost = []
    one = elector(client, on_lost=lambda: lost.append(True))
    one._stopped.wait = lambda _seconds: False
    assert one._try(4)
    server.remove("leases", NAME, NAMESPACE)
    assert elector(client, "two")._try(4)
    server.fail(Fault(status=404, reason="NotFound"), when=lambda request: request.method == "PUT", times=1)
    one._hold()
    assert lost == [True]
    assert one.is_lost
    assert not one.leads


def test_a_leader_that_cannot_renew_gives_up_before_others_may_take_over(server, client):
    clock, lost = Clock(), []
    one = elector(client, clock=clock, on_lost=lambda: lost.append(clock.now))
    assert one._try(4)

    def rest(seconds):
        clock.now += seconds
        return False

    one._stopped.wait = rest
    server.fail(Fault(status=503), when=is_write, times=1000)
    one._hold()
    assert lost == [1010.0]
    assert not one.leads


def test_a_leader_whose_call_hangs_does_not_lead_from_the_deadline_on(server, client):
    clock = Clock()
    one = elector(client, clock=clock)
    assert one._try(4)
    clock.now += 9.9
    assert one.leads
    clock.now += 0.2
    assert not one.leads


def test_calls_of_a_leader_end_by_the_deadline(server, client):
    clock, given = Clock(), []
    one = elector(client, clock=clock)
    assert one._try(4)
    one._stopped.wait = lambda seconds: setattr(clock, "now", clock.now + seconds + 1) or False
    one._try = given.append
    one._hold()
    assert given == [4, 4, 1]
    assert one.is_lost


def test_the_time_of_a_slow_renewal_counts_from_its_beginning(server, client):
    clock = Clock()
    one = elector(client, clock=clock)
    assert one._try(4)
    clock.now += 2
    replace = one._client.replace
    one._client = Slow(replace, clock)
    assert one._try(4)
    assert one._renewed == 1002.0


class Slow:
    def __init__(self, replace, clock):
        self._replace, self._clock = replace, clock

    def replace(self, *arguments, **more):
        self._clock.now += 3
        return self._replace(*arguments, **more)


def test_refusals_of_the_server_are_waited_out(server, client):
    server.fail(Fault(status=403, reason="Forbidden"), times=2)
    one = elector(client)
    assert not one._try(4)
    assert not one._try(4)
    assert one._try(4)


@pytest.mark.parametrize(
    "wrong", [{"retry": 10.0}, {"renew": 15.0}, {"call": 10.0}, {"call": 0.0}, {"retry": 0.0}, {"lease": 9.0}]
)
def test_terms_that_would_let_two_lead_are_refused(wrong):
    with pytest.raises(ValueError, match="renew below lease"):
        Terms(**wrong)


def test_on_threads_the_second_leads_after_the_first_has_stopped(server, tmp_path):
    quick = Terms(lease=5, renew=3, retry=0.05, call=1)
    clients = [connect(server.kubeconfig(tmp_path)) for _ in range(2)]
    elected = [threading.Event(), threading.Event()]
    one, two = (
        Elector(client, namespace=NAMESPACE, name=NAME, identity=name, on_elected=event.set, terms=quick)
        for client, name, event in zip(clients, ("one", "two"), elected, strict=True)
    )
    one.start()
    assert elected[0].wait(PATIENCE)
    two.start()
    assert server.wait(lambda: two.leader == "one")
    assert not elected[1].is_set()
    assert one.stop(PATIENCE)
    assert elected[1].wait(PATIENCE)
    assert two.leads
    assert not one.leads
    assert not one.is_lost
    assert two.stop(PATIENCE)
    assert lease(server)["holderIdentity"] == ""
    for client in clients:
        client.close()


def test_stopping_one_that_waits_touches_nothing(server, client):
    assert elector(client, "old")._try(4)
    two = Elector(client, namespace=NAMESPACE, name=NAME, identity="two", terms=Terms(retry=0.05))
    two.start()
    assert server.wait(lambda: two.leader == "old")
    assert two.stop(PATIENCE)
    assert not two.alive
    assert lease(server)["holderIdentity"] == "old"
    assert client.get(LEASES, NAME, namespace=NAMESPACE)["spec"]["leaseTransitions"] == 0
