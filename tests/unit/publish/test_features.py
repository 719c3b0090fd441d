import copy
from dataclasses import replace

import pytest
from doubles.apiserver import Fault, Refusal
from doubles.pools import DRIVER, NODE, counter_slice, device_slice, sick
from doubles.versions import Kubernetes

from dradriver.kube import ForbiddenError, InvalidError, ServerError
from dradriver.publish import Features, probe_features
from dradriver.publish.features import dropped_fields
from dradriver.resource import Device, Layout, RequestPolicy, Slice, slice_spec

ALL = Features(layout=Layout.APART, taints=True, informational_taints=True)
NOTHING = Features(layout=None, taints=False, informational_taints=False, shares=False)


def strip(*fields):
    def change(item):
        for field in fields:
            item.get("spec", {}).pop(field, None)
            for device in item.get("spec", {}).get("devices", []):
                device.pop(field, None)

    return change


@pytest.mark.parametrize(
    ("kubernetes", "expected", "requests"),
    [
        (Kubernetes(minor=37), ALL, 2),
        (Kubernetes(minor=36), ALL, 2),
        (Kubernetes(minor=36, shares=False), replace(ALL, shares=False), 2),
        (Kubernetes(minor=35, shares=True), ALL, 2),
        (Kubernetes(minor=35, partitions=False, taints=False), NOTHING, 1),
        (
            Kubernetes(minor=35, taints=False),
            Features(layout=Layout.APART, taints=False, informational_taints=False, shares=False),
            2,
        ),
        (
            Kubernetes(minor=35, partitions=False),
            Features(layout=None, taints=True, informational_taints=True, shares=False),
            1,
        ),
        (Kubernetes(minor=34, partitions=False, taints=False), NOTHING, 1),
        (
            Kubernetes(minor=34),
            Features(layout=Layout.TOGETHER, taints=True, informational_taints=False, shares=False),
            4,
        ),
        (
            Kubernetes(minor=34, taints=False),
            Features(layout=Layout.TOGETHER, taints=False, informational_taints=False, shares=False),
            2,
        ),
        (
            Kubernetes(minor=34, partitions=False),
            Features(layout=None, taints=True, informational_taints=False, shares=False),
            3,
        ),
    ],
)
def test_each_version_and_gate_is_told_apart(client, server, kubernetes, expected, requests):
    server.strip = kubernetes
    assert probe_features(client, DRIVER, NODE) == expected
    assert len(server.requests) == requests
    assert server.writes == []
    assert server.names("resourceslices") == []


@pytest.mark.parametrize(
    ("dropped", "layout"), [("sharedCounters", None), ("consumesCounters", None), ("capacity", Layout.APART)]
)
def test_half_of_the_counters_is_none(client, server, dropped, layout):
    server.strip = strip(dropped)
    kept = Features(layout=layout, taints=True, informational_taints=True, shares=dropped != "capacity")
    assert probe_features(client, DRIVER, NODE) == kept


def without_policies(item):
    for device in item["spec"].get("devices", []):
        for entry in device.get("capacity", {}).values():
            entry.pop("requestPolicy", None)


@pytest.mark.parametrize("change", [strip("allowMultipleAllocations"), without_policies])
def test_half_of_what_makes_shares_is_none(client, server, change):
    server.strip = change
    assert probe_features(client, DRIVER, NODE) == replace(ALL, shares=False)


def test_half_of_the_counters_is_none_in_one_slice_either(client, server):
    def change(item):
        Kubernetes(minor=34)(item)
        item["spec"].pop("sharedCounters", None)

    server.strip = change
    assert probe_features(client, DRIVER, NODE).layout is None


@pytest.mark.parametrize("layout", [Layout.APART, None])
def test_partitions_need_a_layout(layout):
    assert Features(layout=layout, taints=True, informational_taints=True).partitionable == (layout is not None)


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_that_refuses_a_field_does_not_have_it(client, server, status):
    server.fail(
        Fault(status=status, reason="Invalid", message='strict decoding error: unknown field "spec.devices[0].taints"'),
        when=lambda request: "taints" in str(request.body),
        times=float("inf"),
    )
    expected = Features(layout=Layout.APART, taints=False, informational_taints=False)
    assert probe_features(client, DRIVER, NODE) == expected


def test_a_server_that_refuses_everything_has_said_nothing_of_fields(client, server):
    def refuse(_item):
        raise Refusal(422, "Invalid", "spec.pool.name: Invalid value")

    server.strip = refuse
    with pytest.raises(InvalidError, match=r"spec\.pool\.name"):
        probe_features(client, DRIVER, NODE)
    assert len(server.requests) == 6


def spec(**content):
    return slice_spec(Slice(**content), driver=DRIVER, node_name=NODE, pool={"name": NODE})


def test_what_one_device_lost_is_missed():
    sent = spec(devices=device_slice(0, taints=(sick(),)).devices)
    assert dropped_fields(sent, copy.deepcopy(sent)) == frozenset()
    for field in ("consumesCounters", "taints"):
        stored = copy.deepcopy(sent)
        del stored["devices"][1][field]
        assert dropped_fields(sent, stored) == {field}
    stored = copy.deepcopy(sent)
    del stored["devices"][0]
    assert dropped_fields(sent, stored) == frozenset()


def test_what_a_shared_device_lost_is_missed():
    policies = {"memory": RequestPolicy(default=0), "shares": RequestPolicy(default=1, least=1)}
    sent = spec(devices=(Device(name="gpu-0", capacity={"memory": 80, "shares": 4}, policies=policies),))
    assert dropped_fields(sent, copy.deepcopy(sent)) == frozenset()
    stored = copy.deepcopy(sent)
    del stored["devices"][0]["allowMultipleAllocations"]
    assert dropped_fields(sent, stored) == {"allowMultipleAllocations"}
    stored = copy.deepcopy(sent)
    del stored["devices"][0]["capacity"]["memory"]["requestPolicy"]
    assert dropped_fields(sent, stored) == {"requestPolicy"}


def test_counters_with_other_values_are_not_those_that_were_sent():
    devices = spec(devices=device_slice(0).devices)
    changed = copy.deepcopy(devices)
    changed["devices"][0]["consumesCounters"][0]["counters"]["memory"]["value"] = "7"
    assert dropped_fields(devices, changed) == {"consumesCounters"}
    changed["devices"][0]["consumesCounters"][0]["counters"]["memory"]["value"] = "8000m"
    assert dropped_fields(devices, changed) == frozenset()
    sets = spec(counter_sets=counter_slice(2).counter_sets)
    assert dropped_fields(sets, {**sets, "sharedCounters": sets["sharedCounters"][:1]}) == {"sharedCounters"}
    assert dropped_fields(sets, spec()) == {"sharedCounters"}


@pytest.mark.parametrize(
    "message",
    [
        'resourceslices.resource.k8s.io "x" is forbidden: policy denied request: not the node of the token',
        'admission webhook "slices.example.com" denied the request: no',
    ],
)
def test_a_denial_is_no_answer(client, server, message):
    server.fail(Fault(status=422, reason="Invalid", message=message))
    with pytest.raises(ForbiddenError, match=message[-8:]):
        probe_features(client, DRIVER, NODE)


@pytest.mark.parametrize("number", range(2))
def test_a_failing_server_is_no_answer(client, server, number):
    server.fail(Fault(status=500), when=lambda _request: len(server.requests) > number)
    with pytest.raises(ServerError):
        probe_features(client, DRIVER, NODE)


def test_probes_carry_own_node_and_driver(client, server):
    probe_features(client, DRIVER, NODE)
    assert server.count(lambda request: request.method == "POST") == 2
    for request in server.requests:
        assert request.query["dryRun"] == "All"
        assert request.query["fieldValidation"] == "Strict"
        assert (request.body["spec"]["driver"], request.body["spec"]["nodeName"]) == (DRIVER, NODE)
