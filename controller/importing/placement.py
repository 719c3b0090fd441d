"""On which nodes a device plugin is: where a pod of its DaemonSet runs, else where one would.

Sources: the DaemonSet controller's rules for nodeSelector, required node affinity and tolerations. Taints below
node.kubernetes.io/ are left out: a DaemonSet's pods get tolerations for those by themselves.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from controller.importing.assigned import gpu_nodes
from controller.importing.cluster import Cluster, Node
from controller.importing.gaps import Gap, Weight

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_OWN_TAINTS: Final = "node.kubernetes.io/"
_KEEPING_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which nodes a DaemonSet is for.

    Attributes:
        labels: that a node must have.
        terms: of the node affinity, one of which must hold; None where there is no affinity.
        tolerations: of its pods.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    terms: tuple[Mapping[str, Any], ...] | None = None
    tolerations: tuple[Mapping[str, Any], ...] = ()

    def allows(self, node: Node) -> bool:
        """Tell whether the DaemonSet makes a pod on that node."""
        return (
            self.labels.items() <= node.labels.items()
            and (self.terms is None or any(_holds(term, node) for term in self.terms))
            and all(self._tolerates(*taint) for taint in node.taints)
        )

    def _tolerates(self, key: str, value: str, effect: str) -> bool:
        if effect not in _KEEPING_AWAY or key.startswith(_OWN_TAINTS):
            return True
        return any(_covers(one, key, value, effect) for one in self.tolerations)


def where(spec: Mapping[str, Any]) -> Where:
    """Read it from the spec of the DaemonSet's pods; what is not as it should be counts as absent."""
    affinity = _map(_map(_map(spec.get("affinity")).get("nodeAffinity")).get(_REQUIRED))
    terms = affinity.get("nodeSelectorTerms")
    return Where(
        labels={str(name): str(value) for name, value in _map(spec.get("nodeSelector")).items()},
        terms=tuple(map(_map, terms)) if isinstance(terms, list) else None,
        tolerations=tuple(map(_map, _list(spec.get("tolerations")))),
    )


def _covers(toleration: Mapping[str, Any], key: str, value: str, effect: str) -> bool:
    if toleration.get("effect") not in (None, "", effect) or toleration.get("key") not in (None, "", key):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and str(toleration.get("value", "")) == value


def _holds(term: Mapping[str, Any], node: Node) -> bool:
    expressions = [(one, node.labels) for one in map(_map, _list(term.get("matchExpressions")))]
    expressions += [(one, {"metadata.name": node.name}) for one in map(_map, _list(term.get("matchFields")))]
    # A term without any condition chooses nothing.
    return bool(expressions) and all(_is_so(one, values) for one, values in expressions)


def _is_so(expression: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    rule = _OPERATORS.get(str(expression.get("operator")))
    found = values.get(str(expression.get("key")))
    return rule is not None and rule(found, [str(one) for one in _list(expression.get("values"))])


def _compared(found: str | None, values: list[str]) -> int | None:
    """Give by how much a label's number is above the one that is asked for; None where one is no number."""
    try:
        return int(found or "") - int(values[0])
    except (ValueError, IndexError):
        return None


_OPERATORS: Final[Mapping[str, Callable[[str | None, list[str]], bool]]] = {
    "In": lambda found, values: found in values,
    "NotIn": lambda found, values: found not in values,
    "Exists": lambda found, _: found is not None,
    "DoesNotExist": lambda found, _: found is None,
    "Gt": lambda found, values: (_compared(found, values) or 0) > 0,
    "Lt": lambda found, values: (_compared(found, values) or 0) < 0,
}


# --- all of them ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A DaemonSet.

    Attributes:
        namespace: the DaemonSet's.
        name: the DaemonSet's.
        where: which nodes it is for.
    """

    namespace: str
    name: str
    where: Where

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where they are.

    Attributes:
        nodes: of each, in their order; no node is in two of them.
        gaps: nodes that two of them are for, and those that are on no node while others are.
    """

    nodes: tuple[frozenset[str], ...]
    gaps: tuple[Gap, ...] = ()


def place(candidates: Sequence[Candidate], cluster: Cluster) -> Placed:
    """Find the one DaemonSet of each node that has GPUs."""
    nodes: list[set[str]] = [set() for _ in candidates]
    several: dict[tuple[int, ...], list[str]] = {}
    for node in gpu_nodes(cluster):
        found = _on(node, candidates, cluster)
        if found:
            nodes[found[0]].add(node.name)
        if len(found) > 1:
            several.setdefault(found, []).append(node.name)
    gaps = tuple(_doubled([candidates[index] for index in found], names) for found, names in several.items())
    idle = [str(one) for one, found in zip(candidates, nodes, strict=True) if any(nodes) and not found]
    return Placed(nodes=tuple(map(frozenset, nodes)), gaps=(*gaps, *map(_idle, idle)))


def _idle(name: str) -> Gap:
    return Gap(
        what=f"the device plugin {name} is on no node with GPUs, and has no part in this plan",
        why="no pod of the DaemonSet runs on one, and it selects none",
        todo="nothing, or take it away; plan again when it has nodes",
        weight=Weight.NOTE,
    )


def _on(node: Node, candidates: Sequence[Candidate], cluster: Cluster) -> tuple[int, ...]:
    """Prefer those that run there: a DaemonSet that could not start its pod has served nothing."""
    running = [
        index for index, one in enumerate(candidates) if (one.namespace, one.name, node.name) in cluster.daemon_pods
    ]
    return tuple(running or (index for index, one in enumerate(candidates) if one.where.allows(node)))


def _doubled(found: Iterable[Candidate], nodes: list[str]) -> Gap:
    names = tuple(map(str, found))
    return Gap(
        what=f"nodes have several device plugins, {', '.join(names)}; the plan goes by {names[0]}",
        why="both DaemonSets run there or would; whichever registers last with the kubelet serves the resource",
        todo="keep the two apart by nodeSelector or affinity, and plan again",
        weight=Weight.BREAKS,
        nodes=tuple(nodes),
    )


def _map(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
