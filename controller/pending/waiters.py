"""Who waits long enough to be told, and has not been told yet.

Work is bounded: pods of one shape are explained once, a look tells a limited number of them, those first whose shape
nobody has been told of. Events repeat seldom, since the API server forgets them after an hour.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controller.pending.explaining import Explanation
from controller.pending.summary import Waiter
from controller.watching.model import PodShape, SeenPod

PATIENCE_SECONDS: Final = 5.0
"""For which a pod has to wait: the scheduler needs a moment also where all is well."""

REPEAT_SECONDS: Final = 1800.0
"""After which a pod is told the same once more; less than an API server keeps Events."""

LOOK_SECONDS: Final = 5.0
"""Between two looks while pods wait."""

TOLD_AT_ONCE: Final = 50
TOLD_PER_SECOND: Final = 10.0
"""Pods that are told in one look, and over time: what an API server does not feel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a look gave.

    Attributes:
        tell: pods that are to get an Event.
        waiting: who waits, by resource name; those whose cause is certain and those for whom it is not.
        again: whether another look is due though nothing changes.
    """

    tell: Sequence[tuple[SeenPod, Explanation]]
    waiting: Mapping[str, Sequence[Waiter]]
    again: bool


class Waiters:
    """Remembers since when pods wait and what they were told. Not for several threads.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._told: dict[str, dict[str, float]] = {}
        self._looked = clock()
        self._allowance = float(TOLD_AT_ONCE)

    def look(self, pods: Iterable[SeenPod], explain: Callable[[PodShape], Sequence[Explanation]]) -> Outcome:
        """Look at the pods that have no node.

        Args:
            pods: all of them; one that is missing has got its node, or is gone.
            explain: gives why pods of a shape wait, the cause first that keeps them most surely; nothing if that is
                none of our business. Asked once for each shape.
        """
        now = self._clock()
        concerned: dict[PodShape, Sequence[Explanation]] = {}
        groups: dict[PodShape, list[SeenPod]] = defaultdict(list)
        since: dict[str, float] = {}
        for pod in pods:
            since[pod.uid] = self._since.get(pod.uid, now)
            if now - since[pod.uid] >= PATIENCE_SECONDS and not pod.shape.is_gated:
                groups[pod.shape].append(pod)
        for shape in groups:
            concerned[shape] = explain(shape)
        self._since = since
        self._told = {uid: told for uid, told in self._told.items() if uid in since}
        return Outcome(
            tell=list(self._to_tell(groups, concerned, now)), waiting=_waiting(groups, concerned), again=bool(since)
        )

    def _to_tell(
        self,
        groups: Mapping[PodShape, Sequence[SeenPod]],
        explanations: Mapping[PodShape, Sequence[Explanation]],
        now: float,
    ) -> Iterator[tuple[SeenPod, Explanation]]:
        self._allowance = min(TOLD_AT_ONCE, self._allowance + TOLD_PER_SECOND * (now - self._looked))
        self._looked = now
        for pod, explanation in _in_turn(groups, explanations):
            if self._allowance < 1:
                return
            if self._is_news(pod, explanation, now):
                self._allowance -= 1
                self._told.setdefault(pod.uid, {})[explanation.reason] = now
                yield pod, explanation

    def _is_news(self, pod: SeenPod, explanation: Explanation, now: float) -> bool:
        told = self._told.get(pod.uid, {}).get(explanation.reason)
        return told is None or now - told >= REPEAT_SECONDS


def _in_turn(
    groups: Mapping[PodShape, Sequence[SeenPod]], explanations: Mapping[PodShape, Sequence[Explanation]]
) -> Iterator[tuple[SeenPod, Explanation]]:
    """One pod of each shape first, then the others; only of what is certain."""
    certain = {shape: each[0] for shape, each in explanations.items() if each and each[0].is_certain}
    yield from ((groups[shape][0], each) for shape, each in certain.items())
    yield from ((pod, each) for shape, each in certain.items() for pod in groups[shape][1:])


def _waiting(
    groups: Mapping[PodShape, Sequence[SeenPod]], explanations: Mapping[PodShape, Sequence[Explanation]]
) -> Mapping[str, Sequence[Waiter]]:
    found: dict[str, list[Waiter]] = defaultdict(list)
    for shape, each in explanations.items():
        for explanation in each:
            found[explanation.resource_name] += (
                Waiter(pod=f"{pod.namespace}/{pod.name}", explanation=explanation) for pod in groups[shape]
            )
    return found
