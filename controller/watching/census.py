"""Numbers of devices and nodes, kept up to date change by change.

A pool is counted anew when one of its slices or a claim on its devices changes; sums over pools are kept by kind of
device, so that a bridge's numbers take a look at the few kinds that exist and not at all devices.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import TypeAlias, TypeVar

from controller.api import DeviceTally, NodeTally
from controller.watching.model import UNLIMITED, DeviceKind, SeenClaim, SeenDevice, SeenNode, SeenSlice

Matches: TypeAlias = Callable[[DeviceKind], bool]

Key = TypeVar("Key")
Value = TypeVar("Value")

_Numbers: TypeAlias = dict[DeviceKind, DeviceTally]
_Left: TypeAlias = dict[tuple[str, str], int]


class _Standing(Enum):
    """Whether the scheduler can give anything of one kind in one pool to pods, now or when others have ended."""

    SERVES = auto()
    TAINTED = auto()
    INCOMPLETE = auto()


class Census:
    """Counts what it is told of. Not for several threads."""

    def __init__(self) -> None:
        self._slices: dict[str, SeenSlice] = {}
        self._claims: dict[str, SeenClaim] = {}
        self._nodes: dict[str, SeenNode] = {}
        self._of_pool: dict[str, set[str]] = defaultdict(set)
        self._holders: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._held: dict[str, set[str]] = defaultdict(set)
        self._shares: dict[str, Counter[str]] = defaultdict(Counter)
        self._users: dict[str, set[str]] = defaultdict(set)
        self._with_resource: dict[str, dict[str, int]] = defaultdict(dict)
        self._counted: dict[str, _Numbers] = {}
        self._sums: _Numbers = {}
        self._pool_node: dict[str, str] = {}
        self._incomplete: set[str] = set()
        self._nodes_with: dict[tuple[DeviceKind, _Standing], Counter[str]] = defaultdict(Counter)
        self._dirty: set[str] = set()

    # --- being told ------------------------------------------------------------------------------

    def put_slice(self, key: str, seen: SeenSlice | None) -> bool:
        """Take a slice as it is now, None for gone; whether anything changed."""
        former = self._slices.get(key)
        if former == seen:
            return False
        if former is not None:
            _discard(self._of_pool, former.pool, key)
            self._dirty.add(former.pool)
        _set(self._slices, key, seen)
        if seen is not None:
            self._of_pool[seen.pool].add(key)
            self._dirty.add(seen.pool)
        return True

    def put_claim(self, key: str, seen: SeenClaim | None) -> bool:
        """Take a claim as it is now, None for gone; whether anything changed."""
        former = self._claims.get(key)
        if former == seen:
            return False
        if former is not None:
            self._forget_claim(key, former)
        _set(self._claims, key, seen)
        if seen is not None:
            self._note_claim(key, seen)
        return True

    def put_node(self, key: str, seen: SeenNode | None) -> bool:
        """Take a node as it is now, None for gone; whether anything changed."""
        former = self._nodes.get(key)
        if former == seen:
            return False
        for name, _ in former.allocatable if former else ():
            self._with_resource[name].pop(key, None)
        _set(self._nodes, key, seen)
        for name, value in seen.allocatable if seen else ():
            self._with_resource[name][key] = value
        return True

    def _note_claim(self, key: str, claim: SeenClaim) -> None:
        for name in claim.classes:
            self._users[name].add(key)
        for pool, device in claim.devices:
            self._holders[pool, device].add(key)
            self._held[pool].add(device)
            self._dirty.add(pool)
        for pool, device, shares in claim.shares:
            self._shares[pool][device] += shares
            self._dirty.add(pool)

    def _forget_claim(self, key: str, claim: SeenClaim) -> None:
        for name in claim.classes:
            _discard(self._users, name, key)
        for pool, device in claim.devices:
            _discard(self._holders, (pool, device), key)
            # A device that is shared has other holders still.
            if (pool, device) not in self._holders:
                _discard(self._held, pool, device)
            self._dirty.add(pool)
        for pool, device, shares in claim.shares:
            self._shares[pool][device] -= shares
            # The sign keeps what is above nothing only.
            _set(self._shares, pool, +self._shares[pool] or None)
            self._dirty.add(pool)

    # --- being asked -----------------------------------------------------------------------------

    def users(self, class_name: str) -> tuple[str, ...]:
        """Claims that name a class, sorted."""
        return tuple(sorted(self._claims[key].name for key in self._users.get(class_name, ())))

    def used_classes(self) -> frozenset[str]:
        """Classes that claims name."""
        return frozenset(self._users)

    def kinds(self) -> tuple[DeviceKind, ...]:
        """Every kind of device that is published."""
        self._recount()
        return tuple(self._sums)

    def devices(self, matches: Matches) -> DeviceTally:
        """Numbers of the devices of matching kinds."""
        self._recount()
        return _sum(tally for kind, tally in self._sums.items() if matches(kind))

    def nodes(self, resource_name: str, matches: Matches) -> NodeTally:
        """Numbers of nodes by what serves the name there: a device plugin goes before matching devices."""
        self._recount()
        known = self._with_resource.get(resource_name, {})
        plugin = {node for node, value in known.items() if value > 0}
        dra = self._standing(matches, _Standing.SERVES) - plugin
        incomplete = self._standing(matches, _Standing.INCOMPLETE) - plugin - dra
        tainted = self._standing(matches, _Standing.TAINTED) - plugin - dra - incomplete
        ours = {node for node in self._pool_node.values() if node} | known.keys()
        return NodeTally(
            device_plugin=len(plugin),
            dra=len(dra),
            neither=len(ours - plugin - dra),
            tainted=len(tainted),
            incomplete=len(incomplete),
        )

    def _standing(self, matches: Matches, standing: _Standing) -> set[str]:
        """Nodes with a pool in which matching devices stand so."""
        found = (nodes for (kind, each), nodes in self._nodes_with.items() if each is standing and matches(kind))
        return {node for nodes in found for node in nodes}

    def places(self, matches: Matches) -> dict[str, DeviceTally]:
        """Numbers of the devices of matching kinds by node; "" for those that are bound to none."""
        self._recount()
        found: dict[str, DeviceTally] = {}
        for pool, numbers in self._counted.items():
            tallies = [tally for kind, tally in numbers.items() if matches(kind)]
            if tallies:
                node = self._pool_node[pool]
                found[node] = _sum((found.get(node, DeviceTally()), *tallies))
        return found

    def plugin_nodes(self, resource_name: str) -> dict[str, int]:
        """How many of a resource the device plugin has on each node where it serves it."""
        return {node: value for node, value in self._with_resource.get(resource_name, {}).items() if value > 0}

    @property
    def known_nodes(self) -> Mapping[str, SeenNode]:
        """All nodes by name."""
        return self._nodes

    # --- counting --------------------------------------------------------------------------------

    def _recount(self) -> None:
        for pool in self._dirty:
            self._recount_pool(pool)
        self._dirty.clear()

    def _recount_pool(self, pool: str) -> None:
        slices = [self._slices[key] for key in self._of_pool.get(pool, ())]
        self._forget_pool(pool)
        if not slices:
            return
        numbers = count_pool(slices, self._held.get(pool, ()), self._shares.get(pool, {}))
        node = slices[0].node
        self._counted[pool], self._pool_node[pool] = numbers, node
        if not _is_complete(_current(slices)):
            self._incomplete.add(pool)
        for kind, tally in numbers.items():
            self._sums[kind] = _sum((self._sums.get(kind, DeviceTally()), tally))
            if node:
                self._nodes_with[kind, self._stands(pool, tally)][node] += 1

    def _forget_pool(self, pool: str) -> None:
        node = self._pool_node.pop(pool, "")
        for kind, tally in self._counted.pop(pool, {}).items():
            left = _difference(self._sums[kind], tally)
            _set(self._sums, kind, left if left.published else None)
            self._forget_node((kind, self._stands(pool, tally)), node)
        self._incomplete.discard(pool)

    def _forget_node(self, key: tuple[DeviceKind, _Standing], node: str) -> None:
        nodes = self._nodes_with[key]
        nodes[node] -= 1
        if nodes[node] <= 0:
            del nodes[node]
        if not nodes:
            del self._nodes_with[key]

    def _stands(self, pool: str, tally: DeviceTally) -> _Standing:
        """How the devices of one kind stand in a pool, by their numbers."""
        if pool in self._incomplete:
            return _Standing.INCOMPLETE
        return _Standing.SERVES if tally.tainted < tally.published else _Standing.TAINTED


def count_pool(slices: Iterable[SeenSlice], held: Collection[str], shares: Mapping[str, int]) -> _Numbers:
    """Count what pods can get of one pool by kind: devices, and shares of those that are shared.

    Args:
        slices: of the pool; those of an older generation do not count.
        held: names of allocated devices.
        shares: of shared devices that are allocated.

    A device is allocatable if it is not allocated, has no taint that keeps pods away, and its counters suffice beside
    what is allocated. The scheduler allocates nothing of a pool whose slices are not all there.
    """
    current = _current(slices)
    is_complete = _is_complete(current)
    devices = [device for each in current for device in each.devices]
    left = _left(current, [device for device in devices if device.name in held])
    numbers: _Numbers = {}
    for device in devices:
        # The counters of one that is held are paid already, which matters where it has shares left.
        is_open = is_complete and (device.name in held or _fits(device, left))
        tally = _tally(device, _used(device, held, shares), is_open=is_open)
        numbers[device.kind] = _sum((numbers.get(device.kind, DeviceTally()), tally))
    return numbers


def _current(slices: Iterable[SeenSlice]) -> list[SeenSlice]:
    """Those of a pool's newest generation."""
    slices = list(slices)
    newest = max(each.generation for each in slices)
    return [each for each in slices if each.generation == newest]


def _is_complete(current: list[SeenSlice]) -> bool:
    return len(current) >= current[0].total


def _used(device: SeenDevice, held: Collection[str], shares: Mapping[str, int]) -> int:
    if device.shares > 0:
        return min(shares.get(device.name, 0), device.shares)
    return int(device.name in held)


def _tally(device: SeenDevice, used: int, *, is_open: bool) -> DeviceTally:
    total = max(device.shares, 1)
    free = 1 if device.shares == UNLIMITED else total - used
    is_free = is_open and not device.is_tainted
    return DeviceTally(
        published=total,
        allocatable=free if is_free else 0,
        allocated=used,
        tainted=total if device.is_tainted else 0,
        blocked=free if not is_open and not device.is_tainted else 0,
        distinct=1,
    )


def _left(slices: Iterable[SeenSlice], held: Iterable[SeenDevice]) -> _Left:
    left: _Left = {
        (name, counter): value for each in slices for name, counters in each.counters for counter, value in counters
    }
    for device in held:
        for place, value in _consumed(device):
            left[place] = left.get(place, 0) - value
    return left


def _consumed(device: SeenDevice) -> Iterator[tuple[tuple[str, str], int]]:
    for name, counters in device.consumes:
        for counter, value in counters:
            yield (name, counter), value


def _fits(device: SeenDevice, left: Mapping[tuple[str, str], int]) -> bool:
    return all(value <= left.get(place, 0) for place, value in _consumed(device))


def _row(tally: DeviceTally) -> tuple[int, ...]:
    return tally.published, tally.allocatable, tally.allocated, tally.tainted, tally.blocked, tally.distinct


def _from_row(row: Iterable[int]) -> DeviceTally:
    published, allocatable, allocated, tainted, blocked, distinct = row
    return DeviceTally(
        published=published,
        allocatable=allocatable,
        allocated=allocated,
        tainted=tainted,
        blocked=blocked,
        distinct=distinct,
    )


def _sum(tallies: Iterable[DeviceTally]) -> DeviceTally:
    return _from_row(map(sum, zip((0,) * 6, *map(_row, tallies), strict=True)))


def _difference(one: DeviceTally, other: DeviceTally) -> DeviceTally:
    return _from_row(map(int.__sub__, _row(one), _row(other)))


def _set(mapping: dict[Key, Value], key: Key, value: Value | None) -> None:
    """Put a value, or remove the key where there is none."""
    if value is None:
        mapping.pop(key, None)
    else:
        mapping[key] = value


def _discard(mapping: dict[Key, set[str]], key: Key, member: str) -> None:
    """Take a member out of a set, and the set out of the mapping when it is empty."""
    members = mapping.get(key, set())
    members.discard(member)
    if not members:
        mapping.pop(key, None)
