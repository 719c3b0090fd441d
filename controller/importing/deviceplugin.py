"""Configurations of NVIDIA's device plugin (`version: v1`), read as strictly as the device plugin reads them.

What it refuses to start with is a mistake here, told with its path and with what may stand there, all at once. What it
passes over in silence, such as a field that it does not know, is kept apart: the configuration is used as it is used
there, and the plan says what had no effect. Its YAML is that of version 1.1, where `yes` and `off` are truth values.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from controller.importing import environment
from controller.importing.names import DOMAIN, LONGEST, qualify
from dradriver.api.problems import Problem, Step, show_value
from dradriver.api.text import TextError, parse

Path: TypeAlias = tuple[Step, ...]

_TRUE: Final = frozenset({"y", "Y", "yes", "Yes", "YES", "on", "On", "ON"})
_FALSE: Final = frozenset({"n", "N", "no", "No", "NO", "off", "Off", "OFF"})
_DURATION: Final = re.compile(r"[+-]?(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+|[0-9]+(\.[0-9]+)?")
_UUID: Final = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_OLD_MIG_UUID: Final = re.compile(r"MIG-(GPU-[0-9a-f-]{36})/[0-9]+/[0-9]+", re.IGNORECASE)
_INDEX: Final = re.compile(r"[0-9]+(:[0-9]+)?")

MigStrategy = Literal["none", "single", "mixed"]
ListStrategy = Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]
Strategy = Literal["none", "time-slicing", "mps"]


def _truth(value: object) -> object:
    if isinstance(value, str):
        return True if value in _TRUE else False if value in _FALSE else value
    return value


def _name(text: str) -> str:
    whole = qualify(text)
    if whole is None:
        raise ValueError(
            f"must be a resource such as gpu or mig-1g.10gb, with or without {DOMAIN}/ before it, {LONGEST} characters "
            "at most in all"
        )
    return whole


def _duration(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str) or not _DURATION.fullmatch(str(value)):
        raise ValueError("must be a duration such as 60s or 1m30s")
    return str(value)


def _strategies(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _devices(value: object) -> object:
    """Accept what the device plugin accepts; it then takes all devices, whatever stands here."""
    if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    if isinstance(value, list) and all(_is_device(one) for one in value):
        return value
    raise ValueError("must be all, a count from 1, or a list of indices (0), MIG indices (0:1) and UUIDs")


def _is_device(value: object) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and value >= 0
    return isinstance(value, str) and any(form.fullmatch(value) for form in (_INDEX, _UUID, _OLD_MIG_UUID))


def _channels(value: list[int]) -> list[int]:
    if value not in ([], [0]):
        raise ValueError("must be [] or [0]")
    return value


Truth = Annotated[bool, BeforeValidator(_truth)]
Name = Annotated[str, AfterValidator(_name)]

# --- the document ---------------------------------------------------------------------------------


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel)


class PluginFlags(_Model):
    """Flags of the device plugin alone."""

    pass_device_specs: Truth = False
    device_list_strategy: Annotated[list[ListStrategy], Field(min_length=1), BeforeValidator(_strategies)] = ["envvar"]
    device_id_strategy: Literal["uuid", "index"] = Field(default="uuid", alias="deviceIDStrategy")
    cdi_annotation_prefix: str = Field(default="cdi.k8s.io/", alias="cdiAnnotationPrefix")
    nvidia_ctk_path: str | None = Field(default=None, alias="nvidiaCTKPath")
    container_driver_root: str | None = None
    shared_devices_allocation_policy: Literal["distributed", "packed"] = "distributed"


class GfdFlags(_Model):
    """Flags of GPU feature discovery, which reads the same file."""

    oneshot: Truth | None = None
    no_timestamp: Truth | None = None
    sleep_interval: Annotated[str, BeforeValidator(_duration)] | None = None
    output_file: str | None = None
    machine_type_file: str | None = None


class Flags(_Model):
    """Flags; each can be given on the command line and in the environment, too."""

    mig_strategy: MigStrategy = "none"
    fail_on_init_error: Truth = True
    mps_root: str | None = None
    nvidia_driver_root: str | None = None
    nvidia_dev_root: str | None = None
    gdrcopy_enabled: Truth = False
    gds_enabled: Truth = False
    mofed_enabled: Truth = False
    use_node_feature_api: Truth | None = Field(default=None, alias="useNodeFeatureAPI")
    device_discovery_strategy: Literal["auto", "nvml", "tegra"] = "auto"
    plugin: PluginFlags = PluginFlags()
    gfd: GfdFlags = GfdFlags()


class Pattern(_Model):
    """A name for devices of some models; read and then not used by the device plugin."""

    pattern: str
    name: Name


class Resources(_Model):
    """Names for devices."""

    gpus: list[Pattern] = []
    mig: list[Pattern] = []


class Replicated(_Model):
    """A resource, each device of which is given to several pods."""

    name: Name
    rename: Name | None = None
    devices: Annotated[Any, BeforeValidator(_devices)] = "all"
    replicas: Annotated[int, Field(ge=2)]


class Sharer(_Model):
    """One way to share."""

    rename_by_default: Truth = False
    fail_requests_greater_than_one: Truth | None = None
    resources: Annotated[list[Replicated], Field(min_length=1)]


class Sharing(_Model):
    """How devices are given to several pods."""

    time_slicing: Sharer | None = None
    mps: Sharer | None = None


class Imex(_Model):
    """Channels between the nodes of an NVLink domain."""

    channel_ids: Annotated[list[int], AfterValidator(_channels)] = Field(default=[], alias="channelIDs")
    required: Truth = False


class Config(_Model):
    """One configuration; what it does not name has the device plugin's default."""

    version: Literal["v1"] = "v1"
    flags: Flags = Flags()
    resources: Resources = Resources()
    sharing: Sharing = Sharing()
    imex: Imex = Imex()

    @property
    def strategy(self) -> Strategy:
        """How devices are shared; where both ways are written down, the device plugin takes MPS without a word."""
        if self.sharing.mps is not None:
            return "mps"
        return "time-slicing" if self.sharing.time_slicing is not None else "none"

    @property
    def sharer(self) -> Sharer | None:
        """What the active way of sharing says; None where nothing is shared."""
        return self.sharing.mps or self.sharing.time_slicing

    @property
    def at_most_one(self) -> bool:
        """Whether a container that asks for more than one share is refused."""
        if self.sharer is None or self.sharer.fail_requests_greater_than_one is None:
            return self.strategy == "mps"
        return self.sharer.fail_requests_greater_than_one

    def replicas(self) -> dict[str, int]:
        """Give the shares of each device by the resource's name; of one that is named twice the highest number."""
        found: dict[str, int] = {}
        for one in self.sharer.resources if self.sharer else ():
            found[one.name] = max(one.replicas, found.get(one.name, 0))
        return found


# --- reading it -----------------------------------------------------------------------------------

_INNER: Final[Mapping[type[_Model], Mapping[str, type[_Model]]]] = {
    Config: {"flags": Flags, "resources": Resources, "sharing": Sharing, "imex": Imex},
    Flags: {"plugin": PluginFlags, "gfd": GfdFlags},
    Resources: {"gpus": Pattern, "mig": Pattern},
    Sharing: {"timeSlicing": Sharer, "mps": Sharer},
    Sharer: {"resources": Replicated},
}
"""Which model stands in which field, be it alone or in a list."""

_MUST_BE: Final = {
    "string_type": "must be a text",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "model_type": "must be a mapping",
    "dict_type": "must be a mapping",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a text says.

    Attributes:
        config: None where the device plugin would not start with it.
        problems: why it would not.
        ignored: what it passes over without a word.
        overridden: fields that have no effect, since the environment says otherwise.
    """

    config: Config | None = None
    problems: tuple[Problem, ...] = ()
    ignored: tuple[Problem, ...] = ()
    overridden: tuple[environment.Override, ...] = ()


def read(data: bytes, *, env: Mapping[str, str] | None = None) -> Reading:
    """Read one configuration; never raises, whatever it is. An empty text is a configuration, all of defaults.

    Args:
        data: the text.
        env: environment of the device plugin's container, which goes before the text.
    """
    try:
        text = None if is_blank(data) else parse(data)
    except TextError as error:
        return Reading(problems=(Problem(text=str(error)),))
    return check(text.value if text else {}, found=text.problems if text else (), env=env)


def check(document: object, *, found: tuple[Problem, ...] = (), env: Mapping[str, str] | None = None) -> Reading:
    """Check plain data; never raises.

    Args:
        document: as YAML or JSON gives it.
        found: mistakes that were found before.
        env: as above.
    """
    if not isinstance(document, dict):
        return Reading(problems=(*found, Problem(text=f"is {show_value(document)}; must be a mapping")))
    sieve = _Sieve()
    known = sieve.mapping(document, Config, ())
    before = list(environment.overrides(known, env or {}))
    problems = [*found, *sieve.problems, *environment.put_into(known, env or {})]
    config, wrong = _validated(known)
    problems += wrong or (_together(config) if config else ())
    if problems or config is None:
        return Reading(problems=tuple(dict.fromkeys(problems)), ignored=tuple(sieve.ignored))
    changed = tuple(one for one in before if _differs(one, config))
    return Reading(config=config, ignored=tuple(sieve.ignored), overridden=changed)


def _differs(one: environment.Override, config: Config) -> bool:
    """Tell whether a field of the file would have meant something else than what is used."""
    used: Any = config.model_dump(by_alias=True)
    for step in one.path:
        used = used[step]
    return used not in (one.given, _truth(one.given), _strategies(one.given))


class _Sieve:
    """Takes out of a document what the device plugin passes over: unknown fields, and those without value."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.ignored: list[Problem] = []

    def mapping(self, given: Mapping[Any, Any], model: type[_Model], path: Path) -> dict[str, Any]:
        fields = _fields(model)
        kept: dict[str, Any] = {}
        for key, value in given.items():
            if key not in fields:
                self._unknown(str(key), fields, path)
            elif value is not None:
                kept[key] = self._value(value, _INNER.get(model, {}).get(key), (*path, key))
        return kept

    def _value(self, value: object, model: type[_Model] | None, path: Path) -> object:
        if model is None:
            return value
        if isinstance(value, list):
            return [self._value(one, model, (*path, index)) for index, one in enumerate(value)]
        return self.mapping(value, model, path) if isinstance(value, dict) else value

    def _unknown(self, key: str, fields: list[str], path: Path) -> None:
        meant = [field for field in fields if field.lower() == key.lower()]
        if meant:
            self.problems.append(Problem(path=(*path, key), text=f"is written {meant[0]}"))
        else:
            text = f"is not known; allowed are {', '.join(fields)}"
            self.ignored.append(Problem(path=(*path, key), text=text))


def is_blank(data: bytes) -> bool:
    """Tell whether a text says nothing: comments and empty lines only."""
    lines = (line.strip() for line in data.removeprefix(b"\xef\xbb\xbf").splitlines())
    return all(not line or line.startswith(b"#") or line == b"---" for line in lines)


def _validated(document: dict[str, Any]) -> tuple[Config | None, list[Problem]]:
    try:
        return Config.model_validate(document), []
    except ValidationError as error:
        return None, [_problem(one) for one in error.errors(include_url=False)]


def _together(config: Config) -> list[Problem]:
    """Find what does not go together although each part is sound."""
    found = []
    if config.sharing.mps is not None and config.flags.mig_strategy == "mixed":
        found.append(Problem(path=("sharing", "mps"), text="must be left out where flags.migStrategy is mixed"))
    if config.flags.mps_root == "" and config.sharing.mps is not None:
        found.append(Problem(path=("flags", "mpsRoot"), text="must not be empty where sharing.mps is given"))
    cdi = [one for one in config.flags.plugin.device_list_strategy if one.startswith("cdi-")]
    if cdi and config.flags.device_discovery_strategy == "tegra":
        path = ("flags", "plugin", "deviceListStrategy")
        found.append(Problem(path=path, text=f"has {cdi[0]}, which does not go with deviceDiscoveryStrategy tegra"))
    return found


def _fields(model: type[_Model]) -> list[str]:
    return [str(one.alias or name) for name, one in model.model_fields.items()]


TOP_FIELDS: Final = tuple(_fields(Config))
"""Fields of a configuration as a whole."""


def _problem(problem: Mapping[str, Any]) -> Problem:
    return Problem(path=problem["loc"], text=_text(problem))


def _text(problem: Mapping[str, Any]) -> str:
    kind, value = problem["type"], problem["input"]
    if kind == "missing":
        return "is missing"
    if kind == "value_error":
        told = str(problem["ctx"]["error"])
    elif kind == "literal_error":
        told = f"allowed: {str(problem['ctx']['expected']).replace(' or ', ', ').replace(chr(39), '')}"
    elif kind == "greater_than_equal":
        told = f"must be {problem['ctx']['ge']} or more"
    elif kind == "too_short":
        told = "must have at least one entry"
    else:
        told = _MUST_BE.get(kind, str(problem["msg"]))
    return f"is {show_value(value)}; {told}"
