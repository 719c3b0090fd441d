# SPDX-License-Identifier: Apache-2.0
"""What a cluster's parts do, for people and for programs; and what a shell needs to use it."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from localcluster import controlplane, lifecycle, node, processes
from localcluster.common import ClusterError
from localcluster.spec import index_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localcluster.common import Layout
    from localcluster.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One component, as `status` shows it."""

    component: str
    pid: int | None
    ok: bool
    note: str
    address: str


def rows(layout: Layout, made: Spec) -> list[Row]:
    """The state of every component, and of every node."""
    addresses = _addresses(made)
    answering = controlplane.answers(layout, made)
    found = []
    for name in lifecycle.components(made, layout):
        pid = processes.pid_of(layout, name)
        note, well = _note(layout, made, name, alive=pid is not None, answering=answering)
        found.append(Row(component=name, pid=pid, ok=well, note=note, address=addresses.get(name, "")))
    return found


def _note(layout: Layout, made: Spec, name: str, *, alive: bool, answering: bool) -> tuple[str, bool]:
    if not alive:
        return "not running", False
    if name == "kube-apiserver":
        return ("ready", True) if answering else ("not ready", False)
    if name in made.node_names:
        is_ready = answering and node.ready(layout, made, name)
        return ("Ready", True) if is_ready else ("not Ready", False)
    return "running", True


def _addresses(made: Spec) -> dict[str, str]:
    slot = made.ports
    kubelets = {
        node.kubelet(name): f"{slot.address(index_of(name))}:{slot.kubelet(index_of(name))}" for name in made.node_names
    }
    return kubelets | {
        "etcd": f"127.0.0.1:{slot.etcd}",
        "kube-apiserver": f"127.0.0.1:{slot.apiserver}",
        "kube-controller-manager": f"127.0.0.1:{slot.controller_manager}",
        "kube-scheduler": f"127.0.0.1:{slot.scheduler}",
        "api-service": f"{slot.first_service}:443",
        **{name: slot.address(index_of(name)) for name in made.node_names},
    }


def table(found: Sequence[Row]) -> str:
    """The rows as aligned columns."""
    lines = [("COMPONENT", "PID", "STATE", "ADDRESS")]
    lines += [(row.component, str(row.pid or "-"), row.note, row.address) for row in found]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def document(layout: Layout, made: Spec, found: Sequence[Row]) -> str:
    """The same as JSON."""
    return json.dumps(
        {
            "dir": str(layout.root),
            "id": layout.id,
            "kubernetes": made.kubernetes,
            "ok": all(row.ok for row in found),
            "components": [asdict(row) for row in found],
        },
        indent=2,
    )


def environment(layout: Layout, made: Spec, where: str | None) -> dict[str, str]:
    """What a shell needs to use the cluster and, with a node, to run the plugin as if on it.

    Raises:
        ClusterError: there is no such node.
    """
    path = os.environ.get("PATH", "").split(":")
    others = [part for part in path if part != str(layout.bin)]
    values = {"KUBECONFIG": str(layout.kubeconfig), "PATH": ":".join([str(layout.bin), *others])}
    if where is None:
        return values
    if where not in made.node_names:
        raise ClusterError(f"there is no node {where}; this cluster has {', '.join(made.node_names) or 'none'}")
    kubelet = layout.short / where
    return values | {
        "NODE_NAME": where,
        "KUBELET_PLUGINS_DIRECTORY_PATH": str(kubelet / "plugins"),
        "KUBELET_REGISTRAR_DIRECTORY_PATH": str(kubelet / "plugins_registry"),
        "CDI_ROOT": str(layout.cdi(where)),
    }


def exports(values: dict[str, str]) -> str:
    """Shell lines that set the variables."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items())
