"""What the publisher tells the rest of the program."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Phase(StrEnum):
    """Where the publisher stands."""

    PENDING = "pending"
    """Not yet everything is written."""
    PUBLISHED = "published"
    """The API server has what is offered."""
    FAILING = "failing"
    """The last attempt failed; the next one comes by itself."""
    WITHDRAWN = "withdrawn"
    """The API server cannot hold what is offered without losing counters; nothing is offered until it changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """State of publishing.

    Attributes:
        phase: see Phase.
        message: for a person; "" when all is well.
        generation: of the pool, as last planned.
        slices: how many are offered.
    """

    phase: Phase = Phase.PENDING
    message: str = ""
    generation: int = 0
    slices: int = 0


class Meter(Protocol):
    """Where the publisher counts. Called on its thread; must not block."""

    def wrote(self, verb: str) -> None:
        """One write succeeded: "create", "update" or "delete"."""

    def failed(self, reason: str) -> None:
        """One attempt failed; the name of the exception's class."""

    def published(self, status: Status) -> None:
        """Everything is as it should be (again)."""


class NoMeter:
    """Counts nothing."""

    def wrote(self, verb: str) -> None:
        """See Meter."""

    def failed(self, reason: str) -> None:
        """See Meter."""

    def published(self, status: Status) -> None:
        """See Meter."""
