"""Writing into what C callers pass: scalars, strings, structures, arrays and opaque handles, through ctypes.

Callers pass `byref(x)`, `pointer(x)` or an array; all arrive here and are written the same way.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

from dradriver.simulation.codes import Return, require

_UINTS = ctypes.POINTER(ctypes.c_uint)
_INTS = ctypes.POINTER(ctypes.c_int)
_ULONGLONGS = ctypes.POINTER(ctypes.c_ulonglong)
_HANDLES = ctypes.POINTER(ctypes.c_void_p)


def put_uint(ref: Any, value: int) -> None:
    """Write an unsigned int; a null pointer is refused with INVALID_ARGUMENT, here and below."""
    require(ref is not None, Return.INVALID_ARGUMENT)
    ctypes.cast(ref, _UINTS)[0] = value


def put_int(ref: Any, value: int) -> None:
    """Write an int."""
    require(ref is not None, Return.INVALID_ARGUMENT)
    ctypes.cast(ref, _INTS)[0] = value


def put_ulonglong(ref: Any, value: int) -> None:
    """Write an unsigned long long."""
    require(ref is not None, Return.INVALID_ARGUMENT)
    ctypes.cast(ref, _ULONGLONGS)[0] = value


def put_handle(ref: Any, value: int) -> None:
    """Write an opaque handle."""
    put_handles(ref, (value,))


def put_handles(array: Any, values: Sequence[int]) -> None:
    """Write opaque handles one after another."""
    require(array is not None, Return.INVALID_ARGUMENT)
    pointers = ctypes.cast(array, _HANDLES)
    for index, value in enumerate(values):
        pointers[index] = value


def put_pairs(array: Any, pairs: Sequence[tuple[int, int]]) -> None:
    """Write structures of two unsigned ints one after another (placements)."""
    flat = [number for pair in pairs for number in pair]
    numbers = ctypes.cast(array, _UINTS)
    for index, value in enumerate(flat):
        numbers[index] = value


def put_text(buffer: Any, length: Any, text: str) -> None:
    """Write a zero-terminated string, or refuse with INSUFFICIENT_SIZE."""
    require(buffer is not None, Return.INVALID_ARGUMENT)
    data = text.encode()
    require(len(data) < integer(length), Return.INSUFFICIENT_SIZE)
    buffer.value = data


def structure(ref: Any) -> Any:
    """Give the structure that a pointer or `byref` points to."""
    require(ref is not None, Return.INVALID_ARGUMENT)
    target = getattr(ref, "_obj", None)
    return ref.contents if target is None else target


def versioned(ref: Any, *versions: int) -> Any:
    """Give the structure, or refuse with ARGUMENT_VERSION_MISMATCH where its version word is another one."""
    target = structure(ref)
    require(target.version in versions, Return.ARGUMENT_VERSION_MISMATCH)
    return target


def set_handle(target: Any, field: str, value: int) -> None:
    """Write an opaque handle into a structure's pointer field."""
    setattr(target, field, ctypes.cast(ctypes.c_void_p(value), type(getattr(target, field))))


def handle(argument: Any) -> int:
    """Read an opaque handle; 0 for a null one."""
    if argument is None or isinstance(argument, int):
        return argument or 0
    return ctypes.cast(argument, ctypes.c_void_p).value or 0


def uint(ref: Any) -> int:
    """Read an unsigned int behind a pointer."""
    require(ref is not None, Return.INVALID_ARGUMENT)
    return int(ctypes.cast(ref, _UINTS)[0])


def pair(ref: Any) -> tuple[int, int]:
    """Read a structure of two unsigned ints behind a pointer."""
    require(ref is not None, Return.INVALID_ARGUMENT)
    numbers = ctypes.cast(ref, _UINTS)
    return numbers[0], numbers[1]


def integer(argument: Any) -> int:
    """Read an integer argument, which the wrappers pass as a Python int or as a ctypes one."""
    return int(getattr(argument, "value", argument))


def text(argument: Any) -> str:
    """Read a string argument."""
    data = getattr(argument, "value", argument)
    require(data is not None, Return.INVALID_ARGUMENT)
    return str(data.decode(errors="replace")) if isinstance(data, bytes) else str(data)
