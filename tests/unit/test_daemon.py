import os
import subprocess
import sys
import threading
import time

import pytest

from dradriver.daemon import Gate
from dradriver.kubelet import ClaimReference, Failed, Prepared

CLAIM = ClaimReference(namespace="ns", name="c", uid="u")


class Handler:
    def prepare(self, claims, *, deadline):
        return {claim.uid: Prepared(devices=()) for claim in claims}

    def unprepare(self, claims, *, deadline):
        return dict.fromkeys((claim.uid for claim in claims), None)


def test_a_call_that_comes_early_waits_for_the_preparer():
    gate, answers = Gate(), []
    caller = threading.Thread(target=lambda: answers.append(gate.prepare([CLAIM], deadline=time.monotonic() + 45)))
    caller.start()
    assert answers == []
    gate.open(Handler())
    caller.join(30)
    assert answers == [{"u": Prepared(devices=())}]
    assert gate.unprepare([CLAIM], deadline=time.monotonic() + 45) == {"u": None}


def test_a_call_whose_deadline_is_near_is_told_why():
    answer = Gate().prepare([CLAIM], deadline=time.monotonic() + 1)["u"]
    assert isinstance(answer, Failed)
    assert "claim ns/c: the driver on this node is still starting" in answer.message
    assert isinstance(Gate().unprepare([CLAIM], deadline=time.monotonic())["u"], Failed)


def test_a_call_that_waits_is_answered_when_the_start_fails():
    gate, answers = Gate(), []
    caller = threading.Thread(target=lambda: answers.append(gate.prepare([CLAIM], deadline=time.monotonic() + 45)))
    caller.start()
    gate.close()
    caller.join(30)
    assert isinstance(answers[0]["u"], Failed)
    gate.open(Handler())
    assert isinstance(gate.prepare([CLAIM], deadline=time.monotonic() + 45)["u"], Failed)


def run(*arguments, **environment):
    inherited = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    return subprocess.run(
        [sys.executable, "-m", "dradriver", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=inherited | environment,
    )


@pytest.fixture
def folders(tmp_path):
    for name in ("plugins", "registry"):
        (tmp_path / name).mkdir()
    return {
        "NODE_NAME": "node-a",
        "KUBELET_PLUGINS_DIRECTORY_PATH": str(tmp_path / "plugins"),
        "KUBELET_REGISTRAR_DIRECTORY_PATH": str(tmp_path / "registry"),
        "CDI_ROOT": str(tmp_path / "cdi"),
        "SIMULATION": str(tmp_path / "gpus"),
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
    }


@pytest.fixture
def simulated(folders):
    command = [sys.executable, "-m", "dradriver.simulation", "--state", folders["SIMULATION"], "create", "1xt4"]
    subprocess.run(command, check=True, capture_output=True)
    return folders


def last_line(done, status=1):
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_a_missing_kubeconfig_is_told(simulated):
    line = last_line(run(**simulated))
    assert line.startswith("dradriver: ")
    assert simulated["KUBECONFIG"] in line


def test_a_damaged_kubeconfig_is_told(simulated, tmp_path):
    (tmp_path / "kubeconfig").write_text("clusters: [")
    assert simulated["KUBECONFIG"] in last_line(run(**simulated))


def test_a_folder_without_simulated_node_is_told(folders, tmp_path):
    (tmp_path / "gpus").mkdir()
    assert folders["SIMULATION"] in last_line(run(**folders))


def test_an_endpoint_that_is_none_is_told(simulated):
    assert "HTTP endpoint 'nowhere' is not understood" in last_line(run("--http-endpoint", "nowhere", **simulated))


def test_a_socket_path_that_is_too_long_is_told(simulated, tmp_path):
    long = tmp_path / ("x" * 100)
    line = last_line(run("--kubelet-plugins-directory-path", str(long), **simulated))
    assert "at most 107 are possible" in line


def test_no_socket_is_left_behind_by_a_failed_start(simulated, tmp_path):
    run(**simulated)
    assert not list(tmp_path.rglob("*.sock"))


def test_help_names_every_flag_and_variable():
    done = run("--help")
    assert done.returncode == 0
    for flag in ("--node-name", "--mig", "--profiles", "--simulation", "--cdi-root", "[DRIVER_ROOT_CTR_PATH]"):
        assert flag in done.stdout
