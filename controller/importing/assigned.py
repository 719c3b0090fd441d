"""Who has which configuration: nodes sorted by what the device plugin does on them."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from controller.importing.choice import LABEL, Choice, choose
from controller.importing.cluster import Cluster, Node
from controller.importing.deviceplugin import Config, Reading
from controller.importing.sources import ONLY

EMPTY_NAME = "(empty)"
FILE_NAME = "(file)"

_GPU_LABELS = ("nvidia.com/gpu.present", "nvidia.com/gpu.deploy.device-plugin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A configuration with the nodes that have it.

    Attributes:
        name: for people: the key in the ConfigMap, or one of the names above.
        config: what it says.
        nodes: that have it; none where no cluster was looked at.
    """

    name: str
    config: Config
    nodes: tuple[Node, ...] = ()

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return tuple(node.name for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """All of them.

    Attributes:
        used: configurations that nodes have; all sound ones where no cluster was looked at.
        unused: sound configurations that no node has.
        choices: node to what it has.
        fallback: what a node without a label has.
    """

    used: tuple[Assigned, ...]
    unused: tuple[Assigned, ...] = ()
    choices: Mapping[str, Choice] = field(default_factory=dict)
    fallback: Choice


def gpu_nodes(cluster: Cluster) -> Iterator[Node]:
    """Find the nodes that have, or may have, a device plugin."""
    for node in cluster.nodes.values():
        marked = any(node.labels.get(label) == "true" for label in _GPU_LABELS)
        if node.resources or marked or LABEL in node.labels:
            yield node


def assign(
    readings: Mapping[str, Reading],
    cluster: Cluster,
    *,
    default: str = "",
    fallbacks: Collection[str],
) -> Assignment:
    """Sort the nodes of a cluster by configuration.

    Args:
        readings: key in the ConfigMap to what was read there.
        cluster: with nodes, or without any.
        default: see `choose`.
        fallbacks: see `choose`.
    """
    keys = readings.keys()
    nodes = list(gpu_nodes(cluster))
    choices = {node.name: choose(keys, node.labels, default=default, fallbacks=fallbacks) for node in nodes}
    sound = {key: reading.config for key, reading in readings.items() if reading.config is not None}
    used = []
    for key, config in sound.items():
        having = tuple(node for node in nodes if _has(choices[node.name], key))
        used.append(Assigned(name=key or FILE_NAME, config=config, nodes=having))
    bare = tuple(node for node in nodes if choices[node.name].empty)
    fallback = choose(keys, {}, default=default, fallbacks=fallbacks)
    if bare or (not nodes and fallback.empty):
        used.append(Assigned(name=EMPTY_NAME, config=Config(), nodes=bare))
    return Assignment(
        used=tuple(one for one in used if one.nodes or not nodes),
        unused=tuple(one for one in used if nodes and not one.nodes),
        choices=choices,
        fallback=fallback,
    )


def _has(choice: Choice, key: str) -> bool:
    return choice.key == key and not choice.empty


def name_of(choice: Choice) -> str:
    """Name a configuration for people."""
    if choice.empty:
        return EMPTY_NAME
    return FILE_NAME if choice.key == ONLY else str(choice.key)
