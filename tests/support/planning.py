"""A cluster with a device plugin, for `kubectl dra plan` on a real API server."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import yaml
from doubles.deviceplugin import daemon_set
from support.bridging import install
from support.server import Server

from controller.api import BRIDGES
from controller.cli.live import DAEMON_SETS
from controller.cli.wanted import CONFIG_MAPS, QUOTAS
from dradriver.api.node_config import decode
from dradriver.kube import NODES, AlreadyExistsError, NotFoundError, Resource

NAMESPACES = Resource(group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False)
CRDS = Resource(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    namespaced=False,
)
ACCOUNTS = Resource(group="", version="v1", plural="serviceaccounts", kind="ServiceAccount", namespaced=True)
GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
LABEL = "dradriver.dev/config"
MANIFEST = ("dradriver-node-config", "dradriver")
TEXTS = {
    "default": "version: v1\nflags: {migStrategy: none}\n",
    "cut": "version: v1\nflags: {migStrategy: mixed}\n",
    "sliced": (
        "version: v1\nflags: {migStrategy: none}\n"
        "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
    ),
}


ALL = {
    "ExtendedResourceBridge gpu",
    "ExtendedResourceBridge gpu.shared",
    "ExtendedResourceBridge mig-1g.10gb",
    "ConfigMap dradriver/dradriver-node-config",
    "Node halved",
    "Node plain",
    "Node shared",
}
CONFIGS = {
    "default": {"gpus": [{"mig": "off"}]},
    "cut": {"gpus": [{"mig": "static"}], "order": "spread"},
    "sliced": {"gpus": [{"mig": "off", "sharing": {"replicas": 4, "rename": True}}], "order": "spread"},
}


@contextmanager
def ready(control_plane, admin) -> Iterator[Server]:
    """A server with our CRDs and the namespaces of the world below."""
    made = Server(control_plane.kubeconfig, programs=control_plane.programs)
    with closing(made):
        install(made)
        for name in ("gpu-operator", "ml"):
            with suppress(AlreadyExistsError):
                admin.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        yield made


class World:
    """A cluster with a device plugin: its DaemonSet and ConfigMap, nodes, a pod, a quota."""

    def __init__(self, admin, server, kubeconfig):
        self.admin, self.server, self.kubeconfig = admin, server, kubeconfig
        self.made = []
        self.create(CONFIG_MAPS, "configs", namespace="gpu-operator", data=TEXTS)
        self.daemon_set("plugin", selector={"gpu": "true"})
        self.node("plain", gpu=8)
        self.node("halved", config="cut", gpu=1, mig=7)
        self.node("shared", config="sliced", shared=32)
        self.create(QUOTAS, "q", namespace="ml", spec={"hard": {f"requests.{GPU}": "8"}})

    def create(self, resource, name, namespace="", **content):
        metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **content.pop("metadata", {})}
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}
        self.made.append((resource, name, namespace))
        return self.admin.create(resource, body)

    def daemon_set(self, name, *, selector, env=None, car=None):
        spec = daemon_set(name, env=env, car={} if car is None else car, selector=selector)["spec"]
        for container in spec["template"]["spec"]["containers"]:
            container.setdefault("volumeMounts", [])
        for volume in spec["template"]["spec"]["volumes"]:
            if "hostPath" in volume:
                volume["hostPath"] = {"path": "/var/lib/kubelet/device-plugins"}
        labels = {"app": name}
        spec["template"]["metadata"] = {"labels": labels}
        spec["selector"] = {"matchLabels": labels}
        self.create(DAEMON_SETS, name, namespace="gpu-operator", spec=spec)

    def node(self, name, *, config="", labels=None, gpu=0, mig=0, shared=0):
        given = {"gpu": "true", **({"nvidia.com/device-plugin.config": config} if config else {}), **(labels or {})}
        self.create(NODES, name, metadata={"labels": given})
        counts = {GPU: gpu, MIG: mig, SHARED: shared}
        resources = {"cpu": "8", **{key: str(count) for key, count in counts.items() if count}}
        info = {"kubeletVersion": "v1.37.2", "containerRuntimeVersion": "containerd://2.1.4"}
        status = {"capacity": resources, "allocatable": resources, "nodeInfo": info}
        self.admin.patch(NODES, name, {"status": status}, subresource="status")

    def plan(self, *words, status=0, kubeconfig=None):
        """Run the program, as kubectl does; gives what it prints on both."""
        config = str(kubeconfig or self.kubeconfig)
        command = [sys.executable, "-m", "controller.cli", "plan", "--from-cluster", "--kubeconfig", config, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert status in (None, done.returncode), (done.stdout, done.stderr)
        return done

    def apply(self, *words, status=0, **more):
        """Apply; gives each object with what became of it, and what was told."""
        done = self.plan("--apply", *words, status=status, **more)
        rows = [line.split("   ") for line in done.stdout.splitlines()[1:]]
        return {row[0].strip(): row[-1].strip() for row in rows}, done.stderr

    def find(self, resource, name, namespace=""):
        try:
            return self.admin.get(resource, name, namespace=namespace)
        except NotFoundError:
            return None

    def node_configs(self):
        text = self.find(CONFIG_MAPS, *MANIFEST)["data"]["nodes.yaml"]
        decoded = decode(yaml.safe_load(text))
        assert decoded.all_problems() == ()
        return yaml.safe_load(text)["configs"]

    def label(self, node):
        return self.find(NODES, node)["metadata"]["labels"].get(LABEL)

    def drop(self, resource, name, namespace=""):
        if self.find(resource, name, namespace) is not None:
            self.admin.delete(resource, name, namespace=namespace)

    def clear(self):
        """Take away what was applied."""
        self.drop(CONFIG_MAPS, *MANIFEST)
        self.drop(QUOTAS, "q-claims", "ml")
        if self.find(CRDS, "extendedresourcebridges.dradriver.dev"):
            for item in self.admin.list(BRIDGES).items:
                self.drop(BRIDGES, item["metadata"]["name"])

    def end(self):
        self.clear()
        for resource, name, namespace in reversed(self.made):
            self.drop(resource, name, namespace)
