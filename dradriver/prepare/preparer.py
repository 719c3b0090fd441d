"""Prepares and unprepares claims: the order of the steps, and nothing else.

Prepare: read the claim, plan, hold the devices, write the record, make partitions, write the CDI spec, verify,
write the record again, answer. Unprepare walks back from the record alone. Every step can be repeated.

What may pass by itself is tried again until shortly before the kubelet's deadline, with no lock held meanwhile;
nothing waits for the API server under a lock.
"""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

import structlog

from dradriver import api
from dradriver.cdi.errors import CdiError
from dradriver.kube.errors import (
    KubeError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    UnauthorizedError,
    UnreachableError,
)
from dradriver.kubelet import ClaimReference, Failed, Prepared
from dradriver.nvml import DriverUnavailable, NvmlError
from dradriver.observe.logs import about_claim
from dradriver.observe.metrics import Metrics, MigOperation, Operation
from dradriver.prepare import partitions
from dradriver.prepare.answers import check_uid, error_type, prepared, with_claim
from dradriver.prepare.boundaries import Boundary, passed
from dradriver.prepare.claim import read_claim
from dradriver.prepare.containers import Containers, GpuFacts
from dradriver.prepare.errors import (
    ClaimError,
    ClaimUnreadableError,
    GpuGoneError,
    HeldError,
    MalformedClaimError,
    PlanError,
    PrepareError,
    RecordError,
    UnavailableError,
)
from dradriver.prepare.locks import Locks, claim_lock, gpu_lock
from dradriver.prepare.node import Node
from dradriver.prepare.patience import ANSWER_SECONDS, Patience
from dradriver.prepare.plan import Plan, PlannedDevice, make_plan
from dradriver.prepare.records import Made, Record, Records, State
from dradriver.prepare.recovery import UnrecoverableError, recover
from dradriver.prepare.roles import ClaimReader, SilentTeller, Teller

CLAIM_TIMEOUT: Final = 10.0
"""Seconds that one GET of a claim may take; the kubelet waits 45 s for the whole call."""

UNDO_SECONDS: Final = ANSWER_SECONDS + 0.5
"""How long a partition in use is tried again with its GPU locked, until others get their turn at the GPU; less what
is kept of every deadline. What resists stays recorded."""

HANG_SECONDS: Final = ANSWER_SECONDS / 2
"""Before the deadline of a call: what has not ended by itself until then hangs, and the others are answered."""
RECOVER_SECONDS: Final = 5.0
"""How long making a lost record again waits for others at work on the claim or its GPUs."""

GONE_SECONDS: Final = 10.0
"""How long the claim of a holder must have been gone before its devices are taken from it. The kubelet has been
seen to unprepare within a second of a forced deletion; whoever has not by then will not."""

PARALLEL: Final = 64
"""Claims of calls with several that are worked on at once: more than may wait, so that a new one finds a thread."""

WAITING: Final[Mapping[Operation, int]] = {"prepare": 40, "unprepare": 12}
"""Claims that may wait for something to pass. The rest of the threads, here and in the kubelet room, is left free for
what they wait for: mostly an unprepare."""

_log = structlog.get_logger()
T = TypeVar("T")


class Preparer:
    """The kubelet's calls, answered claim by claim. Safe for concurrent calls.

    Args:
        driver: name of the driver whose results are ours.
        read: reads a claim from the API server.
        records: loaded records.
        containers: writes CDI specs.
        boot_id: of the running kernel; a record of another boot has nothing left to undo.
        node: tells what the node offers now; None while that is unknown.
        metrics: what is counted.
        locks: shared with another process during an update.
        teller: told of every result.
        patience: makes the patience of a call from its deadline.
    """

    def __init__(  # noqa: PLR0913 (the parts it is put together from, each by name)
        self,
        *,
        driver: str,
        read: ClaimReader,
        records: Records,
        containers: Containers,
        boot_id: str,
        node: Callable[[], Node | None],
        metrics: Metrics,
        locks: Locks | None = None,
        teller: Teller | None = None,
        patience: Callable[[float], Patience] | None = None,
    ) -> None:
        self._driver = driver
        self._read = read
        self._records = records
        self._containers = containers
        self._boot_id = boot_id
        self._node = node
        self._metrics = metrics
        self._locks = locks or Locks()
        self._teller = teller or SilentTeller()
        self._hurry = threading.Event()
        self._patience = patience or (lambda deadline: Patience(deadline, sleep=self._hurry.wait))
        self._waiting = {operation: threading.BoundedSemaphore(most) for operation, most in WAITING.items()}
        self._gone_since: dict[str, float] = {}
        # One for each operation: preparing claims may all be waiting for the unpreparing of others.
        self._pools = {
            operation: ThreadPoolExecutor(PARALLEL, thread_name_prefix=operation)
            for operation in ("prepare", "unprepare")
        }

    def prepare(self, claims: Sequence[ClaimReference], *, deadline: float) -> Mapping[str, Prepared | Failed]:
        """Make claims ready; every claim gets an answer of its own."""
        return self._answers("prepare", claims, self._attempt, deadline)

    def unprepare(self, claims: Sequence[ClaimReference], *, deadline: float) -> Mapping[str, Failed | None]:
        """Undo what was prepared; a claim that is not known is done already."""
        return self._answers("unprepare", claims, self._unprepare, deadline)

    def hurry(self) -> None:
        """Let calls that wait for something to pass fail now: the process is to end, another one will be asked."""
        self._hurry.set()

    def close(self, *, wait: bool = True) -> None:
        """End the threads, once calls under way are finished; these are waited for unless one may hang in NVML."""
        for pool in self._pools.values():
            pool.shutdown(wait=wait)

    def count_devices(self) -> None:
        """Publish how many devices are prepared now."""
        devices = [device for record in self._records.all() for device in record.plan.devices]
        self._metrics.set_prepared_devices(
            Counter(api.DeviceType.GPU if device.profile_id is None else api.DeviceType.MIG for device in devices)
        )

    # --- calls -----------------------------------------------------------------------------------

    def _answers(
        self,
        operation: Operation,
        claims: Sequence[ClaimReference],
        act: Callable[[ClaimReference, Patience, int], T],
        deadline: float,
    ) -> Mapping[str, T | Failed]:
        patience = self._patience(deadline)
        with self._metrics.request(operation) as request:
            if len(claims) > 1:
                answers = _awaited(
                    [
                        (claim, self._pools[operation].submit(self._answer, operation, claim, act, patience))
                        for claim in claims
                    ],
                    patience,
                )
            else:
                answers = {claim.uid: self._answer(operation, claim, act, patience) for claim in claims}
            if any(isinstance(answer, Failed) for answer in answers.values()):
                request.fail()
        self.count_devices()
        return answers

    def _answer(
        self,
        operation: Operation,
        claim: ClaimReference,
        act: Callable[[ClaimReference, Patience, int], T],
        patience: Patience,
    ) -> T | Failed:
        """Run one claim's part of a call; whatever goes wrong concerns that claim only."""
        with about_claim(namespace=claim.namespace, name=claim.name, uid=claim.uid):
            try:
                check_uid(claim)
                return self._persistently(operation, lambda number: act(claim, patience, number), patience)
            except (PrepareError, CdiError, NvmlError) as error:
                self._metrics.claim_failed(operation, error_type(operation, error))
                _log.warning(f"cannot {operation} claim", error=str(error))
                message = with_claim(claim, str(error))
            except Exception as error:  # noqa: BLE001 (a fault of ours in one claim must not fail its neighbours)
                self._metrics.claim_failed(operation, "internal")
                _log.exception(f"cannot {operation} claim: internal error")
                message = with_claim(claim, f"internal error of the driver, see its log: {error!r}")
            self._teller.failed(claim, operation, message)
            return Failed(message)

    # --- records ---------------------------------------------------------------------------------

    def recover(self, uid: str) -> bool:
        """Make the record of a claim again if it was lost; returns whether there is one now.

        Raises:
            PrepareError: the GPUs are not known yet, or another call is at work on the claim.
            NvmlError: the GPUs cannot be asked now.
        """
        deadline = time.monotonic() + RECOVER_SECONDS
        with self._locks.hold([claim_lock(uid)], deadline):
            self._records.refresh()
            return self._recorded(uid, deadline) is not None

    def rebuild(self, uid: str, body: Mapping[str, Any]) -> bool:
        """Make a lost record again from the claim's allocation and the GPUs, where no CDI spec tells it.

        Args:
            uid: of the claim, which was being prepared or prepared here.
            body: the ResourceClaim.

        Returns:
            Whether there is a record now.

        Raises:
            PrepareError: the GPUs do not answer, or another call is at work on the claim.
        """
        deadline = time.monotonic() + RECOVER_SECONDS
        with self._locks.hold([claim_lock(uid)], deadline):
            self._records.refresh()
            if self._records.get(uid) is not None:
                return True
            node = self._known_node()
            try:
                plan = make_plan(read_claim(body, uid=uid, driver=self._driver), node.offer)
                with self._locks.hold(_gpu_locks(plan), deadline):
                    self._records.refresh()
                    record = self._found(plan, node)
                    self._records.reserve(record)
                    self._written(record)
            except (ClaimError, PlanError, HeldError) as error:
                _log.warning("the record of a claim cannot be made again", claim_uid=uid, error=str(error))
                return False
        _log.warning("the record of a claim was lost, it is made again from its allocation", claim_uid=uid)
        return True

    def check_spec(self, uid: str) -> bool:
        """Write the CDI spec of a prepared claim anew if it is gone or not true any more; returns whether it was.

        The kubelet does not prepare a claim again when a container restarts, and the runtime then reads the spec as
        it is: a device minor that moved, or a driver that was upgraded, must be in it by then.

        Raises:
            PrepareError, CdiError, NvmlError: it cannot be told or written now.
        """
        deadline = time.monotonic() + RECOVER_SECONDS
        with self._locks.hold([claim_lock(uid)], deadline):
            record = self._records.get(uid)
            if record is None or record.state is not State.PREPARED or record.boot_id != self._boot_id:
                return False
            node = self._known_node()
            with self._locks.hold(_gpu_locks(record.plan), deadline):
                self._containers.specs.remove_unfinished(uid)
                if len(self._alive(record, node)) < len(record.plan.devices) or self._is_intact(record):
                    return False
                self._containers.write(record.plan, record.made, self._facts(record.plan, node))
        _log.warning("the CDI spec of a claim was gone or out of date and is written anew", devices=record.plan.names)
        return True

    def _found(self, plan: Plan, node: Node) -> Record:
        """Say how far a claim has come by what lies at its places."""
        made = {device.device: partitions.look(node.hardware, device) for device in plan.devices if device.placement}
        known = {name: one for name, one in made.items() if one is not None}
        return Record(
            boot_id=self._boot_id,
            state=State.PREPARED if len(known) == len(made) else State.PREPARING,
            plan=plan,
            made=known,
            spec_path=str(self._containers.specs.path(plan.uid)),
        )

    def _recorded(self, uid: str, deadline: float) -> Record | None:
        """Find the record of a claim; one that was lost is made again from the claim's CDI spec."""
        path = self._containers.specs.path(uid)
        record = self._records.get(uid)
        if record is not None or not self._containers.specs.exists(uid):
            return record
        try:
            record = recover(path, uid=uid, boot_id=self._boot_id, node=self._known_node())
            with self._locks.hold(_gpu_locks(record.plan), deadline):
                self._records.refresh()
                self._records.reserve(record)
                self._written(record)
        except (UnrecoverableError, HeldError) as error:
            _log.warning("a CDI spec without a record does not count", claim_uid=uid, error=str(error))
            return None
        _log.warning("the record of a claim was lost, it is made again from its CDI spec", claim_uid=uid)
        return record

    def _written(self, record: Record) -> None:
        """Write the record of a reservation, or give the reservation up."""
        try:
            self._records.write(record)
        except RecordError:
            # The file may be there all the same, and would hold the devices after a restart; they are held until it
            # is gone.
            self._records.forget(record.plan.uid)
            raise
        except BaseException:
            self._records.release(record.plan.uid)
            raise

    # --- prepare ---------------------------------------------------------------------------------

    def _attempt(self, claim: ClaimReference, patience: Patience, _attempt: int = 0) -> Prepared:
        started = time.monotonic()
        body = self._get(claim, patience)
        with self._locks.hold([claim_lock(claim.uid)], patience.answer_by):
            self._records.refresh()
            earlier = self._recorded(claim.uid, patience.answer_by)
            plan = self._plan(claim, body)
            plans = [plan] if earlier is None else [plan, earlier.plan]
            with self._locks.hold(_gpu_locks(*plans), patience.answer_by):
                self._records.refresh()
                record = self._current_record(plan, patience)
                if record is None or not self._is_intact(record):
                    record = self._apply(plan, record, self._known_node(), patience)
                    _log.info("claim prepared", devices=plan.names, seconds=round(time.monotonic() - started, 4))
                    self._teller.prepared(record)
        return prepared(plan)

    def _get(self, claim: ClaimReference, patience: Patience) -> Mapping[str, Any] | None:
        """Read a claim; None where the API server does not answer and the claim is prepared already."""
        try:
            return self._read(claim, timeout=_claim_timeout(patience))
        except NotFoundError as error:
            raise ClaimError(
                f"claim {claim.namespace}/{claim.name} does not exist (any more): delete the pod that uses it"
            ) from error
        except (UnreachableError, ServerError, TooManyRequestsError, UnauthorizedError) as error:
            if self._done_plan(claim) is not None:
                _log.info("API server does not answer, going by the record of the claim", error=str(error))
                return None
            raise ClaimUnreadableError(f"claim {claim.namespace}/{claim.name} cannot be read: {error}") from error
        except KubeError as error:
            raise ClaimError(f"claim {claim.namespace}/{claim.name} cannot be read: {error}") from error

    def _done_plan(self, claim: ClaimReference) -> Plan | None:
        record = self._records.get(claim.uid)
        if record is None or record.state is not State.PREPARED or record.boot_id != self._boot_id:
            return None
        return record.plan

    def _plan(self, claim: ClaimReference, body: Mapping[str, Any] | None) -> Plan:
        """Plan from the claim as it is now; what is prepared already does not depend on what is offered by now."""
        done = self._done_plan(claim)
        if body is None:
            if done is None:
                raise ClaimUnreadableError(f"claim {claim.namespace}/{claim.name} cannot be read")
            return done
        allocated = read_claim(body, uid=claim.uid, driver=self._driver)
        if done is None or not done.fits(allocated):
            return make_plan(allocated, self._known_node().offer)
        if all(device.requests for device in done.devices):
            return done
        # Recovered from a CDI spec, which does not tell which request a device answers.
        return replace(make_plan(allocated, self._known_node().offer), uid=claim.uid)

    def _known_node(self) -> Node:
        node = self._node()
        if node is None:
            raise UnavailableError(
                "the GPUs of this node are not known yet: see the plugin's log for what it waits for"
            )
        return node

    def _current_record(self, plan: Plan, patience: Patience) -> Record | None:
        """Find what an earlier call left; a record that does not fit any more is undone first."""
        record = self._records.get(plan.uid)
        if record is None:
            return None
        if record.boot_id != self._boot_id:
            self._forget(record)
            return None
        if record.state is not State.UNPREPARING and record.plan.means_the_same_as(plan):
            return record if record.plan == plan else self._replanned(record, plan)
        _log.info("undoing what an earlier call left", state=record.state, devices=record.plan.names)
        self._undo(record, patience)
        return None

    def _replanned(self, record: Record, plan: Plan) -> Record:
        """Keep what exists, under what is known by now: the names of the requests, or of the claim."""
        record = replace(record, plan=plan)
        self._records.write(record)
        return record

    def _is_intact(self, record: Record) -> bool:
        """Tell whether everything a prepared claim needs is there, down to the paths its CDI spec names."""
        if record.state is not State.PREPARED:
            return False
        node = self._known_node()
        alive = self._alive(record, node)
        return len(alive) == len(record.plan.devices) and self._containers.is_intact(
            record.plan, record.made, self._facts(record.plan, node)
        )

    def _alive(self, record: Record, node: Node) -> list[PlannedDevice]:
        return [
            device
            for device in record.plan.devices
            if partitions.is_alive(node.hardware, device, record.made.get(device.device))
        ]

    def _apply(self, plan: Plan, earlier: Record | None, node: Node, patience: Patience) -> Record:
        record = self._begin(plan, node) if earlier is None else self._ready_for_repair(earlier, node)
        try:
            self._unsettle_sharers(plan, node)
            return self._carry_out(record, node)
        except (PrepareError, CdiError, NvmlError):
            # A claim that was prepared before has running containers: it is repaired, never torn down.
            if record.state is State.PREPARING:
                self._try_to_undo(record, patience)
            raise

    def _begin(self, plan: Plan, node: Node) -> Record:
        """Hold the devices and record the intent; from here on what lies at their places is ours to destroy."""
        record = Record(
            boot_id=self._boot_id,
            state=State.PREPARING,
            plan=plan,
            spec_path=str(self._containers.specs.path(plan.uid)),
        )
        self._records.reserve(record)
        try:
            partitions.check_free(node.hardware, plan.devices, shared=self._shared(plan))
            # With a spec of another driver, or of a record that was lost, the processes may be the claim's own.
            if not self._containers.specs.is_known(plan.uid):
                partitions.check_idle(node.hardware, plan.devices)
        except BaseException:
            self._records.release(plan.uid)
            raise
        self._written(record)
        passed(Boundary.PREPARING_RECORDED)
        return record

    def _ready_for_repair(self, record: Record, node: Node) -> Record:
        """Record that the partitions of a prepared claim which do not exist any more are to be made again.

        What then lies at their places is ours whatever its UUID, as with a first attempt; so nobody else's may.
        """
        if record.state is not State.PREPARED:
            # A reservation whose file could be neither written nor removed is known here only.
            self._records.write(record)
            return record
        alive = self._alive(record, node)
        # What an earlier repair has recorded as to be made may exist by now, and is ours.
        lost = [device for device in record.plan.devices if device.device in record.made and device not in alive]
        lost = [device for device in lost if device.make]
        if not lost:
            return record
        _log.warning("partitions of a prepared claim are gone and made again", devices=[one.device for one in lost])
        partitions.check_free(node.hardware, lost, shared=self._shared(record.plan))
        names = {device.device for device in lost}
        record = replace(record, made={name: made for name, made in record.made.items() if name not in names})
        self._records.write(record)
        passed(Boundary.PREPARING_RECORDED)
        return record

    def _shared(self, plan: Plan) -> frozenset[str]:
        """Name the devices of a claim that other claims hold too, as shares of the same device."""
        others = {
            device.device
            for record in self._records.all()
            if record.plan.uid != plan.uid and record.boot_id == self._boot_id
            for device in record.plan.devices
            if not device.admin_access
        }
        return frozenset(device.device for device in plan.devices if device.share_id and device.device in others)

    def _unsettle_sharers(self, plan: Plan, node: Node) -> None:
        """Record for all claims that share a lost partition that it is made again, as `_ready_for_repair` does."""
        shared = self._shared(plan)
        for record in self._records.all() if shared else ():
            lost = {
                device.device
                for device in record.plan.devices
                if device.device in shared
                and device.device in record.made
                and device.make
                and not partitions.is_alive(node.hardware, device, record.made[device.device])
            }
            if lost and record.plan.uid != plan.uid and record.boot_id == self._boot_id:
                made = {name: made for name, made in record.made.items() if name not in lost}
                self._records.write(replace(record, made=made))

    def _carry_out(self, record: Record, node: Node) -> Record:
        plan = record.plan
        made: dict[str, Made] = {}
        for device in plan.devices:
            with self._counted("create", device):
                needs_reset = node.gpu(device.gpu_uuid).mig_needs_reset
                instance = partitions.ensure(node.hardware, device, mode_needs_reset=needs_reset)
            if instance is not None:
                made[device.device] = instance
        self._containers.write(plan, made, self._facts(plan, node))
        passed(Boundary.SPEC_WRITTEN)
        done = replace(record, made=made, state=State.PREPARED)
        self._records.write(done)
        passed(Boundary.PREPARED_RECORDED)
        return done

    def _facts(self, plan: Plan, node: Node) -> dict[str, GpuFacts]:
        """Read what may have changed since the GPUs were offered: minors, and the driver's version."""
        try:
            version = node.hardware.driver_version()
            minors = {device.gpu_uuid: node.hardware.minor(device.gpu_uuid) for device in plan.devices}
        except DriverUnavailable as error:
            raise UnavailableError(f"{plan}: {error}") from error
        return {
            gpu_uuid: GpuFacts(minor=minor, pci_bus_id=node.gpu(gpu_uuid).pci_bus_id, driver_version=version)
            for gpu_uuid, minor in minors.items()
        }

    # --- waiting ---------------------------------------------------------------------------------

    def _persistently(self, operation: Operation, attempt: Callable[[int], T], patience: Patience) -> T:
        """Try again what may pass, with no lock held meanwhile; an attempt is told how many went before it."""
        with ExitStack() as seat:
            for number in itertools.count():
                try:
                    return attempt(number)
                except (PrepareError, CdiError) as error:
                    if not error.passes or not self._may_wait(operation, seat, error, number):
                        raise
                    if isinstance(error, HeldError):
                        self._release_if_gone(error.holder, patience)
                    if not patience.pause(number):
                        raise self._with_pods(error) from error
        raise AssertionError  # unreachable: the count has no end

    def _with_pods(self, error: PrepareError | CdiError) -> PrepareError | CdiError:
        """Name the pods that a holder's claim is for: it is they who have to end."""
        record = self._records.get(error.holder) if isinstance(error, HeldError) else None
        if record is None or not record.plan.name:
            return error
        try:
            body = self._read(record.plan.reference, timeout=ANSWER_SECONDS / 2)
        except KubeError:
            return error
        users = (body.get("status") or {}).get("reservedFor") or ()
        names = [f"{record.plan.namespace}/{user['name']}" for user in users if user.get("resource") == "pods"]
        if not names or body["metadata"].get("uid") != record.plan.uid:
            return error
        return HeldError(f"{error}; it is reserved for pod {', '.join(names)}", holder=record.plan.uid)

    def _may_wait(self, operation: Operation, seat: ExitStack, error: Exception, number: int) -> bool:
        """Take a seat among those that wait, for the rest of the call; False where all are taken, or in a hurry."""
        if self._hurry.is_set():
            return False
        if number == 0:
            if not self._waiting[operation].acquire(blocking=False):
                _log.warning("too many claims wait already", error=str(error))
                return False
            seat.callback(self._waiting[operation].release)
            _log.info("waiting for what may pass", error=str(error))
        return True

    def _release_if_gone(self, uid: str, patience: Patience) -> None:
        """Take the devices from a claim that has not existed for a while, if no process uses them."""
        record = self._records.get(uid)
        if record is None or not record.plan.name or self.why_stale(record.plan, _claim_timeout(patience)) is None:
            self._gone_since.pop(uid, None)
            return
        since = self._gone_since.setdefault(uid, patience.now())
        if patience.now() - since < GONE_SECONDS or self.is_used(record):
            return
        _log.warning("the claim that holds the device is gone, releasing it", holder=str(record.plan), holder_uid=uid)
        try:
            self._unprepare(record.plan.reference, patience)
        except (PrepareError, CdiError, NvmlError) as error:
            _log.warning("the device cannot be released yet", holder=str(record.plan), error=str(error))
        else:
            self._gone_since.pop(uid, None)

    def why_stale(self, plan: Plan, timeout: float = CLAIM_TIMEOUT) -> str | None:
        """Say why a claim does not need its devices any more; None if it does, or if nobody can say now."""
        try:
            body = self._read(plan.reference, timeout=timeout)
        except NotFoundError:
            return "the claim does not exist any more"
        except KubeError:
            return None
        try:
            allocated = read_claim(body, uid=plan.uid, driver=self._driver)
        except MalformedClaimError:
            return None
        except ClaimError as error:
            return str(error)
        return None if plan.fits(allocated) else "the claim is allocated to other devices by now"

    def is_used(self, record: Record) -> bool:
        """Tell whether a process computes on a device that a claim holds; False where NVML cannot say.

        On what other claims share the process may be theirs, and nobody who comes next has to have it alone.
        """
        node, shared = self._node(), self._shared(record.plan)
        return node is not None and any(
            partitions.is_used(node.hardware, device, record.made.get(device.device))
            for device in record.plan.devices
            if not device.admin_access and device.device not in shared
        )

    def abandon(self, uid: str, *, deadline: float) -> bool:
        """Forget what was made for a claim on GPUs that have been taken out of the machine; returns whether it was.

        Raises:
            PrepareError: another call is at work on the claim, or the record cannot be removed.
        """
        with self._locks.hold([claim_lock(uid)], deadline):
            self._records.refresh()
            record = self._records.get(uid)
            if record is None or record.state is not State.UNPREPARING:
                return False
            hardware = self._known_node().hardware
            made = [device for device in record.plan.devices if device.make]
            with self._locks.hold(_gpu_locks(record.plan), deadline):
                if not made or not all(partitions.is_taken_out(hardware, device) for device in made):
                    return False
                self._forget(record)
        _log.warning("partitions are gone with their GPUs", devices=record.plan.names)
        return True

    # --- unprepare -------------------------------------------------------------------------------

    def _unprepare(self, claim: ClaimReference, patience: Patience, attempt: int = 0) -> None:
        with self._locks.hold([claim_lock(claim.uid)], patience.answer_by):
            self._records.refresh()
            record = self._recorded(claim.uid, patience.answer_by)
            if record is None:
                self._containers.specs.remove(claim.uid)
                return
            if attempt and record.state is not State.UNPREPARING:
                # A call that the kubelet has given up must not undo what a later one has prepared.
                _log.info("the claim was prepared anew meanwhile, it stays", devices=record.plan.names)
                return
            with self._locks.hold(_gpu_locks(record.plan), patience.answer_by):
                try:
                    # A claim that shares the device may have written it meanwhile.
                    self._undo(self._records.get(claim.uid) or record, patience)
                except GpuGoneError as error:
                    # The pod must be able to end. Its device stays held: the reconciler comes back to it, and the
                    # next boot has nothing of it.
                    self._containers.specs.remove(claim.uid, path=record.spec_path)
                    _log.warning("the partition is left to the reconciler, its GPU is gone", error=str(error))
                    return
        _log.info("claim unprepared", devices=record.plan.names)

    def _try_to_undo(self, record: Record, patience: Patience) -> None:
        """Leave nothing of a failed attempt; what resists stays recorded, for the next call to deal with."""
        try:
            self._undo(record, patience)
        except (PrepareError, CdiError, NvmlError) as error:
            _log.warning("the failed attempt is not undone yet", error=str(error))

    def _undo(self, record: Record, patience: Patience) -> None:
        # After a reboot no partition exists, so neither the GPUs nor their driver are needed.
        if record.boot_id == self._boot_id:
            self._release(record, patience.at_most(UNDO_SECONDS))
        self._forget(record)

    def _release(self, record: Record, patience: Patience) -> None:
        shared = self._shared(record.plan)
        ours = [device for device in record.plan.devices if device.make and device.device not in shared]
        if not ours:
            return
        if record.state is not State.UNPREPARING:
            record = replace(record, state=State.UNPREPARING)
            self._records.write(record)
            passed(Boundary.UNPREPARING_RECORDED)
        node = self._known_node()
        for device in ours:
            with self._counted("destroy", device):
                partitions.release(node.hardware, device, record.made.get(device.device), patience)
        for gpu_uuid in {device.gpu_uuid for device in ours}:
            gpu = node.gpus.get(gpu_uuid)
            if gpu is not None and not gpu.mig_needs_reset:
                partitions.switch_off_when_empty(node.hardware, gpu_uuid)

    @contextmanager
    def _counted(self, operation: MigOperation, device: PlannedDevice) -> Iterator[None]:
        try:
            yield
        except PrepareError:
            if device.make:
                self._metrics.mig_operation(operation, failed=True)
            raise
        if device.make:
            self._metrics.mig_operation(operation)

    def _forget(self, record: Record) -> None:
        self._containers.specs.remove(record.plan.uid, path=record.spec_path)
        passed(Boundary.SPEC_REMOVED)
        self._records.forget(record.plan.uid)
        passed(Boundary.RECORD_REMOVED)


def _awaited(work: "Sequence[tuple[ClaimReference, Future[T | Failed]]]", patience: Patience) -> dict[str, T | Failed]:
    """Wait for all claims of a call; one that hangs must not keep its neighbours from being answered.

    Each ends by itself a second before the deadline; what is still there after that hangs.
    """
    futures.wait([answer for _, answer in work], timeout=max(HANG_SECONDS, patience.left() - HANG_SECONDS))
    return {
        claim.uid: answer.result()
        if answer.done()
        else Failed(f"claim {claim.namespace}/{claim.name}: its GPU does not answer in time; the kubelet tries again")
        for claim, answer in work
    }


def _claim_timeout(patience: Patience) -> float:
    """Seconds that one GET may take, so that there is time left to answer."""
    return min(CLAIM_TIMEOUT, max(0.1, patience.left() - ANSWER_SECONDS))


def _gpu_locks(*plans: Plan) -> list[str]:
    return [gpu_lock(device.gpu_uuid) for plan in plans for device in plan.devices if not device.admin_access]
