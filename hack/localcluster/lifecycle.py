# SPDX-License-Identifier: Apache-2.0
"""Bringing a cluster up and down, and its parts one by one."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from localcluster import build, cgroups, controlplane, network, node, preflight, processes, slots, spec, sysctls
from localcluster.common import ClusterError, elapsed, locked, tell, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from localcluster.common import Layout
    from localcluster.spec import Spec, Wish

# What a cluster keeps below its directory, apart from its logs.
_KEPT = ("nodes", "etcd", "certs", "config", "run", "bin", "images", "kubeconfig", "state.json")
_PODS_PATIENCE = 10


@contextlib.contextmanager
def changing(layout: Layout) -> Iterator[None]:
    """Hold the cluster's lock: one `up`, `down` or `restart` at a time."""
    with locked(layout.lock, waiting=f"another command works on {layout.root}, waiting for it"):
        yield


def up(layout: Layout, wish: Wish) -> Spec:
    """Bring the cluster to what is wished, from whatever state it is in; return when pods can run.

    Raises:
        ClusterError: the machine lacks something, the wish contradicts what runs, or a part died.
    """
    began = time.monotonic()
    preflight.check_directory(layout.root)
    preflight.claim(layout)
    with changing(layout):
        made = _make(layout, wish)
        _link_programs(layout, build.ensure(made.kubernetes, nodes=bool(made.nodes)))
        _start(layout, made)
        spec.save(layout, dataclasses.replace(made, complete=True))
    tell(f"Kubernetes {made.kubernetes} is up, {_nodes(made)}, after {elapsed(time.monotonic() - began)}")
    return made


def _nodes(made: Spec) -> str:
    return ", ".join(made.node_names) + " Ready" if made.nodes else "control plane only"


def _make(layout: Layout, wish: Wish) -> Spec:
    made = _existing(layout, wish)
    if made is None:
        made = spec.fresh(wish, token=secrets.token_hex(16))
        _check(layout, made)
        made = spec.placed(made, slots.take(layout, nodes=bool(made.nodes)))
        shutil.rmtree(layout.logs, ignore_errors=True)
    else:
        _check(layout, made)
    spec.save(layout, made)
    return made


def _existing(layout: Layout, wish: Wish) -> Spec | None:
    found = spec.load(layout)
    try:
        return spec.grown(found, wish) if found else None
    except ClusterError:
        if found is None or found.complete:
            raise
    tell("clearing what an earlier `up` with other options left unfinished")
    _clear(layout)
    return None


def _check(layout: Layout, made: Spec) -> None:
    build.groups(made.kubernetes, nodes=bool(made.nodes))
    if made.nodes:
        preflight.check_nodes()
        preflight.check_overlay(layout.root)


def _link_programs(layout: Layout, folders: list[Path]) -> None:
    layout.bin.mkdir(exist_ok=True)
    for folder in folders:
        for file in folder.iterdir():
            where = layout.root / "images" if file.suffix == ".tar" else layout.bin
            where.mkdir(exist_ok=True)
            _link(where / file.name, file)


def _link(link: Path, target: Path) -> None:
    if not link.is_symlink() or link.readlink() != target:
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def _start(layout: Layout, made: Spec) -> None:
    if made.nodes:
        sysctls.remember(layout)
    for name in made.node_names:
        node.prepare(layout, made, name)
    controlplane.prepare(layout, made)
    controlplane.start_servers(layout, made)
    # The nodes' runtimes need nothing of the control plane: they start beside it.
    with ThreadPoolExecutor(max_workers=4) as pool:
        runtimes = pool.map(lambda name: node.start_runtime(layout, name), made.node_names)
        controlplane.wait_ready(layout, made)
        controlplane.start_clients(layout, made)
        list(runtimes)
    for name in made.node_names:
        node.start_kubelet(layout, made, name)
    controlplane.wait_usable(layout, made)
    for name in made.node_names:
        node.wait_ready(layout, made, name)


def components(made: Spec, layout: Layout) -> list[str]:
    """Every process of the cluster that has a name, in the order of its start."""
    parts = [(name, node.containerd(name), node.kubelet(name)) for name in made.node_names]
    return [*controlplane.commands(layout, made), *(part for each in parts for part in each)]


def component(made: Spec, layout: Layout, name: str, where: str | None) -> str:
    """The full name of a component; `where` names the node for kubelet and containerd.

    Raises:
        ClusterError: there is no such component.
    """
    full = f"{name}-{where or 'node-a'}" if name in {"kubelet", "containerd"} else name
    restartable = [each for each in components(made, layout) if each not in made.node_names]
    if full not in restartable:
        raise ClusterError(f"there is no {full}; this cluster has {', '.join(restartable)}")
    return full


def stop(layout: Layout, name: str, *, kill: bool) -> None:
    """End one component; its pods and its data stay."""
    ran = processes.stop(layout, name, kill=kill)
    tell(f"{name} {'stopped' if ran else 'did not run'}")


def start(layout: Layout, made: Spec, name: str) -> None:
    """Start one component and wait until it does its work."""
    if name in controlplane.commands(layout, made):
        controlplane.start_one(layout, made, name)
    else:
        kind, _, where = name.partition("-")
        if kind == "containerd":
            node.start_runtime(layout, where)
        else:
            node.start_kubelet(layout, made, where)
            node.wait_ready(layout, made, where)
    tell(f"{name} runs")


def down(layout: Layout) -> None:
    """End the cluster and remove all it has, logs apart; does nothing when there is none.

    Files are removed only where `up` has marked the directory as a cluster's. Elsewhere what bears the cluster's
    identity is taken back from the machine, which also helps when the directory's content is lost.
    """
    if not layout.owned:
        _clear_machine(layout)
        slots.give_back(layout)
        if layout.root.exists():
            tell(f"{layout.root} is no cluster's directory: no file in it was touched")
        return
    with changing(layout):
        _end_pods(layout)
        _clear(layout)
    tell(f"{layout.root} is down; logs stay in {layout.logs}")


def _clear(layout: Layout) -> None:
    _stop_nodes(layout)
    _clear_machine(layout)
    if preflight.is_root():
        _unmount(layout.root)
    for name in _KEPT:
        _remove(layout.root / name)
    slots.give_back(layout)


def _end_pods(layout: Layout) -> None:
    """Let pods end in order while everything is alive, so that drivers can clean up; within limits."""
    try:
        made = spec.load(layout)
    except ClusterError:
        return
    if not made or not made.nodes or not controlplane.answers(layout, made):
        return
    # Else deployments and their like would put back every pod that ends.
    processes.stop(layout, "kube-controller-manager", kill=True)
    kubectl = [f"{layout.bin}/kubectl", f"--kubeconfig={layout.kubeconfig}", "--request-timeout=5s"]
    delete = [*kubectl, "delete", "pods", "--all", "--all-namespaces", "--grace-period=1", "--wait=false"]
    subprocess.run(delete, capture_output=True, check=False, timeout=60)

    def none_left() -> bool:
        pods = controlplane.get(layout, made, "/api/v1/pods?limit=1")
        return pods is None or not pods["items"]

    if not wait_for(none_left, seconds=_PODS_PATIENCE, pause=0.2):
        tell(f"some pods did not end within {_PODS_PATIENCE}s and are killed")


def _stop_nodes(layout: Layout) -> None:
    # Kubelets first, else they start again what is ended.
    for prefix in ("kubelet-", "containerd-"):
        for file in sorted(layout.run.glob(f"{prefix}*.pid")):
            processes.stop(layout, file.stem, kill=True)


def _clear_machine(layout: Layout) -> None:
    """Take everything back from the machine that bears the cluster's mark; looks at nothing in its directory."""
    if not wait_for(lambda: _kill_all(layout), seconds=30):
        raise ClusterError(f"processes of {layout.root} do not end: {processes.marked(layout.id)}")
    if not cgroups.remove(layout):
        raise ClusterError(f"the cgroups dradriver-{layout.id} cannot be removed; something holds them")
    if preflight.is_root():
        network.remove_all(layout)
        shutil.rmtree(layout.short, ignore_errors=True)
        sysctls.put_back(layout)


def _kill_all(layout: Layout) -> bool:
    own = {os.getpid()}
    alive = (set(processes.marked(layout.id)) | cgroups.members(layout)) - own
    for pid in alive:
        processes.send(pid, signal.SIGKILL)
    return not alive


def _unmount(root: Path) -> None:
    # Nothing of ours is mounted outside the nodes' namespaces, unless someone did so by hand.
    with open("/proc/self/mountinfo") as file:  # noqa: PTH123  reads best so
        points = [line.split()[4] for line in file]
    for point in sorted((each for each in points if each.startswith(f"{root}/")), reverse=True):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
