"""What a bridge selects, said twice: in CEL for the scheduler, in Python for the numbers of its status.

No expression may abort: the scheduler gives up a pod for which a selector fails on any device it meets. So the driver
is asked first, since the attributes of other drivers' devices have other names, and no attribute is used before `has`.

The user's own expression is a selector by itself, behind ours: joined to it as text, it could close our brackets and
leave the guard. All selectors of a class have to hold, and the scheduler asks no other after one that does not.
Source: `selectorsMatch` of its allocator.
"""

from collections.abc import Iterable, Iterator

from controller.api import ANY_TYPE, Select, Sharing
from controller.watching.model import DeviceKind
from dradriver.api import DRIVER_NAME, Attribute, Capacity, DeviceType
from dradriver.resource import quantity

_TYPES = (DeviceType.GPU, DeviceType.MIG)
_ATTRIBUTES = f"device.attributes['{DRIVER_NAME}']"
_MEMORY = f"device.capacity['{DRIVER_NAME}'].{Capacity.MEMORY}"


def expressions(select: Select) -> tuple[str, ...]:
    """Say it in CEL, one expression for each selector of a DeviceClass, in this order."""
    ours = " && ".join((f"device.driver == '{DRIVER_NAME}'", *_conditions(select)))
    return (ours, select.cel) if select.cel else (ours,)


def matches(select: Select, kind: DeviceKind) -> bool:
    """Tell whether devices of a kind are selected, as far as can be told without the user's own CEL expression."""
    return (
        _is_of_type(select.type, kind.type)
        and select.profile in {"", kind.profile}
        and (not select.profiles or kind.profile in select.profiles or _may_be_whole(select, kind.type))
        and select.product_name in {"", kind.product_name}
        and _is_within(kind.memory, select.memory_min, select.memory_max)
        and (select.sharing is None or select.sharing == (kind.sharing or Sharing.NONE))
        and (select.renamed is None or select.renamed == kind.renamed)
    )


def _is_of_type(wanted: str, found: str) -> bool:
    return wanted in {"", found} or (wanted == ANY_TYPE and found in _TYPES)


def _may_be_whole(select: Select, found: str) -> bool:
    return select.type == ANY_TYPE and found == DeviceType.GPU


def _is_within(memory: int | None, least: int | None, most: int | None) -> bool:
    if memory is None:
        return least is None and most is None
    return (least is None or memory >= least) and (most is None or memory <= most)


def _conditions(select: Select) -> Iterator[str]:
    yield from _types(select)
    given = {Attribute.PROFILE: select.profile, Attribute.PRODUCT_NAME: select.product_name}
    yield from (_equals(name, value) for name, value in given.items() if value)
    yield from _memory(select)
    if select.sharing is Sharing.NONE:
        field = f"{_ATTRIBUTES}.{Attribute.SHARING}"
        yield f"(!has({field}) || {field} == '{Sharing.NONE}')"
    elif select.sharing is not None:
        yield _equals(Attribute.SHARING, select.sharing)
    if select.renamed is not None:
        field = f"{_ATTRIBUTES}.{Attribute.RENAMED}"
        yield f"has({field}) && {field} == true" if select.renamed else f"(!has({field}) || {field} == false)"


def _types(select: Select) -> Iterator[str]:
    kind = f"{_ATTRIBUTES}.{Attribute.TYPE}"
    profiles = _is_among(Attribute.PROFILE, select.profiles)
    if select.type == ANY_TYPE and select.profiles:
        yield f"has({kind}) && ({kind} == '{DeviceType.GPU}' || {kind} == '{DeviceType.MIG}' && {profiles})"
        return
    if select.type == ANY_TYPE:
        yield _is_among(Attribute.TYPE, _TYPES)
    elif select.type:
        yield _equals(Attribute.TYPE, select.type)
    if select.profiles:
        yield profiles


def _is_among(name: str, values: Iterable[str]) -> str:
    field = f"{_ATTRIBUTES}.{name}"
    return f"has({field}) && {field} in [{', '.join(map(_literal, values))}]"


def _equals(name: str, value: str) -> str:
    field = f"{_ATTRIBUTES}.{name}"
    return f"has({field}) && {field} == {_literal(value)}"


def _memory(select: Select) -> Iterator[str]:
    bounds = ((select.memory_min, ">="), (select.memory_max, "<="))
    compared = [
        f"{_MEMORY}.compareTo(quantity('{quantity(bound)}')) {sign} 0" for bound, sign in bounds if bound is not None
    ]
    if compared:
        yield " && ".join((f"has({_MEMORY})", *compared))


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
