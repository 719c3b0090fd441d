# SPDX-License-Identifier: Apache-2.0
"""What every other module needs: the error of this tool, where it speaks, and where things are kept."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pwd
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEFAULT_KUBERNETES = "1.37.2"
HACK = Path(__file__).resolve().parent.parent


class ClusterError(Exception):
    """Something a person must know or do; the message is the one line that is printed."""


def tell(message: str) -> None:
    """Print one line of progress; standard output stays free for what `env` and `status` answer."""
    print(f"cluster: {message}", file=sys.stderr, flush=True)


def elapsed(seconds: float) -> str:
    """A duration for people: 4.2s below ten seconds, 42s, 3m07s."""
    if seconds < 10:  # noqa: PLR2004  tenths are noise from here on
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def wait_for(condition: Callable[[], bool], *, seconds: float, pause: float = 0.1) -> bool:
    """Poll `condition` until it holds or `seconds` have passed; tell whether it held."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


@contextlib.contextmanager
def locked(path: Path, *, waiting: str) -> Iterator[None]:
    """Hold the lock file `path`; say `waiting` once when someone else has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(waiting)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write(path: Path, text: str, mode: int = 0o644) -> Path:
    """Replace `path` by `text` in one step, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    # One that was left by a killed process may have another mode, which opening it would keep.
    fresh.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(text)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return path


def home() -> Path | None:
    """The user's home: HOME if that is a path, else the one in the system's list of users, if they are in it."""
    told = os.environ.get("HOME", "")
    if told.startswith("/"):
        return Path(told)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def _xdg(variable: str, fallback: str) -> Path:
    # The XDG specification has relative paths ignored.
    value = os.environ.get(variable, "")
    if value.startswith("/"):
        return Path(value)
    found = home()
    if found is None:
        raise ClusterError(f"you have no home directory: set {variable} (or HOME) to an absolute path")
    return found / fallback


def cache_dir() -> Path:
    """Where built programs are kept, shared by all clusters of this user.

    Raises:
        ClusterError: nothing tells where.
    """
    return _xdg("XDG_CACHE_HOME", ".cache") / "dradriver"


def state_dir() -> Path:
    """Below which clusters and demos are kept when no --dir is given.

    Raises:
        ClusterError: nothing tells where.
    """
    return _xdg("XDG_STATE_HOME", ".local/state") / "dradriver"


def node_name(index: int) -> str:
    """node-a, node-b, ... for 0, 1, ..."""
    return f"node-{chr(ord('a') + index)}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a cluster keeps what, below the directory given by --dir.

    The identity follows from the directory alone: even when every file in it is lost, `down` still knows
    which processes, cgroups, bridges and links were this cluster's.
    """

    root: Path

    @property
    def id(self) -> str:
        """Eight hex digits that mark all this cluster takes from the machine."""
        return hashlib.sha256(str(self.root).encode()).hexdigest()[:8]

    @property
    def bin(self) -> Path:
        """Links to every program, under the names they are started by."""
        return self.root / "bin"

    @property
    def certs(self) -> Path:
        """Certificates and keys."""
        return self.root / "certs"

    @property
    def config(self) -> Path:
        """Configuration files and the kubeconfigs of the components."""
        return self.root / "config"

    @property
    def logs(self) -> Path:
        """One log per component; kept by `down`."""
        return self.root / "logs"

    @property
    def run(self) -> Path:
        """One <component>.pid per process started."""
        return self.root / "run"

    @property
    def state(self) -> Path:
        """What the cluster was made with."""
        return self.root / "state.json"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.root / "kubeconfig"

    @property
    def marker(self) -> Path:
        """Tells that the directory is a cluster's, so that what lies in it may be replaced and removed."""
        return self.root / ".dradriver-cluster"

    @property
    def owned(self) -> bool:
        """Whether the directory was made a cluster's by `up`."""
        return self.marker.is_file()

    @property
    def lock(self) -> Path:
        """Held by whoever changes the cluster."""
        return self.root / ".lock"

    @property
    def short(self) -> Path:
        """Short names of the nodes' folders: a socket's path must stay below 108 bytes, --dir may be long."""
        return Path("/run/dra") / self.id

    def node(self, name: str) -> Path:
        """All that one node keeps."""
        return self.root / "nodes" / name

    def kubelet(self, name: str) -> Path:
        """The node's /var/lib/kubelet as the host sees it."""
        return self.node(name) / "kubelet"

    def cdi(self, name: str) -> Path:
        """The only folder in which the node's containerd looks for CDI files."""
        return self.node(name) / "cdi"
