"""Slices as the JSON of resource.k8s.io/v1, and the comparison of two such specs."""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from dradriver.resource.model import AttributeValue, CounterSet, Device, RequestPolicy, Slice, Taint, Version

Json = dict[str, Any]

_BINARY_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL_SUFFIXES = ("", "k", "M", "G", "T", "P", "E")
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d{1,3}))?")
_MULTIPLIERS = {
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(_BINARY_SUFFIXES)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(_DECIMAL_SUFFIXES)},
    "m": Decimal("0.001"),
    "u": Decimal("0.000001"),
    "n": Decimal("0.000000001"),
}


def slice_spec(content: Slice, *, driver: str, node_name: str, pool: Mapping[str, Any]) -> Json:
    """Write the `spec` of one node-local ResourceSlice.

    Args:
        content: devices or counter sets of this slice.
        driver: driver name.
        node_name: the one node whose pods can use the devices.
        pool: `{"name": ..., "generation": ..., "resourceSliceCount": ...}`.
    """
    spec: Json = {"driver": driver, "nodeName": node_name, "pool": dict(pool)}
    # An empty list counts as set and would collide with the other one, so absent stays absent.
    if content.counter_sets:
        spec["sharedCounters"] = [_counter_set(counter_set) for counter_set in content.counter_sets]
    if content.devices:
        spec["devices"] = [device_entry(device) for device in content.devices]
    return spec


def device_entry(device: Device) -> Json:
    """Write one entry of `spec.devices`."""
    entry: Json = {"name": device.name}
    if device.attributes:
        entry["attributes"] = {name: _attribute(value) for name, value in device.attributes.items()}
    if device.capacity:
        entry["capacity"] = _capacity(device)
    if device.shared:
        entry["allowMultipleAllocations"] = True
    if device.consumes:
        entry["consumesCounters"] = [
            {"counterSet": consumption.counter_set, "counters": _values(consumption.counters)}
            for consumption in device.consumes
        ]
    if device.taints:
        entry["taints"] = [_taint(taint) for taint in device.taints]
    return entry


def same_content(observed: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
    """Tell whether an observed spec already says what a desired one wants.

    Pool generation and slice count are not content. Quantities are compared by value, and a taint
    without `timeAdded` in the desired spec matches any time.
    """
    return _content(observed) == _content(_with_times_of(desired, observed))


def carry_times(desired: Mapping[str, Any], observed: Iterable[Mapping[str, Any]]) -> Json:
    """Give taints of a desired spec the `timeAdded` that the same taints already have.

    A write without it restarts the clock of every toleration (and is a change each second).
    """
    spec: Json = dict(desired)
    for other in observed:
        spec = _with_times_of(spec, other)
    return spec


def quantity(value: int) -> str:
    """Write a number in the canonical form of a Kubernetes quantity, which the API server would echo."""
    for base, suffixes in ((1024, _BINARY_SUFFIXES), (1000, _DECIMAL_SUFFIXES)):
        power = _power(value, base, len(suffixes) - 1)
        if power:
            return f"{value // base**power}{suffixes[power]}"
    return str(value)


def parse_quantity(text: str) -> Decimal:
    """Read a Kubernetes quantity.

    Raises:
        ValueError: it is none.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a Kubernetes quantity such as 4, 500m, 80Gi or 1e3")
    number, suffix, exponent = match.groups()
    return Decimal(number) * (Decimal(10) ** int(exponent) if exponent else _MULTIPLIERS[suffix or ""])


def _power(value: int, base: int, most: int) -> int:
    power = 0
    while value and power < most and value % base ** (power + 1) == 0:
        power += 1
    return power


def _counter_set(counter_set: CounterSet) -> Json:
    return {"name": counter_set.name, "counters": _values(counter_set.counters)}


def _values(quantities: Mapping[str, int]) -> Json:
    return {name: {"value": quantity(value)} for name, value in quantities.items()}


def _capacity(device: Device) -> Json:
    entries = _values(device.capacity)
    for name, policy in device.policies.items():
        entries[name]["requestPolicy"] = _policy(policy, device.capacity[name])
    return entries


def _policy(policy: RequestPolicy, most: int) -> Json:
    default = {"default": quantity(policy.default)}
    # A range with room for one step only the API server refuses; then nothing else can be asked for anyway.
    if policy.least is None or most < 2 * policy.least:
        return default
    least = quantity(policy.least)
    return default | {"validRange": {"min": least, "max": quantity(most), "step": least}}


def _attribute(value: AttributeValue) -> Json:
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": value}
        case Version():
            return {"version": value.text}
        case _:
            return {"string": value}


def _taint(taint: Taint) -> Json:
    entry = {"key": taint.key, "effect": taint.effect}
    if taint.value:
        entry["value"] = taint.value
    if taint.time_added is not None:
        entry["timeAdded"] = taint.time_added
    return entry


def _taint_key(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    return entry["key"], entry.get("value", ""), entry["effect"]


def _with_times_of(desired: Mapping[str, Any], observed: Mapping[str, Any]) -> Json:
    times = {
        (device["name"], _taint_key(taint)): taint["timeAdded"]
        for device in observed.get("devices") or ()
        for taint in device.get("taints") or ()
        if "timeAdded" in taint
    }
    spec: Json = dict(desired)
    if times and "devices" in spec:
        spec["devices"] = [_timed(device, times) for device in spec["devices"]]
    return spec


def _timed(device: Json, times: Mapping[tuple[str, tuple[str, str, str]], str]) -> Json:
    if "taints" not in device:
        return device
    taints = [
        taint
        if "timeAdded" in taint or (time := times.get((device["name"], _taint_key(taint)))) is None
        else {**taint, "timeAdded": time}
        for taint in device["taints"]
    ]
    return {**device, "taints": taints}


def _content(spec: Mapping[str, Any]) -> Json:
    content = {key: value for key, value in spec.items() if key != "pool" and value not in ([], None)}
    content["pool"] = (spec.get("pool") or {}).get("name")
    content["devices"] = [_comparable(device) for device in spec.get("devices") or ()]
    content["sharedCounters"] = [_comparable(counter_set) for counter_set in spec.get("sharedCounters") or ()]
    return content


def _comparable(node: Any) -> Any:
    """Replace every `{"value": quantity}` by its number, so that `1Gi` equals `1024Mi`."""
    if isinstance(node, Mapping):
        if set(node) == {"value"} and isinstance(node["value"], str):
            return _number(node["value"])
        if "requestPolicy" in node:
            return {key: _numbers(value) for key, value in node.items()}
        return {key: _comparable(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_comparable(item) for item in node]
    return node


def _numbers(node: Any) -> Any:
    """Replace every quantity in a part of an entry that has nothing else."""
    if isinstance(node, Mapping):
        return {key: _numbers(value) for key, value in node.items()}
    return _number(node) if isinstance(node, str) else node


def _number(text: str) -> Decimal | str:
    try:
        return parse_quantity(text)
    except ValueError:
        return text
