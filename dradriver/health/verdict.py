"""From what was found about a GPU to the marks that it deserves, in words that people can act upon."""

from collections.abc import Iterator
from typing import Final

from dradriver import api
from dradriver.gpu.health import Effect, Mark, Place
from dradriver.health import condition as found
from dradriver.health.condition import Cause, Condition
from dradriver.health.policy import IGNORE, Policy, Rule

_STEP_TO_CLEAR = "clear this with `dradriver health clear` when it is mended"
_LONGEST_TEXT: Final = 1000
"""Characters; the kubelet takes 1024 bytes."""
_LONGEST_DETAIL: Final = 400
"""Characters of an error's own words, so that the next step has room."""


def marks(condition: Condition, policy: Policy, gpu_uuid: str) -> tuple[Mark, ...]:
    """Give what a GPU deserves, in no order that matters.

    Args:
        condition: all that is held against it.
        policy: what that means.
        gpu_uuid: for the texts.
    """
    return tuple(mark for cause in condition.causes for mark in _marks(cause, policy, gpu_uuid))


def _marks(cause: Cause, policy: Policy, gpu_uuid: str) -> Iterator[Mark]:
    rule = cause.rule(policy)
    if rule is not None:
        yield from _of_report(cause, rule, gpu_uuid)
    elif not cause.is_report:
        yield _of_saying(cause, policy, gpu_uuid)


# --- what was reported ----------------------------------------------------------------------------


def _of_report(cause: Cause, rule: Rule, gpu_uuid: str) -> Iterator[Mark]:
    effect = cause.effect(rule)
    if effect == IGNORE:
        return
    text = _report_text(cause, rule, gpu_uuid)
    since = int(cause.grave if cause.grave is not None and cause.is_suspect(rule) else cause.since)
    taints = dict(rule.taints if cause.mild is None else ())
    if cause.origin == "xid":
        taints[api.TaintKey.XID] = cause.detail
    for key, value in taints.items():
        yield Mark(key=key, value=value, effect=effect, since=since, text=_line(text), place=cause.place)


def _report_text(cause: Cause, rule: Rule, gpu_uuid: str) -> str:
    what = f"Xid {cause.detail}" if cause.origin == "xid" else f"event {cause.detail}"
    where = f"GPU {gpu_uuid}{_partition(cause.place)}"
    if cause.mild is not None:
        return f"{where} reported {what} ({rule.kind}), which turned out to need nothing more"
    if cause.is_suspect(rule):
        suspect = "programs of several claims met errors of this kind within an hour, so the hardware is suspected"
        return f"{where} reported {what} ({rule.kind}): {suspect}; reset the GPU, or {_STEP_TO_CLEAR}"
    return f"{where} reported {what} ({rule.kind}): {rule.step}"


def _partition(place: Place | None) -> str:
    return (
        "" if place is None else f", partition of profile {place.profile_id} at memory slice {place.placement.start},"
    )


# --- what was said when asked ---------------------------------------------------------------------


def _of_saying(cause: Cause, policy: Policy, gpu_uuid: str) -> Mark:
    if cause.origin in policy.readings or cause.origin == found.RECOVERY:
        reading = (
            policy.of_recovery(int(cause.detail)) if cause.origin == found.RECOVERY else (policy.readings[cause.origin])
        )
        text = f"GPU {gpu_uuid} says {_SAID.get(cause.origin, '')}{reading.value}: {reading.step}"
        return _mark(cause, reading.key, reading.effect, text, value=reading.value)
    key, mild, lasting, text = _UNHEARD[cause.origin]
    effect = mild if cause.grave is None else lasting
    return _mark(cause, key, effect, f"GPU {gpu_uuid} {text.format(cause.detail[:_LONGEST_DETAIL])}")


def _mark(cause: Cause, key: str, effect: str, text: str, *, value: str = "") -> Mark:
    since = cause.since if cause.grave is None else cause.grave
    return Mark(key=key, value=value, effect=effect, since=int(since), text=_line(text))


def _line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_TEXT]


_SAID = {
    found.RECOVERY: "that its recovery action is ",
    found.REMAP_PENDING: "of its memory: ",
    found.REMAP_FAILED: "of its memory: ",
    found.SRAM: "of its memory: ",
    found.FABRIC: "that its fabric is not healthy: ",
}

# Key, effect at first and when it lasts, text.
_UNHEARD = {
    found.LOST: (
        api.TaintKey.GPU_LOST,
        Effect.NO_EXECUTE,
        Effect.NO_EXECUTE,
        "is lost, it does not answer any more ({}): reset it or reboot the node",
    ),
    found.MISSING: (
        api.TaintKey.GPU_LOST,
        Effect.NO_SCHEDULE,
        Effect.NO_EXECUTE,
        "is not there any more ({}): see the kernel's log on the node, or reboot it",
    ),
    found.NO_EVENTS: (
        api.TaintKey.UNMONITORED,
        Effect.NONE,
        Effect.NONE,
        "is not heard: {}; errors are noticed late or not at all; see the logs of dradriver and of the node's kernel",
    ),
    found.NO_ANSWER: (
        api.TaintKey.UNMONITORED,
        Effect.NONE,
        Effect.NO_SCHEDULE,
        "does not say how it is: {}; see whether nvidia-smi answers on the node, and the kernel's log",
    ),
}
