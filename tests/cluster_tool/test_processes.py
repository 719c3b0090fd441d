# SPDX-License-Identifier: Apache-2.0
import os
import signal
import socket
import subprocess
import sys

import pytest
from localcluster import controlplane, lifecycle, processes, spec
from localcluster.common import ClusterError, wait_for


@pytest.fixture
def ended(layout):
    """Ends whatever a test has left."""
    yield
    for pid in processes.marked(layout.id):
        processes.send(pid, signal.SIGKILL)


def sleeper(layout, name="part", script="import time; time.sleep(600)"):
    return processes.start(layout, name, [sys.executable, "-c", script])


def test_a_component_is_started_once(layout, ended):
    pid = sleeper(layout)
    assert processes.pid_of(layout, "part") == pid
    assert sleeper(layout) == pid
    assert processes.marked(layout.id) == [pid]


def test_a_component_lives_in_a_session_of_its_own(layout, ended):
    pid = sleeper(layout)
    assert os.getsid(pid) == pid


def test_stop_ends_it_and_says_whether_it_ran(layout, ended):
    sleeper(layout)
    assert processes.stop(layout, "part")
    assert processes.pid_of(layout, "part") is None
    assert not processes.stop(layout, "part")


def test_one_that_ignores_sigterm_is_killed(layout, ended, capsys):
    ready = layout.root / "ready"
    sleeper(
        layout,
        script="import signal, time, pathlib; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(600)",
    )
    assert wait_for(ready.exists, seconds=60)
    assert processes.stop(layout, "part", patience=0.2)
    assert processes.pid_of(layout, "part") is None
    assert "killing it" in capsys.readouterr().err


def test_a_reused_process_number_is_not_taken_for_ours(layout, ended):
    pid = sleeper(layout)
    file = processes.record(layout, "part")
    _, start, boot = file.read_text().split()
    for forged in (f"{pid} {int(start) + 1} {boot}", f"{pid} {start} other-boot", f"{pid}", "nonsense a b", ""):
        file.write_text(forged)
        assert processes.pid_of(layout, "part") is None
        assert not processes.stop(layout, "part", kill=True)
    assert processes.start_time(pid) == start, "the process was left alone"


def test_descendants_are_found_though_nobody_wrote_them_down(layout, ended):
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    pid = sleeper(layout, script=child)
    assert wait_for(lambda: len(processes.marked(layout.id)) == 2, seconds=60)
    assert pid in processes.marked(layout.id)
    assert processes.marked("00000000") == []


def test_the_remains_of_a_process_are_no_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert processes.start_time(process.pid) is None
    process.wait()


def test_one_that_died_is_reported_with_the_end_of_its_log(layout, ended):
    sleeper(layout, script="import sys; sys.exit('no such flag')")
    assert wait_for(lambda: processes.pid_of(layout, "part") is None, seconds=60)
    with pytest.raises(ClusterError, match=r"(?s)part ended right after its start.*no such flag"):
        processes.expect_running(layout, "part")


def test_components_see_our_programs_first_and_no_proxy(layout, ended, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid")
    out = layout.root / "seen"
    told = "os.environ['PATH'] + ' ' + str('HTTPS_PROXY' in os.environ)"
    sleeper(layout, script=f"import os; open({str(out)!r}, 'w').write({told})")
    assert wait_for(lambda: out.exists() and out.read_text().endswith("False"), seconds=60)
    assert out.read_text().startswith(f"{layout.bin}:")


def test_signalling_one_that_is_gone_is_nothing():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    processes.send(process.pid, signal.SIGKILL)
    assert process.returncode == 0


LISTENER = (
    "import socket, time; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
    "s.bind(('127.0.0.1', {port})); s.listen(); time.sleep(600)"
)


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def test_a_component_listens_when_the_socket_is_its_own(layout, ended, port):
    assert not processes.listens(layout, "part", port)
    sleeper(layout, "idle")
    sleeper(layout, "part", LISTENER.format(port=port))
    assert wait_for(lambda: processes.listens(layout, "part", port), seconds=60)
    assert not processes.listens(layout, "idle", port), "the port is another one's"
    assert not processes.listens(layout, "part", port + 1)


@pytest.fixture
def scheduler(layout, made, port, monkeypatch):
    """Gives the scheduler a program of ours; the API server is well whatever becomes of it."""
    monkeypatch.setattr(controlplane, "answers", lambda *_: True)
    monkeypatch.setattr(controlplane, "port_of", lambda *_: port)
    monkeypatch.setattr(controlplane, "_SERVERS", ())

    def start(script):
        layout.bin.mkdir(exist_ok=True)
        program = layout.bin / "kube-scheduler"
        program.write_text(f"#!{sys.executable}\n{script}\n")
        program.chmod(0o755)
        lifecycle.start(layout, spec.placed(made, spec.Slot(1)), "kube-scheduler")

    return start


def test_a_component_that_dies_at_once_is_not_said_to_run(scheduler, ended, capsys):
    with pytest.raises(ClusterError, match=r"(?s)kube-scheduler ended right after its start.*unknown flag"):
        scheduler("import sys; sys.exit('unknown flag')")
    assert "runs" not in capsys.readouterr().err


def test_a_port_of_another_does_not_make_a_dead_component_run(scheduler, ended, port, capsys):
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ClusterError, match="in use"):
        scheduler(LISTENER.format(port=port))
    assert "runs" not in capsys.readouterr().err


def test_a_component_that_serves_runs(scheduler, ended, port, capsys):
    scheduler(LISTENER.format(port=port))
    assert "kube-scheduler runs" in capsys.readouterr().err
