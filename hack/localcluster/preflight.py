# SPDX-License-Identifier: Apache-2.0
"""What this machine must have; the first thing missing is named in one sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from localcluster import cgroups
from localcluster.common import ClusterError

if TYPE_CHECKING:
    from pathlib import Path

    from localcluster.common import Layout

_WITHOUT = "--control-plane-only does without"
# Room for a socket of the control plane's own and for what people type.
_LONGEST_DIR = 200


def is_root() -> bool:
    """Whether nodes are possible at all."""
    return os.geteuid() == 0


def check_directory(root: Path) -> None:
    """Refuse directories that cannot hold a cluster.

    Raises:
        ClusterError: the path cannot be used.
    """
    if any(character in str(root) for character in ":,\n\"'\\ "):
        raise ClusterError(f"--dir {root} has a character that configuration files cannot hold; choose a plain path")
    if len(str(root)) > _LONGEST_DIR:
        raise ClusterError(f"--dir is longer than {_LONGEST_DIR} characters; choose a shorter path")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(f"--dir {root} cannot be made: {error.strerror}") from error
    if not os.access(root, os.W_OK):
        raise ClusterError(f"--dir {root} is not writable for you")


def claim(layout: Layout) -> None:
    """Make a new or empty directory the cluster's for good; everything else in it would be ours to remove.

    Raises:
        ClusterError: there is something in it that no cluster has put there.
    """
    # In this order: an `up` at the same time may mark it in between.
    foreign = [entry for entry in os.listdir(layout.root) if entry != layout.marker.name]  # noqa: PTH208  names only
    if foreign and not layout.owned:
        raise ClusterError(
            f"--dir {layout.root} has something in it ({min(foreign)}) and is no cluster's directory; "
            "choose an empty or a new one"
        )
    layout.marker.touch()


def check_nodes() -> None:
    """Look for what nodes need beyond the control plane.

    Raises:
        ClusterError: something is missing.
    """
    for program in ("mount", "unshare", "nsenter", "sh"):
        if not shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/bin:/bin:/usr/sbin:/sbin"):
            raise ClusterError(f"the program `{program}` is needed for nodes (package util-linux); {_WITHOUT}")
    if not cgroups.present():
        raise ClusterError(f"no cgroup hierarchy is mounted (looked for cgroup and cgroup2); {_WITHOUT}")
    answer = subprocess.run(
        ["unshare", "--mount", "--propagation", "slave", "sh", "-c", ":"], capture_output=True, text=True, check=False
    )
    if answer.returncode:
        said = answer.stderr.strip() or "no reason given"
        raise ClusterError(f"no mount namespace can be made, CAP_SYS_ADMIN is needed ({said}); {_WITHOUT}")


def check_overlay(folder: Path) -> None:
    """Mount a small overlay below `folder`, in a namespace that is thrown away.

    Raises:
        ClusterError: the kernel, or the file system that holds the folder, has no overlays.
    """
    probe = folder / ".overlay"
    for part in ("lower", "upper", "work", "merged"):
        (probe / part).mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={probe}/lower,upperdir={probe}/upper,workdir={probe}/work"
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(probe / "merged")]
    answer = subprocess.run(
        ["unshare", "--mount", "--propagation", "slave", *mount], capture_output=True, text=True, check=False
    )
    shutil.rmtree(probe, ignore_errors=True)
    if answer.returncode:
        said = (answer.stderr.strip().splitlines() or ["no reason given"])[0]
        raise ClusterError(
            f"overlayfs does not work below {folder} ({said}); "
            f"choose a --dir on a plain disk (ext4, xfs, tmpfs), or {_WITHOUT}"
        )
