import pytest
from doubles.apiserver import Fault
from doubles.pools import DRIVER, NODE

from dradriver.kube import ForbiddenError, ServerError
from dradriver.publish import Features, probe_features


def strip(*fields):
    def change(item):
        for field in fields:
            item.get("spec", {}).pop(field, None)
            for device in item.get("spec", {}).get("devices", []):
                device.pop(field, None)

    return change


@pytest.mark.parametrize(
    ("dropped", "expected"),
    [
        ((), Features(partitionable=True, taints=True)),
        (("taints",), Features(partitionable=True, taints=False)),
        (("sharedCounters",), Features(partitionable=False, taints=True)),
        (("consumesCounters",), Features(partitionable=False, taints=True)),
        (("taints", "consumesCounters", "sharedCounters"), Features(partitionable=False, taints=False)),
    ],
)
def test_what_is_dropped_is_missed(client, server, dropped, expected):
    server.strip = strip(*dropped)
    assert probe_features(client, DRIVER, NODE) == expected
    assert server.writes == []
    assert server.names("resourceslices") == []


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_that_refuses_the_field_does_not_have_it(client, server, status):
    server.fail(
        Fault(status=status, reason="Invalid", message='strict decoding error: unknown field "spec.devices[0].taints"'),
        when=lambda request: "taints" in str(request.body),
    )
    assert probe_features(client, DRIVER, NODE) == Features(partitionable=True, taints=False)


def test_a_denial_is_no_answer(client, server):
    message = 'resourceslices.resource.k8s.io "x" is forbidden: policy denied request: not the node of the token'
    server.fail(Fault(status=422, reason="Invalid", message=message))
    with pytest.raises(ForbiddenError, match="not the node of the token"):
        probe_features(client, DRIVER, NODE)


def test_a_failing_server_is_no_answer(client, server):
    server.fail(Fault(status=500))
    with pytest.raises(ServerError):
        probe_features(client, DRIVER, NODE)


def test_probes_carry_own_node_and_driver(client, server):
    probe_features(client, DRIVER, NODE)
    assert server.count(lambda request: request.method == "POST") == 3
    for request in server.requests:
        assert request.query["dryRun"] == "All"
        assert request.query["fieldValidation"] == "Strict"
        assert (request.body["spec"]["driver"], request.body["spec"]["nodeName"]) == (DRIVER, NODE)
