"""Follows the two labels and the annotation of this node that are for us."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from dradriver import api
from dradriver.kube import NODES, Client, ForbiddenError, Object, Pace, Reflector, Selector, Store
from dradriver.nodeconfig.wanted import Labels

_KEPT: Final = {
    "labels": (api.CONFIG_LABEL, api.ALLOCATION_LABEL),
    "annotations": (api.CLEAR_HEALTH_ANNOTATION,),
}


class NodeLabels:
    """Keeps up with the labels, and the annotation, of one node.

    Args:
        client: access to the API server.
        node_name: the node.
        on_change: called when there may be news, on the thread that reads: must not block.
        pace: times of the watch.
    """

    def __init__(
        self, client: Client, node_name: str, *, on_change: Callable[[], None], pace: Pace | None = None
    ) -> None:
        self._node_name = node_name
        self._store = _SmallStore()
        self._reflector = Reflector(
            client,
            NODES,
            self._store,
            selector=Selector(fields=f"metadata.name={node_name}"),
            on_change=lambda _key: on_change(),
            pace=pace,
        )

    def start(self) -> None:
        """Start the thread."""
        self._reflector.start()

    def stop(self, timeout: float) -> bool:
        """End it, and wait that many seconds; False if it still hangs in a call."""
        return self._reflector.stop(timeout)

    @property
    def alive(self) -> bool:
        """The thread runs."""
        return self._reflector.alive

    def read(self) -> Labels | None:
        """Give the labels as far as they are known; None before the first answer, and without such a node."""
        node = self._store.get(self._node_name)
        if node is None:
            return None
        labels, annotations = node["metadata"]["labels"], node["metadata"]["annotations"]
        return Labels(
            config=labels.get(api.CONFIG_LABEL, ""),
            allocation=labels.get(api.ALLOCATION_LABEL, ""),
            clear=annotations.get(api.CLEAR_HEALTH_ANNOTATION, ""),
        )

    def trouble(self) -> str:
        """Say why labels, or changes of them, are not known; "" where all is well, or the first answer is under way.

        A server that is out of reach is trouble only before the first answer: everybody else tells of it too.
        """
        error = self._reflector.error
        if isinstance(error, ForbiddenError):
            return (
                f"changes of the labels of node {self._node_name} cannot be seen: {error}; "
                "apply deploy/rbac.yaml, which grants get, list and watch on nodes"
            )
        if self.read() is not None:
            return ""
        if self._reflector.has_synced:
            return f"node {self._node_name} does not exist: --node-name must be the name of a Kubernetes node"
        return f"the labels of node {self._node_name} are not known yet: {error}" if error is not None else ""


class _SmallStore(Store):
    """Keeps of each node only what is asked for: status, other annotations and the like are ten times as large."""

    def replace(self, items: Iterable[Object], resource_version: str, *, since: int | None = None) -> bool:
        return super().replace(map(_cut, items), resource_version, since=since)

    def put(self, item: Object, *, watched: bool = False) -> bool:
        return super().put(_cut(item), watched=watched)


def _cut(node: Object) -> Object:
    metadata = node["metadata"]
    kept = {name: metadata[name] for name in ("name", "uid", "resourceVersion") if name in metadata}
    return {"metadata": kept | {field: _chosen(metadata.get(field) or {}, names) for field, names in _KEPT.items()}}


def _chosen(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, str]:
    return {name: str(values[name]) for name in names if name in values}
