"""Errors of the cdi room.

CdiError
├── DriverFilesError       the host's driver files are not there, or not complete
│   └── DriverChangingError    they were there, and are being replaced               (passes)
├── DeviceNodeError        a device node, or what /proc says of it, is missing       (passes)
└── SpecFileError          a spec file cannot be written, read or removed

What is marked as passing may be there a moment later, as on a node whose driver is being replaced.
"""

from typing import ClassVar


class CdiError(Exception):
    """Something that keeps a container from getting its device; the message says what and what to do.

    Attributes:
        passes: it may go by itself within the time of a call.
    """

    passes: ClassVar[bool] = False


class DriverFilesError(CdiError):
    """The host's driver files are not there, or not complete."""


class DriverChangingError(DriverFilesError):
    """The host's driver files were there, and are being replaced."""

    passes = True


class DeviceNodeError(CdiError):
    """A device node, or what /proc says of it, is missing."""

    passes = True


class SpecFileError(CdiError):
    """A spec file cannot be written, read or removed."""
