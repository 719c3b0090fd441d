# SPDX-License-Identifier: Apache-2.0
"""Kernel settings that every kubelet changes for the whole machine, put back after the last cluster.

What was there before is kept under /run, which is as short-lived as the settings themselves.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from localcluster.common import write

if TYPE_CHECKING:
    from localcluster.common import Layout

_PROC = Path("/proc/sys")
# What a kubelet sets at its start unless it was told to refuse other values.
_CHANGED = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


def _file(layout: Layout) -> Path:
    return layout.short.parent / "sysctls.json"


def remember(layout: Layout) -> None:
    """Write the settings down before the first kubelet of this boot starts."""
    # The folder tells others that a cluster is here.
    layout.short.mkdir(parents=True, exist_ok=True)
    if not _file(layout).exists():
        present = [name for name in _CHANGED if (_PROC / name).exists()]
        values = {name: (_PROC / name).read_text().strip() for name in present}
        write(_file(layout), json.dumps(values, indent=2) + "\n")


def put_back(layout: Layout) -> None:
    """Restore them when no cluster is left on the machine."""
    clusters = layout.short.parent
    if not _file(layout).exists() or any(each.is_dir() for each in clusters.iterdir()):
        return
    for name, value in json.loads(_file(layout).read_text()).items():
        if (_PROC / name).read_text().strip() != value:
            (_PROC / name).write_text(value + "\n")
    _file(layout).unlink()
    clusters.rmdir()
