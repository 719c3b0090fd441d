"""The kubelet double judges as the kubelet does."""

import threading

import pytest
from doubles.kubelet import V1, V1BETA1, Kubelet, KubeletDoubleError, dra_v1_messages, dra_v1beta1_messages

from dradriver.kubelet import ClaimReference
from dradriver.kubelet._grpc import SocketServer, unary_service
from dradriver.kubelet.registration import RegistrationServer
from dradriver.kubelet.sockets import make_folder
from dradriver.proto import dra_v1_pb2 as v1
from dradriver.proto import registration_v1_pb2 as registration

DRIVER = "bad.driver"
CLAIM = ClaimReference(namespace="team", name="training", uid="1")


@pytest.fixture
def plugin(paths):
    """A plugin that answers every call with the given response."""
    servers = []

    def begin(response):
        method = ("NodePrepareResources", v1.NodePrepareResourcesRequest, v1.NodePrepareResourcesResponse)
        if isinstance(response, v1.NodeUnprepareResourcesResponse):
            method = ("NodeUnprepareResources", v1.NodeUnprepareResourcesRequest, v1.NodeUnprepareResourcesResponse)
        name, request, answer = method
        calls = {name: (lambda _request, _context: response, request, answer)}
        services = [unary_service("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", calls)]
        servers.append(SocketServer(paths.dra, services=services, workers=1, provide_folder=make_folder))
        servers.append(
            RegistrationServer(
                driver_name=DRIVER, endpoint=paths.dra, socket_path=paths.registration, on_status=lambda *_: None
            )
        )
        for server in servers:
            server.start()
        kubelet = Kubelet(registry=paths.registration.parent)
        kubelet.scan()
        return kubelet

    yield begin
    for server in servers:
        server.stop(0)


def test_a_socket_that_goes_while_it_is_looked_at_is_no_plugin(plugin, paths, monkeypatch):
    kubelet = plugin(v1.NodePrepareResourcesResponse())
    assert kubelet.plugin(DRIVER).endpoint == paths.dra
    listed = kubelet._sockets()
    assert listed == [paths.registration]
    gone = paths.registration.with_name("gone-reg.sock")
    monkeypatch.setattr(kubelet, "_sockets", lambda: [gone, *listed])
    kubelet.scan()
    assert list(kubelet.plugins) == listed
    monkeypatch.setattr(kubelet, "_sockets", lambda: [gone])
    kubelet.scan()
    assert kubelet.plugins == {}


def test_a_skipped_claim_fails_the_pod(plugin):
    kubelet = plugin(v1.NodePrepareResourcesResponse())
    with pytest.raises(KubeletDoubleError, match="skipped 1 ResourceClaims"):
        kubelet.prepare(DRIVER, [CLAIM])
    assert kubelet.prepared == {}


def test_an_unknown_claim_fails_the_pod(plugin):
    kubelet = plugin(v1.NodePrepareResourcesResponse(claims={"2": v1.NodePrepareResourceResponse()}))
    with pytest.raises(KubeletDoubleError, match="unknown claim UID 2"):
        kubelet.prepare(DRIVER, [CLAIM])


def test_an_error_fails_the_unprepare(plugin):
    kubelet = plugin(v1.NodeUnprepareResourcesResponse(claims={"1": v1.NodeUnprepareResourceResponse(error="busy")}))
    with pytest.raises(KubeletDoubleError, match="training: busy"):
        kubelet.unprepare(DRIVER, [CLAIM])


def test_a_prepared_claim_is_not_asked_for_again(plugin):
    kubelet = plugin(v1.NodePrepareResourcesResponse(claims={"1": v1.NodePrepareResourceResponse()}))
    first = kubelet.prepare(DRIVER, [CLAIM])
    kubelet.plugins.clear()
    assert kubelet.prepare(DRIVER, [CLAIM]) == first


def test_another_type_of_plugin_is_refused(paths):
    verdicts = []
    calls = {
        "GetInfo": (
            lambda _request, _context: registration.PluginInfo(type="CSIPlugin", name="x"),
            registration.InfoRequest,
            registration.PluginInfo,
        ),
        "NotifyRegistrationStatus": (
            lambda request, _context: verdicts.append(request) or registration.RegistrationStatusResponse(),
            registration.RegistrationStatus,
            registration.RegistrationStatusResponse,
        ),
    }
    services = [unary_service("pluginregistration.Registration", calls)]
    server = SocketServer(paths.registration, services=services, workers=1, provide_folder=lambda _: None)
    server.start()
    kubelet = Kubelet(registry=paths.registration.parent)
    kubelet.scan()
    server.stop(0)
    assert not verdicts[0].plugin_registered
    assert "CSIPlugin" in kubelet.refused[paths.registration]


def test_the_same_endpoint_twice_is_refused(paths):
    verdicts = []
    servers = [
        RegistrationServer(
            driver_name=DRIVER,
            endpoint=paths.dra,
            socket_path=paths.registration.with_name(name),
            on_status=lambda *verdict: verdicts.append(verdict),
        )
        for name in ("a-reg.sock", "b-reg.sock")
    ]
    for server in servers:
        server.start()
    Kubelet(registry=paths.registration.parent).scan()
    for server in servers:
        server.stop()
    assert [registered for registered, _ in verdicts] == [True, False]
    assert "already registered" in verdicts[1][1]


def test_hidden_files_and_other_files_are_no_plugins(paths):
    (paths.registration.parent / "notes.txt").write_text("")
    make_folder(paths.registration.parent / "folder")
    kubelet = Kubelet(registry=paths.registration.parent)
    kubelet.scan()
    assert (kubelet.plugins, kubelet.refused) == ({}, {})


def test_the_older_messages_know_no_share():
    names = {V1: dra_v1_messages(), V1BETA1: dra_v1beta1_messages()}
    fields = {version: set() for version in names}
    for version, messages in names.items():
        device = next(message for name, message in messages.items() if name.endswith(".Device"))
        fields[version] = set(device.DESCRIPTOR.fields_by_name)
    assert fields[V1] - fields[V1BETA1] == {"share_id"}
    assert all(".v1beta1." in name for name in names[V1BETA1])


def test_restarting_while_it_watches_finds_plugins_anew(plugin):
    kubelet = plugin(v1.NodePrepareResourcesResponse()).start()
    kubelet.wait_for(lambda kubelet: kubelet.plugins)
    kubelet.restart()
    kubelet.wait_for(lambda kubelet: kubelet.plugins)
    assert [thread.name for thread in threading.enumerate()].count("kubelet-double") == 1
    kubelet.stop()
