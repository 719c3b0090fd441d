"""Text for people and for kubectl."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import yaml


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)

WIDTH: Final = 120
"""Characters of a line."""


def as_yaml(document: Mapping[str, Any]) -> str:
    """Write one document, without the line that begins it."""
    return str(yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, width=WIDTH))


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Write rows as columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("   ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def remark(text: str) -> str:
    """Make comments of lines; nothing in them gets out of the comment."""
    return "".join(f"# {plain(line)}".rstrip() + "\n" for line in text.split("\n"))


def plain(text: str) -> str:
    """Replace what is no printable character, so that it cannot steer the terminal or end a comment."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def some(names: Sequence[str], *, most: int = 8) -> str:
    """Write names with commas, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def write(text: str) -> None:
    """Print on stdout; a reader who has seen enough is no error."""
    try:
        # What is no text (half of a surrogate pair, from an escape in a file) is shown as a question mark.
        sys.stdout.write(text.encode("utf-8", "replace").decode("utf-8"))
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def tell(lines: Iterable[str]) -> None:
    """Print lines on stderr."""
    for line in lines:
        print(plain(line), file=sys.stderr)
