"""A node's state on disk: read without a lock, changed under one, whole after a SIGKILL at any instant.

Files in the folder:

- `state`: two header lines, then two slots with JSON. A change is written over the older slot, in place, then over its
  header: making and renaming files costs a hundred times more. A header has the generation and a checksum over all, so
  a reader that meets a half-written slot, or one whose writer was killed, takes the other one, which is never touched
  meanwhile.
- `lock` and `lock-gpu<N>`: held (flock) by who changes something; the kernel lets go when a process dies.
- `root/`: the host's files, kept in step (see `hostroot`).
- `rendered`: empty; its modification time, in seconds, is the generation that `root/` shows. It is made first, and says
  that the folder is ours: without it nothing in `root/` is removed.

Nothing is synced to the medium: a crash of the real machine is not what is simulated.
"""

import fcntl
import os
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from dradriver.simulation import hostroot
from dradriver.simulation.errors import FolderForeign, SimulationError, StateDamaged, StateExists, StateMissing
from dradriver.simulation.state import State, decode, encode

T = TypeVar("T")

SLOT_BYTES = 1 << 20
_FIRST_SLOT = 4096
# Generation, length of the JSON, checksum; of fixed width.
_HEADER = b"%020d %010d %010d\n"
_HEADER_BYTES = len(_HEADER % (0, 0, 0))
# A reader is overtaken by two whole changes between two reads at most that often before something else is wrong.
_ATTEMPTS = 1000


@dataclass(frozen=True, slots=True, order=True)
class _Header:
    """A header line and the number of its slot; generation 0 where nothing sensible stands there."""

    generation: int
    length: int
    checksum: int
    slot: int

    @property
    def offset(self) -> int:
        """Where the slot begins."""
        return _FIRST_SLOT + self.slot * SLOT_BYTES


class Store:
    """The state in one folder; any number of processes and threads may share it."""

    def __init__(self, folder: Path) -> None:
        """Look at `folder`; nothing is read yet."""
        self.folder = folder
        self._opening = threading.Lock()
        self._descriptor = -1
        # The header lines as they were, and the state that they stand for.
        self._cached: tuple[bytes, State] | None = None

    # --- reading ---

    def read(self) -> State:
        """Give the state as it is now; costs two system calls and no lock where nothing changed.

        Raises:
            StateMissing: there is none.
            StateDamaged: it cannot be read.
        """
        descriptor = self._open()
        for _ in range(_ATTEMPTS):
            cached = self._cached
            raw = os.pread(descriptor, 2 * _HEADER_BYTES, 0)
            if cached is not None and cached[0] == raw:
                return cached[1]
            headers = sorted(_headers(raw), reverse=True)
            for header in headers:
                data = _content(descriptor, header)
                if data is not None:
                    return self._keep(raw, decode(data))
            if not headers[0].generation:
                raise StateMissing(self._missing())
        raise StateDamaged(f"{self.folder / 'state'} is damaged: make the node anew with create --force")

    def _keep(self, raw: bytes, state: State) -> State:
        self._cached = raw, state
        return state

    def _open(self) -> int:
        """Descriptor of the state file; a new one where the folder was made anew."""
        if self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink:
            return self._descriptor
        with self._opening:
            old = self._descriptor
            if old < 0 or not os.fstat(old).st_nlink:
                try:
                    new = os.open(self.folder / "state", os.O_RDWR | os.O_CLOEXEC)
                except FileNotFoundError:
                    raise StateMissing(self._missing()) from None
                self._cached = None
                if old < 0:
                    self._descriptor = new
                    weakref.finalize(self, os.close, new)
                else:
                    # The number stays, for another thread may be about to read by it.
                    os.dup2(new, old, inheritable=False)
                    os.close(new)
            return self._descriptor

    def _missing(self) -> str:
        return (
            f"no simulated node in {self.folder}: make one with "
            f"`python -m dradriver.simulation --state {self.folder} create 1xh100-80gb`"
        )

    # --- changing ---

    def create(self, state: State, *, force: bool = False) -> None:
        """Make the node; processes that use one of before go on with the new one, as after another driver load.

        Raises:
            StateExists: there is one already and `force` is not given.
            FolderForeign: the folder is in use for something else; nothing in it is touched.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._insist_on_free()
        with self._exclusive("lock"):
            self._insist_on_free()
            self._own_root()
            os.close(os.open(self.folder / "state", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
            before = self._before()
            if before is not None:
                if not force:
                    raise StateExists(f"{self.folder} already holds a simulated node: give --force to replace it")
                state = replace(state, driver_loads=before.driver_loads + 1)
            self._write(state)
            self._render(None, self.read())

    def _before(self) -> State | None:
        try:
            return self.read()
        except SimulationError:
            return None

    def _insist_on_free(self) -> None:
        """Refuse a folder with files of somebody else: `root`, as we would make it, has common names."""
        if self._rendered() >= 0:
            return
        foreign = sorted(path.name for path in self.folder.iterdir() if not _may_be_there(path))
        if foreign and self._before() is None:
            raise FolderForeign(
                f"{self.folder} is no simulated node and not empty ({', '.join(foreign[:3])}): name an empty folder"
            )

    def _own_root(self) -> Path:
        """Give the folder of the host's files, marked as ours before anything is put there or taken away.

        Raises:
            FolderForeign: it is a link, or has content without our mark.
        """
        root = self.folder / "root"
        if root.is_symlink():
            raise FolderForeign(f"{root} is a symbolic link: remove it, or name another folder")
        if self._rendered() < 0:
            if root.exists() and (not root.is_dir() or any(root.iterdir())):
                raise FolderForeign(f"{root} was not made by this simulation: remove it, or name another folder")
            mark = self.folder / "rendered"
            mark.touch()
            os.utime(mark, (0, 0))
        return root

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
                self._render(before, self._write(after))
            return result

    def _write(self, state: State) -> State:
        """Write over the slot that is not in force; gives the state with its generation."""
        descriptor = self._open()
        headers = [_checked(descriptor, header) for header in _headers(os.pread(descriptor, 2 * _HEADER_BYTES, 0))]
        state = replace(state, generation=max(headers).generation + 1)
        data = encode(state)
        if len(data) > SLOT_BYTES:
            raise StateDamaged(f"the node's state is too large ({len(data)} bytes): clear faults or remove processes")
        older = min(headers)
        os.pwrite(descriptor, data, older.offset)
        line = _HEADER % (state.generation, len(data), _checksum(state.generation, data))
        os.pwrite(descriptor, line, older.slot * _HEADER_BYTES)
        return self._keep(os.pread(descriptor, 2 * _HEADER_BYTES, 0), state)

    def _render(self, before: State | None, after: State) -> None:
        root = self._own_root()
        in_step = before is not None and self._rendered() == before.generation
        hostroot.render(root, after, shown=before if in_step else None)
        os.utime(self.folder / "rendered", (after.generation, after.generation))

    def _rendered(self) -> int:
        try:
            return int((self.folder / "rendered").stat().st_mtime)
        except FileNotFoundError:
            return -1

    def render(self) -> Path:
        """Bring the host's files in step with the state, should a killed process have left them behind.

        Raises:
            StateMissing, StateDamaged: as for `read`.
            FolderForeign: what is in `root` is not ours to change.
        """
        if self._rendered() != self.read().generation:
            with self._exclusive("lock"):
                self._render(None, self.read())
        return self.folder / "root"

    # --- locks ---

    def gpu_lock(self, index: int) -> AbstractContextManager[None]:
        """Lock that holds while one GPU's MIG geometry changes: hardware does that one by one per GPU."""
        return self._exclusive(f"lock-gpu{index}")

    @contextmanager
    def _exclusive(self, name: str) -> Iterator[None]:
        try:
            descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            raise StateMissing(self._missing()) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _may_be_there(path: Path) -> bool:
    """What this creation, or one that was killed at its very beginning, has made itself."""
    return path.name in {"lock", "state"} and path.is_file() and not path.stat().st_size


# --- slots ----------------------------------------------------------------------------------------


def _headers(raw: bytes) -> list[_Header]:
    return [_header(raw[slot * _HEADER_BYTES : (slot + 1) * _HEADER_BYTES], slot) for slot in (0, 1)]


def _header(line: bytes, slot: int) -> _Header:
    try:
        generation, length, checksum = map(int, line.split())
    except ValueError:
        return _Header(0, 0, 0, slot)
    return _Header(generation, length, checksum, slot)


def _content(descriptor: int, header: _Header) -> bytes | None:
    """The JSON that a header belongs to; None where it is half-written or not there."""
    if not 0 < header.length <= SLOT_BYTES:
        return None
    data = os.pread(descriptor, header.length, header.offset)
    return data if _checksum(header.generation, data) == header.checksum else None


def _checked(descriptor: int, header: _Header) -> _Header:
    return header if _content(descriptor, header) is not None else _Header(0, 0, 0, header.slot)


def _checksum(generation: int, data: bytes) -> int:
    return zlib.crc32(data, generation & 0xFFFFFFFF)
