"""What the users of devices are told of their health: Events on claims and pods, each once.

The kubelet shows the health of ordinary claims' devices in the status of their pods, but never that of devices which a
pod got as extended resources. An Event reaches both.
"""

import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from dradriver import api
from dradriver.gpu.health import NONE_MARKED, Effect, Mark, Marks, marks_of
from dradriver.kube import EventType, Happening, Regarding
from dradriver.prepare.eviction import Around, EvictionWatch, Threatened
from dradriver.prepare.plan import Plan, PlannedDevice
from dradriver.prepare.records import Record, State
from dradriver.prepare.users import claim_regarding, live_claim, pods_of

UNHEALTHY: Final = "DeviceUnhealthy"
REPORTED: Final = "DeviceReported"
HEALTHY: Final = "DeviceHealthy"
ACTION: Final = "WatchHealth"

_TEXT_LIMIT: Final = 640
"""Characters for the texts of marks: the API server keeps 1024 bytes of a note, and the next step stands at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What has changed for one device of a claim.

    Attributes:
        reason: of the Events, one of the three above.
        device: which the claim holds.
        marks: what is new about it, the gravest first; empty where all is over.
    """

    reason: str
    device: PlannedDevice
    marks: tuple[Mark, ...] = ()


class HealthTeller:
    """Tells the users of devices of what is new about their health, and watches whether they are evicted.

    A claim that is prepared when a device has its marks already is told nothing of them: either its owner wanted the
    device all the same, or it was another one's program that caused them.

    Args:
        around: see Around.
        records: of the claims on this node.
    """

    def __init__(self, around: Around, *, records: Callable[[], Iterable[Record]]) -> None:
        self._around = around
        self._records = records
        self._marks: Marks = NONE_MARKED
        self._sick: frozenset[tuple[str, str]] = frozenset()
        self._evictions = EvictionWatch(around, threatened=self._threatened)

    def resume(self, marks: Marks) -> None:
        """Take over what an earlier process has told; once, before `told`."""
        self._marks = marks
        self._sick = frozenset(
            (record.plan.uid, device.device)
            for record, device in self._held()
            if any(mark.gravity for mark in _marks(marks, device))
        )
        self._evictions.wake()

    def told(self, marks: Marks) -> None:
        """Take in what GPUs deserve now; returns at once. By one thread at a time.

        Args:
            marks: of all GPUs that are not well.
        """
        news = self._compare(marks)
        self._marks = marks
        for plan, changes in news:
            self._around.errands.soon(partial(self._tell, plan, changes))
        self._evictions.wake()

    # --- what is new ------------------------------------------------------------------------------

    def _held(self) -> Iterator[tuple[Record, PlannedDevice]]:
        """Give what claims hold, each device once; a claim that is being undone needs to know nothing any more."""
        for record in self._records():
            if record.plan.name and record.state is not State.UNPREPARING:
                devices = {device.device: device for device in record.plan.devices}
                yield from ((record, device) for device in devices.values())

    def _compare(self, marks: Marks) -> list[tuple[Plan, tuple[News, ...]]]:
        found: dict[str, tuple[Plan, list[News]]] = {}
        sick = set()
        for record, device in self._held():
            key = record.plan.uid, device.device
            news = _news(device, before=self._marks, now=marks, sick=key in self._sick)
            if news is not None:
                found.setdefault(record.plan.uid, (record.plan, []))[1].append(news)
            was_told = key in self._sick or (news is not None and news.reason == UNHEALTHY)
            if was_told and any(mark.gravity for mark in _marks(marks, device)):
                sick.add(key)
        self._sick = frozenset(sick)
        return [(plan, tuple(changes)) for plan, changes in found.values()]

    def _threatened(self) -> list[Threatened] | None:
        """Give the claims whose devices have a taint for which pods are evicted; None where no GPU deserves one."""
        if not any(mark.effect == Effect.NO_EXECUTE for deserved in self._marks.values() for mark in deserved):
            return None
        plans: dict[str, Plan] = {}
        devices: dict[str, dict[tuple[str, str], tuple[Mark, ...]]] = {}
        for record, device in self._held():
            evicting = tuple(mark for mark in _marks(self._marks, device) if mark.effect == Effect.NO_EXECUTE)
            if evicting:
                plans[record.plan.uid] = record.plan
                devices.setdefault(record.plan.uid, {})[device.pool, device.device] = evicting
        return [Threatened(plan=plan, devices=devices[uid]) for uid, plan in plans.items()]

    # --- in the thread ----------------------------------------------------------------------------

    def _tell(self, plan: Plan, changes: tuple[News, ...]) -> None:
        pods: list[Regarding] = []
        if any(news.reason != REPORTED for news in changes):
            claim = live_claim(self._around.client, plan.reference)
            if claim is None:
                return
            pods = pods_of(claim)
        for news in changes:
            note = self._note(plan, news)
            for regarding in (claim_regarding(plan.reference), *(() if news.reason == REPORTED else pods)):
                self._record(regarding, news.reason, note)

    def _record(self, regarding: Regarding, reason: str, note: str) -> None:
        kind = EventType.WARNING if reason == UNHEALTHY else EventType.NORMAL
        self._around.events.record(Happening(regarding=regarding, type=kind, reason=reason, action=ACTION, note=note))

    def _note(self, plan: Plan, news: News) -> str:
        what = f"{plan}, device {news.device.device} on node {self._around.node_name}"
        if news.reason == HEALTHY:
            return f"{what}, is well again; a program that has failed on it has to be started anew"
        why = textwrap.shorten("; ".join(dict.fromkeys(mark.text for mark in news.marks)), _TEXT_LIMIT)
        return f"{what}: {why}; {self._next(news.marks)}"

    def _next(self, marks: tuple[Mark, ...]) -> str:
        """Say what happens next, for the gravest of the marks, which is the first."""
        mark = marks[0]
        if mark.effect == Effect.NONE:
            return "the pod goes on running, and the device is handed out as before"
        if mark.effect == Effect.NO_SCHEDULE:
            return "the pod goes on running, and nobody else gets the device until this is over"
        if self._around.taints_kept():
            # Whoever evicts takes a toleration without an effect for none, other than the scheduler.
            keys = " and ".join(dict.fromkeys(mark.key for mark in marks if mark.effect == Effect.NO_EXECUTE))
            return f"the pod is evicted, unless its claim tolerates {keys} with the effect NoExecute"
        return "this cluster keeps no device taints, so nobody evicts the pod: delete it, to have it started elsewhere"


def _news(device: PlannedDevice, *, before: Marks, now: Marks, sick: bool) -> News | None:
    """Say what is new about a device; None if nothing is.

    Args:
        device: which a claim holds.
        before: what GPUs deserved.
        now: what they deserve.
        sick: the claim was told that the device is not well.
    """
    deserved, known = _marks(now, device), {_sign(mark) for mark in _marks(before, device)}
    new = tuple(mark for mark in deserved if _sign(mark) not in known)
    grave = tuple(mark for mark in new if mark.gravity)
    if grave:
        return News(reason=UNHEALTHY, device=device, marks=grave)
    if sick and not any(mark.gravity for mark in deserved):
        return News(reason=HEALTHY, device=device)
    # That nobody hears a GPU is no business of those who use it; and who has admin access has run no program there.
    told = tuple(mark for mark in new if not mark.gravity and mark.key != api.TaintKey.UNMONITORED)
    return News(reason=REPORTED, device=device, marks=told) if told and not device.admin_access else None


def _marks(marks: Marks, device: PlannedDevice) -> tuple[Mark, ...]:
    return marks_of(marks.get(device.gpu_uuid, ()), device.partition)


def _sign(mark: Mark) -> tuple[str, str, str]:
    """Tell one mark from another; the same one may change its words or its age."""
    return mark.key, mark.value, mark.effect
