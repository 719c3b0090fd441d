"""Errors of the prepare room; each message reaches the user in an Event of the pod.

PrepareError
├── ClaimError       the claim is not what the kubelet said, or not allocated
├── PlanError        what was allocated cannot be prepared here
├── HeldError        another claim holds the device, or part of it
├── HardwareError    the GPU refuses
└── RecordError      the record of a claim cannot be written or read
"""


class PrepareError(Exception):
    """Why a claim is not prepared: which object, which cause, which next step."""


class ClaimError(PrepareError):
    """The claim is not what the kubelet said, or not allocated."""


class PlanError(PrepareError):
    """What was allocated cannot be prepared here."""


class HeldError(PrepareError):
    """Another claim holds the device, or part of it."""


class HardwareError(PrepareError):
    """The GPU refuses."""


class RecordError(PrepareError):
    """The record of a claim cannot be written or read."""


class BusyError(PrepareError):
    """Another call was at work on the same claim or GPU until the deadline."""
