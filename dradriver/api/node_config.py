"""Configurations of nodes: `NodeConfigs` of `dradriver.dev/v1alpha1`, one document with any number of named ones.

Strict: what is not known is an error, since a typing mistake must not silently change what a cluster offers. Mistakes
are told with their path, with what stands there and with what may stand there, all at once. A mistake inside one
configuration leaves the others usable, and one inside a health policy those that do not name it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic.alias_generators import to_camel

from dradriver.api import DRADRIVER_DOMAIN, PROFILE_NAME
from dradriver.api.problems import Problem, Step, show_path, show_value

API_VERSION: Final = f"{DRADRIVER_DOMAIN}/v1alpha1"
KIND: Final = "NodeConfigs"
DEFAULT_NAME: Final = "default"
"""The configuration of nodes that no label gives another one."""

MOST_CONFIGS: Final = 256
MOST_POLICIES: Final = 256
MOST_XIDS: Final = 1024
"""Of one health policy."""
LONGEST_EXPIRY: Final = 7 * 24 * 3600
"""Seconds."""
MOST_RULES: Final = 64
MOST_ENTRIES: Final = 256
"""Of one list in a rule."""
HIGHEST_INDEX: Final = 1023
FEWEST_REPLICAS: Final = 2
MOST_REPLICAS: Final = 256
"""Of one GPU: about as many pods as a node can have."""
LONGEST_TEXT: Final = 256
"""Characters of a pattern for product names."""

_LABEL_VALUE: Final = re.compile(r"(?=.{1,63}\Z)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_POLICY_NAME: Final = re.compile(r"(?=.{1,63}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_UUID: Final = re.compile(r"gpu-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BUS_ID: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
_DEVICE_ID: Final = re.compile(r"0x[0-9a-f]{8}")
_XID: Final = re.compile(r"[1-9][0-9]{0,2}")
_MOST_NAMED: Final = 10
"""Names that a mistake lists, and mistakes of its policy that a configuration tells; an Event has little room."""

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
        raise ValueError(f"must be a name: {_NAME_RULE}")
    return text


def _xid(key: object) -> int:
    """Take a key for a number: keys of JSON and of our YAML are texts, those of other data may be numbers."""
    text = str(key) if isinstance(key, int) and not isinstance(key, bool) else key
    if not isinstance(text, str) or not _XID.fullmatch(text):
        raise ValueError("is not the number of an Xid: a whole number from 1 to 999")
    return int(text)


def _not_too_many(xids: object) -> object:
    # pydantic would first tell what is wrong with each of them.
    if isinstance(xids, dict) and len(xids) > MOST_XIDS:
        raise ValueError(f"must have at most {MOST_XIDS} entries")
    return xids


def _expiry(seconds: int) -> int:
    if not 1 <= seconds <= LONGEST_EXPIRY:
        raise ValueError(f"must be from 1 to {LONGEST_EXPIRY} seconds, a week")
    return seconds


def _replicas(number: int) -> int:
    if not FEWEST_REPLICAS <= number <= MOST_REPLICAS:
        bounds = f"from {FEWEST_REPLICAS} to {MOST_REPLICAS}"
        raise ValueError(f"must be {bounds}; leave `sharing` out for GPUs that are not shared")
    return number


def _kind_of_profiles(value: object) -> str:
    return _NAMES if isinstance(value, list) else _RULE


_NAMES: Final = "names"
_RULE: Final = "rule"
_NAME_RULE: Final = "at most 63 small letters, digits and dashes, no dash at either end"

Pattern = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]
Profiles = Annotated[
    Annotated[_List[Annotated[str, AfterValidator(_profile)]], Tag(_NAMES)]
    | Annotated[Literal["standard", "all"], Tag(_RULE)],
    Discriminator(_kind_of_profiles),
]
Xid = Annotated[int, BeforeValidator(_xid)]
XidWord = Literal["ignore", "warn", "noSchedule", "noExecute"]
"""What becomes of a GPU with such an Xid: nothing, a taint that only tells, or one with that effect."""


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


class SharingRule(_Model):
    """That so many claims may use a device at once."""

    replicas: Annotated[int, AfterValidator(_replicas)]
    rename: _Optional[bool] = None


def _is_partitioned_or_shared(rule: "GpuRule") -> "GpuRule":
    if rule.mig == "dynamic" and rule.sharing is not None:
        raise ValueError(
            "has both `mig: dynamic` and `sharing`; a GPU is either cut for claims or shared by them: drop one of these"
        )
    return rule


class GpuRule(_Model):
    """How the GPUs that a filter finds are offered; without a filter: all that no rule before has found."""

    filter: _Optional[Annotated[GpuFilter, AfterValidator(_finds_something)]] = None
    mig: _Optional[Literal["static", "dynamic", "off"]] = None
    profiles: _Optional[Profiles] = None
    sharing: _Optional[SharingRule] = None


_Rule = Annotated[GpuRule, AfterValidator(_is_partitioned_or_shared)]


class NodeConfig(_Model):
    """What one kind of node offers; what is not named is as the plugin's flags say."""

    gpus: _Optional[Annotated[list[_Rule], Field(max_length=MOST_RULES), AfterValidator(_can_all_match)]] = None
    order: _Optional[Literal["packed", "spread", "nvidia"]] = None
    publish: _Optional[Literal["full", "lean"]] = None
    health_policy: _Optional[Annotated[str, AfterValidator(_policy_name)]] = None


class HealthPolicy(_Model):
    """What is made of a GPU's troubles; what is not named is as the driver's own table says."""

    xids: _Optional[Annotated[dict[Xid, XidWord], BeforeValidator(_not_too_many)]] = None
    unknown_xids: _Optional[XidWord] = None
    memory: _Optional[Literal["default", "strict"]] = None
    expiry_seconds: _Optional[Annotated[int, AfterValidator(_expiry)]] = None


BUILT_IN_POLICIES: Final[Mapping[str, HealthPolicy]] = {
    "default": HealthPolicy(),
    "strict": HealthPolicy(memory="strict"),
}
"""Health policies that every document has."""


class _Document(_Model):
    api_version: Literal["dradriver.dev/v1alpha1"]
    kind: Literal["NodeConfigs"]
    configs: dict[str, Any]
    health_policies: _Optional[dict[str, Any]] = None


_CONFIGS: Final = "configs"
_POLICIES: Final = "healthPolicies"
_MOST: Final = {_POLICIES: MOST_POLICIES, _CONFIGS: MOST_CONFIGS}
_MODELS: Final[Mapping[str, Mapping[int, type[_Model]]]] = {
    _CONFIGS: {2: NodeConfig, 4: GpuRule, 5: GpuFilter},  # or SharingRule, see `_fields`
    _POLICIES: {2: HealthPolicy},
}
"""What stands below a field of the document, at a path of that many steps."""

# --- reading it -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What a document says.

    Attributes:
        configs: those without mistakes, by name.
        broken: those with mistakes, be it in the health policy that they name.
        policies: health policies without mistakes, by name, the built-in ones among them.
        broken_policies: those with mistakes.
        problems: mistakes of the document itself; none of its configurations counts then.
    """

    configs: Mapping[str, NodeConfig] = field(default_factory=dict)
    broken: Mapping[str, tuple[Problem, ...]] = field(default_factory=dict)
    policies: Mapping[str, HealthPolicy] = field(default_factory=lambda: BUILT_IN_POLICIES)
    broken_policies: Mapping[str, tuple[Problem, ...]] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def all_problems(self) -> tuple[Problem, ...]:
        """Every mistake once: those of the document, then those of health policies, then those of configurations."""
        inside = (*self.broken_policies.values(), *self.broken.values())
        return tuple(dict.fromkeys([*self.problems, *(problem for problems in inside for problem in problems)]))

    def problems_of(self, name: str) -> tuple[Problem, ...]:
        """Every mistake that keeps this configuration from being used, be it one of the document."""
        return self.problems + tuple(self.broken.get(name, ()))

    def health_policy(self, config: NodeConfig) -> HealthPolicy | None:
        """Give the health policy that one of the sound configurations names; None where it names none."""
        return None if config.health_policy is None else self.policies[config.health_policy]


def decode(document: object, *, found: Iterable[Problem] = ()) -> Decoded:
    """Check a document; never raises, whatever it is.

    Args:
        document: plain data, as YAML or JSON gives it.
        found: mistakes that were found before, such as keys that stand there twice.
    """
    found = tuple(found)
    parts = {name: _part(document, name) for name in _MOST}
    problems = tuple(problem for problem in found if not _is_inside(problem, parts)) + _document_problems(document)
    problems += tuple(_too_many(name, len(part)) for name, part in parts.items() if len(part) > _MOST[name])
    decoded = _decode_configs(parts[_CONFIGS], found, _decode_policies(parts[_POLICIES], found))
    return replace(decoded, configs={}, problems=problems) if problems else decoded


def decode_config(document: object, *, name: str) -> NodeConfig | tuple[Problem, ...]:
    """Check one configuration by itself; gives it, or its mistakes, with paths as in the whole document.

    Whether there is the health policy that it names only the document can tell.
    """
    path = (_CONFIGS, name)
    if not is_name(name):
        return (Problem(path=path, text=NO_NAME),)
    try:
        return NodeConfig.model_validate(document)
    except ValidationError as error:
        return _problems(error, path)


def decode_policy(document: object, *, name: str) -> HealthPolicy | tuple[Problem, ...]:
    """Check one health policy; gives it, or its mistakes, with paths as in the whole document."""
    path = (_POLICIES, name)
    twice = _xids_given_twice(document, path)
    try:
        policy = HealthPolicy.model_validate(document)
    except ValidationError as error:
        return twice + _problems(error, path)
    return twice or policy


def is_name(text: str) -> bool:
    """Tell whether a configuration can have that name: a node label must be able to hold it."""
    return _LABEL_VALUE.fullmatch(text) is not None


def encode_config(config: NodeConfig) -> dict[str, Any]:
    """Give a configuration as plain data, which `decode_config` understands."""
    return config.model_dump(mode="json", by_alias=True, exclude_none=True)


def encode_policy(policy: HealthPolicy) -> dict[str, Any]:
    """Give a health policy as plain data with texts for keys, as JSON has them; `decode_policy` understands it."""
    return policy.model_dump(mode="json", by_alias=True, exclude_none=True)


NO_NAME: Final = "is not a name that a node label can hold: at most 63 letters, digits, and -_. between them"
_MUST_BE: Final = {
    "list_type": "a list",
    "string_type": "a text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}


def _part(document: object, name: str) -> dict[str, Any]:
    """Give what stands in that field, as far as it is a mapping with names: the document's check tells the rest."""
    part = document.get(name) if isinstance(document, dict) else None
    return {key: value for key, value in part.items() if isinstance(key, str)} if isinstance(part, dict) else {}


def _is_inside(problem: Problem, parts: Mapping[str, Mapping[str, Any]]) -> bool:
    """Tell whether a mistake is one of a configuration or a policy, which then tells it."""
    return len(problem.path) > 1 and problem.path[1] in parts.get(str(problem.path[0]), {})


def _document_problems(document: object) -> tuple[Problem, ...]:
    try:
        _Document.model_validate(document)
    except ValidationError as error:
        return _problems(error, ())
    return ()


def _too_many(name: str, count: int) -> Problem:
    return Problem(path=(name,), text=f"has {count} entries; at most {_MOST[name]} are allowed")


def _known(found: Iterable[Problem], path: tuple[Step, ...]) -> tuple[Problem, ...]:
    return tuple(problem for problem in found if problem.path[: len(path)] == path)


def _decode_policies(documents: Mapping[str, Any], found: tuple[Problem, ...]) -> Decoded:
    policies = dict(BUILT_IN_POLICIES)
    broken: dict[str, tuple[Problem, ...]] = {}
    for name, document in documents.items():
        checked = decode_policy(document, name=name)
        problems = _known(found, (_POLICIES, name)) + _name_problems(name)
        if isinstance(checked, HealthPolicy) and not problems:
            policies[name] = checked
        else:
            broken[name] = problems + (() if isinstance(checked, HealthPolicy) else checked)
    return Decoded(policies=policies, broken_policies=broken)


def _name_problems(name: str) -> tuple[Problem, ...]:
    path = (_POLICIES, name)
    if name in BUILT_IN_POLICIES:
        return (Problem(path=path, text="is built in and cannot be defined anew; give this one another name"),)
    return () if _POLICY_NAME.fullmatch(name) else (Problem(path=path, text=f"is not a name: {_NAME_RULE}"),)


def _xids_given_twice(document: object, path: tuple[Step, ...]) -> tuple[Problem, ...]:
    """Find numbers that are there as number and as text: in files both are texts, and the parser tells."""
    xids = document.get("xids") if isinstance(document, dict) else None
    twice = [key for key in xids if isinstance(key, int) and str(key) in xids] if isinstance(xids, dict) else []
    return tuple(
        Problem(path=(*path, "xids", str(key)), text="stands there twice, as a number and as a text") for key in twice
    )


def _decode_configs(documents: Mapping[str, Any], found: tuple[Problem, ...], health: Decoded) -> Decoded:
    configs: dict[str, NodeConfig] = {}
    broken: dict[str, tuple[Problem, ...]] = {}
    for name, document in documents.items():
        checked = decode_config(document, name=name)
        known = _known(found, (_CONFIGS, name))
        unhealthy = _reference_problems(document, (_CONFIGS, name, "healthPolicy"), health)
        if isinstance(checked, NodeConfig) and not known and not unhealthy:
            configs[name] = checked
        else:
            broken[name] = known + (() if isinstance(checked, NodeConfig) else checked) + unhealthy
    return replace(health, configs=configs, broken=broken)


def _reference_problems(document: object, path: tuple[Step, ...], health: Decoded) -> tuple[Problem, ...]:
    """Say what is wrong with the health policy that a configuration names; whether it is a name was checked before."""
    name = document.get("healthPolicy") if isinstance(document, dict) else None
    if not isinstance(name, str) or not _POLICY_NAME.fullmatch(name):
        return ()
    if name in health.broken_policies:
        told = f"is {show_value(name)}; this health policy has mistakes: correct {show_path((_POLICIES, name))}"
        # Its own mistakes may be thousands, and the configurations that name it hundreds: some tell what is the matter.
        return (Problem(path=path, text=told), *health.broken_policies[name][:_MOST_NAMED])
    if name in health.policies:
        return ()
    text = f"is {show_value(name)}; the document has no such health policy; there is {_some(health)}"
    return (Problem(path=path, text=text),)


def _some(health: Decoded) -> str:
    names = [*health.policies, *health.broken_policies]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _problems(error: ValidationError, prefix: tuple[Step, ...]) -> tuple[Problem, ...]:
    return tuple(_problem(problem, prefix) for problem in error.errors(include_url=False))


def _problem(problem: Mapping[str, Any], prefix: tuple[Step, ...]) -> Problem:
    steps: tuple[Step, ...] = problem["loc"]
    # In `gpus[0].profiles` the kind that the discriminator chose follows, which is no step for people.
    path = prefix + (steps[:3] + steps[4:] if steps[2:3] == ("profiles",) else steps)
    if path[0:1] == (_POLICIES,) and path[2:3] == ("xids",):
        return _xid_problem(problem, path)
    return Problem(path=path, text=_text(problem, path))


def _xid_problem(problem: Mapping[str, Any], path: tuple[Step, ...]) -> Problem:
    """Tell a mistake in `xids`; what is wrong with a key itself comes with a step more, which is none for people."""
    named = path[:3] + tuple(str(step) for step in path[3:4])
    return Problem(path=named, text=_told(problem) if len(path) > len(named) else _text(problem, path))


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
    if path[4:5] == ("sharing",) and path[5:]:
        model: type[_Model] = SharingRule
    else:
        model = _Document if len(path) == 1 else _MODELS[str(path[0])][len(path) - 1]
    return [str(one.alias or name) for name, one in model.model_fields.items()]


def _literals(path: tuple[Step, ...], problem: Mapping[str, Any]) -> str:
    allowed = str(problem["ctx"]["expected"]).replace("'", "").replace(" or ", ", ")
    return f"{allowed}, or a list of MIG profiles" if path[-1] == "profiles" else allowed
