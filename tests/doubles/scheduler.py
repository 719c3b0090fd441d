"""What a scheduler makes of the slices of one pool, by the rules of Kubernetes 1.34 to 1.37."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dradriver.resource.wire import parse_quantity

Object = Mapping[str, Any]
Counters = frozenset[tuple[str, Any]]


@dataclass(frozen=True, kw_only=True)
class View:
    """A complete pool.

    Attributes:
        devices: what each device consumes, by its name.
        sets: what there is of each counter set, by its name.
        problems: why the scheduler would not use the pool.
    """

    devices: Mapping[str, frozenset[tuple[str, Counters]]]
    sets: Mapping[str, Counters]
    problems: tuple[str, ...]

    def lacks(self, allocated: Mapping[str, frozenset[tuple[str, Counters]]]) -> set[str]:
        """Names of those devices that are not there, or do not consume what they did."""
        return {name for name, consumed in allocated.items() if self.devices.get(name) != consumed}


def view(items: Iterable[Object], pool: str) -> View | None:
    """The newest generation of a pool; None if it is incomplete.

    Complete is it if any of its slices says so: a scheduler asks one of them, and which one is chance.
    """
    specs = [item["spec"] for item in items if item["spec"]["pool"]["name"] == pool]
    newest = max((spec["pool"]["generation"] for spec in specs), default=0)
    current = [spec for spec in specs if spec["pool"]["generation"] == newest]
    if not any(spec["pool"]["resourceSliceCount"] == len(current) for spec in current):
        return None
    devices = [device for spec in current for device in spec.get("devices") or ()]
    sets = [counter_set for spec in current for counter_set in spec.get("sharedCounters") or ()]
    return View(
        devices={device["name"]: _consumption(device) for device in devices},
        sets={counter_set["name"]: _counters(counter_set) for counter_set in sets},
        problems=(*_doubled(devices), *_doubled(sets), *_dangling(devices, sets)),
    )


def moments(
    events: Iterable[tuple[str, Object]], start: Mapping[str, Object] | None = None
) -> Iterator[dict[str, Object]]:
    """The slices, by name, before and after each event of a watch (its type and its object)."""
    state = dict(start or {})
    yield dict(state)
    for kind, item in events:
        state.pop(item["metadata"]["name"], None)
        if kind != "DELETED":
            state[item["metadata"]["name"]] = item
        yield dict(state)


def _consumption(device: Object) -> frozenset[tuple[str, Counters]]:
    return frozenset((entry["counterSet"], _counters(entry)) for entry in device.get("consumesCounters") or ())


def _counters(entry: Object) -> Counters:
    return frozenset((name, parse_quantity(value["value"])) for name, value in entry["counters"].items())


def _doubled(named: list[Object]) -> list[str]:
    return [f"{name} is there {n} times" for name, n in Counter(one["name"] for one in named).items() if n > 1]


def _dangling(devices: list[Object], sets: list[Object]) -> list[str]:
    known = {(one["name"], counter) for one in sets for counter in one["counters"]}
    used = {
        (device["name"], entry["counterSet"], counter)
        for device in devices
        for entry in device.get("consumesCounters") or ()
        for counter in entry["counters"]
    }
    return [f"{name} consumes {counter} of {owner}" for name, owner, counter in used if (owner, counter) not in known]
