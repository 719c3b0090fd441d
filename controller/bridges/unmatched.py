"""Why a bridge selects no device that is published: which field no device has, and what devices have instead."""

import difflib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from controller.api import Select, Sharing
from controller.bridges.selection import matches
from controller.bridges.wording import listed
from controller.watching.model import DeviceKind

_MOST_NAMED = 5


def why_unmatched(select: Select, kinds: Collection[DeviceKind]) -> str:
    """Say which field of a selection is at fault; "" if some kind matches, or if nothing is published at all.

    Args:
        select: what is selected; a CEL expression is not looked at.
        kinds: every kind of device that is published.
    """
    if any(matches(select, kind) for kind in kinds):
        return ""
    if select.sharing is Sharing.MPS:
        return "this driver publishes no device with spec.select.sharing mps; choose time-slicing, or leave it out"
    if not kinds:
        return ""
    return next(_faults(select, kinds))


def _faults(select: Select, kinds: Collection[DeviceKind]) -> Iterator[str]:
    """What follows from one field is the plainest."""
    typed = [kind for kind in kinds if matches(Select(type=select.type), kind)]
    if not typed:
        yield f"no device with spec.select.type {select.type} is published"
    products = {kind.product_name for kind in typed if kind.product_name}
    if select.product_name and select.product_name not in products:
        yield _none_of("productName", select.product_name, products)
    made = [kind for kind in typed if select.product_name in {"", kind.product_name}]
    profiles = {kind.profile for kind in made if kind.profile}
    if select.profile and select.profile not in profiles:
        yield _none_of("profile", select.profile, profiles)
    if select.profiles and not profiles & set(select.profiles):
        yield _none_of("profiles", " or ".join(select.profiles), profiles)
    if any(matches(replace(select, memory_min=None, memory_max=None), kind) for kind in kinds):
        yield "no device that the other fields of spec.select match has the memory of spec.select.memory"
    yield "no device that is published has all of what spec.select wants"


def _none_of(field: str, value: str, published: Collection[str]) -> str:
    said = f"spec.select.{field} {value} is not published"
    return f"{said}, but {_nearest(value, published)}" if published else said


def _nearest(value: str, published: Iterable[str]) -> str:
    """Name a few, those first that are most alike."""
    ordered = sorted(published, key=lambda each: (-_likeness(value, each), each))
    return listed(ordered, most=_MOST_NAMED)


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.lower(), other.lower()).ratio()
