from pathlib import Path

import pytest
from doubles.kubelet import HEALTH_V1, HEALTH_V1ALPHA1, V1, V1BETA1, Kubelet

from dradriver.kubelet import RegistrationServer, RegistryMissingError
from dradriver.kubelet.registration import HEALTH_VERSIONS, VERSIONS

DRIVER = "gpu.nvidia.com"


@pytest.fixture
def verdicts():
    return []


@pytest.fixture
def start(paths, verdicts):
    servers = []

    def begin(**changes):
        fields = {
            "driver_name": DRIVER,
            "endpoint": paths.dra,
            "socket_path": paths.registration,
            "on_status": lambda *verdict: verdicts.append(verdict),
        }
        server = RegistrationServer(**{**fields, **changes})
        server.start()
        servers.append(server)
        return server

    yield begin
    for server in servers:
        server.stop()


def test_the_kubelet_learns_name_endpoint_and_version(start, paths, verdicts):
    start()
    kubelet = Kubelet(registry=paths.registration.parent)
    kubelet.scan()
    plugin = kubelet.plugin(DRIVER)
    assert (plugin.driver, plugin.endpoint, plugin.version) == (DRIVER, paths.dra, V1)
    assert verdicts == [(True, "")]


def test_an_older_kubelet_chooses_the_older_version(start, paths):
    start()
    kubelet = Kubelet(registry=paths.registration.parent, versions=(V1BETA1,))
    kubelet.scan()
    assert kubelet.plugin(DRIVER).version == V1BETA1


@pytest.mark.parametrize("version", [V1, V1BETA1])
def test_names_of_services_that_a_kubelet_does_not_know_are_skipped(start, paths, verdicts, version):
    start(versions=(*VERSIONS, *HEALTH_VERSIONS))
    kubelet = Kubelet(registry=paths.registration.parent, versions=(version,), health_versions=())
    kubelet.scan()
    plugin = kubelet.plugin(DRIVER)
    assert (plugin.version, plugin.health_version) == (version, "")
    assert verdicts == [(True, "")]


@pytest.mark.parametrize("known", [(HEALTH_V1, HEALTH_V1ALPHA1), (HEALTH_V1ALPHA1,)])
def test_the_kubelet_learns_of_the_health_service_when_it_is_told(start, paths, known):
    start(versions=(*VERSIONS, *HEALTH_VERSIONS))
    kubelet = Kubelet(registry=paths.registration.parent, health_versions=known)
    kubelet.scan()
    assert kubelet.plugin(DRIVER).health_version == known[0]


def test_a_refusal_is_passed_on_with_its_reason(start, paths, verdicts, caplog):
    start(versions=("v9.DRAPlugin",))
    kubelet = Kubelet(registry=paths.registration.parent)
    kubelet.scan()
    ((registered, reason),) = verdicts
    assert registered is False
    assert "v9.DRAPlugin" in reason
    assert reason in caplog.text
    assert not kubelet.plugins


def test_a_restarted_kubelet_asks_again(start, paths, verdicts):
    start()
    kubelet = Kubelet(registry=paths.registration.parent)
    kubelet.scan()
    kubelet.restart()
    assert kubelet.plugin(DRIVER).version == V1
    assert verdicts == [(True, ""), (True, "")]


def test_a_callback_that_crashes_does_not_reach_the_kubelet(start, paths, caplog):
    def crash(_registered, _reason):
        raise ZeroDivisionError("callback")

    start(on_status=crash)
    kubelet = Kubelet(registry=paths.registration.parent)
    kubelet.scan()
    assert kubelet.plugin(DRIVER)
    assert "ZeroDivisionError: callback" in caplog.text


def test_stop_removes_the_socket_and_the_kubelet_forgets(start, paths):
    server = start()
    kubelet = Kubelet(registry=paths.registration.parent)
    kubelet.scan()
    server.stop()
    assert not paths.registration.exists()
    kubelet.scan()
    assert not kubelet.plugins


def test_a_registry_that_does_not_exist_is_not_made(start, root):
    missing = root / "other_root" / "plugins_registry"
    with pytest.raises(RegistryMissingError, match=str(missing)):
        start(socket_path=missing / "gpu.nvidia.com-reg.sock")
    assert not missing.exists()


def test_the_watching_kubelet_finds_a_socket_that_appears_later(start, paths, verdicts):
    kubelet = Kubelet(registry=paths.registration.parent).start()
    try:
        start()
        kubelet.wait_for(lambda kubelet: kubelet.plugins)
    finally:
        kubelet.stop()
    assert verdicts[0] == (True, "")


def test_the_endpoint_is_told_as_given(start, paths):
    start(endpoint=Path("/host/dra.sock"))
    kubelet = Kubelet(registry=paths.registration.parent)
    kubelet.scan()
    assert kubelet.plugin(DRIVER).endpoint == Path("/host/dra.sock")
