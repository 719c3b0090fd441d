"""What a plan needs of a running cluster; nothing is changed there."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from controller.cli.files import CommandError
from controller.importing import Source, SourceError
from controller.importing.installed import Installed, find_plugins
from controller.importing.sources import ONLY, from_object
from dradriver.kube import DEVICE_CLASSES, NODES, PODS, ApiError, Client, KubeError, NotFoundError, Resource

_APPS: Final = ("deployments", "Deployment"), ("statefulsets", "StatefulSet"), ("replicasets", "ReplicaSet")
_CORE: Final = ("resourcequotas", "ResourceQuota"), ("limitranges", "LimitRange")
_BATCH: Final = ("jobs", "Job"), ("cronjobs", "CronJob")

DAEMON_SETS: Final = Resource(group="apps", version="v1", plural="daemonsets", kind="DaemonSet", namespaced=True)
CONFIG_MAPS: Final = Resource(group="", version="v1", plural="configmaps", kind="ConfigMap", namespaced=True)


def _queues(group: str, plural: str, kind: str, *versions: str) -> tuple[Resource, ...]:
    return tuple(
        Resource(group=group, version=version, plural=plural, kind=kind, namespaced=False) for version in versions
    )


_WANTED: Final[tuple[tuple[Resource, ...], ...]] = (
    (NODES,),
    (PODS,),
    *((Resource(group="apps", version="v1", plural=plural, kind=kind, namespaced=True),) for plural, kind in _APPS),
    *((Resource(group="batch", version="v1", plural=plural, kind=kind, namespaced=True),) for plural, kind in _BATCH),
    *((Resource(group="", version="v1", plural=plural, kind=kind, namespaced=True),) for plural, kind in _CORE),
    (DEVICE_CLASSES,),
    _queues("kueue.x-k8s.io", "clusterqueues", "ClusterQueue", "v1beta2", "v1beta1"),
    _queues("kueue.x-k8s.io", "topologies", "Topology", "v1beta2", "v1beta1", "v1alpha1"),
    _queues("scheduling.volcano.sh", "queues", "Queue", "v1beta1"),
    _queues("scheduling.run.ai", "queues", "Queue", "v2"),
)
"""What is read; of several versions the first that the cluster has. A cluster without one of them lacks nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What was read.

    Attributes:
        objects: all of them.
        plugins: device plugins among them.
        left_out: what could not be read, each a sentence.
    """

    objects: tuple[Mapping[str, Any], ...]
    plugins: tuple[Installed, ...]
    left_out: tuple[str, ...]


def look(client: Client) -> Live:
    """Read the cluster.

    Raises:
        CommandError: its nodes cannot be read.
    """
    objects: list[Mapping[str, Any]] = []
    left_out: list[str] = []
    for versions in ((DAEMON_SETS,), *_WANTED):
        try:
            objects += _listed(client, versions)
        except KubeError as error:
            if versions == (NODES,) or not isinstance(error, ApiError):
                raise CommandError(f"the cluster cannot be read: {error}") from error
            left_out.append(f"{versions[0].plural} are left out: {error}")
    plugins = find_plugins(one for one in objects if one["kind"] == DAEMON_SETS.kind)
    return Live(objects=tuple(objects), plugins=plugins, left_out=tuple(left_out))


def _listed(client: Client, versions: tuple[Resource, ...]) -> Iterator[Mapping[str, Any]]:
    for resource in versions:
        try:
            return iter(client.list(resource).items)
        except NotFoundError:
            continue
    return iter(())


def the_plugin(live: Live) -> Installed:
    """Give the one device plugin.

    Raises:
        CommandError: there is none, or there are several.
    """
    if len(live.plugins) == 1:
        return live.plugins[0]
    if live.plugins:
        told = ", ".join(map(str, live.plugins))
        raise CommandError(
            f"there are several device plugins: {told}; say with --device-plugin-config which one is meant"
        )
    raise CommandError(
        "there is no DaemonSet of NVIDIA's device plugin; give its configuration: --device-plugin-config"
    )


def source_of(client: Client, plugin: Installed) -> Source:
    """Read the plugin's ConfigMap; one without has a configuration of defaults and its environment.

    Raises:
        CommandError: it cannot be read, or is empty.
    """
    if not plugin.config_map:
        return Source(name=f"(none) of {plugin}", texts={ONLY: b""})
    try:
        found = from_object(client.get(CONFIG_MAPS, plugin.config_map, namespace=plugin.namespace))
    except (KubeError, SourceError) as error:
        raise CommandError(f"the ConfigMap {plugin.namespace}/{plugin.config_map} of {plugin}: {error}") from error
    if not plugin.key:
        return found
    if plugin.key not in found.texts:
        told = f"has no {plugin.key}, which the DaemonSet {plugin} reads; correct one of the two"
        raise CommandError(f"the ConfigMap {found.name} {told}")
    return Source(name=found.name, texts={ONLY: found.texts[plugin.key]})
