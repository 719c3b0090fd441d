# SPDX-License-Identifier: Apache-2.0
"""Who may talk to the API server: tokens, and the kubeconfig files that carry them."""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING

from localcluster.common import node_name, write
from localcluster.slots import MAX_NODES

if TYPE_CHECKING:
    from pathlib import Path

    from localcluster.common import Layout
    from localcluster.spec import Spec

_TEMPLATE = """\
apiVersion: v1
kind: Config
current-context: {name}
clusters:
- name: {name}
  cluster:
    server: https://127.0.0.1:{port}
    certificate-authority-data: {authority}
contexts:
- name: {name}
  context: {{cluster: {name}, user: {user}}}
users:
- name: {user}
  user: {{token: {token}}}
"""


def users() -> dict[str, tuple[str, str]]:
    """Each component's user and group. The API server reads them once, so nodes to come are among them."""
    nodes = [node_name(index) for index in range(MAX_NODES)]
    return {
        "kube-controller-manager": ("system:kube-controller-manager", ""),
        "kube-scheduler": ("system:kube-scheduler", ""),
        **{f"kubelet-{node}": (f"system:node:{node}", "system:nodes") for node in nodes},
    }


def path(layout: Layout, component: str) -> Path:
    """The kubeconfig of a component."""
    return layout.config / f"{component}.kubeconfig"


def write_all(layout: Layout, spec: Spec) -> Path:
    """Write every kubeconfig and the API server's token file; give the latter's path."""
    lines = [f'{spec.admin_token},admin,admin,"system:masters"']
    write(layout.kubeconfig, _text(layout, spec, user="admin", token=spec.admin_token), mode=0o600)
    for component, (user, group) in users().items():
        token = secrets.token_hex(16)
        lines.append(f'{token},{user},{user},"{group}"')
        write(path(layout, component), _text(layout, spec, user=user, token=token), mode=0o600)
    return write(tokens(layout), "\n".join(lines) + "\n", mode=0o600)


def tokens(layout: Layout) -> Path:
    """The API server's static token file."""
    return layout.config / "tokens.csv"


def _text(layout: Layout, spec: Spec, *, user: str, token: str) -> str:
    authority = base64.b64encode((layout.certs / "ca.crt").read_bytes()).decode()
    name = f"dradriver-{layout.id}"
    return _TEMPLATE.format(
        name=name, port=spec.ports.apiserver, authority=authority, user=user.replace(":", "-"), token=token
    )
