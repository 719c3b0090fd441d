"""What a bridge's status says of the pods that wait for its resource."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from controller.api import Condition, ConditionType
from controller.pending.explaining import Explanation

_MOST_REASONS: Final = 3
_LONGEST: Final = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """A pod that waits, and why.

    Attributes:
        pod: with its namespace, as `namespace/name`.
        explanation: why.
    """

    pod: str
    explanation: Explanation


def summarize(waiters: Sequence[Waiter], quota: str) -> Condition:
    """Say how many pods wait for a resource, and why, the commonest reason first with one of its pods.

    Args:
        waiters: all of them.
        quota: from `used_up`.
    """
    if not waiters and not quota:
        return Condition(type=ConditionType.PODS_PENDING, holds=False, reason="NoneWaits", message="")
    if not waiters:
        return Condition(type=ConditionType.PODS_PENDING, holds=False, reason="QuotaUsedUp", message=quota)
    by_reason: dict[str, list[Waiter]] = defaultdict(list)
    for each in waiters:
        by_reason[each.explanation.reason].append(each)
    ordered = sorted(by_reason.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    parts = [_part(reason, found) for reason, found in ordered[:_MOST_REASONS]]
    if others := sum(len(found) for _, found in ordered[_MOST_REASONS:]):
        parts.append(f"{_pods(others)} for other reasons")
    message = "; and ".join([*parts, *([quota] if quota else [])])
    return Condition(type=ConditionType.PODS_PENDING, holds=True, reason=ordered[0][0], message=message[:_LONGEST])


def _part(reason: str, waiters: Sequence[Waiter]) -> str:
    """The first by name stands for all, so that the sentence stays the same as long as it waits."""
    first = min(waiters, key=lambda each: each.pod)
    return f"{_pods(len(waiters))} ({reason}), such as {first.pod}: {first.explanation.message}"


def _pods(count: int) -> str:
    return f"{count} pod waits" if count == 1 else f"{count} pods wait"
