"""NVML, typed: the only room that knows pynvml.

::

    errors      the tree of what can go wrong, and the one place that makes it from NVML's codes
    calls       how a call is made: translation, enumerations, raw lists, optional facts
    session     initialization, and when it is made anew
    bus         whether GPUs came or went
    bounded     calls that may hang, in threads
    lives       which GPUs' handles died, and which came back
    roster      who was met at which of NVML's indices
    cache       handles and unchanging facts of one session
    node        all GPUs read at once, of which some may be lost, reset or hang
    events      what GPUs tell by themselves
    facts, readings, names, sysfs, profiles, instances     what is read and changed
    access      Nvml, the whole of it for others
    opening     which library it talks to
    machines    GPUs of machines that are known by name only

`open_nvml` gives an `Nvml`, whose methods take UUIDs and ids and give the data of `dradriver.gpu`. pynvml declares no C
argument types, so a wrong Python type would reach the driver unchecked: `typings/pynvml.pyi` makes mypy check the calls
that are used here.

`Nvml`, `Events` and `open_nvml` are loaded when first asked for: importing pynvml takes longer than all else here, and
whoever only catches the errors should not wait for it.
"""

from typing import TYPE_CHECKING

from dradriver.nvml.errors import (
    DriverMismatch,
    DriverNotLoaded,
    DriverUnavailable,
    GpuLost,
    Hanging,
    InsufficientResources,
    InUse,
    InvalidArgument,
    LibraryMissing,
    NoPermission,
    NotFound,
    NotSupported,
    NvmlError,
    ResetRequired,
    SimulationUnusable,
    TimedOut,
    Uninitialized,
    UnknownError,
)
from dradriver.nvml.records import Event, EventType, Inventory, Process, Readings, UnreadableGpu
from dradriver.nvml.sysfs import pci_facts

if TYPE_CHECKING:
    from dradriver.nvml.access import Nvml
    from dradriver.nvml.events import Events
    from dradriver.nvml.opening import is_replaced, open_nvml

__all__ = [
    "DriverMismatch",
    "DriverNotLoaded",
    "DriverUnavailable",
    "Event",
    "EventType",
    "Events",
    "GpuLost",
    "Hanging",
    "InUse",
    "InsufficientResources",
    "InvalidArgument",
    "Inventory",
    "LibraryMissing",
    "NoPermission",
    "NotFound",
    "NotSupported",
    "Nvml",
    "NvmlError",
    "Process",
    "Readings",
    "ResetRequired",
    "SimulationUnusable",
    "TimedOut",
    "Uninitialized",
    "UnknownError",
    "UnreadableGpu",
    "is_replaced",
    "open_nvml",
    "pci_facts",
]


def __getattr__(name: str) -> object:
    if name not in {"Events", "Nvml", "is_replaced", "open_nvml"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dradriver.nvml import access, events, opening  # noqa: PLC0415 -- They import pynvml, see above.

    globals().update(
        Events=events.Events, Nvml=access.Nvml, is_replaced=opening.is_replaced, open_nvml=opening.open_nvml
    )
    return globals()[name]
