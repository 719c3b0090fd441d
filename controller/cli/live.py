"""What a plan needs of a running cluster; nothing is changed there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from controller.cli.files import CommandError
from controller.cli.wanted import CONFIG_MAPS
from controller.importing import Source, SourceError
from controller.importing.installed import Installed, find_plugins
from controller.importing.sources import ONLY, from_object
from dradriver.api.problems import Problem
from dradriver.kube import DEVICE_CLASSES, NODES, PODS, ApiError, Client, KubeError, NotFoundError, Object, Resource

_APPS: Final = ("deployments", "Deployment"), ("statefulsets", "StatefulSet"), ("replicasets", "ReplicaSet")
_CORE: Final = ("resourcequotas", "ResourceQuota"), ("limitranges", "LimitRange")
_BATCH: Final = ("jobs", "Job"), ("cronjobs", "CronJob")

DAEMON_SETS: Final = Resource(group="apps", version="v1", plural="daemonsets", kind="DaemonSet", namespaced=True)


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
        version: of the API server, major and minor.
    """

    objects: tuple[Mapping[str, Any], ...]
    plugins: tuple[Installed, ...]
    left_out: tuple[str, ...]
    version: tuple[int, int] | None = None


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
    return Live(objects=tuple(objects), plugins=plugins, left_out=tuple(left_out), version=_version(client))


def _version(client: Client) -> tuple[int, int] | None:
    try:
        return client.server_version()
    except ApiError:
        return None


def _listed(client: Client, versions: tuple[Resource, ...]) -> Iterator[Mapping[str, Any]]:
    for resource in versions:
        try:
            return iter(client.list(resource, project=_needed).items)
        except NotFoundError:
            continue
    return iter(())


def _needed(item: Object) -> Object:
    """Leave out what takes most room and says nothing here: large clusters have a hundred thousand pods."""
    metadata = {name: value for name, value in item["metadata"].items() if name != "managedFields"}
    status = {name: value for name, value in (item.get("status") or {}).items() if name in _STATUS}
    return item | {"metadata": metadata, "status": status}


_STATUS: Final = frozenset({"phase", "capacity", "allocatable", "nodeInfo"})


def the_plugins(live: Live) -> tuple[Installed, ...]:
    """Give the device plugins.

    Raises:
        CommandError: there is none.
    """
    if not live.plugins:
        raise CommandError(
            "there is no DaemonSet of NVIDIA's device plugin; give its configuration: --device-plugin-config"
        )
    return live.plugins


def name_of(plugin: Installed, plugins: Sequence[Installed]) -> str:
    """Tell a device plugin from the others of the cluster; "" for the only one."""
    if len(plugins) == 1:
        return ""
    alone = sum(one.name == plugin.name for one in plugins) == 1
    return plugin.name if alone else f"{plugin.namespace}.{plugin.name}"


def sources_of(client: Client, plugins: Sequence[Installed]) -> tuple[Source, ...]:
    """Read the configurations of each plugin; of one whose ConfigMap is missing, the source has problems and no texts.

    Raises:
        CommandError: no plugin has any, or the API server does not answer.
    """
    found = tuple(_source_of(client, plugin) for plugin in plugins)
    if not any(one.texts for one in found):
        raise CommandError("; ".join(f"{one.name}: {problem}" for one in found for problem in one.problems))
    return found


def _source_of(client: Client, plugin: Installed) -> Source:
    """Read the plugin's ConfigMap; one without has a configuration of defaults and its environment."""
    if not plugin.config_map:
        return Source(name=f"(none) of {plugin}", texts={ONLY: b""})
    name = f"{plugin.namespace}/{plugin.config_map}"
    try:
        found = from_object(client.get(CONFIG_MAPS, plugin.config_map, namespace=plugin.namespace))
    except NotFoundError:
        return _without(plugin, f"the ConfigMap {name} is not there, so it does not start; make it, {_ELSE}")
    except (ApiError, SourceError) as error:
        return _without(plugin, f"the ConfigMap {name} cannot be used: {error}; correct that, {_ELSE}")
    except KubeError as error:
        raise CommandError(f"the ConfigMap {name} of {plugin} cannot be read: {error}") from error
    if not plugin.key:
        return found
    if plugin.key not in found.texts:
        return _without(plugin, f"the ConfigMap {name} has no {plugin.key}, which it reads; correct one of the two")
    return Source(name=found.name, texts={ONLY: found.texts[plugin.key]})


_ELSE: Final = (
    "name another one in the DaemonSet, or plan for its nodes with a file: --from-cluster --device-plugin-config FILE"
)


def _without(plugin: Installed, why: str) -> Source:
    return Source(name=f"DaemonSet {plugin}", problems=(Problem(text=why),))
