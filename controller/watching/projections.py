"""Objects of the API server reduced to what is kept of them.

What the reflectors keep is `{"metadata": <name, namespace, uid, resourceVersion>, "seen": <one of the model's>}`. Equal
parts of different objects become one: 5,000 nodes of one kind have the same devices under the same names.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from controller.api import FIELD_MANAGER
from controller.watching.model import (
    UNLIMITED,
    Counters,
    CounterSets,
    DeviceKind,
    SeenClaim,
    SeenClass,
    SeenDevice,
    SeenNode,
    SeenSlice,
    Taint,
)
from dradriver.api import DRIVER_NAME, Attribute, Capacity
from dradriver.kube import Object, key_of
from dradriver.resource import parse_quantity

_KEPT: Final = ("name", "namespace", "uid", "resourceVersion")
_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})
_DIFFERENT: Final = 1 << 16
"""How many different parts are remembered for sharing; one that is forgotten costs memory only."""


def project_slice(item: Object) -> Object:
    """Keep a `SeenSlice`."""
    spec = item["spec"]
    pool = spec["pool"]
    seen = SeenSlice(
        pool=pool["name"],
        node=spec.get("nodeName") or "",
        generation=pool["generation"],
        total=pool["resourceSliceCount"],
        devices=_devices(tuple(_device(each) for each in spec.get("devices") or ())),
        counters=_counter_sets(spec.get("sharedCounters") or (), name="name"),
    )
    return kept(item, seen)


def project_claim(item: Object) -> Object:
    """Keep a `SeenClaim`."""
    requests = item["spec"].get("devices", {}).get("requests") or ()
    classes = {name for request in requests for name in _classes(request)}
    allocation = (item.get("status") or {}).get("allocation") or {}
    results = allocation.get("devices", {}).get("results") or ()
    ours = [each for each in results if each["driver"] == DRIVER_NAME and not each.get("adminAccess")]
    seen = SeenClaim(
        name=key_of(item),
        classes=_words(tuple(sorted(classes))),
        devices=tuple((each["pool"], each["device"]) for each in ours),
        shares=tuple((each["pool"], each["device"], _shares_used(each)) for each in ours if each.get("shareID")),
    )
    return kept(item, seen)


def project_node(item: Object) -> Object:
    """Keep a `SeenNode`."""
    allocatable = (item.get("status") or {}).get("allocatable") or {}
    extended = tuple(
        sorted((name, int(parse_quantity(str(value)))) for name, value in allocatable.items() if "/" in name)
    )
    metadata, spec = item["metadata"], item.get("spec") or {}
    seen = SeenNode(
        name=metadata["name"],
        allocatable=_counters(extended),
        labels=tuple(_pair(key, value) for key, value in sorted((metadata.get("labels") or {}).items())),
        taints=_taints(
            tuple(
                Taint(key=each["key"], value=each.get("value") or "", effect=each["effect"])
                for each in spec.get("taints") or ()
                if each["effect"] in _AWAY
            )
        ),
    )
    return kept(item, seen)


def project_class(item: Object) -> Object:
    """Keep a `SeenClass`."""
    metadata = item["metadata"]
    seen = SeenClass(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        created=metadata.get("creationTimestamp", ""),
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        spec=item.get("spec") or {},
        finalizers=tuple(metadata.get("finalizers") or ()),
        is_deleting="deletionTimestamp" in metadata,
        managers=tuple(sorted(_managers_of_spec(metadata) - {FIELD_MANAGER})),
    )
    return kept(item, seen)


def _managers_of_spec(metadata: Object) -> set[str]:
    entries = metadata.get("managedFields") or ()
    return {each.get("manager", "") for each in entries if "f:spec" in (each.get("fieldsV1") or {})} - {""}


def project_bridge(item: Object) -> Object:
    """Keep all but who wrote which field."""
    metadata = {name: value for name, value in item["metadata"].items() if name != "managedFields"}
    return item | {"metadata": metadata}


def kept(item: Object, seen: object) -> Object:
    """Give what a reflector keeps of an object, with a projection of it."""
    metadata = item["metadata"]
    return {"metadata": {name: metadata[name] for name in _KEPT if name in metadata}, "seen": seen}


def _classes(request: Mapping[str, Any]) -> Iterator[str]:
    for each in (request.get("exactly") or {}, *(request.get("firstAvailable") or ())):
        if name := each.get("deviceClassName"):
            yield name


def _shares_used(result: Mapping[str, Any]) -> int:
    """How many shares a result takes of its device; the API server tells them by the capacity's full or short name."""
    consumed = result.get("consumedCapacity") or {}
    value = consumed.get(Capacity.SHARES) or consumed.get(f"{DRIVER_NAME}/{Capacity.SHARES}")
    return int(parse_quantity(str(value or 1)))


def _device(entry: Mapping[str, Any]) -> SeenDevice:
    effects = {taint.get("effect") for taint in entry.get("taints") or ()}
    attributes, capacity = entry.get("attributes") or {}, entry.get("capacity") or {}
    return _shared_device(
        entry["name"],
        _kind(
            _text(attributes, Attribute.TYPE),
            _text(attributes, Attribute.PROFILE),
            _text(attributes, Attribute.PRODUCT_NAME),
            _amount(capacity, Capacity.MEMORY),
            _text(attributes, Attribute.SHARING),
            bool(_value(attributes, Attribute.RENAMED).get("bool")),
        ),
        bool(effects & _AWAY),
        _counter_sets(entry.get("consumesCounters") or (), name="counterSet"),
        (_amount(capacity, Capacity.SHARES) or UNLIMITED) if entry.get("allowMultipleAllocations") else 0,
    )


def _value(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """One of the driver's attributes or capacities, whether its domain is written or not."""
    found: Mapping[str, Any] = values.get(name) or values.get(f"{DRIVER_NAME}/{name}") or {}
    return found


def _text(attributes: Mapping[str, Any], name: str) -> str:
    return str(_value(attributes, name).get("string") or "")


def _amount(capacity: Mapping[str, Any], name: str) -> int | None:
    entry = _value(capacity, name)
    return int(parse_quantity(str(entry["value"]))) if entry else None


def _counter_sets(entries: Any, *, name: str) -> CounterSets:
    return _sets(tuple(sorted((entry[name], _values(entry.get("counters") or {})) for entry in entries)))


def _values(counters: Mapping[str, Any]) -> Counters:
    return _counters(
        tuple(sorted((name, int(parse_quantity(str(value["value"])))) for name, value in counters.items()))
    )


@lru_cache(_DIFFERENT)
def _kind(kind: str, profile: str, product_name: str, memory: int | None, sharing: str, renamed: bool) -> DeviceKind:  # noqa: FBT001 (a key of the cache)
    return DeviceKind(
        type=kind, profile=profile, product_name=product_name, memory=memory, sharing=sharing, renamed=renamed
    )


@lru_cache(_DIFFERENT)
def _shared_device(name: str, kind: DeviceKind, is_tainted: bool, consumes: CounterSets, shares: int) -> SeenDevice:  # noqa: FBT001 (a key of the cache)
    return SeenDevice(name=name, kind=kind, is_tainted=is_tainted, consumes=consumes, shares=shares)


@lru_cache(_DIFFERENT)
def _devices(devices: tuple[SeenDevice, ...]) -> tuple[SeenDevice, ...]:
    return devices


@lru_cache(_DIFFERENT)
def _sets(sets: CounterSets) -> CounterSets:
    return sets


@lru_cache(_DIFFERENT)
def _counters(counters: Counters) -> Counters:
    return counters


@lru_cache(_DIFFERENT)
def _pair(key: str, value: str) -> tuple[str, str]:
    return key, value


@lru_cache(_DIFFERENT)
def _taints(taints: tuple[Taint, ...]) -> tuple[Taint, ...]:
    return taints


@lru_cache(_DIFFERENT)
def _words(words: tuple[str, ...]) -> tuple[str, ...]:
    return words
