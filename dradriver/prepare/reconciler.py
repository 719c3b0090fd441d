"""Compares records, claims, MIG instances and CDI specs, at the start and every minute, and mends what differs.

The kubelet unprepares what it remembers. What it forgot, what a crash left, and what others did to the GPUs is
found here. Nothing is taken from a claim at the first look, nor while processes use it: an API server that is slow, or
a kubelet that is about to unprepare, gets a grace time.
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
from dradriver.kube import KubeError
from dradriver.nvml import NvmlError
from dradriver.observe.metrics import Metrics
from dradriver.prepare import partitions
from dradriver.prepare.errors import PrepareError
from dradriver.prepare.locks import Locks, claim_lock, gpu_lock
from dradriver.prepare.node import Node
from dradriver.prepare.preparer import Preparer
from dradriver.prepare.records import Made, Record, Records, State

INTERVAL_SECONDS: Final = 60.0
SPEC_SECONDS: Final = 10.0
"""How often CDI specs are looked at: a container that restarts gets what its claim's spec says by then."""
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
        reclaim: destroy instances that nobody recorded, on GPUs on which this driver makes them.
    """

    records: Records
    specs: SpecFolder
    locks: Locks
    node: Callable[[], Node | None]
    boot_id: str
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
    _claims: Mapping[str, tuple[str, str]] | None = None

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
            ends = self.clock() + INTERVAL_SECONDS * (0.9 + self.chance() / 5)
            while self.clock() < ends and not self._stop.wait(min(SPEC_SECONDS, max(0.0, ends - self.clock()))):
                self.check_specs()

    def round(self) -> None:
        """Compare once, and mend. Failures concern one claim or GPU and are logged."""
        self._claims = None
        self.around.records.refresh()
        for uid in self.recover_records():
            self._guarded(f"CDI spec of claim UID {uid}", lambda uid=uid: self._remove_orphan(uid))  # type: ignore[misc]
        records = self.around.records.all()
        self._stale_since = {uid: self._stale_since[uid] for uid in _uids(records) & self._stale_since.keys()}
        for record in records:
            self._guarded(str(record.plan), lambda record=record: self._compare_with_claim(record))  # type: ignore[misc]
        self.check_specs()
        self._compare_with_hardware()

    def check_specs(self) -> None:
        """Look whether the CDI specs of prepared claims are there and true; asks no API server."""
        for record in self.around.records.all():
            uid = record.plan.uid
            self._guarded(f"CDI spec of {record.plan}", lambda uid=uid: self.preparer.check_spec(uid))  # type: ignore[misc]

    def _guarded(self, what: str, act: Callable[[], object]) -> None:
        try:
            act()
        except (PrepareError, CdiError, NvmlError, KubeError) as error:
            _log.warning("cannot be compared now", what=what, error=str(error))
        except Exception:  # noqa: BLE001 (one odd record must not keep the others from being compared)
            _log.exception("cannot be compared: internal error", what=what)

    # --- records and specs -----------------------------------------------------------------------

    def recover_records(self) -> frozenset[str]:
        """Make records again that are damaged or lost, from the CDI specs of their claims or the claims themselves.

        To be called once before the kubelet's calls are answered: an unprepare that finds no record has
        nothing to undo.

        Returns:
            The UIDs whose specs do not tell what was made.
        """
        try:
            lost = self.around.specs.identities() | self.around.records.quarantined.keys()
        except CdiError as error:
            _log.warning("lost records cannot be looked for now", error=str(error))
            return frozenset()
        hopeless: set[str] = set()
        for uid in sorted(lost - _uids(self.around.records.all())):
            self._guarded(f"claim UID {uid}", lambda uid=uid: self._recover(uid, hopeless))  # type: ignore[misc]
        return frozenset(hopeless)

    def _recover(self, uid: str, hopeless: set[str]) -> None:
        recovered = self.preparer.recover(uid) or self._rebuild(uid)
        damaged = self.around.records.quarantined.pop(uid, None)
        if damaged is not None:
            self.reporter.damaged_record(uid, damaged, recovered=recovered)
        if not recovered:
            hopeless.add(uid)

    def _rebuild(self, uid: str) -> bool:
        """Make a damaged record again from the claim, whose CDI spec is gone or damaged too."""
        if uid not in self.around.records.quarantined:
            return False
        body = next((claim for claim in self.claims() if claim["metadata"]["uid"] == uid), None)
        return body is not None and self.preparer.rebuild(uid, body)

    def _remove_orphan(self, uid: str) -> None:
        """Remove a spec without a record, but not while its claim exists: a container that restarts needs it."""
        if uid in self._existing():
            _log.warning("a CDI spec has no record, and cannot be told what it stands for", claim_uid=uid)
            return
        with self.around.locks.hold([claim_lock(uid)], self.clock() + CALL_SECONDS):
            self.around.records.refresh()
            if self.around.records.get(uid) is None:
                self.around.specs.remove(uid)

    def _existing(self) -> Mapping[str, tuple[str, str]]:
        """Map the UIDs of all claims to namespace and name; asked for once in a round, and seldom at all."""
        if self._claims is None:
            metadata = [claim["metadata"] for claim in self.claims()]
            self._claims = {entry["uid"]: (entry["namespace"], entry["name"]) for entry in metadata}
        return self._claims

    # --- records and claims ----------------------------------------------------------------------

    def _compare_with_claim(self, record: Record) -> None:
        if not record.plan.name:
            record = self._named(record)
        cause = self._why_stale(record)
        if cause is None:
            self._stale_since.pop(record.plan.uid, None)
            return
        since = self._stale_since.setdefault(record.plan.uid, self.clock())
        if self.clock() - since < GRACE_SECONDS or self._is_used(record, cause):
            return
        answers = self.preparer.unprepare([record.plan.reference], deadline=self.clock() + CALL_SECONDS)
        if answers[record.plan.uid] is not None:
            return
        left = self.around.records.get(record.plan.uid) is not None
        if not left or self.preparer.abandon(record.plan.uid, deadline=self.clock() + CALL_SECONDS):
            self._stale_since.pop(record.plan.uid, None)
            self.reporter.stale_claim(record, cause)

    def _is_used(self, record: Record, cause: str) -> bool:
        """Tell whether processes still compute on a device that nobody holds by right: who came next would share it."""
        if record.boot_id != self.around.boot_id or not self.preparer.is_used(record):
            return False
        _log.warning("devices are still in use, not released", claim=str(record.plan), cause=cause)
        return True

    def _named(self, record: Record) -> Record:
        """Find the claim of a recovered record, which knows its UID only."""
        uid = record.plan.uid
        if uid not in self._existing():
            return record
        namespace, name = self._existing()[uid]
        named = replace(record, plan=replace(record.plan, namespace=namespace, name=name))
        with self.around.locks.hold([claim_lock(uid)], self.clock() + CALL_SECONDS):
            self.around.records.refresh()
            if self.around.records.get(uid) == record:
                self.around.records.write(named)
        return named

    def _why_stale(self, record: Record) -> str | None:
        """Say why a claim does not need its devices any more; None if it does, or nobody can say."""
        if not record.plan.name:
            return "no claim of that UID exists"
        return self.preparer.why_stale(record.plan)

    # --- records and hardware --------------------------------------------------------------------

    def _compare_with_hardware(self) -> None:
        node = self.around.node()
        if node is None:
            return
        foreign: list[MigInstance] = []
        for gpu_uuid in node.gpus:
            self._guarded(gpu_uuid, lambda gpu_uuid=gpu_uuid: foreign.extend(self._compare_with_gpu(node, gpu_uuid)))  # type: ignore[misc]
        self.metrics.set_foreign_instances(len(foreign))

    def _compare_with_gpu(self, node: Node, gpu_uuid: str) -> list[MigInstance]:
        """Compare one GPU's instances with the records; returns the foreign ones that stay."""
        with self.around.locks.hold([gpu_lock(gpu_uuid)], self.clock() + CALL_SECONDS):
            self.around.records.refresh()
            records = self.around.records.all()
            instances = node.hardware.instances(gpu_uuid)
            foreign = self._foreign(records, gpu_uuid, instances) if gpu_uuid in node.offer.dynamic else []
            reclaimed = [one for one in foreign if self.around.reclaim and _reclaim(node, gpu_uuid, one)]
            for _ in reclaimed:
                self.metrics.mig_operation("destroy")
            if reclaimed and not node.gpu(gpu_uuid).mig_needs_reset:
                partitions.switch_off_when_empty(node.hardware, gpu_uuid)
        for instance in foreign:
            self._report_foreign(gpu_uuid, instance, reclaimed=instance in reclaimed)
        for record in records:
            self._report_lost(record, gpu_uuid, instances)
        return [instance for instance in foreign if instance not in reclaimed]

    def _foreign(
        self, records: tuple[Record, ...], gpu_uuid: str, instances: tuple[MigInstance, ...]
    ) -> list[MigInstance]:
        ours = [record for record in records if record.boot_id == self.around.boot_id]
        return [instance for instance in instances if not _is_recorded(ours, gpu_uuid, instance)]

    def _report_foreign(self, gpu_uuid: str, instance: MigInstance, *, reclaimed: bool) -> None:
        def tell() -> None:
            _log.warning(
                "a MIG instance that nobody recorded was destroyed" if reclaimed else "a MIG instance is not ours",
                gpu=gpu_uuid,
                uuid=instance.uuid,
                gpu_instance=instance.gpu_instance_id,
                start=instance.placement.start,
            )
            self.reporter.foreign_instance(gpu_uuid, instance, reclaimed=reclaimed)

        self._once(("foreign", gpu_uuid, instance, reclaimed), tell)

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


def _uids(records: Iterable[Record]) -> frozenset[str]:
    return frozenset(record.plan.uid for record in records)


def _reclaim(node: Node, gpu_uuid: str, instance: MigInstance) -> bool:
    try:
        if instance.compute_instance_id is not None:
            node.hardware.destroy_compute_instance(
                gpu_uuid,
                gpu_instance_id=instance.gpu_instance_id,
                compute_instance_id=instance.compute_instance_id,
            )
        node.hardware.destroy_gpu_instance(gpu_uuid, gpu_instance_id=instance.gpu_instance_id)
    except NvmlError as error:
        _log.warning("a foreign MIG instance cannot be destroyed now", gpu=gpu_uuid, error=str(error))
        return False
    return True


def _is_recorded(records: Iterable[Record], gpu_uuid: str, instance: MigInstance) -> bool:
    return any(
        device.gpu_uuid == gpu_uuid
        and not device.admin_access
        and device.profile_id == instance.profile_id
        and device.placement == instance.placement
        and _may_be(record.made.get(device.device), instance)
        for record in records
        for device in record.plan.devices
    )


def _may_be(made: Made | None, instance: MigInstance) -> bool:
    """Tell whether an instance at the right place is what was made; what was begun only has no UUID yet."""
    return made is None or instance.uuid in {None, made.uuid}
