"""Whether pods whose devices have a taint NoExecute are evicted, as they should be by Kubernetes.

Whoever evicts is somebody else: the device-taint-eviction-controller of kube-controller-manager, which may be off or
may not know of extended resources (kubernetes#141290). Here it is only looked, and said where nothing happens.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from dradriver.gpu.health import Effect, Mark
from dradriver.kube import (
    PODS,
    Client,
    EventRecorder,
    EventType,
    ForbiddenError,
    Happening,
    KubeError,
    NotFoundError,
    Object,
    Regarding,
)
from dradriver.prepare.errands import Errands
from dradriver.prepare.plan import Plan
from dradriver.prepare.users import claim_regarding, live_claim, pods_of

NOT_EVICTED: Final = "NotEvicted"
ACTION: Final = "CheckEviction"

EVICTION_SECONDS: Final = 30.0
"""How long after it is due an eviction may take to begin; on a cluster that works it takes less than a second."""
CHECK_SECONDS: Final = 60.0
"""How often it is looked whether pods are still there."""
EXTENDED_RESOURCE_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
"""Annotation `true` of claims that the scheduler makes for pods with extended resources."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Threatened:
    """A claim whose pods are to be evicted, unless it tolerates that.

    Attributes:
        plan: the claim.
        devices: pool and name of its devices with a taint NoExecute, and the marks that they have it for.
    """

    plan: Plan
    devices: Mapping[tuple[str, str], tuple[Mark, ...]]


@dataclass(slots=True, kw_only=True)
class _Watched:
    """A threatened claim as long as it is one.

    Attributes:
        since: when it was first seen, by the monotonic clock.
        stuck: pods that were there at the last check and should not have been.
        told: UIDs of pods that were told so.
    """

    since: float
    stuck: frozenset[str] = frozenset()
    told: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What those that tell of the health of claims' devices have to do with.

    Attributes:
        client: access to the API server.
        events: started by whoever makes it.
        errands: the thread in which the API server is asked.
        driver: driver name.
        node_name: this node.
        taints_kept: whether the API server keeps taints; otherwise nobody evicts anything.
        on_not_evicted: told how many pods ought to be evicted and are not, after each check.
        wall_clock: Unix time in seconds, from which tolerationSeconds count.
    """

    client: Client
    events: EventRecorder
    errands: Errands
    driver: str
    node_name: str
    taints_kept: Callable[[], bool] = lambda: True
    on_not_evicted: Callable[[int], None] = lambda _count: None
    wall_clock: Callable[[], float] = time.time


class EvictionWatch:
    """Looks whether pods that ought to be evicted are, and says so where they are not.

    Asks nothing of the API server as long as no claim has to fear it. All but `wake` happens in the errands' thread.

    Args:
        around: see Around.
        threatened: the claims whose pods are to be evicted now; None where no taint evicts anybody, so that no claim
            need be waited for.
    """

    def __init__(self, around: Around, *, threatened: Callable[[], Iterable[Threatened] | None]) -> None:
        self._around = around
        self._client = around.client
        self._threatened = threatened
        self._clock = around.errands.clock
        self._watched: dict[str, _Watched] = {}
        self._blind = False

    def wake(self) -> None:
        """Look now, since other claims may be threatened than before; returns at once."""
        self._around.errands.at(self.check, self._clock())

    def check(self) -> None:
        """Look at all threatened claims; those of whom it is too early to say anything are looked at again in time."""
        now = self._clock()
        threatened = self._threatened()
        claims = {one.plan.uid: one for one in threatened or ()}
        self._watched = {uid: self._watched.get(uid) or _Watched(since=now) for uid in claims}
        waits = [self._check(one, self._watched[uid], now) for uid, one in claims.items()]
        self._around.on_not_evicted(len(frozenset().union(*(one.stuck for one in self._watched.values()))))
        if threatened is not None:
            self._around.errands.at(self.check, now + min(waits, default=CHECK_SECONDS))

    def _check(self, claim: Threatened, watched: _Watched, now: float) -> float:
        """Look at one claim; returns after how many seconds to look again."""
        early = watched.since + EVICTION_SECONDS - now
        if early > 0:
            return early
        try:
            body = live_claim(self._client, claim.plan.reference) or {}
            pods, wait = self._overdue(claim, body)
        except KubeError as error:
            _log.info("it cannot be seen whether pods are evicted", claim=str(claim.plan), error=str(error))
            return CHECK_SECONDS
        watched.stuck = frozenset(pod.uid for pod in pods)
        self._tell(claim, watched, pods, body)
        return wait

    def _overdue(self, claim: Threatened, body: Object) -> tuple[tuple[Regarding, ...], float]:
        """Find pods that should be gone; returns also after how many seconds to look again."""
        evicted_at = eviction_time(body, self._around.driver, claim.devices)
        if evicted_at is None:
            return (), CHECK_SECONDS
        early = evicted_at + EVICTION_SECONDS - self._around.wall_clock()
        if early > 0:
            return (), min(early, CHECK_SECONDS)
        return tuple(pod for pod in pods_of(body) if self._is_there(pod)), CHECK_SECONDS

    def _is_there(self, pod: Regarding) -> bool:
        """Tell whether a pod is still there and nobody deletes it; one that may not be read is taken to be there."""
        try:
            body = self._client.get(PODS, pod.name, namespace=pod.namespace)
        except NotFoundError:
            return False
        except ForbiddenError as error:
            if not self._blind:
                _log.warning("pods cannot be read, so those that end slowly are told as not evicted", error=str(error))
            self._blind = True
            return True
        self._blind = False
        metadata, phase = body["metadata"], (body.get("status") or {}).get("phase")
        ends = "deletionTimestamp" in metadata or phase in ("Succeeded", "Failed")
        return metadata.get("uid") == pod.uid and not ends

    # --- what is told -----------------------------------------------------------------------------

    def _tell(self, claim: Threatened, watched: _Watched, pods: Iterable[Regarding], body: Object) -> None:
        """Tell each pod once, and the claim of it."""
        for pod in pods:
            if pod.uid not in watched.told:
                watched.told.add(pod.uid)
                note = self._note(claim, pod, body)
                self._warn(pod, note)
                self._warn(claim_regarding(claim.plan.reference), note)

    def _note(self, claim: Threatened, pod: Regarding, body: Object) -> str:
        devices = ", ".join(name for _, name in claim.devices)
        taints = ", ".join(sorted({mark.key for marks in claim.devices.values() for mark in marks}))
        where = f"{devices} of {claim.plan} on node {self._around.node_name}"
        return (
            f"pod {pod.namespace}/{pod.name} runs on, although {where} has the taint {taints} of effect NoExecute, "
            f"which the claim does not tolerate: {self._cause(body)}; have it started elsewhere by "
            f"`kubectl delete pod -n {pod.namespace} {pod.name}`"
        )

    def _cause(self, body: Object) -> str:
        if not self._around.taints_kept():
            return "this cluster keeps no device taints"
        if (body["metadata"].get("annotations") or {}).get(EXTENDED_RESOURCE_CLAIM) == "true":
            return (
                "this Kubernetes does not evict pods with extended resources (kubernetes#141290), or device taint "
                "eviction is off"
            )
        return "device taint eviction (device-taint-eviction-controller of kube-controller-manager) is off or fails"

    def _warn(self, regarding: Regarding, note: str) -> None:
        self._around.events.record(
            Happening(regarding=regarding, type=EventType.WARNING, reason=NOT_EVICTED, action=ACTION, note=note)
        )


def eviction_time(
    claim: Mapping[str, Any], driver: str, devices: Mapping[tuple[str, str], Iterable[Mark]]
) -> float | None:
    """Tell when the pods of a claim are to be evicted, in Unix seconds; None if never.

    Args:
        claim: the ResourceClaim, with the tolerations that its requests had.
        driver: devices of others do not matter.
        devices: pool and name of those with a taint NoExecute, and why they have it.
    """
    allocation = (claim.get("status") or {}).get("allocation") or {}
    times = (
        _end_of_toleration(mark, result.get("tolerations") or ())
        for result in (allocation.get("devices") or {}).get("results") or ()
        if result.get("driver") == driver
        for mark in devices.get((result.get("pool", ""), result.get("device", "")), ())
    )
    return min((time for time in times if time is not None), default=None)


def _end_of_toleration(mark: Mark, tolerations: Iterable[Mapping[str, Any]]) -> float | None:
    """Tell until when a taint is tolerated, in Unix seconds; the shortest of several tolerations counts."""
    seconds = [one.get("tolerationSeconds") for one in tolerations if _tolerates(one, mark)]
    limited = [max(0, limit) for limit in seconds if limit is not None]
    if len(limited) < len(seconds):
        return None
    return mark.since + min(limited, default=0)


def _tolerates(toleration: Mapping[str, Any], mark: Mark) -> bool:
    """Tell whether a toleration is for a taint, by the rules of resource.k8s.io: what is left out holds for all.

    Kubernetes 1.34 to 1.37 evict in spite of a toleration without an effect, against these rules: nobody is to be told
    that a pod is not evicted which need not be.
    """
    if toleration.get("effect") not in (None, "", Effect.NO_EXECUTE):
        return False
    if toleration.get("key") not in (None, "", mark.key):
        return False
    exists = toleration.get("operator") == "Exists"
    # Without a key the operator has to be Exists.
    return exists or bool(toleration.get("key") == mark.key and toleration.get("value", "") == mark.value)
