"""Tables of figures at the end of a test run, for people; nothing there is judged."""

from collections.abc import Sequence

import pytest


class Summary:
    """One table.

    Args:
        title: line above it.
        headings: of the columns.
    """

    def __init__(self, title: str, *headings: str) -> None:
        self._title = title
        self._rows: list[Sequence[str]] = [headings]

    def add(self, *cells: object) -> None:
        """Add a line; a float is shown with one digit behind the point."""
        self._rows.append([f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in cells])

    def register(self, config: pytest.Config) -> "Summary":
        """Have it shown at the end of the run."""
        config.pluginmanager.register(self, f"summary {self._title}")
        return self

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show it, if there is something to show."""
        if len(self._rows) > 1:
            terminalreporter.section(self._title)
            for line in self.lines():
                terminalreporter.write_line(line)

    def lines(self) -> list[str]:
        """The table: the first column to the left, the others to the right."""
        widths = [max(map(len, column)) for column in zip(*self._rows, strict=True)]
        return ["  ".join(_aligned(row, widths)) for row in self._rows]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [(cell.rjust if column else cell.ljust)(widths[column]) for column, cell in enumerate(row)]
