# ruff: noqa: N818 -- The tree's root ends in Error; its branches name what happened, as NVML does.
"""What can go wrong in NVML, as our own exceptions.

::

    NvmlError                       any failed NVML call; carries call, code and gpu
    ├── DriverUnavailable           nothing can be asked; the node has no usable driver now
    │   ├── LibraryMissing          no libnvidia-ml.so.1 (12)
    │   ├── DriverNotLoaded         kernel module absent (9)
    │   ├── DriverMismatch          library and kernel module differ: the driver was upgraded under us (18)
    │   └── SimulationUnusable      the folder given holds no simulated node
    ├── Uninitialized               the session is gone (1); the next call opens a new one
    ├── NotSupported                this GPU, mode or driver has no such thing (3, 13, 25, 26)
    ├── NotFound                    no such GPU or instance (6, 28)
    ├── InvalidArgument             a value, or a handle, that NVML does not take (2)
    ├── InUse                       a process, an instance or another NVML client holds it (19)
    ├── InsufficientResources       the place is taken, or the very same instance exists already (23)
    ├── NoPermission                privileges are missing (4)
    ├── GpuLost                     the GPU does not answer any more (15)
    ├── ResetRequired               takes a GPU reset (16), or a mode that waits for one
    ├── TimedOut                    the driver did not answer in time (10)
    │   └── Hanging                 a call was left behind in the driver; no other is made meanwhile
    └── UnknownError                every other code

`translate` is the only place where a pynvml code becomes one of these. pynvml's own exceptions cannot be
hashed, cannot be compared with None, and ask the library for the text of a code, so none is passed on, not
even as a cause.
"""

from typing import Final


class NvmlError(Exception):
    """A failed NVML call.

    Attributes:
        call: name of the NVML function.
        code: nvmlReturn_t.
        gpu: UUID (or `GPU <index>` where the UUID could not be read); None for calls about no GPU.
        cause: what happened, in words.
    """

    cause = "NVML reports an error that has no name here"
    step = "look for Xid lines in the kernel log (dmesg) and at nvidia-smi on this node"

    def __init__(self, call: str, code: int, gpu: str | None = None, *, cause: str | None = None) -> None:
        self.call = call
        self.code = code
        self.gpu = gpu
        self.cause = cause or type(self).cause
        super().__init__(call, code, gpu)

    def __str__(self) -> str:
        where = f" for {self.gpu}" if self.gpu else ""
        return f"{self.call}{where} failed: {self.cause} (NVML code {self.code}); {self.step}"


class DriverUnavailable(NvmlError):
    """No GPU can be asked: library or kernel module is missing, or the two do not fit."""


class LibraryMissing(DriverUnavailable):
    """The NVML library cannot be loaded."""

    cause = "libnvidia-ml.so.1 cannot be loaded"
    step = "install the NVIDIA driver on this node, or name the root it is installed under"


class DriverNotLoaded(DriverUnavailable):
    """The kernel module is not loaded."""

    cause = "the NVIDIA kernel module is not loaded"
    step = "load it (modprobe nvidia) and see dmesg if that fails"


class DriverMismatch(DriverUnavailable):
    """Library and kernel module are of different versions; only a new process can load the new library."""

    cause = "the NVML library and the kernel module are of different driver versions"
    step = "finish the driver upgrade (reload the module or reboot) and restart this process"


class SimulationUnusable(DriverUnavailable):
    """The folder given holds no simulated node that can be read; the simulation's own sentence says it all."""

    def __str__(self) -> str:
        return self.cause


class Uninitialized(NvmlError):
    """The session is gone, mostly since the driver was reloaded. Nothing was done."""

    cause = "the NVML session is gone"
    step = "try again: the next call opens a new session"


class NotSupported(NvmlError):
    """This GPU, in its present mode and with this driver, has no such function."""

    cause = "this GPU, its present mode or this driver does not support it"
    step = "check the MIG mode (nvidia-smi -q -d MIG) and the driver version"


class NotFound(NvmlError):
    """The GPU or instance does not exist."""

    cause = "it does not exist"
    step = "compare with nvidia-smi -L: it may have been destroyed or removed by someone else"


class InvalidArgument(NvmlError):
    """NVML does not take a value, or the object behind a handle was destroyed meanwhile."""

    cause = "NVML does not accept the arguments, or what they name was destroyed meanwhile"
    step = "read the GPU's instances again"


class InUse(NvmlError):
    """A process, a compute instance or another NVML client holds it. Passes when they let go."""

    cause = "it is in use"
    step = "find who holds the GPU (nvidia-smi, fuser -v /dev/nvidia*), and try again when they are gone"


class InsufficientResources(NvmlError):
    """The place is taken; also NVML's answer where the very same instance exists already."""

    cause = "the place or an engine it needs is taken, maybe by the same instance made earlier"
    step = "compare with the existing instances (nvidia-smi mig -lgi)"


class NoPermission(NvmlError):
    """The process lacks privileges."""

    cause = "the process lacks the privilege"
    step = "run it privileged (CAP_SYS_ADMIN, and the MIG config capability device)"


class GpuLost(NvmlError):
    """The GPU has fallen off the bus or does not answer."""

    cause = "the GPU is lost: it does not answer any more"
    step = "see Xid 79 and its neighbours in dmesg; the node needs a reboot, or the GPU a reset"


class ResetRequired(NvmlError):
    """Nothing more happens on this GPU, or the change takes no effect, before it is reset."""

    cause = "the GPU must be reset first"
    step = "drain the GPU and reset it (nvidia-smi --gpu-reset), or reboot the node"


class TimedOut(NvmlError):
    """The driver did not answer in time."""

    cause = "the driver did not answer in time"
    step = "try again; if it stays, see dmesg for Xid 119 or 120"


class Hanging(TimedOut):
    """A call did not come back from the driver in time, and was left behind; or an earlier one still hangs there."""

    cause = "it does not come back"
    step = "see dmesg for Xid 119 or 120, and reset the GPU or reboot the node if it stays; then it is asked again"


class UnknownError(NvmlError):
    """A code that has no class of its own."""


NOT_SUPPORTED: Final = 3
NOT_FOUND: Final = 6
INSUFFICIENT_SIZE: Final = 7
TIMEOUT: Final = 10
LIBRARY_NOT_FOUND: Final = 12
RESET_REQUIRED: Final = 16
UNINITIALIZED: Final = 1

_CLASSES: Final[dict[int, type[NvmlError]]] = {
    UNINITIALIZED: Uninitialized,
    2: InvalidArgument,
    NOT_SUPPORTED: NotSupported,
    4: NoPermission,
    NOT_FOUND: NotFound,
    9: DriverNotLoaded,
    TIMEOUT: TimedOut,
    LIBRARY_NOT_FOUND: LibraryMissing,
    13: NotSupported,
    15: GpuLost,
    RESET_REQUIRED: ResetRequired,
    18: DriverMismatch,
    19: InUse,
    23: InsufficientResources,
    25: NotSupported,
    26: NotSupported,
    28: NotFound,
}
# Codes that share a class with another, or have none, say themselves what they are.
_CAUSES: Final[dict[int, str]] = {
    INSUFFICIENT_SIZE: "the answer does not fit in the space given",
    13: "this driver's library has no such function",
    17: "the operating system blocked the request",
    20: "NVML ran out of memory",
    25: "this driver does not know this version of the structure",
    26: "this driver has withdrawn the function",
    27: "the GPU or the system is not ready",
    28: "no such GPU is attached",
    29: "the GPU is in a state that does not allow it",
    999: "an internal driver error",
}


def translate(call: str, code: int, gpu: str | None = None) -> NvmlError:
    """Make the exception for an NVML return code (nvmlReturn_t); any int that is not 0 is taken."""
    return _CLASSES.get(code, UnknownError)(call, code, gpu, cause=_CAUSES.get(code))


def is_session_gone(error: NvmlError) -> bool:
    """Tell whether the error is about the driver or the session, so that no GPU can be asked."""
    return isinstance(error, (DriverUnavailable, Uninitialized))


def is_fatal(error: NvmlError) -> bool:
    """Tell whether the error is about the session or the whole GPU, not about the one thing asked."""
    return is_session_gone(error) or isinstance(error, GpuLost)
