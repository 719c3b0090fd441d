"""The device plugin's environment, which goes before its file: the GPU operator, for one, always sets MIG_STRATEGY."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dradriver.api.problems import Problem, show_value

_TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "MIG_STRATEGY": ("flags", "migStrategy"),
    "MPS_ROOT": ("flags", "mpsRoot"),
    "NVIDIA_DRIVER_ROOT": ("flags", "nvidiaDriverRoot"),
    "NVIDIA_DEV_ROOT": ("flags", "nvidiaDevRoot"),
    "DEVICE_DISCOVERY_STRATEGY": ("flags", "deviceDiscoveryStrategy"),
    "DEVICE_ID_STRATEGY": ("flags", "plugin", "deviceIDStrategy"),
    "CDI_ANNOTATION_PREFIX": ("flags", "plugin", "cdiAnnotationPrefix"),
    "NVIDIA_CTK_PATH": ("flags", "plugin", "nvidiaCTKPath"),
    "CONTAINER_DRIVER_ROOT": ("flags", "plugin", "containerDriverRoot"),
    "SHARED_DEVICES_ALLOCATION_POLICY": ("flags", "plugin", "sharedDevicesAllocationPolicy"),
}
_TRUTHS: Final[Mapping[str, tuple[str, ...]]] = {
    "FAIL_ON_INIT_ERROR": ("flags", "failOnInitError"),
    "GDRCOPY_ENABLED": ("flags", "gdrcopyEnabled"),
    "GDS_ENABLED": ("flags", "gdsEnabled"),
    "MOFED_ENABLED": ("flags", "mofedEnabled"),
    "USE_NODE_FEATURE_API": ("flags", "useNodeFeatureAPI"),
    "PASS_DEVICE_SPECS": ("flags", "plugin", "passDeviceSpecs"),
    "IMEX_REQUIRED": ("imex", "required"),
}
_LISTS: Final[Mapping[str, tuple[str, ...]]] = {"DEVICE_LIST_STRATEGY": ("flags", "plugin", "deviceListStrategy")}
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})

READ_ELSEWHERE: Final = (
    "DP_DISABLE_HEALTHCHECKS",
    "DP_ENABLE_HEALTHCHECKS",
    "CDI_FEATURE_FLAGS",
    "CDI_DISABLE_HOOKS",
    "KUBELET_SOCKET",
)
"""Variables that are no part of a configuration, and say what the plan has to tell."""

KNOWN: Final = (*_TEXTS, *_TRUTHS, *_LISTS, *READ_ELSEWHERE)


_PATHS: Final[Mapping[str, tuple[str, ...]]] = {**_TEXTS, **_TRUTHS, **_LISTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A field of the file that has no effect, since a variable says otherwise.

    Attributes:
        path: of the field.
        given: what the file says.
        variable: its name.
        text: what it says.
    """

    path: tuple[str, ...]
    given: object
    variable: str
    text: str

    @property
    def flag(self) -> str:
        """The flag that does the same."""
        return f"--{self.variable.lower().replace('_', '-')}"


def overrides(document: Mapping[str, Any], env: Mapping[str, str]) -> Iterator[Override]:
    """Find the fields of a document that variables go before, be it with the same value."""
    for name, text in env.items():
        place: object = document
        for step in _PATHS.get(name, ()):
            place = place.get(step) if isinstance(place, dict) else None
        if text and name in _PATHS and place is not None:
            yield Override(path=_PATHS[name], given=place, variable=name, text=text)


def put_into(document: dict[str, Any], env: Mapping[str, str]) -> list[Problem]:
    """Put variables where the document has their field, over what stands there; gives what is wrong with them."""
    problems: list[Problem] = []
    for name, text in env.items():
        # The device plugin takes an empty variable for one that is not there.
        if not text:
            continue
        if path := _TEXTS.get(name):
            _put(document, path, text)
        elif path := _LISTS.get(name):
            _put(document, path, [part.strip() for part in text.split(",")])
        elif path := _TRUTHS.get(name):
            problems += _put_truth(document, path, name, text)
    return problems


def _put_truth(document: dict[str, Any], path: tuple[str, ...], name: str, text: str) -> list[Problem]:
    if text not in _TRUE | _FALSE:
        return [Problem(text=f"the variable {name} is {show_value(text)}; must be true or false")]
    _put(document, path, text in _TRUE)
    return []


def _put(document: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    """Put a value at a path; where something else than a mapping is on the way, the check tells of that."""
    place: Any = document
    for step in path[:-1]:
        place = place.setdefault(step, {})
        if not isinstance(place, dict):
            return
    place[path[-1]] = value
