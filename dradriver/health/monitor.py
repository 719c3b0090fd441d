"""Watches over the GPUs: hears what they report, asks how they are, and says what taints they deserve.

What is reported comes by the thread that listens and is acted upon at once, in that thread. A thread of its own asks
every few seconds, sooner when something was reported or is about to end. A GPU that does not answer keeps nobody from
hearing the others: each call has a limit, in the room that makes it.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import structlog

from dradriver.gpu.health import HealthWishes, Mark, Marks, Place, marks_of
from dradriver.health import condition as found
from dradriver.health import memory
from dradriver.health.condition import Condition
from dradriver.health.memory import Known
from dradriver.health.policy import default_policy
from dradriver.health.requests import Requests, chosen
from dradriver.health.verdict import marks
from dradriver.nvml import DriverUnavailable, Event, EventType, GpuLost, NotFound, NvmlError, Readings, Uninitialized

LOOK_SECONDS: Final = 5.0
"""How often the GPUs are asked how they are."""
ORDER_SECONDS: Final = 1.0
"""How often orders of administrators are looked for."""
MISSES: Final = 2
"""One answer that fails says nothing yet; so many in a row do."""
DEAF_SECONDS: Final = 30.0
"""After which a thread that waits for events, and should come back each ten seconds, is taken to hang."""
SHORTEST_PAUSE: Final = 0.5
"""Between two looks: in a storm of errors the GPUs are not asked more often."""
GONE_SECONDS: Final = 600.0
"""From the first look after a start of the node until GPUs that were not seen are forgotten: some come late."""
UNHEARD_SECONDS: Final = 3.0
"""For which a GPU is not heard before that is told: after a reset of any GPU all are listened to anew."""
_KEPT_SECONDS: Final = 60
"""How exactly it is kept when an error was reported last, so that a storm of them writes no file each time."""

EVENTS: Final[Mapping[EventType, str]] = {
    EventType.FATAL_POISON: "fatal-poison",
    EventType.GPU_UNAVAILABLE: "gpu-unavailable",
}
"""Events that are no Xids, by their names in the table."""

TYPES: Final = EventType.XID | EventType.RECOVERY_ACTION | EventType.FATAL_POISON | EventType.GPU_UNAVAILABLE
"""What has to be listened for."""

_log = structlog.get_logger()


class Hardware(Protocol):
    """The GPUs, as `dradriver.nvml.Nvml` shows them."""

    def readings_of(self, gpu_uuids: Sequence[str]) -> Sequence[Readings | NvmlError]:
        """Ask GPUs how they are, each for some seconds at most; raises NvmlError where NVML as a whole fails."""

    def returns(self, gpu_uuid: str) -> int:
        """Count how often a GPU was gone and came back."""


class Ears(Protocol):
    """Who listens for events."""

    def why_unheard(self, gpu_uuid: str) -> str | None:
        """Say why a GPU cannot be heard; None where it is."""

    @property
    def silence(self) -> float:
        """Seconds since the thread that listens has shown that it lives."""


@dataclass(slots=True, kw_only=True)
class Around:
    """What the monitor has to do with.

    Attributes:
        boot_id: of the running kernel.
        file: where it is kept what is held against GPUs.
        hardware: opens NVML if that is still to be done; raises NvmlError.
        numbers: UUID to the number in device names, of the node's GPUs, also of those that are gone while claims hold
            them.
        ears: who listens.
        place: where a GPU instance lies, by the GPU's UUID and its id; None where that is not known.
        claims: UIDs of the claims that hold something of a GPU, or that partition of it.
        wishes: what the administrator wants otherwise than the table.
        annotation: the order to clear that stands at the node, "" without one, None while that is not known.
        requests: orders to clear of the command.
        is_our_turn: whether no newer process of this driver watches over the same GPUs, which then keeps what is known.
        on_problem: told what of the file could not be read, "" if nothing.
        on_unknown: told which names in an order mean no GPU of the node, none if all are known.
        on_marks: told when GPUs deserve other taints than before, by one thread at a time; must not block.
        on_news: told when something else is held against GPUs than before, also where no taint changes by that.
        on_look: told after each look at the GPUs.
    """

    boot_id: str
    file: Path
    hardware: Callable[[], Hardware]
    numbers: Callable[[], Mapping[str, int]]
    ears: Ears
    place: Callable[[str, int], Place | None]
    claims: Callable[[str, Place | None], Iterable[str]]
    wishes: Callable[[], HealthWishes]
    annotation: Callable[[], str | None]
    requests: Requests
    is_our_turn: Callable[[], bool]
    on_problem: Callable[[str], None]
    on_unknown: Callable[[Sequence[str]], None]
    on_marks: Callable[[Marks], None]
    on_news: Callable[[], None]
    on_look: Callable[[], None]


class Monitor:
    """Knows what is held against each GPU.

    `load` first; then `marks` says what was known when an earlier process ended.

    Args:
        around: see Around.
        clock: Unix time.
    """

    def __init__(self, around: Around, *, clock: Callable[[], float] = time.time) -> None:
        self._around = around
        self._clock = clock
        self._lock = threading.RLock()
        self._conditions: dict[str, Condition] = {}
        self._marks: Marks = {}
        self._obeyed = ""
        self._has_booted = False
        self._forget_at = 0.0
        self._undelivered = False
        self._loaded = 0.0
        self._had_turn = False
        self._kept: object = None
        self._problem = ""
        self._misses: dict[str, dict[str, int]] = {}
        self._unheard_since: dict[str, float] = {}
        self._returns: dict[str, int] = {}
        self._wishes = HealthWishes()
        self._policy = default_policy()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    @property
    def marks(self) -> Marks:
        """What the GPUs deserve now, by UUID; those that are well are left out."""
        return self._marks

    @property
    def conditions(self) -> Mapping[str, Condition]:
        """What is held against the GPUs now, by UUID."""
        with self._lock:
            return dict(self._conditions)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def load(self) -> None:
        """Take over what an earlier process knew; what a start of the node has ended is left out."""
        known = memory.load(self._around.file)
        self._problem = known.problem
        self._around.on_problem(known.problem)
        with self._lock:
            self._has_booted = known.boot_id not in ("", self._around.boot_id)
            self._adapt()
            self._obeyed = known.obeyed
            self._conditions = self._remembered(known)
            judged = {uuid: marks(condition, self._policy, uuid) for uuid, condition in self._conditions.items()}
            self._marks = {uuid: deserved for uuid, deserved in judged.items() if deserved}
            self._loaded = self._clock()

    def catch_up(self) -> None:
        """Take over what another process has kept since `load`; what this one has heard itself stays.

        The other has heard what this one did not listen for yet, and obeyed orders that this one knows nothing of.
        """
        known = memory.load(self._around.file)
        # A file that is gone or damaged says nothing of what was ended.
        since = self._loaded if known.boot_id else -math.inf
        with self._lock:
            own, self._conditions = self._conditions, self._remembered(known)
            self._obeyed = known.obeyed
            for uuid, condition in own.items():
                kept = self._conditions.get(uuid, Condition())
                self._conditions[uuid] = found.merged(kept, condition, since=since)
            for uuid in {*self._conditions, *self._marks}:
                self._conditions.setdefault(uuid, Condition())
                self._settle(uuid)

    def _remembered(self, known: Known) -> dict[str, Condition]:
        same, now = known.boot_id == self._around.boot_id, self._clock()
        conditions = {
            uuid: condition if same else found.rebooted(condition, self._policy, now)
            for uuid, condition in known.conditions.items()
        }
        return {uuid: found.pass_time(condition, self._policy, now) for uuid, condition in conditions.items()}

    def start(self) -> None:
        """Ask the GPUs from now on."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End; a look under way is waited for at most that many seconds."""
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def wake(self) -> None:
        """Ask the GPUs now."""
        self._wake.set()

    # --- what is reported -------------------------------------------------------------------------

    def hear(self, event: Event) -> None:
        """Take in what a GPU reports; by the thread that listens. What it is not about is left out."""
        if event.type is EventType.XID or event.type in EVENTS:
            origin = "xid" if event.type is EventType.XID else "event"
            detail = str(event.data) if origin == "xid" else EVENTS[event.type]
            self._report(event, origin, detail)
        if event.type in TYPES:
            self._wake.set()

    def _report(self, event: Event, origin: str, detail: str) -> None:
        place = None if event.gpu_instance_id is None else self._around.place(event.gpu_uuid, event.gpu_instance_id)
        claims = tuple(self._around.claims(event.gpu_uuid, place))
        with self._lock:
            self._conditions[event.gpu_uuid] = found.hear(
                self._conditions.get(event.gpu_uuid, Condition()),
                self._policy,
                origin=origin,
                detail=detail,
                place=place,
                claims=claims,
                now=self._clock(),
            )
            self._settle(event.gpu_uuid)

    # --- what an administrator says ---------------------------------------------------------------

    def obey(self) -> None:
        """Clear what administrators order: by requests, and by the node's annotation, each new value of it once."""
        annotation = self._around.annotation()
        ours = self._around.is_our_turn()
        if ours and not self._had_turn:
            # Another process may have watched until now.
            self.catch_up()
        elif self._had_turn and not ours:
            self._loaded = self._clock()
        self._had_turn = ours
        words = self._around.requests.take() if ours else []
        numbers = self._around.numbers()
        # Before the GPUs are known, nobody can say which of them is meant.
        if annotation is not None and annotation != self._obeyed and numbers:
            with self._lock:
                self._obeyed = annotation
                self._keep()
            words = [*words, annotation]
        if words:
            # Also GPUs that have left the node; no device name is theirs.
            uuids, unknown = chosen(words, dict.fromkeys(self.conditions, -1) | dict(numbers))
            self._around.on_unknown(unknown)
            self.clear(uuids)

    def clear(self, gpu_uuids: Iterable[str]) -> None:
        """Forget what is held against GPUs, but for what they say still, so that no pod gets one of those meanwhile."""
        with self._lock:
            for uuid in gpu_uuids:
                if uuid in self._conditions:
                    _log.info("what was held against a GPU is cleared by an administrator", gpu=uuid)
                    # One that is not there any more says nothing.
                    there = uuid in self._around.numbers()
                    condition = self._conditions[uuid]
                    self._conditions[uuid] = found.cleared(condition, self._clock()) if there else Condition()
                    self._settle(uuid)
        self._wake.set()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.look()
            except Exception:  # noqa: BLE001 (whatever it was, the next look may go better)
                _log.exception("the GPUs cannot be asked how they are")
            self._rest(self._pause())

    def _rest(self, seconds: float) -> None:
        """Wait until it is time to look, or somebody wakes this; orders are obeyed meanwhile."""
        self._stopping.wait(SHORTEST_PAUSE)
        seconds -= SHORTEST_PAUSE
        while seconds > 0 and not self._wake.wait(min(seconds, ORDER_SECONDS)):
            seconds -= ORDER_SECONDS
            self.obey()
        self._wake.clear()

    def _pause(self) -> float:
        """Seconds until something may be over, or all GPUs are asked again."""
        with self._lock:
            waits = any(
                cause.well is not None or (cause.origin in found.LASTING and cause.grave is None)
                for condition in self._conditions.values()
                for cause in condition.causes
            )
            waits = waits or any(times < MISSES for misses in self._misses.values() for times in misses.values())
        return found.FIRST_HOLD / 2 if waits else LOOK_SECONDS

    def look(self) -> None:
        """Ask all GPUs how they are, and let time pass."""
        self.obey()
        uuids = tuple(self._around.numbers())
        self._misses = {uuid: misses for uuid, misses in self._misses.items() if uuid in uuids}
        # What is reported meanwhile is not answered by this.
        asked = self._clock()
        for uuid, (answer, returns) in zip(uuids, self._ask(uuids), strict=True):
            with self._lock:
                self._conditions[uuid] = self._listened(self._told(uuid, answer, returns, asked), uuid)
                self._settle(uuid)
        with self._lock:
            self._adapt()
            self._forget_gone(asked)
            now = self._clock()
            for uuid, condition in tuple(self._conditions.items()):
                self._conditions[uuid] = found.pass_time(condition, self._policy, now)
                self._settle(uuid)
            self._deliver()
            self._keep()
        self._around.on_look()

    def _ask(self, uuids: Sequence[str]) -> Sequence[tuple[Readings | NvmlError, int]]:
        """Give the answer of each GPU, and how often it was gone and came back."""
        try:
            hardware = self._around.hardware()
            answers = hardware.readings_of(uuids)
        except NvmlError as error:
            return [(error, 0) for _ in uuids]
        return [(answer, hardware.returns(uuid)) for uuid, answer in zip(uuids, answers, strict=True)]

    def _told(self, uuid: str, answer: Readings | NvmlError, returns: int, asked: float) -> Condition:
        """Say what is held against a GPU after it has answered, or has not."""
        condition = self._conditions.get(uuid, Condition())
        if isinstance(answer, NvmlError):
            return self._missed(condition, uuid, answer)
        self._misses.pop(uuid, None)
        came_back = returns != self._returns.get(uuid, returns)
        self._returns[uuid] = returns
        # One that says that it must still be reset was only out of reach.
        if came_back and not answer.recovery:
            condition = found.came_back(condition, self._policy, before=asked)
        return found.read(condition, self._policy, answer, asked)

    def _missed(self, condition: Condition, uuid: str, error: NvmlError) -> Condition:
        """Say what it means that a GPU did not answer; where all of NVML does not, nobody hears, which is told too."""
        if isinstance(error, DriverUnavailable | Uninitialized):
            self._misses.pop(uuid, None)
            return condition
        origin = _origin(error)
        times = self._misses.get(uuid, {}).get(origin, 0) + 1
        # Only what comes twice in a row counts, so another kind of failure begins anew.
        self._misses[uuid] = {origin: times}
        return condition if times < MISSES else found.raise_(condition, origin, str(error), self._clock())

    def _listened(self, condition: Condition, uuid: str) -> Condition:
        """Note whether a GPU is heard."""
        deaf = self._around.ears.silence > DEAF_SECONDS
        why = "nobody listens, since a call into the driver hangs" if deaf else self._around.ears.why_unheard(uuid)
        now = self._clock()
        if why is None:
            self._unheard_since.pop(uuid, None)
            return found.lower(condition, found.NO_EVENTS)
        if now - self._unheard_since.setdefault(uuid, now) < UNHEARD_SECONDS:
            return condition
        return found.raise_(condition, found.NO_EVENTS, why, now)

    # --- under the lock ---------------------------------------------------------------------------

    def _adapt(self) -> None:
        """Judge by what the administrator wants now."""
        wishes = self._around.wishes()
        if wishes == self._wishes:
            return
        before, now = self._policy, default_policy().adapted(wishes)
        self._wishes, self._policy = wishes, now
        for uuid, condition in self._conditions.items():
            self._conditions[uuid] = found.rejudged(condition, before, now, self._clock())

    def _forget_gone(self, now: float) -> None:
        """After a start of the node, forget GPUs that it does not have any more."""
        numbers = self._around.numbers()
        if not self._has_booted or not numbers:
            return
        self._forget_at = self._forget_at or now + GONE_SECONDS
        if now >= self._forget_at:
            self._has_booted = False
            for uuid in self._conditions.keys() - numbers.keys():
                self._conditions[uuid] = Condition()
                self._settle(uuid)

    def _settle(self, uuid: str) -> None:
        """Judge a GPU anew; where it deserves other taints than before, keep why, and then say so."""
        condition = self._conditions[uuid]
        if condition == Condition():
            del self._conditions[uuid]
        before, now = self._marks.get(uuid, ()), marks(condition, self._policy, uuid)
        if before == now:
            return
        self._marks = {gpu: deserved for gpu, deserved in {**self._marks, uuid: now}.items() if deserved}
        if _effective(before) != _effective(now):
            self._undelivered = True
            self._keep()
            self._deliver()
        self._around.on_news()

    def _deliver(self) -> None:
        """Say which taints the GPUs deserve, again if that went wrong before."""
        if not self._undelivered:
            return
        try:
            self._around.on_marks(self._marks)
            self._undelivered = False
        except Exception:  # noqa: BLE001 (whatever it was, the next look tries again)
            _log.exception("devices cannot be given their taints")

    def _keep(self) -> None:
        """Keep it on disk, unless all that matters is there already."""
        kept = (self._obeyed, {uuid: _roughly(condition) for uuid, condition in self._conditions.items()})
        # Somebody may have removed it, and who looks would take all GPUs for well.
        if (kept == self._kept and self._around.file.exists()) or not self._around.is_our_turn():
            return
        known = Known(boot_id=self._around.boot_id, conditions=self._conditions, obeyed=self._obeyed)
        problem = memory.save(self._around.file, known)
        self._kept = None if problem else kept
        if problem != self._problem:
            self._problem = problem
            self._around.on_problem(problem)


def _effective(deserved: Sequence[Mark]) -> Mapping[Place | None, tuple[Mark, ...]]:
    """Give what makes a difference for any device of a GPU."""
    return {place: marks_of(deserved, place) for place in {None, *(mark.place for mark in deserved)}}


def _origin(error: NvmlError) -> str:
    if isinstance(error, GpuLost):
        return found.LOST
    return found.MISSING if isinstance(error, NotFound) else found.NO_ANSWER


def _roughly(condition: Condition) -> Condition:
    causes = (replace(cause, last=cause.last // _KEPT_SECONDS, well=None) for cause in condition.causes)
    offences = (replace(one, at=one.at // _KEPT_SECONDS) for one in condition.offences)
    return replace(condition, causes=tuple(causes), offences=tuple(offences))
