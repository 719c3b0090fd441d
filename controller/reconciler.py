"""One worker that brings the cluster to what bridges want, name by name."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from controller.acting import (
    Actor,
    Clash,
    Contests,
    NotLeadingError,
    TakenError,
    contested,
    dying,
    hold_back,
    named,
    waits_for_end,
)
from controller.api import (
    BASE_CLASSES,
    BaseKeeping,
    Bridge,
    BridgeError,
    BridgeStatus,
    Mode,
    decode_bridge,
    resource_name_of,
)
from controller.bridges import (
    Action,
    BaseState,
    Decision,
    Notice,
    Situation,
    Waiting,
    decide,
    discover,
    keep_base_classes,
    let_go,
    matches,
    orphans,
    owners_of,
)
from controller.bridges.conditions import refused
from controller.bridges.refusals import why_refused
from controller.metrics import Metrics
from controller.pending import LOOK_SECONDS, Looker
from controller.saying import explained, happening, in_the_way, noticed
from controller.watching import SeenClass, Watcher
from dradriver.kube import (
    ConflictError,
    ForbiddenError,
    Happening,
    InvalidError,
    KubeError,
    Object,
    WorkQueue,
)

log = structlog.get_logger(__name__)

_LOOK: Final = ""
_DISCOVER: Final = "discover"
_PODS: Final = "pods"
_BASE: Final = "base"
_ORPHANS: Final = "orphans"
"""Keys of the work queue for taking in what has changed, for making bridges, for pods that wait, for base classes and
for classes without a bridge; all others are extended resource names, which have a slash."""

_MISSING_SECONDS: Final = 60.0
"""After which it is looked again whether a bridge's profile is still missing."""

_COUNTS_SECONDS: Final = 0.5
"""By which changes of slices, claims and nodes are gathered, so that a busy cluster does not cost a write for each."""

_PODS_SECONDS: Final = 2.0
"""By which changes of pods that wait are gathered: there may be thousands, and they can wait."""

_AGAIN_SECONDS: Final = 600.0
"""After which a name is looked at though nothing seems to have changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the controller was told.

    Attributes:
        identity: of this process.
        discovery: mode of bridges for MIG profiles that are found; None if none are to be made.
        base_classes: what is done with base classes that somebody else made; None if none are looked at.
    """

    identity: str
    discovery: Mode | None = None
    base_classes: BaseKeeping | None = None


class Reconciler:
    """Works on one thread, and only as long as this process leads.

    Args:
        ask: gives why the API server cannot do it, for people; "" if it can.
        watcher: from which the situation is read; its `on_change` and `on_return` are to be ours.
        actor: carries decisions out.
        record: takes Events.
        metrics: where work is counted.
        queue: of names, in which the watcher's news are wanted too.
        wishes: what is to be done beside bridges.
        on_lost: called on our thread when it ends because this process may not act any more; must not wait.
    """

    def __init__(
        self,
        ask: Callable[[], str],
        *,
        watcher: Watcher,
        actor: Actor,
        record: Callable[[Happening], None],
        metrics: Metrics,
        queue: WorkQueue[str],
        wishes: Wishes,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._ask = ask
        self._watcher = watcher
        self._actor = actor
        self._record = record
        self._metrics = metrics
        self._queue = queue
        self._wishes = wishes
        self._on_lost = on_lost
        self._base_states: Mapping[str, BaseState] = {}
        self._missing: Mapping[str, float] = {}
        self._orphans_told: set[Notice] = set()
        self._contests = Contests()
        self._clashes: list[Clash] = []
        self._clock = time.monotonic
        self._looker = Looker(watcher, time.monotonic)
        self._waiting: Mapping[str, Waiting] = {}
        self._rivals: dict[str, frozenset[str]] = {}
        self._bridges: dict[str, list[tuple[Bridge, Object]]] = {}
        self._decoded: dict[str, tuple[Object, Bridge]] = {}
        self._owners: dict[str, str] = {}
        self._unsupported = ""
        self._asked = -float("inf")
        self._must_look = True
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start working, on everything."""
        self._queue.add(_LOOK)
        self._queue.add(_PODS)
        self._thread = threading.Thread(target=self.run, name="reconciler", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> bool:
        """Finish what is being worked on; False if that still hangs in a call after so many seconds."""
        self._queue.close()
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def was_started(self) -> bool:
        """Whether `start` was called."""
        return self._thread is not None

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def run(self) -> None:
        """Work until the queue is closed, or until we do not lead any more."""
        while (key := self._queue.get()) is not None:
            try:
                self._work(key)
            except NotLeadingError as error:
                log.warning("stopped working", reason=str(error))
                self._on_lost()
                return
            finally:
                self._queue.done(key)

    def _work(self, key: str) -> None:
        try:
            self._work_on(key)
        except NotLeadingError:
            raise
        except KubeError as error:
            delay = self._queue.retry(key, error=error)
            self._metrics.failed(type(error).__name__)
            log.warning("will try again", resource_name=key, error=str(error), seconds=round(delay, 1))
        except Exception as error:
            delay = self._queue.retry(key)
            self._metrics.failed(type(error).__name__)
            log.exception("defect in the reconciler", resource_name=key, seconds=round(delay, 1))
        else:
            self._queue.forget(key)
            self._metrics.succeeded("reconcile")

    def _work_on(self, key: str) -> None:
        match key:
            case "":
                self._look()
            case "discover":
                self._discover()
            case "pods":
                self._look_at_pods()
            case "base":
                self._keep_base_classes()
            case "orphans":
                self._let_orphans_go()
            case _:
                self._settle(key)

    # --- what there is ---------------------------------------------------------------------------

    def _look(self) -> None:
        """Take in what has changed, and want all names looked at if something has."""
        must, self._must_look = self._must_look, False
        if not self._watcher.absorb() and not must:
            return
        self._queue.add(_DISCOVER)
        self._queue.add(_BASE)
        self._queue.add_after(_PODS, _PODS_SECONDS)
        former = set(self._bridges)
        self._read_bridges()
        for name in sorted(former | set(self._bridges) | set(self._rivals)):
            self._queue.add(name)
        # After them: a bridge may take such a class.
        self._queue.add(_ORPHANS)

    def _read_bridges(self) -> None:
        by_name: dict[str, list[tuple[Bridge, Object]]] = defaultdict(list)
        # They are read for each name that is worked on, and few of them have changed.
        former, self._decoded = self._decoded, {}
        for item in self._watcher.bridges():
            name = item["metadata"]["name"]
            known, bridge = former.get(name, (None, None))
            try:
                if bridge is None or known is not item:
                    bridge = decode_bridge(item)
            except BridgeError as error:
                log.error("bridge left alone", error=str(error))  # noqa: TRY400 (no defect of ours)
                continue
            self._decoded[name] = item, bridge
            by_name[resource_name_of(item)].append((bridge, item))
        self._bridges = dict(by_name)
        everything = [bridge for pairs in by_name.values() for bridge, _ in pairs]
        self._owners = owners_of(everything, self._watcher.classes())
        self._metrics.set_bridges(bridge.status for bridge in everything)

    def _all_bridges(self) -> list[Bridge]:
        return [bridge for pairs in self._bridges.values() for bridge, _ in pairs]

    def _situation(self, resource_name: str) -> Situation:
        bridges = tuple(bridge for bridge, _ in self._bridges.get(resource_name, ()))
        census = self._watcher.census
        predicates = {bridge.name: partial(matches, bridge.spec.select) for bridge in bridges}
        names = {bridge.spec.device_class_name for bridge in bridges}
        return Situation(
            resource_name=resource_name,
            bridges=bridges,
            classes=self._watcher.classes(),
            owners=self._owners,
            users={name: census.users(name) for name in names},
            devices={each.name: census.devices(predicates[each.name]) for each in bridges if not each.spec.select.cel},
            nodes={each.name: census.nodes(resource_name, predicates[each.name]) for each in bridges},
            kinds=census.kinds(),
            unsupported=self._unsupported,
            writer=self._wishes.identity,
            rivals=self._rivals_of(resource_name),
            waiting=self._waiting.get(resource_name),
        )

    def _rivals_of(self, resource_name: str) -> frozenset[str]:
        """Kept until a decision that knows of them has been carried out."""
        known = self._rivals.get(resource_name, frozenset()) | self._watcher.take_carriers(resource_name)
        self._rivals[resource_name] = known
        return known

    # --- what is done ----------------------------------------------------------------------------

    def _settle(self, resource_name: str) -> None:
        self._ask_capability()
        # What our own writes for another name changed is known already.
        self._read_bridges()
        situation = self._situation(resource_name)
        decision, is_held = self._paced(decide(situation), situation)
        try:
            if is_held:
                self._actor.act(decision.actions)
            else:
                self._carry_out(resource_name, decision.actions)
        except (InvalidError, ForbiddenError) as error:
            self._write_statuses(resource_name, self._refused(decision, error))
            raise
        if not is_held:
            self._remember(resource_name, decision)
        for telling in decision.tellings:
            self._record(happening(telling))
        self._write_statuses(resource_name, decision.statuses)
        if resource_name in self._bridges:
            self._queue.add_after(resource_name, _AGAIN_SECONDS)
        else:
            self._contests.forget(resource_name)
            self._rivals.pop(resource_name, None)

    def _paced(self, decision: Decision, situation: Situation) -> tuple[Decision, bool]:
        """Hold a decision back where it could not last; whether it is."""
        if problem := dying(situation):
            return waits_for_end(hold_back(decision, situation), situation, problem), True
        now = self._clock()
        wait = self._contests.wait(situation.resource_name, decision.actions, situation.classes, now=now)
        if wait > 0:
            self._queue.add_after(situation.resource_name, wait)
            decision = hold_back(decision, situation)
        if problem := self._contests.problem(situation.resource_name, now=now):
            decision = contested(decision, situation, problem, is_held=wait > 0)
        return decision, wait > 0

    def _look_at_pods(self) -> None:
        """Tell pods why they wait, and have bridges say so whose pods are others than before."""
        look = self._looker.look(self._all_bridges())
        for pod, explanation in look.tell:
            self._record(explained(pod, explanation))
        for name, waiting in (look.waiting or {}).items():
            if waiting != self._waiting.get(name):
                self._queue.add(name)
        self._waiting = look.waiting or self._waiting
        self._metrics.set_pending(sum(waiting.pods for waiting in self._waiting.values()))
        if look.again:
            self._queue.add_after(_PODS, LOOK_SECONDS)

    def _keep_base_classes(self) -> None:
        keeping = self._wishes.base_classes
        if keeping is None:
            return
        self._read_bridges()
        classes = self._watcher.classes()
        decision = keep_base_classes(classes, self._all_bridges(), keeping, self._base_states)
        held = {name for name in BASE_CLASSES if self._waits(_BASE, name, _of(name, decision.actions), classes)}
        for name in sorted(BASE_CLASSES.keys() - held):
            self._carry_out(name, _of(name, decision.actions))
        self._base_states = decision.states
        self._metrics.set_base_classes(decision.states.values())
        for notice in decision.notices:
            if notice.name not in held:
                self._tell(notice)
        self._queue.add_after(_BASE, _AGAIN_SECONDS)

    def _waits(self, key: str, name: str, actions: Sequence[Action], classes: Mapping[str, SeenClass]) -> bool:
        """Whether a class is left alone for now, since somebody sets it back; then it is looked at again in time."""
        wait = self._contests.wait(name, actions, classes, now=self._clock())
        if wait > 0:
            self._queue.add_after(key, wait)
        return wait > 0

    def _carry_out(self, name: str, actions: tuple[Action, ...]) -> None:
        try:
            self._actor.act(actions)
        except (ConflictError, TakenError):
            # Whoever is fast enough undoes it before its end; and wakes us at once, whatever the queue would wait for.
            self._contests.wrote(name, actions, now=self._clock())
            raise
        self._contests.wrote(name, actions, now=self._clock())

    def _let_orphans_go(self) -> None:
        self._read_bridges()
        known = dict.fromkeys((item["metadata"]["name"] for item in self._watcher.bridges()), "")
        known |= {bridge.name: bridge.spec.device_class_name for bridge in self._all_bridges()}
        told: set[Notice] = set()
        classes = self._watcher.classes()
        for seen in orphans(classes, known):
            users = self._watcher.census.users(seen.name)
            decision = let_go(seen, users, is_wanted=seen.name in known.values())
            # What the watches tell of bridges may be older than what they tell of classes.
            if decision.actions and self._actor.has_class(seen.bridge, seen.name):
                continue
            if not self._waits(_ORPHANS, seen.name, decision.actions, classes):
                self._carry_out(seen.name, decision.actions)
            told.add(decision.notice)
        for notice in told - self._orphans_told:
            self._tell(notice)
        self._orphans_told = told

    def _tell(self, notice: Notice) -> None:
        log.log(logging.WARNING if notice.is_warning else logging.INFO, notice.note, reason=notice.reason)
        self._record(noticed(notice))

    def _discover(self) -> None:
        if self._wishes.discovery is None:
            return
        self._read_bridges()
        census = self._watcher.census
        found = discover(
            census.kinds(),
            self._all_bridges(),
            used=census.used_classes(),
            missing=self._missing,
            mode=self._wishes.discovery,
            now=self._clock(),
        )
        self._missing = found.missing
        create, clashes = named(found.create, self._names())
        self._actor.change_bridges(create, found.delete)
        for clash in clashes:
            if clash not in self._clashes:
                self._tell_clash(clash)
        self._clashes = clashes
        if found.missing:
            self._queue.add_after(_DISCOVER, _MISSING_SECONDS)

    def _names(self) -> dict[str, str]:
        """Resource name of each bridge, also of those that are not understood."""
        return {item["metadata"]["name"]: resource_name_of(item) for item in self._watcher.bridges()}

    def _tell_clash(self, clash: Clash) -> None:
        log.warning("bridge not made", resource_name=clash.resource_name, reason=clash.note)
        for bridge in self._all_bridges():
            if bridge.name in clash.taken:
                self._record(in_the_way(bridge, clash))

    def _ask_capability(self) -> None:
        if self._clock() - self._asked < _AGAIN_SECONDS:
            return
        # Before asking: whoever wants it asked again meanwhile is not to get the answer that is on its way.
        self._asked = self._clock()
        try:
            self._unsupported = self._ask()
        except Exception:
            self._asked = -float("inf")
            raise

    def ask_again(self) -> None:
        """The API server may be another version now. Harmless on any thread."""
        self._asked = -float("inf")
        self._must_look = True
        self.wake(is_small=True)

    def wake(self, is_small: bool) -> None:  # noqa: FBT001 (called so by the watcher)
        """Something has changed; what there are many of is gathered for a moment. Harmless on any thread."""
        if is_small:
            self._queue.add(_LOOK)
        else:
            self._queue.add_after(_LOOK, _COUNTS_SECONDS)

    def wake_for_pods(self) -> None:
        """Pods that wait, or quotas, have changed. Harmless on any thread."""
        self._queue.add_after(_PODS, _PODS_SECONDS)

    def _remember(self, resource_name: str, decision: Decision) -> None:
        if decision.rivals:
            self._rivals[resource_name] = decision.rivals
        else:
            self._rivals.pop(resource_name, None)

    def _refused(self, decision: Decision, error: KubeError) -> Mapping[str, BridgeStatus]:
        bridges = {bridge.name: bridge for bridge in self._all_bridges()}
        return {name: refused(status, why_refused(error, bridges[name])) for name, status in decision.statuses.items()}

    def _write_statuses(self, resource_name: str, statuses: Mapping[str, BridgeStatus]) -> None:
        for bridge, item in self._bridges.get(resource_name, ()):
            wanted = statuses.get(bridge.name)
            if wanted is not None and wanted != bridge.status:
                self._actor.write_status(bridge, wanted, former=item.get("status") or {})


def _of(name: str, actions: Iterable[Action]) -> tuple[Action, ...]:
    """Actions on one class."""
    return tuple(each for each in actions if getattr(each, "name", "") == name)
