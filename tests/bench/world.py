"""A place to measure in: a real API server, a node that only exists there, a simulated GPU machine."""

import contextlib
import io
import itertools
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import grpc
from doubles.kubelet import CALL_SECONDS, dra_v1_messages
from doubles.machines import simulation_main

from dradriver.kube import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Client, KubeError, NotFoundError, Selector
from dradriver.kube.resources import Resource
from dradriver.kubelet import ClaimReference

DRIVER: Final = "gpu.nvidia.com"
PROFILE: Final = "1g.10gb"
NAMESPACES: Final = Resource(group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False)
_PACKAGE: Final = "k8s.io.kubelet.pkg.apis.dra.v1"
_LIMIT: Final = 60.0
_CLUSTER_TOOL: Final = Path(__file__).resolve().parents[2] / "hack" / "cluster"


class NoClusterError(Exception):
    """Why there is no API server to measure against."""


@contextlib.contextmanager
def api_server(kubeconfig: str, *, without: Sequence[str] = ()) -> Iterator[str]:
    """Give the kubeconfig of the cluster that was named, or of a control plane that lives as long as the block.

    Args:
        kubeconfig: "" for one of our own.
        without: components that our own does not need.
    """
    if kubeconfig:
        yield kubeconfig
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        try:
            _cluster_tool("up", "--dir", folder, "--control-plane-only")
            for component in without:
                _cluster_tool("stop", component, "--dir", folder)
            yield f"{folder}/kubeconfig"
        finally:
            _cluster_tool("down", "--dir", folder)


def _cluster_tool(*arguments: str) -> None:
    if subprocess.run([sys.executable, _CLUSTER_TOOL, *arguments], stdout=sys.stderr, check=False).returncode:
        raise NoClusterError(f"hack/cluster {arguments[0]} failed, see above; --kubeconfig names another cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """What the plugin is told of its node; `root` is short, since sockets lie below."""

    root: Path

    @property
    def plugins(self) -> Path:
        return self.root / "p"

    @property
    def registry(self) -> Path:
        return self.root / "r"

    @property
    def cdi(self) -> Path:
        return self.root / "cdi"

    @property
    def simulation(self) -> Path:
        return self.root / "sim"

    @property
    def socket(self) -> Path:
        return self.plugins / DRIVER / "dra.sock"

    def arguments(self, node: str, *, kubeconfig: str) -> list[str]:
        """Flags of the plugin."""
        flags = {
            "node-name": node,
            "kubeconfig": kubeconfig,
            "kubelet-plugins-directory-path": self.plugins,
            "kubelet-registrar-directory-path": self.registry,
            "cdi-root": self.cdi,
            "simulation": self.simulation,
            "mig": "dynamic",
            "http-endpoint": "127.0.0.1:0",
        }
        return [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]


def make_folders(root: Path, machine: str) -> Folders:
    folders = Folders(root=root)
    for folder in (folders.plugins, folders.registry, folders.cdi):
        folder.mkdir()
    with contextlib.redirect_stdout(io.StringIO()):
        if simulation_main(["--state", str(folders.simulation), "create", machine]):
            raise SystemExit(f"bench: there is no machine {machine}")
    return folders


@dataclass(kw_only=True)
class Cluster:
    """Node, namespace and claims of one benchmark on the API server; all are gone when the block ends."""

    client: Client
    name: str = field(default_factory=lambda: f"bench-{uuid.uuid4().hex[:8]}")
    _stack: ExitStack = field(default_factory=ExitStack)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __enter__(self) -> Self:
        self.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}})
        self._stack.callback(self._remove, NODES)
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}}
        self.client.create(NAMESPACES, space)
        self._stack.callback(self._remove, NAMESPACES)
        self._stack.callback(self.remove_slices)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _remove(self, resource: Resource) -> None:
        with contextlib.suppress(KubeError):
            self.client.delete(resource, self.name)

    @property
    def slice_selector(self) -> Selector:
        return Selector(fields=f"spec.nodeName={self.name}")

    def remove_slices(self) -> None:
        """As the kubelet does when a driver has been away."""
        for item in self.client.list(RESOURCE_SLICES, selector=self.slice_selector).items:
            with contextlib.suppress(NotFoundError):
                self.client.delete(RESOURCE_SLICES, item["metadata"]["name"])

    def devices(self) -> list[str]:
        """Names of all published devices."""
        slices = self.client.list(RESOURCE_SLICES, selector=self.slice_selector).items
        return [device["name"] for item in slices for device in item["spec"].get("devices") or ()]

    def claim(self, device: str) -> ClaimReference:
        """Make a claim and allocate the device to it, as the scheduler does."""
        name = f"claim-{next(self._numbers)}"
        request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 1}}
        claim = self.client.create(
            RESOURCE_CLAIMS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": self.name},
                "spec": {"devices": {"requests": [request]}},
            },
        )
        result = {"request": "gpu", "driver": DRIVER, "pool": self.name, "device": device}
        allocated = claim | {"status": {"allocation": {"devices": {"results": [result]}}}}
        self.client.replace(RESOURCE_CLAIMS, allocated, subresource="status")
        return ClaimReference(namespace=self.name, name=name, uid=claim["metadata"]["uid"])

    def read(self, claim: ClaimReference) -> Mapping[str, Any]:
        return self.client.get(RESOURCE_CLAIMS, claim.name, namespace=claim.namespace)


class Devices:
    """Which of the offered devices are measured.

    Attributes:
        gpus: every whole GPU.
        partitions: of every GPU one partition of the profile.
        all_partitions: of every GPU all partitions of the profile.
        neighbour: another partition of the first GPU.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.gpus = sorted(name for name in names if "-mig-" not in name)
        wanted = f"-mig-{PROFILE.replace('.', '')}-"
        groups = [sorted(name for name in names if name.startswith(gpu + wanted)) for gpu in self.gpus]
        self.all_partitions = groups
        self.partitions = [group[0] for group in groups]
        self.neighbour = groups[0][1]


class Caller:
    """The kubelet's connection to the plugin: one, kept open."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=[("grpc.default_authority", "localhost")])
        grpc.channel_ready_future(self._channel).result(_LIMIT)
        self._calls = {verb: self._method(verb) for verb in ("Prepare", "Unprepare")}

    def close(self) -> None:
        self._channel.close()

    def prepare(self, claims: Sequence[ClaimReference]) -> None:
        self._call("Prepare", claims)

    def unprepare(self, claims: Sequence[ClaimReference]) -> None:
        self._call("Unprepare", claims)

    def _method(self, verb: str) -> Any:
        messages, method = dra_v1_messages(), f"Node{verb}Resources"
        response = messages[f"{_PACKAGE}.{method}Response"]
        return self._channel.unary_unary(
            f"/{_PACKAGE}.DRAPlugin/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )

    def _call(self, verb: str, claims: Sequence[ClaimReference]) -> None:
        messages = dra_v1_messages()
        made = [messages[f"{_PACKAGE}.Claim"](namespace=c.namespace, name=c.name, uid=c.uid) for c in claims]
        response = self._calls[verb](
            messages[f"{_PACKAGE}.Node{verb}ResourcesRequest"](claims=made), timeout=CALL_SECONDS
        )
        wrong = [entry.error for entry in response.claims.values() if entry.error]
        if wrong or len(response.claims) != len(claims):
            raise RuntimeError(f"bench: {verb} failed: {wrong or 'claims were left out'}")


def until(condition: Any, *, interval: float = 0.001, limit: float = _LIMIT) -> float:
    """Wait; returns the monotonic time at which the condition was seen to hold."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"bench: not within {limit:.0f} s")
        time.sleep(interval)
    return time.monotonic()
