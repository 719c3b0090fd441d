"""A node's state on disk: read without a lock, changed under one, whole after a SIGKILL at any instant.

Files in the folder: `state.json`, replaced as a whole by each change; `lock` and `lock-gpu<N>`, held (flock) by who
changes something and let go by the kernel when a process dies; `root/`, the host's files, kept in step (see
`hostroot`); `rendered`, the generation of the state that `root/` shows.

Nothing is synced to the medium: a crash of the real machine is not what is simulated.
"""

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from dradriver.simulation import hostroot
from dradriver.simulation.errors import StateExists, StateMissing
from dradriver.simulation.state import State, decode, encode

T = TypeVar("T")

_STATE = "state.json"


class Store:
    """The state in one folder; any number of processes and threads may share it."""

    def __init__(self, folder: Path) -> None:
        """Look at `folder`; nothing is read yet."""
        self.folder = folder
        self._path = str(folder / _STATE)
        self._refreshing = threading.Lock()
        # (inode, state). The file of the cached state stays open: its inode number cannot be given to another file
        # meanwhile, so an equal number means the same, never changed, file.
        self._cached: tuple[int, State] | None = None
        self._descriptor = -1

    def close(self) -> None:
        """Forget the cached state."""
        with self._refreshing:
            self._forget()

    __del__ = close

    def _forget(self) -> None:
        self._cached = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self) -> State:
        """Give the state as it is now; costs one stat(2) where nothing changed.

        Raises:
            StateMissing: there is none.
            StateDamaged: it cannot be read.
        """
        try:
            inode = os.stat(self._path).st_ino  # noqa: PTH116  # A Path costs more than the call; this is the hot path.
            cached = self._cached
            return cached[1] if cached and cached[0] == inode else self._refresh()
        except FileNotFoundError:
            raise StateMissing(
                f"no simulated node in {self.folder}: make one with "
                f"`python -m dradriver.simulation --state {self.folder} create 1xh100-80gb`"
            ) from None

    def _refresh(self) -> State:
        with self._refreshing:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                state = decode(os.pread(descriptor, size, 0))
                inode = os.fstat(descriptor).st_ino
            except BaseException:
                os.close(descriptor)
                raise
            self._forget()
            self._descriptor, self._cached = descriptor, (inode, state)
            return state

    def create(self, state: State, *, force: bool = False) -> None:
        """Make the node.

        Raises:
            StateExists: there is one already and `force` is not given.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._exclusive("lock"):
            if (self.folder / _STATE).exists() and not force:
                raise StateExists(f"{self.folder} already holds a simulated node: give --force to replace it")
            self._replace(state)
            self._render(None, state)

    def update(self, change: Callable[[State], tuple[State, T]]) -> T:
        """Change the state by a pure function, atomically; nothing happens where it raises or returns the same state.

        Returns:
            The second thing that `change` returns.

        Raises:
            StateMissing, StateDamaged: as for `read`.
        """
        with self._exclusive("lock"):
            before = self.read()
            after, result = change(before)
            if after is not before:
                after = replace(after, generation=before.generation + 1)
                self._replace(after)
                self._render(before, after)
            return result

    def _replace(self, state: State) -> None:
        new = f"{self._path}.new"
        with open(new, "wb") as file:  # noqa: PTH123  # (hot path, as above)
            file.write(encode(state))
        os.replace(new, self._path)  # noqa: PTH105  # (hot path, as above)

    def _render(self, before: State | None, after: State) -> None:
        mark = self.folder / "rendered"
        in_step = before is not None and _text(mark) == str(before.generation)
        hostroot.render(self.folder / "root", after, shown=before if in_step else None)
        mark.write_text(str(after.generation))

    def render(self) -> Path:
        """Bring the host's files in step with the state, should a killed process have left them behind.

        Raises:
            StateMissing, StateDamaged: as for `read`.
        """
        if _text(self.folder / "rendered") != str(self.read().generation):
            with self._exclusive("lock"):
                self._render(None, self.read())
        return self.folder / "root"

    def gpu_lock(self, index: int) -> AbstractContextManager[None]:
        """Lock that holds while one GPU's MIG geometry changes: hardware does that one by one per GPU."""
        return self._exclusive(f"lock-gpu{index}")

    @contextmanager
    def _exclusive(self, name: str) -> Iterator[None]:
        try:
            descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            raise StateMissing(f"no simulated node in {self.folder}: the folder is not there") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _text(path: Path) -> str:
    with suppress(FileNotFoundError):
        return path.read_text()
    return ""
