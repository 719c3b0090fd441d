"""How each action is written, and what keeps it from being written."""

from dataclasses import replace

import pytest
from doubles.apiserver import Fault
from support.bridging import bridge, device_class

from controller.acting import Actor, NotLeadingError, TakenError
from controller.acting.actor import DOUBT_SECONDS
from controller.api import BRIDGES, BridgeStatus, decode_bridge
from controller.bridges import AddFinalizer, ApplyClass, ClearName, DeleteClass, ReleaseClass, RemoveFinalizer
from controller.watching import Watcher
from dradriver.kube import ConflictError, UnreachableError

NAME = "nvidia.com/gpu"
CLASS = "gpu.gpu.dradriver.dev"


class Acting:
    """An actor on a server, and what it did."""

    def __init__(self, client):
        self.leads, self.now, self.done = True, 0.0, []
        self.asked = 0
        self.watcher = Watcher(client, on_change=lambda _small: None)
        self.actor = Actor(
            client, self.watcher, may_act=self.may_act, on_action=self.done.append, clock=lambda: self.now
        )

    def may_act(self):
        self.asked += 1
        return self.leads


@pytest.fixture
def acting(client):
    return Acting(client)


def applied(name=CLASS, extended=NAME, **more):
    spec = {"selectors": [], "extendedResourceName": extended} if extended else {"selectors": []}
    return ApplyClass(name=name, labels={"l": "1"}, annotations={"a": "2"}, spec=spec, **more)


def guards(item):
    metadata = item["metadata"]
    return {"uid": metadata["uid"], "resource_version": metadata["resourceVersion"]}


def test_a_class_is_made_by_an_apply_without_force(server, acting):
    acting.actor.act((applied(),))
    write = server.writes[0]
    assert (write.method, write.query["force"]) == ("PATCH", "false")
    assert write.body["metadata"] == {"name": CLASS, "labels": {"l": "1"}, "annotations": {"a": "2"}}
    assert acting.watcher.classes()[CLASS].extended_name == NAME
    assert acting.done == ["ApplyClass"]


def test_a_class_that_was_seen_is_written_with_its_version_and_its_uid(server, acting):
    item = server.put("deviceclasses", device_class(CLASS))
    acting.actor.act((applied(**guards(item)),))
    write = server.writes[-1]
    assert write.query["force"] == "true"
    assert write.body["metadata"]["uid"] == item["metadata"]["uid"]
    assert write.body["metadata"]["resourceVersion"] == item["metadata"]["resourceVersion"]


def test_a_class_that_is_gone_is_not_made_anew_by_a_write_that_saw_it(server, acting):
    """The resourceVersion alone would not keep server-side apply from that."""
    item = server.put("deviceclasses", device_class(CLASS))
    server.remove("deviceclasses", CLASS)
    with pytest.raises(ConflictError):
        acting.actor.act((applied(**guards(item)),))
    assert server.names("deviceclasses") == []


@pytest.mark.parametrize("kind", [ClearName, ReleaseClass])
def test_what_takes_a_name_makes_no_class_that_is_gone(server, acting, kind):
    acting.actor.act((kind(name=CLASS, resource_version="7"),))
    assert server.names("deviceclasses") == []


def test_one_decision_knows_its_own_writes(server, acting):
    item = server.put("deviceclasses", device_class(CLASS, NAME))
    clear = ClearName(name=CLASS, resource_version=item["metadata"]["resourceVersion"])
    acting.actor.act((clear, applied(**guards(item))))
    assert acting.done == ["ClearName", "ApplyClass"]
    assert server.all("deviceclasses")[0]["spec"]["extendedResourceName"] == NAME


def test_a_name_that_another_class_has_got_meanwhile_is_not_given(server, acting):
    server.put("deviceclasses", device_class("other", NAME))
    with pytest.raises(TakenError, match=r"DeviceClass other carries nvidia.com/gpu by now"):
        acting.actor.act((applied(),))
    assert server.writes == []
    # What was seen on the way is known from now on.
    assert acting.watcher.classes()["other"].extended_name == NAME


def test_the_first_that_fails_ends_the_decision(server, acting):
    stale = server.put("deviceclasses", device_class("other", NAME))
    server.edit("deviceclasses", "other", lambda item: item["metadata"].update(labels={"x": "y"}))
    clear = ClearName(name="other", resource_version=stale["metadata"]["resourceVersion"])
    with pytest.raises(ConflictError):
        acting.actor.act((clear, applied()))
    assert server.names("deviceclasses") == ["other"]
    assert acting.done == []


def test_nothing_is_written_by_a_process_that_may_not_act(server, acting):
    acting.leads = False
    seen = decode_bridge(server.put(BRIDGES.plural, bridge("gpu", NAME)))
    with pytest.raises(NotLeadingError):
        acting.actor.act((applied(),))
    with pytest.raises(NotLeadingError):
        acting.actor.write_status(seen, BridgeStatus(), former={})
    with pytest.raises(NotLeadingError):
        acting.actor.change_bridges([bridge("x", NAME)], [])
    with pytest.raises(NotLeadingError):
        acting.actor.change_bridges([], [("gpu", seen.uid)])
    assert server.writes == []


def test_who_loses_the_lease_while_it_reads_does_not_write(server, acting):
    """Reading all classes before a name is given may take a while."""

    def may_act():
        acting.asked += 1
        return acting.asked == 1

    acting.actor._may_act = may_act
    with pytest.raises(NotLeadingError):
        acting.actor.act((applied(),))
    assert any(request.method == "GET" for request in server.requests)
    assert server.writes == []


@pytest.mark.parametrize("fault", [Fault(reset=True), Fault(late=True)], ids=["lost", "done"])
def test_a_write_without_an_answer_leaves_doubt_for_as_long_as_a_lease_lasts(server, acting, fault):
    assert not acting.actor.is_in_doubt
    server.fail(fault, when=lambda request: request.is_write, times=9)
    with pytest.raises(UnreachableError):
        acting.actor.act((applied(),))
    assert acting.actor.is_in_doubt
    acting.now += DOUBT_SECONDS
    assert not acting.actor.is_in_doubt


def test_a_refusal_leaves_no_doubt(server, acting):
    server.fail(Fault(status=409, reason="Conflict"), when=lambda request: request.is_write)
    with pytest.raises(ConflictError):
        acting.actor.act((applied(),))
    assert not acting.actor.is_in_doubt


def test_the_status_of_a_bridge_is_not_written_to_its_successor(server, acting):
    former = decode_bridge(server.put(BRIDGES.plural, bridge("gpu", NAME)))
    server.remove(BRIDGES.plural, "gpu")
    server.put(BRIDGES.plural, bridge("gpu", NAME))
    with pytest.raises(ConflictError):
        acting.actor.write_status(former, BridgeStatus(device_class_name=CLASS), former={})
    assert "status" not in server.all(BRIDGES.plural)[0]
    server.remove(BRIDGES.plural, "gpu")
    # One that is gone is no error: there is nobody to tell.
    acting.actor.write_status(replace(former, uid=""), BridgeStatus(), former={})
    assert acting.done == []


def test_a_class_is_deleted_if_it_is_still_the_one(server, acting):
    item = server.put("deviceclasses", device_class(CLASS))
    with pytest.raises(ConflictError):
        acting.actor.act((DeleteClass(name=CLASS, uid="another", resource_version=""),))
    acting.actor.act((DeleteClass(name=CLASS, **guards(item)),))
    assert server.names("deviceclasses") == []
    acting.actor.act((DeleteClass(name=CLASS, **guards(item)),))


def test_a_bridge_is_kept_and_let_go(server, acting):
    item = server.put(BRIDGES.plural, bridge("gpu", NAME))
    keep = AddFinalizer(bridge="gpu", resource_version=item["metadata"]["resourceVersion"], finalizers=("f",))
    acting.actor.act((keep,))
    kept = server.all(BRIDGES.plural)[0]["metadata"]
    assert kept["finalizers"] == ["f"]
    server.remove(BRIDGES.plural, "gpu")
    version = server.all(BRIDGES.plural)[0]["metadata"]["resourceVersion"]
    acting.actor.act((RemoveFinalizer(bridge="gpu", resource_version=version, finalizers=()),))
    assert server.names(BRIDGES.plural) == []
    assert acting.watcher.bridges() == []


def test_bridges_are_made_and_removed(server, acting):
    acting.actor.change_bridges([bridge("a", NAME), bridge("b", NAME)], [])
    uid = server.all(BRIDGES.plural)[0]["metadata"]["uid"]
    # Somebody was first: theirs it is.
    acting.actor.change_bridges([bridge("a", NAME)], [])
    with pytest.raises(ConflictError):
        acting.actor.change_bridges([], [("a", "another")])
    acting.actor.change_bridges([], [("a", uid), ("gone", "uid")])
    assert server.names(BRIDGES.plural) == ["b"]
