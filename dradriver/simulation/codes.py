"""NVML's return codes, by the numbers of nvml.h; and the exception that carries one inside the simulation."""

from enum import IntEnum


class Return(IntEnum):
    """What an NVML function returns; names as in nvml.h without the prefix `NVML_ERROR_`."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999


class Refused(Exception):  # noqa: N818  # It is the hardware's answer, not a fault of the program.
    """The simulated hardware refuses; an NVML call returns `code`, the command line prints `reason`."""

    def __init__(self, code: Return, reason: str = "") -> None:
        """Keep the code; the reason is for people only, NVML has no place for it."""
        super().__init__(f"{reason or code.name} ({code.name})" if reason else code.name)
        self.code = code
        self.reason = reason


def require(condition: object, code: Return, reason: str = "") -> None:
    """Refuse with `code` unless `condition` holds."""
    if not condition:
        raise Refused(code, reason)
