"""The API server's rules for a pool, checked before anything is written.

A slice that the server refuses hides every device in it, so a mistake must be found here, named, and told.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from dradriver.resource import limits
from dradriver.resource.layout import Layout
from dradriver.resource.model import AttributeValue, CounterSet, Device, Slice, Taint, Version

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
EFFECTS = frozenset({"None", "NoSchedule", "NoExecute"})
"""`None` from 1.35 on."""


class InvalidPoolError(ValueError):
    """Slices that an API server or a scheduler would refuse.

    Attributes:
        problems: one sentence each, with the name of the device or counter set.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


def validate(slices: Iterable[Slice], layout: Layout = Layout.APART) -> None:
    """Check all slices of one pool by the rules of the API servers that want this layout.

    Raises:
        InvalidPoolError: with everything that is wrong, not only the first.
    """
    slices = tuple(slices)
    rules = _one_slice_problems if layout is Layout.TOGETHER else _slice_problems
    problems = [problem for part in slices for problem in rules(part)]
    problems += _pool_problems(slices)
    if problems:
        raise InvalidPoolError(problems)


def _pool_problems(slices: tuple[Slice, ...]) -> Iterator[str]:
    devices = [device for part in slices for device in part.devices]
    sets = [counter_set for part in slices for counter_set in part.counter_sets]
    yield from _doubled("device", (device.name for device in devices))
    yield from _doubled("counter set", (counter_set.name for counter_set in sets))
    totals = {counter_set.name: counter_set.counters for counter_set in sets}
    for device in devices:
        yield from _consumption_problems(device, totals)


def _doubled(kind: str, names: Iterable[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{kind} {name} appears {count} times in the pool"


def _consumption_problems(device: Device, totals: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    for consumption in device.consumes:
        total = totals.get(consumption.counter_set)
        if total is None:
            yield f"device {device.name} consumes from counter set {consumption.counter_set}, which does not exist"
            continue
        for counter in consumption.counters.keys() - total.keys():
            yield f"device {device.name} consumes counter {counter}, which {consumption.counter_set} does not have"


def _slice_problems(part: Slice) -> Iterator[str]:
    """Rules from 1.35 on."""
    if part.devices and part.counter_sets:
        yield "a slice holds either devices or counter sets, not both"
    restricted = any(device.taints or device.consumes for device in part.devices)
    most = limits.DEVICES_PER_SLICE_RESTRICTED if restricted else limits.DEVICES_PER_SLICE
    yield from _too_many("a slice", "devices", len(part.devices), most)
    yield from _too_many("a slice", "counter sets", len(part.counter_sets), limits.COUNTER_SETS_PER_SLICE)
    yield from _content_problems(part)


def _one_slice_problems(part: Slice) -> Iterator[str]:
    """Rules of 1.34, where a slice holds the counter sets that its devices consume from."""
    yield from _too_many("a slice", "devices", len(part.devices), limits.DEVICES_PER_SLICE)
    counters = sum(len(counter_set.counters) for counter_set in part.counter_sets)
    yield from _too_many("a slice", "counters", counters, limits.COUNTERS_PER_SLICE_1_34)
    consumed = {device.name: sum(len(one.counters) for one in device.consumes) for device in part.devices}
    references = sum(consumed.values())
    yield from _too_many("a slice", "references to counters", references, limits.COUNTER_REFERENCES_PER_SLICE_1_34)
    here = {counter_set.name for counter_set in part.counter_sets}
    for device in part.devices:
        owner = f"device {device.name}"
        yield from _too_many(owner, "counters", consumed[device.name], limits.COUNTERS_PER_SLICE_1_34)
        yield from _too_many(owner, "taints", len(device.taints), limits.TAINTS_PER_DEVICE_1_34)
        for name in {consumption.counter_set for consumption in device.consumes} - here:
            yield f"{owner} consumes from counter set {name}, which is not in its slice"
        if any(taint.effect == "None" for taint in device.taints):
            yield f"{owner} has a taint of effect None, which Kubernetes 1.34 does not know"
    yield from _content_problems(part)


def _content_problems(part: Slice) -> Iterator[str]:
    for counter_set in part.counter_sets:
        yield from _counter_set_problems(counter_set)
    for device in part.devices:
        yield from _device_problems(device)


def _too_many(owner: str, what: str, count: int, most: int) -> Iterator[str]:
    if count > most:
        yield f"{owner} has {count} {what}, at most {most} are allowed"


def _counter_set_problems(counter_set: CounterSet) -> Iterator[str]:
    owner = f"counter set {counter_set.name}"
    yield from _label_problems(owner, counter_set.name)
    yield from _counters_problems(owner, counter_set.counters, limits.COUNTERS_PER_SET)


def _counters_problems(owner: str, counters: Mapping[str, int], most: int) -> Iterator[str]:
    if not counters:
        yield f"{owner} has no counters"
    yield from _too_many(owner, "counters", len(counters), most)
    for name, value in counters.items():
        yield from _label_problems(f"{owner}, counter {name!r}", name)
        if value < 0:
            yield f"{owner}, counter {name} is negative"


def _label_problems(owner: str, name: str) -> Iterator[str]:
    if len(name) > limits.NAME_LENGTH or not _LABEL.fullmatch(name):
        yield f"{owner}: {name!r} is not a DNS label of at most {limits.NAME_LENGTH} characters"


def _device_problems(device: Device) -> Iterator[str]:
    owner = f"device {device.name}"
    yield from _label_problems(owner, device.name)
    entries = len(device.attributes) + len(device.capacity)
    yield from _too_many(owner, "attributes and capacities", entries, limits.ATTRIBUTES_AND_CAPACITIES_PER_DEVICE)
    for name in (*device.attributes, *device.capacity):
        yield from _qualified_name_problems(owner, name)
    for name, value in device.attributes.items():
        yield from _value_problems(f"{owner}, attribute {name}", value)
    yield from _consumes_problems(owner, device)
    yield from _sharing_problems(owner, device)
    yield from _taints_problems(owner, device)


def _qualified_name_problems(owner: str, name: str) -> Iterator[str]:
    domain, slash, identifier = name.rpartition("/")
    if len(identifier) > limits.IDENTIFIER_LENGTH or not _IDENTIFIER.fullmatch(identifier):
        yield f"{owner}: {identifier!r} is not a C identifier of at most {limits.IDENTIFIER_LENGTH} characters"
    if slash and (len(domain) > limits.DOMAIN_LENGTH or not _SUBDOMAIN.fullmatch(domain)):
        yield f"{owner}: {domain!r} is not a DNS subdomain of at most {limits.DOMAIN_LENGTH} characters"


def _value_problems(owner: str, value: AttributeValue) -> Iterator[str]:
    if isinstance(value, Version) and not _SEMVER.fullmatch(value.text):
        yield f"{owner}: {value.text!r} is not a semantic version"
    if isinstance(value, int) and not -limits.INTEGER_BOUND <= value < limits.INTEGER_BOUND:
        yield f"{owner}: {value} does not fit into 64 bits"
    text = value.text if isinstance(value, Version) else value
    if isinstance(text, str) and len(text.encode()) > limits.VALUE_BYTES:
        yield f"{owner} is longer than {limits.VALUE_BYTES} bytes"


def _consumes_problems(owner: str, device: Device) -> Iterator[str]:
    yield from _too_many(owner, "counter consumptions", len(device.consumes), limits.CONSUMPTIONS_PER_DEVICE)
    if len({consumption.counter_set for consumption in device.consumes}) < len(device.consumes):
        yield f"{owner} consumes twice from one counter set"
    for consumption in device.consumes:
        yield from _counters_problems(owner, consumption.counters, limits.COUNTERS_PER_CONSUMPTION)


def _sharing_problems(owner: str, device: Device) -> Iterator[str]:
    """Find what would give a device out wrongly, whether the API server takes it or not."""
    if device.shared and device.consumes:
        yield f"{owner} is shared and consumes counters, which schedulers do not count together"
    for name in device.capacity.keys() - device.policies.keys() if device.shared else ():
        yield f"{owner} is shared, and its first claim would take all of capacity {name}, which has no policy"
    for name, policy in device.policies.items():
        most = device.capacity.get(name, -1)
        least = policy.least or 0
        if not least <= policy.default <= most or (policy.least is not None and most % max(least, 1)):
            yield f"{owner}: the policy of capacity {name} does not go with its value"


def _taints_problems(owner: str, device: Device) -> Iterator[str]:
    yield from _too_many(owner, "taints", len(device.taints), limits.TAINTS_PER_DEVICE)
    for taint in device.taints:
        yield from _taint_problems(f"{owner}, taint {taint.key!r}", taint)


def _taint_problems(owner: str, taint: Taint) -> Iterator[str]:
    prefix, slash, name = taint.key.rpartition("/")
    if slash and (len(prefix) > limits.LABEL_PREFIX_LENGTH or not _SUBDOMAIN.fullmatch(prefix)):
        yield f"{owner}: {prefix!r} is not a DNS subdomain of at most {limits.LABEL_PREFIX_LENGTH} characters"
    for what, text in (("name", name), ("value", taint.value)):
        if (text or what == "name") and (len(text) > limits.LABEL_LENGTH or not _LABEL_VALUE.fullmatch(text)):
            yield f"{owner}: its {what} {text!r} is no label of at most {limits.LABEL_LENGTH} characters"
    if taint.time_added is not None and not _is_time(taint.time_added):
        yield f"{owner}: its time {taint.time_added!r} is not one of RFC 3339 such as 2026-01-02T03:04:05Z"
    if taint.effect not in EFFECTS:
        yield f"{owner}: effect {taint.effect!r} is none of {', '.join(sorted(EFFECTS))}"


def _is_time(text: str) -> bool:
    if not _TIME.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
