"""How every NVML call is made: errors translated, enumerations walked, raw lists read."""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

import pynvml

from dradriver.nvml.errors import (
    InvalidArgument,
    NotSupported,
    NvmlError,
    ResetRequired,
    is_fatal,
    translate,
)

P = ParamSpec("P")
T = TypeVar("T")

# NVML has 18 GPU instance profiles. The walk ends where NVML says so; this only bounds a library that never does.
_ENUM_LIMIT: Final = 64
_NO_INSTANCE: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU's handle, valid within one session, and the name that errors give it (its UUID)."""

    gpu: str
    handle: pynvml.c_nvmlDevice_t


def call(gpu: str | None, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a pynvml function; its errors leave as NvmlError about this GPU."""
    try:
        return function(*args, **kwargs)
    except pynvml.NVMLError as error:
        raise translate(function.__name__, error.value, gpu) from None


def ask_twice(ask: Callable[[], T]) -> T:
    """Ask again after a failure that means that a handle is useless, which it then is for good.

    One call that failed so, and then does no more, proves no reset and no loss.
    """
    try:
        return ask()
    except NvmlError as error:
        if not (is_fatal(error) or isinstance(error, ResetRequired)):
            raise
    return ask()


def walk_enum(read: Callable[[int], T]) -> Iterator[tuple[int, T]]:
    """Yield (enum index, answer) for every index NVML supports.

    NOT_SUPPORTED marks a gap and INVALID_ARGUMENT the end of NVML's enumeration, so profiles that are newer
    than this program are found too.
    """
    for index in range(_ENUM_LIMIT):
        try:
            answer = read(index)
        except NotSupported:
            continue
        except InvalidArgument:
            return
        yield index, answer


def read_instances(
    gpu: str, function: Callable[..., int], owner: object, profile_id: int, space: ctypes.Array[Any]
) -> list[Any]:
    """Call one of NVML's raw list functions with room for as many handles as `space` has entries."""
    count = ctypes.c_uint(len(space))
    call(gpu, function, owner, profile_id, space, ctypes.byref(count))
    return [space[index] for index in range(count.value)]


def instance_id(value: int) -> int | None:
    """Give the id of an instance as NVML wrote it in a structure; None where it concerns the whole GPU."""
    return None if value == _NO_INSTANCE else value


def optional(read: Callable[[], T]) -> T | None:
    """Read a fact that may be missing: None where NVML does not tell.

    Errors that say the session or the GPU is gone are no answer about the fact, and pass.
    """
    try:
        return read()
    except NvmlError as error:
        if is_fatal(error):
            raise
        return None
