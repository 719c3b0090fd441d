import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from dradriver.kubelet import RegistryMissingError, SocketFolderError, SocketInUseError, SocketPathBlockedError
from dradriver.kubelet.sockets import (
    DeadEnd,
    file_id,
    is_served,
    make_folder,
    make_way,
    need_folder,
    os_errors,
    remove_dead_siblings,
    remove_own,
)


def bound(path):
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    return server


def leftover(path):
    """What a killed process leaves."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bound(path).close()
    assert path.is_socket()


def test_nothing_is_in_the_way_of_a_new_socket(root):
    make_way(root / "a.sock")
    assert file_id(root / "a.sock") is None


def test_a_leftover_is_removed(root):
    leftover(root / "a.sock")
    make_way(root / "a.sock")
    assert not (root / "a.sock").exists()


def test_a_served_socket_is_left_alone(root):
    with closing(bound(root / "a.sock")):
        with pytest.raises(SocketInUseError, match=r"another instance serves .*a\.sock"):
            make_way(root / "a.sock")
        assert is_served(root / "a.sock")


def test_a_served_socket_with_a_full_queue_counts_as_served(root):
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(root / "a.sock"))
    server.listen(0)
    waiting = socket.socket(socket.AF_UNIX)
    waiting.connect(str(root / "a.sock"))
    with closing(server), closing(waiting):
        assert is_served(root / "a.sock")


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: path.write_text("precious"), "regular file"),
        (lambda path: path.mkdir(), "folder"),
        (lambda path: path.symlink_to("/nowhere"), "symbolic link"),
        (os.mkfifo, "special file"),
    ],
)
def test_what_is_no_socket_is_left_alone(root, make, kind):
    path = root / "a.sock"
    make(path)
    before = file_id(path)
    with pytest.raises(SocketPathBlockedError, match=f"a.sock is a {kind}"):
        make_way(path)
    assert file_id(path) == before


def test_only_the_own_file_is_removed(root):
    path = root / "a.sock"
    leftover(path)
    own = file_id(path)
    remove_own(path, (0, 0))
    assert path.exists()
    remove_own(path, own)
    assert not path.exists()
    remove_own(path, own)


def test_what_cannot_be_looked_at_is_told_but_does_not_disturb_leaving(root, monkeypatch):
    def refuse(_path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "lstat", refuse)
    with pytest.raises(SocketFolderError, match="Input/output error"):
        file_id(root / "a.sock")
    remove_own(root / "a.sock", (1, 2))


def test_folders_are_made_for_the_user_and_group_only(root):
    make_folder(root / "plugins" / "gpu.nvidia.com")
    assert (root / "plugins" / "gpu.nvidia.com").stat().st_mode & 0o027 == 0
    make_folder(root / "plugins" / "gpu.nvidia.com")


def test_a_folder_that_cannot_be_made_is_told(root):
    (root / "plugins").write_text("")
    with pytest.raises(SocketFolderError, match=r"cannot use .*/plugins/x for a socket: Not a directory"):
        make_folder(root / "plugins" / "x")


def test_a_missing_registry_is_told_with_the_flag(root):
    with pytest.raises(RegistryMissingError, match=r"elsewhere does not exist.*--kubelet-registrar-directory-path"):
        need_folder(root / "elsewhere")
    need_folder(root / "plugins_registry")


@pytest.mark.parametrize(
    ("error", "advice"), [(PermissionError(13, "Permission denied"), "root"), (OSError(30, "Read-only"), "read-write")]
)
def test_errors_of_the_system_come_with_advice(root, error, advice):
    with pytest.raises(SocketFolderError, match=advice), os_errors(root):
        raise error


def test_dead_siblings_are_removed_and_nothing_else(paths):
    dead = [paths.dra.parent / "dra-1.sock", paths.registration.parent / "gpu.nvidia.com-1-reg.sock"]
    others = [
        paths.dra.parent / "other.sock",
        paths.registration.parent / "other.driver-1-reg.sock",
        paths.registration,
    ]
    for path in [*dead, *others]:
        leftover(path)
    (paths.dra.parent / "dra-2.sock").write_text("no socket")
    with closing(bound(paths.dra.parent / "dra-3.sock")):
        assert sorted(remove_dead_siblings(paths, "gpu.nvidia.com")) == sorted(dead)
        assert all(path.exists() for path in others)
        assert (paths.dra.parent / "dra-2.sock").exists()
        assert (paths.dra.parent / "dra-3.sock").exists()


def test_a_dead_end_leads_to_the_folder_until_it_is_cut(root):
    way = DeadEnd(root / "a")
    for text in ("x", "y"):
        way.lead()
        Path(way.path).write_text(text)
        assert (root / "a").read_text() == text
        way.cut()
        with pytest.raises(OSError, match="Not a directory"):
            Path(way.path).unlink()
        assert (root / "a").exists()


def test_a_dead_end_keeps_its_descriptor(root):
    way = DeadEnd(root / "a")
    way.lead()
    path = way.path
    way.cut()
    way.lead()
    assert way.path == path
    way.cut()
