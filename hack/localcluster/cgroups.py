# SPDX-License-Identifier: Apache-2.0
"""The cgroups below which a node's pods live, on version 1, hybrid and version 2 machines."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from localcluster.common import ClusterError, wait_for
from localcluster.processes import send

if TYPE_CHECKING:
    from collections.abc import Iterator

    from localcluster.common import Layout


# The controllers of version 2 without which a kubelet does not start.
_NEEDED = {"cpu", "cpuset", "memory", "pids"}


def mounts(mountinfo: str) -> list[tuple[Path, bool]]:
    """The mounted hierarchies in a mountinfo text, each with whether it is version 2."""
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind = after.split(" ", 1)[0]
        if kind in {"cgroup", "cgroup2"}:
            found.append((Path(before.split()[4]), kind == "cgroup2"))
    return found


def _mounted() -> list[tuple[Path, bool]]:
    return mounts(Path("/proc/self/mountinfo").read_text())


def present() -> bool:
    """Whether there is any hierarchy a kubelet can use."""
    return bool(_mounted())


def name_of(layout: Layout, node: str) -> str:
    """The cgroup of a node, as the kubelet's cgroupRoot wants it."""
    return f"/dradriver-{layout.id}/{node}"


def create(layout: Layout, node: str) -> None:
    """Make the node's cgroup in every hierarchy; the kubelet insists that it exists.

    Raises:
        ClusterError: cgroups cannot be made here.
    """
    hierarchies = _mounted()
    only_v2 = all(v2 for _, v2 in hierarchies)
    for mount, v2 in hierarchies:
        try:
            _create(mount, name_of(layout, node), delegate=v2 and only_v2)
        except OSError as error:
            raise ClusterError(
                f"the cgroup {mount}{name_of(layout, node)} cannot be made ({error.strerror}); "
                "a node needs writable cgroups, --control-plane-only does without"
            ) from error


def _create(mount: Path, name: str, *, delegate: bool) -> None:
    parent = mount
    for part in Path(name).parts[1:]:
        if delegate:
            _delegate(parent)
        child = parent / part
        child.mkdir(exist_ok=True)
        _fill_cpuset(parent, child)
        parent = child
    if delegate:
        _delegate(parent)


def _delegate(group: Path) -> None:
    # One by one: a controller that cannot be passed on must not take the others with it.
    for controller in (group / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):
            (group / "cgroup.subtree_control").write_text(f"+{controller}")
    missing = _NEEDED - set((group / "cgroup.subtree_control").read_text().split())
    if missing:
        raise OSError(errno.EBUSY, f"{group} does not pass on {', '.join(sorted(missing))}")


def _fill_cpuset(parent: Path, child: Path) -> None:
    # Version 1: no process can join a cpuset without processors and memory nodes.
    for file in ("cpuset.cpus", "cpuset.mems"):
        own = child / file
        if (child / "tasks").exists() and own.exists() and not own.read_text().strip():
            own.write_text((parent / file).read_text())


def _tops(layout: Layout) -> list[Path]:
    candidates = [mount / f"dradriver-{layout.id}" for mount, _ in _mounted()]
    return [each for each in candidates if each.is_dir()]


def _groups(top: Path) -> Iterator[Path]:
    for folder, _, _ in os.walk(top, topdown=False):
        yield Path(folder)


def members(layout: Layout) -> set[int]:
    """Every process in this cluster's cgroups: the containers."""
    return {pid for top in _tops(layout) for group in _groups(top) for pid in _procs(group)}


def _procs(group: Path) -> list[int]:
    try:
        # 0 stands for a process of another pid namespace, which is none of a machine's own.
        return [int(line) for line in (group / "cgroup.procs").read_text().split() if line != "0"]
    except OSError:
        return []


def remove(layout: Layout) -> bool:
    """Kill what is left in the cluster's cgroups and remove them; tell whether they are gone."""
    return wait_for(lambda: _remove_once(layout), seconds=20)


def _remove_once(layout: Layout) -> bool:
    for pid in members(layout):
        send(pid, signal.SIGKILL)
    for top in _tops(layout):
        for group in _groups(top):
            with contextlib.suppress(OSError):
                group.rmdir()
    return not _tops(layout)
