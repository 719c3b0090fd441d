"""Quotas and queues: settings that keep today's limits meaningful, and where none can.

The name of the extended resource stays the key by which everything is counted, before, during and after the move.
Sources: Kubernetes' quota evaluator for claims (seen on 1.37: an extended-resource pod and an explicit claim each add
one to the three keys of a class that carries the name); Kueue 0.19, KAI 0.17 and Volcano 1.15.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from controller.importing import names
from controller.importing.cluster import KAI_QUEUE, Cluster, Limit
from controller.importing.gaps import Gap, Weight
from dradriver.api import DRIVER_NAME

Manifest: TypeAlias = dict[str, Any]

_CLAIM_KEY: Final = "deviceclass.resource.k8s.io/devices"
_COUNTED_CLAIMS: Final = "count/resourceclaims.resource.k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings.

    Attributes:
        quotas: ResourceQuotas to be added to those that there are.
        ranges: LimitRanges that hold a container to one share; to be copied into namespaces.
        kueue: part of Kueue's Configuration.
        volcano: part of Volcano's scheduler configuration, and capabilities of queues.
        kai: rules that KAI's scheduler needs.
        gaps: where limits do not hold.
    """

    quotas: tuple[Manifest, ...] = ()
    ranges: tuple[Manifest, ...] = ()
    kueue: Mapping[str, Any] = field(default_factory=dict)
    volcano: Mapping[str, Any] = field(default_factory=dict)
    kai: Mapping[str, Any] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()


def translate(
    resources: Sequence[str], cluster: Cluster, *, single: Sequence[str] = (), shared: Sequence[str] = ()
) -> Limits:
    """Make the settings.

    Args:
        resources: extended resources that get a bridge.
        cluster: what limits them today.
        single: those of which a container may ask for one only.
        shared: those of which each device is for several pods.
    """
    return Limits(
        quotas=tuple(_quotas(resources, cluster)),
        ranges=tuple(_range(resource) for resource in single),
        kueue=_kueue(resources),
        volcano=_volcano(resources, cluster, shared),
        kai=_kai(),
        gaps=(*_quota_gaps(resources, cluster), *_queue_gaps(resources, cluster, shared)),
    )


# --- ResourceQuota --------------------------------------------------------------------------------


def _quotas(resources: Sequence[str], cluster: Cluster) -> Iterator[Manifest]:
    """Limit explicit claims of the base classes, too, which no quota of today counts.

    Claims of a class that carries the name are charged to `requests.<name>` by themselves.
    """
    for limit in cluster.limits:
        if limit.kind == "ResourceQuota" and not limit.scoped:
            hard = {key: text for name, text in limit.hard.items() if name in resources for key in _base_keys(name)}
            if hard:
                yield _quota(limit, hard)


def _base_keys(resource: str) -> Iterator[str]:
    if resource == names.GPU:
        yield f"{DRIVER_NAME}.{_CLAIM_KEY}"


def _quota(limit: Limit, hard: Mapping[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": f"{limit.name}-claims", "namespace": limit.namespace or "default"},
        "spec": {"hard": dict(hard)},
    }


def _range(resource: str) -> Manifest:
    name = names.part_of(resource).replace(".", "-")
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": f"one-{name}"},
        "spec": {"limits": [{"type": "Container", "max": {resource: "1"}}]},
    }


def _quota_gaps(resources: Sequence[str], cluster: Cluster) -> Iterator[Gap]:
    kept = [one for one in cluster.limits if one.kind == "ResourceQuota" and one.hard.keys() & set(resources)]
    if kept:
        yield Gap(
            what="requests.<resource> of quotas goes on to count pods, and counts claims of the bridge's class, too",
            why="the class carries the resource's name",
            todo="leave the quotas as they are",
            weight=Weight.NOTE,
            limits=tuple(map(str, kept)),
        )
    yield from _claim_gaps([limit for limit in kept if names.GPU in limit.hard])
    profiles = [limit for limit in kept if any(names.profile_of(name) for name in limit.hard)]
    if profiles:
        yield Gap(
            what="claims of the class mig.nvidia.com count against no quota by profile",
            why="that class is for all profiles, and a quota counts classes, not what a claim's selectors choose",
            todo=f"limit mig.nvidia.com.{_CLAIM_KEY} in those namespaces, to 0 where only the bridges' classes shall "
            "be used",
            limits=tuple(map(str, profiles)),
        )
    ranges = [one for one in cluster.limits if one.kind == "LimitRange" and one.hard.keys() & set(resources)]
    if ranges:
        yield Gap(
            what="LimitRanges go on to hold containers to so many of an extended resource",
            why="they look at the pod when it is made, which has not changed",
            todo="leave them as they are; explicit claims they do not limit",
            weight=Weight.NOTE,
            limits=tuple(map(str, ranges)),
        )
    yield from _counting(cluster)


def _claim_gaps(kept: list[Limit]) -> Iterator[Gap]:
    plain = [limit for limit in kept if not limit.scoped]
    if plain:
        yield Gap(
            what="claims of the class gpu.nvidia.com are outside of the quotas of today",
            why="that class does not carry the resource's name",
            todo="add the quotas of the plan, which allow as many again in claims, or lower both so that their sum is "
            "right",
            limits=tuple(map(str, plain)),
        )
    scoped = [limit for limit in kept if limit.scoped]
    if scoped:
        yield Gap(
            what="quotas with scopes limit pods only, no explicit claims",
            why="scopes are properties of pods, which a claim does not have",
            todo="limit claims of the whole namespace by a second quota without scopes",
            limits=tuple(map(str, scoped)),
        )


def _counting(cluster: Cluster) -> Iterator[Gap]:
    if cluster.claim_quotas:
        yield Gap(
            what=f"{_COUNTED_CLAIMS} counts each pod with an extended resource, which stays Pending where it is used "
            "up",
            why="the scheduler makes a claim for each such pod, and that claim counts",
            todo="raise it by the number of such pods",
            weight=Weight.BREAKS,
            limits=tuple(map(str, cluster.claim_quotas)),
        )


# --- queues ---------------------------------------------------------------------------------------


def _kueue(resources: Sequence[str]) -> Mapping[str, Any]:
    """Charge claims to the quota of the extended resource; the name itself is charged without a mapping."""
    mappings = [{"name": name, "deviceClassNames": _class_names(name)} for name in resources]
    return {"resources": {"deviceClassMappings": mappings}} if mappings else {}


def _class_names(resource: str) -> list[str]:
    return [names.class_of(resource), *([DRIVER_NAME] if resource == names.GPU else [])]


def _volcano(resources: Sequence[str], cluster: Cluster, shared: Sequence[str]) -> Mapping[str, Any]:
    arguments = {
        "predicates": {"predicate.DynamicResourceAllocationEnable": True},
        "capacity": {"capacity.DynamicResourceAllocationEnable": True}
        | ({"capacity.DRAConsumableCapacityEnable": True} if shared else {}),
    }
    queues = {
        limit.name: {
            f"deviceclass/{names.class_of(name)}": text for name, text in limit.hard.items() if name in resources
        }
        for limit in cluster.limits
        if limit.kind == "Queue"
    }
    capabilities = {name: keys for name, keys in queues.items() if keys}
    return {"arguments": arguments} | ({"capabilities": capabilities} if capabilities else {})


def _kai() -> Mapping[str, Any]:
    rule = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/binding"], "verbs": ["update", "patch"]}
    return {"rules": [rule]}


def _queue_gaps(resources: Sequence[str], cluster: Cluster, shared: Sequence[str]) -> Iterator[Gap]:
    by_kind: dict[str, list[Limit]] = {}
    for limit in cluster.limits:
        by_kind.setdefault(limit.kind, []).append(limit)
    yield from _kueue_gaps(by_kind.get("ClusterQueue", []), cluster)
    yield from _volcano_gaps(by_kind.get("Queue", []))
    yield from _kai_gaps(by_kind.get(KAI_QUEUE, []), resources, cluster, shared)
    lost = [limit for limit in cluster.limits if limit.hard and not limit.hard.keys() & set(resources)]
    if lost:
        yield Gap(
            what="limits on resources that get no bridge count nothing after the move",
            why="no pod can have such a resource then",
            todo="correct the name, or take the limit out",
            limits=tuple(map(str, lost)),
        )


def _kueue_gaps(queues: list[Limit], cluster: Cluster) -> Iterator[Gap]:
    if queues:
        told = tuple(map(str, queues))
        yield Gap(
            what="nominalQuota of ClusterQueues stays as it is, in cohorts too: Kueue goes on to charge the extended "
            "resource; explicit claims need the mapping of the plan",
            why="it finds the class by its extended resource name (feature gate KueueDRAIntegrationExtendedResource, "
            "on by "
            "default from 0.19), and claims by deviceClassMappings, which it reads when it starts",
            todo="put the mapping into its configuration and restart it; leave `sources` with counters out: with them "
            "workloads that ask by the extended resource are not admitted",
            limits=told,
        )
        yield Gap(
            what="workloads that use a ResourceClaim directly are not admitted",
            why="Kueue charges ResourceClaimTemplates only",
            todo="use templates in queues",
            weight=Weight.NOTE,
            limits=told,
        )
    if cluster.topologies:
        yield Gap(
            what="topology-aware scheduling does not admit GPU jobs on nodes that have moved",
            why="Kueue counts what nodes allocate, which is 0 there (kueue#10548)",
            todo="keep queues with a topology on nodes with the device plugin, or take the topology out of their "
            "flavors",
            weight=Weight.BREAKS,
            limits=tuple(f"Topology {name}" for name in cluster.topologies),
        )


def _volcano_gaps(queues: list[Limit]) -> Iterator[Gap]:
    if queues:
        yield Gap(
            what="capabilities of Volcano's queues count explicit claims under deviceclass/<class> only",
            why="Volcano has keys of its own for classes; a pod with the extended resource counts under its name as "
            "before",
            todo="switch DRA on in its configuration and add the keys of the plan; the two numbers are not one limit",
            limits=tuple(map(str, queues)),
        )


def _kai_gaps(queues: list[Limit], resources: Sequence[str], cluster: Cluster, shared: Sequence[str]) -> Iterator[Gap]:
    placed = tuple(user.name for user in cluster.users if "kai" in user.scheduler)
    if not queues and not placed:
        return
    told = tuple(map(str, queues))
    yield Gap(
        what="quotas of KAI's queues hold for whole GPUs as before",
        why="KAI knows GPUs by `gpu` in the names of class and driver, which the bridges' classes have",
        todo="give its scheduler the rules of the plan, without which it cannot bind claims on Kubernetes 1.36 and "
        "newer, and "
        "do not leave device plugin and slices on one node, which it would count twice",
        limits=told,
        users=placed,
    )
    profiles = [name for name in resources if names.profile_of(name)]
    if profiles:
        yield Gap(
            what=f"KAI does not serve {', '.join(profiles)} through DRA",
            why="it leaves extended resources of MIG profiles out on purpose, and counts each instance as a GPU",
            todo="keep such nodes on the device plugin, or place those pods by the default scheduler",
            weight=Weight.BREAKS,
            limits=told,
            users=cluster.using(*profiles),
        )
    if shared:
        yield Gap(
            what=f"KAI may place one pod only on a device of {', '.join(shared)}, whatever shares it has",
            why="it takes the number of devices in slices for the number of GPUs",
            todo="place those pods by the default scheduler, or keep such nodes on the device plugin",
            weight=Weight.BREAKS,
            limits=told,
            users=cluster.using(*shared),
        )
    yield Gap(
        what="fractions of GPUs (gpu-fraction, gpu-memory) do not work on nodes that have moved",
        why="KAI has none on DRA",
        todo="keep such pods on nodes with the device plugin",
        weight=Weight.BREAKS,
        limits=told,
    )
