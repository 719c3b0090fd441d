"""`Nvml`: what the rest of the program knows of NVML."""

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import pynvml

from dradriver.gpu.model import Gpu, MigInstance, MigMode, MigProfile, Placement
from dradriver.nvml import instances as mig
from dradriver.nvml.bounded import Bounded
from dradriver.nvml.bus import Bus
from dradriver.nvml.cache import Cache
from dradriver.nvml.calls import Device, call, instance_id
from dradriver.nvml.errors import (
    INSUFFICIENT_SIZE,
    RESET_REQUIRED,
    GpuLost,
    NvmlError,
    ResetRequired,
    Uninitialized,
    translate,
)
from dradriver.nvml.events import Events
from dradriver.nvml.facts import read_mig_mode, read_minor
from dradriver.nvml.node import (
    FIRST_READ_SECONDS,
    RENEWAL_SECONDS,
    Node,
    cuda_driver_version,
    driver_version,
    instances_in,
)
from dradriver.nvml.readings import read_readings
from dradriver.nvml.records import EventType, Inventory, Process, Readings, UnreadableGpu
from dradriver.nvml.roster import Roster
from dradriver.nvml.session import Session

T = TypeVar("T")

READINGS_SECONDS: Final = 5.0
"""How long `Nvml.readings` may take for a GPU that is open already."""

_SIZE_ATTEMPTS: Final = 3


class Nvml:
    """One NVML session; any thread may call it, and no pynvml object leaves it.

    GPUs are named by UUID. Every method raises NvmlError (see `dradriver.nvml.errors`), with the UUID in it. A session
    that the driver ended is opened anew and the call made again, once. A GPU that is lost leads to that, too: at once
    where it could be read before, since it may have been reset, then every `LOST_PAUSE` seconds. GPUs that came or went
    lead to it at the next `inventory`.

    `inventory` and `readings` are bounded: a call that hangs in the driver is left behind. The others, which change
    something or are asked on behalf of a change, take as long as the driver does.

    MIG changes of one GPU must be made one after another; that is the caller's to see to, since he changes more than
    NVML at a time.

    Args:
        sys_root: where sysfs is mounted.
        clock: monotonic seconds.

    Raises:
        DriverUnavailable: NVML cannot be initialized.
    """

    def __init__(self, *, sys_root: Path = Path("/sys"), clock: Callable[[], float] = time.monotonic) -> None:
        self._sys_root = sys_root
        self._clock = clock
        self._unreadable: tuple[UnreadableGpu, ...] = ()
        # Looked at first: a GPU that comes meanwhile is a change then.
        self._bus = Bus(sys_root)
        self._session = Session(clock)
        self._roster = Roster()
        self._cache = Cache(0, sys_root, self._roster)
        self._bounded = Bounded()
        self._node = Node(self._session, self._cache_of, self._bounded, self._roster)

    # --- the session --------------------------------------------------------------------------

    def close(self) -> None:
        """End the session; a call under way keeps NVML alive until it returns. Once is enough, twice does no harm."""
        self._session.close()
        self._bounded.close()

    def renew(self) -> None:
        """Drop all handles and initialize anew at the next call: after a GPU reset, or when told of a recovery."""
        self._node.renew()

    def driver_version(self) -> str:
        """Give the driver's version as NVML says it, `580.105.08`."""
        return self._run(lambda _: driver_version())

    def cuda_driver_version(self) -> tuple[int, int]:
        """Give the newest CUDA version (major, minor) that the driver supports."""
        return self._run(lambda _: cuda_driver_version())

    # --- reading ------------------------------------------------------------------------------

    def gpus(self) -> tuple[Gpu, ...]:
        """Read all GPUs, in PCI bus id order; those that cannot be read are left out, see `unreadable`."""
        return self.inventory().gpus

    def unreadable(self) -> tuple[UnreadableGpu, ...]:
        """Tell which GPUs the last reading, by whichever thread, left out, and why."""
        return self._unreadable

    def inventory(self) -> Inventory:
        """Read all GPUs, and what keeps the others from being read, in one.

        Where GPUs were plugged in or taken away, the session is opened anew for it; if calls are under way, for a later
        one. A GPU that does not answer any more is asked again with a new handle before it counts as lost, unless calls
        are under way for longer than `RENEWAL_SECONDS`. One that hangs is unreadable by a Hanging; while it does, it
        keeps nobody waiting.

        Raises:
            Hanging: a call that concerns no GPU hangs.
            NvmlError: NVML as a whole does not answer.
        """
        if self._bus.has_changed():
            self.renew()
        inventory = self._node.read()
        if self._bus.falls_short(len(inventory.gpus) + len(inventory.unreadable)):
            self._session.renew()
        self._unreadable = inventory.unreadable
        return inventory

    def minor(self, gpu_uuid: str) -> int:
        """Read the N of the GPU's /dev/nvidiaN, as it is now."""
        return self._on(gpu_uuid, lambda _, device: read_minor(device))

    def mig_mode(self, gpu_uuid: str) -> MigMode | None:
        """Read MIG mode now and pending; None where the GPU has no MIG."""
        return self._on(gpu_uuid, lambda _, device: read_mig_mode(device))

    def instances(self, gpu_uuid: str) -> tuple[MigInstance, ...]:
        """List the GPU's instances, bare ones included, in order of place; none where MIG mode is off."""
        return self._on(gpu_uuid, _list_instances)

    def instances_in_time(self, gpu_uuid: str) -> tuple[MigInstance, ...]:
        """List the GPU's instances as `instances` does, for who must not wait for a GPU that hangs.

        Raises:
            Hanging: a call about it hangs in the driver, for `READINGS_SECONDS` or since earlier.
        """
        return self._bounded.run(gpu_uuid, READINGS_SECONDS, lambda: self.instances(gpu_uuid))

    def processes(self, gpu_uuid: str) -> tuple[Process, ...]:
        """List the processes that compute on the GPU or on its partitions."""
        return self._on(gpu_uuid, lambda _, device: _processes(device))

    def readings(self, gpu_uuid: str) -> Readings:
        """Read how the GPU says that it is; what it does not tell is None.

        Raises:
            GpuLost: it does not answer; its memory is asked, which reaches the hardware.
            Hanging: a call about it hangs in the driver, for `READINGS_SECONDS` or since earlier.
            NvmlError: it cannot be opened, or NVML as a whole does not answer.
        """
        generation = self._session.generation
        try:
            return self._readings(gpu_uuid)
        except Uninitialized:
            pass
        except GpuLost as error:
            if not self._session.is_renewed(generation, RENEWAL_SECONDS):
                raise self._node.doubt(error) from None
        return self._readings(gpu_uuid)

    def readings_of(self, gpu_uuids: Sequence[str]) -> list[Readings | NvmlError]:
        """Read how GPUs say that they are, those that take long side by side.

        Returns:
            In the order given what `readings` gives or raises of each.
        """
        generation = self._session.generation
        read = self._bounded.each((uuid, self._patience(uuid), partial(self._read_once, uuid)) for uuid in gpu_uuids)
        if generation == self._session.generation and not any(isinstance(one, GpuLost | Uninitialized) for one in read):
            return read
        # There is a new session, or is to be: what failed in the old one is asked again.
        return [
            self._again(uuid) if isinstance(one, GpuLost | Uninitialized) else one
            for uuid, one in zip(gpu_uuids, read, strict=True)
        ]

    def _again(self, gpu_uuid: str) -> Readings | NvmlError:
        try:
            return self.readings(gpu_uuid)
        except NvmlError as error:
            return error

    def returns(self, gpu_uuid: str) -> int:
        """Tell how often the GPU came back: its handle had died, and it could be read again afterwards.

        Handles die where the GPU is reset, lost or taken away, or the driver is loaded anew. A session that was made
        anew for another reason does not count. Counted by `inventory` and `readings`.
        """
        return self._session.returns(gpu_uuid)

    def watch_events(self, types: EventType) -> Events:
        """Watch all GPUs of the node for events of these types, from now on; see `Events`."""
        return Events(self._session, self._cache_of, self._bounded, types, self._clock)

    # --- changing -----------------------------------------------------------------------------

    def set_mig_mode(self, gpu_uuid: str, *, enabled: bool) -> None:
        """Switch MIG mode, at once; does nothing where it is so already.

        NVML reports success where the switch did not take place, so its activation status and the mode are read
        afterwards. A pending mode that a failed switch left behind is taken back: a later reset for another reason
        would bring it into force. The GPU's minor may be another afterwards.

        Raises:
            InUse: a client or an instance holds the GPU.
            ResetRequired: the mode would change at the next reset only (Ampere).
            NotSupported: the GPU has no MIG.
        """
        self._on(gpu_uuid, lambda cache, device: _set_mig_mode(cache, device, enabled=enabled))

    def create_gpu_instance(self, gpu_uuid: str, *, profile_id: int, placement: Placement) -> MigInstance:
        """Make a bare GPU instance at this place.

        Raises:
            InsufficientResources: the place or an engine is taken, perhaps by this very instance, made before a
                crash: compare with `instances`.
            NotSupported: MIG mode is off, or the GPU has no such profile.
        """
        return self._on(gpu_uuid, lambda _, device: mig.create_gpu_instance(device, profile_id, placement))

    def create_compute_instance(self, gpu_uuid: str, *, gpu_instance_id: int) -> MigInstance:
        """Make the compute instance that takes all of a GPU instance; gives it with UUID and real memory.

        Raises:
            NotFound: no GPU instance has this id.
            InsufficientResources: it holds a compute instance already.
            NotSupported: it offers no compute instance of its own size.
        """
        return self._on(
            gpu_uuid,
            lambda cache, device: mig.create_compute_instance(
                device, gpu_instance_id, _profiles(cache, device), cache.compute_profiles
            ),
        )

    def destroy_compute_instance(self, gpu_uuid: str, *, gpu_instance_id: int, compute_instance_id: int) -> None:
        """Destroy a compute instance.

        Ids are used again: the caller compares UUIDs (`instances`) before he destroys by an id he wrote down.

        Raises:
            NotFound: it does not exist, or not any more.
            NotSupported: MIG mode is off, so nothing exists.
            InUse: a process runs on it.
        """
        self._on(
            gpu_uuid,
            lambda _, device: mig.destroy_compute_instance(device, gpu_instance_id, compute_instance_id),
        )

    def destroy_gpu_instance(self, gpu_uuid: str, *, gpu_instance_id: int) -> None:
        """Destroy a bare GPU instance.

        Raises:
            NotFound: it does not exist, or not any more.
            NotSupported: MIG mode is off, so nothing exists.
            InUse: it holds a compute instance, or a process still.
        """
        self._on(gpu_uuid, lambda _, device: mig.destroy_gpu_instance(device, gpu_instance_id))

    # --- how a GPU is asked for its health ----------------------------------------------------

    def _readings(self, gpu_uuid: str) -> Readings:
        return self._bounded.run(gpu_uuid, self._patience(gpu_uuid), partial(self._read_once, gpu_uuid))

    def _patience(self, gpu_uuid: str) -> float:
        """Seconds that a reading may take; a GPU that is not open yet takes longer."""
        known = not self._session.is_stale and self._cache.is_open(gpu_uuid)
        return READINGS_SECONDS if known else FIRST_READ_SECONDS

    def _read_once(self, gpu_uuid: str) -> Readings:
        return self._once(lambda cache: self._read_readings(cache, gpu_uuid))

    def _read_readings(self, cache: Cache, gpu_uuid: str) -> Readings:
        readings, refusal = read_readings(cache.find(gpu_uuid))
        if refusal is None:
            self._session.answered(gpu_uuid, cache.generation, thorough=True)
        else:
            self._node.follow(refusal, cache)
        return readings

    # --- how a call is made -------------------------------------------------------------------

    def _on(self, gpu_uuid: str, operation: Callable[[Cache, Device], T]) -> T:
        return self._run(lambda cache: operation(cache, cache.find(gpu_uuid)))

    def _run(self, operation: Callable[[Cache], T]) -> T:
        try:
            return self._once(operation)
        except Uninitialized:
            return self._once(operation)

    def _once(self, operation: Callable[[Cache], T]) -> T:
        with self._session.use() as generation:
            cache = self._cache_of(generation)
            try:
                return operation(cache)
            except (GpuLost, ResetRequired) as error:
                self._node.follow(error, cache)
                raise

    def _cache_of(self, generation: int) -> Cache:
        if self._cache.generation != generation:
            self._cache = Cache(generation, self._sys_root, self._roster)
        return self._cache


# --- reading ----------------------------------------------------------------------------------


def _profiles(cache: Cache, device: Device) -> tuple[MigProfile, ...]:
    mode = read_mig_mode(device)
    return cache.profiles(device, mode) if mode else ()


def _list_instances(cache: Cache, device: Device) -> tuple[MigInstance, ...]:
    mode = read_mig_mode(device)
    return instances_in(cache, device, mode)


def _processes(device: Device) -> tuple[Process, ...]:
    return tuple(
        Process(
            pid=process.pid,
            gpu_instance_id=instance_id(process.gpuInstanceId),
            compute_instance_id=instance_id(process.computeInstanceId),
        )
        for process in _raw_processes(device)
    )


def _raw_processes(device: Device) -> list[pynvml.nvmlFriendlyObject]:
    """Ask again where more processes came up than the wrapper had left room for."""
    query = pynvml.nvmlDeviceGetComputeRunningProcesses_v3
    for _ in range(_SIZE_ATTEMPTS - 1):
        try:
            return call(device.gpu, query, device.handle)
        except NvmlError as error:
            if error.code != INSUFFICIENT_SIZE:
                raise
    return call(device.gpu, query, device.handle)


# --- MIG mode ---------------------------------------------------------------------------------


def _set_mig_mode(cache: Cache, device: Device, *, enabled: bool) -> None:
    wanted = MigMode(current=enabled, pending=enabled)
    before = read_mig_mode(device)
    if before == wanted:
        return
    status = call(device.gpu, pynvml.nvmlDeviceSetMigMode, device.handle, int(enabled))
    cache.forget_devices()
    after = read_mig_mode(cache.find(device.gpu))
    if after != wanted:
        _restore_pending(cache, device.gpu, before, after)
        raise _switch_error(device.gpu, status, enabled=enabled)


def _restore_pending(cache: Cache, gpu_uuid: str, before: MigMode | None, after: MigMode | None) -> None:
    if before is None or after is None or before.pending == after.pending:
        return
    with contextlib.suppress(NvmlError):
        call(gpu_uuid, pynvml.nvmlDeviceSetMigMode, cache.find(gpu_uuid).handle, int(before.pending))


def _switch_error(gpu_uuid: str, status: int, *, enabled: bool) -> NvmlError:
    call_name = pynvml.nvmlDeviceSetMigMode.__name__
    if status != pynvml.NVML_SUCCESS:
        return translate(call_name, status, gpu_uuid)
    word = "on" if enabled else "off"
    return ResetRequired(call_name, RESET_REQUIRED, gpu_uuid, cause=f"MIG mode turns {word} at the next GPU reset only")
