"""Durations and how they are shown; nothing here judges them."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

HEADINGS: Final = ("what", "n", "median", "p99", "min", "max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One thing that was measured many times.

    Attributes:
        what: a line's first column.
        values: in `unit`, in the order they were measured.
    """

    what: str
    values: tuple[float, ...]
    unit: str = "ms"

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def p99(self) -> float:
        return percentile(self.values, 99)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least so many percent of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def timed(call: Callable[[], object]) -> float:
    """Milliseconds that a call takes."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def show(title: str, figures: Iterable[Figure]) -> None:
    """Print a table."""
    rows = [HEADINGS, *(_row(figure) for figure in figures)]
    print(f"\n{title}")
    print(aligned(rows))


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text: the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join((text.rjust if column else text.ljust)(widths[column]) for column, text in enumerate(row))
        for row in rows
    )


def _row(figure: Figure) -> tuple[str, ...]:
    numbers = (figure.median, figure.p99, min(figure.values), max(figure.values))
    return (figure.what, str(len(figure.values)), *(in_unit(number, figure.unit) for number in numbers))


def in_unit(number: float, unit: str) -> str:
    """A number with as many digits as mean something."""
    return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f} {unit}"
