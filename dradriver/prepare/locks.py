"""Locks of claims and GPUs: between the threads of this process, and between two processes of a rolling update."""

import fcntl
import os
import re
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
_STRIPES: Final = 64
"""Claims share so many lock files: one for each would be left behind, or be removed while somebody waits for it."""
_POLL_SECONDS: Final = 0.005
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9-]")


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
    """Hold a file's lock; the kernel releases it if the process dies."""
    descriptor = _open(folder / _file_name(name))
    try:
        while not _try_lock(descriptor):
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


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _file_name(name: str) -> str:
    if name.startswith(CLAIM):
        return f"claims-{zlib.crc32(name.encode()) % _STRIPES}.lock"
    return _NOT_IN_A_NAME.sub("-", name) + ".lock"


def _busy(name: str) -> BusyError:
    return BusyError(f"{name} was busy with another call until the deadline; the kubelet tries again")
