"""From what a node publishes to the labels that GPU feature discovery would have written.

Rules: reference of its labels (docs.nvidia.com, GPU feature discovery) and what it is seen to write. Where it goes by
the order in which it meets GPUs, here it is by number and name, so that every look gives the same.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controller.api import resource_name_of_profile
from controller.labelling.names import GPU, MIG_CAPABLE, MPS_CAPABLE, PREFIX, PRESENT, STRATEGY, is_known
from controller.labelling.projections import Facts
from controller.watching.model import SeenDevice, SeenSlice
from dradriver.api import Capacity, DeviceType

_MIB: Final = 1 << 20
_NONE: Final = "none"
_SINGLE: Final = "single"
_MIXED: Final = "mixed"
_MPS: Final = "mps"
_UNDEFINED: Final = "undefined"
_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LONGEST_NAME: Final = 63

_ENGINES: Final = {
    "multiprocessors": Capacity.MULTIPROCESSORS,
    "engines.copy": Capacity.COPY_ENGINES,
    "engines.decoder": Capacity.DECODERS,
    "engines.encoder": Capacity.ENCODERS,
    "engines.jpeg": Capacity.JPEG_ENGINES,
    "engines.ofa": Capacity.OFA_ENGINES,
}
"""End of a label's name to the capacity that it tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One slice with the facts of its devices, in the same order."""

    slice: SeenSlice
    facts: tuple[Facts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """One device with its facts; `counters` are of its pool."""

    seen: SeenDevice
    facts: Facts

    @property
    def gpu(self) -> str:
        """Name of the GPU: a partition's name begins with it (`gpu-0-mig-1g10gb-19-3`)."""
        return self.seen.name.partition("-mig-")[0]

    @property
    def is_part(self) -> bool:
        return self.seen.kind.type == DeviceType.MIG


def features(
    publications: Iterable[Publication], *, bridged: Iterable[str] = (), strategy: str = ""
) -> dict[str, str] | None:
    """Compute the labels of a node.

    Args:
        publications: all slices of the node.
        bridged: extended resource names that bridges serve.
        strategy: `single`, `mixed` or `none` where an administrator has labelled the node with it.

    Returns:
        names and values; none where there are no devices. None while the slices of a pool are not all there.
    """
    current = _current(publications)
    if current is None:
        return None
    devices = [_Device(seen=seen, facts=facts) for each in current for seen, facts in _pairs(each)]
    if not devices:
        return {}
    counters = {
        (name, counter): value for each in current for name, values in each.slice.counters for counter, value in values
    }
    return _valid(_labels(devices, counters, bridged=frozenset(bridged), strategy=strategy))


def _pairs(publication: Publication) -> Iterator[tuple[SeenDevice, Facts]]:
    return zip(publication.slice.devices, publication.facts, strict=True)


def _current(publications: Iterable[Publication]) -> list[Publication] | None:
    """Slices of the newest generation of each pool, or None if one is not complete."""
    pools: dict[str, list[Publication]] = defaultdict(list)
    for each in publications:
        pools[each.slice.pool].append(each)
    found: list[Publication] = []
    for pool in pools.values():
        newest = max(each.slice.generation for each in pool)
        current = [each for each in pool if each.slice.generation == newest]
        if len(current) < current[0].slice.total:
            return None
        found += current
    return found


def _labels(
    devices: Sequence[_Device], counters: Mapping[tuple[str, str], int], *, bridged: frozenset[str], strategy: str
) -> dict[str, str]:
    main = _main_product(devices)
    whole = [device for device in main if not device.is_part]
    parts = [device for device in devices if device.is_part]
    sample = (whole or main)[0]
    labels = {PRESENT: "true", MPS_CAPABLE: _yes(any(each.seen.kind.sharing == _MPS for each in devices))}
    labels |= _of_gpus(sample, len({device.gpu for device in main}), is_whole=bool(whole))
    labels |= _of_architecture(sample.facts) | _of_driver(sample.facts.driver) | _of_cuda(sample.facts.cuda)
    if not parts:
        return labels
    labels[MIG_CAPABLE] = "true"
    if strategy == _NONE:
        return labels
    profiles = {device.seen.kind.profile for device in parts}
    if len(parts) == len(devices) and len(profiles) == 1 and _is_single(profiles, bridged, strategy):
        return labels | {STRATEGY: _SINGLE} | _of_parts(GPU, parts, counters)
    labels[STRATEGY] = _MIXED
    for profile in sorted(profiles):
        mine = [device for device in parts if device.seen.kind.profile == profile]
        labels |= _of_parts(resource_name_of_profile(profile), mine, counters)
    return labels


def _is_single(profiles: Iterable[str], bridged: frozenset[str], strategy: str) -> bool:
    """Tell under which name pods ask for partitions that are all alike: nvidia.com/gpu, or that of their profile."""
    if strategy:
        return strategy == _SINGLE
    return all(resource_name_of_profile(profile) not in bridged for profile in profiles)


def _main_product(devices: Iterable[_Device]) -> list[_Device]:
    """Devices of the product of which the node has most; by name of those of which there are equally many."""
    products: dict[str, list[_Device]] = defaultdict(list)
    for device in devices:
        products[device.seen.kind.product_name].append(device)
    name = min(products, key=lambda each: (-len({device.gpu for device in products[each]}), each))
    return sorted(products[name], key=lambda device: device.seen.name)


# --- one resource ---------------------------------------------------------------------------------


def _of_gpus(sample: _Device, count: int, *, is_whole: bool) -> dict[str, str]:
    """Labels of GPUs. Of GPUs that are there in parts only neither memory is known nor are they shared as a whole."""
    if not is_whole:
        product = _product(sample, "", shares=1)
        return _named(GPU, product | {"count": str(count), "replicas": "0", "sharing-strategy": _NONE})
    return _named(GPU, _of_resource(sample, count))


def _of_parts(resource: str, parts: Sequence[_Device], counters: Mapping[tuple[str, str], int]) -> dict[str, str]:
    """Labels of the partitions of one profile, which are asked for by a name."""
    sample = min(parts, key=lambda device: device.seen.name)
    capacities = dict(sample.facts.capacities)
    engines = {label: str(capacities[name]) for label, name in _ENGINES.items() if name in capacities}
    slices = sample.seen.kind.profile.partition("g.")[0]
    return _named(
        resource,
        _of_resource(sample, _together(parts, counters)) | engines | {"slices.gi": slices, "slices.ci": slices},
    )


def _of_resource(sample: _Device, count: int) -> dict[str, str]:
    shares, kind = sample.facts.shares, sample.seen.kind
    labels = _product(sample, kind.profile, shares=shares) | {
        "count": str(count),
        "replicas": str(shares),
        "sharing-strategy": (kind.sharing or _NONE) if shares > 1 else _NONE,
    }
    return labels | ({"memory": str(kind.memory // _MIB)} if kind.memory else {})


def _product(sample: _Device, profile: str, *, shares: int) -> dict[str, str]:
    name = _word(sample.seen.kind.product_name)
    if not name:
        return {}
    cut = f"-MIG-{_word(profile)}" if profile else ""
    shared = "-SHARED" if shares > 1 and not sample.facts.is_renamed else ""
    return {"product": f"{name}{cut}{shared}"}


def _word(text: str) -> str:
    """Spell a name as a label's value: what it may not have goes, spaces become hyphens."""
    return "-".join(re.sub(r"[^-A-Za-z0-9_. ]", "", text).split())


def _together(parts: Iterable[_Device], counters: Mapping[tuple[str, str], int]) -> int:
    """How many of them can be there at the same time: dynamic partitions share places."""
    left, count = dict(counters), 0
    # From the first place to the last, in whatever order they were published.
    for device in sorted(parts, key=lambda device: (len(device.seen.name), device.seen.name)):
        taken = [((name, counter), value) for name, values in device.seen.consumes for counter, value in values]
        if all(value <= left.get(place, 0) for place, value in taken):
            count += 1
            for place, value in taken:
                left[place] -= value
    return count


# --- what all of them have in common --------------------------------------------------------------


def _of_architecture(facts: Facts) -> dict[str, str]:
    labels = {}
    if facts.architecture:
        family = _word(facts.architecture).lower()
        labels["family"] = _UNDEFINED if family == "unknown" else family
    major, minor, _ = _numbers(facts.compute)
    return _named(GPU, labels | ({"compute.major": major, "compute.minor": minor} if major else {}))


def _of_driver(version: str) -> dict[str, str]:
    """Labels of the driver's version, in both spellings.

    Slices have it without leading zeros; NVIDIA's third number has two digits at least. One that is 0 may be missing in
    truth, so nothing is said of it.
    """
    major, minor, revision = _numbers(version)
    if not major:
        return {}
    labels = {
        "driver-version.major": major,
        "driver-version.minor": minor,
        "driver.major": major,
        "driver.minor": minor,
    }
    if revision != "0":
        two = revision.zfill(2)
        labels |= {
            "driver-version.revision": two,
            "driver-version.full": f"{major}.{minor}.{two}",
            "driver.rev": two,
        }
    return _named(f"{PREFIX}cuda", labels)


def _of_cuda(version: str) -> dict[str, str]:
    major, minor, _ = _numbers(version)
    if not major:
        return {}
    labels = {
        "runtime-version.major": major,
        "runtime-version.minor": minor,
        "runtime-version.full": f"{major}.{minor}",
    }
    return _named(f"{PREFIX}cuda", labels | {"runtime.major": major, "runtime.minor": minor})


def _numbers(version: str) -> tuple[str, str, str]:
    """Take a version apart; empty texts where it is none."""
    found = version.split(".")
    return (found[0], found[1], found[2]) if len(found) == len(("major", "minor", "patch")) else ("", "", "")


def _named(prefix: str, labels: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}.{name}": value for name, value in labels.items()}


def _yes(is_true: bool) -> str:  # noqa: FBT001 (a value to be spelled)
    return "true" if is_true else "false"


def _valid(labels: Mapping[str, str]) -> dict[str, str]:
    """Leave out what the API server would refuse, and all others with it; and names that we would not know again."""
    return {
        name: value
        for name, value in labels.items()
        if _VALUE.fullmatch(value) and len(name.removeprefix(PREFIX)) <= _LONGEST_NAME and is_known(name)
    }
