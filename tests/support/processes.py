"""The processes of pods, as the host sees them."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from support.server import Body


def of_pod(pod: Body) -> set[int]:
    """The process ids of a pod's containers, its sandbox included: those in its cgroups."""
    uid = pod["metadata"]["uid"]
    return {int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cgroup") if _names(path, f"/pod{uid}")}


def _names(path: Path, part: str) -> bool:
    try:
        return part in path.read_text()
    except OSError:
        # It has ended meanwhile.
        return False


def kill(pod: Body) -> None:
    """End all processes of a pod, as a loss of power would."""
    for pid in of_pod(pod):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
