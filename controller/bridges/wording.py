"""Words that several messages have in common."""

from collections.abc import Sequence
from typing import Final

_MOST: Final = 10


def listed(names: Sequence[str], *, most: int = _MOST) -> str:
    """Name the first few, in their order, and say how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
