"""Nodes with slices and labels on an API server, and a referee who sees every state of their labels."""

import threading
from contextlib import suppress
from itertools import pairwise
from typing import Any

from support.bridging import unique
from support.waiting import wait_for

from controller.labelling import LABEL_MANAGER
from dradriver.kube import NODES, RESOURCE_SLICES, Client, KubeError, NotFoundError, PatchKind, Selector

PREFIX = "nvidia.com/"
VERSIONS = {"cudaComputeCapability": "9.0.0", "driverVersion": "580.65.6", "cudaDriverVersion": "13.0.0"}
H100 = "NVIDIA H100 80GB HBM3"
EIGHT = {
    "gpu.present": "true",
    "gpu.count": "8",
    "gpu.product": "NVIDIA-H100-80GB-HBM3",
    "gpu.memory": "81559",
    "gpu.replicas": "1",
    "gpu.sharing-strategy": "none",
    "gpu.family": "hopper",
    "gpu.compute.major": "9",
    "gpu.compute.minor": "0",
    "mps.capable": "false",
    "cuda.driver-version.major": "580",
    "cuda.driver-version.minor": "65",
    "cuda.driver-version.revision": "06",
    "cuda.driver-version.full": "580.65.06",
    "cuda.driver.major": "580",
    "cuda.driver.minor": "65",
    "cuda.driver.rev": "06",
    "cuda.runtime-version.major": "13",
    "cuda.runtime-version.minor": "0",
    "cuda.runtime-version.full": "13.0",
    "cuda.runtime.major": "13",
    "cuda.runtime.minor": "0",
}
"""What a node of eight `whole` ones is labelled with, without the prefix."""


def whole(index: int, product: str = H100, *, memory: str = "81559Mi", **attributes: Any) -> dict[str, Any]:
    """A whole GPU as the kubelet plugin publishes it."""
    texts = {"type": "gpu", "productName": product, "architecture": "Hopper"}
    return {
        "name": f"gpu-{index}",
        "attributes": {name: {"string": value} for name, value in texts.items()}
        | {name: {"version": value} for name, value in VERSIONS.items()}
        | attributes,
        "capacity": {"memory": {"value": memory}},
    }


class LabelledNode:
    """A node that exists as an object only.

    Args:
        client: an administrator's.
        name: of a real one, instead of making one.
    """

    def __init__(self, client: Client, name: str = "") -> None:
        self.client = client
        self.name = name or unique("labelled")
        self._slices: list[str] = []
        if not name:
            client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}})

    def give_up(self) -> None:
        """Remove all labels that we hold."""
        self.client.apply(
            NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}}, field_manager=LABEL_MANAGER
        )

    def remove(self) -> None:
        self.withdraw()
        with suppress(NotFoundError):
            self.client.delete(NODES, self.name)

    def publish(self, *devices: dict[str, Any], total: int = 1, generation: int = 1) -> None:
        """Publish one more slice of the node's pool."""
        pool = {"name": self.name, "generation": generation, "resourceSliceCount": total}
        spec = {"driver": "gpu.nvidia.com", "nodeName": self.name, "pool": pool, "devices": list(devices)}
        name = f"{self.name}-{len(self._slices)}"
        head = {"apiVersion": RESOURCE_SLICES.api_version, "kind": RESOURCE_SLICES.kind}
        self.client.create(RESOURCE_SLICES, head | {"metadata": {"name": name}, "spec": spec})
        self._slices.append(name)

    def withdraw(self) -> None:
        """Remove all slices, as the kubelet does when the driver is away."""
        for name in self._slices:
            with suppress(NotFoundError):
                self.client.delete(RESOURCE_SLICES, name)
        self._slices = []

    # --- what others do --------------------------------------------------------------------------

    def write(self, manager: str, **labels: str | None) -> None:
        """Write as `kubectl label` does: a merge patch. None takes a label away."""
        body = {"metadata": {"labels": _named(labels)}}
        self.client.patch(NODES, self.name, body, field_manager=manager)

    def write_json(self, manager: str, operation: str, label: str, value: str = "") -> None:
        """Write as node feature discovery does: a JSON patch."""
        path = f"/metadata/labels/nvidia.com~1{label}"
        change = {"op": operation, "path": path} | ({"value": value} if value else {})
        self.client.patch(NODES, self.name, (change,), kind=PatchKind.JSON, field_manager=manager)

    def apply(self, manager: str, *, force: bool = False, **labels: str) -> None:
        """Write by server-side apply."""
        metadata = {"name": self.name, "labels": _named(labels)}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        self.client.apply(NODES, body, field_manager=manager, force=force)

    # --- what is seen ----------------------------------------------------------------------------

    def labels(self) -> dict[str, str]:
        """Labels with NVIDIA's prefix, without it."""
        return _nvidia(self.client.get(NODES, self.name))

    def managers(self, label: str) -> set[str]:
        """Who holds a label."""
        return _managers(self.client.get(NODES, self.name), label)

    def wait(self, **labels: str | None) -> None:
        """Wait until these labels are as given (`_` for a dot, None for absent)."""
        wanted = {name.replace("_", "."): value for name, value in labels.items()}
        wait_for(
            lambda: all(self.labels().get(name) == value for name, value in wanted.items()),
            f"labels {wanted} of node {self.name}",
            seconds=60,
            state=self.labels,
        )

    def wait_manager(self, label: str, *managers: str) -> None:
        """Wait until these hold a label and nobody else."""
        wait_for(
            lambda: self.managers(label) == set(managers),
            f"{label} of {self.name} held by {managers}",
            seconds=60,
            state=lambda: self.client.get(NODES, self.name)["metadata"],
        )

    def wait_count(self, number: int) -> None:
        """Wait until the node has so many labels that are ours."""
        wait_for(lambda: len(self.ours()) == number, f"{number} labels of ours", seconds=60, state=self.ours)

    def ours(self) -> dict[str, str]:
        """Labels that we hold."""
        item = self.client.get(NODES, self.name)
        return {name: value for name, value in _nvidia(item).items() if LABEL_MANAGER in _managers(item, name)}


class LabelReferee:
    """Sees every state of one node, in order; a rule broken for however short a time is found."""

    def __init__(self, node: LabelledNode) -> None:
        selector = Selector(fields=f"metadata.name={node.name}")
        listing = node.client.list(NODES, selector=selector)
        self.states: list[dict[str, Any]] = list(listing.items)
        version = listing.resource_version
        self._watch = node.client.watch(NODES, selector=selector, resource_version=version, seconds=600)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(KubeError), self._watch as watch:
            for event in watch.events():
                if event.type in {"ADDED", "MODIFIED"}:
                    self.states.append(event.object)

    def stop(self) -> None:
        self._watch.abort()
        self._thread.join(10)

    def history(self, label: str) -> list[tuple[str | None, frozenset[str]]]:
        """Value and holders of a label, state by state, repetitions left out."""
        found = [(_nvidia(state).get(label), frozenset(_managers(state, label))) for state in self.states]
        return [each for index, each in enumerate(found) if not index or each != found[index - 1]]

    def taken_by_us(self, label: str) -> list[tuple[Any, Any]]:
        """Changes by which a label that only others held came to be ours with another value: there may be none."""
        changes = pairwise(self.history(label))
        return [
            (before, after)
            for before, after in changes
            if before[0] is not None
            and after[0] != before[0]
            and LABEL_MANAGER not in before[1]
            and LABEL_MANAGER in after[1]
        ]

    def writes_of_ours(self) -> int:
        """How often the set or the values of labels that we hold have changed, removals by others included."""
        found = [
            {name: value for name, value in _nvidia(state).items() if LABEL_MANAGER in _managers(state, name)}
            for state in self.states
        ]
        return sum(1 for one, other in pairwise(found) if one != other)


def _named(labels: dict[str, str | None]) -> dict[str, str | None]:
    return {PREFIX + name.replace("_", "."): value for name, value in labels.items()}


def _nvidia(item: dict[str, Any]) -> dict[str, str]:
    labels = item["metadata"].get("labels") or {}
    return {name.removeprefix(PREFIX): value for name, value in labels.items() if name.startswith(PREFIX)}


def _managers(item: dict[str, Any], label: str) -> set[str]:
    return {
        entry["manager"]
        for entry in item["metadata"].get("managedFields") or ()
        if f"f:{PREFIX}{label}" in entry["fieldsV1"].get("f:metadata", {}).get("f:labels", {})
    }
