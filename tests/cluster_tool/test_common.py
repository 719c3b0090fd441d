# SPDX-License-Identifier: Apache-2.0
import stat
import threading
from pathlib import Path

import pytest
from localcluster.common import Layout, elapsed, locked, node_name, wait_for, write
from localcluster.slots import MAX_NODES


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0.0s"), (4.24, "4.2s"), (10, "10s"), (59.9, "59s"), (60, "1m00s"), (187, "3m07s")]
)
def test_durations_read_well(seconds, text):
    assert elapsed(seconds) == text


def test_write_replaces_in_one_step_and_keeps_secrets(tmp_path):
    file = tmp_path / "deep" / "file"
    write(file, "one", mode=0o600)
    write(file, "two", mode=0o600)
    assert file.read_text() == "two"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in file.parent.iterdir()] == ["file"]


def test_only_one_holds_a_lock_and_the_other_says_that_it_waits(tmp_path, capsys):
    order = []
    inside, leave = threading.Event(), threading.Event()

    def first():
        with locked(tmp_path / "lock", waiting="never said"):
            inside.set()
            assert leave.wait(30)
            order.append("first")

    def second():
        with locked(tmp_path / "lock", waiting="someone else is at it"):
            order.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    said = []
    assert wait_for(lambda: said.append(capsys.readouterr().err) or "at it" in "".join(said), seconds=30)
    leave.set()
    for thread in threads:
        thread.join(30)
    assert order == ["first", "second"]
    assert "never said" not in "".join(said)


def test_waiting_ends_with_the_truth():
    answers = iter([False, False, True])
    assert wait_for(lambda: next(answers), seconds=30, pause=0)
    assert not wait_for(lambda: False, seconds=0, pause=0)


def test_the_identity_follows_from_the_directory_alone():
    assert Layout(Path("/a/b")).id == Layout(Path("/a/b")).id
    assert Layout(Path("/a/b")).id != Layout(Path("/a/c")).id
    assert len(Layout(Path("/a")).id) == 8


def test_every_node_has_a_name_of_its_own():
    names = [node_name(index) for index in range(MAX_NODES)]
    assert names[:2] == ["node-a", "node-b"]
    assert len(set(names)) == MAX_NODES
    assert names[-1] == "node-z"


def test_sockets_fit_however_long_the_directory_is():
    # The longest socket a DRA driver makes: registration during a rolling update carries a pod's UID.
    layout = Layout(Path("/" + "long/" * 40))
    socket = layout.short / "node-a" / "plugins_registry" / f"gpu.nvidia.com-{'x' * 36}-reg.sock"
    assert len(str(socket)) <= 107


def test_nodes_have_folders_apart(layout):
    assert layout.kubelet("node-a") != layout.kubelet("node-b")
    assert layout.cdi("node-a").parent == layout.node("node-a")
