"""Carries decisions out: the only place of the controller that writes."""

from controller.acting.actor import Actor, NotLeadingError, TakenError
from controller.acting.capability import unsupported_because

__all__ = ["Actor", "NotLeadingError", "TakenError", "unsupported_because"]
