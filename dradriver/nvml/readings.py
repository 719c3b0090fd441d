"""How a GPU says that it is: what a watch over its health asks again and again."""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import pynvml

from dradriver.nvml.calls import Device, ask_twice, call
from dradriver.nvml.errors import NotSupported, NvmlError, ResetRequired, is_fatal, translate
from dradriver.nvml.records import Readings

T = TypeVar("T")

FIELDS: Final = (
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    pynvml.NVML_FI_DEV_REMAPPED_PENDING,
    pynvml.NVML_FI_DEV_REMAPPED_FAILURE,
    pynvml.NVML_FI_DEV_RETIRED_PENDING,
)
"""All that is read by one call; each answers for itself."""

_RECOVERY, _PENDING, _FAILURE, _RETIRED = FIELDS

# Two bits for each question, of which 1 says yes; 0 is "not supported" and 2 "no". That the GPU's place in a partition,
# or the fabric manager's connection, is not told as good says nothing about the links it has.
_SICK_BITS: Final = (
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW,
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY,
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY,
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY,
)
_YES: Final = 1
_JOINING: Final = (pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED, pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS)


@dataclass(slots=True)
class _Reader:
    """Reads one thing after another; notes whether the GPU said that it must be reset, and whether it says anything."""

    device: Device
    refusal: ResetRequired | None = None
    trouble: NvmlError | None = None
    answers: int = 0

    def read(self, ask: Callable[[], T]) -> T | None:
        """Give the answer; None where NVML does not tell.

        Raises:
            NvmlError: the GPU or the session is gone.
        """
        try:
            answer = ask_twice(ask)
        except ResetRequired as error:
            self.refusal = error
        except NotSupported:
            pass
        except NvmlError as error:
            if is_fatal(error):
                raise
            self.trouble = self.trouble or error
        else:
            self.answers += answer is not None
            return answer
        return None


def read_readings(device: Device) -> tuple[Readings, ResetRequired | None]:
    """Read how the GPU is; None for each thing that it, its mode or its driver does not tell.

    One that refuses to answer before it is reset (RESET_REQUIRED) says by that which action it needs, also where
    field 230 does not.

    Returns:
        The readings, and that refusal if there was one.

    Raises:
        NvmlError: the GPU or the session is gone, or it answers nothing at all, and not since it cannot.
    """
    reader = _Reader(device)
    # This one reaches the hardware: a GPU that fell off the bus may go on answering the others.
    reader.read(lambda: call(device.gpu, pynvml.nvmlDeviceGetMemoryInfo, device.handle))
    fields = _fields(reader)
    pending, failure = _rows(reader, fields)
    sram, fabric = reader.read(lambda: _sram(device)), reader.read(lambda: _fabric(device))
    recovery = fields.get(_RECOVERY)
    if reader.trouble and not reader.answers and not reader.refusal:
        raise reader.trouble
    if reader.refusal:
        recovery = recovery or pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET
    readings = Readings(
        recovery=recovery, remap_pending=pending, remap_failure=failure, sram_exceeded=sram, fabric=fabric
    )
    return readings, reader.refusal


def _fields(reader: _Reader) -> Mapping[int, int]:
    device = reader.device
    values = reader.read(lambda: call(device.gpu, pynvml.nvmlDeviceGetFieldValues, device.handle, FIELDS))
    read = {value.fieldId: reader.read(partial(_field, device, value)) for value in values or ()}
    return {field: content for field, content in read.items() if content is not None}


def _field(device: Device, value: pynvml.c_nvmlFieldValue_t) -> int:
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise translate(pynvml.nvmlDeviceGetFieldValues.__name__, value.nvmlReturn, device.gpu)
    return value.value.uiVal


def _rows(reader: _Reader, fields: Mapping[int, int]) -> tuple[bool | None, bool | None]:
    """Give whether a repair of memory waits for a reset, and whether one failed: rows, and pages before Ampere."""
    if _PENDING in fields and _FAILURE in fields:
        return bool(fields[_PENDING]), bool(fields[_FAILURE])
    device = reader.device
    rows = reader.read(lambda: call(device.gpu, pynvml.nvmlDeviceGetRemappedRows, device.handle))
    if rows:
        return bool(rows[2]), bool(rows[3])
    pending = fields.get(_PENDING, fields.get(_RETIRED))
    if pending is None:
        pending = reader.read(lambda: call(device.gpu, pynvml.nvmlDeviceGetRetiredPagesPendingStatus, device.handle))
    return _truth(pending), _truth(fields.get(_FAILURE))


def _truth(content: int | None) -> bool | None:
    return None if content is None else bool(content)


def _sram(device: Device) -> bool:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    call(device.gpu, pynvml.nvmlDeviceGetSramEccErrorStatus, device.handle, ctypes.byref(status))
    return bool(status.bThresholdExceeded)


def _fabric(device: Device) -> str | None:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    call(device.gpu, pynvml.nvmlDeviceGetGpuFabricInfoV, device.handle, ctypes.byref(info))
    return fabric_word(info.state, info.status, info.healthMask)


def fabric_word(state: int, status: int, health: int) -> str | None:
    """Give what `Readings.fabric` says, from nvmlGpuFabricState_t, the status of joining, and the health mask."""
    if state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return None
    if state in _JOINING:
        return "joining"
    joined = state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and status == pynvml.NVML_SUCCESS
    return "healthy" if joined and not _is_sick(health) else "unhealthy"


def _is_sick(health: int) -> bool:
    wrong = health >> pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION
    wrong &= pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION
    # Configuration counts its mistakes from 2; 1 says that there is none.
    misconfigured = wrong > pynvml.NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE
    return misconfigured or any(health >> shift & 0x3 == _YES for shift in _SICK_BITS)
