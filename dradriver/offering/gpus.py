"""Which GPUs are there, which were, and what this driver itself has made on them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol

import structlog

from dradriver.gpu.health import Place
from dradriver.gpu.model import Gpu, MigInstance
from dradriver.gpu.policy import GpuRule
from dradriver.gpu.profiles import MigOffer
from dradriver.nvml import GpuLost, Inventory, NotFound, NvmlError, TimedOut, UnreadableGpu
from dradriver.prepare.errors import RecordError
from dradriver.prepare.partitions import Hardware
from dradriver.prepare.records import Record, Records

FAILURES: Final = 2
"""One failed reading may be a driver that is just being reloaded; so many in a row count."""

_NOTHING: Final = Inventory(gpus=(), unreadable=())

_log = structlog.get_logger()


class NodeHardware(Hardware, Protocol):
    """The GPUs, as `dradriver.nvml.Nvml` shows them."""

    def inventory(self) -> Inventory:
        """Read all GPUs; raises NvmlError if NVML as a whole does not answer."""

    def instances_in_time(self, gpu_uuid: str) -> tuple[MigInstance, ...]:
        """List a GPU's instances; raises NvmlError, after some seconds if it hangs."""


class Gpus:
    """The node's GPUs as they were read last.

    Args:
        hardware: opens NVML if that is still to be done; raises NvmlError.
        records: of prepared claims.
        boot_id: of the running kernel.
    """

    def __init__(self, hardware: Callable[[], NodeHardware], *, records: Records, boot_id: str) -> None:
        self._open = hardware
        self._records = records
        self.boot_id = boot_id
        self._failures = 0
        self._last: Inventory | None = None
        self._known: dict[str, Gpu] = {}
        self._misses: dict[str, int] = {}
        self._places: frozenset[tuple[str, Place]] = frozenset()
        self.hardware: NodeHardware | None = None

    @property
    def were_read(self) -> bool:
        """Whether they have been read at all."""
        return self._last is not None

    def read(self) -> Inventory:
        """Read them.

        Raises:
            NvmlError: NVML as a whole does not answer.
        """
        self._places = self._recorded_places()
        try:
            self.hardware = self._open()
            inventory = self.hardware.inventory()
        except NvmlError:
            self._failures += 1
            raise
        self._failures = 0
        self._known |= {gpu.uuid: gpu for gpu in inventory.gpus}
        self._last = self._patient(inventory)
        return inventory

    def _patient(self, inventory: Inventory) -> Inventory:
        """Take a GPU that hangs, or that failed once, for what it was; how it is its health tells."""
        self._misses = {
            one.uuid: self._misses.get(one.uuid, 0) + 1 for one in inventory.unreadable if one.uuid is not None
        }
        excused = {one.uuid for one in inventory.unreadable if self._is_excused(one)}
        if not excused:
            return inventory
        return Inventory(
            gpus=(*inventory.gpus, *(self._known[uuid] for uuid in excused if uuid is not None)),
            unreadable=tuple(one for one in inventory.unreadable if one.uuid not in excused),
        )

    def _is_excused(self, one: UnreadableGpu) -> bool:
        if one.uuid not in self._known or isinstance(one.error, GpuLost | NotFound):
            return False
        return isinstance(one.error, TimedOut) or self._misses[one.uuid] < FAILURES

    @property
    def present(self) -> tuple[Gpu, ...]:
        """Those that answer."""
        return () if self._last is None or self._failures >= FAILURES else self._last.gpus

    def kept(self, remembered: Mapping[str, Gpu], holders: frozenset[str]) -> tuple[Gpu, ...]:
        """Those that do not answer and stay published as they were: claims hold them, or they may come back.

        Args:
            remembered: by UUID, from earlier processes.
            holders: UUIDs of GPUs of which claims hold something.
        """
        present = {gpu.uuid for gpu in self.present}
        last = self._last or _NOTHING
        silent = {gpu.uuid for gpu in last.gpus} if self._failures >= FAILURES else set()
        return tuple(
            gpu
            for uuid, gpu in {**remembered, **self._known}.items()
            if uuid not in present and (uuid in holders or uuid in silent or _is_among(gpu, last.unreadable))
        )

    def without_ours(self, gpu: Gpu, rule: GpuRule, *, counted: bool) -> Gpu:
        """Leave out what this driver makes and undoes for claims: instances, and MIG mode where it switches that.

        Args:
            gpu: as it was read.
            rule: by which it is offered.
            counted: the API server keeps counters, without which nothing is made.
        """
        switched = counted and rule.mig is MigOffer.DYNAMIC and not gpu.mig_needs_reset and not gpu.vgpu_guest
        return _cleared(gpu, self._places | self._recorded_places(), switched=switched)

    def is_as_before(self, gpu: Gpu) -> bool:
        """Tell whether a GPU that is cut for claims has the same instances of others as when it was cleared.

        Raises:
            NvmlError: it does not answer.
        """
        if self.hardware is None or gpu.mig_mode is not None:
            return False
        before = self._recorded_places()
        now = replace(gpu, instances=self.hardware.instances_in_time(gpu.uuid))
        return _cleared(now, before | self._recorded_places(), switched=True) == gpu

    def records(self) -> tuple[Record, ...]:
        """Give the records of prepared claims, those of another instance of this driver included."""
        try:
            self._records.refresh()
        except RecordError as error:
            _log.warning("records of another instance are not seen now", error=str(error))
        return self._records.all()

    def _recorded_places(self) -> frozenset[tuple[str, Place]]:
        return frozenset(
            (device.gpu_uuid, device.partition)
            for record in self._records.all()
            if record.boot_id == self.boot_id
            for device in record.plan.devices
            if device.make and device.partition is not None
        )


def _cleared(gpu: Gpu, ours: frozenset[tuple[str, Place]], *, switched: bool) -> Gpu:
    others = tuple(one for one in gpu.instances if (gpu.uuid, Place.of(one)) not in ours)
    return replace(gpu, instances=others, mig_mode=None if switched else gpu.mig_mode)


def _is_among(gpu: Gpu, unreadable: Iterable[UnreadableGpu]) -> bool:
    """Tell whether a GPU that is missing may be one that NVML counts; of a lost one it may say nothing more."""
    return any(_is_unnamed(one) or gpu.uuid == one.uuid or gpu.pci_bus_id == one.pci_bus_id for one in unreadable)


def _is_unnamed(one: UnreadableGpu) -> bool:
    return one.uuid is None and one.pci_bus_id is None
