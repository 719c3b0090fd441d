"""Slices with one change that breaks a rule of the API, or keeps it by a hair."""

import random
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from doubles.randompools import random_taint

from dradriver.resource import CounterConsumption, CounterSet, Device, Slice, Taint, Version, limits

Change: TypeAlias = Callable[[random.Random, Slice], Slice]

_ODD: Final = string.ascii_letters + string.digits + "-_./ é"


def mutant(name: str, seed: int, slices: Sequence[Slice]) -> tuple[tuple[Slice, ...], int]:
    """Change one slice of a pool that has counters.

    Args:
        name: of the change, a key of `CHANGES`.
        seed: chance; the same one gives the same change.
        slices: of the pool.

    Returns:
        All slices afterwards, and the place of the one that is changed.
    """
    chance = random.Random(f"{name} {seed}")
    kind = "counter_sets" if name in OF_COUNTER_SETS else "devices"
    index = chance.choice([number for number, part in enumerate(slices) if getattr(part, kind)])
    changed = CHANGES[name](chance, slices[index])
    return (*slices[:index], changed, *slices[index + 1 :]), index


def _near(chance: random.Random, limit: int) -> int:
    return chance.choice((limit - 1, limit, limit, limit + 1, limit + 1, limit * 2))


def _odd_text(chance: random.Random, limit: int) -> str:
    """A label, mostly of nearly the allowed length or with a letter that may not be where it is."""
    length = chance.choice((0, 1, 2, _near(chance, limit)))
    text = "".join(chance.choices(string.ascii_lowercase, k=length))
    if not text or chance.random() < 0.3:
        return text
    where = chance.choice((0, length // 2, length - 1))
    return text[:where] + chance.choice(_ODD) + text[where + 1 :]


def _odd_subdomain(chance: random.Random) -> str:
    labels = [_odd_text(chance, limits.NAME_LENGTH) for _ in range(chance.randint(1, 5))]
    return ".".join(labels)


# --- devices --------------------------------------------------------------------------------------


def _of_one(change: Callable[[random.Random, Device], Device]) -> Change:
    """Change any one device of a slice."""

    def changed(chance: random.Random, part: Slice) -> Slice:
        index = chance.randrange(len(part.devices))
        devices = (*part.devices[:index], change(chance, part.devices[index]), *part.devices[index + 1 :])
        return replace(part, devices=devices)

    return changed


def _name(chance: random.Random, device: Device) -> Device:
    return replace(device, name=_odd_text(chance, limits.NAME_LENGTH))


def _attribute_name(chance: random.Random, device: Device) -> Device:
    return _with_attribute(device, _odd_identifier(chance), "x")


def _attribute_domain(chance: random.Random, device: Device) -> Device:
    domain = _odd_text(chance, limits.DOMAIN_LENGTH) if chance.random() < 0.5 else _odd_subdomain(chance)
    return _with_attribute(device, f"{domain}/name", "x")


def _odd_identifier(chance: random.Random) -> str:
    return chance.choice((_odd_text(chance, limits.IDENTIFIER_LENGTH).replace("/", "_"), "1a", "_", "A_1", "a/", "/a"))


def _with_attribute(device: Device, name: str, value: Any) -> Device:
    """Put an attribute in the place of another, so that their number is no matter."""
    kept = dict(list(device.attributes.items())[1:])
    return replace(device, attributes={**kept, name: value})


def _string(chance: random.Random, device: Device) -> Device:
    letter = chance.choice(("x", "é", "日", " ", "\n"))
    return _with_attribute(device, "text", letter * (_near(chance, limits.VALUE_BYTES) // len(letter.encode())))


def _version(chance: random.Random, device: Device) -> Device:
    parts = [chance.choice(("0", "1", "7", "105", "99999999999999999999", "01", "")) for _ in range(3)]
    tail = chance.choice(("", "", "-rc.1", "-01", "-a.b-c", "-", "+1", "+a.01", "-1+2", "-é", "." + "1" * 70))
    text = ".".join(parts[: chance.choice((2, 3, 3, 3))]) + tail
    return _with_attribute(device, "version", Version(chance.choice((text, f"v{text}", f"{text} ", text))))


def _integer(chance: random.Random, device: Device) -> Device:
    return _with_attribute(device, "number", chance.choice((0, -1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1)))


def _entries(chance: random.Random, device: Device) -> Device:
    count = _near(chance, limits.ATTRIBUTES_AND_CAPACITIES_PER_DEVICE)
    attributes = chance.randint(0, count)
    return replace(
        device,
        attributes={f"a{number}": True for number in range(attributes)},
        capacity={f"c{number}": number for number in range(count - attributes)},
    )


def _capacity_name(chance: random.Random, device: Device) -> Device:
    return replace(device, capacity={_odd_identifier(chance): 1})


def _capacity_value(chance: random.Random, device: Device) -> Device:
    return replace(device, capacity={"memory": chance.choice((0, -1, 2**63 - 1, 2**63, 10**30, -(2**70)))})


# --- consumption ----------------------------------------------------------------------------------


def _consumptions(chance: random.Random, device: Device) -> Device:
    count = chance.randint(1, limits.CONSUMPTIONS_PER_DEVICE + 1)
    sets = [chance.choice((f"set-{number}", "set-0")) for number in range(count)]
    return replace(device, consumes=tuple(CounterConsumption(counter_set=name, counters={"c": 1}) for name in sets))


def _consumed_counters(chance: random.Random, device: Device) -> Device:
    return _consuming(device, _counters(chance, limits.COUNTERS_PER_CONSUMPTION))


def _consumed_counter_name(chance: random.Random, device: Device) -> Device:
    return _consuming(device, {_odd_text(chance, limits.NAME_LENGTH): 1})


def _consumed_amount(chance: random.Random, device: Device) -> Device:
    return _consuming(device, {"c": chance.choice((0, -1, 2**64))})


def _consumed_set_name(chance: random.Random, device: Device) -> Device:
    name = _odd_text(chance, limits.NAME_LENGTH)
    return replace(device, consumes=(CounterConsumption(counter_set=name, counters={"c": 1}),))


def _consuming(device: Device, counters: Mapping[str, int]) -> Device:
    return replace(device, consumes=(CounterConsumption(counter_set="set-0", counters=counters),))


def _counters(chance: random.Random, limit: int) -> dict[str, int]:
    return {f"c-{number}": number for number in range(chance.choice((0, _near(chance, limit))))}


# --- taints ---------------------------------------------------------------------------------------


def _taint(change: Callable[[random.Random, Taint], Taint]) -> Change:
    def changed(chance: random.Random, device: Device) -> Device:
        return replace(device, taints=(change(chance, random_taint(chance)),))

    return _of_one(changed)


def _taint_prefix(chance: random.Random, taint: Taint) -> Taint:
    name = taint.key.rpartition("/")[2]
    long = "a." * (_near(chance, limits.LABEL_PREFIX_LENGTH) // 2) + "a"
    return replace(taint, key=f"{chance.choice((long, _odd_subdomain(chance)))}/{name}")


def _taint_name(chance: random.Random, taint: Taint) -> Taint:
    return replace(taint, key=chance.choice(("", "a.example/")) + _odd_text(chance, limits.LABEL_LENGTH))


def _taint_value(chance: random.Random, taint: Taint) -> Taint:
    return replace(taint, value=_odd_text(chance, limits.LABEL_LENGTH))


def _taint_effect(chance: random.Random, taint: Taint) -> Taint:
    return replace(taint, effect=chance.choice(("", "None", "none", "NoSchedule", "NoExecute", "PreferNoSchedule")))


def _taint_time(chance: random.Random, taint: Taint) -> Taint:
    times = ("", "now", "2026-01-02", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05+02:00", "2026-13-02T03:04:05Z")
    return replace(taint, time_added=chance.choice(times))


def _taints(chance: random.Random, device: Device) -> Device:
    made = (replace(random_taint(chance), key=f"k-{n}") for n in range(_near(chance, limits.TAINTS_PER_DEVICE)))
    return replace(device, taints=tuple(made))


def _doubled_taint(chance: random.Random, device: Device) -> Device:
    first, second = random_taint(chance), random_taint(chance)
    same = replace(first, value=second.value, effect=chance.choice((first.effect, second.effect)))
    return replace(device, taints=(first, same))


# --- slices ---------------------------------------------------------------------------------------


def _number_of_devices(chance: random.Random, part: Slice) -> Slice:
    limit = chance.choice((limits.DEVICES_PER_SLICE, limits.DEVICES_PER_SLICE_RESTRICTED))
    devices = [Device(name=f"other-{number}") for number in range(_near(chance, limit))]
    special = chance.choice((None, _taints, _consumptions, _one_taint))
    if special is not None:
        devices[-1] = special(random.Random(0), devices[-1])
    return replace(part, devices=tuple(devices))


def _one_taint(chance: random.Random, device: Device) -> Device:
    return replace(device, taints=(random_taint(chance),))


def _device_twice(chance: random.Random, part: Slice) -> Slice:
    return replace(part, devices=(*part.devices, chance.choice(part.devices)))


def _both(chance: random.Random, part: Slice) -> Slice:
    return replace(part, counter_sets=(CounterSet(name="more", counters={"c": 1}),))


def _number_of_sets(chance: random.Random, part: Slice) -> Slice:
    count = _near(chance, limits.COUNTER_SETS_PER_SLICE)
    return replace(part, counter_sets=tuple(CounterSet(name=f"s-{n}", counters={"c": 1}) for n in range(count)))


def _set_twice(chance: random.Random, part: Slice) -> Slice:
    return replace(part, counter_sets=(part.counter_sets[0], part.counter_sets[0]))


def _set_name(chance: random.Random, part: Slice) -> Slice:
    name = _odd_text(chance, limits.NAME_LENGTH)
    return replace(part, counter_sets=(replace(part.counter_sets[0], name=name),))


def _set_counters(chance: random.Random, part: Slice) -> Slice:
    return _one_set(part, _counters(chance, limits.COUNTERS_PER_SET))


def _set_counter_name(chance: random.Random, part: Slice) -> Slice:
    return _one_set(part, {_odd_text(chance, limits.NAME_LENGTH): 1})


def _set_amount(chance: random.Random, part: Slice) -> Slice:
    return _one_set(part, {"c": chance.choice((0, -1, 2**64, -(2**64)))})


def _one_set(part: Slice, counters: Mapping[str, int]) -> Slice:
    return replace(part, counter_sets=(CounterSet(name="set-0", counters=counters),))


OF_COUNTER_SETS: Final[Mapping[str, Change]] = {
    "number of counter sets": _number_of_sets,
    "the same counter set twice": _set_twice,
    "name of a counter set": _set_name,
    "counters of a set": _set_counters,
    "name of a counter": _set_counter_name,
    "amount of a counter": _set_amount,
}
CHANGES: Final[Mapping[str, Change]] = {
    **OF_COUNTER_SETS,
    "name of a device": _of_one(_name),
    "name of an attribute": _of_one(_attribute_name),
    "domain of an attribute": _of_one(_attribute_domain),
    "text": _of_one(_string),
    "version": _of_one(_version),
    "number": _of_one(_integer),
    "attributes and capacities": _of_one(_entries),
    "name of a capacity": _of_one(_capacity_name),
    "amount of a capacity": _of_one(_capacity_value),
    "consumptions": _of_one(_consumptions),
    "consumed counters": _of_one(_consumed_counters),
    "name of a consumed counter": _of_one(_consumed_counter_name),
    "amount of a consumed counter": _of_one(_consumed_amount),
    "name of a consumed set": _of_one(_consumed_set_name),
    "prefix of a taint's key": _taint(_taint_prefix),
    "name of a taint's key": _taint(_taint_name),
    "value of a taint": _taint(_taint_value),
    "effect of a taint": _taint(_taint_effect),
    "time of a taint": _taint(_taint_time),
    "taints": _of_one(_taints),
    "the same taint twice": _of_one(_doubled_taint),
    "number of devices": _number_of_devices,
    "the same device twice": _device_twice,
    "devices and counter sets": _both,
}
