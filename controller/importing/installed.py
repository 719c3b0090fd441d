"""How the device plugin was installed: the DaemonSet tells its ConfigMap, its environment, and the side-car's defaults.

Sources: the device plugin's Helm chart and the GPU operator's manifests, which agree in the side-car's variables.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, Final

from controller.importing.choice import FALLBACKS
from controller.importing.cluster import Object
from controller.importing.environment import KNOWN
from controller.importing.placement import Candidate, Where, where

_IMAGE: Final = "k8s-device-plugin"
_CONTAINER: Final = "nvidia-device-plugin"
_FOLDER: Final = "CONFIG_FILE_SRCDIR"
_FILE: Final = "CONFIG_FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """One DaemonSet of the device plugin.

    Attributes:
        namespace: its and the ConfigMap's.
        name: the DaemonSet's.
        config_map: its ConfigMap; "" for none.
        key: of the one entry that is used, where no side-car chooses; "" where one does.
        env: what its container's environment and command line say.
        default: DEFAULT_CONFIG of the side-car.
        fallbacks: FALLBACK_STRATEGIES of the side-car.
        where: which nodes it is for.
    """

    namespace: str
    name: str
    config_map: str = ""
    key: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    default: str = ""
    fallbacks: tuple[str, ...] = FALLBACKS
    where: Where = field(default_factory=Where)

    @property
    def candidate(self) -> Candidate:
        """What decides where it is."""
        return Candidate(namespace=self.namespace, name=self.name, where=self.where)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def find_plugins(daemon_sets: Iterable[Object]) -> tuple[Installed, ...]:
    """Find the device plugins among DaemonSets; feature discovery and MPS, of the same image, are none."""
    return tuple(found for one in daemon_sets if (found := _installed(one)) is not None)


def _installed(one: Object) -> Installed | None:
    spec = _map(_map(_map(one.get("spec")).get("template")).get("spec"))
    plugin = next((container for container in _containers(spec, "containers") if _is_plugin(container)), None)
    if plugin is None:
        return None
    car = next((each for each in _all(spec) if _FOLDER in _env(each)), None)
    settings = _env(car) if car else {}
    meta, fallbacks = _map(one.get("metadata")), settings.get("FALLBACK_STRATEGIES", "")
    return Installed(
        namespace=str(meta.get("namespace") or "default"),
        name=str(meta.get("name")),
        config_map=_mounted(spec, car, settings[_FOLDER]) if car else _mounted_file(spec, plugin),
        key="" if car else PurePosixPath(_env(plugin).get(_FILE, "")).name,
        env={name: text for name, text in (_env(plugin) | _arguments(plugin)).items() if name in KNOWN},
        default=settings.get("DEFAULT_CONFIG", ""),
        fallbacks=tuple(fallbacks.split(",")) if fallbacks else FALLBACKS,
        where=where(spec),
    )


def _is_plugin(container: Mapping[str, Any]) -> bool:
    name, image = str(container.get("name", "")), str(container.get("image", ""))
    return name.startswith(_CONTAINER) or (_IMAGE in image and "device-plugin" in name)


def _mounted_file(spec: Mapping[str, Any], plugin: Mapping[str, Any]) -> str:
    file = _env(plugin).get(_FILE, "")
    return _mounted(spec, plugin, file) or _mounted(spec, plugin, str(PurePosixPath(file).parent)) if file else ""


def _mounted(spec: Mapping[str, Any], container: Mapping[str, Any], path: str) -> str:
    """Name the ConfigMap that a container sees there; "" for none."""
    mounts = {str(_map(one).get("mountPath", "")).rstrip("/"): one for one in _list(container.get("volumeMounts"))}
    volumes = {str(_map(one).get("name")): one for one in _list(spec.get("volumes"))}
    mount = _map(mounts.get(path.rstrip("/")))
    volume = _map(volumes.get(str(mount.get("name", ""))))
    return str(_map(volume.get("configMap")).get("name", ""))


def _env(container: Mapping[str, Any]) -> dict[str, str]:
    """Read the variables that have a value of their own; what a field or Secret gives is no setting of the plugin."""
    variables = (_map(one) for one in _list(container.get("env")))
    return {str(one.get("name")): str(one["value"]) for one in variables if one.get("value") is not None}


def _arguments(container: Mapping[str, Any]) -> dict[str, str]:
    """Read flags, which have the variables' names in another spelling and go before them."""
    words = [str(word) for word in (*_list(container.get("command")), *_list(container.get("args")))]
    found = {}
    for word, following in pairwise([*words, "--"]):
        if word.startswith("--"):
            name, mark, value = word.removeprefix("--").partition("=")
            given = value if mark else "true" if following.startswith("-") else following
            found[name.upper().replace("-", "_")] = given
    return found


def _all(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from _containers(spec, "containers")
    yield from _containers(spec, "initContainers")


def _containers(spec: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    return [_map(one) for one in _list(spec.get(kind))]


def _map(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
