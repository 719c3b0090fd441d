"""Errors of the cdi room.

CdiError
├── DriverFilesError   the host's driver files are not there, or not complete
├── DeviceNodeError    a device node, or what /proc says of it, is missing
└── SpecFileError      a spec file cannot be written, read or removed
"""


class CdiError(Exception):
    """Something that keeps a container from getting its device; the message says what and what to do."""


class DriverFilesError(CdiError):
    """The host's driver files are not there, or not complete."""


class DeviceNodeError(CdiError):
    """A device node, or what /proc says of it, is missing."""


class SpecFileError(CdiError):
    """A spec file cannot be written, read or removed."""
