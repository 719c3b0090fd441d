"""`dradriver health table`: prints what errors of GPUs mean, as the driver has it or as a configuration wants it."""

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from dradriver import api
from dradriver.commands import printing
from dradriver.commands import wishes as told
from dradriver.commands.wishes import CommandError, UsageError
from dradriver.gpu.health import Effect
from dradriver.health import condition as found
from dradriver.health.condition import Cause, Condition
from dradriver.health.endings import BY_RULE, passes
from dradriver.health.policy import IGNORE, Policy, Reading, Rule, Until, default_policy
from dradriver.health.verdict import marks

NAME: Final = "dradriver health table"
_SAYS: Final = "says"
"""As long as the GPU says so."""

_TOLD_AS: Final[Mapping[str, str]] = {
    found.REMAP_PENDING: "memory waits for a reset to be repaired",
    found.REMAP_FAILED: "memory cannot be repaired",
    found.SRAM: "SRAM has had too many errors",
    found.FABRIC: "NVLink fabric is not healthy",
}
_UNHEARD: Final[Mapping[str, tuple[str, str]]] = {
    found.LOST: ("the GPU is lost", "reset it, or reboot the node"),
    found.MISSING: ("the GPU is not there any more", "see the kernel's log on the node, or reboot it"),
    found.NO_EVENTS: ("the GPU cannot be heard", "see the plugin's log"),
    found.NO_ANSWER: ("the GPU does not say how it is", "see the plugin's log for what hangs in the driver"),
}
"""What is wrong, and the next step."""


class Form(StrEnum):
    """How it is printed."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one error, or several of one kind, mean; every field as a person reads it."""

    error: str
    kind: str
    effect: str
    scope: str
    until: str
    taints: tuple[str, ...]
    step: str

    @property
    def cells(self) -> tuple[str, ...]:
        """In the order of `_HEAD`."""
        taints = ", ".join(self.taints) or "-"
        return self.error, self.kind, self.effect, self.scope, self.until, taints, self.step or "-"


_HEAD: Final = ("error", "class", "effect", "hits", "until", "taints", "next step")


def main(arguments: Sequence[str]) -> int:
    """Do what the words say; returns the exit status.

    Raises:
        CommandError: there is no such policy, or its file has mistakes.
    """
    values = _parser().parse_args(arguments)
    policy = _policy(values.node_config, values.policy)
    write = {Form.TABLE: _table, Form.JSON: _json, Form.MARKDOWN: markdown}[values.output]
    printing.write(write(policy))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "-o", "--output", type=Form, choices=list(Form), default=Form.TABLE, help="table (default), json or markdown"
    )
    parser.add_argument(
        "--node-config",
        type=Path,
        default=told.variable("NODE_CONFIG") or None,
        metavar="FILE",
        help="file of node configurations in which health policies are looked up [NODE_CONFIG]",
    )
    parser.add_argument("--policy", default="", metavar="NAME", help="which health policy (default: the driver's own)")
    return parser


def _policy(path: Path | None, name: str) -> Policy:
    if not name:
        return default_policy()
    # Takes pydantic, a quarter of a second.
    from dradriver.api.node_config import Decoded  # noqa: PLC0415
    from dradriver.nodeconfig import file  # noqa: PLC0415
    from dradriver.nodeconfig.policy import make_wishes  # noqa: PLC0415

    try:
        decoded = Decoded() if path is None else file.read(path)
    except OSError as error:
        raise CommandError(f"{path}: it cannot be read: {error.strerror}") from error
    problems = decoded.problems + tuple(decoded.broken_policies.get(name, ()))
    if problems:
        raise CommandError("\n".join(f"{path}: {problem}" for problem in problems))
    if name not in decoded.policies:
        there = ", ".join(sorted([*decoded.policies, *decoded.broken_policies]))
        where = "without --node-config FILE" if path is None else f"in {path}"
        raise UsageError(f"there is no health policy {name!r} {where}; there is {there}")
    return default_policy().adapted(make_wishes(decoded.policies[name]))


# --- the rows -------------------------------------------------------------------------------------


def rows(policy: Policy) -> Iterator[Row]:
    """Describe a policy: what GPUs report, then what they say when they are asked."""
    grouped: dict[Rule, list[int]] = {}
    for number, rule in policy.xids.items():
        grouped.setdefault(rule, []).append(number)
    for rule, numbers in grouped.items():
        yield _of_rule(f"Xid {_ranges(numbers)}", rule, xid=True)
    yield _of_rule("any other Xid", policy.unknown, xid=True)
    for name, rule in policy.events.items():
        yield _of_rule(f"event {name}", rule, xid=False)
    for reading, actions in _actions(policy).items():
        yield _of_reading(f"recovery action {actions}", reading, reading.effect)
    for origin, reading in policy.readings.items():
        yield _of_reading(_TOLD_AS[origin], reading, _strict(reading.effect, policy.strict.get(origin)))
    for origin, (error, step) in _UNHEARD.items():
        yield _of_unheard(origin, error, step, policy)


def _of_rule(error: str, rule: Rule, *, xid: bool) -> Row:
    taints = [f"{api.TaintKey.XID}=<Xid>"] * xid + [f"{key}={value}" for key, value in rule.taints]
    until = rule.until if rule.until is Until.EXPIRY or not passes(rule) else f"{rule.until}, {Until.EXPIRY}"
    ignored = rule.effect == IGNORE
    return Row(
        error=error,
        kind=rule.kind,
        effect=_effect(rule),
        scope="-" if ignored else "GPU" if rule.whole_gpu else "partition, else GPU",
        until="-" if ignored else until,
        taints=() if ignored else tuple(taints),
        step=rule.step,
    )


def _effect(rule: Rule) -> str:
    if rule.suspect and rule.effect == Effect.NONE:
        return f"{rule.effect}; {Effect.NO_SCHEDULE} if suspect"
    if rule.contained_by is not None and rule.effect not in (IGNORE, Effect.NONE):
        return f"{rule.effect}; {Effect.NONE} with Xid {rule.contained_by}"
    return _strict(rule.effect, rule.strict)


def _strict(effect: str, strict: str | None) -> str:
    return effect if strict in (None, effect) else f"{effect}; {strict} if strict"


def _actions(policy: Policy) -> Mapping[Reading, str]:
    grouped: dict[Reading, list[int | None]] = {}
    for action, reading in policy.recovery.items():
        grouped.setdefault(reading, []).append(action)
    return {reading: _numbers(actions) for reading, actions in grouped.items()}


def _numbers(actions: Iterable[int | None]) -> str:
    return ", ".join("of any other number" if action is None else str(action) for action in actions)


def _of_reading(error: str, reading: Reading, effect: str) -> Row:
    taint = f"{reading.key}={reading.value}"
    return Row(error=error, kind="-", effect=effect, scope="GPU", until=_SAYS, taints=(taint,), step=reading.step)


def _of_unheard(origin: str, error: str, step: str, policy: Policy) -> Row:
    """Describe what the policy does not decide, by asking for a verdict."""
    cause = Cause(origin=origin, since=0.0, last=0.0)
    lasting = Cause(origin=origin, since=0.0, last=0.0, grave=0.0)
    first, later = (marks(Condition(causes=(one,)), policy, "")[0] for one in (cause, lasting))
    seconds = found.LASTING.get(origin)
    worse = first.effect != later.effect and seconds is not None
    effect = f"{first.effect}; {later.effect} after {seconds:.0f} s" if worse else first.effect
    return Row(error=error, kind="-", effect=effect, scope="GPU", until=_SAYS, taints=(first.key,), step=step)


def _ranges(numbers: Iterable[int]) -> str:
    """Write `8, 11, 39-41`: three and more in a row become a range."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)  # noqa: PLR2004


# --- as text --------------------------------------------------------------------------------------


def legend(policy: Policy) -> Mapping[str, str]:
    """Explain the words in the columns `until` and `effect`."""
    untils = {str(until): text for until, text in BY_RULE.items() if until is not Until.EXPIRY}
    return {
        Until.EXPIRY.value: f"{policy.expiry} s after it was reported last; or a reset of the GPU",
        **untils,
        _SAYS: "the GPU does not say so any more, and has not for a while",
        "suspect": f"errors of one class in {policy.suspect_claims} claims within {policy.suspect_seconds // 60} min",
        "strict": "the health policy says `memory: strict`",
    }


def _table(policy: Policy) -> str:
    table = printing.aligned([tuple(map(str.upper, _HEAD)), *(row.cells for row in rows(policy))])
    return f"{table}\n{printing.aligned([(f'{word}:', text) for word, text in legend(policy).items()])}"


def markdown(policy: Policy) -> str:
    """Write the tables of docs/health.md."""
    lines = [_HEAD, ("---",) * len(_HEAD), *(row.cells for row in rows(policy))]
    words = [("word", "meaning"), ("---", "---"), *((f"`{word}`", text) for word, text in legend(policy).items())]
    return f"{_lines(lines)}\n{_lines(words)}"


def _lines(lines: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(map(_escaped, line))} |\n" for line in lines)


def _escaped(cell: str) -> str:
    """Write taints as code, since `<Xid>` would be taken for a tag."""
    return re.sub(r"[a-z.]+/[a-z-]+(=[^,\s]+)?", r"`\g<0>`", cell)


def _json(policy: Policy) -> str:
    entries = [
        {
            "error": row.error,
            "class": row.kind,
            "effect": row.effect,
            "hits": row.scope,
            "until": row.until,
            "taints": list(row.taints),
            "step": row.step,
        }
        for row in rows(policy)
    ]
    return json.dumps(entries, indent=2) + "\n"
