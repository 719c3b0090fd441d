"""From what is offered and what the API server has to the writes that make them equal. Pure.

Rules of pools (Kubernetes 1.34 to 1.37): the slices with the highest generation count, if there are as many as each of
them says (`resourceSliceCount`); otherwise the pool is incomplete, and nothing is allocated from it.

So the generation may stay when no mixture of old and new slices can look complete and be wrong on the way:

- slices are missing (deleted by someone, or not yet written by an interrupted attempt): the pool is incomplete until
  the last of them is there, and those present are already right;
- slices differ in what touches no other slice: attributes, capacities, taints, the order of their devices. Any mixture
  is then a pool with the same devices that consume the same from the same counter sets;
- and one slice at most differs in more than that.

In all other cases it grows, and every slice is written. What is obsolete is deleted last: until then it belongs to a
complete older generation, afterwards to one that nobody looks at.

The generation never goes back while any slice of the pool exists or this process remembers one. If all were deleted
while no process ran, it begins at 1 again: nobody is left who could take an old slice for a newer one, because who
watches sees the deletions before what is created afterwards.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dradriver.kube import RESOURCE_SLICES, Object
from dradriver.publish.names import slice_name
from dradriver.resource import Slice, slice_spec
from dradriver.resource.wire import carry_times, same_content

Spec: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose slices: those of one driver for one node, in one pool."""

    driver: str
    node_name: str
    pool_name: str

    def owns(self, item: Object) -> bool:
        """Whether driver and node are ours; a slice in another pool of ours is a leftover."""
        spec = item.get("spec") or {}
        return spec.get("driver") == self.driver and spec.get("nodeName") == self.node_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """What is to be published: specs by name, in order, without generation and count."""

    specs: Mapping[str, Spec]

    @classmethod
    def of(cls, slices: Iterable[Slice], identity: Identity, *, before: "Desired | None" = None) -> "Desired":
        """Name the slices and write their specs; those that were the same before are the very same objects."""
        driver, node_name = identity.driver, identity.node_name
        pool = {"name": identity.pool_name}
        old = {} if before is None else before.specs
        specs: dict[str, Spec] = {}
        for index, content in enumerate(slices):
            name = slice_name(index, driver=driver, node_name=node_name)
            spec = slice_spec(content, driver=driver, node_name=node_name, pool=pool)
            specs[name] = old[name] if old.get(name) == spec else spec
        return cls(specs=specs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What the API server made of a spec that we sent; sending it again would change nothing."""

    sent: Spec
    stored: Spec


class Equals:
    """Remembers what was found equal: a comparison takes milliseconds, and nearly all slices are always equal."""

    def __init__(self) -> None:
        self._pairs: dict[str, tuple[Spec, Spec]] = {}

    def __call__(self, name: str, observed: Spec, desired: Spec) -> bool:
        """Compare the content of two specs of the slice of that name."""
        pair = self._pairs.get(name)
        if pair is not None and pair[0] is observed and pair[1] is desired:
            return True
        equal = same_content(observed, desired)
        if equal:
            self._pairs[name] = (observed, desired)
        return equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the publisher knows when it plans.

    Attributes:
        observed: slices of our driver and node by name, newest known state.
        owner: entry for `ownerReferences`.
        generation: highest pool generation ever seen.
        remembered: specs that were published last; they know when taints began after the slices were deleted.
        accepted: by name, see Accepted.
        disowned: names of slices of which the API server does not keep our owner reference.
        equals: compares specs.
    """

    observed: Mapping[str, Object]
    owner: Object
    generation: int = 0
    remembered: tuple[Spec, ...] = ()
    accepted: Mapping[str, Accepted] | None = None
    disowned: Container[str] = frozenset()
    equals: Equals = field(default_factory=Equals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Writes, to be done in this order.

    Attributes:
        generation: of the pool afterwards.
        clears: slices in our way: our name, but a pool that is not ours. A pool's name cannot be changed.
        updates: complete objects with the resourceVersion they replace.
        creates: complete objects.
        deletes: slices that are no longer wanted.
    """

    generation: int
    clears: tuple[Object, ...] = ()
    updates: tuple[Object, ...] = ()
    creates: tuple[Object, ...] = ()
    deletes: tuple[Object, ...] = ()

    @property
    def writes(self) -> int:
        """How many."""
        return sum(map(len, (self.clears, self.updates, self.creates, self.deletes)))

    @property
    def is_empty(self) -> bool:
        """Nothing differs."""
        return self.writes == 0


def make_plan(desired: Desired, identity: Identity, known: Known) -> Plan:
    """Compare and decide; see the module."""
    pool = {name: item for name, item in known.observed.items() if item["spec"]["pool"]["name"] == identity.pool_name}
    highest = max([known.generation, *(_generation(item) for item in pool.values())])
    specs = desired.specs
    found = _compare(specs, pool, known, generation=highest)
    left_over = any(name not in specs and _generation(item) == highest for name, item in pool.items())
    grows = bool(left_over and specs) or found.mixes_badly
    generation = max(highest + 1 if grows else highest, 1)
    written = specs if grows else [*found.different, *found.absent, *_unowned(specs, pool, known, found)]
    numbers = {"name": identity.pool_name, "generation": generation, "resourceSliceCount": len(specs)}
    timed = _timed({name: specs[name] for name in written}, known)
    bodies = {name: _body(name, {**spec, "pool": numbers}, pool.get(name), known.owner) for name, spec in timed.items()}
    unwanted = [(name, item) for name, item in sorted(known.observed.items()) if name not in specs or name not in pool]
    return Plan(
        generation=generation,
        clears=tuple(item for name, item in unwanted if name in specs),
        updates=tuple(body for name, body in bodies.items() if name in pool),
        creates=tuple(body for name, body in bodies.items() if name not in pool),
        deletes=tuple(item for name, item in unwanted if name not in specs and not _is_going(item)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Names of slices that are not as they are wanted in one generation.

    Attributes:
        absent: not there, or of an older generation.
        different: there; first those that get taints, last those that lose some.
        regrouped: of the different ones those with other devices, consumption, counter sets or count.
    """

    absent: tuple[str, ...]
    different: tuple[str, ...]
    regrouped: frozenset[str]

    @property
    def mixes_badly(self) -> bool:
        """Whether a part of the writes could look like a complete pool that is wrong."""
        return len(self.regrouped) + bool(self.absent) > 1


def _compare(specs: Mapping[str, Spec], pool: Mapping[str, Object], known: Known, *, generation: int) -> _Found:
    present = {name for name in specs if name in pool and _generation(pool[name]) == generation}
    miscounted = {name for name in present if pool[name]["spec"]["pool"].get("resourceSliceCount") != len(specs)}
    changed = {name for name in present if not _equal(name, pool[name], specs[name], known)}
    regrouped = {name for name in changed if not same_content(_frame(pool[name]["spec"]), _frame(specs[name]))}
    return _Found(
        absent=tuple(name for name in specs if name not in present),
        different=tuple(
            sorted(miscounted | changed, key=lambda name: (_relief(pool[name]["spec"], specs[name]), name))
        ),
        regrouped=frozenset(miscounted | regrouped),
    )


def _frame(spec: Spec) -> Spec:
    """What other slices of the pool depend on: which devices there are, what they consume, and of what."""
    devices = [
        {"name": device["name"], "consumesCounters": _by("counterSet", device.get("consumesCounters"))}
        for device in _by("name", spec.get("devices"))
    ]
    return {"devices": devices, "sharedCounters": _by("name", spec.get("sharedCounters"))}


def _by(field: str, entries: list[Object] | None) -> list[Object]:
    return sorted(entries or (), key=lambda entry: str(entry[field]))


def _relief(before: Spec, after: Spec) -> int:
    """0 where taints are added, 2 where some only vanish: what is bad must be known before what is good again."""
    old, new = _taints(before), _taints(after)
    return 0 if new - old else 2 if old - new else 1


def _taints(spec: Spec) -> set[tuple[str, ...]]:
    return {
        (device["name"], taint["key"], taint.get("value", ""), taint["effect"])
        for device in _tainted(spec)
        for taint in device["taints"]
    }


def _equal(name: str, item: Object, spec: Spec, known: Known) -> bool:
    if known.equals(name, item["spec"], spec):
        return True
    accepted = (known.accepted or {}).get(name)
    return accepted is not None and same_content(accepted.sent, spec) and same_content(item["spec"], accepted.stored)


def _timed(specs: Mapping[str, Spec], known: Known) -> dict[str, Spec]:
    """Specs whose taints keep the time since which they are there."""
    if not specs:
        return {}
    witnesses = [*(item["spec"] for item in known.observed.values()), *known.remembered]
    tainted = [spec for spec in ({"devices": [*_tainted(witness)]} for witness in witnesses) if spec["devices"]]
    return {name: carry_times(spec, tainted) for name, spec in specs.items()}


def _tainted(spec: Spec) -> Iterable[Spec]:
    return (device for device in spec.get("devices") or () if device.get("taints"))


def _unowned(specs: Mapping[str, Spec], pool: Mapping[str, Object], known: Known, found: _Found) -> list[str]:
    """Slices, right otherwise, that the garbage collector would not, or would too early, remove with the Node."""
    wrong = {*found.absent, *found.different}
    right = [name for name in specs if name in pool and name not in wrong and name not in known.disowned]
    return [name for name in right if not is_owned(pool[name], known.owner)]


def is_owned(item: Object, owner: Object) -> bool:
    """Tell whether a slice vanishes with the Node; others may have added owners, and the API server marks to ours."""
    return any(entry.get("uid") == owner["uid"] for entry in item["metadata"].get("ownerReferences") or ())


def _body(name: str, spec: Spec, present: Object | None, owner: Object) -> Object:
    """The object to send. What others put into metadata (labels, annotations) stays."""
    kept = {} if present is None else {k: v for k, v in present["metadata"].items() if k != "managedFields"}
    return {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": {**kept, "name": name, "ownerReferences": [owner]},
        "spec": dict(spec),
    }


def _is_going(item: Object) -> bool:
    """Deleted already, and there only as long as somebody's finalizer is."""
    return "deletionTimestamp" in item["metadata"]


def _generation(item: Object) -> int:
    return int(item["spec"]["pool"].get("generation") or 0)
