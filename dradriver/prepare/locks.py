"""Locks of claims and GPUs: between the threads of this process, and between two processes of a rolling update."""

import fcntl
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from dradriver.prepare.errors import BusyError, RecordError

CLAIM: Final = "claim "
GPU: Final = "GPU "
_POLL_SECONDS: Final = 0.005
_FLOCK: Final = struct.Struct("@hhqqi4x")
"""C's `struct flock` on 64-bit Linux: type, whence, start, length, pid."""


def claim_lock(uid: str) -> str:
    """Name the lock of a claim."""
    return f"{CLAIM}{uid}"


def gpu_lock(gpu_uuid: str) -> str:
    """Name the lock of a GPU's MIG instances and holders."""
    return f"{GPU}{gpu_uuid}"


class Locks:
    """A lock for each name. Whoever takes several at once names them together; a claim's comes before GPUs'.

    Args:
        folder: where lock files lie; None where only one process can be at work.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._guard = threading.Lock()
        self._entries: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def hold(self, names: Sequence[str], deadline: float) -> Iterator[None]:
        """Hold the locks of these names, taken in the order of their names.

        Raises:
            BusyError: somebody else held one until the deadline (monotonic seconds).
            RecordError: a lock file cannot be made.
        """
        with ExitStack() as stack:
            for name in sorted(set(names)):
                stack.enter_context(self._thread_lock(name, deadline))
                if self._folder is not None:
                    stack.enter_context(_file_lock(self._folder, name, deadline))
            yield

    @contextmanager
    def _thread_lock(self, name: str, deadline: float) -> Iterator[None]:
        with self._guard:
            lock, users = self._entries.get(name, (threading.Lock(), 0))
            self._entries[name] = (lock, users + 1)
        try:
            if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise _busy(name)
            try:
                yield
            finally:
                lock.release()
        finally:
            self._drop(name)

    def _drop(self, name: str) -> None:
        with self._guard:
            lock, users = self._entries[name]
            if users == 1:
                del self._entries[name]
            else:
                self._entries[name] = (lock, users - 1)


@contextmanager
def _file_lock(folder: Path, name: str, deadline: float) -> Iterator[None]:
    """Lock the byte of this name; the kernel releases it if the process dies.

    A file for each claim would be left behind, or be removed while somebody waits for it; a few shared by all claims
    would have claims wait for each other that have nothing in common. A byte costs nothing: it need not exist.
    """
    descriptor = _open(folder / ("claims.lock" if name.startswith(CLAIM) else "gpus.lock"))
    try:
        while not _try_lock(descriptor, zlib.crc32(name.encode())):
            if time.monotonic() >= deadline:
                raise _busy(name)
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RecordError(f"cannot open the lock file {path}: {os.strerror(error.errno or 0)}") from error


def _try_lock(descriptor: int, byte: int) -> bool:
    """Lock for this descriptor: a lock of the process would be shared by its threads, and lost at any close."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    except BlockingIOError:
        return False
    except OSError as error:
        raise RecordError(f"the folder of lock files takes no locks: {os.strerror(error.errno or 0)}") from error
    return True


def _busy(name: str) -> BusyError:
    return BusyError(f"{name} was busy with another call until the deadline; the kubelet tries again")
