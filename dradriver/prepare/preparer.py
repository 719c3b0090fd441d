"""Prepares and unprepares claims: the order of the steps, and nothing else.

Prepare: read the claim, plan, hold the devices, write the record, make partitions, write the CDI spec, verify,
write the record again, answer. Unprepare walks back from the record alone. Every step can be repeated.
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import structlog

from dradriver import api
from dradriver.cdi.errors import CdiError
from dradriver.gpu.model import Gpu
from dradriver.gpu.offer import Offer
from dradriver.kube.errors import ApiError, NotFoundError, UnreachableError
from dradriver.kubelet import ClaimReference, Failed, Prepared, PreparedDevice
from dradriver.nvml import NvmlError
from dradriver.observe.logs import about_claim
from dradriver.observe.metrics import ErrorType, Metrics, MigOperation, Operation
from dradriver.prepare import partitions
from dradriver.prepare.claim import read_claim
from dradriver.prepare.containers import Containers, GpuFacts, qualified_names
from dradriver.prepare.errors import BusyError, ClaimError, HardwareError, PrepareError
from dradriver.prepare.partitions import Hardware
from dradriver.prepare.plan import Plan, PlannedDevice, make_plan
from dradriver.prepare.records import Made, Record, Records, State, with_made

CLAIM_TIMEOUT: Final = 10.0
"""Seconds that one GET of a claim may take; the kubelet waits 45 s for the whole call."""

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")

_log = structlog.get_logger()
T = TypeVar("T")


class ClaimReader(Protocol):
    """Reads a claim from the API server."""

    def __call__(self, reference: ClaimReference, *, timeout: float) -> Mapping[str, Any]:
        """GET the ResourceClaim, live; raises a KubeError after `timeout` seconds at the latest."""
        ...


@dataclass(slots=True, kw_only=True)
class Node:
    """What the plugin knows of its node at this moment.

    Attributes:
        gpus: UUID to GPU.
        offer: the devices that are published.
        hardware: the session with the GPUs.
    """

    gpus: Mapping[str, Gpu]
    offer: Offer
    hardware: Hardware


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
    """

    def __init__(
        self,
        *,
        driver: str,
        read: ClaimReader,
        records: Records,
        containers: Containers,
        boot_id: str,
        node: Callable[[], Node | None],
        metrics: Metrics,
    ) -> None:
        self._driver = driver
        self._read = read
        self._records = records
        self._containers = containers
        self._boot_id = boot_id
        self._node = node
        self._metrics = metrics
        self._locks = _Locks()

    def prepare(self, claims: Sequence[ClaimReference], *, deadline: float) -> Mapping[str, Prepared | Failed]:
        """Make claims ready; every claim gets an answer of its own."""
        return self._answers("prepare", claims, self._prepare, deadline)

    def unprepare(self, claims: Sequence[ClaimReference], *, deadline: float) -> Mapping[str, Failed | None]:
        """Undo what was prepared; a claim that is not known is done already."""
        return self._answers("unprepare", claims, self._unprepare, deadline)

    def count_devices(self) -> None:
        """Publish how many devices are prepared now."""
        devices = [device for record in self._records.all() for device in record.plan.devices]
        self._metrics.set_prepared_devices(
            Counter(api.DeviceType.GPU if device.profile_id is None else api.DeviceType.MIG for device in devices)
        )

    def _answers(
        self,
        operation: Operation,
        claims: Sequence[ClaimReference],
        act: Callable[[ClaimReference, float], T],
        deadline: float,
    ) -> Mapping[str, T | Failed]:
        with self._metrics.request(operation) as request:
            answers = {claim.uid: self._answer(operation, claim, act, deadline) for claim in claims}
            if any(isinstance(answer, Failed) for answer in answers.values()):
                request.fail()
        self.count_devices()
        return answers

    def _answer(
        self, operation: Operation, claim: ClaimReference, act: Callable[[ClaimReference, float], T], deadline: float
    ) -> T | Failed:
        """Run one claim's part of a call; whatever goes wrong concerns that claim only."""
        with about_claim(namespace=claim.namespace, name=claim.name, uid=claim.uid):
            try:
                _check_uid(claim)
                with self._locks.hold([f"claim {claim.uid}"], deadline):
                    return act(claim, deadline)
            except (PrepareError, CdiError, NvmlError) as error:
                self._metrics.claim_failed(operation, _error_type(operation, error))
                _log.warning(f"cannot {operation} claim", error=str(error))
                return Failed(_with_claim(claim, str(error)))
            except Exception as error:  # noqa: BLE001 (a fault of ours in one claim must not fail its neighbours)
                self._metrics.claim_failed(operation, "internal")
                _log.exception(f"cannot {operation} claim: internal error")
                return Failed(_with_claim(claim, f"internal error of the driver, see its log: {error!r}"))

    # --- prepare ---------------------------------------------------------------------------------

    def _prepare(self, claim: ClaimReference, deadline: float) -> Prepared:
        started = time.monotonic()
        plan = self._plan(claim, deadline)
        with self._locks.hold(_gpus(plan), deadline):
            record = self._current_record(plan)
            if record is None or not self._is_intact(record):
                record = self._apply(plan, record, self._known_node())
                _log.info("claim prepared", devices=_names(plan), seconds=round(time.monotonic() - started, 4))
        return _prepared(record.plan)

    def _plan(self, claim: ClaimReference, deadline: float) -> Plan:
        """Plan from the claim as it is now; what is prepared already does not depend on what is offered by now."""
        record = self._records.get(claim.uid)
        done = record.plan if record and record.state is State.PREPARED and record.boot_id == self._boot_id else None
        try:
            body = self._get(claim, deadline)
        except UnreachableError as error:
            if done is not None:
                _log.info("API server does not answer, going by the record of the claim", error=str(error))
                return done
            raise ClaimError(f"claim {claim.namespace}/{claim.name} cannot be read: {error}") from error
        allocated = read_claim(body, uid=claim.uid, driver=self._driver)
        if done is not None and done.fits(allocated):
            return done
        return make_plan(allocated, self._known_node().offer)

    def _known_node(self) -> Node:
        node = self._node()
        if node is None:
            raise HardwareError("the GPUs of this node are not known yet: see the plugin's log for what it waits for")
        return node

    def _get(self, claim: ClaimReference, deadline: float) -> Mapping[str, Any]:
        timeout = min(CLAIM_TIMEOUT, max(0.1, deadline - time.monotonic()))
        try:
            return self._read(claim, timeout=timeout)
        except NotFoundError as error:
            raise ClaimError(
                f"claim {claim.namespace}/{claim.name} does not exist (any more): delete the pod that uses it"
            ) from error
        except ApiError as error:
            raise ClaimError(f"claim {claim.namespace}/{claim.name} cannot be read: {error}") from error

    def _current_record(self, plan: Plan) -> Record | None:
        """Find what an earlier call left; a record that does not fit any more is undone first."""
        record = self._records.get(plan.uid)
        if record is None:
            return None
        if record.boot_id != self._boot_id:
            self._forget(record)
            return None
        if record.plan != plan:
            _log.info("claim was allocated anew, undoing the old devices", old=_names(record.plan), new=_names(plan))
            self._undo(record)
            return None
        return record

    def _is_intact(self, record: Record) -> bool:
        if record.state is not State.PREPARED or not self._containers.is_written(record.plan):
            return False
        hardware = self._known_node().hardware
        return all(
            partitions.is_alive(hardware, device, record.made.get(device.device)) for device in record.plan.devices
        )

    def _apply(self, plan: Plan, earlier: Record | None, node: Node) -> Record:
        record = earlier or self._begin(plan, node)
        try:
            return self._carry_out(record, node)
        except (PrepareError, CdiError, NvmlError):
            # A claim that was prepared before has running containers: it is repaired, never torn down.
            if record.state is State.PREPARING:
                self._try_to_undo(record)
            raise

    def _begin(self, plan: Plan, node: Node) -> Record:
        """Hold the devices and record the intent; from here on what lies at their places is ours to destroy."""
        record = Record(boot_id=self._boot_id, state=State.PREPARING, plan=plan)
        self._records.reserve(record)
        try:
            partitions.check_free(node.hardware, plan.devices)
            self._records.write(record)
        except BaseException:
            self._records.release(plan.uid)
            raise
        return record

    def _carry_out(self, record: Record, node: Node) -> Record:
        plan = record.plan
        made: dict[str, Made] = {}
        for device in plan.devices:
            with self._counted("create", device):
                needs_reset = node.gpus[device.gpu_uuid].mig_needs_reset
                instance = partitions.ensure(node.hardware, device, mode_needs_reset=needs_reset)
            if instance is not None:
                made[device.device] = instance
        self._containers.write(plan, made, self._facts(plan, node))
        done = with_made(record, made, state=State.PREPARED)
        self._records.write(done)
        return done

    def _facts(self, plan: Plan, node: Node) -> dict[str, GpuFacts]:
        return {
            device.gpu_uuid: GpuFacts(
                minor=node.hardware.minor(device.gpu_uuid),
                pci_bus_id=node.gpus[device.gpu_uuid].pci_bus_id,
                driver_version=node.gpus[device.gpu_uuid].driver_version,
            )
            for device in plan.devices
        }

    # --- unprepare -------------------------------------------------------------------------------

    def _unprepare(self, claim: ClaimReference, deadline: float) -> None:
        record = self._records.get(claim.uid)
        if record is None:
            self._containers.specs.remove(claim.uid)
            return
        with self._locks.hold(_gpus(record.plan), deadline):
            self._undo(record)
        _log.info("claim unprepared", devices=_names(record.plan))

    def _try_to_undo(self, record: Record) -> None:
        """Leave nothing of a failed attempt; what resists stays recorded, for the next call to deal with."""
        try:
            self._undo(record)
        except (PrepareError, CdiError, NvmlError) as error:
            _log.warning("the failed attempt is not undone yet", error=str(error))

    def _undo(self, record: Record) -> None:
        # After a reboot no partition exists, so neither the GPUs nor their driver are needed.
        if record.boot_id == self._boot_id:
            self._release(record)
        self._forget(record)

    def _release(self, record: Record) -> None:
        ours = [device for device in record.plan.devices if device.make]
        if not ours:
            return
        node = self._known_node()
        for device in ours:
            with self._counted("destroy", device):
                partitions.release(node.hardware, device, record.made.get(device.device))
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
        self._containers.specs.remove(record.plan.uid)
        self._records.forget(record.plan.uid)


class _Locks:
    """A lock for each name, taken in order of names, kept only while somebody holds or awaits it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._entries: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def hold(self, names: Sequence[str], deadline: float) -> Iterator[None]:
        with ExitStack() as stack:
            for name in sorted(set(names)):
                stack.enter_context(self._one(name, deadline))
            yield

    @contextmanager
    def _one(self, name: str, deadline: float) -> Iterator[None]:
        with self._guard:
            lock, users = self._entries.get(name, (threading.Lock(), 0))
            self._entries[name] = (lock, users + 1)
        try:
            if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise BusyError(f"{name} was busy with another call until the deadline; the kubelet tries again")
            try:
                yield
            finally:
                lock.release()
        finally:
            self._drop(name)

    def _drop(self, name: str) -> None:
        with self._guard:
            lock, users = self._entries[name]
            if users == 1:
                del self._entries[name]
            else:
                self._entries[name] = (lock, users - 1)


def _error_type(operation: Operation, error: Exception) -> ErrorType:
    if isinstance(error, BusyError):
        return "lock_acquire"
    if isinstance(error, ClaimError):
        return "claim_get"
    return "prepare_devices" if operation == "prepare" else "unprepare_devices"


def _check_uid(claim: ClaimReference) -> None:
    """Refuse what would not be the name of a file in our folders."""
    if not _UID.fullmatch(claim.uid):
        raise ClaimError(f"claim {claim.namespace}/{claim.name}: {claim.uid!r} is not a UID")


def _gpus(plan: Plan) -> list[str]:
    return [f"GPU {device.gpu_uuid}" for device in plan.devices if not device.admin_access]


def _names(plan: Plan) -> list[str]:
    return [device.device for device in plan.devices]


def _with_claim(claim: ClaimReference, message: str) -> str:
    name = f"{claim.namespace}/{claim.name}"
    return message if name in message else f"claim {name}: {message}"


def _prepared(plan: Plan) -> Prepared:
    return Prepared(
        devices=tuple(
            _answer_device(device, cdi_id) for device, cdi_id in zip(plan.devices, qualified_names(plan), strict=True)
        )
    )


def _answer_device(device: PlannedDevice, cdi_id: str) -> PreparedDevice:
    return PreparedDevice(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=(cdi_id,),
        share_id=device.share_id,
    )
