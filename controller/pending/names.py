"""Resource names that somebody may have meant."""

import difflib
from collections.abc import Iterable
from typing import Final

_MOST: Final = 3
_LEAST_LIKENESS: Final = 0.65
"""Of the parts behind the domain: a letter too much or two that changed places in `gpu`, another size of partition."""

_PARTITION: Final = "mig-"


def alike(name: str, known: Iterable[str]) -> list[str]:
    """Give a few known names that are like one, those first that are of the same kind and most alike.

    Only the parts behind the domain are compared, for nearly all names have the same domain.

    Args:
        name: with its domain.
        known: names with their domains.
    """
    found = ((_likeness(name, each), each) for each in known)
    close = [(likeness, each) for likeness, each in found if likeness >= _LEAST_LIKENESS]
    ordered = sorted(close, key=lambda pair: (_is_partition(pair[1]) != _is_partition(name), -pair[0], pair[1]))
    return [each for _, each in ordered[:_MOST]]


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, _own(one), _own(other)).ratio()


def _is_partition(name: str) -> bool:
    return _own(name).startswith(_PARTITION)


def _own(name: str) -> str:
    """The part behind the domain."""
    return name.partition("/")[2].lower()
