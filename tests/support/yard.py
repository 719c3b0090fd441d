"""Nodes that exist as objects only, with devices of our driver, and pods that ask for extended resources there.

There is no kubelet: a pod that has got its node stays there and never runs.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from support.bridging import unique
from support.manifests import pod
from support.server import Body, Server
from support.stage import ACCOUNTS, NAMESPACES
from support.waiting import wait_for

from dradriver.kube import (
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    Client,
    KubeError,
    Resource,
    Selector,
)

REPORTER = "dradriver.dev/controller"
ANYWHERE = [{"operator": "Exists"}]


def gpu(name: str, product: str, **more: Any) -> Body:
    """A whole GPU of a product."""
    return {"name": name, "attributes": {"type": {"string": "gpu"}, "productName": {"string": product}}, **more}


class Yard:
    """A namespace and nodes under one name, all gone when it is closed.

    Attributes:
        name: of the namespace, and product name of the GPUs, so that a bridge can select these only.
    """

    def __init__(self, client: Client) -> None:
        self.name = unique("yard")
        self._client = client
        self._nodes: list[str] = []
        self._slices: list[str] = []
        client.create(NAMESPACES, self._body(NAMESPACES, self.name))
        # Pods want it at once; the controller manager would make it a little later.
        with suppress(KubeError):
            client.create(ACCOUNTS, self._body(ACCOUNTS, "default", self.name))

    @property
    def resource(self) -> str:
        """A resource name of this yard."""
        return f"nvidia.com/{self.name}"

    @property
    def select(self) -> Body:
        """What a bridge has to select."""
        return {"type": "gpu", "productName": self.name}

    def _body(self, resource: Resource, name: str, namespace: str = "", **content: Any) -> Body:
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}

    def _mine(self, resource: Resource) -> list[Body]:
        """Objects of this namespace."""
        return list(self._client.list(resource, selector=Selector(fields=f"metadata.namespace={self.name}")).items)

    # --- nodes -----------------------------------------------------------------------------------

    def add_node(self, *devices: Body, labels: Mapping[str, str] | None = None, plugin: int = 0, total: int = 1) -> str:
        """Make a node with devices.

        Args:
            devices: that it publishes.
            labels: of the node.
            plugin: how many of the yard's resource a device plugin has there.
            total: slices that its pool has.
        """
        name = f"{self.name}-{len(self._nodes)}"
        self._nodes.append(name)
        room = {"cpu": "1000", "memory": "1Ti", "pods": "1000", **({self.resource: str(plugin)} if plugin else {})}
        body = self._body(NODES, name, spec={"unschedulable": True}, status={"capacity": room, "allocatable": room})
        body["metadata"]["labels"] = dict(labels or {})
        self._client.create(NODES, body)
        if devices:
            pool = {"name": name, "generation": 1, "resourceSliceCount": total}
            spec = {"driver": "gpu.nvidia.com", "nodeName": name, "pool": pool, "devices": list(devices)}
            self._client.create(RESOURCE_SLICES, self._body(RESOURCE_SLICES, name, spec=spec))
        return name

    def add_counters(self, node: str, *sets: Body, total: int) -> None:
        """Publish counter sets of a node's pool, in a slice of their own."""
        pool = {"name": node, "generation": 1, "resourceSliceCount": total}
        spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "sharedCounters": list(sets)}
        self._client.create(RESOURCE_SLICES, self._body(RESOURCE_SLICES, f"{node}-counters", spec=spec))
        self._slices.append(f"{node}-counters")

    def gpus(self, count: int, *, tainted: int = 0) -> list[Body]:
        """Whole GPUs of this yard, the last of them tainted."""
        taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
        return [
            gpu(f"gpu-{index}", self.name, **({"taints": [taint]} if index >= count - tainted else {}))
            for index in range(count)
        ]

    # --- pods ------------------------------------------------------------------------------------

    def add_pod(self, name: str, count: int = 1, *, resource: str = "", **spec: Any) -> None:
        """Make a pod that asks for some of a resource, and may go to nodes without a kubelet."""
        limits = {"limits": {resource or self.resource: str(count)}}
        container = {"name": "app", "image": "none", "resources": limits}
        body = pod(name, container, **{"tolerations": ANYWHERE, "terminationGracePeriodSeconds": 0, **spec})
        body["metadata"]["namespace"] = self.name
        self._client.create(PODS, body)

    def add_quota(self, name: str, **hard: str) -> None:
        """Make a quota, and wait until it holds."""
        self._client.create(RESOURCE_QUOTAS, self._body(RESOURCE_QUOTAS, name, self.name, spec={"hard": hard}))

        def is_counted() -> bool:
            found = self._client.get(RESOURCE_QUOTAS, name, namespace=self.name)
            return bool(found.get("status", {}).get("hard") == hard)

        wait_for(is_counted, f"quota {name} to be counted")

    def wait_placed(self, name: str) -> str:
        """Wait until a pod has its node; gives that."""
        return str(
            wait_for(
                lambda: self._client.get(PODS, name, namespace=self.name)["spec"].get("nodeName"),
                f"pod {name} to get a node",
                state=lambda: self._client.get(PODS, name, namespace=self.name)["status"],
            )
        )

    def remove_pod(self, name: str) -> None:
        """Delete a pod; its claim goes with it."""
        self._client.delete(PODS, name, namespace=self.name)

    def add_replica_set(self, name: str, server: Server) -> None:
        """Make a ReplicaSet of one pod that asks for one of the yard's resource."""
        limits = {"limits": {self.resource: "1"}}
        spec = {"containers": [{"name": "app", "image": "none", "resources": limits}], "tolerations": ANYWHERE}
        body = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": name, "namespace": self.name},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": {"app": name}}, "spec": spec},
            },
        }
        server.kubectl("create", "-f", "-", text=json.dumps(body))

    def story(self, name: str, reason: str) -> str:
        """What anybody's Events of a reason say of an object."""
        found = self._mine(EVENTS)
        return "\n".join(
            str(each.get("note")) for each in found if (each["regarding"]["name"], each["reason"]) == (name, reason)
        )

    # --- events ----------------------------------------------------------------------------------

    def events(self, name: str) -> dict[str, str]:
        """What the controller has told a pod: note by reason."""
        return {each["reason"]: each["note"] for each in self.all_events() if each["regarding"]["name"] == name}

    def all_events(self) -> list[Body]:
        """Everything the controller has told in this namespace."""
        found = self._mine(EVENTS)
        return [each for each in found if each.get("reportingController") == REPORTER]

    def told(self, name: str, reason: str) -> str:
        """Wait until the controller has told a pod for this reason why it waits; gives the note."""
        return str(
            wait_for(
                lambda: self.events(name).get(reason),
                f"pod {name} to be told {reason}",
                seconds=60,
                state=lambda: (self.events(name), self._client.get(PODS, name, namespace=self.name)["status"]),
            )
        )

    # --- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Remove everything; nobody ends pods on nodes that do not exist."""
        self._client.delete(NAMESPACES, self.name)
        for item in self._mine(PODS):
            with suppress(KubeError):
                self._client.delete(PODS, item["metadata"]["name"], namespace=self.name)
        for item in self._mine(RESOURCE_CLAIMS):
            with suppress(KubeError):
                name = item["metadata"]["name"]
                self._client.patch(RESOURCE_CLAIMS, name, {"metadata": {"finalizers": None}}, namespace=self.name)
        for resource, names in ((RESOURCE_SLICES, [*self._slices, *self._nodes]), (NODES, self._nodes)):
            for name in names:
                with suppress(KubeError):
                    self._client.delete(resource, name)
