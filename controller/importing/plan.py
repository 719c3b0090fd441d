"""The plan: what has to be there for a node to move from the device plugin to DRA, and what will not be as it was."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.importing import bridges, fields, habits, limits, nodeconfigs, onlookers
from controller.importing.assigned import Assignment, Installation, assign, gpu_nodes
from controller.importing.case import Case
from controller.importing.choice import FALLBACKS
from controller.importing.cluster import Cluster
from controller.importing.deviceplugin import Reading
from controller.importing.gaps import Gap, Weight, gather
from controller.importing.limits import Limits
from controller.importing.shares import Shares, shares_of
from dradriver.api.problems import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """What one node has and needs.

    Attributes:
        config: name of its configuration of the device plugin; "" where it has none.
        label: value of the node label for its node configuration; "" where it needs none.
        planned: whether there is a node configuration for it; not where its own has mistakes, or is missing.
    """

    config: str
    label: str = ""
    planned: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All of it.

    Attributes:
        bridges: ExtendedResourceBridges.
        node_configs: a document of node configurations.
        nodes: by name; none where no cluster was looked at.
        limits: settings of quotas and queues.
        gaps: what will not be as it was, the weightiest first.
        problems: key of a configuration to why the device plugin does not start with it; such a one has no part here.
    """

    bridges: tuple[Mapping[str, Any], ...]
    node_configs: Mapping[str, Any]
    nodes: Mapping[str, NodePlan] = field(default_factory=dict)
    limits: Limits
    gaps: tuple[Gap, ...]
    problems: Mapping[str, tuple[Problem, ...]] = field(default_factory=dict)

    @property
    def breaking(self) -> tuple[Gap, ...]:
        """Gaps with which pods that run today will not."""
        return tuple(gap for gap in self.gaps if gap.weight is Weight.BREAKS)


def make_plan(
    readings: Mapping[str, Reading],
    cluster: Cluster | None = None,
    *,
    default: str = "",
    fallbacks: Collection[str] = FALLBACKS,
    profiles: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Plan:
    """Make the plan for one device plugin.

    Args:
        readings: key in the ConfigMap, or `ONLY`, to what was read there.
        cluster: nodes, pods, quotas; None to plan for no cluster in particular.
        default: what the device plugin's side-car was started with as DEFAULT_CONFIG.
        fallbacks: and as FALLBACK_STRATEGIES.
        profiles: MIG profiles that nodes with the strategy `mixed` have or will have.
        env: environment of the device plugin's container, with which the readings were made.
    """
    one = Installation(readings=readings, default=default, fallbacks=fallbacks, env=env or {})
    return plan_all([one], cluster or Cluster(), profiles=profiles)


def plan_all(
    installations: Sequence[Installation],
    cluster: Cluster,
    *,
    profiles: Sequence[str] = (),
    found: Sequence[Gap] = (),
) -> Plan:
    """Make the plan for all device plugins of a cluster.

    Args:
        installations: at least one; no node is on two of them.
        cluster: nodes, pods, quotas; an empty one to plan for none in particular.
        profiles: as above.
        found: gaps that were found before.
    """
    assignment = assign(installations, cluster)
    mixed = bridges.mixed_profiles(assignment.used, cluster, profiles)
    offers = {one.name: bridges.offers(one, mixed) for one in assignment.all}
    shares = {one.name: shares_of(one, offers[one.name]) for one in assignment.all}
    singles = [one for one in assignment.used if one.config.flags.mig_strategy == "single"]
    made = [offer for one in assignment.used for offer in offers[one.name]]
    bridged = bridges.bridge(made, singles, mixed, cluster)
    names = tuple(bridged.manifests)
    translated = limits.translate(names, cluster, single=_single(assignment, offers), shared=_shared(offers, shares))
    gaps = [
        *found,
        *_of_nodes(assignment),
        *bridged.gaps,
        *_of_fields(assignment, offers, shares, cluster),
        *habits.gaps(habits.World(cluster=cluster, bridged=frozenset(names))),
        *(gap for one in installations for gap in habits.of_environment(one.env, _nodes_of(one, cluster))),
        *onlookers.gaps(cluster),
        *translated.gaps,
    ]
    return Plan(
        bridges=tuple(bridged.manifests[name] for name in sorted(names)),
        node_configs=nodeconfigs.document(assignment, shares),
        nodes=_nodes(assignment),
        limits=translated,
        gaps=gather(gaps),
        problems={
            f"{one.name}/{key}" if one.name else key: reading.problems
            for one in installations
            for key, reading in one.readings.items()
            if reading.problems
        },
    )


def _nodes_of(one: Installation, cluster: Cluster) -> tuple[str, ...]:
    return tuple(node.name for node in gpu_nodes(cluster) if one.nodes is None or node.name in one.nodes)


def _single(assignment: Assignment, offers: Mapping[str, list[bridges.Offer]]) -> tuple[str, ...]:
    """Name the resources of which a container may have one share only, wherever they are shared."""
    strict = [one for one in assignment.used if one.config.at_most_one]
    found = {offer.resource for one in strict for offer in offers[one.name] if offer.strategy != "none"}
    used = [offers[one.name] for one in assignment.used]
    exclusive = {offer.resource for same in used for offer in same if offer.strategy == "none"}
    return tuple(sorted(found - exclusive))


def _shared(offers: Mapping[str, list[bridges.Offer]], shares: Mapping[str, Shares]) -> tuple[str, ...]:
    """Name the resources that node configurations share."""
    found = {offer.resource for name, same in offers.items() if shares[name].replicas for offer in same}
    return tuple(sorted(found))


def _nodes(assignment: Assignment) -> Mapping[str, NodePlan]:
    labels = nodeconfigs.labels(assignment)
    return {
        node: NodePlan(config=name, label=labels.get(node, ""), planned=bool(name) and name not in assignment.broken)
        for node, name in assignment.names.items()
    }


def _of_fields(
    assignment: Assignment,
    offers: Mapping[str, list[bridges.Offer]],
    shares: Mapping[str, Shares],
    cluster: Cluster,
) -> Iterator[Gap]:
    for one in assignment.used:
        case = Case(assigned=one, offers=tuple(offers[one.name]), shares=shares[one.name], cluster=cluster)
        yield from fields.gaps(case)


def _of_nodes(assignment: Assignment) -> Iterator[Gap]:
    for node, trouble in assignment.troubles.items():
        yield Gap(
            what=f"the device plugin does not start on {node}, and the plan has no configuration for it",
            why=trouble,
            todo="correct the node's label, or the ConfigMap, and plan again",
            weight=Weight.BREAKS,
            nodes=(node,),
        )
    for name, nodes in assignment.broken.items():
        yield Gap(
            what="nodes of a configuration with mistakes have no part in this plan",
            why=f"the device plugin does not start with {name}",
            todo="correct it and plan again",
            weight=Weight.BREAKS,
            configs=(name,),
            nodes=nodes,
        )
    for one in assignment.unused:
        yield Gap(
            what=f"the configuration {one.name}, which no node has, makes no bridges",
            why="what names mean is decided by the nodes that there are",
            todo="plan again when nodes have it; its node configuration is there already",
            weight=Weight.NOTE,
            configs=(one.name,),
        )
    yield from _bare(assignment)


def _bare(assignment: Assignment) -> Iterator[Gap]:
    serving = tuple(node.name for node in assignment.bare if node.resources)
    if serving:
        yield Gap(
            what="nodes with GPUs that no DaemonSet of NVIDIA's device plugin serves have no part in this plan",
            why="something else makes their extended resources: a plugin of the cloud (GKE), one that is part of the "
            "node's image (Bottlerocket), another vendor's, or a DaemonSet that is gone",
            todo="find out which; plan for them with --device-plugin-config and what that plugin does",
            weight=Weight.BREAKS,
            nodes=serving,
        )
    idle = tuple(node.name for node in assignment.bare if not node.resources)
    if idle:
        yield Gap(
            what="nodes that are marked as having GPUs, and have no device plugin, have no part in this plan",
            why="no DaemonSet of the device plugin selects them, and they allocate no GPUs",
            todo="nothing, or label them with dradriver.dev/config yourself",
            weight=Weight.NOTE,
            nodes=idle,
        )
