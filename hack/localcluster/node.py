# SPDX-License-Identifier: Apache-2.0
"""One node: a mount namespace, containerd and a kubelet in it.

Some paths are fixed in these programs (/var/lib/kubelet above all). In the node's namespace its own folders
are mounted over them; nothing else is hidden, so a path means the same inside and outside. The namespace is
held open by a small process of its own, the component <node>, so that containerd and the kubelet can be
restarted each for itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localcluster import cgroups, images, kubeconfig, network, processes
from localcluster.common import ClusterError, wait_for, write
from localcluster.controlplane import get
from localcluster.spec import index_of, parse_gates

if TYPE_CHECKING:
    from localcluster.common import Layout
    from localcluster.spec import Spec

_PATIENCE = 120  # Seconds; see controlplane.
_CAP_SYS_RESOURCE = 24
# The node's folder, and the fixed path that it is mounted over.
_SHADOWS = {
    "kubelet": "/var/lib/kubelet",
    "run-containerd": "/run/containerd",
    "cni/cache": "/var/lib/cni",
    "pod-logs": "/var/log/pods",
    "container-logs": "/var/log/containers",
}
# Inside the namespace mounts made by the kubelet must reach containers that ask for it (shared), while none
# reaches the machine (the namespace was made as its slave).
_ENTER = """\
set -e
mount --make-rshared /
while [ $# -gt 1 ]; do mount --bind "$1" "$2"; shift 2; done
exec "$1"
"""
_SOCKET = "/run/containerd/containerd.sock"

_CONTAINERD = """\
version = 3
imports = []
root = {root}
state = "/run/containerd"

[grpc]
address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
path = {opt}

[plugins."io.containerd.nri.v1.nri"]
disable = true

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
cdi_spec_dirs = [{cdi}]
restrict_oom_score_adj = {restrict}
netns_mounts_under_state_dir = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [{bin}]
conf_dir = {cni}

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = {runc}
SystemdCgroup = false
"""


def containerd(node: str) -> str:
    """The name of the node's containerd among the components."""
    return f"containerd-{node}"


def kubelet(node: str) -> str:
    """The name of the node's kubelet among the components."""
    return f"kubelet-{node}"


def prepare(layout: Layout, spec: Spec, node: str) -> None:
    """Make the node's folders, configuration, cgroup and bridge."""
    for folder in (*_SHADOWS, "containerd", "opt", "cdi", "volume-plugins"):
        (layout.node(node) / folder).mkdir(parents=True, exist_ok=True)
    write(_config(layout, node, "containerd.toml"), containerd_config(layout, node, capable=may_lower_oom_score()))
    write(_config(layout, node, "kubelet.json"), json.dumps(kubelet_config(layout, spec, node), indent=2) + "\n")
    network_config = cni_config(layout, node, subnet=spec.ports.subnet(index_of(node)))
    write(layout.node(node) / "cni" / "conf" / "10-bridge.conflist", json.dumps(network_config, indent=2) + "\n")
    cgroups.create(layout, node)
    index = index_of(node)
    # One bridge of the cluster carries the API server's service address; pods of all nodes reach it.
    service = None if index else spec.ports.first_service
    network.create(network.bridge(layout, node), spec.ports.address(index), service=service)
    _link_short(layout, node)


def _link_short(layout: Layout, node: str) -> None:
    link = layout.short / node
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(layout.kubelet(node))


def _config(layout: Layout, node: str, name: str) -> Path:
    return layout.node(node) / "config" / name


def may_lower_oom_score() -> bool:
    """Whether this machine lets us protect pods from the kernel's memory killer (CAP_SYS_RESOURCE)."""
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff"))
    return bool(int(effective.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)


def containerd_config(layout: Layout, node: str, *, capable: bool) -> str:
    """The configuration file of the node's containerd."""
    folder = layout.node(node)
    paths = {
        "root": folder / "containerd",
        "opt": folder / "opt",
        "cdi": layout.cdi(node),
        "bin": layout.bin,
        "cni": folder / "cni" / "conf",
        "runc": layout.bin / "runc-without-seccomp",
    }
    # A JSON string is a TOML string.
    quoted = {name: json.dumps(str(path)) for name, path in paths.items()}
    # Without the capability runc dies on writing the scores that pods should have.
    restrict = "false" if capable else "true"
    return _CONTAINERD.format(socket=_SOCKET, pause=images.PAUSE, restrict=restrict, **quoted)


def cni_config(layout: Layout, node: str, *, subnet: str) -> dict[str, object]:
    """The pod network: the node's bridge, addresses from its subnet; no rules in the packet filter."""
    return {
        "cniVersion": "1.0.0",
        "name": "dradriver",
        "plugins": [
            {
                "type": "bridge",
                "bridge": network.bridge(layout, node),
                # The bridge has its address already; asked for a gateway, the plugin would switch on
                # forwarding for the whole machine.
                "isGateway": False,
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(layout.node(node) / "cni" / "addresses"),
                    "ranges": [[{"subnet": f"{subnet}.0/24", "gateway": f"{subnet}.1"}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


def kubelet_config(layout: Layout, spec: Spec, node: str) -> dict[str, object]:
    """The configuration of the node's kubelet; only fields that every supported version knows."""
    port = spec.ports.kubelet(index_of(node))
    config: dict[str, object] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.certs / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "address": spec.ports.address(index_of(node)),
        "port": port,
        "healthzPort": port + 1,
        "healthzBindAddress": "127.0.0.1",
        "containerRuntimeEndpoint": f"unix://{_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroups.name_of(layout, node),
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,
        "volumePluginDir": str(layout.node(node) / "volume-plugins"),
        # An address no one answers at: pods resolve nothing, but no event complains in each of them.
        "clusterDNS": [spec.ports.first_service.rpartition(".")[0] + ".10"],
        "clusterDomain": "cluster.local",
        # A developer's disk is often nearly full; images that were imported must not be collected.
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    }
    if spec.feature_gates:
        config["featureGates"] = parse_gates(spec.feature_gates)
    return config


def start_runtime(layout: Layout, node: str) -> None:
    """Start the namespace and containerd in it, and give it the images."""
    _start_namespace(layout, node)
    _start_containerd(layout, node)
    for name in ("pause", "toolbox"):
        _import(layout, node, layout.root / "images" / f"{name}.tar")


def _start_namespace(layout: Layout, node: str) -> None:
    if (survivor := _in_namespace(layout, node)) is not None:
        # Its keeper was killed: give the namespace another one, for the pods' mounts are in it.
        keep = [*_nsenter(survivor), f"{layout.bin}/pause"]
        processes.start(layout, node, keep)
        return
    pairs = []
    for folder, over in _SHADOWS.items():
        Path(over).mkdir(parents=True, exist_ok=True)
        pairs += [str(layout.node(node) / folder), over]
    pause = f"{layout.bin}/pause"
    shell = ["sh", "-c", _ENTER, "sh", *pairs, pause]
    processes.start(layout, node, ["unshare", "--mount", "--propagation", "slave", *shell])

    def entered() -> bool:
        processes.expect_running(layout, node)
        return _program(processes.pid_of(layout, node)) == "pause"

    if not wait_for(entered, seconds=_PATIENCE, pause=0.02):
        raise ClusterError(f"the mount namespace of {node} is not ready; see {layout.logs}/{node}.log")


def _program(pid: int | None) -> str:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))  # noqa: PTH119, PTH115  a name, maybe deleted
    except OSError:
        return ""


def _in_namespace(layout: Layout, node: str) -> int | None:
    """A process that lives in the node's mount namespace, or None."""
    pids = (processes.pid_of(layout, name) for name in (node, containerd(node), kubelet(node)))
    return next((pid for pid in pids if pid is not None), None)


def _nsenter(pid: int) -> list[str]:
    return ["nsenter", f"--mount=/proc/{pid}/ns/mnt", "--"]


def inside(layout: Layout, node: str) -> list[str]:
    """The words before a command that run it in the node's mount namespace.

    Raises:
        ClusterError: nothing of the node runs.
    """
    pid = _in_namespace(layout, node)
    if pid is None:
        raise ClusterError(f"{node} does not run; `hack/cluster up` starts it")
    return _nsenter(pid)


def _start_containerd(layout: Layout, node: str) -> None:
    config = _config(layout, node, "containerd.toml")
    command = [*inside(layout, node), f"{layout.bin}/containerd", "--config", str(config)]
    processes.start(layout, containerd(node), command)

    def serving() -> bool:
        processes.expect_running(layout, containerd(node))
        return _ctr(layout, node, "version").returncode == 0

    if not wait_for(serving, seconds=_PATIENCE):
        raise ClusterError(f"containerd of {node} does not answer; see {layout.logs}/{containerd(node)}.log")


def _ctr(layout: Layout, node: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*inside(layout, node), f"{layout.bin}/ctr", "-a", _SOCKET, "-n", "k8s.io", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _import(layout: Layout, node: str, archive: Path) -> None:
    answer = _ctr(layout, node, "images", "import", str(archive))
    if answer.returncode:
        raise ClusterError(f"{archive.name} cannot be imported on {node}: {answer.stderr.strip()}")


def start_kubelet(layout: Layout, spec: Spec, node: str) -> None:
    """Start the node's kubelet."""
    command = [
        *inside(layout, node),
        f"{layout.bin}/kubelet",
        f"--config={_config(layout, node, 'kubelet.json')}",
        f"--kubeconfig={kubeconfig.path(layout, kubelet(node))}",
        f"--hostname-override={node}",
        f"--node-ip={spec.ports.address(index_of(node))}",
        "--v=2",
    ]
    processes.start(layout, kubelet(node), command)


def ready(layout: Layout, spec: Spec, node: str) -> bool:
    """Whether pods can be scheduled on the node now."""
    found = get(layout, spec, f"/api/v1/nodes/{node}") or {}
    conditions = {each["type"]: each["status"] for each in found.get("status", {}).get("conditions", [])}
    taints = {each["key"] for each in found.get("spec", {}).get("taints", [])}
    return conditions.get("Ready") == "True" and not any(key.startswith("node.kubernetes.io/not-") for key in taints)


def wait_ready(layout: Layout, spec: Spec, node: str) -> None:
    """Wait until the node is Ready and its kubelet at work.

    After a restart the API keeps telling Ready for 40 s whatever happens: the kubelet itself is asked too.

    Raises:
        ClusterError: a part of it has died, or time is over.
    """

    def check() -> bool:
        for name in (node, containerd(node), kubelet(node)):
            processes.expect_running(layout, name)
        return healthy(spec, node) and ready(layout, spec, node) and knows_its_pods(layout, spec, node)

    if not wait_for(check, seconds=_PATIENCE, pause=0.2):
        raise ClusterError(f"{node} is not Ready after {_PATIENCE}s; see {layout.logs}/{kubelet(node)}.log")


def healthy(spec: Spec, node: str) -> bool:
    """Whether the node's kubelet says that it is well."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{spec.ports.kubelet(index_of(node)) + 1}/healthz", timeout=5):
            return True
    except OSError:
        return False


def knows_its_pods(layout: Layout, spec: Spec, node: str) -> bool:
    """Whether a kubelet just started has heard of the pods that run on its node: before, it denies them."""
    bound = get(layout, spec, f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node},status.phase%3DRunning")
    known = get(layout, spec, f"/api/v1/nodes/{node}/proxy/pods")
    return bound is not None and known is not None and _uids(bound) <= _uids(known)


def _uids(pods: dict[str, Any]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods.get("items") or []}
