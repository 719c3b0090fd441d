"""Orders of administrators to forget what is held against GPUs: how they name GPUs, and how a command asks the plugin.

A command writes a file into a folder beside the plugin's own, the plugin takes it away: no port, no rights in the
cluster, and whoever may write there is the administrator of the node.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import structlog

from dradriver import files
from dradriver.gpu import names

FOLDER: Final = "clear-health"
"""Of the requests, in the plugin's folder."""
ALL: Final = "all"
"""Names every GPU."""
MOST_BYTES: Final = 1 << 16
"""A request that is longer names more GPUs than a node has."""

_log = structlog.get_logger()


def chosen(words: Iterable[str], numbers: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Understand which GPUs are named.

    Args:
        words: `all`, names of devices (a partition's means its GPU) or UUIDs of GPUs; each may be several with commas
            or spaces between them.
        numbers: UUID of each GPU to the number in its name.

    Returns:
        UUIDs of the GPUs, each once, and the words that name none.
    """
    uuids: dict[str, None] = {}
    unknown: dict[str, None] = {}
    for word in (word for text in words for word in text.replace(",", " ").split()):
        named = _named(word, numbers)
        uuids |= dict.fromkeys(named)
        if not named and word != ALL:
            unknown[word] = None
    return tuple(uuids), tuple(unknown)


def _named(word: str, numbers: Mapping[str, int]) -> tuple[str, ...]:
    if word == ALL:
        return tuple(numbers)
    if word in numbers:
        return (word,)
    number = names.number_of(word)
    return tuple(uuid for uuid, one in numbers.items() if number is not None and one == number)


class Requests:
    """The folder of requests, seen from both sides.

    Args:
        folder: made by the first who asks; its parent is the plugin's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told: set[str] = set()

    # --- the command's side -----------------------------------------------------------------------

    def ask(self, words: Iterable[str]) -> Path:
        """Write a request; gives its file, which is there until it is taken.

        Raises:
            OSError: it cannot be written, or there is no plugin's folder.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / secrets.token_hex(8)
        files.write_durably(path, "".join(f"{word}\n" for word in words))
        return path

    # --- the plugin's side ------------------------------------------------------------------------

    def take(self) -> list[str]:
        """Take all requests away and give what they name, see `chosen`; never raises.

        A request that cannot be removed is not obeyed, since it would be obeyed for ever.
        """
        try:
            paths = sorted(self._folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            self._tell(self._folder, error)
            return []
        # What begins with a dot is being written.
        taken = [self._taken(path) for path in paths if not path.name.startswith(".")]
        return [word for words in taken for word in words]

    def _taken(self, path: Path) -> list[str]:
        words: list[str] = []
        bad: Exception | None = None
        try:
            words = _read(path)
        except (OSError, ValueError) as error:
            bad = error
        try:
            path.unlink()
        except FileNotFoundError:
            # Withdrawn, or another plugin's by now.
            return []
        except OSError as error:
            self._tell(path, error)
            return []
        if bad is not None:
            _log.warning("a request to clear health is damaged and left out", file=str(path), error=str(bad))
        return words

    def _tell(self, path: Path, error: OSError) -> None:
        """Say once what would be said every second."""
        if str(path) not in self._told:
            self._told.add(str(path))
            _log.warning("a request to clear health cannot be taken", file=str(path), error=str(error))


def _read(path: Path) -> list[str]:
    # Neither does a pipe keep us waiting, nor does a link lead elsewhere.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return text.decode().split()
