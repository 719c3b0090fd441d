"""What the person at the keyboard gives: files, or standard input."""

import json
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from dradriver.api.text import MOST_BYTES

# The parser that is written in C is ten times faster, and not there on every machine.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class CommandError(Exception):
    """Why it cannot be done: one sentence for the person who asked."""


def read_configuration(file: str) -> bytes:
    """Read a file of limited size, as much of it as shows that it is too large.

    Raises:
        CommandError: it cannot be read.
    """
    try:
        if file == "-":
            return sys.stdin.buffer.read(MOST_BYTES + 1)
        with Path(file).open("rb") as opened:
            return opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise CommandError(f"{file}: it cannot be read: {error.strerror}") from error


def read_objects(file: str) -> list[object]:
    """Read Kubernetes objects as kubectl writes them, in JSON or in one or more documents of YAML.

    Raises:
        CommandError: it cannot be read, or is neither.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{file}: it cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{file}: it is not UTF-8: {error.reason} at byte {error.start}") from error
    try:
        return _documents(text)
    except (ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        told = " ".join(str(error).split())[:200]
        raise CommandError(
            f"{file}: it is neither JSON nor YAML: {told}; write it with `kubectl get -o json`"
        ) from error


def is_nothing(document: object) -> bool:
    """Tell whether it is a list without items, which kubectl writes where it finds nothing."""
    return isinstance(document, dict) and document.get("items") == []


def _documents(text: str) -> list[object]:
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        # _LOADER is one of yaml's safe loaders.
        return [one for one in yaml.load_all(text, Loader=_LOADER) if one is not None]
