# SPDX-License-Identifier: Apache-2.0
"""Etcd, the API server, the scheduler and the controller manager: how each is started."""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from localcluster import kubeconfig, processes
from localcluster.common import ClusterError, wait_for
from localcluster.slots import MAX_NODES

if TYPE_CHECKING:
    from collections.abc import Callable

    from localcluster.common import Layout
    from localcluster.spec import Spec

_PATIENCE = 120  # Seconds; five are usual, a loaded machine takes its time.


def prepare(layout: Layout, spec: Spec) -> None:
    """Make certificates, tokens and kubeconfigs, unless they are there."""
    if not (layout.certs / "service-account.key").exists():
        layout.certs.mkdir(parents=True, exist_ok=True)
        subprocess.run([layout.bin / "certs", layout.certs, *_hosts(spec)], check=True)
    if not kubeconfig.tokens(layout).exists():
        kubeconfig.write_all(layout, spec)


def _hosts(spec: Spec) -> list[str]:
    slot = spec.ports
    names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    addresses = ["127.0.0.1", slot.first_service, *(slot.address(index) for index in range(MAX_NODES))]
    return [*names, "kubernetes.default.svc.cluster.local", *addresses]


def commands(layout: Layout, spec: Spec) -> dict[str, list[str]]:
    """The command line of every component, in the order of their start.

    With nodes there is a relay from the API server's service address, in place of kube-proxy.
    """
    slot = spec.ports
    # The service, and the endpoint that stands behind it by what the API server advertises.
    listened = [f"{slot.first_service}:443", f"{slot.address(0)}:{slot.apiserver}"]
    relay = [f"{layout.bin}/relay", *listened, f"127.0.0.1:{slot.apiserver}"]
    return {
        "etcd": _etcd(layout, spec),
        "kube-apiserver": _apiserver(layout, spec),
        "kube-controller-manager": _controller_manager(layout, spec),
        "kube-scheduler": _scheduler(layout, spec),
        **({"api-service": relay} if spec.nodes else {}),
    }


_SERVERS = ("etcd", "kube-apiserver")


def start_servers(layout: Layout, spec: Spec) -> None:
    """Start etcd and the API server unless they run; readiness is another matter."""
    for name in _SERVERS:
        processes.start(layout, name, commands(layout, spec)[name])


def start_clients(layout: Layout, spec: Spec) -> None:
    """Start the rest, which gives up when the API server does not know its roles yet."""
    for name, command in commands(layout, spec).items():
        if name not in _SERVERS:
            processes.start(layout, name, command)


def port_of(spec: Spec, name: str) -> int:
    """The port by which a component shows that it is at work."""
    slot = spec.ports
    return {
        "etcd": slot.etcd,
        "kube-apiserver": slot.apiserver,
        "kube-controller-manager": slot.controller_manager,
        "kube-scheduler": slot.scheduler,
        "api-service": 443,
    }[name]


def start_one(layout: Layout, spec: Spec, name: str) -> None:
    """Start a component unless it runs, and wait until it serves and the API server is ready.

    Raises:
        ClusterError: it has died, which is told with the end of its log, or time is over.
    """
    port = port_of(spec, name)
    processes.start(layout, name, commands(layout, spec)[name])
    _wait(layout, (name,), lambda: processes.listens(layout, name, port), f"{name} does not listen on port {port}")
    wait_ready(layout, spec)


def _etcd(layout: Layout, spec: Spec) -> list[str]:
    certs = layout.certs
    client, peer = (f"https://127.0.0.1:{port}" for port in (spec.ports.etcd, spec.ports.etcd_peer))
    return [
        f"{layout.bin}/etcd",
        f"--data-dir={layout.root}/etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        # What is in etcd makes whoever can read or write it an administrator: only the API server may.
        f"--cert-file={certs}/etcd.crt",
        f"--key-file={certs}/etcd.key",
        f"--trusted-ca-file={certs}/etcd-ca.crt",
        "--client-cert-auth",
        f"--peer-cert-file={certs}/etcd.crt",
        f"--peer-key-file={certs}/etcd.key",
        f"--peer-trusted-ca-file={certs}/etcd-ca.crt",
        "--peer-client-cert-auth",
        # The data is worth nothing after a crash of the machine, and fsync is what makes it slow.
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _apiserver(layout: Layout, spec: Spec) -> list[str]:
    certs, slot = layout.certs, spec.ports
    command = [
        f"{layout.bin}/kube-apiserver",
        f"--etcd-servers=https://127.0.0.1:{slot.etcd}",
        f"--etcd-cafile={certs}/etcd-ca.crt",
        f"--etcd-certfile={certs}/etcd-client.crt",
        f"--etcd-keyfile={certs}/etcd-client.key",
        # Pods reach it by the relay, which listens on addresses of this machine's bridges.
        "--bind-address=127.0.0.1",
        f"--secure-port={slot.apiserver}",
        f"--tls-cert-file={certs}/apiserver.crt",
        f"--tls-private-key-file={certs}/apiserver.key",
        f"--client-ca-file={certs}/ca.crt",
        f"--token-auth-file={kubeconfig.tokens(layout)}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--service-cluster-ip-range={slot.services}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={certs}/service-account.pub",
        f"--service-account-signing-key-file={certs}/service-account.key",
        f"--kubelet-client-certificate={certs}/apiserver-kubelet.crt",
        f"--kubelet-client-key={certs}/apiserver-kubelet.key",
        "--kubelet-preferred-address-types=InternalIP",
        *_advertised(spec),
        *_gates(spec),
    ]
    if spec.runtime_config:
        command.append(f"--runtime-config={spec.runtime_config}")
    return command


def _advertised(spec: Spec) -> list[str]:
    if spec.nodes:
        return [f"--advertise-address={spec.ports.address(0)}"]
    # Without pods no one asks for it. The advertised address is one for documentation, never used:
    # the server refuses a loopback one, and a machine may have no other.
    return ["--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none"]


def _gates(spec: Spec) -> list[str]:
    emulated = [f"--emulated-version={spec.emulate}"] if spec.emulate else []
    return emulated + ([f"--feature-gates={spec.feature_gates}"] if spec.feature_gates else [])


def _client(layout: Layout, spec: Spec, component: str, port: int) -> list[str]:
    config = kubeconfig.path(layout, component)
    return [
        f"{layout.bin}/{component}",
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--leader-elect=false",
        *_gates(spec),
    ]


def _scheduler(layout: Layout, spec: Spec) -> list[str]:
    return _client(layout, spec, "kube-scheduler", spec.ports.scheduler)


def _controller_manager(layout: Layout, spec: Spec) -> list[str]:
    certs = layout.certs
    return [
        *_client(layout, spec, "kube-controller-manager", spec.ports.controller_manager),
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={certs}/service-account.key",
        f"--root-ca-file={certs}/ca.crt",
        f"--cluster-signing-cert-file={certs}/ca.crt",
        f"--cluster-signing-key-file={certs}/ca.key",
    ]


def request(layout: Layout, spec: Spec, path: str, *, timeout: float = 5) -> bytes | None:
    """Ask the API server as its administrator; None when it does not answer or not with success."""
    context = ssl.create_default_context(cafile=str(layout.certs / "ca.crt"))
    asked = urllib.request.Request(
        f"https://127.0.0.1:{spec.ports.apiserver}{path}",
        headers={"Authorization": f"Bearer {spec.admin_token}"},
    )
    # No proxy stands between us and this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(asked, timeout=timeout) as answer:
            content: bytes = answer.read()
            return content
    except (OSError, ValueError, urllib.error.URLError):
        return None


def get(layout: Layout, spec: Spec, path: str) -> dict[str, Any] | None:
    """One object or list of the API, or None."""
    answer = request(layout, spec, path)
    return None if answer is None else json.loads(answer)


def answers(layout: Layout, spec: Spec) -> bool:
    """Whether the API server says it is ready."""
    return (layout.certs / "ca.crt").exists() and request(layout, spec, "/readyz") is not None


def wait_ready(layout: Layout, spec: Spec) -> None:
    """Wait until the API server serves.

    Raises:
        ClusterError: a component has died, or time is over.
    """
    _wait(layout, _SERVERS, lambda: answers(layout, spec), "the API server is not ready")


def wait_usable(layout: Layout, spec: Spec) -> None:
    """Wait until a pod can be created: the controller manager has made the default service account.

    Raises:
        ClusterError: a component has died, or time is over.
    """
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    _wait(
        layout,
        tuple(commands(layout, spec)),
        lambda: request(layout, spec, account) is not None,
        "there is no default service account",
    )


def _wait(layout: Layout, names: tuple[str, ...], condition: Callable[[], bool], what: str) -> None:

    def check() -> bool:
        for name in names:
            processes.expect_running(layout, name)
        return condition()

    if not wait_for(check, seconds=_PATIENCE):
        raise ClusterError(f"{what} after {_PATIENCE}s; see the logs in {layout.logs}")
