# SPDX-License-Identifier: Apache-2.0
"""What a cluster is made with, as asked for and as written down in state.json."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localcluster.common import DEFAULT_KUBERNETES, ClusterError, node_name, write
from localcluster.slots import MAX_NODES, Slot

if TYPE_CHECKING:
    from localcluster.common import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The options of `up`; None where nothing was said."""

    kubernetes: str | None = None
    nodes: int | None = None
    emulate: str | None = None
    feature_gates: str | None = None
    runtime_config: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A cluster's make. Zero nodes mean the control plane alone.

    A make is complete once an `up` with it has succeeded.
    """

    kubernetes: str
    nodes: int
    emulate: str
    feature_gates: str
    runtime_config: str
    slot: int
    admin_token: str
    complete: bool = False

    @property
    def ports(self) -> Slot:
        """The cluster's ports and addresses."""
        return Slot(self.slot)

    @property
    def node_names(self) -> list[str]:
        """node-a and so on."""
        return [node_name(index) for index in range(self.nodes)]


def index_of(node: str) -> int:
    """0 for node-a, 1 for node-b."""
    return ord(node.removeprefix("node-")) - ord("a")


def load(layout: Layout) -> Spec | None:
    """The make of the cluster that is kept here, or None."""
    try:
        return Spec(**json.loads(layout.state.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ClusterError(
            f"{layout.state} cannot be read ({error}); `hack/cluster down` clears what is there"
        ) from error


def save(layout: Layout, spec: Spec) -> None:
    """Write the make down; it holds the administrator's token."""
    write(layout.state, json.dumps(dataclasses.asdict(spec), indent=2) + "\n", mode=0o600)


def fresh(wish: Wish, *, token: str) -> Spec:
    """The make of a new cluster: what was asked for, defaults elsewhere; not `placed` yet.

    Raises:
        ClusterError: what was asked for makes no sense.
    """
    nodes = 1 if wish.nodes is None else wish.nodes
    _check_nodes(nodes)
    parse_gates(wish.feature_gates or "")
    return Spec(
        kubernetes=wish.kubernetes or DEFAULT_KUBERNETES,
        nodes=nodes,
        emulate=wish.emulate or "",
        feature_gates=wish.feature_gates or "",
        runtime_config=wish.runtime_config or "",
        slot=0,
        admin_token=token,
    )


def _check_nodes(nodes: int) -> None:
    if not 0 <= nodes <= MAX_NODES:
        raise ClusterError(f"a cluster has 1 to {MAX_NODES} nodes, not {nodes}")


def grown(spec: Spec, wish: Wish) -> Spec:
    """The make of an existing cluster after another `up`, which may only add nodes.

    Raises:
        ClusterError: the wish contradicts what exists.
    """
    for field in ("kubernetes", "emulate", "feature_gates", "runtime_config"):
        asked, has = getattr(wish, field), getattr(spec, field)
        if asked is not None and asked != has:
            option = field.replace("_", "-")
            raise ClusterError(
                f"this cluster was made with --{option} {has or '(none)'}, not {asked or '(none)'}; "
                "end it first (`hack/cluster down`) or use another --dir"
            )
    nodes = spec.nodes if wish.nodes is None else wish.nodes
    _check_nodes(nodes)
    if nodes and not spec.nodes:
        raise ClusterError("this cluster is a control plane alone; end it first (`hack/cluster down`)")
    if nodes < spec.nodes:
        raise ClusterError(
            f"this cluster has {spec.nodes} nodes and `up` only adds; end it first (`hack/cluster down`)"
        )
    return dataclasses.replace(spec, nodes=nodes)


def placed(spec: Spec, slot: Slot) -> Spec:
    """The make with its share of ports and addresses."""
    return dataclasses.replace(spec, slot=slot.number)


def parse_gates(text: str) -> dict[str, bool]:
    """The gates of a "A=true,B=false" list.

    Raises:
        ClusterError: it is not such a list.
    """
    gates = {}
    for word in filter(None, text.split(",")):
        name, _, value = word.strip().partition("=")
        if not name or value.lower() not in {"true", "false"}:
            raise ClusterError(f"--feature-gates wants Name=true,Other=false; {word!r} is not of that form")
        gates[name] = value.lower() == "true"
    return gates
