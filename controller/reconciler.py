"""One worker that brings the cluster to what bridges want, name by name."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from controller.acting import Actor, NotLeadingError
from controller.api import (
    BRIDGES,
    BaseKeeping,
    Bridge,
    BridgeError,
    BridgeStatus,
    Mode,
    decode_bridge,
    resource_name_of,
)
from controller.bridges import (
    BaseState,
    Decision,
    Notice,
    Situation,
    Telling,
    Waiting,
    decide,
    discover,
    keep_base_classes,
    matches,
    owners_of,
)
from controller.bridges.conditions import refused
from controller.metrics import Metrics
from controller.pending import LOOK_SECONDS, Explanation, Looker
from controller.watching import SeenPod, Watcher
from dradriver.kube import (
    DEVICE_CLASSES,
    PODS,
    EventType,
    ForbiddenError,
    Happening,
    InvalidError,
    KubeError,
    Object,
    Regarding,
    WorkQueue,
)

log = structlog.get_logger(__name__)

_LOOK: Final = ""
_DISCOVER: Final = "discover"
_PODS: Final = "pods"
_BASE: Final = "base"
"""Keys of the work queue for taking in what has changed, for making bridges, for pods that wait and for base classes;
all others are extended resource names, which have a slash."""

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
        discovery: mode of bridges for MIG profiles that are found; None if none are to be made.
        base_classes: what is done with base classes that somebody else made; None if none are looked at.
    """

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
        identity: of this process.
        wishes: what is to be done beside bridges.
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
        identity: str,
        wishes: Wishes,
    ) -> None:
        self._ask = ask
        self._watcher = watcher
        self._actor = actor
        self._record = record
        self._metrics = metrics
        self._queue = queue
        self._identity = identity
        self._wishes = wishes
        self._base_states: Mapping[str, BaseState] = {}
        self._missing: Mapping[str, float] = {}
        self._clock = time.monotonic
        self._looker = Looker(watcher, time.monotonic)
        self._waiting: Mapping[str, Waiting] = {}
        self._rivals: dict[str, frozenset[str]] = {}
        self._bridges: dict[str, list[tuple[Bridge, Object]]] = {}
        self._owners: dict[str, str] = {}
        self._unsupported = ""
        self._asked = -float("inf")
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
            case _:
                self._settle(key)

    # --- what there is ---------------------------------------------------------------------------

    def _look(self) -> None:
        """Take in what has changed, and want all names looked at if something has."""
        is_first = not self._owners and not self._bridges
        if not self._watcher.absorb() and not is_first:
            return
        self._queue.add(_DISCOVER)
        self._queue.add(_BASE)
        self._queue.add_after(_PODS, _PODS_SECONDS)
        former = set(self._bridges)
        self._read_bridges()
        for name in sorted(former | set(self._bridges) | set(self._rivals)):
            self._queue.add(name)

    def _read_bridges(self) -> None:
        by_name: dict[str, list[tuple[Bridge, Object]]] = defaultdict(list)
        for item in self._watcher.bridges():
            try:
                by_name[resource_name_of(item)].append((decode_bridge(item), item))
            except BridgeError as error:
                log.error("bridge left alone", error=str(error))  # noqa: TRY400 (no defect of ours)
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
            unsupported=self._unsupported,
            writer=self._identity,
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
        decision = decide(self._situation(resource_name))
        try:
            self._actor.act(decision.actions)
        except (InvalidError, ForbiddenError) as error:
            self._write_statuses(resource_name, self._refused(decision, error))
            raise
        self._remember(resource_name, decision)
        for telling in decision.tellings:
            self._record(_happening(telling))
        self._write_statuses(resource_name, decision.statuses)
        self._queue.add_after(resource_name, _AGAIN_SECONDS)

    def _look_at_pods(self) -> None:
        """Tell pods why they wait, and have bridges say so whose pods are others than before."""
        look = self._looker.look(self._all_bridges())
        for pod, explanation in look.tell:
            self._record(_explained(pod, explanation))
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
        decision = keep_base_classes(self._watcher.classes(), self._all_bridges(), keeping, self._base_states)
        self._actor.act(decision.actions)
        self._base_states = decision.states
        self._metrics.set_base_classes(decision.states.values())
        for notice in decision.notices:
            log.log(logging.WARNING if notice.is_warning else logging.INFO, notice.note, reason=notice.reason)
            self._record(_noticed(notice))
        self._queue.add_after(_BASE, _AGAIN_SECONDS)

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
        self._actor.change_bridges(found.create, found.delete)
        if found.missing:
            self._queue.add_after(_DISCOVER, _MISSING_SECONDS)

    def _ask_capability(self) -> None:
        if self._clock() - self._asked >= _AGAIN_SECONDS:
            self._unsupported = self._ask()
            self._asked = self._clock()

    def ask_again(self) -> None:
        """The API server may be another version now. Harmless on any thread."""
        self._asked = -float("inf")
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
        return {name: refused(status, str(error)) for name, status in decision.statuses.items()}

    def _write_statuses(self, resource_name: str, statuses: Mapping[str, BridgeStatus]) -> None:
        for bridge, item in self._bridges.get(resource_name, ()):
            wanted = statuses.get(bridge.name)
            if wanted is not None and wanted != bridge.status:
                self._actor.write_status(bridge, wanted, former=item.get("status") or {})


def _happening(telling: Telling) -> Happening:
    return Happening(
        regarding=Regarding(api_version=BRIDGES.api_version, kind=BRIDGES.kind, name=telling.bridge, uid=telling.uid),
        type=EventType.WARNING if telling.is_warning else EventType.NORMAL,
        reason=telling.reason,
        action=telling.action,
        note=telling.note,
    )


def _noticed(notice: Notice) -> Happening:
    return Happening(
        regarding=Regarding(
            api_version=DEVICE_CLASSES.api_version, kind=DEVICE_CLASSES.kind, name=notice.name, uid=notice.uid
        ),
        type=EventType.WARNING if notice.is_warning else EventType.NORMAL,
        reason=notice.reason,
        action="Keep",
        note=notice.note,
    )


def _explained(pod: SeenPod, explanation: Explanation) -> Happening:
    return Happening(
        regarding=Regarding(
            api_version=PODS.api_version, kind=PODS.kind, name=pod.name, namespace=pod.namespace, uid=pod.uid
        ),
        type=EventType.WARNING,
        reason=explanation.reason,
        action="Explain",
        note=explanation.message,
    )
