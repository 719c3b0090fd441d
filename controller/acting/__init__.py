"""Carries decisions out: the only place of the controller that writes."""

from controller.acting.actor import Actor, NotLeadingError, TakenError
from controller.acting.capability import unsupported_because
from controller.acting.contest import Contests, contested, dying, hold_back, waits_for_end
from controller.acting.naming import Clash, named

__all__ = [
    "Actor",
    "Clash",
    "Contests",
    "NotLeadingError",
    "TakenError",
    "contested",
    "dying",
    "hold_back",
    "named",
    "unsupported_because",
    "waits_for_end",
]
