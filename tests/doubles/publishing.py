"""A node that exists only as an object, with publishers for it, on a real API server."""

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from dradriver.kube import NODES, RESOURCE_SLICES, Backoff, Client, NotFoundError, Object, Pace, Selector, version_of
from dradriver.kube.connection import connect
from dradriver.publish import Publisher
from dradriver.resource import Slice

DRIVER = "test.dradriver.dev"
PATIENCE = 60.0


class Offer:
    """Use as a context manager; leaves neither node nor slices."""

    def __init__(self, admin: Client, kubeconfig: Path) -> None:
        self.admin = admin
        self.kubeconfig = kubeconfig
        self.node = f"publish-{uuid.uuid4().hex[:8]}"
        self._publishers: list[Publisher] = []
        self._clients: list[Client] = []

    def __enter__(self) -> Self:
        self.make_node()
        return self

    def __exit__(self, *_: object) -> None:
        for publisher in self._publishers:
            publisher.stop(PATIENCE)
        for item in self.slices():
            self.delete(item["metadata"]["name"])
        for client in self._clients:
            client.close()
        self.delete_node()

    def make_node(self) -> Object:
        metadata = {"name": self.node, "labels": {"kubernetes.io/hostname": self.node}}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"unschedulable": True}}
        return self.admin.create(NODES, body)

    def delete_node(self) -> None:
        self.admin.delete(NODES, self.node)

    def publisher(self, slices: tuple[Slice, ...] = (), *, client: Client | None = None, **options: Any) -> Publisher:
        """A started publisher with a client of its own."""
        if client is None:
            client = connect(self.kubeconfig)
            self._clients.append(client)
        options.setdefault("pace", Pace(backoff=Backoff(initial=0.1, maximum=1)))
        made = Publisher(client, driver=DRIVER, node_name=self.node, pool_name=self.node, **options)
        self._publishers.append(made)
        made.start()
        if slices:
            made.set_slices(slices)
        return made

    def slices(self) -> list[Object]:
        selector = Selector(fields=f"spec.nodeName={self.node}")
        items = self.admin.list(RESOURCE_SLICES, selector=selector).items
        return sorted(items, key=lambda item: str(item["metadata"]["name"]))

    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.slices()]

    def versions(self) -> dict[str, str]:
        return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in self.slices()}

    def generations(self) -> set[int]:
        return {item["spec"]["pool"]["generation"] for item in self.slices()}

    def events_since(self, version: str) -> list[tuple[str, Object]]:
        """What happened to slices of the node since a resourceVersion, in order."""
        end = int(self.admin.list(RESOURCE_SLICES).resource_version)
        events: list[tuple[str, Object]] = []
        with self.admin.watch(RESOURCE_SLICES, resource_version=version, seconds=30) as watch:
            # The bookmark after the last event may be a minute away, so something is made to happen.
            self._mark(end)
            for event in watch.events():
                if version_of(event.object) > end:
                    break
                if event.object.get("spec", {}).get("nodeName") == self.node:
                    events.append((event.type, event.object))
        return events

    def _mark(self, number: int) -> None:
        pool = {"name": "mark", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": f"mark.{DRIVER}", "nodeName": f"mark-{self.node}", "pool": pool}
        name = f"mark-{number}-{self.node}"
        self.admin.create(RESOURCE_SLICES, slice_body(name, spec))
        self.delete(name)

    def delete(self, name: str) -> None:
        try:
            self.admin.delete(RESOURCE_SLICES, name)
        except NotFoundError:
            return


def slice_body(name: str, spec: Object, *, generated: bool = False) -> Object:
    """A slice as somebody else makes it."""
    return {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": {"generateName" if generated else "name": name},
        "spec": spec,
    }


def until(condition: Callable[[], object], timeout: float = PATIENCE) -> float:
    """Poll until true and return the seconds it took.

    Raises:
        AssertionError: it did not become true in time.
    """
    start = time.monotonic()
    while not condition():
        waited = time.monotonic() - start
        assert waited < timeout, f"not true after {waited:.0f} s"
        time.sleep(0.02)
    return time.monotonic() - start
