"""The file of node configurations: when it has changed, and what it says.

A mounted ConfigMap is a folder of links that Kubernetes swaps in one step, so the file behind the path becomes another
one. One `stat` a second finds that, and an edit in place, at once and on every file system; watching would have to be
set up anew with every swap.
"""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dradriver.api.node_config import Decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What tells one state of a file from another: which file it is and when it was changed, or why it is not there."""

    device: int = 0
    inode: int = 0
    size: int = 0
    modified_ns: int = 0
    changed_ns: int = 0
    error: int = 0


def look(path: Path) -> Mark:
    """Look at the file without reading it; never fails."""
    try:
        found = path.stat()
    except OSError as error:
        return Mark(error=error.errno or -1)
    return Mark(
        device=found.st_dev,
        inode=found.st_ino,
        size=found.st_size,
        modified_ns=found.st_mtime_ns,
        changed_ns=found.st_ctime_ns,
    )


def read(path: Path) -> "Decoded":
    """Read and check the file; mistakes in it stand in the result.

    Raises:
        OSError: it cannot be read, or is no file.
    """
    return decode_bytes(read_bytes(path))


def unreadable(error: OSError) -> "Decoded":
    """Say the same of a file that cannot be read as of one with mistakes."""
    # Takes pydantic, which most processes do not need.
    from dradriver.api.node_config import Decoded  # noqa: PLC0415
    from dradriver.api.problems import Problem  # noqa: PLC0415

    return Decoded(problems=(Problem(text=f"it cannot be read: {error.strerror}"),))


def decode_bytes(data: bytes) -> "Decoded":
    """Check the content of a file; never fails."""
    # Likewise.
    from dradriver.api.node_config import Decoded, decode  # noqa: PLC0415
    from dradriver.api.problems import Problem  # noqa: PLC0415
    from dradriver.api.text import TextError, parse  # noqa: PLC0415

    try:
        text = parse(data)
    except TextError as error:
        return Decoded(problems=(Problem(text=str(error)),))
    return decode(text.value, found=text.problems)


def read_bytes(path: Path) -> bytes:
    """Read a file of which no more is wanted than a ConfigMap holds; one byte more tells that it is larger.

    Raises:
        OSError: it cannot be read, or is no file.
    """
    # A pipe without a writer would be waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(_MOST_BYTES + 1)


_MOST_BYTES: Final = 1 << 20
