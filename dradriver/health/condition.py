"""What has been found about one GPU, and what each new finding changes. Pure: time is always given.

A cause stays until the policy's rule for it is met; several stand beside each other, so a harmless error never takes
the place of a grave one. What a GPU says when it is asked comes at once and goes when it has been well for a while,
which grows each time it comes again.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dradriver.gpu.health import EFFECTS, Effect, Place
from dradriver.health.policy import IGNORE, Policy, Rule, Until
from dradriver.nvml import Readings

RECOVERY: Final = "recovery"
REMAP_PENDING: Final = "remap-pending"
REMAP_FAILED: Final = "remap-failed"
SRAM: Final = "sram-threshold"
FABRIC: Final = "fabric-unhealthy"
LOST: Final = "lost"
MISSING: Final = "missing"
NO_EVENTS: Final = "no-events"
NO_ANSWER: Final = "no-answer"

ORIGINS: Final = frozenset(
    {"xid", "event", RECOVERY, REMAP_PENDING, REMAP_FAILED, SRAM, FABRIC, LOST, MISSING, NO_EVENTS, NO_ANSWER}
)

FIRST_HOLD: Final = 2.0
"""Seconds for which a GPU has to be well before what it said is over, the first time."""
LONGEST_HOLD: Final = 600.0
FLAPPING_SECONDS: Final = 3600.0
"""What has come so often within this time makes the hold longer."""
LASTING: Final[Mapping[str, float]] = {MISSING: 30.0, NO_ANSWER: 60.0}
"""Seconds after which what may pass by itself is taken seriously."""
LATELY_SECONDS: Final = 60.0
"""What a GPU said within this time it is taken to say still, where somebody says that it is over."""
MOST_CAUSES: Final = 64
MOST_OFFENCES: Final = 256
_MOST_RAISES: Final = 64

_MEMORY: Final = frozenset({REMAP_PENDING, REMAP_FAILED})
_SILENT: Final = frozenset({LOST, MISSING, NO_ANSWER})
"""A GPU of which this is said says nothing itself."""
_AT_ONCE: Final = frozenset({NO_EVENTS, NO_ANSWER})
"""What is over as soon as it is not so any more."""
_ENDED_BY_RESET: Final = frozenset(Until) - {Until.REBOOT, Until.OPERATOR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Something that is wrong, as it was found; what it means the policy says.

    Attributes:
        origin: `xid` or `event` for what was reported, else one of the names above.
        detail: number of the Xid, name of the event, value of field 230, or why nobody hears.
        place: of the partition that is meant; None for all of the GPU.
        since: Unix time of the first time.
        last: of the last time.
        grave: Unix time since which it is worse than its first time said; None if it is not.
        mild: since which it is known to be harmless.
        well: since which the GPU says that it is well again, in what ends this.
    """

    origin: str
    detail: str = ""
    place: Place | None = None
    since: float
    last: float
    grave: float | None = None
    mild: float | None = None
    well: float | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What tells one cause from another."""
        return (self.origin, self.detail if self.is_report else "", self.place)

    @property
    def is_report(self) -> bool:
        """Whether it was reported once, and not said when asked."""
        return self.origin in ("xid", "event")

    def rule(self, policy: Policy) -> Rule | None:
        """Give what the policy says of a report."""
        if self.origin == "xid":
            return policy.of_xid(int(self.detail))
        return policy.events.get(self.detail) if self.origin == "event" else None

    def is_suspect(self, rule: Rule) -> bool:
        """Whether the hardware is suspected for it, by its rule."""
        return rule.suspect and self.grave is not None

    def effect(self, rule: Rule) -> str:
        """Give what a report has come to mean by its rule: an effect, or `IGNORE`."""
        if rule.effect == IGNORE:
            return IGNORE
        if self.mild is not None:
            return Effect.NONE
        graver = Effect.NO_SCHEDULE if self.is_suspect(rule) else Effect.NONE
        return max(rule.effect, graver, key=EFFECTS.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offence:
    """An error of a class that programs cause, and the claim whose program it was."""

    kind: str
    place: Place | None
    claim: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """All that is held against one GPU.

    Attributes:
        causes: each with a key of its own.
        offences: of the last hour.
        raises: origin and Unix time of what was said when asked, of the last hour.
    """

    causes: tuple[Cause, ...] = ()
    offences: tuple[Offence, ...] = ()
    raises: tuple[tuple[str, float], ...] = field(default=())

    def find(self, origin: str) -> Cause | None:
        """Find what a GPU said when it was asked."""
        return next((cause for cause in self.causes if cause.origin == origin), None)

    def without(self, drop: Callable[[Cause], bool]) -> "Condition":
        """Drop causes."""
        kept = tuple(cause for cause in self.causes if not drop(cause))
        return self if len(kept) == len(self.causes) else replace(self, causes=kept)

    def put(self, cause: Cause) -> "Condition":
        """Add a cause, or change the one with its key."""
        for index, known in enumerate(self.causes):
            if known.key == cause.key:
                return replace(self, causes=(*self.causes[:index], cause, *self.causes[index + 1 :]))
        return replace(self, causes=(*self.causes, cause))


# --- what is reported -----------------------------------------------------------------------------


def hear(
    condition: Condition,
    policy: Policy,
    *,
    origin: str,
    detail: str,
    place: Place | None,
    claims: Iterable[str],
    now: float,
) -> Condition:
    """Take in an error that a GPU reports.

    Args:
        condition: before.
        policy: what errors mean.
        origin: `xid` or `event`.
        detail: the Xid, or the event's name.
        place: of the partition that is named with it, None where none is.
        claims: UIDs of the claims that hold what it is about; where there are several, nobody knows whose program it
            was, and no claim is remembered for it.
        now: Unix time.
    """
    heard = Cause(origin=origin, detail=detail, place=place, since=now, last=now)
    condition = _contain(condition, policy, heard, now)
    rule = heard.rule(policy)
    if rule is None or rule.effect == IGNORE:
        return condition
    if rule.whole_gpu:
        heard = replace(heard, place=None)
    known = next((cause for cause in condition.causes if cause.key == heard.key), None)
    contained = _is_contained(condition, rule, now)
    if known is None:
        heard = replace(heard, mild=now if contained else None)
    elif known.mild is None or contained:
        heard = replace(known, last=now)
    condition = _suspect(condition, policy, rule, heard, claims, now)
    return _bounded(condition, policy)


def _contain(condition: Condition, policy: Policy, heard: Cause, now: float) -> Condition:
    """Where this says that an earlier error was contained, take that one for harmless."""
    for cause in condition.causes:
        rule = cause.rule(policy)
        contained = rule is not None and rule.contained_by is not None and heard.detail == str(rule.contained_by)
        known = not contained or cause.mild is not None
        if not known and heard.origin == cause.origin and abs(now - cause.last) <= policy.follow_up:
            condition = condition.put(replace(cause, mild=now))
    return condition


def _is_contained(condition: Condition, rule: Rule, now: float) -> bool:
    """Whether what says that an error was contained came before it."""
    if rule.contained_by is None:
        return False
    found = [cause for cause in condition.causes if cause.detail == str(rule.contained_by) and cause.origin == "xid"]
    return any(abs(now - cause.last) <= _ORDER_SECONDS for cause in found)


_ORDER_SECONDS: Final = 5.0
"""Errors that belong together are reported within moments, in either order."""


def _suspect(
    condition: Condition, policy: Policy, rule: Rule, heard: Cause, claims: Iterable[str], now: float
) -> Condition:
    """Hold an error against the hardware rather than the program, where several claims met one of its class."""
    if not rule.suspect:
        return condition.put(heard)
    begin = now - policy.suspect_seconds
    known = {(one.kind, one.place, one.claim): one for one in condition.offences if one.at >= begin}
    possible = tuple(claims)
    for claim in possible if len(possible) == 1 else ():
        known[rule.kind, heard.place, claim] = Offence(kind=rule.kind, place=heard.place, claim=claim, at=now)
    offenders = {claim for kind, place, claim in known if (kind, place) == (rule.kind, heard.place)}
    if len(offenders) >= policy.suspect_claims and heard.grave is None:
        heard = replace(heard, grave=now)
    return replace(condition, offences=tuple(known.values())[-MOST_OFFENCES:]).put(heard)


def _bounded(condition: Condition, policy: Policy) -> Condition:
    """Of too many, drop the mildest; of equals what another says as well, and the newest, as the older is published."""
    if len(condition.causes) <= MOST_CAUSES:
        return condition
    reports = [cause for cause in condition.causes if cause.is_report]
    alone = {_subject(cause, policy): cause for cause in sorted(reports, key=lambda one: -one.since)}
    gravities = {id(cause): _gravity(cause, policy) for cause in reports}
    dropped = min(reports, key=lambda one: (gravities[id(one)], one in alone.values(), -one.since))
    return condition.without(lambda cause: cause is dropped)


def _subject(cause: Cause, policy: Policy) -> tuple[object, ...]:
    rule = cause.rule(policy)
    return (rule and rule.kind, cause.place, _gravity(cause, policy))


def _gravity(cause: Cause, policy: Policy) -> int:
    """Give how grave a report is by now, -1 where it says nothing."""
    rule = cause.rule(policy)
    return -1 if rule is None else _rank(cause, rule)


# --- what is said when asked ----------------------------------------------------------------------


def read(condition: Condition, policy: Policy, readings: Readings, now: float) -> Condition:
    """Take in what a GPU says when it is asked; what it does not tell changes nothing."""
    said: dict[str, str | None] = {
        RECOVERY: None if readings.recovery is None else str(readings.recovery or ""),
        REMAP_PENDING: _flag(readings.remap_pending),
        REMAP_FAILED: _flag(readings.remap_failure),
        SRAM: _flag(readings.sram_exceeded),
        FABRIC: {"healthy": "", "unhealthy": "yes"}.get(readings.fabric or ""),
        LOST: "",
        MISSING: "",
        NO_ANSWER: "",
    }
    for origin, detail in said.items():
        if detail is not None:
            condition = raise_(condition, origin, detail, now) if detail else _recover(condition, policy, origin, now)
    return _outweigh(condition, policy, readings, now)


def _flag(value: bool | None) -> str | None:  # noqa: FBT001 (a reading)
    return None if value is None else "yes" * value


def raise_(condition: Condition, origin: str, detail: str, now: float) -> Condition:
    """Note that something is wrong now; it stays until `read` says otherwise, or `lower` does.

    Args:
        condition: before.
        origin: one of the names above.
        detail: more of it.
        now: Unix time.
    """
    if origin in _SILENT:
        condition = replace(condition, causes=tuple(replace(cause, well=None) for cause in condition.causes))
    known = condition.find(origin)
    if known is not None:
        # Another action is another taint; of anything else the first words are kept, so that they do not change on.
        changed = origin == RECOVERY and known.detail != detail
        fresh = replace(known, detail=detail, since=now) if changed else known
        return condition.put(replace(fresh, last=now, well=None))
    raises = condition.raises if origin in _AT_ONCE else (*condition.raises, (origin, now))[-_MOST_RAISES:]
    return replace(condition, raises=raises).put(Cause(origin=origin, detail=detail, since=now, last=now))


def lower(condition: Condition, origin: str) -> Condition:
    """Note that something is not wrong any more."""
    return condition.without(lambda cause: cause.origin == origin)


def _recover(condition: Condition, policy: Policy, origin: str, now: float) -> Condition:
    """Note that a GPU says that it is well again, in one respect; it has to say so for a while."""
    cause = condition.find(origin)
    if cause is None:
        return condition
    well = now if cause.well is None else cause.well
    if origin not in _AT_ONCE and now - well < _hold(condition, origin, now):
        return condition.put(replace(cause, well=well))
    condition = lower(condition, origin)
    # One that says that it must still be reset was only out of reach, and not reset meanwhile.
    if origin == RECOVERY or (origin in (LOST, MISSING) and condition.find(RECOVERY) is None):
        return came_back(condition, policy, before=well)
    return _end(condition, policy, {Until.MEMORY}, before=well) if origin in _MEMORY else condition


def _hold(condition: Condition, origin: str, now: float) -> float:
    times = sum(name == origin and now - at < FLAPPING_SECONDS for name, at in condition.raises)
    return float(min(FIRST_HOLD * 2 ** max(0, times - 1), LONGEST_HOLD))


def _outweigh(condition: Condition, policy: Policy, readings: Readings, now: float) -> Condition:
    """Let what the GPU says of itself for a while outweigh what was reported before."""
    silent = any(condition.find(origin) for origin in (RECOVERY, LOST, MISSING))
    recovered = None if readings.recovery is None else readings.recovery == 0 and not silent
    fabric = None if readings.fabric is None else readings.fabric == "healthy"
    said = {
        Until.RECOVERY: recovered,
        # Where it has no word for that, it says by answering that it is not lost.
        Until.ANSWERS: not silent if recovered is None else recovered,
        Until.FABRIC: fabric,
    }
    for cause in condition.causes:
        rule = cause.rule(policy)
        if rule is None or cause.mild is not None or (well := said.get(rule.until)) is None:
            continue
        condition = _believe(condition, policy, cause, now) if well else condition.put(replace(cause, well=None))
    return condition


def _believe(condition: Condition, policy: Policy, cause: Cause, now: float) -> Condition:
    """Note that a GPU says of a report that it is over."""
    well = max(cause.last, now if cause.well is None else cause.well)
    rule = cause.rule(policy)
    if now - well < policy.recovery_patience:
        return condition.put(replace(cause, well=well))
    if rule is not None and rule.until is Until.RECOVERY:
        return condition.put(replace(cause, mild=now, well=None))
    return condition.without(lambda one: one is cause)


# --- what ends ------------------------------------------------------------------------------------


def came_back(condition: Condition, policy: Policy, *, before: float) -> Condition:
    """End what a reset ends, as far as it was reported before that Unix time.

    What the GPU said when it was asked is read anew: where it is well, the first wait for that is over.
    """
    condition = replace(_end(condition, policy, _ENDED_BY_RESET, before=before), offences=())
    for cause in condition.causes:
        if cause.origin in (RECOVERY, LOST, MISSING) and cause.well is None:
            condition = condition.put(replace(cause, well=before - FIRST_HOLD))
    return condition


def cleared(condition: Condition, now: float) -> Condition:
    """End what somebody says is over: all but what the GPU said lately, which it would say again in a moment."""
    return Condition(
        causes=tuple(one for one in condition.causes if not one.is_report and now - one.last < LATELY_SECONDS)
    )


def rejudged(condition: Condition, before: Policy, now: Policy, at: float) -> Condition:
    """Let causes that another policy takes more seriously begin anew: tolerationSeconds count from then on."""
    for cause in condition.causes:
        old, new = cause.rule(before), cause.rule(now)
        if old is not None and new is not None and _rank(cause, old) < _rank(cause, new):
            condition = condition.put(replace(cause, since=at))
    return condition


def _rank(cause: Cause, rule: Rule) -> int:
    effect = cause.effect(rule)
    return -1 if effect == IGNORE else EFFECTS.index(effect)


def merged(kept: Condition, own: Condition, *, since: float) -> Condition:
    """Add to what another process has kept what this one has found itself, since that Unix time.

    Of a cause that both know the other's first time counts, by which its taint was published.
    """
    for cause in own.causes:
        known = next((one for one in kept.causes if one.key == cause.key), None)
        if known is None and cause.last > since:
            kept = kept.put(cause)
        elif known is not None:
            kept = kept.put(replace(cause, since=min(cause.since, known.since), last=max(cause.last, known.last)))
    offences = {(one.kind, one.place, one.claim): one for one in (*own.offences, *kept.offences)}
    return replace(kept, offences=tuple(offences.values())[-MOST_OFFENCES:])


def rebooted(condition: Condition, policy: Policy, now: float) -> Condition:
    """End what a start of the node ends, and what is known again as soon as the GPUs are asked."""
    condition = _not_ahead(condition, now)
    for origin in (LOST, MISSING, NO_EVENTS, NO_ANSWER):
        condition = lower(condition, origin)
    return came_back(_end(condition, policy, {Until.REBOOT}, before=now), policy, before=now)


def _end(condition: Condition, policy: Policy, until: Iterable[Until], *, before: float) -> Condition:
    return condition.without(
        lambda cause: (rule := cause.rule(policy)) is not None and rule.until in until and cause.last <= before
    )


def pass_time(condition: Condition, policy: Policy, now: float) -> Condition:
    """End what has expired, and take seriously what lasts."""
    condition = _not_ahead(condition, now)
    condition = condition.without(lambda cause: _has_expired(cause, policy, now))
    for cause in condition.causes:
        limit = LASTING.get(cause.origin)
        if limit is not None and cause.grave is None and cause.well is None and now - cause.since >= limit:
            condition = condition.put(replace(cause, grave=now))
    raises = tuple(one for one in condition.raises if now - one[1] < FLAPPING_SECONDS)
    offences = tuple(one for one in condition.offences if now - one.at <= policy.suspect_seconds)
    return replace(condition, raises=raises, offences=offences)


def _not_ahead(condition: Condition, now: float) -> Condition:
    """Take for now what seems to lie ahead since the clock was turned back: else it would last until then."""
    return replace(
        condition,
        causes=tuple(_cause_not_ahead(cause, now) for cause in condition.causes),
        offences=tuple(replace(one, at=min(one.at, now)) for one in condition.offences),
        raises=tuple((origin, min(at, now)) for origin, at in condition.raises),
    )


def _cause_not_ahead(cause: Cause, now: float) -> Cause:
    return replace(
        cause,
        since=min(cause.since, now),
        last=min(cause.last, now),
        grave=None if cause.grave is None else min(cause.grave, now),
        mild=None if cause.mild is None else min(cause.mild, now),
        well=None if cause.well is None else min(cause.well, now),
    )


def _has_expired(cause: Cause, policy: Policy, now: float) -> bool:
    rule = cause.rule(policy)
    if cause.origin == "event" and rule is None:
        return True
    if rule is None:
        return False
    if cause.is_suspect(rule):
        # A program that fails again and again as another claim each time must not take GPUs out of use for good.
        return now - cause.last >= policy.suspect_seconds
    passes = cause.mild is not None or rule.until is Until.EXPIRY or _only_tells(rule)
    return passes and now - max(cause.last, cause.mild or 0.0) >= policy.expiry


def _only_tells(rule: Rule) -> bool:
    """What keeps no pod away is told for a while, unless only a person can say that it is over."""
    return rule.effect in (Effect.NONE, IGNORE) and rule.until is not Until.OPERATOR
