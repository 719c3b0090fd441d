import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from doubles.kubelet import HEALTH_V1, V1, V1BETA1, HealthStream, Kubelet, KubeletDoubleError, call

from dradriver.kubelet import (
    ClaimReference,
    DeviceHealth,
    Failed,
    Health,
    HealthBoard,
    Plugin,
    Prepared,
    PreparedDevice,
    RegistryMissingError,
    SocketFolderError,
    SocketInUseError,
    SocketPathBlockedError,
    socket_paths,
)
from dradriver.kubelet._grpc import SocketServer, grpc
from dradriver.kubelet.sockets import make_folder

DRIVER = "gpu.nvidia.com"
CLAIM = ClaimReference(namespace="team", name="training", uid="1234")


class Handler:
    def __init__(self):
        self.prepared = set()
        self.gate = None
        self.entered = threading.Event()

    def prepare(self, claims, *, deadline):
        self.entered.set()
        if self.gate is not None:
            self.gate.wait(120)
        self.prepared |= {claim.uid for claim in claims}
        return {
            claim.uid: Failed("this one never works")
            if claim.name == "broken"
            else Prepared(
                devices=(
                    PreparedDevice(
                        request_names=("gpu",),
                        pool_name="node-a",
                        device_name="gpu-0",
                        cdi_device_ids=(f"k8s.gpu.nvidia.com/claim={claim.uid}",),
                    ),
                )
            )
            for claim in claims
        }

    def unprepare(self, claims, *, deadline):
        self.prepared -= {claim.uid for claim in claims}
        return dict.fromkeys(claim.uid for claim in claims)


@pytest.fixture
def handler():
    return Handler()


@pytest.fixture
def make(paths, handler):
    made = []

    def plugin(where=paths, **options):
        made.append(Plugin(handler, driver_name=DRIVER, paths=where, on_status=lambda *_: None, **options))
        return made[-1]

    yield plugin
    for each in made:
        each.stop(0)


@pytest.fixture
def plugin(make):
    plugin = make()
    plugin.serve()
    plugin.register()
    return plugin


@pytest.fixture
def kubelet(paths):
    return Kubelet(registry=paths.registration.parent)


@pytest.mark.parametrize("versions", [(V1, V1BETA1), (V1BETA1,)])
def test_a_claim_comes_and_goes(plugin, paths, handler, versions):
    kubelet = Kubelet(registry=paths.registration.parent, versions=versions)
    kubelet.scan()
    done = kubelet.prepare(DRIVER, [CLAIM])
    assert done["1234"].cdi_device_ids == ("k8s.gpu.nvidia.com/claim=1234",)
    assert handler.prepared == {"1234"}
    kubelet.unprepare(DRIVER, [CLAIM])
    assert handler.prepared == set()
    assert kubelet.prepared == {}


def test_health_is_offered_where_there_is_a_board_and_only_there(make, paths):
    board = HealthBoard()
    board.post([DeviceHealth(pool="node-a", device="gpu-0", health=Health.UNHEALTHY, message="Xid 79", since=1)])
    for given, version in ((board, HEALTH_V1), (None, "")):
        plugin = make(board=given)
        plugin.serve()
        plugin.register()
        kubelet = Kubelet(registry=paths.registration.parent)
        kubelet.scan()
        found = kubelet.plugin(DRIVER)
        assert found.health_version == version
        with HealthStream(found.endpoint) as stream:
            stream.wait_for(lambda stream: stream.lists or stream.code)
            assert bool(stream.lists) is bool(version)
            plugin.stop(120)
            stream.wait_for_end()


def test_a_running_call_is_finished_after_the_streams_have_ended(make, kubelet, handler):
    board = HealthBoard()
    plugin = make(board=board)
    plugin.serve()
    plugin.register()
    kubelet.scan()
    handler.gate = threading.Event()
    results = []
    caller = threading.Thread(target=lambda: results.append(kubelet.prepare(DRIVER, [CLAIM])))
    with HealthStream(kubelet.plugin(DRIVER).endpoint) as stream:
        caller.start()
        assert handler.entered.wait(60)
        stopper = threading.Thread(target=plugin.stop, args=(120,))
        stopper.start()
        assert stream.wait_for_end() in {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
        assert stopper.is_alive()
        assert results == []
        handler.gate.set()
        stopper.join(60)
        caller.join(60)
    assert not stopper.is_alive()
    assert results[0]["1234"].devices


def test_a_failed_claim_is_told_to_the_pod(plugin, kubelet):
    kubelet.scan()
    broken = ClaimReference(namespace="team", name="broken", uid="666")
    with pytest.raises(KubeletDoubleError, match="failed for ResourceClaim broken: this one never works"):
        kubelet.prepare(DRIVER, [broken])


def test_registration_comes_last(make, paths):
    plugin = make()
    plugin.serve()
    assert paths.dra.is_socket()
    assert not paths.registration.exists()
    assert not plugin.serving
    plugin.register()
    assert plugin.serving


def test_sockets_belong_to_the_user_alone(plugin, paths):
    assert paths.dra.stat().st_mode & 0o777 == 0o600
    assert paths.registration.stat().st_mode & 0o777 == 0o600


def test_registration_goes_first_and_running_calls_are_answered(plugin, kubelet, paths, handler):
    kubelet.scan()
    handler.gate = threading.Event()
    results = []
    caller = threading.Thread(target=lambda: results.append(kubelet.prepare(DRIVER, [CLAIM])))
    caller.start()
    assert handler.entered.wait(60)
    stopper = threading.Thread(target=plugin.stop, args=(120,))
    stopper.start()
    while paths.registration.exists():
        time.sleep(0.01)
    kubelet.scan()
    with pytest.raises(KubeletDoubleError, match="not registered"):
        kubelet.plugin(DRIVER)
    assert stopper.is_alive()
    handler.gate.set()
    stopper.join(60)
    caller.join(60)
    assert not stopper.is_alive()
    assert results[0]["1234"].devices
    assert not paths.dra.exists()


def test_stop_is_safe_before_start_and_twice(make, paths):
    plugin = make()
    plugin.stop()
    plugin.stop()
    assert not paths.dra.exists()


def test_a_second_instance_is_refused_and_the_first_one_stays(plugin, make, kubelet):
    second = make()
    with pytest.raises(SocketInUseError, match="another instance serves"):
        second.serve()
    second.stop()
    kubelet.scan()
    assert kubelet.prepare(DRIVER, [CLAIM])


@pytest.mark.parametrize("make_obstacle", [lambda path: path.write_text(""), lambda path: path.mkdir()])
def test_an_obstacle_at_the_path_is_told(make, paths, make_obstacle):
    paths.dra.parent.mkdir(parents=True)
    make_obstacle(paths.dra)
    with pytest.raises(SocketPathBlockedError, match=str(paths.dra)):
        make().serve()


def test_removed_files_come_back(plugin, paths, kubelet):
    assert plugin.ensure() is False
    shutil.rmtree(paths.dra.parent)
    paths.registration.unlink()
    assert not plugin.serving
    assert plugin.ensure() is True
    assert plugin.serving
    assert plugin.ensure() is False
    kubelet.scan()
    assert kubelet.prepare(DRIVER, [CLAIM])


def test_a_call_over_the_removed_file_is_answered_still(plugin, paths, kubelet, handler):
    kubelet.scan()
    handler.gate = threading.Event()
    results = []
    caller = threading.Thread(target=lambda: results.append(kubelet.prepare(DRIVER, [CLAIM])))
    caller.start()
    assert handler.entered.wait(60)
    paths.dra.unlink()
    assert plugin.ensure()
    handler.gate.set()
    caller.join(60)
    assert results[0]["1234"].devices
    assert paths.dra.is_socket()


def test_without_a_registry_ensure_complains_until_it_is_back(plugin, paths):
    shutil.rmtree(paths.registration.parent)
    with pytest.raises(RegistryMissingError):
        plugin.ensure()
    paths.registration.parent.mkdir()
    assert plugin.ensure() is True
    assert plugin.serving


def test_a_socket_that_cannot_be_made_leaves_nothing_behind(plugin, paths, monkeypatch):
    def refuse(*_arguments):
        raise PermissionError(1, "Operation not permitted")

    paths.dra.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "chmod", refuse)
        with pytest.raises(SocketFolderError, match=r"dra\.sock.*Operation not permitted.*root"):
            plugin.ensure()
    assert not paths.dra.exists()
    assert plugin.ensure() is True
    assert plugin.serving


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def descriptors():
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the listing must not hold what it lists


def refuse_chmod(monkeypatch):
    def refuse(*_arguments):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)


def refuse_bind(monkeypatch):
    def refuse(*_arguments):
        raise SocketFolderError("no socket here")

    monkeypatch.setattr("dradriver.kubelet._grpc._bind", refuse)


@pytest.mark.parametrize("refusal", [refuse_chmod, refuse_bind])
def test_failed_attempts_leak_no_descriptors_and_become_rare(paths, monkeypatch, refusal):
    now = [0.0]
    server = SocketServer(paths.dra, services=[], workers=1, provide_folder=make_folder, clock=lambda: now[0])
    server.start()
    paths.dra.unlink()
    attempts, before = [], descriptors()
    with monkeypatch.context() as patched:
        refusal(patched)
        for now[0] in range(0, 600, 5):
            try:
                assert server.ensure() is False
            except SocketFolderError:
                attempts.append(now[0])
    assert attempts[:5] == [0, 5, 15, 35, 75]
    assert len(attempts) < 15
    # gRPC closes its own in its own time.
    assert until(lambda: descriptors() <= before + 3)
    now[0] += 60
    assert server.ensure() is True
    assert server.serving
    server.stop(0)


def test_listeners_that_are_through_are_forgotten(paths):
    server = SocketServer(paths.dra, services=[], workers=1, provide_folder=make_folder)
    server.start()
    for _ in range(5):
        paths.dra.unlink()
        assert server.ensure()
        for _old, gone in server._retired:
            assert gone.wait(60)
    assert len(server._retired) == 1
    server.stop(0)


def test_a_folder_that_takes_no_socket_is_told_with_the_systems_reason(make, paths, monkeypatch):
    nowhere = SimpleNamespace(path="/proc/x", lead=int, cut=int)
    monkeypatch.setattr("dradriver.kubelet._grpc.DeadEnd", lambda _path: nowhere)
    with pytest.raises(SocketFolderError, match=r"dra\.sock.*(No such file|Permission|not permitted)"):
        make().serve()


def test_ensure_neither_starts_nor_revives(make, paths):
    plugin = make()
    assert plugin.ensure() is False
    plugin.serve()
    plugin.register()
    plugin.stop()
    assert plugin.ensure() is False
    assert not paths.dra.exists()


def test_leaving_does_not_take_the_successors_sockets(plugin, make, paths, kubelet):
    paths.dra.unlink()
    paths.registration.unlink()
    successor = make()
    successor.serve()
    successor.register()
    with pytest.raises(SocketInUseError):
        plugin.ensure()
    plugin.stop()
    assert successor.serving
    kubelet.scan()
    assert kubelet.prepare(DRIVER, [CLAIM])


def test_old_and_new_pod_serve_side_by_side(root, make, kubelet, handler):
    def of_pod(uid):
        return socket_paths(
            DRIVER, plugins_folder=root / "plugins", registry_folder=root / "plugins_registry", pod_uid=uid
        )

    old, new = make(of_pod("old")), make(of_pod("new"))
    for plugin in (old, new):
        plugin.serve()
        plugin.register()
        kubelet.scan()
    assert len(kubelet.plugins) == 2
    assert kubelet.plugin(DRIVER).endpoint == of_pod("new").dra
    old.stop()
    kubelet.scan()
    assert len(kubelet.plugins) == 1
    assert kubelet.prepare(DRIVER, [CLAIM])


PROGRAM = """
import sys
from pathlib import Path
from types import SimpleNamespace
from dradriver.kubelet import Plugin, SocketPaths
paths = SocketPaths(dra=Path(sys.argv[1]), registration=Path(sys.argv[2]))
plugin = Plugin(None, driver_name="gpu.nvidia.com", paths=paths, on_status=lambda *_: None)
plugin.serve()
plugin.register()
print("up", flush=True)
sys.stdin.read()
"""


def run_and_kill(paths):
    """Leave the sockets of a killed process behind."""
    arguments = [sys.executable, "-c", PROGRAM, str(paths.dra), str(paths.registration)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGKILL)
    assert paths.dra.is_socket()
    assert paths.registration.is_socket()


def test_sockets_of_a_killed_process_are_replaced(paths, make, kubelet):
    run_and_kill(paths)
    kubelet.scan()
    assert not kubelet.plugins
    plugin = make()
    plugin.serve()
    plugin.register()
    kubelet.scan()
    assert kubelet.prepare(DRIVER, [CLAIM])


def test_sockets_of_a_killed_pod_are_removed(root, make):
    folders = {"plugins_folder": root / "plugins", "registry_folder": root / "plugins_registry"}
    killed = socket_paths(DRIVER, **folders, pod_uid="killed")
    run_and_kill(killed)
    make(socket_paths(DRIVER, **folders, pod_uid="next")).serve()
    assert not killed.dra.exists()
    assert not killed.registration.exists()


def test_nothing_is_called_after_stop(plugin, paths):
    plugin.stop()
    with pytest.raises(grpc.RpcError):
        call(paths.dra, V1, "NodePrepareResources", [CLAIM], timeout=60)
