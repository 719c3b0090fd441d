"""From configurations to bridges: one for each extended resource that the device plugin makes today.

A bridge, and the DeviceClass that comes of it, is the same on all nodes, while a configuration is one node's. So what
one name means on different nodes has to be said by attributes of devices; where they cannot say it, the bridge is the
narrower one, and the gap is told. Which devices have a name for what is shared, their attribute `renamed` says.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from controller.importing import names
from controller.importing.assigned import Assigned
from controller.importing.cluster import Cluster
from controller.importing.deviceplugin import MigStrategy, Strategy
from controller.importing.gaps import Gap, Weight
from dradriver.api import DRADRIVER_DOMAIN

Manifest: TypeAlias = dict[str, Any]

_API_VERSION: Final = f"{DRADRIVER_DOMAIN}/v1alpha1"
_KIND: Final = "ExtendedResourceBridge"
_WHEN_READY: Final = "WhenReady"
"""Set before a node is ready, the name would let each hiccup of a device plugin hand out GPUs that its pods hold."""

_PRODUCT: Final = "nvidia.com/gpu.product"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one configuration offers under one name.

    Attributes:
        resource: the name.
        base: the same without what renaming has added.
        devices: GPUs, partitions, or whatever the node has.
        mig: the strategy for MIG there.
        strategy: how they are shared.
        replicas: shares of each; 1 where they are not shared.
        config: whose it is.
        nodes: on which.
    """

    resource: str
    base: str
    devices: Literal["gpu", "mig", "any"]
    mig: MigStrategy
    strategy: Strategy = "none"
    replicas: int = 1
    config: str
    nodes: tuple[str, ...] = ()


def offers(assigned: Assigned, profiles: Iterable[str]) -> list[Offer]:
    """List what a configuration offers.

    Args:
        assigned: the configuration.
        profiles: MIG profiles that nodes with the strategy `mixed` have.
    """
    config, found = assigned.config, []
    shares = config.replicas()
    renamed = config.sharer is not None and config.sharer.rename_by_default
    for base, devices in _bases(config.flags.mig_strategy, profiles).items():
        shared = base in shares
        found.append(
            Offer(
                resource=names.shared(base) if shared and renamed else base,
                base=base,
                devices=devices,
                mig=config.flags.mig_strategy,
                strategy=config.strategy if shared else "none",
                replicas=shares.get(base, 1),
                config=assigned.name,
                nodes=assigned.node_names,
            )
        )
    return found


def _bases(strategy: str, profiles: Iterable[str]) -> dict[str, Literal["gpu", "mig", "any"]]:
    found: dict[str, Literal["gpu", "mig", "any"]] = {names.GPU: "any" if strategy == "single" else "gpu"}
    if strategy == "mixed":
        found |= {names.resource_of(profile): "mig" for profile in profiles}
    return found


def mixed_profiles(assigned: Iterable[Assigned], cluster: Cluster, more: Iterable[str]) -> tuple[str, ...]:
    """Find the MIG profiles that have a name of their own today: no configuration lists them.

    They are those that nodes allocate or are labelled with, that pods ask for, that quotas limit, that are shared by
    name, and those that whoever asks has named.
    """
    mixed = [one for one in assigned if one.config.flags.mig_strategy == "mixed"]
    if not mixed:
        return ()
    resources = [
        *(name for one in mixed for name in one.config.replicas()),
        *(name for one in mixed for node in one.nodes for name in (*node.resources, *_counted(node.labels))),
        *(name for user in cluster.users for name in user.requests),
        *(name for limit in cluster.limits for name in limit.hard),
    ]
    found = {profile for name in resources if (profile := names.profile_of(name)) is not None}
    return tuple(sorted(found | set(more), key=_size))


def _size(profile: str) -> tuple[int, int, str]:
    slices, _, memory = profile.partition("g.")
    return int(slices), int(memory.partition("gb")[0]), profile


def _counted(labels: Mapping[str, str]) -> Iterator[str]:
    yield from (label.removesuffix(".count") for label in labels if label.endswith(".count"))


def single_profiles(assigned: Assigned) -> tuple[set[str], bool]:
    """Find the profiles into which the GPUs of nodes with the strategy `single` are cut, by their labels.

    Returns:
        the profiles, and whether that is all of them: whether each node has a label that tells.
    """
    found, complete = set(), bool(assigned.nodes)
    for node in assigned.nodes:
        product = node.labels.get(_PRODUCT, "").removesuffix("-SHARED")
        _, cut, profile = product.rpartition("-MIG-")
        known = names.profile_of(f"{names.DOMAIN}/mig-{profile}") if cut else None
        complete = complete and bool(product) and (not cut or known is not None)
        found |= {known} if known else set()
    return found, complete


# --- bridges --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridged:
    """Bridges, and what they cannot carry.

    Attributes:
        manifests: extended resource to the object.
        gaps: what is not as it was.
    """

    manifests: Mapping[str, Manifest]
    gaps: tuple[Gap, ...]


def bridge(found: Iterable[Offer], singles: Iterable[Assigned], mixed: Iterable[str], cluster: Cluster) -> Bridged:
    """Make the bridges.

    Args:
        found: all offers.
        singles: configurations with the strategy `single`.
        mixed: profiles that have a name of their own.
        cluster: who asks, and which classes carry names already.
    """
    world = _World(offers=tuple(found), singles=tuple(singles), mixed=frozenset(mixed), cluster=cluster)
    manifests, gaps = {}, []
    for resource in dict.fromkeys(offer.resource for offer in world.offers):
        same = [offer for offer in world.offers if offer.resource == resource]
        devices, told = _devices(same, world)
        manifests[resource] = _manifest(resource, devices | {"renamed": _is_renamed(same[0])})
        gaps += [*told, *_carried(resource, cluster)]
    return Bridged(manifests=manifests, gaps=tuple(gaps))


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """Everything that one bridge may have to be told apart from."""

    offers: tuple[Offer, ...]
    singles: tuple[Assigned, ...]
    mixed: frozenset[str]
    cluster: Cluster


def _manifest(resource: str, select: dict[str, Any]) -> Manifest:
    return {
        "apiVersion": _API_VERSION,
        "kind": _KIND,
        "metadata": {"name": names.bridge_of(resource)},
        "spec": {"resourceName": resource, "select": select, "mode": _WHEN_READY},
    }


# --- which devices --------------------------------------------------------------------------------


def _devices(same: list[Offer], world: _World) -> tuple[dict[str, Any], list[Gap]]:
    """Say which devices one name means."""
    if same[0].devices == "mig":
        return {"type": "mig", "profile": names.profile_of(same[0].resource)}, []
    cut = [offer for offer in same if offer.devices == "any"]
    if not cut:
        return {"type": "gpu"}, []
    if not _has_rivals(same, world):
        # Nodes with the strategy `none` offer no partitions, so the name finds whole GPUs there.
        return {"type": "any"}, []
    known = [single_profiles(one) for one in world.singles]
    profiles = set[str]().union(*(found for found, _ in known))
    if all(complete for _, complete in known) and not profiles & world.mixed:
        return _whole_or(profiles), []
    return {"type": "gpu"}, [_ambiguous(same[0].resource, cut, profiles & world.mixed, world.cluster)]


def _has_rivals(same: list[Offer], world: _World) -> bool:
    """Tell whether instances under names of their own could be taken for those that this name means.

    Devices behind a name for what is shared say so: the attribute `renamed` tells them from all others.
    """
    mixed = [offer for offer in world.offers if offer.mig == "mixed"]
    if not _is_renamed(same[0]):
        return bool(mixed)
    return any(offer.devices == "mig" and _is_renamed(offer) for offer in mixed)


def _is_renamed(offer: Offer) -> bool:
    return offer.resource != offer.base


def _whole_or(profiles: set[str]) -> dict[str, Any]:
    """Select whole GPUs, and partitions of these profiles."""
    return {"type": "any", "profiles": sorted(profiles, key=_size)} if profiles else {"type": "gpu"}


def _ambiguous(resource: str, cut: list[Offer], both: set[str], cluster: Cluster) -> Gap:
    of_which = f" of the profile {', '.join(sorted(both))}" if both else ""
    return Gap(
        what=f"{resource} is not served on nodes with the strategy single that have MIG instances",
        why=f"it means an instance{of_which} there and a whole GPU on nodes with the strategy mixed, which have such "
        "instances under names of their own; a DeviceClass is the same on all nodes and cannot tell them apart",
        todo="give those nodes another MIG layout or the strategy mixed before they move, or keep them on the device "
        "plugin; where their profiles differ from those of the mixed nodes, plan with the nodes and their labels",
        weight=Weight.BREAKS,
        place="flags.migStrategy",
        configs=tuple(offer.config for offer in cut),
        nodes=tuple(node for offer in cut for node in offer.nodes),
        users=cluster.using(resource),
        limits=cluster.limiting(resource),
    )


def _carried(resource: str, cluster: Cluster) -> Iterator[Gap]:
    """Tell of a class that has the name already."""
    carriers = [name for name in cluster.classes.get(resource, ()) if name != names.class_of(resource)]
    if carriers:
        yield Gap(
            what=f"{resource} is carried by the DeviceClass {', '.join(carriers)} already, and the bridge leaves it "
            "there",
            why="of two classes with one name the scheduler takes the newer, so a bridge does not add a second one",
            todo=f"set `adopt: true` in the bridge {names.bridge_of(resource)} to let it take the name over, or leave "
            "the "
            "bridge out",
            users=cluster.using(resource),
        )
