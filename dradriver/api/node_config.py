"""Configurations of nodes: `NodeConfigs` of `dradriver.dev/v1alpha1`, one document with any number of named ones.

Strict: what is not known is an error, since a typing mistake must not silently change what a cluster offers. Mistakes
are told with their path, with what stands there and with what may stand there, all at once. A mistake inside one
configuration leaves the others usable.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic.alias_generators import to_camel

from dradriver.api import DRADRIVER_DOMAIN, PROFILE_NAME
from dradriver.api.problems import Problem, Step, show_value

API_VERSION: Final = f"{DRADRIVER_DOMAIN}/v1alpha1"
KIND: Final = "NodeConfigs"
DEFAULT_NAME: Final = "default"
"""The configuration of nodes that no label gives another one."""

MOST_CONFIGS: Final = 256
MOST_RULES: Final = 64
MOST_ENTRIES: Final = 256
"""Of one list in a rule."""
HIGHEST_INDEX: Final = 1023
LONGEST_TEXT: Final = 256
"""Characters of a pattern for product names."""

_LABEL_VALUE: Final = re.compile(r"(?=.{1,63}\Z)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_POLICY_NAME: Final = re.compile(r"(?=.{1,63}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_UUID: Final = re.compile(r"gpu-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BUS_ID: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
_DEVICE_ID: Final = re.compile(r"0x[0-9a-f]{8}")

# --- the document ---------------------------------------------------------------------------------


def _is_given(value: object) -> object:
    # `filter:` with nothing behind it is a slip of the pen, and would be a rule for all GPUs.
    if value is None:
        raise ValueError("give it a value, or leave the field out")
    return value


_T = TypeVar("_T")
_Optional = Annotated[_T | None, BeforeValidator(_is_given)]
_List = Annotated[list[_T], Field(min_length=1, max_length=MOST_ENTRIES)]


def _uuid(text: str) -> str:
    if not _UUID.fullmatch(text.lower()):
        raise ValueError("must be a GPU's UUID as `nvidia-smi -L` shows it, GPU-12345678-1234-1234-1234-123456789abc")
    return "GPU-" + text[4:].lower()


def _bus_id(text: str) -> str:
    """Bring a bus id into the form of sysfs; NVML writes eight digits of the domain."""
    found = _BUS_ID.fullmatch(text.lower())
    if found is None:
        raise ValueError("must be a PCI bus id with its domain, such as 0000:41:00.0")
    return f"{int(found[1], 16):04x}:{found[2]}"


def _device_id(text: str) -> str:
    if not _DEVICE_ID.fullmatch(text.lower()):
        raise ValueError("must be a PCI device id and vendor id, eight hex digits such as 0x233010DE")
    return "0x" + text[2:].upper()


def _profile(text: str) -> str:
    if not PROFILE_NAME.fullmatch(text):
        raise ValueError("must be a MIG profile such as 1g.10gb or 1g.10gb+me")
    return text


def _policy_name(text: str) -> str:
    if not _POLICY_NAME.fullmatch(text):
        raise ValueError("must be a name: at most 63 small letters, digits and dashes, no dash at either end")
    return text


def _kind_of_profiles(value: object) -> str:
    return _NAMES if isinstance(value, list) else _RULE


_NAMES: Final = "names"
_RULE: Final = "rule"

Pattern = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]
Profiles = Annotated[
    Annotated[_List[Annotated[str, AfterValidator(_profile)]], Tag(_NAMES)]
    | Annotated[Literal["standard", "all"], Tag(_RULE)],
    Discriminator(_kind_of_profiles),
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel)


def _finds_something(found: "GpuFilter") -> "GpuFilter":
    if not found.model_fields_set:
        raise ValueError("name at least one thing, or leave `filter` out for a rule for all other GPUs")
    return found


def _can_all_match(rules: list["GpuRule"]) -> list["GpuRule"]:
    unfiltered = [index for index, rule in enumerate(rules) if rule.filter is None]
    if unfiltered and unfiltered[0] < len(rules) - 1:
        raise ValueError(f"the rule at [{unfiltered[0]}] has no filter, so the ones behind it find no GPU: put it last")
    return rules


class GpuFilter(_Model):
    """Which GPUs a rule is for: those that every given field allows."""

    uuids: _Optional[_List[Annotated[str, AfterValidator(_uuid)]]] = None
    indices: _Optional[_List[Annotated[int, Field(ge=0, le=HIGHEST_INDEX)]]] = None
    pci_bus_ids: _Optional[_List[Annotated[str, AfterValidator(_bus_id)]]] = Field(default=None, alias="pciBusIDs")
    product_names: _Optional[_List[Pattern]] = None
    device_ids: _Optional[_List[Annotated[str, AfterValidator(_device_id)]]] = Field(default=None, alias="deviceIDs")


class GpuRule(_Model):
    """How the GPUs that a filter finds are offered; without a filter: all that no rule before has found."""

    filter: _Optional[Annotated[GpuFilter, AfterValidator(_finds_something)]] = None
    mig: _Optional[Literal["static", "dynamic", "off"]] = None
    profiles: _Optional[Profiles] = None


class NodeConfig(_Model):
    """What one kind of node offers; what is not named is as the plugin's flags say."""

    gpus: _Optional[Annotated[list[GpuRule], Field(max_length=MOST_RULES), AfterValidator(_can_all_match)]] = None
    order: _Optional[Literal["packed", "spread", "nvidia"]] = None
    publish: _Optional[Literal["full", "lean"]] = None
    health_policy: _Optional[Annotated[str, AfterValidator(_policy_name)]] = None


class _Document(_Model):
    api_version: Literal["dradriver.dev/v1alpha1"]
    kind: Literal["NodeConfigs"]
    configs: dict[str, Any]


_MODELS: Final[Mapping[int, type[_Model]]] = {0: _Document, 2: NodeConfig, 4: GpuRule, 5: GpuFilter}
"""What stands at a path of that many steps."""

# --- reading it -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What a document says.

    Attributes:
        configs: those without mistakes, by name.
        broken: those with mistakes.
        problems: mistakes of the document itself; there are no configurations then.
    """

    configs: Mapping[str, NodeConfig] = field(default_factory=dict)
    broken: Mapping[str, tuple[Problem, ...]] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def all_problems(self) -> tuple[Problem, ...]:
        """Every mistake, those of the document first."""
        return self.problems + tuple(problem for problems in self.broken.values() for problem in problems)


def decode(document: object, *, found: Iterable[Problem] = ()) -> Decoded:
    """Check a document; never raises, whatever it is.

    Args:
        document: plain data, as YAML or JSON gives it.
        found: mistakes that were found before, such as keys that stand there twice.
    """
    found = tuple(found)
    try:
        checked = _Document.model_validate(document)
    except ValidationError as error:
        return Decoded(problems=found + _problems(error, ()))
    outside = tuple(problem for problem in found if not _is_of_config(problem))
    if len(checked.configs) > MOST_CONFIGS:
        text = f"has {len(checked.configs)} entries; at most {MOST_CONFIGS} are allowed"
        outside += (Problem(path=("configs",), text=text),)
    if outside:
        return Decoded(problems=outside)
    return _decode_each(checked.configs, found)


def decode_config(document: object, *, name: str) -> NodeConfig | tuple[Problem, ...]:
    """Check one configuration; gives it, or its mistakes, with paths as in the whole document."""
    path = ("configs", name)
    if not is_name(name):
        return (Problem(path=path, text=NO_NAME),)
    try:
        return NodeConfig.model_validate(document)
    except ValidationError as error:
        return _problems(error, path)


def is_name(text: str) -> bool:
    """Tell whether a configuration can have that name: a node label must be able to hold it."""
    return _LABEL_VALUE.fullmatch(text) is not None


def encode_config(config: NodeConfig) -> dict[str, Any]:
    """Give a configuration as plain data, which `decode_config` understands."""
    return config.model_dump(mode="json", by_alias=True, exclude_none=True)


NO_NAME: Final = "is not a name that a node label can hold: at most 63 letters, digits, and -_. between them"
_MUST_BE: Final = {
    "list_type": "a list",
    "string_type": "a text",
    "int_type": "a whole number",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}


def _is_of_config(problem: Problem) -> bool:
    return len(problem.path) > 1 and problem.path[0] == "configs"


def _decode_each(documents: Mapping[str, Any], found: tuple[Problem, ...]) -> Decoded:
    configs: dict[str, NodeConfig] = {}
    broken: dict[str, tuple[Problem, ...]] = {}
    for name, document in documents.items():
        known = tuple(problem for problem in found if problem.path[1] == name)
        checked = decode_config(document, name=name)
        if isinstance(checked, NodeConfig) and not known:
            configs[name] = checked
        else:
            broken[name] = known + (() if isinstance(checked, NodeConfig) else checked)
    return Decoded(configs=configs, broken=broken)


def _problems(error: ValidationError, prefix: tuple[Step, ...]) -> tuple[Problem, ...]:
    return tuple(_problem(problem, prefix) for problem in error.errors(include_url=False))


def _problem(problem: Mapping[str, Any], prefix: tuple[Step, ...]) -> Problem:
    steps: tuple[Step, ...] = problem["loc"]
    # In `gpus[0].profiles` the kind that the discriminator chose follows, which is no step for people.
    path = prefix + (steps[:3] + steps[4:] if steps[2:3] == ("profiles",) else steps)
    return Problem(path=path, text=_text(problem, path))


def _text(problem: Mapping[str, Any], path: tuple[Step, ...]) -> str:
    kind, value = problem["type"], show_value(problem["input"])
    match kind:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return f"is not known; allowed are {', '.join(_fields(path))}"
        case "literal_error":
            return f"is {value}; allowed: {_literals(path, problem)}"
        case _ if kind in _MUST_BE:
            return f"is {value}; must be {_MUST_BE[kind]}"
    told = _told(problem)
    return told if isinstance(problem["input"], dict | list) else f"is {value}; {told}"


def _told(problem: Mapping[str, Any]) -> str:
    match problem["type"]:
        case "value_error":
            # One of ours; pydantic's message has words before it.
            return str(problem["ctx"]["error"])
        case "too_short" | "string_too_short":
            return "must not be empty"
        case "too_long" | "string_too_long":
            return f"must have at most {problem['ctx']['max_length']} {_UNITS[problem['type']]}"
        case "greater_than_equal" | "less_than_equal":
            return f"must be from 0 to {HIGHEST_INDEX}"
        case _:
            return str(problem["msg"])


_UNITS: Final = {"too_long": "entries", "string_too_long": "characters"}


def _fields(path: tuple[Step, ...]) -> list[str]:
    model = _MODELS[len(path) - 1]
    return [str(one.alias or name) for name, one in model.model_fields.items()]


def _literals(path: tuple[Step, ...], problem: Mapping[str, Any]) -> str:
    allowed = str(problem["ctx"]["expected"]).replace("'", "").replace(" or ", ", ")
    return f"{allowed}, or a list of MIG profiles" if path[-1] == "profiles" else allowed
