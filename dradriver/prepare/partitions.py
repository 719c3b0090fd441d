"""MIG instances of claims: made where they were allocated, found again after a crash, destroyed when done.

A placement is ours as soon as the record of a claim says so, and a record is only written while the placement
is free. Whatever lies at exactly that place afterwards is therefore the work of an earlier attempt, and is
taken over; anything else in the way belongs to somebody else and is never touched.
"""

from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from dradriver.gpu.model import MigInstance, MigMode, Placement
from dradriver.nvml import (
    DriverUnavailable,
    GpuLost,
    InsufficientResources,
    InUse,
    NotFound,
    NotSupported,
    NvmlError,
    Process,
    Uninitialized,
)
from dradriver.prepare.boundaries import Boundary, passed
from dradriver.prepare.errors import GpuGoneError, HardwareError, InUseError, UnavailableError
from dradriver.prepare.patience import Patience
from dradriver.prepare.plan import PlannedDevice
from dradriver.prepare.records import Made

_log = structlog.get_logger()
T = TypeVar("T")


class Hardware(Protocol):
    """What is needed of NVML; GPUs are named by UUID, and every method may raise an NvmlError."""

    def minor(self, gpu_uuid: str) -> int:
        """Tell the N of /dev/nvidiaN."""
        ...

    def mig_mode(self, gpu_uuid: str) -> MigMode | None:
        """Read the MIG mode; None where the GPU has none."""
        ...

    def set_mig_mode(self, gpu_uuid: str, *, enabled: bool) -> None:
        """Switch MIG mode, and make sure that it is in force."""
        ...

    def driver_version(self) -> str:
        """Tell the version of the running driver."""
        ...

    def processes(self, gpu_uuid: str) -> tuple[Process, ...]:
        """List the processes that compute on the GPU or its partitions."""
        ...

    def instances(self, gpu_uuid: str) -> tuple[MigInstance, ...]:
        """List GPU instances, bare ones included."""
        ...

    def create_gpu_instance(self, gpu_uuid: str, *, profile_id: int, placement: Placement) -> MigInstance:
        """Make a bare GPU instance."""
        ...

    def create_compute_instance(self, gpu_uuid: str, *, gpu_instance_id: int) -> MigInstance:
        """Make the compute instance that fills a GPU instance."""
        ...

    def destroy_compute_instance(self, gpu_uuid: str, *, gpu_instance_id: int, compute_instance_id: int) -> None:
        """Destroy a compute instance."""
        ...

    def destroy_gpu_instance(self, gpu_uuid: str, *, gpu_instance_id: int) -> None:
        """Destroy a bare GPU instance."""
        ...


def check_free(hardware: Hardware, devices: Iterable[PlannedDevice], *, shared: Container[str] = ()) -> None:
    """Make sure that nobody else's instance lies where a claim is to get its devices.

    Args:
        hardware: the GPUs.
        devices: what the claim is to get.
        shared: names of devices that other claims of ours share, so that their instances exist already.

    Raises:
        HardwareError: naming the instance that is in the way.
    """
    for device in devices:
        if device.admin_access or device.instance_uuid is not None or device.device in shared:
            continue
        for instance in _instances(hardware, device):
            if device.placement is None or device.placement.overlaps(instance.placement):
                raise HardwareError(
                    f"device {device.device}: GPU {device.gpu_uuid} has GPU instance {instance.gpu_instance_id} "
                    f"({instance.uuid or 'without compute instance'}) at memory slice {instance.placement.start}, "
                    "which this driver did not make; remove it on the node with `nvidia-smi mig -dci` and `-dgi`, "
                    "or stop what made it"
                )


def check_idle(hardware: Hardware, devices: Iterable[PlannedDevice]) -> None:
    """Make sure that nobody computes on a whole GPU, or on an instance of others, that a claim is to get.

    A partition that is made for the claim needs no such look: nobody can be on it yet.

    Raises:
        InUseError: naming the processes, as of a pod before whose container has not ended.
        NvmlError: it cannot be told now.
    """
    for device in devices:
        if device.make or device.admin_access or device.share_id:
            continue
        instance = None if device.profile_id is None else look(hardware, device)
        if (device.profile_id is None or instance is not None) and _is_computed_on(hardware, device, instance):
            raise InUseError(
                f"device {device.device}: processes compute on it, although no pod holds it"
                f"{_holding_processes(hardware, device)}; end them, or stop what started them"
            )


def ensure(hardware: Hardware, device: PlannedDevice, *, mode_needs_reset: bool) -> Made | None:
    """Have the device of a claim ready: a partition made or found, MIG mode as the device needs it.

    Args:
        hardware: the GPUs.
        device: one device of a claim whose record is written.
        mode_needs_reset: the GPU switches MIG mode only through a reset, which is never done here.

    Returns:
        The MIG instance; None for a whole GPU.

    Raises:
        HardwareError: the GPU refuses, or an instance that should exist does not.
    """
    if device.profile_id is None:
        if not device.admin_access:
            _switch_mode(hardware, device, enabled=False, needs_reset=mode_needs_reset)
        return None
    if not device.make:
        return _existing(hardware, device)
    _switch_mode(hardware, device, enabled=True, needs_reset=mode_needs_reset)
    return _make(hardware, device)


def look(hardware: Hardware, device: PlannedDevice) -> Made | None:
    """Find the complete partition that lies at the place of a device; None where there is none.

    Raises:
        HardwareError: the GPU does not answer.
    """
    for instance in _instances(hardware, device):
        if instance.placement == device.placement and instance.profile_id == device.profile_id and instance.uuid:
            return _made(device, instance)
    return None


def is_alive(hardware: Hardware, device: PlannedDevice, made: Made | None) -> bool:
    """Tell whether a prepared device is still what the record says.

    Raises:
        HardwareError: the GPU does not answer.
    """
    if device.profile_id is None:
        mode = _asked(hardware, device, lambda: hardware.mig_mode(device.gpu_uuid))
        return device.admin_access or mode is None or not mode.current
    return made is not None and any(instance.uuid == made.uuid for instance in _instances(hardware, device))


def release(hardware: Hardware, device: PlannedDevice, made: Made | None, patience: Patience) -> None:
    """Destroy what was made for a claim at the place of this device; nothing there is fine.

    A partition that is still in use is tried again for a while, since processes of a container that has just
    ended take a moment to go.

    Args:
        hardware: the GPUs.
        device: one device of a claim whose record is written.
        made: what the record says was made; None for an attempt that did not get so far.
        patience: how long it may take.

    Raises:
        InUseError: it is in use all the time; names the processes.
        HardwareError: the GPU does not answer. What is left can be released again.
    """
    attempt = 0
    while device.make:
        try:
            _release_once(hardware, device, made)
        except InUseError:
            if not patience.pause(attempt):
                raise
            attempt += 1
        else:
            return


def _release_once(hardware: Hardware, device: PlannedDevice, made: Made | None) -> None:
    for instance in _instances(hardware, device):
        if instance.placement != device.placement or instance.profile_id != device.profile_id:
            continue
        if made is not None and instance.uuid not in (None, made.uuid):
            _log.warning("not ours any more, left alone", device=device.device, ours=made.uuid, found=instance.uuid)
            continue
        _destroy(hardware, device, instance)


def is_used(hardware: Hardware, device: PlannedDevice, made: Made | None) -> bool:
    """Tell whether a process computes on a device.

    False where this NVML never tells, and of a GPU that is not in the machine any more. An answer that fails for
    another reason means: perhaps.
    """
    try:
        return _is_computed_on(hardware, device, made)
    except NotFound:
        return False
    except NvmlError:
        return True


def is_taken_out(hardware: Hardware, device: PlannedDevice) -> bool:
    """Tell whether the GPU of a device is not in the machine any more, and with it all that was made on it.

    A lost one is still counted and answers with another error.
    """
    try:
        hardware.mig_mode(device.gpu_uuid)
    except NotFound:
        return True
    except NvmlError:
        return False
    return False


def _is_computed_on(hardware: Hardware, device: PlannedDevice, made: Made | None) -> bool:
    try:
        processes = hardware.processes(device.gpu_uuid)
    except NotSupported:
        return False
    return any(made is None or process.gpu_instance_id == made.gpu_instance_id for process in processes)


def switch_off_when_empty(hardware: Hardware, gpu_uuid: str) -> None:
    """Put a GPU without partitions back into whole-GPU mode; a failure only costs the next claim some time."""
    try:
        mode = hardware.mig_mode(gpu_uuid)
        if mode is not None and mode.current and not hardware.instances(gpu_uuid):
            hardware.set_mig_mode(gpu_uuid, enabled=False)
            passed(Boundary.MODE_SWITCHED_OFF)
    except NvmlError as error:
        _log.warning("MIG mode stays on for now", gpu=gpu_uuid, error=str(error))


def _make(hardware: Hardware, device: PlannedDevice) -> Made:
    instance = _at_place(hardware, device) or _create(hardware, device)
    if instance.compute_instance_id is None or instance.uuid is None:
        bare = instance
        instance = _asked(
            hardware,
            device,
            lambda: hardware.create_compute_instance(device.gpu_uuid, gpu_instance_id=bare.gpu_instance_id),
        )
        passed(Boundary.COMPUTE_INSTANCE_CREATED)
    return _made(device, instance)


def _create(hardware: Hardware, device: PlannedDevice) -> MigInstance:
    placement, profile_id = device.placement, device.profile_id
    assert placement is not None  # noqa: S101 (a device with a profile has a placement: offer.OfferedDevice)
    assert profile_id is not None  # noqa: S101 (checked by the caller)
    try:
        instance = hardware.create_gpu_instance(device.gpu_uuid, profile_id=profile_id, placement=placement)
    except InsufficientResources as error:
        # NVML answers so too where the very instance exists, which may have become visible only now.
        found = _at_place(hardware, device)
        if found is None:
            raise HardwareError(f"device {device.device}: {error}") from error
        return found
    except NvmlError as error:
        raise _translated(hardware, device, error) from error
    passed(Boundary.GPU_INSTANCE_CREATED)
    return instance


def _at_place(hardware: Hardware, device: PlannedDevice) -> MigInstance | None:
    for instance in _instances(hardware, device):
        if instance.placement == device.placement and instance.profile_id == device.profile_id:
            _log.info("taking over the partition of an earlier attempt", device=device.device, uuid=instance.uuid)
            return instance
    return None


def _existing(hardware: Hardware, device: PlannedDevice) -> Made:
    """Find an instance that others made: by UUID where it was offered as such, by place for an admin's access."""
    for instance in _instances(hardware, device):
        same_place = instance.placement == device.placement and instance.profile_id == device.profile_id
        if instance.uuid is not None and (
            instance.uuid == device.instance_uuid or (device.instance_uuid is None and same_place)
        ):
            return _made(device, instance)
    what = (
        device.instance_uuid or f"{device.profile_name} at memory slice {device.placement and device.placement.start}"
    )
    if device.admin_access:
        raise HardwareError(
            f"device {device.device}: no MIG instance {what} lies there on GPU {device.gpu_uuid}, and admin access "
            "only looks at what exists; ask for devices that are in use, by their UUID or with --mig static"
        )
    raise HardwareError(
        f"device {device.device}: MIG instance {what} does not exist on GPU {device.gpu_uuid} any more; "
        "make it again, or delete the pod"
    )


def _made(device: PlannedDevice, instance: MigInstance) -> Made:
    if instance.compute_instance_id is None or instance.uuid is None:
        raise HardwareError(f"device {device.device}: NVML gave no UUID for its MIG instance")
    return Made(
        gpu_instance_id=instance.gpu_instance_id,
        compute_instance_id=instance.compute_instance_id,
        uuid=instance.uuid,
    )


def _destroy(hardware: Hardware, device: PlannedDevice, instance: MigInstance) -> None:
    compute, gpu_instance = instance.compute_instance_id, instance.gpu_instance_id
    if compute is not None:
        _asked(
            hardware,
            device,
            lambda: hardware.destroy_compute_instance(
                device.gpu_uuid, gpu_instance_id=gpu_instance, compute_instance_id=compute
            ),
        )
        passed(Boundary.COMPUTE_INSTANCE_DESTROYED)
    _asked(hardware, device, lambda: hardware.destroy_gpu_instance(device.gpu_uuid, gpu_instance_id=gpu_instance))
    passed(Boundary.GPU_INSTANCE_DESTROYED)


def _switch_mode(hardware: Hardware, device: PlannedDevice, *, enabled: bool, needs_reset: bool) -> None:
    mode = _asked(hardware, device, lambda: hardware.mig_mode(device.gpu_uuid))
    if (mode is not None and mode.current) == enabled:
        return
    if needs_reset:
        raise HardwareError(
            f"device {device.device}: MIG mode of GPU {device.gpu_uuid} is {'off' if enabled else 'on'}, and this GPU "
            "changes it only through a reset, which this driver never does; switch it with nvidia-smi and reset the GPU"
        )
    _asked(hardware, device, lambda: hardware.set_mig_mode(device.gpu_uuid, enabled=enabled))
    passed(Boundary.MODE_SWITCHED_ON if enabled else Boundary.MODE_SWITCHED_OFF)


def _instances(hardware: Hardware, device: PlannedDevice) -> tuple[MigInstance, ...]:
    try:
        return hardware.instances(device.gpu_uuid)
    except (GpuLost, NotFound) as error:
        raise GpuGoneError(f"device {device.device}: {error}") from error
    except NvmlError as error:
        raise _translated(hardware, device, error) from error


def _asked(hardware: Hardware, device: PlannedDevice, call: Callable[[], T]) -> T:
    try:
        return call()
    except NvmlError as error:
        raise _translated(hardware, device, error) from error


def _translated(hardware: Hardware, device: PlannedDevice, error: NvmlError) -> HardwareError:
    if isinstance(error, (DriverUnavailable, Uninitialized)):
        return UnavailableError(f"device {device.device}: {error}")
    if not isinstance(error, InUse):
        return HardwareError(f"device {device.device}: {error}")
    return InUseError(f"device {device.device}: {error}{_holding_processes(hardware, device)}")


def _holding_processes(hardware: Hardware, device: PlannedDevice) -> str:
    """Name the processes on the GPU, as far as NVML knows them: other NVML clients hold instances unseen."""
    try:
        processes = hardware.processes(device.gpu_uuid)
    except NvmlError:
        return ""
    if not processes:
        return "; NVML lists no process on the GPU, so another NVML client such as dcgm or nvidia-persistenced holds it"
    names = ", ".join(f"{process.pid} ({_command(process.pid)})" for process in processes)
    return f"; processes on the GPU: {names}"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "not visible from here"
