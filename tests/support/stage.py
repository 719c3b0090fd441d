"""Nodes that exist as objects only, each with a pool of devices, and pods for which a real scheduler chooses devices.

There is no kubelet: a pod that has got its node stays there and never runs. What is asked here is the scheduler alone.
"""

import secrets
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from support.manifests import claim as claim_body
from support.schedulers import Scheduler
from support.waiting import wait_for

from dradriver.kube import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Client,
    KubeError,
    Object,
    PatchKind,
    Resource,
    Selector,
    Watch,
)
from dradriver.publish import slice_name
from dradriver.resource import Slice, slice_spec

NAMESPACES: Final = Resource(group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False)
ACCOUNTS: Final = Resource(group="", version="v1", plural="serviceaccounts", kind="ServiceAccount", namespaced=True)
REFUSED: Final = "cannot allocate all claims"
"""How the scheduler says that devices do not suffice."""
INVALID: Final = "invalid resource pools"
"""How it says that a pool does not fit together.

Other complaints pass by themselves, such as of a claim that it has not heard of yet, and are no verdict.
"""
_LABEL: Final = "dradriver.dev/stage"
_CLIENTS: Final = 8
"""Requests at once. More does not help: an API server on the same machine is what one waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the scheduler has said of a pod.

    Attributes:
        devices: names of the devices of all its requests, in their order; empty where it was refused.
        reason: why it was refused; "" where it was not.
    """

    devices: tuple[str, ...] = ()
    reason: str = ""

    @property
    def fits(self) -> bool:
        """It has got its devices."""
        return not self.reason


class Stage:
    """A namespace, classes and nodes under one name, all gone when the block ends.

    Attributes:
        name: of the namespace and of the scheduler, beginning of the names of nodes and classes.
        driver: of the slices; nobody else's, so that other tests' slices do not mix with these.
    """

    def __init__(self, client: Client, kubeconfig: Path) -> None:
        self.name = f"stage-{secrets.token_hex(3)}"
        self.driver = f"{self.name}.dradriver.dev"
        self._client = client
        self._kubeconfig = kubeconfig
        self._folder = tempfile.TemporaryDirectory(prefix="stage-")
        self._workers = ThreadPoolExecutor(_CLIENTS)
        self._made: set[str] = set()

    # --- classes and selectors -------------------------------------------------------------------

    @property
    def gpu(self) -> str:
        """Class of whole GPUs."""
        return f"{self.name}-gpu"

    @property
    def mig(self) -> str:
        """Class of partitions."""
        return f"{self.name}-mig"

    @property
    def any(self) -> str:
        """Class of both."""
        return f"{self.name}-any"

    def attribute(self, name: str) -> str:
        """CEL: an attribute of the driver's domain."""
        return f"device.attributes['{self.driver}'].{name}"

    def capacity(self, name: str) -> str:
        """CEL: a capacity of the driver's domain."""
        return f"device.capacity['{self.driver}'].{name}"

    def add_class(self, name: str, expression: str) -> str:
        """Make a class of devices of this stage's driver for which a CEL expression holds; gives its full name."""
        full = f"{self.name}-{name}"
        mine = f"device.driver == '{self.driver}' && {expression}"
        self._client.create(
            DEVICE_CLASSES, self._body(DEVICE_CLASSES, full, spec={"selectors": [{"cel": {"expression": mine}}]})
        )
        return full

    def _classes(self) -> Iterator[Object]:
        mine = f"device.driver == '{self.driver}'"
        kind = self.attribute("type")
        for name, expression in (
            (self.gpu, f"{mine} && {kind} == 'gpu'"),
            (self.mig, f"{mine} && {kind} == 'mig'"),
            (self.any, mine),
        ):
            yield self._body(DEVICE_CLASSES, name, spec={"selectors": [{"cel": {"expression": expression}}]})

    # --- making ----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._client.create(NAMESPACES, self._body(NAMESPACES, self.name))
            # Pods want it at once; the controller manager would make it a little later.
            with suppress(KubeError):
                self._client.create(ACCOUNTS, self._body(ACCOUNTS, "default"))
            for body in self._classes():
                self._client.create(DEVICE_CLASSES, body)
        except KubeError:
            self.__exit__()
            raise
        return self

    def node(self, name: str) -> str:
        """The full name of a node."""
        return f"{self.name}-{name}"

    def add_nodes(self, pools: Mapping[str, Sequence[Slice]]) -> None:
        """Make nodes, by name, with what they offer."""
        bodies: list[tuple[Resource, Object]] = [(NODES, self._node(self.node(name))) for name in pools]
        for name, slices in pools.items():
            bodies += [(RESOURCE_SLICES, body) for body in self._slices(self.node(name), slices)]
        self._create(bodies)

    def remove_nodes(self) -> None:
        """Take all nodes away, and what they offer."""
        self._everywhere(self._delete_all, [RESOURCE_SLICES, NODES])

    def add_pods(self, wanted: Mapping[str, tuple[str | None, Sequence[Object]]]) -> None:
        """Make pods, by name, each with a claim of its own and the node it has to go to, or None for any.

        A claim's requests are made by `support.manifests.request`.
        """
        claims = [(RESOURCE_CLAIMS, self._claim(name, requests)) for name, (_, requests) in wanted.items()]
        self._create(claims)
        self._create([(PODS, self._pod(name, node)) for name, (node, _) in wanted.items()])

    def _create(self, bodies: Iterable[tuple[Resource, Object]]) -> None:
        self._everywhere(lambda pair: self._client.create(*pair), bodies)

    def _everywhere(self, call: Callable[[Any], object], items: Iterable[Any]) -> None:
        for _ in self._workers.map(call, items):
            pass

    def _body(self, resource: Resource, name: str, **content: Any) -> Object:
        metadata: Object = {"name": name, "labels": {_LABEL: self.name}}
        if resource.namespaced:
            metadata["namespace"] = self.name
        return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}

    def _node(self, name: str) -> Object:
        # Unschedulable for all but our pods, which tolerate everything: also what is said of nodes without a kubelet.
        room = {"cpu": "1000", "memory": "1Ti", "pods": "10000"}
        return self._body(NODES, name, spec={"unschedulable": True}, status={"capacity": room, "allocatable": room})

    def _slices(self, node: str, slices: Sequence[Slice]) -> Iterator[Object]:
        pool = {"name": node, "generation": 1, "resourceSliceCount": len(slices)}
        for index, content in enumerate(slices):
            name = slice_name(index, driver=self.driver, node_name=node)
            yield self._body(
                RESOURCE_SLICES, name, spec=slice_spec(content, driver=self.driver, node_name=node, pool=pool)
            )

    def _claim(self, name: str, requests: Sequence[Object]) -> Object:
        return self._body(RESOURCE_CLAIMS, name, spec=claim_body(name, *requests)["spec"])

    def _pod(self, name: str, node: str | None) -> Object:
        spec: Object = {
            "schedulerName": self.name,
            "containers": [{"name": "app", "image": "none"}],
            "resourceClaims": [{"name": "devices", "resourceClaimName": name}],
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
        }
        return self._body(PODS, name, spec=spec if node is None else spec | {"affinity": _on(self.node(node))})

    # --- scheduling ------------------------------------------------------------------------------

    @contextmanager
    def scheduler(self, *, niceness: int = 0) -> Iterator[int]:
        """Let the scheduler of this stage work until the block ends; gives its process id.

        What was made before is known to it as a whole when it begins.
        """
        made = Scheduler(self._kubeconfig, name=self.name, folder=Path(self._folder.name))
        with made.running(niceness=niceness) as pid:
            yield pid

    def watch_claims(self, *, seconds: float) -> Watch:
        """Watch what becomes of the claims from now on."""
        selector = Selector(namespace=self.name)
        version = self._client.list(RESOURCE_CLAIMS, selector=selector).resource_version
        return self._client.watch(RESOURCE_CLAIMS, selector=selector, resource_version=version, seconds=seconds)

    def verdicts(self, names: Collection[str]) -> dict[str, Verdict]:
        """Wait until the scheduler has said something of every pod, and give what it says now."""
        names = set(names)

        def said() -> bool:
            return names <= {name for name, pod in self._by_name(PODS).items() if _node_of(pod) or _refusal(pod)}

        wait_for(said, f"verdicts on {len(names)} pods", state=self._undecided)
        claims, pods = self._by_name(RESOURCE_CLAIMS), self._by_name(PODS)
        return {name: _verdict(pods[name], claims[name]) for name in names}

    def placed(self, names: Collection[str]) -> dict[str, Verdict]:
        """Wait until every one of the pods has got its devices."""
        names = set(names)

        def all_placed() -> bool:
            return names <= {name for name, pod in self._by_name(PODS).items() if _node_of(pod)}

        wait_for(all_placed, f"{len(names)} pods to get devices", state=self._undecided)
        return self.verdicts(names)

    def _undecided(self) -> list[tuple[str, str]]:
        return [(name, _complaint(pod)) for name, pod in self._by_name(PODS).items() if not _node_of(pod)][:20]

    def _by_name(self, resource: Resource) -> dict[str, Object]:
        items = self._client.list(resource, selector=Selector(namespace=self.name)).items
        return {item["metadata"]["name"]: item for item in items}

    # --- removing --------------------------------------------------------------------------------

    def remove_pods(self, names: Collection[str]) -> None:
        """Take pods away, with what was allocated to them.

        The controller manager would do the latter, twenty claims a second.
        """
        self._everywhere(self._remove_pod, names)

    def _remove_pod(self, name: str) -> None:
        self._client.delete(PODS, name, namespace=self.name)
        self._client.patch(RESOURCE_CLAIMS, name, {"metadata": {"finalizers": None}}, namespace=self.name)
        self._client.delete(RESOURCE_CLAIMS, name, namespace=self.name)

    def __exit__(self, *_: object) -> None:
        with suppress(KubeError):
            self._clear()
        self._workers.shutdown()
        self._folder.cleanup()

    def _clear(self) -> None:
        self._everywhere(self._delete_all, [PODS, RESOURCE_SLICES, NODES, DEVICE_CLASSES])
        self._delete_all(RESOURCE_CLAIMS)
        held = [name for name, claim in self._by_name(RESOURCE_CLAIMS).items() if claim["metadata"].get("finalizers")]
        self._everywhere(self._release, held)
        self._client.delete(NAMESPACES, self.name)

    def _release(self, name: str) -> None:
        with suppress(KubeError):
            self._client.patch(
                RESOURCE_CLAIMS, name, {"metadata": {"finalizers": None}}, kind=PatchKind.MERGE, namespace=self.name
            )

    def _delete_all(self, resource: Resource) -> None:
        namespace = self.name if resource.namespaced else ""
        query = {"labelSelector": f"{_LABEL}={self.name}"}
        self._client._call("DELETE", resource.path(namespace=namespace), query=query, timeout=120)


def _on(node: str) -> Object:
    """Affinity to one node in the form for which the scheduler looks at no other."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _node_of(pod: Object) -> str:
    return str(pod["spec"].get("nodeName") or "")


def _refusal(pod: Object) -> str:
    complaint = _complaint(pod)
    return complaint if REFUSED in complaint or INVALID in complaint else ""


def _complaint(pod: Object) -> str:
    conditions = pod.get("status", {}).get("conditions", ())
    found = (each for each in conditions if each["type"] == "PodScheduled" and each["status"] == "False")
    return next((str(each.get("message") or each["reason"]) for each in found), "")


def _verdict(pod: Object, claim: Object) -> Verdict:
    if not _node_of(pod):
        return Verdict(reason=_refusal(pod))
    results = claim["status"]["allocation"]["devices"]["results"]
    return Verdict(devices=tuple(result["device"] for result in results))
