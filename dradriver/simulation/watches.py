"""Waiting until a file may have changed: by inotify, and by the clock where there is none.

Who waits takes a watch, and then in turn arms it, reads the file, and waits: a change after the arming ends the wait,
so none is missed. A watch belongs to one waiter at a time, for whoever reads an inotify descriptor takes its events
from everybody else.
"""

import ctypes
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

POLL_SECONDS: Final = 0.05
"""How often to look where inotify is not to be had."""

TRUST_SECONDS: Final = 1.0
"""Longest wait without a look: some file systems accept a watch and tell it nothing."""

# From <sys/inotify.h>: written to; links, mode or times changed (also where the last name is removed); gone; moved.
_CHANGES: Final = 0x2 | 0x4 | 0x400 | 0x800
_EVENTS_BYTES: Final = 1 << 16


class Watch:
    """One waiter's view of the file.

    Args:
        path: of the file.
        descriptor: of inotify; -1 = look by the clock.
        sleep: waits for so many seconds.
    """

    def __init__(self, path: Path, descriptor: int, sleep: Callable[[float], None]) -> None:
        self._path = os.fsencode(path)
        self._sleep = sleep
        self._armed = -1
        self.descriptor = descriptor

    def arm(self) -> None:
        """Let changes from now on end the next wait; those before are forgotten."""
        if self.descriptor < 0:
            return
        # Each time anew, by name: the file may be another one by now. For the same one this changes nothing.
        self._armed = _libc().inotify_add_watch(self.descriptor, self._path, _CHANGES)
        _drain(self.descriptor)

    def wait(self, seconds: float) -> None:
        """Wait for a change since `arm`, at most so long; comes back earlier also without one."""
        if self._armed < 0:
            self._sleep(min(seconds, POLL_SECONDS))
            return
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        poll.poll(min(seconds, TRUST_SECONDS) * 1000)

    def wake(self) -> None:
        """End a wait that is under way; by another thread."""
        # That the watch was removed is an event, too.
        _libc().inotify_rm_watch(self.descriptor, self._armed)


class Watches:
    """The watches of one session on one file.

    They are kept for the next waiter, since the kernel takes some 10 ms to close one. Any number of threads may wait at
    once; a forked process lets go of its parent's and opens its own.

    Args:
        path: of the file.
        sleep: look by the clock, and wait so; None = by inotify if possible.
    """

    def __init__(self, path: Path, sleep: Callable[[float], None] | None = None) -> None:
        self._path = path
        self._sleep = sleep
        self._idle: list[Watch] = []
        self._busy: list[Watch] = []
        self._lock = threading.Lock()
        self._owner = os.getpid()
        weakref.finalize(self, _close_all, self._idle)

    @contextmanager
    def watch(self) -> Iterator[Watch]:
        """Lend a watch."""
        watch = self._take()
        try:
            yield watch
        finally:
            self._give_back(watch)

    def close(self) -> None:
        """Close the idle ones and end every wait under way; who is in it closes its own. They may be used again."""
        self._let_go_of_parents()
        with self._lock:
            for watch in self._busy:
                watch.wake()
            self._busy.clear()
            _close_all(self._idle)

    def _take(self) -> Watch:
        self._let_go_of_parents()
        if self._sleep:
            return Watch(self._path, -1, self._sleep)
        with self._lock:
            watch = self._idle.pop() if self._idle else Watch(self._path, _open(), time.sleep)
            self._busy.append(watch)
            return watch

    def _give_back(self, watch: Watch) -> None:
        with self._lock:
            wanted = watch in self._busy
            if wanted:
                self._busy.remove(watch)
                # One that looks by the clock is dropped: the next time inotify may be had.
                self._idle.extend([watch] if watch.descriptor >= 0 else [])
        if not wanted:
            _close_all([watch])

    def _let_go_of_parents(self) -> None:
        if self._owner == os.getpid():
            return
        # A thread of the parent, which is not here, may have held the lock.
        self._lock, self._owner = threading.Lock(), os.getpid()
        _close_all(self._busy)
        _close_all(self._idle)


def _close_all(watches: list[Watch]) -> None:
    while watches:
        descriptor = watches.pop().descriptor
        if descriptor >= 0:
            os.close(descriptor)


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, _EVENTS_BYTES):
            pass
    except BlockingIOError:
        pass


def _open() -> int:
    """Open inotify; -1 where the C library has none, or no descriptor is left (EMFILE)."""
    try:
        return int(_libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    except AttributeError:
        return -1


@lru_cache(maxsize=1)
def _libc() -> Any:
    return ctypes.CDLL(None)
