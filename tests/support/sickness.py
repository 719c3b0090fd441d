"""GPUs that are not well, as users of the cluster see them."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.gpunode import GpuNode
from support.server import Body, Server
from support.sight import DRIVER
from support.waiting import wait_for

XID, LOST, UNMONITORED = (f"gpu.nvidia.com/{name}" for name in ("xid", "gpu-lost", "unmonitored"))
RECOVERY, MEMORY = (f"dradriver.dev/{name}" for name in ("recovery", "memory"))

Taints = dict[str, dict[str, tuple[str, str]]]
"""Value and effect by name of the device and key of the taint; devices without taints are left out."""


def taints(node: GpuNode) -> Taints:
    """The taints that are published now."""
    return taints_of(node.published())


def taints_of(devices: Mapping[str, Body]) -> Taints:
    """The taints of devices by name."""
    found = {name: device.get("taints") or () for name, device in devices.items()}
    return {
        name: {taint["key"]: (taint.get("value", ""), taint["effect"]) for taint in some}
        for name, some in found.items()
        if some
    }


def times(node: GpuNode) -> dict[tuple[str, str], str]:
    """When the taints that are published now began, by name of the device and key."""
    return {
        (name, taint["key"]): taint["timeAdded"]
        for name, device in node.published().items()
        for taint in device.get("taints") or ()
    }


def devices_of(node: GpuNode, number: int) -> set[str]:
    """Names of a GPU's published devices: itself and its partitions."""
    return {name for name in node.published() if name == f"gpu-{number}" or name.startswith(f"gpu-{number}-")}


def wait_taints(node: GpuNode, condition: Callable[[Taints], object], what: str) -> Taints:
    """Wait until the taints are so; gives them."""

    def found() -> tuple[Taints] | None:
        seen = taints(node)
        return (seen,) if condition(seen) else None

    return wait_for(found, what, state=lambda: taints(node))[0]


def wait_same(node: GpuNode, number: int, wanted: Mapping[str, tuple[str, str]]) -> None:
    """Wait until all devices of a GPU have exactly these taints; of the other GPUs nothing is said."""
    wait_taints(
        node,
        lambda found: all(found.get(name, {}) == wanted for name in devices_of(node, number)),
        f"gpu-{number} and its partitions to have {dict(wanted)}",
    )


def wait_well(node: GpuNode) -> None:
    """Wait until no device has a taint."""
    wait_taints(node, lambda found: not found, "the taints to be gone")


def metric(node: GpuNode, name: str, **labels: str) -> float:
    """The sum of a metric's series that have these labels, 0 where there is none."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    lines = [line for line in node.plugin.page("/metrics").splitlines() if line.partition(" ")[0].split("{")[0] == name]
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(each in line for each in wanted))


def wait_metric(node: GpuNode, name: str, value: float, **labels: str) -> None:
    """Wait until a metric has reached a value."""
    wait_for(
        lambda: metric(node, name, **labels) >= value,
        f"{name} {labels} to reach {value:g}",
        state=lambda: metric(node, name, **labels),
    )


def health_command(node: GpuNode, *words: str) -> tuple[int, str]:
    """Run `dradriver health` as an administrator on the node; gives exit status and output."""
    command = [sys.executable, "-m", "dradriver", "health", *words]
    done = subprocess.run(
        command, env=node.command_environment(), capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


# --- what objects have been like in between ---------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Change:
    """An object as it was at some time.

    Attributes:
        type: ADDED, MODIFIED or DELETED.
        body: of the object.
    """

    type: str
    body: Body


class Watch:
    """What `kubectl get --watch` has seen."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def changes(self) -> list[Change]:
        """All changes until now, with what was there at first."""
        text, found = self._file.read_text(), list[Change]()
        decoder, position = json.JSONDecoder(), 0
        while position < len(text):
            try:
                entry, position = decoder.raw_decode(text, position)
            except json.JSONDecodeError:
                # kubectl is about to write the rest.
                break
            found.append(Change(type=entry["type"], body=entry["object"]))
            position += len(text[position:]) - len(text[position:].lstrip())
        return found

    def wait(self, version: str) -> list[Change]:
        """Wait until the state of an object with this resource version was seen; gives all changes."""
        seen = wait_for(
            lambda: any(one.body["metadata"]["resourceVersion"] == version for one in self.changes()),
            f"resource version {version} to be seen",
        )
        assert seen
        return self.changes()


@contextmanager
def watched(server: Server, *what: str) -> Iterator[Watch]:
    """Watch objects, named as `kubectl get` takes them, until the block ends."""
    with tempfile.TemporaryDirectory(prefix="watch-") as folder:
        file = Path(folder) / "objects"
        command = [*server.kubectl_command, "get", *what, "--watch", "--output-watch-events", "-o", "json"]
        with file.open("wb") as output, subprocess.Popen(command, stdout=output) as process:
            try:
                yield Watch(file)
            finally:
                process.terminate()


@contextmanager
def watched_slices(node: GpuNode) -> Iterator[Watch]:
    """Watch this driver's slices until the block ends; what is there at its beginning has been seen."""
    with watched(node.server, "resourceslices", f"--field-selector=spec.driver={DRIVER}") as watch:
        wait_all_seen(node, watch)
        yield watch


def wait_all_seen(node: GpuNode, watch: Watch) -> list[Change]:
    """Wait until a watch has seen the slices as they are now; gives all changes."""
    found: list[Change] = []
    for version in node.versions().values():
        found = watch.wait(version)
    return found
