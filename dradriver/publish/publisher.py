"""Keeps the API server's slices equal to what is offered.

Level-triggered: whatever happens (a new offer, a watch event, the kubelet's registration, the passing of time) only
asks for a pass; a pass compares everything known with everything wanted and writes the difference. One thread does
that, so no two passes overlap, and nobody who reports a change waits for the API server.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto

import structlog

from dradriver.kube import (
    NODES,
    RESOURCE_SLICES,
    ApiError,
    Client,
    InvalidError,
    KubeError,
    NotFoundError,
    Object,
    Pace,
    Reflector,
    Selector,
    Store,
    WorkQueue,
)
from dradriver.publish.allowance import Allowance
from dradriver.publish.errors import ContestedError, DroppedFieldsError, NodeMissingError, PublishError, WriteError
from dradriver.publish.plan import Desired, Equals, Identity, Known, Plan, Spec, make_plan
from dradriver.publish.status import Meter, NoMeter, Phase, Status
from dradriver.publish.writer import Writer
from dradriver.resource import Slice

log = structlog.get_logger(__name__)

_CONFLICTS = 5
"""Plans within one pass that may meet another writer."""

_RECHECK = 30.0
"""Seconds after which a disconnected driver's slices are wiped by the kubelet; a wipe that was under way when we
registered again has happened by then."""

_TURN_SECONDS = 1.0
"""How often it is asked whether a newer instance, which publishes, still lives."""

_FULL_COMPARE = 600.0
"""Seconds between comparisons with a fresh list, in case a watch silently loses something."""


_RETURN_SPREAD = 0.5
"""Seconds within which nodes write after the API server has come back to all of them."""


class _Cause(Enum):
    """What the thread has to do: a pass, or (doubt) to tell of what may have changed."""

    CHANGE = auto()
    RETURN = auto()
    DIRTY = auto()
    RECHECK = auto()
    ROUTINE = auto()
    DOUBT = auto()


_FROM_STORE = frozenset({_Cause.CHANGE, _Cause.RETURN})
"""Passes that trust what the watch has told; all others begin with a fresh list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """What is wanted; the number tells a new offer from an old one."""

    desired: Desired
    number: int


class Publisher:
    """Publishes the slices of one pool of one node. Its methods never wait, except where a timeout is given.

    Args:
        client: access to the API server.
        driver: driver name.
        node_name: node whose pods can use the devices, and owner of the slices.
        pool_name: pool, by convention the node's name.
        on_status: called with the newest status whenever that differs from the one told last, by one thread at a time;
            must not block.
        on_doubt: called when what the API server can hold has to be asked anew: it was away, did not accept a slice,
            or left something of one out. By the publisher's thread, once for each such occasion and in the long run at
            most once a minute; must not block.
        is_our_turn: asked before each pass; while it says no, nothing is written, for a newer instance of the driver on
            this node publishes.
        meter: counts writes and failures.
        pace: time, chance and backoff.
    """

    def __init__(  # noqa: PLR0913 (each is a thing that others may leave out)
        self,
        client: Client,
        *,
        driver: str,
        node_name: str,
        pool_name: str,
        on_status: Callable[[Status], None] = lambda _status: None,
        on_doubt: Callable[[], None] = lambda: None,
        is_our_turn: Callable[[], bool] = lambda: True,
        meter: Meter | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._client = client
        self._identity = Identity(driver=driver, node_name=node_name, pool_name=pool_name)
        self._selector = Selector(fields=f"spec.nodeName={node_name},spec.driver={driver}")
        self._on_status = on_status
        self._on_doubt = on_doubt
        self._is_our_turn = is_our_turn
        self._meter = meter or NoMeter()
        self._pace = pace or Pace()
        self._store = Store()
        self._writer = Writer(client, self._store, self._identity, meter=self._meter, on_dropped=self._note_dropped)
        self._queue: WorkQueue[_Cause] = WorkQueue(
            backoff=self._pace.backoff, clock=self._pace.clock, chance=self._pace.chance
        )
        self._reflector = Reflector(
            client,
            RESOURCE_SLICES,
            self._store,
            selector=self._selector,
            on_change=lambda _key: self._queue.add(_Cause.CHANGE),
            on_return=self._note_return,
            pace=self._pace,
        )
        # In writes: whoever deletes or edits slices is answered at once, many times over, but another instance with
        # another offer, which answers as quickly, does not cost the API server more than two writes a second.
        self._undoing = Allowance(burst=60, interval=0.5, clock=self._pace.clock)
        self._doubts = Allowance(burst=5, interval=60.0, clock=self._pace.clock)
        self._changed = threading.Condition()
        self._offer: _Offer | None = None
        self._status = Status()
        self._told = Status()
        self._telling = threading.RLock()
        self._recheck_due = 0.0
        self._patience_until = 0.0
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        # Only the publisher's thread touches these.
        self._not_before = 0.0
        self._is_failing = False
        self._doubted_offer = 0
        self._had_turn = True
        self._written_offer = 0
        self._attended: _Offer | None = None
        self._listed = False
        self._owner: Object | None = None
        self._owner_checked = False
        self._generation = 0
        self._equals = Equals()
        self._remembered: tuple[Spec, ...] = ()
        self._published_offer = 0
        self._refused_offer = 0
        self._poorer = ""

    @property
    def status(self) -> Status:
        """Where things stand."""
        with self._changed:
            return self._status

    @property
    def published(self) -> bool:
        """Whether the API server has what was last offered, as far as we know."""
        return self.status.phase is Phase.PUBLISHED

    def start(self) -> None:
        """Start; the slices that exist are read even before the first offer."""
        self._queue.add(_Cause.DIRTY)
        self._queue.add_after(_Cause.ROUTINE, _FULL_COMPARE)
        self._thread.start()
        self._reflector.start()

    @property
    def alive(self) -> bool:
        """Whether its threads run, from the start to the stop; one that has ended does not come back."""
        return self._thread.is_alive() and self._reflector.alive

    def stop(self, timeout: float = 5.0) -> None:
        """Stop within that many seconds. Slices stay: the kubelet removes them if nobody comes back within 30 s."""
        end = self._pace.clock() + timeout
        self._queue.close()
        self._reflector.end()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        self._reflector.stop(max(0.0, self._remaining(end)))

    def set_slices(self, slices: Iterable[Slice]) -> None:
        """Offer these instead of what was offered before. No slices at all means that the pool ends."""
        with self._changed:
            before = None if self._offer is None else self._offer.desired
        desired = Desired.of(slices, self._identity, before=before)
        with self._changed:
            same = self._offer is not None and self._offer.desired == desired
            if same and self._status.phase is not Phase.WITHDRAWN:
                return
            number = 1 if self._offer is None else self._offer.number + 1
            self._offer = _Offer(desired=desired, number=number)
            self._patience_until = 0.0
            self._status = Status(slices=len(desired.specs), generation=self._status.generation)
            self._changed.notify_all()
        self._tell()
        self._queue.forget(_Cause.CHANGE)
        self._queue.add(_Cause.CHANGE)

    def mark_dirty(self, reason: str) -> None:
        """Compare with a fresh list, now and again 30 s later. For the moment the kubelet has registered us."""
        log.debug("slices will be compared", reason=reason)
        with self._changed:
            self._recheck_due = self._pace.clock() + _RECHECK
            self._patience_until = 0.0
        self._queue.add(_Cause.DIRTY)
        self._queue.add_after(_Cause.RECHECK, _RECHECK)

    def wait_published(self, timeout: float) -> bool:
        """Wait until everything offered is published, at most that many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._status.phase is Phase.PUBLISHED, timeout)

    # --- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while (cause := self._queue.get()) is not None:
            try:
                self._attend(cause)
            except (PublishError, KubeError) as error:
                self._fail(error)
            except Exception as error:
                log.exception("defect in the publisher")
                self._fail(error)
            finally:
                self._queue.done(cause)

    def _attend(self, cause: _Cause) -> None:
        """Decide whether and how to make a pass."""
        if cause is _Cause.ROUTINE:
            self._queue.add_after(_Cause.ROUTINE, _FULL_COMPARE * (1 + self._pace.chance() / 10))
        if (wait := self._remaining(self._earliest(cause))) > 0:
            self._queue.add_after(cause, wait)
        elif cause is _Cause.DOUBT:
            self._doubt()
        elif not self._may_write():
            # What the other one has written meanwhile is to be read when it is our turn again.
            self._queue.add_after(_Cause.DIRTY, _TURN_SECONDS)
        else:
            self._prepare(cause)
            self._try_to_pass()

    def _may_write(self) -> bool:
        ours = self._is_our_turn()
        if ours != self._had_turn:
            self._had_turn = ours
            log.info("publishing again" if ours else "a newer instance of the driver on this node publishes now")
            if ours:
                # The API server may have been away, and be another one by now.
                self._queue.add(_Cause.DOUBT)
        return ours

    def _earliest(self, cause: _Cause) -> float:
        """Time before which nothing is to be done for this cause."""
        if cause is _Cause.DOUBT:
            return 0.0
        if cause is _Cause.RECHECK:
            return max(self._not_before, self._recheck_due)
        # Events go on while the API server refuses writes; they must not shorten the backoff. What the server itself
        # has asked for (Retry-After) nothing shortens.
        return max(self._not_before, self._patience_until) if cause is _Cause.CHANGE else self._not_before

    def _doubt(self) -> None:
        if (wait := self._doubts.take()) > 0:
            self._queue.add_after(_Cause.DOUBT, wait)
        else:
            self._on_doubt()

    def _prepare(self, cause: _Cause) -> None:
        if cause is _Cause.RETURN:
            # It may be another version, which stores what the one before left out.
            self._writer.accepted.clear()
            self._writer.disowned.clear()
            self._poorer = ""
            self._queue.add(_Cause.DOUBT)
        self._listed = self._listed and cause in _FROM_STORE
        if not self._listed:
            self._list()

    def _try_to_pass(self) -> None:
        with self._changed:
            offer = self._attended = self._offer
        if offer is not None:
            if offer.number != self._published_offer:
                self._poorer = ""
            self._pass(offer)
        self._queue.forget(_Cause.CHANGE)
        if self._is_failing:
            self._is_failing = False
            self._reflector.wake()

    def _note_return(self) -> None:
        """The API server answers (again). Called by the reflector's thread."""
        with self._changed:
            self._patience_until = 0.0
        self._queue.forget(_Cause.CHANGE)
        self._queue.add_after(_Cause.RETURN, _RETURN_SPREAD * self._pace.chance())

    def _remaining(self, until: float) -> float:
        return until - self._pace.clock()

    def _list(self) -> None:
        since = self._store.floor
        listing = self._client.list(RESOURCE_SLICES, selector=self._selector)
        self._store.replace(listing.items, listing.resource_version, since=since)
        self._listed = True

    def _pass(self, offer: _Offer) -> None:
        """Write until nothing differs, or until it is clear that this does not end."""
        self._owner_checked = False
        conflicts = 0
        # What follows the first plan of a new offer that could be carried out undoes what somebody did.
        undoing = self._written_offer == offer.number
        while conflicts <= _CONFLICTS:
            plan = self._plan(offer)
            if plan.is_empty:
                self._succeed(offer, plan)
                return
            if undoing and (wait := self._undoing.take(plan.writes)) > 0:
                self._queue.add_after(_Cause.CHANGE, wait)
                self._set_status(replace(self.status, phase=Phase.PENDING, message="somebody undoes our writes"))
                return
            undoing = True
            conflicts += self._execute(offer, plan)
            self._written_offer = offer.number
        raise ContestedError(self._identity.pool_name)

    def _plan(self, offer: _Offer) -> Plan:
        desired = Desired(specs={}) if self._refused_offer == offer.number else offer.desired
        plan = make_plan(desired, self._identity, self._known())
        if plan.creates and not self._owner_checked:
            # Slices vanish with their Node: the one that exists now may be another with the same name.
            self._owner = self._read_owner()
            plan = make_plan(desired, self._identity, self._known())
        return plan

    def _known(self) -> Known:
        if self._owner is None:
            self._owner = self._read_owner()
        return Known(
            observed=self._store.snapshot(),
            owner=self._owner,
            generation=self._generation,
            remembered=self._remembered,
            accepted=self._writer.accepted,
            disowned=self._writer.disowned,
            equals=self._equals,
        )

    def _read_owner(self) -> Object:
        name = self._identity.node_name
        try:
            node = self._client.get(NODES, name)
        except NotFoundError as error:
            raise NodeMissingError(name) from error
        self._owner_checked = True
        return {
            "apiVersion": NODES.api_version,
            "kind": NODES.kind,
            "name": name,
            "uid": node["metadata"]["uid"],
            "controller": True,
        }

    def _execute(self, offer: _Offer, plan: Plan) -> bool:
        """Write; returns whether another writer was in the way."""
        self._generation = max(self._generation, plan.generation)
        log.info(
            "writing slices",
            generation=plan.generation,
            updates=len(plan.updates),
            creates=len(plan.creates),
            deletes=len(plan.clears) + len(plan.deletes),
        )
        try:
            return self._writer.execute(plan)
        except DroppedFieldsError as error:
            # Half an offer would hand out the same memory twice.
            self._refused_offer = offer.number
            self._note_doubt(offer)
            self._meter.failed(type(error).__name__)
            log.error("slices are withdrawn", error=str(error))  # noqa: TRY400 - no defect, and told in full
            self._poorer = str(error)
            return False

    def _succeed(self, offer: _Offer, plan: Plan) -> None:
        self._generation = max(self._generation, plan.generation)
        self._remembered = tuple(item["spec"] for item in self._store.snapshot().values())
        refused = self._refused_offer == offer.number
        self._published_offer = offer.number
        status = Status(
            phase=Phase.WITHDRAWN if refused else Phase.PUBLISHED,
            message=self._poorer,
            generation=plan.generation,
            slices=0 if refused else len(offer.desired.specs),
        )
        self._set_status(status, offer=offer)
        if not refused:
            self._meter.published(status)

    def _note_doubt(self, offer: _Offer | None) -> None:
        """The API server does not hold an offer as it was expected to: a reason to ask it, but only one."""
        if offer is not None and offer.number != self._doubted_offer:
            self._doubted_offer = offer.number
            self._queue.add(_Cause.DOUBT)

    def _note_dropped(self, error: DroppedFieldsError) -> None:
        self._poorer = str(error)
        self._note_doubt(self._attended)
        self._meter.failed(type(error).__name__)
        log.error("slice is stored incompletely", error=str(error))

    def _fail(self, error: Exception) -> None:
        cause = error.__cause__ if isinstance(error.__cause__, ApiError) else error
        self._is_failing = True
        if isinstance(cause, ApiError):
            self._not_before = self._pace.clock() + (cause.retry_after or 0.0)
        if isinstance(error, WriteError) and isinstance(cause, InvalidError):
            self._note_doubt(self._attended)
        delay = self._queue.retry(_Cause.CHANGE, error=cause)
        with self._changed:
            if self._offer is self._attended:
                self._patience_until = self._pace.clock() + delay
        self._meter.failed(type(cause).__name__)
        log.warning("slices not published, will try again", error=str(error), seconds=round(delay, 1))
        self._set_status(replace(self.status, phase=Phase.FAILING, message=str(error)))

    def _set_status(self, status: Status, *, offer: _Offer | None = None) -> None:
        with self._changed:
            outdated = offer is not None and offer is not self._offer
            if outdated or status == self._status:
                return
            self._status = status
            self._changed.notify_all()
        self._tell()

    def _tell(self) -> None:
        """Tell what holds now: of two threads that changed it, the slower one must not have the last word."""
        with self._telling:
            status = self.status
            if status != self._told:
                self._told = status
                self._on_status(status)
