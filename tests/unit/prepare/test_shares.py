"""Shares of whole GPUs and of instances that an administrator made: several claims on one device at once."""

import itertools
import json
import uuid
from contextlib import contextmanager

import pytest
from doubles.preparing import PreparingNode, allocation

from dradriver import api
from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import make_offer
from dradriver.gpu.policy import GpuRule, OfferPolicy, Sharing
from dradriver.kubelet import Failed, Prepared
from dradriver.prepare import boundaries
from dradriver.prepare.boundaries import Boundary
from dradriver.prepare.node import Node
from dradriver.prepare.recovery import recover

ONE_G = "gpu-0-mig-1g10gb-19-0"


class SharingNode(PreparingNode):
    """Offers its GPUs in four shares each."""

    def _node(self):
        gpus = self.nvml.gpus()
        policy = OfferPolicy(default=GpuRule(sharing=Sharing(replicas=4)))
        offer = make_offer(gpus, pool="node-a", policy=policy, numbers=number_gpus(gpus, {}))
        return Node(gpus={gpu.uuid: gpu for gpu in gpus}, offer=offer, hardware=self.nvml)

    def share(self, device="gpu-0", **fields):
        return self.allocate(device, shareID=str(uuid.uuid4()), **fields)

    def two_shares(self, *requests, device="gpu-0"):
        """A claim with two shares of one device."""
        claim = self.allocate(*((request, device) for request in requests))
        results = self.claims["ns", claim.name]["status"]["allocation"]["devices"]["results"]
        for result in results:
            result["shareID"] = str(uuid.uuid4())
        return claim

    def spec(self, claim):
        return json.loads(self.containers.specs.path(claim.uid).read_text())


@pytest.fixture
def node(tmp_path):
    made = SharingNode(folder=tmp_path)
    yield made
    made.nvml.close()


def names(answer):
    return [name for device in answer.devices for name in device.cdi_device_ids]


def seen(spec, *requested):
    """Device nodes and variables of a container that gets these devices of a spec, as a runtime merges them."""
    nodes, variables = set(), {}
    for device in spec["devices"]:
        if not requested or f"{api.CDI_KIND}={device['name']}" in requested:
            nodes |= {one["path"] for one in device["containerEdits"]["deviceNodes"]}
            variables |= dict(line.split("=", 1) for line in device["containerEdits"]["env"])
    return nodes, variables


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_claims_share_a_gpu_and_end_in_any_order(node, order):
    claims = [node.share() for _ in order]
    answers = [node.prepare(claim) for claim in claims]
    assert all(isinstance(answer, Prepared) for answer in answers)
    assert len({name for answer in answers for name in names(answer)}) == 3
    (uuid_of_gpu,) = {seen(node.spec(claim))[1][api.DEVICES_VARIABLE] for claim in claims}
    assert uuid_of_gpu == node.nvml.gpus()[0].uuid
    for number in order:
        assert node.unprepare(claims[number]) is None
        assert claims[number].uid not in node.specs()
    assert node.is_clean()


def test_the_kubelet_is_told_which_share_is_whose(node):
    claims = [node.share(), node.share()]
    answers = node.prepare(*claims)
    wanted = [node.claims["ns", one.name]["status"]["allocation"]["devices"]["results"][0]["shareID"] for one in claims]
    assert [answer.devices[0].share_id for answer in answers] == wanted


@pytest.mark.parametrize("requests", [("a", "b"), ("a", "a")])
def test_a_container_sees_a_gpu_once_of_which_its_claim_has_two_shares(node, requests):
    claim = node.two_shares(*requests)
    answer = node.prepare(claim)
    assert len(set(names(answer))) == 2
    gpu = node.nvml.gpus()[0]
    nodes, variables = seen(node.spec(claim))
    assert {path for path in nodes if path.rpartition("/nvidia")[2].isdigit()} == {f"/dev/nvidia{gpu.minor}"}
    assert variables[api.DEVICES_VARIABLE] == gpu.uuid
    assert seen(node.spec(claim), names(answer)[0]) == (nodes, variables)
    assert node.prepare(claim) == answer
    node.restart()
    assert node.prepare(claim) == answer
    assert node.unprepare(claim) is None
    assert node.is_clean()


def test_a_device_without_a_share_is_still_not_given_twice(node):
    claim = node.allocate("gpu-0", "gpu-0")
    assert "is allocated twice" in node.prepare(claim).message
    claim = node.allocate("gpu-0", "gpu-0", shareID=str(uuid.uuid4()))
    assert "is allocated twice" in node.prepare(claim).message


@pytest.mark.parametrize("first", ["share", "whole"])
def test_a_share_and_a_whole_claim_never_both_hold_a_gpu(node, first):
    claims = [node.share(), node.allocate("gpu-0")]
    holder, other = claims if first == "share" else reversed(claims)
    assert isinstance(node.prepare(holder), Prepared)
    node.restart()
    refused = node.prepare(other)
    assert isinstance(refused, Failed)
    assert "still held by claim" in refused.message
    assert other.uid not in node.specs()
    node.unprepare(holder)
    assert isinstance(node.prepare(other), Prepared)


def test_a_whole_claim_waits_for_the_last_share(node):
    shares, whole = [node.share(), node.share()], node.allocate("gpu-0")
    node.prepare(*shares)
    node.unprepare(shares[0])
    assert isinstance(node.prepare(whole), Failed)
    node.unprepare(shares[1])
    assert isinstance(node.prepare(whole), Prepared)


class _KilledError(BaseException):
    """Stands for SIGKILL: nothing of the program that follows is done."""


@contextmanager
def killed_at(boundary):
    """Ends what is done inside as soon as it passes a boundary, as SIGKILL would."""

    def kill(passed):
        if passed is boundary:
            raise _KilledError

    boundaries.watch(kill)
    try:
        with pytest.raises(_KilledError):
            yield
    finally:
        boundaries.watch(None)


@pytest.mark.parametrize(
    "boundary",
    [
        Boundary.RECORD_TEMPORARY_WRITTEN,
        Boundary.PREPARING_RECORDED,
        Boundary.SPEC_WRITTEN,
        Boundary.PREPARED_RECORDED,
    ],
)
def test_a_share_that_was_begun_when_the_process_died_is_finished_or_undone_beside_the_other(node, boundary):
    other, claim = node.share(), node.share()
    node.prepare(other)

    with killed_at(boundary):
        node.preparer.prepare([claim], deadline=2**31)
    node.restart()
    assert isinstance(node.prepare(other), Prepared)
    assert isinstance(node.prepare(claim), Prepared)
    assert seen(node.spec(claim))[1] == seen(node.spec(other))[1]
    node.unprepare(other)
    assert claim.uid in node.specs()
    node.unprepare(claim)
    assert node.is_clean()


@pytest.mark.parametrize("boundary", [Boundary.SPEC_REMOVED, Boundary.RECORD_REMOVED])
def test_a_share_that_was_being_undone_when_the_process_died_leaves_the_other(node, boundary):
    other, claim = node.share(), node.share()
    node.prepare(other, claim)

    with killed_at(boundary):
        node.preparer.unprepare([claim], deadline=2**31)
    node.restart()
    assert node.unprepare(claim) is None
    assert node.specs() == [other.uid]
    assert isinstance(node.prepare(other), Prepared)


def test_records_of_shares_that_were_lost_are_made_again_from_their_specs(node):
    claims = [node.share(), node.two_shares("a", "b")]
    node.prepare(*claims)
    before = {claim.uid: node.records.get(claim.uid).plan for claim in claims}
    for claim in claims:
        found = recover(
            node.containers.specs.path(claim.uid), uid=claim.uid, boot_id=node.preparer._boot_id, node=node.node
        )
        assert found.plan.means_the_same_as(before[claim.uid])
        (node.folder / "claims" / f"{claim.uid}.json").unlink()
    node.restart()
    third = node.share()
    assert isinstance(node.prepare(third), Prepared)
    assert all(node.unprepare(claim) is None for claim in (*claims, third))
    assert node.is_clean()


def test_a_share_that_was_allocated_before_sharing_ended_is_prepared(node):
    claim = node.share()
    gpus = node.nvml.gpus()
    offer = make_offer(gpus, pool="node-a", policy=OfferPolicy(), numbers=number_gpus(gpus, {}))
    node.node = Node(gpus={gpu.uuid: gpu for gpu in gpus}, offer=offer, hardware=node.nvml)
    assert isinstance(node.prepare(claim), Prepared)


def test_shares_of_an_administrators_instance_leave_it_alone(tmp_path):
    node = SharingNode(folder=tmp_path, machine="1xh100-80gb", mig_mode="on")
    node.simulate("instance", "create", "1g.10gb", "--gpu", "0", "--start", "0")
    node.restart()
    before = node.instances()
    claims = [node.share(ONE_G), node.share(ONE_G), node.two_shares("a", "b", device=ONE_G)]
    assert all(isinstance(answer, Prepared) for answer in node.prepare(*claims))
    (instance,) = node.nvml.instances(node.nvml.gpus()[0].uuid)
    assert {seen(node.spec(claim))[1][api.DEVICES_VARIABLE] for claim in claims} == {instance.uuid}
    for claim in claims:
        assert node.unprepare(claim) is None
        assert node.instances() == before
    node.nvml.close()


def test_processes_of_one_share_do_not_keep_another_from_starting(node):
    first, second = node.share(), node.share()
    node.prepare(first)
    node.simulate("process", "add", "4711", "--gpu", "0")
    assert isinstance(node.prepare(second), Prepared)


def test_a_process_is_the_last_shares_own_and_may_be_anybodys_before(node):
    first, second = node.share(), node.share()
    node.prepare(first, second)
    node.simulate("process", "add", "4711", "--gpu", "0")
    assert [node.preparer.is_used(node.records.get(one.uid)) for one in (first, second)] == [False, False]
    node.unprepare(first)
    assert node.preparer.is_used(node.records.get(second.uid))
    node.unprepare(second)
    whole = node.allocate("gpu-0")
    assert "processes compute on it" in node.prepare(whole).message


@pytest.mark.parametrize("strategy", ["MPS", "TimeSlicing"])
def test_a_share_may_be_configured_for_time_slicing_and_not_for_mps(node, strategy):
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": strategy}}
    config = [{"source": "FromClass", "opaque": {"driver": api.DRIVER_NAME, "parameters": parameters}}]
    claim = node.share()
    share_id = str(uuid.uuid4())
    node.claims["ns", claim.name]["status"]["allocation"] = allocation("gpu-0", shareID=share_id, config=config)
    answer = node.prepare(claim)
    if strategy == "MPS":
        assert "sharing.strategy MPS is not supported" in answer.message
    else:
        assert isinstance(answer, Prepared)


@pytest.mark.parametrize(
    ("consumed", "shares"),
    [
        ({"shares": "4", "memory": "0"}, 4),
        ({"gpu.nvidia.com/shares": "2"}, 2),
        ({"memory": "60Gi"}, 1),
        ({}, 1),
        (None, 1),
    ],
)
def test_the_record_knows_how_many_shares_a_claim_takes(node, consumed, shares):
    claim = node.share(consumedCapacity=consumed)
    node.prepare(claim)
    (device,) = node.records.get(claim.uid).plan.devices
    assert device.shares == shares
    node.restart()
    assert node.records.get(claim.uid).plan.devices == (device,)


@pytest.mark.parametrize("value", ["many", "", [], {}])
def test_a_number_of_shares_that_is_none_is_told(node, value):
    answer = node.prepare(node.share(consumedCapacity={"shares": value}))
    assert "consumedCapacity" in answer.message
    assert node.specs() == []
