"""What a simulated node is at one moment, as frozen data, and its JSON form.

A state is never changed: the rules (`hardware`, `administration`) make a new one from the old one, and `store`
replaces the file.
"""

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from dradriver.simulation.errors import StateDamaged
from dradriver.simulation.models import MODELS, Model, Profile

FORMAT = 1
"""Version of the JSON form; a file of another version is refused."""

NOT_ATTRIBUTED = 0xFFFFFFFF
"""Instance id in events and processes that concern the whole GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstance:
    """A compute instance, seen by users as a MIG device.

    Attributes:
        serial: unique over the node's life, so that a handle outlived by its instance is found out.
        id: within its GPU instance; used again.
        profile: hardware id, equal to NVML's enumeration index for compute instances.
        start: first compute slice within its GPU instance.
        size: compute slices.
        index: MIG device index on the GPU; kept while it lives, so destroying another one leaves a hole.
    """

    serial: int
    id: int
    profile: int
    start: int
    size: int
    uuid: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstance:
    """A GPU instance.

    Attributes:
        serial: unique over the node's life.
        id: as NVML numbers it (see `models.gpu_instance_ids`); used again.
        profile: hardware id.
        start: first memory slice.
        size: memory slices.
    """

    serial: int
    id: int
    profile: int
    start: int
    size: int
    compute: tuple[ComputeInstance, ...] = ()

    def overlaps(self, start: int, size: int) -> bool:
        """Tell whether it covers one of the memory slices from `start`."""
        return self.start < start + size and start < self.start + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that uses a GPU; instance ids are None on a GPU without MIG. Memory in MiB."""

    pid: int
    gpu_instance: int | None
    compute_instance: int | None
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemappedRows:
    """Rows of memory replaced by spare ones."""

    correctable: int = 0
    uncorrectable: int = 0
    pending: bool = False
    failure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """Another name or memory size (MiB) for one profile of a GPU, as other driver versions have them."""

    id: int
    name: str | None = None
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU of the node, or the one that was taken out of a slot; its position in `State.gpus` is the slot.

    Attributes:
        model: key of `models.MODELS`.
        bus_id: as sysfs writes it, `0000:09:00.0`.
        pcie_root: as sysfs writes it, `pci0000:08`.
        numa_node: -1 where the firmware does not tell.
        mig: MIG mode in force.
        mig_pending: MIG mode after the next reset.
        lost: fell off the bus; every call answers GPU_IS_LOST.
        recovery: NVML field 230.
        fabric: key of `hardware.FABRIC`; None = as its model is when all is well.
        sram_exceeded: more errors in SRAM than its maker allows; stays with the board.
        retired_pending: pages of memory will be retired at the next reset; before Ampere.
        plugged: it is in its slot; else nobody on the node knows of it.
        pluggings: how often it was put in: an NVML session knows only what was there when it began.
        resets: how often it was reset: an NVML session that began before the last one has lost it.
    """

    model: str
    uuid: str
    serial: str
    minor: int
    bus_id: str
    pcie_root: str
    numa_node: int
    mig: bool = False
    mig_pending: bool = False
    instances: tuple[GpuInstance, ...] = ()
    processes: tuple[Process, ...] = ()
    lost: bool = False
    recovery: int = 0
    rows: RemappedRows = RemappedRows()
    fabric: str | None = None
    sram_exceeded: bool = False
    retired_pending: bool = False
    compute_mode: int = 0
    persistence: bool = True
    renames: tuple[Rename, ...] = ()
    plugged: bool = True
    pluggings: int = 1
    resets: int = 0

    @property
    def kind(self) -> Model:
        """Its row of the table of models."""
        return MODELS[self.model]

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """What it can be cut into, in order of NVML's enumeration."""
        return _profiles(self.model, self.renames)

    def goes_by(self, name: str) -> bool:
        """Tell whether this is its UUID, serial number or PCI bus id, which can be written in three ways."""
        names = {self.uuid.lower(), self.serial, self.bus_id, f"0000{self.bus_id}", self.bus_id[5:]}
        return name.lower() in names

    def profile(self, ident: int) -> Profile | None:
        """Find a profile by hardware id."""
        return next((profile for profile in self.profiles if profile.id == ident), None)


@lru_cache
def _profiles(model: str, renames: tuple[Rename, ...]) -> tuple[Profile, ...]:
    changes = {change.id: change for change in renames}
    return tuple(
        sorted((_renamed(row, changes.get(row.id)) for row in MODELS[model].profiles), key=lambda row: row.index)
    )


def _renamed(profile: Profile, change: Rename | None) -> Profile:
    if change is None:
        return profile
    return replace(profile, name=change.name or profile.name, memory_mib=change.memory_mib or profile.memory_mib)


class Event(NamedTuple):
    """An NVML event; a tuple, for a state carries many of them and JSON is fast with those.

    Attributes:
        number: counts all events of the node, from 1.
        gpu: its slot.
        type: one bit of nvmlEventType*.
        data: the Xid, for Xid events.
        resets: the GPU's, when it happened.
    """

    number: int
    gpu: int
    type: int
    data: int
    gpu_instance: int = NOT_ATTRIBUTED
    compute_instance: int = NOT_ATTRIBUTED
    resets: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An NVML function told to fail.

    Attributes:
        call: C name of the function.
        code: what it returns.
        after: how many calls still pass.
        times: how many calls then fail; None = all.
        gpu: only calls that concern the GPU in this slot; None = any.
        late: the call takes effect before it reports the error.
    """

    call: str
    code: int
    after: int = 0
    times: int | None = None
    gpu: int | None = None
    late: bool = False


class Latency(NamedTuple):
    """An NVML function told to take time; a tuple without the last one in states that were written before there was it.

    Attributes:
        call: C name of the function.
        milliseconds: how long.
        gpu: only calls that concern the GPU in this slot; None = any.
    """

    call: str
    milliseconds: float
    gpu: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Majors:
    """Character device numbers, chosen at creation so that none is a real device's."""

    uvm: int
    caps: int
    imex: int


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A simulated node.

    Attributes:
        gpus: by slot, in bus order; NVML's index counts only those that a session knows.
        generation: counts changes.
        driver_loads: counts loads of the driver; an NVML session from before the last one is dead.
        next_serial: for the next instance.
        events: the latest ones, oldest first.
        next_event: number of the next one.
        latencies: what is told of one GPU counts before what is told of any.
    """

    boot_id: str
    driver: str
    majors: Majors
    gpus: tuple[Gpu, ...]
    generation: int = 0
    driver_loads: int = 1
    next_serial: int = 1
    events: tuple[Event, ...] = ()
    next_event: int = 1
    faults: tuple[Fault, ...] = ()
    latencies: tuple[Latency, ...] = ()
    format: int = FORMAT

    def with_gpu(self, index: int, gpu: Gpu) -> "State":
        """Replace one GPU."""
        return replace(self, gpus=(*self.gpus[:index], gpu, *self.gpus[index + 1 :]))

    def latency(self, call: str, gpu: int) -> float:
        """Tell how many seconds a call takes that concerns the GPU in this slot, or none (-1)."""
        told = {one.gpu: one.milliseconds for one in self.latencies if one.call == call}
        return told.get(gpu, told.get(None, 0)) / 1000


# --- JSON ---------------------------------------------------------------------------------------


def encode(state: State) -> bytes:
    """Write a state: a line of JSON for the node, then one for each GPU."""
    node = {name: getattr(state, name) for name in state.__slots__ if name != "gpus"}
    return "\n".join([_line(node), *(_gpu_line(gpu) for gpu in state.gpus)]).encode()


@lru_cache(maxsize=64)
def _gpu_line(gpu: Gpu) -> str:
    return _line(gpu)


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


_line = json.JSONEncoder(default=_fields, separators=(",", ":")).encode


def decode(data: bytes) -> State:
    """Read what `encode` wrote; a GPU whose line was met before is the same object again.

    Raises:
        StateDamaged: it is something else, or of another version.
    """
    try:
        node, *gpus = data.decode().split("\n")
        return _state(json.loads(node), tuple(map(_gpu, gpus)))
    except (ValueError, TypeError, KeyError) as error:
        raise StateDamaged(f"the state file is damaged ({error!r}): make the node anew with create --force") from error


def _state(fields: dict[str, Any], gpus: tuple[Gpu, ...]) -> State:
    if fields["format"] != FORMAT:
        raise StateDamaged(
            f"the state file is of format {fields['format']}, this version reads {FORMAT}: "
            "make the node anew with create --force"
        )
    fields["majors"] = Majors(**fields["majors"])
    fields["events"] = tuple(Event(*event) for event in fields["events"])
    fields["faults"] = tuple(Fault(**fault) for fault in fields["faults"])
    fields["latencies"] = tuple(Latency(*latency) for latency in fields["latencies"])
    return State(gpus=gpus, **fields)


@lru_cache(maxsize=64)
def _gpu(line: str) -> Gpu:
    fields = json.loads(line)
    fields["instances"] = tuple(_instance(instance) for instance in fields["instances"])
    fields["processes"] = tuple(Process(**process) for process in fields["processes"])
    fields["rows"] = RemappedRows(**fields["rows"])
    fields["renames"] = tuple(Rename(**change) for change in fields["renames"])
    return Gpu(**fields)


def _instance(fields: dict[str, Any]) -> GpuInstance:
    fields["compute"] = tuple(ComputeInstance(**compute) for compute in fields["compute"])
    return GpuInstance(**fields)
