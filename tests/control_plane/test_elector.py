"""Leader election on a real API server."""

import threading
from contextlib import ExitStack

import pytest
from support.bridging import unique
from support.waiting import wait_for

from dradriver.kube import LEASES, Elector, Terms
from dradriver.kube.connection import connect

QUICK = Terms(lease=3, renew=2, retry=0.1, call=1)


class Candidate:
    def __init__(self, client, name, identity, terms=QUICK):
        self.elected, self.lost = threading.Event(), threading.Event()
        self.elector = Elector(
            client,
            namespace="default",
            name=name,
            identity=identity,
            on_elected=self.elected.set,
            on_lost=self.lost.set,
            terms=terms,
        )


@pytest.fixture
def candidates(control_plane):
    """Makes candidates of one election, each with a connection of its own."""
    name = unique("election")
    with ExitStack() as stack:

        def make(identity, **more):
            client = connect(control_plane.kubeconfig)
            stack.callback(client.close)
            made = Candidate(client, name, identity, **more)
            stack.callback(made.elector.stop, 20)
            return made

        make.lease = name
        yield make


def spec(admin, candidates):
    return admin.get(LEASES, candidates.lease, namespace="default")["spec"]


def test_of_five_one_leads_and_each_in_turn_takes_over(admin, candidates):
    waiting = {name: candidates(name) for name in "abcde"}
    for each in waiting.values():
        each.elector.start()
    terms = []
    while waiting:
        wait_for(lambda: any(each.elected.is_set() for each in waiting.values()), "a leader", seconds=30)
        (leader,) = [name for name, each in waiting.items() if each.elector.leads]
        found = spec(admin, candidates)
        assert found["holderIdentity"] == leader
        assert found["leaseDurationSeconds"] == 3
        terms.append(found["leaseTransitions"])
        assert waiting.pop(leader).elector.stop(20)
    assert terms == sorted(set(terms))
    assert spec(admin, candidates)["holderIdentity"] == ""


def test_a_leader_whose_lease_is_taken_by_force_loses(admin, candidates):
    one = candidates("one")
    one.elector.start()
    assert one.elected.wait(30)
    admin.patch(LEASES, candidates.lease, {"spec": {"holderIdentity": "thief"}}, namespace="default")
    assert one.lost.wait(30)
    assert one.elector.is_lost
    assert not one.elector.leads
    assert spec(admin, candidates)["holderIdentity"] == "thief"


def test_a_lease_of_a_leader_that_is_gone_is_taken_over(admin, candidates):
    body = {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": {"namespace": "default", "name": candidates.lease},
        "spec": {"holderIdentity": "gone", "leaseDurationSeconds": 1, "renewTime": "2099-01-01T00:00:00.000000Z"},
    }
    admin.create(LEASES, body)
    one = candidates("one")
    one.elector.start()
    assert one.elected.wait(30)
    assert spec(admin, candidates)["leaseTransitions"] == 1


def test_a_deleted_lease_is_made_again_by_its_leader(admin, candidates):
    one = candidates("one")
    one.elector.start()
    assert one.elected.wait(30)
    former = admin.get(LEASES, candidates.lease, namespace="default")["metadata"]["uid"]
    admin.delete(LEASES, candidates.lease, namespace="default")
    wait_for(lambda: _uid(admin, candidates) not in {None, former}, "the lease to be there again", seconds=30)
    assert one.elector.leads
    assert not one.lost.is_set()


def _uid(admin, candidates):
    found = [
        item["metadata"]["uid"] for item in admin.list(LEASES).items if item["metadata"]["name"] == candidates.lease
    ]
    return found[0] if found else None
