"""Shares, looked at step by step: what claims hold stays as it is, and the order follows what they hold."""

import time
import uuid

import pytest
from doubles.offering import wanted
from doubles.versions import Kubernetes

from dradriver.gpu.policy import Order, Sharing
from dradriver.kubelet import Prepared
from dradriver.offering import offering as module
from dradriver.resource import slice_spec

UNWANTED = "dradriver.dev/not-offered"
FOUR = Sharing(replicas=4)
SHARED, WHOLE = wanted("static", sharing=FOUR), wanted("static")
SPREAD = wanted("static", sharing=FOUR, order=Order.SPREAD)


@pytest.fixture
def node(make):
    return make(want=SHARED)


def share(node, device="gpu-0"):
    """A claim that the scheduler gave a share."""
    return node.claim(device, shareID=str(uuid.uuid4()))


def prepared(node, *claims):
    for claim in claims:
        assert isinstance(node.prepare(claim), Prepared)
    return claims[0]


def shared(node):
    return {name for name, device in node.slices.devices.items() if device.shared}


def order(node):
    return list(node.slices.devices)


# --- what is held stays as it is ------------------------------------------------------------------


@pytest.mark.parametrize("known", ["by its record", "by the API server only"])
@pytest.mark.parametrize("restarted", [False, True])
def test_shares_stay_shares_until_the_last_is_gone(node, known, restarted):
    node.look()
    publish(node)
    claims = [share(node), share(node)]
    if known == "by its record":
        prepared(node, *claims)
    node.want = WHOLE
    if restarted:
        node.again()
    node.look()
    assert shared(node) == {"gpu-0"}
    assert node.tainted(UNWANTED) == ["gpu-0"]
    node.released(claims[0])
    node.look(after=20)
    assert shared(node) == {"gpu-0"}
    node.released(claims[1])
    node.look(after=20)
    assert shared(node) == set()
    assert node.tainted(UNWANTED) == []


@pytest.mark.parametrize("known", ["by its record", "by the API server only"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_whole_gpu_stays_whole_until_its_claim_is_gone(node, known, restarted):
    node.want = WHOLE
    node.look()
    publish(node)
    claim = node.claim("gpu-1")
    if known == "by its record":
        prepared(node, claim)
    node.want = SHARED
    if restarted:
        node.again()
    node.look()
    assert shared(node) == {"gpu-0"}
    assert node.tainted(UNWANTED) == ["gpu-1"]
    node.released(claim)
    node.look(after=20)
    assert shared(node) == {"gpu-0", "gpu-1"}
    assert node.tainted(UNWANTED) == []


def publish(node):
    """Let the API server have what is offered, which another process compares with."""
    for number, part in enumerate(node.slices.offers[-1]):
        pool = {"name": "node-a", "generation": 1, "resourceSliceCount": len(node.slices.offers[-1])}
        spec = slice_spec(part, driver="gpu.nvidia.com", node_name="node-a", pool=pool)
        metadata = {"name": f"slice-{number}"}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
        node.server.put("resourceslices", body)


def test_a_scheduler_that_still_saw_a_whole_gpu_has_it_back_and_no_share_is_prepared_beside(node):
    """It chose before the change and wrote its choice after it; a share was given out meanwhile."""
    node.want = WHOLE
    node.look()
    node.want = SHARED
    node.look()
    assert shared(node) == {"gpu-0", "gpu-1"}
    late, other = node.claim("gpu-0"), share(node)
    for seconds in (5, 30):
        node.look(after=seconds)
    assert shared(node) == {"gpu-1"}
    assert node.tainted(UNWANTED) == ["gpu-0"]
    prepared(node, late)
    assert "still held by" in node.prepare(other).message
    node.released(late)
    prepared(node, other)


def test_a_shared_gpu_is_cut_when_its_last_share_is_gone(node):
    node.look()
    claim = prepared(node, share(node))
    node.want = wanted("dynamic")
    node.look()
    assert [name for name in node.names if name.startswith("gpu-0")] == ["gpu-0"]
    assert shared(node) == {"gpu-0"}
    node.released(claim)
    node.look(after=20)
    assert shared(node) == set()
    assert node.slices.devices["gpu-0"].consumes


# --- what is told ---------------------------------------------------------------------------------


def test_a_server_that_drops_shares_is_offered_whole_gpus_until_it_keeps_them(node):
    node.server.strip = Kubernetes(minor=35)
    node.look()
    assert shared(node) == set()
    assert node.names == ["gpu-0", "gpu-1"]
    assert node.notes.reasons == ["SharesNotOffered"]
    assert "DRAConsumableCapacity" in node.notes.now["shares"].text
    node.server.strip = Kubernetes(minor=37)
    node.offering.doubt()
    node.look()
    assert shared(node) == {"gpu-0", "gpu-1"}
    assert node.notes.now == {}


def test_nodes_that_share_nothing_do_not_miss_shares(node):
    node.server.strip = Kubernetes(minor=35)
    node.want = WHOLE
    node.look()
    assert node.notes.now == {}


def test_gpus_that_are_cut_for_claims_are_not_shared_which_is_told(node):
    node.want = wanted("dynamic", sharing=FOUR)
    node.look()
    assert shared(node) == set()
    assert node.notes.reasons == ["GpuNotShared", "GpuNotShared"]
    assert "mig: static" in node.notes.now[f"unshared {node.uuids()[0]}"].text


# --- order ----------------------------------------------------------------------------------------


@pytest.fixture
def spreading(make):
    node = make(want=SPREAD)
    node.look()
    return node


def test_spread_follows_what_claims_hold(spreading):
    assert order(spreading) == ["gpu-0", "gpu-1"]
    first = prepared(spreading, share(spreading))
    spreading.look()
    assert order(spreading) == ["gpu-1", "gpu-0"]
    prepared(spreading, share(spreading, "gpu-1"))
    spreading.look()
    assert order(spreading) == ["gpu-0", "gpu-1"]
    spreading.released(first)
    before = len(spreading.slices.offers)
    spreading.look()
    assert len(spreading.slices.offers) == before, "the order is as it was, so nothing is written"


def test_packed_does_not_even_look(node):
    node.look()
    assert not node.offering._shown.follows_shares
    prepared(node, share(node))
    node.look()
    assert len(node.slices.offers) == 1


def test_a_change_of_holds_is_noticed_without_reading_gpus_and_gathered(spreading, monkeypatch):
    monkeypatch.setattr(module, "RELEASE_SECONDS", 0.05)
    assert not spreading.offering._is_outdated()
    claims = [share(spreading) for _ in range(3)]
    prepared(spreading, *claims)
    assert spreading.offering._is_outdated()
    before = len(spreading.slices.offers)
    spreading.look()
    assert not spreading.offering._is_outdated()
    assert len(spreading.slices.offers) == before + 1


def test_the_thread_gives_a_new_order_by_itself(spreading, monkeypatch):
    monkeypatch.setattr(module, "RELEASE_SECONDS", 0.02)
    spreading.offering._clock = time.monotonic
    spreading.offering.start()
    try:
        prepared(spreading, share(spreading))
        assert spreading.server.wait(lambda: order(spreading) == ["gpu-1", "gpu-0"])
    finally:
        spreading.offering.stop()
