"""One of several processes leads: which one, a Lease says.

The rules are those of client-go's leader election, so that both can share a Lease. Clocks of different machines are
never compared: a Lease counts as held until it has not changed for its own duration on *our* monotonic clock. A leader
that cannot renew gives up before anybody else can believe so; it has lost then for good, and its process ends.
"""

import datetime as dt
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from dradriver.kube.client import Client
from dradriver.kube.errors import ConflictError, KubeError, NotFoundError, mapping
from dradriver.kube.resources import LEASES, Object

log = structlog.get_logger(__name__)

_MOST_TRANSITIONS = 2**31 - 1
"""The API's field has no more room."""

_LONGEST = 4.0
"""Longest duration of a Lease that is believed, as a multiple of our own. A leader that runs puts an edited one right;
of one that has ended, nobody would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Times of an election, in seconds, and where it takes time and chance from; the defaults are client-go's.

    Attributes:
        lease: how long others wait for a leader that does not renew.
        renew: how long the leader tries to renew before it gives up; shorter than `lease`.
        retry: between two attempts, of the leader and of those who would be.
        call: after which a call that hangs is given up, so that another attempt fits in.
        clock: monotonic seconds.
        chance: random number in [0, 1).

    Raises:
        ValueError: they do not fit together.
    """

    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0
    call: float = 4.0
    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        if not 0 < self.retry < self.renew < self.lease or not 0 < self.call < self.renew:
            raise ValueError(
                f"lease {self.lease:g} s, renew {self.renew:g} s, retry {self.retry:g} s, call {self.call:g} s: "
                "retry and call must be above 0 and below renew, and renew below lease"
            )


class Elector:
    """Takes part in one election, on a thread of its own.

    Args:
        client: access to the API server; better not the one that everything else waits for.
        namespace: of the Lease.
        name: of the Lease.
        identity: of this process, unlike every other's.
        on_elected: called once, on the elector's thread, when the Lease is ours; must not wait.
        on_lost: called once, when it is not any more though nobody has called `stop`; must not wait.
        terms: times.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        on_elected: Callable[[], None] = lambda: None,
        on_lost: Callable[[], None] = lambda: None,
        terms: Terms | None = None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._terms = terms or Terms()
        self._clock = self._terms.clock
        self._known: Object = {}
        self._known_since = -math.inf
        self._renewed = -math.inf
        self._leads = False
        self._is_lost = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def leads(self) -> bool:
        """Whether we may act now: false from the renew deadline on, even while a call of the elector hangs."""
        return self._leads and self._clock() - self._renewed < self._terms.renew

    @property
    def is_lost(self) -> bool:
        """Whether the Lease was ours and is lost."""
        return self._is_lost

    @property
    def leader(self) -> str:
        """Who held the Lease when we last saw it; empty if nobody did."""
        return _holder(self._known)

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self.run, name="elector", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> bool:
        """Give the Lease back, so that a successor need not wait; False if a call still hangs after that long."""
        self._stopped.set()
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def run(self) -> None:
        """Wait for the Lease, hold it, and end with `stop` or its loss."""
        while not self._stopped.is_set() and not self._try(self._terms.call):
            # As client-go does: those who wait shall not all ask at the same moment.
            self._stopped.wait(self._terms.retry * (1 + 0.2 * self._terms.chance()))
        if self._leads:
            self._on_elected()
            self._hold()
        if self._leads:
            self._release()

    def _hold(self) -> None:
        while not self._stopped.wait(self._terms.retry):
            left = self._renewed + self._terms.renew - self._clock()
            if left > 0 and self._try(min(left, self._terms.call)):
                continue
            if self._is_another_s() or self._renewed + self._terms.renew <= self._clock():
                self._lose()
                return

    def _lose(self) -> None:
        self._leads, self._is_lost = False, True
        log.error("leadership lost", lease=self._title, leader=self.leader)
        self._on_lost()

    def _is_another_s(self) -> bool:
        return self.leader not in {"", self._identity}

    @property
    def _title(self) -> str:
        return f"{self._namespace}/{self._name}"

    def _try(self, seconds: float) -> bool:
        """Take or renew the Lease, within that many seconds; whether it is ours now."""
        begun = self._clock()
        try:
            taken = self._attempt(begun + seconds)
        except KubeError as error:
            log.warning("lease not written, will try again", lease=self._title, error=str(error))
            return False
        if taken:
            # From the beginning of the attempt: others count from when the server wrote it, which was later.
            self._renewed = begun
            self._leads = True
        return taken

    def _attempt(self, deadline: float) -> bool:
        if not self._leads:
            return self._make_or_see(deadline) or self._take(deadline)
        try:
            return self._renew(deadline)
        except (ConflictError, NotFoundError):
            # Somebody wrote or deleted it. The next attempt has to know it as it is; and of one that is gone, whoever
            # makes it first leads, which had better be us.
            return self._make_or_see(deadline)

    def _make_or_see(self, deadline: float) -> bool:
        """Look at the Lease, or make it where there is none; whether we made it."""
        try:
            self._observe(self._client.get(LEASES, self._name, namespace=self._namespace, timeout=self._left(deadline)))
        except NotFoundError:
            self._observe(self._client.create(LEASES, self._new(), timeout=self._left(deadline)))
            return True
        return False

    def _renew(self, deadline: float) -> bool:
        """Write what we know to be ours without reading it: whoever changed it makes that a conflict.

        The duration too, for others wait as long as it says when we do not renew any more.
        """
        known = mapping(self._known.get("spec"))
        spec = {**known, "leaseDurationSeconds": math.ceil(self._terms.lease), "renewTime": _now()}
        self._write(spec, timeout=self._left(deadline))
        return self.leader == self._identity

    def _take(self, deadline: float) -> bool:
        if self._is_held():
            return False
        transitions = min(_transitions(self._known) + 1, _MOST_TRANSITIONS)
        self._write(self._spec(transitions=transitions), timeout=self._left(deadline))
        return True

    def _is_held(self) -> bool:
        """Whether somebody else holds the Lease: it changed within its own duration, as far as we have seen."""
        told = mapping(self._known.get("spec")).get("leaseDurationSeconds") or self._terms.lease
        duration = min(told, _LONGEST * self._terms.lease)
        return self._is_another_s() and self._clock() - self._known_since < duration

    def _release(self) -> None:
        self._leads = False
        spec = self._spec(transitions=_transitions(self._known)) | {"holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            self._write(spec, timeout=self._terms.call)
        except KubeError as error:
            log.warning("lease not given back, a successor has to wait", lease=self._title, error=str(error))

    def _write(self, spec: Object, *, timeout: float) -> None:
        """Write another spec; the resourceVersion that we know guards it."""
        self._observe(self._client.replace(LEASES, self._known | {"spec": spec}, timeout=timeout))

    def _left(self, deadline: float) -> float:
        return max(0.1, deadline - self._clock())

    def _observe(self, lease: Object) -> None:
        """Remember a Lease, and since when it has been as it is."""
        if lease.get("spec") != self._known.get("spec"):
            self._known_since = self._clock()
        self._known = lease

    def _new(self) -> Object:
        metadata = {"namespace": self._namespace, "name": self._name}
        head = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata}
        return head | {"spec": self._spec(transitions=0)}

    def _spec(self, *, transitions: int) -> Object:
        now = _now()
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": math.ceil(self._terms.lease),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }


def _holder(lease: Object) -> str:
    return str(mapping(lease.get("spec")).get("holderIdentity") or "")


def _transitions(lease: Object) -> int:
    return int(mapping(lease.get("spec")).get("leaseTransitions") or 0)


def _now() -> str:
    """For people who read the Lease; nobody computes with it."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
