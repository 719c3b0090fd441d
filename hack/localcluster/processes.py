# SPDX-License-Identifier: Apache-2.0
"""Starting, recognising and ending this cluster's processes, and no others.

Every process is started with MARKER in its environment, and so are its descendants (containerd's shims
among them). That finds them all even when records are lost, and a process number that the kernel has given
to someone else is never mistaken for ours. Containers do not inherit it; they are found by their cgroup.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from localcluster.common import ClusterError, tell, wait_for, write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from localcluster.common import Layout

MARKER = "DRADRIVER_CLUSTER_PROCESS"
_PROC = Path("/proc")
# Fields of /proc/<pid>/stat after the command's name in parentheses, counted from zero.
_STATE, _START = 0, 19
_LISTEN = "0A"  # The state in /proc/<pid>/net/tcp, from the kernel's tcp_states.h.


def start_time(pid: int) -> str | None:
    """When the process began, in clock ticks since boot; None when there is none or only its remains."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[_STATE] in "ZX" else fields[_START]


def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def record(layout: Layout, name: str) -> Path:
    """The file that tells a component's process number, its start time and the boot it ran in."""
    return layout.run / f"{name}.pid"


def pid_of(layout: Layout, name: str) -> int | None:
    """The living process of a component, or None."""
    try:
        pid, start, boot = record(layout, name).read_text().split()
    except (OSError, ValueError):
        return None
    return int(pid) if boot == _boot() and start_time(int(pid)) == start else None


def start(layout: Layout, name: str, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> int:
    """Start a component in a session of its own, its output in logs/<name>.log, unless it runs already."""
    if (running := pid_of(layout, name)) is not None:
        return running
    layout.logs.mkdir(parents=True, exist_ok=True)
    with (layout.logs / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            env=_environment(layout) | dict(env or {}),
        )
    # It outlives this tool, on purpose: without this Python complains that nobody waited for it.
    process.returncode = 0
    write(record(layout, name), f"{process.pid} {start_time(process.pid) or 0} {_boot()}\n")
    return process.pid


def _environment(layout: Layout) -> dict[str, str]:
    path = os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    # Proxies of the shell must not stand between parts of one machine.
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    return kept | {"PATH": f"{layout.bin}:{path}:/usr/sbin:/sbin", MARKER: layout.id}


def expect_running(layout: Layout, name: str) -> None:
    """Raise with the end of the component's log when it has died."""
    if pid_of(layout, name) is None:
        log = layout.logs / f"{name}.log"
        raise ClusterError(f"{name} ended right after its start; the end of {log}:\n{last_lines(log)}")


def listens(layout: Layout, name: str, port: int) -> bool:
    """Whether the component itself, and not another one on its port, takes connections on a TCP port."""
    pid = pid_of(layout, name)
    if pid is None:
        return False
    try:
        # There is no tcp6 where the kernel has no IPv6.
        tables = [table.read_text() for table in (_PROC / str(pid) / "net").glob("tcp*")]
        held = {os.readlink(file) for file in (_PROC / str(pid) / "fd").iterdir()}  # noqa: PTH115  no path: "socket:[1]"
    except OSError:
        # A file was closed meanwhile, or the process has ended; the next look tells.
        return False
    return any(f"socket:[{inode}]" in held for table in tables for inode in _listening(table, port))


def _listening(table: str, port: int) -> Iterator[str]:
    for line in table.splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == _LISTEN:
            yield fields[9]


def last_lines(log: Path, number: int = 12) -> str:
    """The end of a log, for an error message."""
    try:
        return "\n".join("    " + line for line in log.read_text(errors="replace").splitlines()[-number:])
    except OSError:
        return "    (no log)"


def stop(layout: Layout, name: str, *, kill: bool = False, patience: float = 15) -> bool:
    """End a component; SIGKILL after `patience` seconds, or at once. Tell whether it ran."""
    pid = pid_of(layout, name)
    if pid is None:
        return False
    send(pid, signal.SIGKILL if kill else signal.SIGTERM)
    if not wait_for(lambda: _gone(layout, name), seconds=patience, pause=0.05):
        tell(f"{name} did not end within {patience:.0f}s, killing it")
        send(pid, signal.SIGKILL)
        wait_for(lambda: _gone(layout, name), seconds=patience, pause=0.05)
    record(layout, name).unlink(missing_ok=True)
    return True


def _gone(layout: Layout, name: str) -> bool:
    return pid_of(layout, name) is None


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def marked(cluster: str) -> list[int]:
    """Every living process that carries this cluster's mark."""
    mark = f"{MARKER}={cluster}".encode()
    return [pid for pid in _all() if mark in _environ(pid) and start_time(pid) is not None]


def _all() -> Iterable[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _environ(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
