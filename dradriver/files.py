"""Small files that survive a crash at any instant: written whole or not at all, and on disk when said so."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def write_durably(path: Path, text: str, *, written: Callable[[], None] = lambda: None) -> None:
    """Replace a file in one step, and have it on disk before returning.

    Temporary file, fsync, rename, fsync of the folder: at every instant the old or the new content is there.

    Args:
        path: file to replace.
        text: its new content.
        written: called when the temporary file is on disk and the old one still in place.

    Raises:
        OSError: the folder is missing, full or not writable. The old content stays, unless only the last step
            failed, to have the new name on disk; nothing unfinished is left.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        _write(temporary, text)
        written()
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _write(temporary: Path, text: str) -> None:
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    # A file object writes everything or raises; os.write may stop half way on a full disk.
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def remove_durably(path: Path) -> None:
    """Remove a file for good; one that is not there is fine.

    Raises:
        OSError: it is there and stays.
    """
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
