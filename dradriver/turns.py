"""Whose turn it is to publish, where two processes of the driver serve one node during a rolling update.

The slices are one thing for the whole node, and two versions of the driver, or two with different flags, may want
different ones. The newest process that lives has the turn, as the kubelet, too, asks the newest. Each process that has
something to publish keeps a file with its time of birth in a common folder, and a lock on it that ends with the
process, however that ends.
"""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

import structlog

_log = structlog.get_logger()


class Turn:
    """One process's place among those of its node.

    Args:
        folder: common to all of them; None where there can be no other.
        name: of this process, unlike those of the others.
        born: nanoseconds since boot; now by default.
    """

    def __init__(self, folder: Path | None, *, name: str, born: int | None = None) -> None:
        since_boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME) if born is None else born
        self._folder = folder
        # Fixed width, so that names sort by time.
        self._name = f"{since_boot:020d}-{name}"
        self._descriptor: int | None = None

    def take(self) -> None:
        """Take part from now on; older ones see it when they look next. A second time does nothing."""
        if self._folder is None or self._descriptor is not None:
            return
        temporary = self._folder / f".{self._name}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(temporary, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            # Locked before it has its name: one without a lock counts as left by a process that has ended.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.rename(self._folder / self._name)
        except OSError as error:
            _log.warning("cannot tell other instances of the driver that this one publishes", error=str(error))
            return
        self._descriptor = descriptor

    def is_ours(self) -> bool:
        """Tell whether no newer process lives that takes part; without an answer from the folder it is everybody's."""
        if self._folder is None:
            return True
        try:
            newer = [path for path in self._folder.iterdir() if path.name[0] != "." and path.name > self._name]
            return not any(_is_alive(path) for path in newer)
        except OSError:
            return True

    def keeps(self) -> bool:
        """Tell whether this process keeps what all know: it takes part and is the newest, or nobody else takes part."""
        if self._folder is None:
            return True
        if self._descriptor is not None:
            return self.is_ours()
        try:
            others = [path for path in self._folder.iterdir() if path.name[0] != "." and path.name != self._name]
            return not any(_is_alive(path) for path in others)
        except OSError:
            return True

    def end(self) -> None:
        """Leave the turn to the others."""
        if self._folder is not None and self._descriptor is not None:
            with suppress(OSError):
                (self._folder / self._name).unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _is_alive(path: Path) -> bool:
    """Tell whether the process of a file lives; what is left of one that has ended is removed."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(descriptor)
