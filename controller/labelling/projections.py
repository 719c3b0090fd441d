"""What is kept of slices and nodes for labels, beside what bridges need. Equal parts are there only once."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

from controller.labelling.names import LABEL_MANAGER, is_known
from dradriver.api import DRIVER_NAME, Attribute, Capacity
from dradriver.kube import Object
from dradriver.resource import parse_quantity

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values, sorted by name."""

_DIFFERENT: Final = 1 << 14
"""How many different parts are remembered for sharing; one that is forgotten costs memory only."""

_RENAMED: Final = "renamed"
_SHARES: Final = "shares"
_CAPACITIES: Final = (
    Capacity.MULTIPROCESSORS,
    Capacity.COPY_ENGINES,
    Capacity.DECODERS,
    Capacity.ENCODERS,
    Capacity.JPEG_ENGINES,
    Capacity.OFA_ENGINES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one device tells of its GPU, as far as it does; "" where it does not.

    Attributes:
        architecture: such as `Hopper`.
        compute: CUDA's compute capability, such as `9.0.0`.
        driver: version of the driver, such as `580.65.6`: without leading zeros.
        cuda: newest version of CUDA that the driver serves, such as `13.0.0`.
        shares: how many pods may use it at the same time; 1 where it is not shared.
        is_renamed: shares are asked for by another name than whole devices.
        capacities: multiprocessors and engines by the names of capacities, sorted.
    """

    architecture: str = ""
    compute: str = ""
    driver: str = ""
    cuda: str = ""
    shares: int = 1
    is_renamed: bool = False
    capacities: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLabels:
    """Labels of a node that could be ours, by who holds them.

    Attributes:
        mine: applied by us, others may hold them too.
        foreign: held by others, or by nobody that the API server knows of.
    """

    mine: Labels = ()
    foreign: Labels = ()


def project_facts(item: Object) -> tuple[Facts, ...]:
    """Keep the facts of a slice's devices, in order."""
    return _all_facts(tuple(_facts(each) for each in item["spec"].get("devices") or ()))


def project_labels(item: Object) -> HeldLabels:
    """Keep a node's labels that could be ours."""
    metadata = item["metadata"]
    labels = {name: value for name, value in (metadata.get("labels") or {}).items() if is_known(name)}
    entries = metadata.get("managedFields") or ()
    mine = set(_managed(each for each in entries if _is_ours(each)))
    others = set(_managed(each for each in entries if not _is_ours(each)))
    return _held(
        _sorted({name: value for name, value in labels.items() if name in mine}),
        _sorted({name: value for name, value in labels.items() if name not in mine or name in others}),
    )


def _is_ours(entry: Mapping[str, Any]) -> bool:
    return entry.get("manager") == LABEL_MANAGER and entry.get("operation") == "Apply"


def _managed(entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for entry in entries:
        fields = (entry.get("fieldsV1") or {}).get("f:metadata", {}).get("f:labels", {})
        yield from (name.removeprefix("f:") for name in fields)


def _facts(device: Mapping[str, Any]) -> Facts:
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    amounts = {name: amount for name in _CAPACITIES if (amount := _amount(capacity, name)) is not None}
    return _shared_facts(
        _text(attributes, Attribute.ARCHITECTURE),
        _text(attributes, Attribute.CUDA_COMPUTE_CAPABILITY),
        _text(attributes, Attribute.DRIVER_VERSION),
        _text(attributes, Attribute.CUDA_DRIVER_VERSION),
        (_amount(capacity, _SHARES) or 1) if device.get("allowMultipleAllocations") else 1,
        bool(_of(attributes, _RENAMED).get("bool")),
        tuple(sorted(amounts.items())),
    )


def _of(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """One of the driver's attributes or capacities, whether its domain is written or not."""
    found: Mapping[str, Any] = values.get(name) or values.get(f"{DRIVER_NAME}/{name}") or {}
    return found


def _text(attributes: Mapping[str, Any], name: str) -> str:
    value = _of(attributes, name)
    return str(value.get("string") or value.get("version") or "")


def _amount(capacity: Mapping[str, Any], name: str) -> int | None:
    entry = _of(capacity, name)
    return int(parse_quantity(str(entry["value"]))) if entry else None


def _sorted(labels: Mapping[str, str]) -> Labels:
    return _labels(tuple(sorted(labels.items())))


@lru_cache(_DIFFERENT)
def _labels(labels: Labels) -> Labels:
    return labels


@lru_cache(_DIFFERENT)
def _held(mine: Labels, foreign: Labels) -> HeldLabels:
    return HeldLabels(mine=mine, foreign=foreign)


@lru_cache(_DIFFERENT)
def _shared_facts(
    architecture: str,
    compute: str,
    driver: str,
    cuda: str,
    shares: int,
    is_renamed: bool,  # noqa: FBT001 (a key of the cache)
    capacities: tuple[tuple[str, int], ...],
) -> Facts:
    return Facts(
        architecture=architecture,
        compute=compute,
        driver=driver,
        cuda=cuda,
        shares=shares,
        is_renamed=is_renamed,
        capacities=capacities,
    )


@lru_cache(_DIFFERENT)
def _all_facts(facts: tuple[Facts, ...]) -> tuple[Facts, ...]:
    return facts
