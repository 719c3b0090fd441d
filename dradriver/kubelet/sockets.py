"""Socket files: whose they are, and making way for one of our own."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

from dradriver.kubelet.errors import (
    RegistryMissingError,
    SocketFolderError,
    SocketInUseError,
    SocketPathBlockedError,
)
from dradriver.kubelet.paths import SocketPaths

FOLDER_MODE: Final = 0o750
SOCKET_MODE: Final = 0o600
"""Whoever can connect can have devices prepared; the kubelet runs as the same user as we do."""

_PROBE_SECONDS: Final = 1.0

FileId: TypeAlias = tuple[int, int]
"""Device and inode of a socket file: tells ours from another one with the same path."""


def file_id(path: Path) -> FileId | None:
    """Identify what lies at the path; None where there is nothing.

    Raises:
        SocketFolderError: the operating system does not let us find out.
    """
    with os_errors(path):
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino


def is_served(path: Path) -> bool:
    """Tell whether a process listens at the socket; a leftover of a killed process refuses.

    Raises:
        SocketFolderError: the operating system does not let us find out.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except (TimeoutError, BlockingIOError):
            return True  # Its queue is full: somebody is there, but slow.
        except OSError as error:
            raise SocketFolderError(f"cannot find out who serves {path}: {error.strerror}") from error
    return True


def make_way(path: Path) -> None:
    """Remove the socket file that a killed process has left at the path, and nothing else.

    Raises:
        SocketInUseError: another process serves it.
        SocketPathBlockedError: it is no socket.
        SocketFolderError: the operating system refuses.
    """
    with os_errors(path):
        mode = path.lstat().st_mode if file_id(path) else None
        if mode is None:
            return
        if not stat.S_ISSOCK(mode):
            raise SocketPathBlockedError(
                f"{path} is a {_kind(mode)}, where our socket has to be: remove it, or choose another folder"
            )
        if is_served(path):
            raise SocketInUseError(
                f"another instance serves {path}: stop it first, or give each instance its pod's UID for its "
                "socket names"
            )
        path.unlink(missing_ok=True)


def remove_own(path: Path, own: FileId | None) -> None:
    """Remove the socket file if it still is ours; where that fails, the kubelet finds that nobody answers."""
    with suppress(OSError, SocketFolderError):
        if own is not None and file_id(path) == own:
            path.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make the folder of the DRA socket, with its parents.

    Raises:
        SocketFolderError: the operating system refuses.
    """
    with os_errors(folder):
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)


def need_folder(folder: Path) -> None:
    """Insist on the kubelet's registry folder: making it would hide that there is no kubelet to watch it.

    Raises:
        RegistryMissingError: it is not there.
    """
    if not folder.is_dir():
        raise RegistryMissingError(
            f"the kubelet's registry folder {folder} does not exist: is the kubelet running on this node, and "
            "is its folder mounted here? Name another one with --kubelet-registrar-directory-path"
        )


def remove_dead_siblings(paths: SocketPaths, driver_name: str) -> tuple[Path, ...]:
    """Remove sockets that killed pods of this driver have left; returns what was removed.

    The kubelet takes a leftover registration socket for a plugin that never connects. Only names that
    this driver gives are looked at, and only those where nobody listens are removed.

    Raises:
        SocketFolderError: the operating system refuses.
    """
    found = [
        *paths.dra.parent.glob("dra-*.sock"),
        *paths.registration.parent.glob(f"{driver_name}-*-reg.sock"),
    ]
    dead = tuple(path for path in found if path.is_socket() and not is_served(path))
    for path in dead:
        with os_errors(path):
            path.unlink(missing_ok=True)
    return dead


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Translate what the operating system says about a folder or socket file into this room's error."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise SocketFolderError(f"cannot use {path} for a socket: {reason}{_advice(error)}") from error


class DeadEnd:
    """A second path to the same place that can be made to lead nowhere.

    gRPC unlinks the path it was given some time after it has stopped, whoever owns the file by then: an
    instance that ends would take away its successor's socket. So it is given a path through a descriptor,
    which is then pointed elsewhere. The descriptor stays open for good, since nobody tells when gRPC is
    through with it, and its number must not become another folder's; that is one for each time of
    listening. Attempts that fail share one.
    """

    def __init__(self, path: Path) -> None:
        """Remember the path; it leads nowhere yet."""
        self._real = path
        self._descriptor = -1

    @property
    def path(self) -> str:
        """The other path."""
        return f"/proc/self/fd/{self._descriptor}/{self._real.name}"

    def lead(self) -> None:
        """Make the path lead to the folder as it is now.

        Raises:
            SocketFolderError: it cannot be opened.
        """
        with os_errors(self._real.parent):
            self._point(os.open(self._real.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    def cut(self) -> None:
        """Make the path lead nowhere."""
        self._point(os.open(os.devnull, os.O_PATH | os.O_CLOEXEC))

    def _point(self, target: int) -> None:
        if self._descriptor < 0:
            self._descriptor = target
            return
        os.dup2(target, self._descriptor, inheritable=False)
        os.close(target)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFREG: "regular file", stat.S_IFDIR: "folder", stat.S_IFLNK: "symbolic link"}
    return kinds.get(stat.S_IFMT(mode), "special file")


def _advice(error: OSError) -> str:
    if error.errno in {errno.EACCES, errno.EPERM}:
        return " (the driver needs root, or a kubelet folder that is its own)"
    if error.errno == errno.EROFS:
        return " (mount the kubelet's folders read-write)"
    return ""
