"""Why pods that ask for an extended resource wait: what is known of the cluster -> sentences, and who is told."""

from controller.pending.explaining import Explanation, Facts, explain
from controller.pending.looking import Look, Looker
from controller.pending.quotas import used_up
from controller.pending.summary import Waiter, summarize
from controller.pending.supply import Supply, supply_of
from controller.pending.waiters import LOOK_SECONDS, Outcome, Waiters

__all__ = [
    "LOOK_SECONDS",
    "Explanation",
    "Facts",
    "Look",
    "Looker",
    "Outcome",
    "Supply",
    "Waiter",
    "Waiters",
    "explain",
    "summarize",
    "supply_of",
    "used_up",
]
