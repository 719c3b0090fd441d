"""Who has which configuration: nodes sorted by what the device plugin does on them."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from controller.importing.choice import FALLBACKS, LABEL, Choice, choose
from controller.importing.cluster import Cluster, Node
from controller.importing.deviceplugin import Config, Reading, read
from controller.importing.environment import Override
from controller.importing.sources import ONLY
from dradriver.api.node_config import DEFAULT_NAME, is_name
from dradriver.api.problems import Problem

EMPTY_NAME = "(empty)"
FILE_NAME = "(file)"

_EMPTY_LABEL = "device-plugin-empty"
_GPU_LABELS = ("nvidia.com/gpu.present", "nvidia.com/gpu.deploy.device-plugin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """One device plugin: what it was started with, and where.

    Attributes:
        name: tells it from others; "" where it is the only one.
        readings: key in its ConfigMap, or `ONLY`, to what was read there.
        default: what its side-car was started with as DEFAULT_CONFIG.
        fallbacks: and as FALLBACK_STRATEGIES.
        env: environment of its container, with which the readings were made.
        nodes: names of the nodes where it is; None for all that have GPUs.
    """

    name: str = ""
    readings: Mapping[str, Reading]
    default: str = ""
    fallbacks: Collection[str] = FALLBACKS
    env: Mapping[str, str] = field(default_factory=dict)
    nodes: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A configuration with the nodes that have it.

    Attributes:
        name: for people: the key in the ConfigMap, or one of the names above, behind the plugin's where there are
            several.
        label: name of the node configuration that is made of it, and value of the label of nodes that have it.
        config: what it says.
        ignored: what the device plugin passes over in it.
        overridden: fields of it that have no effect, since the environment says otherwise.
        nodes: that have it; none where no cluster was looked at.
    """

    name: str
    label: str = ""
    config: Config
    ignored: tuple[Problem, ...] = ()
    overridden: tuple[Override, ...] = ()
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
        names: node to the name of what it has, with mistakes or without; "" where the plugin does not start.
        troubles: node to why the plugin does not start there.
        broken: names of configurations with mistakes, and the nodes that have them.
        fallback: name of what a node without a label has; "" for none, or where there are several plugins.
        bare: nodes with GPUs where no plugin is.
    """

    used: tuple[Assigned, ...]
    unused: tuple[Assigned, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    troubles: Mapping[str, str] = field(default_factory=dict)
    broken: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fallback: str = ""
    bare: tuple[Node, ...] = ()

    @property
    def all(self) -> tuple[Assigned, ...]:
        """Used or not."""
        return (*self.used, *self.unused)


def gpu_nodes(cluster: Cluster) -> Iterator[Node]:
    """Find the nodes that have, or may have, a device plugin."""
    for node in cluster.nodes.values():
        marked = any(node.labels.get(label) == "true" for label in _GPU_LABELS)
        if node.resources or marked or LABEL in node.labels:
            yield node


def assign(installations: Sequence[Installation], cluster: Cluster) -> Assignment:
    """Sort the nodes of a cluster by configuration.

    Args:
        installations: the device plugins; no node is on two of them.
        cluster: with nodes, or without any.
    """
    nodes = list(gpu_nodes(cluster))
    found: list[Assigned] = []
    names: dict[str, str] = {}
    troubles: dict[str, str] = {}
    broken: dict[str, tuple[str, ...]] = {}
    for one in installations:
        own = [node for node in nodes if one.nodes is None or node.name in one.nodes]
        choices = {node.name: _choose(one, node.labels) for node in own}
        found += _assigned(one, own, choices, everywhere=not nodes)
        names |= {name: _name(one, choice) for name, choice in choices.items()}
        troubles |= {name: choice.trouble for name, choice in choices.items() if choice.key is None}
        broken |= _broken(one, choices)
    return Assignment(
        used=tuple(one for one in found if one.nodes or not nodes),
        unused=tuple(one for one in found if nodes and not one.nodes),
        names=names,
        troubles=troubles,
        broken=broken,
        fallback=_name(installations[0], _choose(installations[0], {})) if len(installations) == 1 else "",
        bare=tuple(node for node in nodes if node.name not in names),
    )


def _choose(one: Installation, labels: Mapping[str, str]) -> Choice:
    return choose(one.readings.keys(), labels, default=one.default, fallbacks=one.fallbacks)


def _assigned(
    one: Installation, nodes: list[Node], choices: Mapping[str, Choice], *, everywhere: bool
) -> Iterator[Assigned]:
    for key, reading in one.readings.items():
        if reading.config is not None:
            choice = Choice(key=key)
            having = tuple(node for node in nodes if choices[node.name] == choice)
            yield _made(one, choice, reading, having)
    empty = Choice(key="", empty=True)
    bare = tuple(node for node in nodes if choices[node.name] == empty)
    if bare or (everywhere and _choose(one, {}) == empty):
        # The environment goes before an empty file, too.
        yield _made(one, empty, read(b"", env=one.env), bare)


def _made(one: Installation, choice: Choice, reading: Reading, nodes: tuple[Node, ...]) -> Assigned:
    return Assigned(
        name=_name(one, choice),
        label=_label(one, choice),
        config=reading.config or Config(),
        ignored=reading.ignored,
        overridden=reading.overridden,
        nodes=nodes,
    )


def _broken(one: Installation, choices: Mapping[str, Choice]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for node, choice in choices.items():
        if choice.key is not None and not choice.empty and one.readings[choice.key].config is None:
            found[_name(one, choice)] = (*found.get(_name(one, choice), ()), node)
    return found


def _name(one: Installation, choice: Choice) -> str:
    """Name a configuration for people; "" for none."""
    if choice.key is None:
        return ""
    own = EMPTY_NAME if choice.empty else FILE_NAME if choice.key == ONLY else choice.key
    return f"{one.name}/{own}" if one.name else own


def _label(one: Installation, choice: Choice) -> str:
    """Name a node configuration; a name that no label can hold is shortened to one that can."""
    own = _EMPTY_LABEL if choice.empty else choice.key or ""
    name = ".".join(filter(None, (one.name, own))) or DEFAULT_NAME
    return name if is_name(name) else f"config-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:10]}"
