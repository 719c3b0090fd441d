"""From a pool to slices: counter sets apart from devices, one GPU's devices in one slice, limits kept."""

from collections.abc import Iterator
from typing import TypeVar

from dradriver.resource import limits
from dradriver.resource.model import CounterSet, Device, Pool, Slice

T = TypeVar("T")


def layout(pool: Pool) -> tuple[Slice, ...]:
    """Divide a pool into slices for Kubernetes 1.35 and newer.

    Counter sets come first, in slices of their own. A group that consumes counters gets a slice of its
    own (more only beyond 64 devices); groups without counters share slices up to the limit for devices
    that may get a taint at any time, so that a first taint never moves a device to another slice.
    A pool without devices is one empty slice, which says "the driver lives and has nothing".

    The same pool always gives the same slices.
    """
    counter_sets = tuple(group.counter_set for group in pool.groups if group.counter_set is not None)
    slices = [*_counter_slices(counter_sets), *_device_slices(pool)]
    return tuple(slices) or (Slice(),)


def _counter_slices(counter_sets: tuple[CounterSet, ...]) -> Iterator[Slice]:
    for part in _chunks(counter_sets, limits.COUNTER_SETS_PER_SLICE):
        yield Slice(counter_sets=part)


def _device_slices(pool: Pool) -> Iterator[Slice]:
    plain: tuple[Device, ...] = ()
    for group in pool.groups:
        if group.counter_set is None and len(plain) + len(group.devices) <= limits.DEVICES_PER_SLICE_RESTRICTED:
            plain += group.devices
            continue
        yield from _slices_of(plain)
        plain = ()
        if group.counter_set is None:
            plain = group.devices
        else:
            yield from _slices_of(group.devices)
    yield from _slices_of(plain)


def _slices_of(devices: tuple[Device, ...]) -> Iterator[Slice]:
    for part in _chunks(devices, limits.DEVICES_PER_SLICE_RESTRICTED):
        yield Slice(devices=part)


def _chunks(items: tuple[T, ...], size: int) -> Iterator[tuple[T, ...]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
