"""What is to be done about one extended resource name.

All bridges and classes that touch a name are decided on together. The rule over all others: never do two classes carry
one name by our doing. So a name is taken away first and given afterwards, and not given at all as long as a class of
somebody else carries it that we may not touch.

The scheduler of Kubernetes 1.35 to 1.37 forgets a name when one of two classes that carried it loses it or is deleted
(kubernetes#141103), although the other still carries it. To take it away from that one and give it back mends this,
also for pods that are pending already, for which a mere touch would not.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from controller.api import FINALIZER, Bridge, BridgeStatus, Condition, ConditionType, Mode
from controller.bridges import telling
from controller.bridges.actions import (
    Action,
    AddFinalizer,
    ApplyClass,
    ClearName,
    DeleteClass,
    RemoveFinalizer,
)
from controller.bridges.base import restore
from controller.bridges.classes import is_as_wanted, wanted_class
from controller.bridges.conditions import conflict_of, inert, leaving, misconfigured, status_of, with_waiting, yielding
from controller.bridges.configs import problem_of
from controller.bridges.handing import release
from controller.bridges.owning import by_age
from controller.bridges.situation import Decision, Situation, Telling
from controller.watching.model import SeenClass


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What is to be done for one bridge: `first` before any other class loses the name, `actions` after that."""

    first: tuple[Action, ...] = ()
    actions: tuple[Action, ...] = ()
    status: BridgeStatus | None = None
    tellings: tuple[Telling, ...] = ()


def decide(situation: Situation) -> Decision:
    """Decide; the same situation always gives the same decision, and one that has been carried out gives no actions."""
    leavers = [bridge for bridge in situation.bridges if bridge.deleting]
    stayers = sorted((each for each in situation.bridges if not each.deleting), key=by_age)
    if situation.unsupported:
        return _inert(situation, stayers, leavers)
    winner = stayers[0] if stayers else None
    problem = problem_of(winner.spec.config) if winner else ""
    cleared = tuple(_to_be_cleared(situation, None if problem else winner))
    main = _main(situation, winner, cleared, problem)
    others = {bridge.name: yielding(bridge, to=stayers[0]) for bridge in stayers[1:]}
    farewells = {bridge.name: _farewell(situation, bridge) for bridge in leavers}
    statuses = others | {name: part.status for name, part in farewells.items() if part.status is not None}
    if winner and main.status:
        statuses[winner.name] = main.status
    statuses = _with_waiting(situation, statuses)
    parts = [main, *farewells.values()]
    return Decision(
        actions=(
            *main.first,
            *(_clear(each) for each in cleared),
            *(action for part in parts for action in part.actions),
        ),
        statuses=statuses,
        tellings=(
            *(telling.cleared(winner, each, situation.resource_name) for each in cleared if winner),
            *(each for part in parts for each in part.tellings),
            *_news(situation.bridges, statuses),
        ),
        rivals=_rivals(situation, winner, cleared),
    )


def _main(situation: Situation, winner: Bridge | None, cleared: Sequence[SeenClass], problem: str) -> _Part:
    if winner is None:
        return _Part()
    return _unconfigured(situation, winner, problem) if problem else _winner(situation, winner, cleared)


def _inert(situation: Situation, stayers: Iterable[Bridge], leavers: Iterable[Bridge]) -> Decision:
    """Touch nothing, but let those go that are to go."""
    farewells = [_farewell(situation, bridge) for bridge in leavers]
    statuses = _with_waiting(situation, {bridge.name: inert(bridge, situation.unsupported) for bridge in stayers})
    return Decision(
        actions=tuple(action for part in farewells for action in part.actions),
        statuses=statuses,
        tellings=tuple(_news(situation.bridges, statuses)),
        rivals=situation.rivals,
    )


def _with_waiting(situation: Situation, statuses: dict[str, BridgeStatus]) -> dict[str, BridgeStatus]:
    bridges = {bridge.name: bridge for bridge in situation.bridges}
    return {name: with_waiting(situation, bridges[name], status) for name, status in statuses.items()}


# --- who carries the name -------------------------------------------------------------------------


def _carriers(situation: Situation, winner: Bridge | None) -> list[SeenClass]:
    """Classes with the name, but for the winner's own."""
    own = winner.spec.device_class_name if winner else ""
    found = (each for each in situation.classes.values() if each.extended_name == situation.resource_name)
    return sorted((each for each in found if each.name != own), key=lambda each: each.name)


def _to_be_cleared(situation: Situation, winner: Bridge | None) -> Iterator[SeenClass]:
    """Classes that lose the name: those of other bridges, and with `adopt` those of anybody."""
    leavers = {bridge.name for bridge in situation.bridges if bridge.deleting}
    for each in _carriers(situation, winner):
        if (winner and (each.is_ours or winner.spec.adopt)) or each.bridge in leavers - {""}:
            yield each


def _rivals(situation: Situation, winner: Bridge | None, cleared: Sequence[SeenClass]) -> frozenset[str]:
    return frozenset(each.name for each in _carriers(situation, winner) if each not in cleared)


# --- the bridge that has the name -----------------------------------------------------------------


def _winner(situation: Situation, bridge: Bridge, cleared: Sequence[SeenClass]) -> _Part:
    seen = situation.classes.get(bridge.spec.device_class_name)
    conflict = conflict_of(situation, bridge, _rivals(situation, bridge, cleared))
    if conflict and conflict.reason in {"ClassNotOurs", "ClassOfAnotherBridge"}:
        return _Part(actions=tuple(_keep(bridge)), status=status_of(situation, bridge, conflict, carries=False))
    had = seen is not None and seen.extended_name == bridge.spec.resource_name
    carries = _shall_carry(situation, bridge, conflict, had=had)
    wanted = wanted_class(bridge, seen, carries=carries, writer=situation.writer)
    is_healing = had and carries and _is_to_be_healed(situation, bridge, cleared)
    return _Part(
        first=(*_keep(bridge), *_withdraw(seen, wanted, is_healing=is_healing)),
        actions=tuple(_write(seen, wanted, is_healing=is_healing)),
        status=status_of(situation, bridge, conflict, carries=carries),
        tellings=tuple(telling.written(bridge, seen, wanted, is_healing=is_healing)),
    )


def _unconfigured(situation: Situation, bridge: Bridge, problem: str) -> _Part:
    """Leave the class as it is, so that pods that ran well go on doing so; but what is disabled gives its name away."""
    seen = situation.classes.get(bridge.spec.device_class_name)
    is_over = bridge.spec.mode is Mode.DISABLED and seen is not None and seen.bridge == bridge.name
    gives = (_clear(seen),) if seen is not None and is_over and seen.extended_name else ()
    return _Part(actions=(*_keep(bridge), *gives), status=misconfigured(situation, bridge, problem))


def _shall_carry(situation: Situation, bridge: Bridge, conflict: Condition | None, *, had: bool) -> bool:
    """Whether the class shall have the name. Once it has, neither a conflict nor a lack of nodes takes it away."""
    if bridge.spec.mode is Mode.DISABLED:
        return False
    if had:
        return True
    nodes = situation.nodes.get(bridge.name)
    is_ready = bridge.spec.mode is Mode.ENABLED or (nodes is not None and nodes.dra > 0)
    return is_ready and conflict is None


def _is_to_be_healed(situation: Situation, bridge: Bridge, cleared: Sequence[SeenClass]) -> bool:
    """Whether a class that carried the name beside ours loses it now, or has lost it since we last looked.

    What was seen is remembered by this process, and over its end by the bridge's status. As long as a class that we may
    not touch carries the name too, ours does not give it away: it would not get it back.
    """
    if _rivals(situation, bridge, cleared):
        return False
    former = bridge.status.condition(ConditionType.CONFLICT)
    had_conflict = former is not None and bool(former.holds) and former.reason == "NameOnOtherClass"
    return bool(cleared) or bool(situation.rivals - {bridge.spec.device_class_name}) or had_conflict


def _withdraw(seen: SeenClass | None, wanted: ApplyClass, *, is_healing: bool) -> Iterator[Action]:
    """Take a name from the bridge's own class.

    To heal, this comes before others lose the name: whenever we are interrupted, ours has no name then and gets it
    anew. Else, because applying without the field would leave it there if somebody else owns it.
    """
    if seen is not None and (is_healing or seen.extended_name not in {"", wanted.extended_name}):
        yield _clear(seen)


def _write(seen: SeenClass | None, wanted: ApplyClass, *, is_healing: bool) -> Iterator[Action]:
    if seen is None or is_healing or not is_as_wanted(seen, wanted):
        yield wanted


def _clear(seen: SeenClass) -> ClearName:
    return ClearName(name=seen.name, resource_version=seen.resource_version)


def _keep(bridge: Bridge) -> Iterator[Action]:
    """Before anything is made for it."""
    if FINALIZER not in bridge.finalizers:
        yield AddFinalizer(
            bridge=bridge.name,
            resource_version=bridge.resource_version,
            finalizers=(*bridge.finalizers, FINALIZER),
        )


# --- bridges that go ------------------------------------------------------------------------------


def _farewell(situation: Situation, bridge: Bridge) -> _Part:
    """Remove what was made for a bridge, unless claims need it, and let the bridge go."""
    seen = situation.classes.get(bridge.spec.device_class_name)
    mine = seen if seen is not None and _belongs(situation, seen, bridge) else None
    # A class that stays needs nobody's leave.
    stays = mine is None or mine.is_adopted or mine.is_base
    users = () if stays else situation.users.get(bridge.spec.device_class_name, ())
    if users and not bridge.forced:
        status = leaving(bridge, users)
        return _Part(status=status)
    if FINALIZER not in bridge.finalizers:
        return _Part()
    left = tuple(each for each in bridge.finalizers if each != FINALIZER)
    gone = RemoveFinalizer(bridge=bridge.name, resource_version=bridge.resource_version, finalizers=left)
    return _Part(actions=(*_dismiss(mine), gone), tellings=tuple(telling.dismissed(bridge, mine)))


def _belongs(situation: Situation, seen: SeenClass, bridge: Bridge) -> bool:
    """Whether a class was made for a bridge; if somebody took the label away that says so, nobody else may have it."""
    is_unmarked = seen.is_ours and not seen.bridge
    return seen.bridge == bridge.name or (is_unmarked and situation.owners.get(seen.name, bridge.name) == bridge.name)


def _dismiss(seen: SeenClass | None) -> Iterator[Action]:
    if seen is None:
        return
    if seen.is_base:
        yield from restore(seen.name, seen)
    elif seen.is_adopted:
        yield release(seen)
    else:
        yield DeleteClass(name=seen.name, uid=seen.uid, resource_version=seen.resource_version)


def _news(bridges: Iterable[Bridge], statuses: dict[str, BridgeStatus]) -> Iterator[Telling]:
    for bridge in bridges:
        if bridge.name in statuses:
            yield from telling.changed(bridge, statuses[bridge.name])
