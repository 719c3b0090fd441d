"""Somebody else sets back what we write: how fast we go on, and what is done meanwhile.

Two programs that undo each other would write as fast as the API server can. So the first change of somebody else is
undone at once, and each further one later than the one before, until nothing had to be undone for a while. What is
different from the last write, as after a change of the bridge, is never held back.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from controller.api import Bridge, BridgeStatus, Condition, ConditionType
from controller.bridges import Action, ApplyClass, ClearName, Decision, Situation, Telling
from controller.watching import SeenClass

_LEAST: Final = 2.0
_MOST: Final = 300.0
_CALM: Final = 600.0
"""Seconds without a write, after which all is as if there had been no contest."""

_ROUNDS: Final = 3
"""Writes in vain, from which on the bridge says so."""


@dataclass(slots=True)
class _Contest:
    """One name: what is written; how often in vain; the delay, until when it lasts, the last write; who undoes it."""

    wanted: str
    rounds: int = 0
    delay: float = 0.0
    due: float = -math.inf
    last: float = -math.inf
    opponents: frozenset[str] = frozenset()


@dataclass(slots=True)
class Contests:
    """What is written in vain, by extended resource name; by class where no name is concerned.

    Attributes:
        least: seconds between the second and the third write of the same.
        most: seconds between two writes that it never exceeds.
    """

    least: float = _LEAST
    most: float = _MOST
    _known: dict[str, _Contest] = field(default_factory=dict)

    def wait(self, name: str, actions: Iterable[Action], classes: Mapping[str, SeenClass], *, now: float) -> float:
        """Seconds for which actions are to be held back; 0 for not at all."""
        actions = tuple(actions)
        found = self._same(name, _wanted(actions), now)
        if found is None:
            return 0.0
        found.opponents |= _opponents(actions, classes)
        return max(0.0, found.due - now)

    def wrote(self, name: str, actions: Iterable[Action], *, now: float) -> None:
        """Note that actions were carried out."""
        wanted = _wanted(tuple(actions))
        if not wanted:
            return
        found = self._same(name, wanted, now)
        if found is None:
            self._known[name] = _Contest(wanted, due=now, last=now)
            return
        found.rounds += 1
        found.delay = min(self.most, found.delay * 2 or self.least)
        found.due, found.last = now + found.delay, now

    def problem(self, name: str, *, now: float) -> str:
        """Who sets back what, for people; "" if nobody does."""
        found = self._known.get(name)
        if found is None or found.rounds < _ROUNDS or now - found.last >= _CALM:
            return ""
        who = f"field manager {', '.join(sorted(found.opponents))}" if found.opponents else "somebody"
        return (
            f"{who} sets back what is written for {name}, again and again; have it leave the DeviceClass "
            f"alone, or change the bridge; until then it is written every {self.most:g} s at most"
        )

    def forget(self, name: str) -> None:
        """No bridge wants the name any more, or the class is gone."""
        self._known.pop(name, None)

    def _same(self, name: str, wanted: str, now: float) -> _Contest | None:
        """What is known of the same write, if it was made not long ago."""
        found = self._known.get(name)
        return found if found is not None and found.wanted == wanted and now - found.last < _CALM else None


def _wanted(actions: tuple[Action, ...]) -> str:
    """What actions give to classes; where they give nothing, what they take; "" for neither."""
    given = [
        [each.name, dict(each.labels), dict(each.annotations), dict(each.spec)]
        for each in actions
        if isinstance(each, ApplyClass)
    ]
    taken = [each.name for each in actions if isinstance(each, ClearName)]
    return json.dumps(given or taken, sort_keys=True) if given or taken else ""


def _opponents(actions: Iterable[Action], classes: Mapping[str, SeenClass]) -> frozenset[str]:
    names = {each.name for each in actions if isinstance(each, ApplyClass | ClearName)}
    return frozenset(who for name in names if (seen := classes.get(name)) for who in seen.managers)


# --- what is done all the same --------------------------------------------------------------------


def hold_back(decision: Decision, situation: Situation) -> Decision:
    """Leave the classes as they are, but for what must not wait.

    Two classes with one name must not be, whoever made them so; ours is the one that gives way. Bridges that go, and
    their classes, have nothing to do with it.
    """
    kept = tuple(each for each in decision.actions if not isinstance(each, ApplyClass | ClearName))
    return replace(decision, actions=(*_give_way(situation), *kept), tellings=())


def _give_way(situation: Situation) -> Iterator[ClearName]:
    own, winner = class_of_winner(situation), winner_of(situation)
    if own is None or winner is None or own.bridge != winner.name or not own.extended_name:
        return
    if any(each.extended_name == own.extended_name for each in situation.classes.values() if each.name != own.name):
        yield ClearName(name=own.name, resource_version=own.resource_version)


def winner_of(situation: Situation) -> Bridge | None:
    """The bridge that has the name: the oldest that is not being deleted."""
    stayers = (each for each in situation.bridges if not each.deleting)
    return min(stayers, key=lambda each: (each.created, each.name), default=None)


def class_of_winner(situation: Situation) -> SeenClass | None:
    """The class that this bridge has or is to have, as it was seen."""
    winner = winner_of(situation)
    return situation.classes.get(winner.spec.device_class_name) if winner else None


# --- what is said ---------------------------------------------------------------------------------


def contested(decision: Decision, situation: Situation, problem: str, *, is_held: bool) -> Decision:
    """Have the bridge say that its class is contested, unless it has another conflict already."""
    seen = class_of_winner(situation)
    carries = seen is not None and seen.extended_name == situation.resource_name
    # What has been carried out is as it was decided.
    reasons = {ConditionType.CONFLICT: True} | ({ConditionType.READY: False} if is_held and not carries else {})
    return _said(decision, situation, "Contested", problem, reasons)


def dying(situation: Situation) -> str:
    """Why nothing can be written to the class of the bridge that has the name, for people; "" if it can."""
    seen = class_of_winner(situation)
    if seen is None or not seen.is_deleting:
        return ""
    kept = f" and kept by its finalizers: {', '.join(seen.finalizers)}; have them taken away" if seen.finalizers else ""
    return f"DeviceClass {seen.name} is being deleted{kept}; once it is gone, it is made anew"


def waits_for_end(decision: Decision, situation: Situation, problem: str) -> Decision:
    """Have the bridge say that its class is being deleted."""
    return _said(decision, situation, "ClassDeleting", problem, {ConditionType.READY: False})


def _said(
    decision: Decision, situation: Situation, reason: str, message: str, values: dict[ConditionType, bool]
) -> Decision:
    """Replace conditions of the bridge that has the name, and tell it once."""
    winner = winner_of(situation)
    status = decision.statuses.get(winner.name) if winner else None
    conflict = status.condition(ConditionType.CONFLICT) if status else None
    if winner is None or status is None or (conflict and conflict.holds):
        return decision
    new = {kind: Condition(type=kind, holds=holds, reason=reason, message=message) for kind, holds in values.items()}
    conditions = tuple(new.get(each.type, each) for each in status.conditions)
    statuses = {**decision.statuses, winner.name: replace(status, conditions=conditions)}
    told = () if _says(winner.status, reason) else (_telling(winner, reason, message),)
    return replace(decision, statuses=statuses, tellings=(*decision.tellings, *told))


def _says(status: BridgeStatus, reason: str) -> bool:
    return any(each.reason == reason for each in status.conditions)


def _telling(bridge: Bridge, reason: str, message: str) -> Telling:
    return Telling(bridge=bridge.name, uid=bridge.uid, is_warning=True, reason=reason, action="Write", note=message)
