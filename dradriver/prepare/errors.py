"""Errors of the prepare room; each message reaches the user in an Event of the pod.

    PrepareError
    ├── ClaimError             the claim is not what the kubelet said, or not allocated
    │   ├── ClaimUnreadableError   the API server does not give the claim now       (passes)
    │   └── MalformedClaimError    its allocation is not what the API promises
    ├── PlanError              what was allocated cannot be prepared here
    ├── HeldError              another claim holds the device, or part of it        (passes)
    ├── BusyError              another call was at work on the same claim or GPU until the deadline
    ├── HardwareError          the GPU refuses
    │   ├── InUseError             a process holds the partition or the GPU         (passes)
    │   ├── GpuGoneError           the GPU does not answer any more
    │   └── UnavailableError       the driver does not answer, or not yet           (passes)
    └── RecordError            the record of a claim cannot be written or read

What is marked as passing is tried again within the call: a failed call costs the user a minute, since the
kubelet is in no hurry to come back.
"""

from typing import ClassVar


class PrepareError(Exception):
    """Why a claim is not prepared: which object, which cause, which next step.

    Attributes:
        passes: it may go by itself within the time of a call.
    """

    passes: ClassVar[bool] = False


class ClaimError(PrepareError):
    """The claim is not what the kubelet said, or not allocated."""


class ClaimUnreadableError(ClaimError):
    """The API server does not give the claim now."""

    passes = True


class MalformedClaimError(ClaimError):
    """The claim's allocation is not what the API promises, so nobody can say what it needs."""


class PlanError(PrepareError):
    """What was allocated cannot be prepared here."""


class HeldError(PrepareError):
    """Another claim holds the device, or part of it.

    Attributes:
        holder: UID of that claim.
    """

    passes = True

    def __init__(self, message: str, *, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class BusyError(PrepareError):
    """Another call was at work on the same claim or GPU until the deadline."""


class HardwareError(PrepareError):
    """The GPU refuses."""


class InUseError(HardwareError):
    """A process, or another user of NVML, holds the partition or the GPU."""

    passes = True


class GpuGoneError(HardwareError):
    """The GPU does not answer any more: it fell off the bus, or was taken out."""


class UnavailableError(HardwareError):
    """The driver does not answer, or the GPUs are not known yet: it is being installed, loaded or replaced."""

    passes = True


class RecordError(PrepareError):
    """The record of a claim cannot be written or read."""
