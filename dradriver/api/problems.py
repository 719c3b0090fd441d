"""Mistakes in what people write for this driver, told so that they find them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

Step: TypeAlias = int | str
"""Of a path in a document: an index of a list, or a key."""

_MOST_SHOWN: Final = 80
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake.

    Attributes:
        path: where, from the document's root.
        text: what stands there and what may.
    """

    path: tuple[Step, ...] = ()
    text: str

    def __str__(self) -> str:
        path = show_path(self.path)
        return f"{path}: {self.text}" if path else self.text


def show_path(path: Sequence[Step]) -> str:
    """Write a path as people do: `configs.a100.gpus[0].mig`, and `configs['all-1g.5gb']` for a key with dots."""
    return "".join(_shown_step(step) for step in path).removeprefix(".")


def show_value(value: object) -> str:
    """Write a value so that it can be found in the file, shortened where it is long."""
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping"
        case list():
            return "a list"
    return _shortened(repr(value))


def _shown_step(step: Step) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _PLAIN_KEY.fullmatch(step) else f"[{_shortened(repr(step))}]"


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
