"""The plan: what has to be there for a node to move from the device plugin to DRA, and what will not be as it was."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.importing import bridges, fields, habits, limits, nodeconfigs
from controller.importing.assigned import Assigned, Assignment, assign, name_of
from controller.importing.choice import FALLBACKS
from controller.importing.cluster import Cluster
from controller.importing.deviceplugin import Reading
from controller.importing.gaps import Gap, Weight, gather
from controller.importing.limits import Limits
from dradriver.api.problems import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """What one node has and needs.

    Attributes:
        config: name of its configuration of the device plugin; "" where it has none.
        label: value of the node label for its node configuration; "" where it needs none.
    """

    config: str
    label: str = ""


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


def make_plan(
    readings: Mapping[str, Reading],
    cluster: Cluster | None = None,
    *,
    default: str = "",
    fallbacks: Collection[str] = FALLBACKS,
    profiles: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Plan:
    """Make the plan.

    Args:
        readings: key in the ConfigMap, or `ONLY`, to what was read there.
        cluster: nodes, pods, quotas; None to plan for no cluster in particular.
        default: what the device plugin's side-car was started with as DEFAULT_CONFIG.
        fallbacks: and as FALLBACK_STRATEGIES.
        profiles: MIG profiles that nodes with the strategy `mixed` have or will have.
        env: environment of the device plugin's container, with which the readings were made.
    """
    world = cluster or Cluster()
    assignment = assign(readings, world, default=default, fallbacks=fallbacks)
    mixed = bridges.mixed_profiles(assignment.used, world, profiles)
    offers = {one.name: bridges.offers(one, mixed) for one in assignment.used}
    singles = [one for one in assignment.used if one.config.flags.mig_strategy == "single"]
    bridged = bridges.bridge([offer for same in offers.values() for offer in same], singles, mixed, world)
    names = tuple(bridged.manifests)
    translated = limits.translate(names, world, single=_single(assignment, offers))
    found = [
        *_of_nodes(assignment, readings),
        *bridged.gaps,
        *_of_fields(assignment, offers, readings, world),
        *habits.gaps(habits.World(cluster=world, bridged=frozenset(names), env=env or {})),
        *translated.gaps,
    ]
    return Plan(
        bridges=tuple(bridged.manifests[name] for name in sorted(names)),
        node_configs=nodeconfigs.document(assignment),
        nodes=_nodes(assignment),
        limits=translated,
        gaps=gather(found),
        problems={key: reading.problems for key, reading in readings.items() if reading.problems},
    )


def _single(assignment: Assignment, offers: Mapping[str, list[bridges.Offer]]) -> tuple[str, ...]:
    """Name the resources of which a container may have one share only, wherever they are shared."""
    strict = [one for one in assignment.used if one.config.at_most_one]
    found = {offer.resource for one in strict for offer in offers[one.name] if offer.strategy != "none"}
    exclusive = {offer.resource for same in offers.values() for offer in same if offer.strategy == "none"}
    return tuple(sorted(found - exclusive))


def _nodes(assignment: Assignment) -> Mapping[str, NodePlan]:
    labels = nodeconfigs.labels(assignment)
    return {
        node: NodePlan(config=name_of(choice) if choice.key is not None else "", label=labels.get(node, ""))
        for node, choice in assignment.choices.items()
    }


def _of_fields(
    assignment: Assignment,
    offers: Mapping[str, list[bridges.Offer]],
    readings: Mapping[str, Reading],
    cluster: Cluster,
) -> Iterator[Gap]:
    for one in assignment.used:
        case = fields.Case(assigned=one, offers=tuple(offers[one.name]), cluster=cluster)
        yield from fields.gaps(case, _ignored(one, readings))


def _ignored(one: Assigned, readings: Mapping[str, Reading]) -> tuple[Problem, ...]:
    return next((reading.ignored for reading in readings.values() if reading.config is one.config), ())


def _of_nodes(assignment: Assignment, readings: Mapping[str, Reading]) -> Iterator[Gap]:
    for node, choice in assignment.choices.items():
        if choice.key is None:
            yield Gap(
                what=f"the device plugin does not start on {node}, and the plan has no configuration for it",
                why=choice.trouble,
                todo="correct the node's label, or the ConfigMap, and plan again",
                weight=Weight.BREAKS,
                nodes=(node,),
            )
        elif not choice.empty and readings[choice.key].config is None:
            yield Gap(
                what="nodes of a configuration with mistakes have no part in this plan",
                why=f"the device plugin does not start with {name_of(choice)}",
                todo="correct it and plan again",
                weight=Weight.BREAKS,
                configs=(name_of(choice),),
                nodes=(node,),
            )
    for one in assignment.unused:
        yield Gap(
            what=f"the configuration {one.name}, which no node has, makes no bridges",
            why="what names mean is decided by the nodes that there are",
            todo="plan again when nodes have it; its node configuration is there already",
            weight=Weight.NOTE,
            configs=(one.name,),
        )
