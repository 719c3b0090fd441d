# SPDX-License-Identifier: Apache-2.0
"""What is removed, replaced or run is a cluster's own: nothing in a directory that `up` has not marked."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from localcluster import lifecycle, preflight, processes, slots, spec
from localcluster.common import ClusterError, Layout, wait_for
from localcluster.slots import Slot
from localcluster.spec import Wish

# Names that a cluster uses too.
THEIRS = ("bin/mytool", "logs/app.log", "config/app.yaml", "nodes/list", "etcd/data", "run/kubelet-x.pid", "kubeconfig")


@pytest.fixture(autouse=True)
def machine(monkeypatch, cache):
    """The machine's parts are those of another test."""
    monkeypatch.setattr(lifecycle.preflight, "is_root", lambda: False)


@pytest.fixture
def foreign(layout):
    """Somebody's directory."""
    for name in THEIRS:
        file = layout.root / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"theirs: {name}")
    return layout


def content(folder):
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_down_touches_nothing_of_others(foreign, capsys):
    before = content(foreign.root)
    lifecycle.down(foreign)
    assert content(foreign.root) == before
    assert len(before) == len(THEIRS)
    assert "no file in it was touched" in capsys.readouterr().err


def test_down_runs_nothing_of_others(foreign, made, monkeypatch):
    spec.save(foreign, spec.placed(made, Slot(3)))
    monkeypatch.setattr(lifecycle, "_end_pods", lambda _: pytest.fail("a foreign kubectl was started"))
    monkeypatch.setattr(lifecycle, "_unmount", lambda _: pytest.fail("mounts of others were undone"))
    monkeypatch.setattr(lifecycle.preflight, "is_root", lambda: False)
    lifecycle.down(foreign)
    assert foreign.state.exists()


def test_up_refuses_a_directory_of_others(foreign):
    before = content(foreign.root)
    with pytest.raises(ClusterError, match=r"has something in it \(bin\) and is no cluster's directory"):
        lifecycle.up(foreign, Wish(nodes=0))
    assert content(foreign.root) == before


@pytest.mark.parametrize("name", [".lock", "state.json", ".hidden"])
def test_one_file_that_is_not_the_marker_is_enough_to_refuse(layout, name):
    (layout.root / name).touch()
    with pytest.raises(ClusterError, match="choose an empty or a new one"):
        preflight.claim(layout)
    assert not layout.owned


def test_the_root_of_the_file_system_is_refused():
    with pytest.raises(ClusterError, match="--dir / has something in it"):
        preflight.claim(Layout(Path("/")))


def test_a_marked_directory_may_hold_anything(layout):
    preflight.claim(layout)
    (layout.root / "logs").mkdir()
    preflight.claim(layout)
    assert layout.owned


def test_down_removes_what_is_the_clusters_and_nothing_else(layout, made):
    preflight.claim(layout)
    spec.save(layout, spec.placed(made, Slot(4)))
    for name in ("nodes/node-a", "etcd", "logs", "somebodys"):
        (layout.root / name).mkdir(parents=True)
    layout.bin.symlink_to(layout.root / "somebodys")
    lifecycle.down(layout)
    left = {each.name for each in layout.root.iterdir()}
    assert left == {"logs", "somebodys", ".lock", layout.marker.name}
    preflight.claim(layout)


def test_without_the_marker_the_machine_is_still_cleared(foreign):
    script = "import time; time.sleep(600)"
    mark = {**os.environ, processes.MARKER: foreign.id}
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", script], mark)
    try:
        assert wait_for(lambda: processes.marked(foreign.id) == [pid], seconds=60)
        slots.take(foreign, nodes=False, has_ports=lambda _: True)
        lifecycle.down(foreign)
        assert processes.marked(foreign.id) == []
        assert slots.directories() == []
    finally:
        processes.send(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_record_of_others_is_not_believed(foreign):
    before = content(foreign.root)
    own = f"{os.getpid()} {processes.start_time(os.getpid())} {processes._boot()}"
    (foreign.run / "kubelet-x.pid").write_text(own)
    lifecycle.down(foreign)
    assert content(foreign.root) == {**before, "run/kubelet-x.pid": own}


def test_a_state_of_others_is_left_as_it_is(foreign):
    foreign.state.write_text(json.dumps({"mine": 1}))
    with pytest.raises(ClusterError, match="is no cluster's directory"):
        lifecycle.up(foreign, Wish(nodes=0))
    assert json.loads(foreign.state.read_text()) == {"mine": 1}
