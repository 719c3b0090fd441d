# SPDX-License-Identifier: Apache-2.0
import os
import stat
import threading
from pathlib import Path

import pytest
from localcluster import common
from localcluster.common import ClusterError, Layout, elapsed, locked, node_name, wait_for, write
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


def test_what_a_killed_write_left_does_not_lend_its_mode_to_a_secret(tmp_path):
    left = tmp_path / f".file.{os.getpid()}"
    left.write_text("half")
    left.chmod(0o644)
    write(tmp_path / "file", "secret", mode=0o600)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_failed_write_leaves_nothing(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="directory"):
        write(tmp_path / "file", "secret", mode=0o600)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def nameless(monkeypatch):
    """A user without HOME who is not in the system's list of users, as in many containers."""

    def unknown(_):
        raise KeyError("uid not found")

    monkeypatch.setattr(common.pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_home_one_sentence_names_what_to_set(nameless):
    with pytest.raises(ClusterError, match="set XDG_CACHE_HOME"):
        common.cache_dir()
    with pytest.raises(ClusterError, match="set XDG_STATE_HOME"):
        common.state_dir()


@pytest.mark.parametrize("told", [None, "", "relative"])
def test_without_a_usable_home_the_list_of_users_is_asked(told, monkeypatch):
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, "relative/and/ignored")
    monkeypatch.delenv("HOME", raising=False)
    if told is not None:
        monkeypatch.setenv("HOME", told)
    listed = Path(common.pwd.getpwuid(os.getuid()).pw_dir)
    assert common.cache_dir() == listed / ".cache" / "dradriver"
    assert common.state_dir() == listed / ".local/state" / "dradriver"


def test_xdg_folders_come_first(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/cache")
    monkeypatch.setenv("XDG_STATE_HOME", "/some/state")
    assert (common.cache_dir(), common.state_dir()) == (Path("/some/cache/dradriver"), Path("/some/state/dradriver"))


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
