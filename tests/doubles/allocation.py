"""Claims that a real scheduler allocates, on a node that has no kubelet."""

import uuid
from typing import Any, Self

from doubles.publishing import DRIVER, until

from dradriver.kube import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, Client, NotFoundError, Object

NAMESPACE = "default"


class Claims:
    """Use as a context manager; leaves neither pods nor claims nor the class.

    Args:
        admin: access to the API server.
        node: name of a node that exists.
    """

    def __init__(self, admin: Client, node: str) -> None:
        self._admin = admin
        self._node = node
        self._name = f"{node}-{uuid.uuid4().hex[:4]}"
        self._pods: list[str] = []

    def __enter__(self) -> Self:
        self._make_schedulable()
        expression = f'device.driver == "{DRIVER}"'
        self._admin.create(
            DEVICE_CLASSES,
            _body(DEVICE_CLASSES, self._name, spec={"selectors": [{"cel": {"expression": expression}}]}),
        )
        until(lambda: _has_account(self._admin))
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._pods):
            self.release(name)
        self._admin.delete(DEVICE_CLASSES, self._name)

    def ask(self, name: str, *, device: str) -> None:
        """Let a pod want a device whose attribute `type` is this."""
        expression = f'device.attributes["{DRIVER}"].type == "{device}"'
        exactly = {"deviceClassName": self._name, "selectors": [{"cel": {"expression": expression}}]}
        claim = f"{self._name}-{name}"
        spec = {"devices": {"requests": [{"name": "it", "exactly": exactly}]}}
        self._admin.create(RESOURCE_CLAIMS, _body(RESOURCE_CLAIMS, claim, namespace=NAMESPACE, spec=spec))
        self._admin.create(PODS, _body(PODS, claim, namespace=NAMESPACE, spec=_pod(claim, self._node)))
        self._pods.append(name)

    def device(self, name: str) -> str:
        """Name of the device that was allocated; "" as long as none is."""
        claim = self._admin.get(RESOURCE_CLAIMS, f"{self._name}-{name}", namespace=NAMESPACE)
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results") or [{"device": ""}]
        return str(results[0]["device"])

    def refused(self, name: str) -> bool:
        """Whether the scheduler has looked and found nothing for the pod."""
        pod = self._admin.get(PODS, f"{self._name}-{name}", namespace=NAMESPACE)
        return any(
            condition["type"] == "PodScheduled" and condition["status"] == "False"
            for condition in pod.get("status", {}).get("conditions") or ()
        )

    def release(self, name: str) -> None:
        """End the pod and its claim."""
        self._pods.remove(name)
        for resource in (PODS, RESOURCE_CLAIMS):
            self._force(resource, f"{self._name}-{name}")

    def _force(self, resource: Any, name: str) -> None:
        # Nobody is there who would say that a pod has ended.
        path = resource.path(namespace=NAMESPACE, name=name)
        try:
            self._admin._call("DELETE", path, query={"gracePeriodSeconds": "0"})
            until(lambda: not _found(self._admin, resource, name))
        except NotFoundError:
            return

    def _make_schedulable(self) -> None:
        self._admin.patch(NODES, self._node, {"spec": {"unschedulable": None}})
        room = {"cpu": "8", "memory": "8Gi", "pods": "110"}
        self._admin.patch(NODES, self._node, {"status": {"capacity": room, "allocatable": room}}, subresource="status")


def _pod(claim: str, node: str) -> Object:
    return {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "it"}]}}],
        "resourceClaims": [{"name": "it", "resourceClaimName": claim}],
    }


def _body(resource: Any, name: str, *, namespace: str = "", **content: Any) -> Object:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}


def _found(admin: Client, resource: Any, name: str) -> bool:
    try:
        admin.get(resource, name, namespace=NAMESPACE)
    except NotFoundError:
        return False
    return True


def _has_account(admin: Client) -> bool:
    """Whether pods can be made in the namespace: its service account comes a little after the API server."""
    return bool(admin._call("GET", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts")["items"])
