"""Compares records, claims, MIG instances and CDI specs, at the start and every minute, and mends what differs.

The kubelet unprepares what it remembers. What it forgot, what a crash left, and what others did to the GPUs is
found here. Nothing is taken from a claim at the first look: an API server that is slow, or a kubelet that is about
to unprepare, gets a grace time.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from dradriver.cdi.errors import CdiError
from dradriver.cdi.files import SpecFolder
from dradriver.gpu.model import MigInstance
from dradriver.nvml import NvmlError
from dradriver.observe.metrics import Metrics
from dradriver.prepare.errors import PrepareError
from dradriver.prepare.locks import Locks, claim_lock, gpu_lock
from dradriver.prepare.node import Node
from dradriver.prepare.preparer import Preparer, reference_of
from dradriver.prepare.records import Record, Records, State

INTERVAL_SECONDS: Final = 60.0
GRACE_SECONDS: Final = 60.0
"""How long a claim must have been gone, or not allocated, before what it holds is released."""
CALL_SECONDS: Final = 20.0
LOOP: Final = "reconcile"

_log = structlog.get_logger()


class Reporter(Protocol):
    """Tells administrators what was found; returns at once and never raises."""

    def damaged_record(self, uid: str, path: Path, *, recovered: bool) -> None:
        """A record of a claim could not be read; it was set aside, and made again or not."""

    def foreign_instance(self, gpu_uuid: str, instance: MigInstance, *, reclaimed: bool) -> None:
        """A GPU has an instance that this driver has no record of."""

    def lost_instance(self, record: Record, device: str) -> None:
        """The partition of a prepared claim does not exist any more."""

    def stale_claim(self, record: Record, cause: str) -> None:
        """What a claim held was released, since the claim does not need it any more."""


class ClaimLister(Protocol):
    """Lists claims of the whole cluster."""

    def __call__(self) -> Iterable[Mapping[str, Any]]:
        """Give all ResourceClaims; raises a KubeError."""
        ...


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """What the reconciler looks at.

    Attributes:
        records: of this node.
        specs: CDI specs of this node.
        locks: the preparer's.
        node: tells what the node offers now; None while that is unknown.
        boot_id: of the running kernel.
        makes_partitions: partitions are made here, so an instance without a record is nobody's we know.
        reclaim: destroy such instances.
    """

    records: Records
    specs: SpecFolder
    locks: Locks
    node: Callable[[], Node | None]
    boot_id: str
    makes_partitions: bool
    reclaim: bool = False


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """Runs in a thread of its own once started; `round` is one comparison.

    Attributes:
        around: what it looks at.
        preparer: what mends.
        claims: lists claims.
        reporter: is told what was found.
        metrics: what is counted.
        clock: monotonic seconds.
        chance: a number from 0 to 1.
    """

    around: Surroundings
    preparer: Preparer
    claims: ClaimLister
    reporter: Reporter
    metrics: Metrics
    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _stale_since: dict[str, float] = field(default_factory=dict)
    _told: set[object] = field(default_factory=set)

    # --- running ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Compare now and every minute."""
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End; a comparison under way is waited for at most that many seconds."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.round()
                self.metrics.succeeded(LOOP)
            except Exception:  # noqa: BLE001 (the loop must live; the next round may work)
                _log.exception("comparison failed, will be made again")
            self._stop.wait(INTERVAL_SECONDS * (0.9 + self.chance() / 5))

    def round(self) -> None:
        """Compare once, and mend. Failures concern one claim or GPU and are logged."""
        self.around.records.refresh()
        self.recover_records()
        for record in self.around.records.all():
            self._guarded(str(record.plan), lambda record=record: self._compare_with_claim(record))  # type: ignore[misc]
        node = self.around.node()
        if node is None:
            return
        for gpu_uuid in node.gpus:
            self._guarded(gpu_uuid, lambda gpu_uuid=gpu_uuid: self._compare_with_gpu(node, gpu_uuid))  # type: ignore[misc]

    def _guarded(self, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except (PrepareError, CdiError, NvmlError) as error:
            _log.warning("cannot be compared now", what=what, error=str(error))

    # --- records and specs -----------------------------------------------------------------------

    def recover_records(self) -> None:
        """Make records again that are damaged or lost, from the CDI specs of their claims.

        To be called once before the kubelet's calls are answered: an unprepare that finds no record has
        nothing to undo.
        """
        known = {record.plan.uid for record in self.around.records.all()}
        lost = self.around.specs.identities() | self.around.records.quarantined.keys()
        for uid in sorted(lost - known):
            self._guarded(f"claim UID {uid}", lambda uid=uid: self._recover(uid))  # type: ignore[misc]

    def _recover(self, uid: str) -> None:
        recovered = self.preparer.recover(uid)
        damaged = self.around.records.quarantined.pop(uid, None)
        if damaged is not None:
            self.reporter.damaged_record(uid, damaged, recovered=recovered)
        if not recovered:
            self.around.specs.remove(uid)

    # --- records and claims ----------------------------------------------------------------------

    def _compare_with_claim(self, record: Record) -> None:
        if not record.plan.name:
            record = self._named(record)
        cause = self._why_stale(record)
        if cause is None:
            self._stale_since.pop(record.plan.uid, None)
            return
        since = self._stale_since.setdefault(record.plan.uid, self.clock())
        if self.clock() - since < GRACE_SECONDS:
            return
        self.reporter.stale_claim(record, cause)
        answers = self.preparer.unprepare([reference_of(record.plan)], deadline=self.clock() + CALL_SECONDS)
        if answers[record.plan.uid] is None:
            self._stale_since.pop(record.plan.uid, None)

    def _named(self, record: Record) -> Record:
        """Find the claim of a recovered record, which knows its UID only."""
        for claim in self.claims():
            metadata = claim.get("metadata") or {}
            if metadata.get("uid") == record.plan.uid:
                plan = replace(record.plan, namespace=metadata["namespace"], name=metadata["name"])
                named = replace(record, plan=plan)
                with self.around.locks.hold([claim_lock(plan.uid)], self.clock() + CALL_SECONDS):
                    if self.around.records.get(plan.uid) == record:
                        self.around.records.write(named)
                return named
        return record

    def _why_stale(self, record: Record) -> str | None:
        """Say why a claim does not need its devices any more; None if it does, or nobody can say."""
        if not record.plan.name:
            return "no claim of that UID exists"
        return self.preparer.why_stale(record.plan)

    # --- records and hardware --------------------------------------------------------------------

    def _compare_with_gpu(self, node: Node, gpu_uuid: str) -> None:
        if not self.around.makes_partitions:
            return
        with self.around.locks.hold([gpu_lock(gpu_uuid)], self.clock() + CALL_SECONDS):
            self.around.records.refresh()
            records = self.around.records.all()
            instances = node.hardware.instances(gpu_uuid)
            unknown = [instance for instance in instances if not _is_recorded(records, gpu_uuid, instance)]
            for instance in unknown:
                self._report_unknown(node, gpu_uuid, instance)
        for record in records:
            self._report_lost(record, gpu_uuid, instances)

    def _report_unknown(self, node: Node, gpu_uuid: str, instance: MigInstance) -> None:
        if self.around.reclaim:
            if instance.compute_instance_id is not None:
                node.hardware.destroy_compute_instance(
                    gpu_uuid,
                    gpu_instance_id=instance.gpu_instance_id,
                    compute_instance_id=instance.compute_instance_id,
                )
            node.hardware.destroy_gpu_instance(gpu_uuid, gpu_instance_id=instance.gpu_instance_id)
        self._once(
            ("foreign", gpu_uuid, instance),
            lambda: self.reporter.foreign_instance(gpu_uuid, instance, reclaimed=self.around.reclaim),
        )

    def _report_lost(self, record: Record, gpu_uuid: str, instances: tuple[MigInstance, ...]) -> None:
        if record.state is not State.PREPARED or record.boot_id != self.around.boot_id:
            return
        for device in record.plan.devices:
            made = record.made.get(device.device)
            if device.gpu_uuid == gpu_uuid and made and all(one.uuid != made.uuid for one in instances):
                name = device.device
                self._once(
                    ("lost", record.plan.uid, made.uuid),
                    lambda name=name: self.reporter.lost_instance(record, name),  # type: ignore[misc]
                )

    def _once(self, key: object, tell: Callable[[], None]) -> None:
        if key not in self._told:
            self._told.add(key)
            tell()


def _is_recorded(records: Iterable[Record], gpu_uuid: str, instance: MigInstance) -> bool:
    return any(
        device.gpu_uuid == gpu_uuid
        and device.profile_id == instance.profile_id
        and device.placement == instance.placement
        for record in records
        for device in record.plan.devices
    )
