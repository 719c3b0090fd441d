import json

import pytest
from doubles.apiserver import Fault

from controller.acting import unsupported_because
from dradriver.kube import ServerError


def is_version(request):
    return request.path == "/version"


def is_probe(request):
    return request.method == "PATCH"


def answers(server, when, document, status=200):
    server.fail(Fault(status=status, raw=json.dumps(document).encode()), when=when)


def version(server, minor):
    answers(server, is_version, {"major": "1", "minor": str(minor)})


PROBE = {"metadata": {"name": "probe"}, "spec": {"extendedResourceName": "dradriver.dev/probe"}}


def test_a_server_that_keeps_the_field_can(server, client):
    version(server, 36)
    answers(server, is_probe, PROBE)
    assert unsupported_because(client) == ""
    (probe,) = [request for request in server.requests if is_probe(request)]
    assert probe.query["dryRun"] == "All"
    assert probe.body["spec"] == PROBE["spec"]


def test_one_that_drops_it_cannot(server, client):
    version(server, 35)
    answers(server, is_probe, PROBE | {"spec": {}})
    why = unsupported_because(client)
    assert why.startswith("the API server drops spec.extendedResourceName")
    assert "DRAExtendedResource" in why


def test_an_old_one_is_not_even_asked(server, client):
    version(server, 34)
    assert unsupported_because(client).startswith("this is Kubernetes 1.34; use Kubernetes 1.35")
    assert not [request for request in server.requests if is_probe(request)]


def test_one_that_does_not_know_the_field_or_the_api(server, client):
    version(server, 35)
    server.fail(Fault(status=400, reason="BadRequest", message="unknown field"), when=is_probe)
    assert "refuses a DeviceClass" in unsupported_because(client)
    version(server, 35)
    server.fail(Fault(status=404, reason="NotFound"), when=is_probe)
    assert "does not serve resource.k8s.io/v1" in unsupported_because(client)


def test_no_answer_is_no_verdict(server, client):
    server.fail(Fault(status=503), when=is_version)
    with pytest.raises(ServerError):
        unsupported_because(client)
