"""What ends what is held against a GPU, in words: the rules themselves are in `condition`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dradriver.gpu.health import Effect
from dradriver.health import condition as found
from dradriver.health.condition import Cause
from dradriver.health.policy import Policy, Rule, Until

CLEAR: Final = "`dradriver health clear`"

BY_RULE: Final[Mapping[Until, str]] = {
    Until.EXPIRY: "a reset of the GPU",
    Until.RECOVERY: "a reset of the GPU; once it says for a while that nothing has to be done, it is told only",
    Until.RESET: "a reset of the GPU",
    Until.ANSWERS: "a reset of the GPU; or it answers and says for a while that nothing has to be done",
    Until.REBOOT: "a start of the node",
    Until.MEMORY: "a reset of the GPU; or its memory waits for no repair any more",
    Until.FABRIC: "a reset of the GPU; or its NVLink fabric is healthy",
    Until.OPERATOR: f"{CLEAR} only",
}
"""What ends an error before its time is over. All but the last are ended by `CLEAR`, too."""

BY_ORIGIN: Final[Mapping[str, str]] = {
    found.LOST: "the GPU answers again",
    found.MISSING: "the GPU is there again",
    found.NO_EVENTS: "the GPU can be heard again",
    found.NO_ANSWER: "the GPU says again how it is",
}
_SAID: Final = "the GPU does not say so any more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What ends a cause.

    Attributes:
        how: events that end it.
        at: Unix time at which it ends by itself if it does not come again; None where it does not.
    """

    how: str
    at: float | None = None


def ending(cause: Cause, policy: Policy) -> Ending:
    """Say what ends something that is held against a GPU.

    Args:
        cause: what it is.
        policy: what it means.
    """
    rule = cause.rule(policy)
    if rule is None:
        return Ending(how=BY_ORIGIN.get(cause.origin, _SAID))
    if cause.is_suspect(rule):
        return Ending(how=BY_RULE[rule.until], at=cause.last + policy.suspect_seconds)
    if cause.mild is None and not passes(rule):
        return Ending(how=BY_RULE[rule.until])
    return Ending(how=BY_RULE[rule.until], at=max(cause.last, cause.mild or 0.0) + policy.expiry)


def passes(rule: Rule) -> bool:
    """Tell whether an error ends by itself some time after it was reported last."""
    return rule.until is Until.EXPIRY or (rule.effect == Effect.NONE and rule.until is not Until.OPERATOR)
