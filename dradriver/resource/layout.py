"""From a pool to slices: counter sets where the API server wants them, one GPU's devices in one slice, limits kept."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TypeVar

from dradriver.resource import limits
from dradriver.resource.model import CounterSet, Device, Pool, Slice

T = TypeVar("T")


class Layout(StrEnum):
    """Where counter sets lie.

    `apart`: in slices of their own (Kubernetes 1.35 and newer).
    `together`: in the slice of the devices that consume them (1.34).

    Each of the two API servers refuses the other's.
    """

    APART = "apart"
    TOGETHER = "together"


def lay_out(pool: Pool, layout: Layout = Layout.APART) -> tuple[Slice, ...]:
    """Divide a pool into slices.

    Devices that consume counters get slices by group, so that a change of one GPU is one write (more only beyond 64
    devices); groups without counters share slices up to the limit for devices that may get a taint at any time, so
    that a first taint never moves a device to another slice. A pool without devices is one empty slice, which says
    "the driver lives and has nothing".

    The same pool always gives the same slices.
    """
    slices = _apart(pool) if layout is Layout.APART else _together(pool)
    return tuple(slices) or (Slice(),)


def _apart(pool: Pool) -> Iterator[Slice]:
    for part in _chunks(_counter_sets(pool), limits.COUNTER_SETS_PER_SLICE):
        yield Slice(counter_sets=part)
    yield from _device_slices(group.devices for group in pool.groups)


def _together(pool: Pool) -> Iterator[Slice]:
    """Put each counter set into the slice of all the devices that consume it, however the pool groups them.

    The order between GPUs is lost where a pool mixes them, which costs nothing: these servers' schedulers take slices
    in no order at all.
    """
    consumers: dict[str, tuple[Device, ...]] = {}
    for device in _devices(pool):
        for consumption in device.consumes[:1]:
            consumers[consumption.counter_set] = (*consumers.get(consumption.counter_set, ()), device)
    for counter_set in _counter_sets(pool):
        yield Slice(counter_sets=(counter_set,), devices=consumers.get(counter_set.name, ()))
    yield from _device_slices(tuple(device for device in group.devices if not device.consumes) for group in pool.groups)


def _counter_sets(pool: Pool) -> tuple[CounterSet, ...]:
    return tuple(counter_set for group in pool.groups for counter_set in group.counter_sets)


def _devices(pool: Pool) -> Iterator[Device]:
    return (device for group in pool.groups for device in group.devices)


def _device_slices(groups: Iterable[tuple[Device, ...]]) -> Iterator[Slice]:
    plain: tuple[Device, ...] = ()
    for devices in groups:
        counted = any(device.consumes for device in devices)
        if not counted and len(plain) + len(devices) <= limits.DEVICES_PER_SLICE_RESTRICTED:
            plain += devices
            continue
        yield from _slices_of(plain)
        plain = ()
        if counted:
            yield from _slices_of(devices)
        else:
            plain = devices
    yield from _slices_of(plain)


def _slices_of(devices: tuple[Device, ...]) -> Iterator[Slice]:
    for part in _chunks(devices, limits.DEVICES_PER_SLICE_RESTRICTED):
        yield Slice(devices=part)


def _chunks(items: tuple[T, ...], size: int) -> Iterator[tuple[T, ...]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
