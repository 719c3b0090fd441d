"""What errors and readings mean: the table in `policy.toml`, and what an administrator wants otherwise."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

from dradriver import api
from dradriver.gpu.health import EFFECTS, Effect, HealthWishes

IGNORE: Final = "ignore"

WORDS: Final[Mapping[str, str]] = {
    "ignore": IGNORE,
    "warn": Effect.NONE,
    "noSchedule": Effect.NO_SCHEDULE,
    "noExecute": Effect.NO_EXECUTE,
}
"""How an administrator says an effect."""

_KEYS: Final = {"recovery": api.TaintKey.RECOVERY, "memory": api.TaintKey.MEMORY}


class Until(StrEnum):
    """What ends an error, see `policy.toml`."""

    EXPIRY = "expiry"
    RECOVERY = "recovery"
    RESET = "reset"
    ANSWERS = "answers"
    REBOOT = "reboot"
    MEMORY = "memory"
    FABRIC = "fabric"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What one error means.

    Attributes:
        kind: class of the error.
        effect: of its taints, or `IGNORE`.
        whole_gpu: also where the error names a partition.
        until: what ends it.
        step: the next step, for people.
        taints: keys and values, beside the one with the Xid.
        suspect: errors of this class from several claims make the hardware suspect.
        contained_by: Xid that says that this one was contained; None for most.
        strict: effect where memory is to be taken more seriously; None where that is the same.
    """

    kind: str
    effect: str
    whole_gpu: bool
    until: Until
    step: str
    taints: tuple[tuple[str, str], ...] = ()
    suspect: bool = False
    contained_by: int | None = None
    strict: str | None = None

    def with_effect(self, effect: str) -> "Rule":
        """Give the rule the effect that an administrator chose, which other errors then neither raise nor lower.

        What ends it stays, but for what was made milder to only tell, which comes to an end by itself.
        """
        until = Until.EXPIRY if effect == Effect.NONE and self.effect != Effect.NONE else self.until
        taints = self.taints if effect in (self.effect, *EFFECTS[1:]) else ()
        return replace(self, effect=effect, until=until, taints=taints, suspect=False, contained_by=None)

    @property
    def in_strict(self) -> "Rule":
        """The rule where memory is to be taken more seriously."""
        return self if self.strict is None else replace(self, effect=self.strict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What something that a GPU says when it is asked means."""

    key: str
    value: str
    effect: str
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The whole table, with what the administrator wants.

    Attributes:
        xids: by number.
        unknown: for all other Xids.
        events: for events that are no Xids, by name.
        recovery: for values of NVML's field 230 but 0; None is for values that have no name.
        readings: by name.
        expiry: seconds for which something is told that ends by itself.
        suspect_claims: so many claims with errors of one class
        suspect_seconds: within so many seconds make the hardware suspect.
        follow_up: seconds before and after an error in which another may say that it was contained.
        recovery_patience: seconds after which field 230 outweighs an error.
    """

    xids: Mapping[int, Rule]
    unknown: Rule
    events: Mapping[str, Rule]
    recovery: Mapping[int | None, Reading]
    readings: Mapping[str, Reading]
    expiry: int
    suspect_claims: int
    suspect_seconds: int
    follow_up: int
    recovery_patience: int
    strict: Mapping[str, str] = field(default_factory=dict)

    def of_xid(self, number: int) -> Rule:
        """Give the rule for an Xid."""
        return self.xids.get(number, self.unknown)

    def of_recovery(self, action: int) -> Reading:
        """Give what a value of field 230 but 0 means."""
        return self.recovery.get(action, self.recovery[None])

    def adapted(self, wishes: HealthWishes) -> "Policy":
        """Do what the administrator wants otherwise."""
        xids = {number: rule.in_strict if wishes.strict_memory else rule for number, rule in self.xids.items()}
        for number, word in wishes.xids.items():
            xids[number] = xids.get(number, self.unknown).with_effect(WORDS[word])
        unknown = self.unknown if wishes.unknown_xids is None else self.unknown.with_effect(WORDS[wishes.unknown_xids])
        readings = {**self.readings}
        if wishes.strict_memory:
            readings |= {name: replace(readings[name], effect=effect) for name, effect in self.strict.items()}
        expiry = self.expiry if wishes.expiry_seconds is None else wishes.expiry_seconds
        return replace(self, xids=xids, unknown=unknown, readings=readings, expiry=expiry)


@lru_cache(maxsize=1)
def default_policy() -> Policy:
    """Read the table that comes with this program."""
    return parse(files("dradriver.health").joinpath("policy.toml").read_text())


def parse(text: str) -> Policy:
    """Understand a table.

    Raises:
        ValueError: it is not as its head says, with the place.
    """
    try:
        return _policy(tomllib.loads(text))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the table of errors lacks or has something that its head does not say: {error!r}") from error


def _policy(table: Mapping[str, Any]) -> Policy:
    recovery = {
        None if key == "other" else int(key): _reading(row | {"key": "recovery"})
        for key, row in table["recovery"].items()
    }
    return Policy(
        xids=_xids(table["xid"]),
        unknown=_rule(table["unknown"]),
        events={name: _rule(row) for name, row in table["event"].items()},
        recovery=recovery,
        readings={name: _reading(row) for name, row in table["reading"].items()},
        expiry=table["expiry_seconds"],
        suspect_claims=table["suspect_claims"],
        suspect_seconds=table["suspect_seconds"],
        follow_up=table["follow_up_seconds"],
        recovery_patience=table["recovery_seconds"],
        strict={name: row["strict"] for name, row in table["reading"].items() if "strict" in row},
    )


def _xids(rows: Iterable[Mapping[str, Any]]) -> dict[int, Rule]:
    found: dict[int, Rule] = {}
    for row in rows:
        for number in _numbers(row["xids"]):
            if number in found:
                raise ValueError(f"Xid {number} stands in two rows: {found[number].kind} and {row['class']}")
            found[number] = _rule(row)
    return found


def _numbers(entries: Iterable[int | str]) -> Iterator[int]:
    for entry in entries:
        first, _, last = str(entry).partition("-")
        yield from range(int(first), int(last or first) + 1)


def _rule(row: Mapping[str, Any]) -> Rule:
    return Rule(
        kind=row["class"],
        effect=_effect(row["effect"], row["class"]),
        whole_gpu=row["scope"] == "gpu",
        until=Until(row["until"]),
        step=row["step"],
        taints=tuple((key, row[name]) for name, key in _KEYS.items() if name in row),
        suspect=row.get("suspect", False),
        contained_by=row.get("contained_by"),
        strict=_effect(row["strict"], row["class"]) if "strict" in row else None,
    )


def _reading(row: Mapping[str, Any]) -> Reading:
    effect = _effect(row["effect"], row["value"])
    return Reading(key=_KEYS[row["key"]], value=row["value"], effect=effect, step=row["step"])


def _effect(word: str, where: str) -> str:
    if word not in (*EFFECTS, IGNORE):
        raise ValueError(f"{where}: effect {word!r} is none of {', '.join((*EFFECTS, IGNORE))}")
    return word
