"""One use of the simulated NVML library: initialised or not, which handles mean what, and how a call goes.

Each NVML function is a plain function `(call, *arguments)` entered in a `Table` under its C name with the kinds of
handle that it takes first. `Session.run` does for all of them what the library does: refuse before initialisation, find
the object behind the handle, wait and fail as told by `latency` and `fail`, and turn a refusal into a return code.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from dradriver.simulation import memory
from dradriver.simulation.codes import Refused, Return, require
from dradriver.simulation.errors import SimulationError
from dradriver.simulation.hardware import compute_instance, gpu_instance
from dradriver.simulation.state import ComputeInstance, Event, Fault, Gpu, GpuInstance, State
from dradriver.simulation.store import Store
from dradriver.simulation.watches import Watches

T = TypeVar("T")
Implementation = Callable[..., None]


class Kind(Flag):
    """What a handle stands for."""

    NOTHING = 0
    GPU = auto()
    MIG = auto()
    GPU_INSTANCE = auto()
    COMPUTE_INSTANCE = auto()


# A handle looks like a pointer: a mark, the kind, the GPU's slot, and the instance's serial.
_MARK = 0x5A << 40
_EVENT_SETS = _MARK | 0xE << 36
_KINDS = {1: Kind.GPU, 2: Kind.MIG, 3: Kind.GPU_INSTANCE, 4: Kind.COMPUTE_INSTANCE}
_NUMBERS = {kind: number for number, kind in _KINDS.items()}


def make_handle(kind: Kind, gpu: int, serial: int = 0) -> int:
    """Make the opaque handle of an object; the same in every process."""
    return _MARK | _NUMBERS[kind] << 36 | gpu << 28 | serial


@dataclass(frozen=True, slots=True)
class Function:
    """An NVML function: what does it, which handles it takes first, whether it changes MIG geometry."""

    run: Implementation
    takes: Kind
    serial: bool


class Table:
    """NVML functions by their C names."""

    def __init__(self) -> None:
        """Start empty."""
        self.functions: dict[str, Function] = {}

    def add(
        self, *names: str, takes: Kind = Kind.NOTHING, serial: bool = False
    ) -> Callable[[Implementation], Implementation]:
        """Enter the decorated function under its C names.

        Args:
            names: C names.
            takes: kinds of handle that the first argument may be; none = no handle first.
            serial: the GPU does one such call at a time.
        """

        def enter(run: Implementation) -> Implementation:
            self.functions.update(dict.fromkeys(names, Function(run, takes, serial)))
            return run

        return enter


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call in progress: what its handle stands for, in the state as it is now.

    Attributes:
        index: slot of the GPU; -1 where the function takes no handle.
    """

    session: "Session"
    state: State
    index: int
    kind: Kind
    serial: int

    @property
    def gpu(self) -> Gpu:
        """The GPU that the handle belongs to."""
        return self.state.gpus[self.index]

    @property
    def slots(self) -> tuple[int, ...]:
        """Slots of the GPUs by NVML index."""
        return self.session.slots(self.state)

    def gpu_instance(self) -> GpuInstance:
        """The GPU instance behind the handle, also behind the handle of a MIG device in it."""
        if self.kind is Kind.GPU_INSTANCE:
            return gpu_instance(self.gpu, serial=self.serial)
        return self.compute_instance()[0]

    def compute_instance(self) -> tuple[GpuInstance, ComputeInstance]:
        """The compute instance behind the handle, with its GPU instance."""
        return compute_instance(self.gpu, serial=self.serial)

    def update(self, change: Callable[[State], tuple[State, T]]) -> T:
        """Change the node."""
        return self.session.store.update(change)


@dataclass(slots=True, kw_only=True)
class EventSet:
    """What a listener wants to hear.

    Attributes:
        next_event: number of the first event that it has not been told yet.
        watched: event types and number of the first event after the registration, by GPU.
    """

    next_event: int
    watched: dict[int, tuple[int, int]] = field(default_factory=dict)

    def take(self, events: tuple[Event, ...]) -> Event | None:
        """Give the next event it wants and remember that it was told."""
        for event in events:
            types, first = self.watched.get(event.gpu, (0, 0))
            if event.number >= max(self.next_event, first) and event.type & types:
                self.next_event = event.number + 1
                return event
        return None


class Session:
    """The library within one process."""

    def __init__(
        self,
        folder: Path,
        *,
        sleep: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look at the node in `folder`; the driver version it has now is the one this library belongs to.

        Args:
            folder: of the node.
            sleep: waits so many seconds between looks at the node; None = it is told of changes.
            clock: monotonic seconds.
        """
        self.store = Store(folder)
        self.clock = clock
        self._watches = Watches(folder / "state", sleep)
        self.event_sets: dict[int, EventSet] = {}
        self.version = self.store.read().driver
        self.users = 0
        self._numbers = count()
        self._loads = 0
        # Pluggings and resets of each GPU when this began, by slot.
        self._seen: dict[int, tuple[int, int]] = {}

    # --- life ---

    def start(self) -> None:
        """Initialise (counted); the first one looks which GPUs there are.

        Raises:
            Refused: LIB_RM_VERSION_MISMATCH where the driver was replaced since this library was loaded.
        """
        state = self.store.read()
        require(state.driver == self.version, Return.LIB_RM_VERSION_MISMATCH)
        if self.users == 0:
            self._loads = state.driver_loads
            self._seen = {slot: _lives(gpu) for slot, gpu in enumerate(state.gpus) if gpu.plugged}
        self.users += 1

    def stop(self) -> None:
        """Undo one initialisation."""
        require(self.users, Return.UNINITIALIZED)
        self.users -= 1
        if self.users == 0:
            self.event_sets.clear()
            self._watches.close()

    def live_state(self) -> State:
        """The node as it is now.

        Raises:
            Refused: UNINITIALIZED before `start`, after `stop`, and when the driver was loaded anew since.
        """
        require(self.users, Return.UNINITIALIZED)
        state = self.store.read()
        require(state.driver_loads == self._loads, Return.UNINITIALIZED)
        return state

    def knows(self, slot: int, gpu: Gpu) -> bool:
        """Tell whether the GPU was there when the session began, and has stayed."""
        return gpu.plugged and slot in self._seen and self._seen[slot][0] == gpu.pluggings

    def reaches(self, slot: int, gpu: Gpu) -> bool:
        """Tell whether the GPU answers: it is known, on the bus, and was not reset since the session began."""
        return gpu.plugged and not gpu.lost and self._seen.get(slot) == _lives(gpu)

    def hears(self, event: Event, state: State) -> bool:
        """Tell whether an event comes from a GPU as this session knows it, not from after its reset."""
        return self.knows(event.gpu, state.gpus[event.gpu]) and event.resets == self._seen[event.gpu][1]

    def slots(self, state: State) -> tuple[int, ...]:
        """Slots of the GPUs by NVML index: where one is taken away, those behind it move up.

        NVML says so of a session that has a GPU removed itself; that others see it too, at once, is UNVERIFIED, and so
        is that handles of the GPUs behind it stay good.
        """
        return tuple(slot for slot, gpu in enumerate(state.gpus) if self.knows(slot, gpu))

    def add_event_set(self, events: EventSet) -> int:
        """Keep an event set and give its handle."""
        handle = _EVENT_SETS + next(self._numbers)
        self.event_sets[handle] = events
        return handle

    def look_until(self, deadline: float, look: Callable[[], T | None]) -> T | None:
        """Look now, at each change of the node and at the deadline (of the clock) until there is something to see."""
        with self._watches.watch() as watch:
            while True:
                watch.arm()
                found = look()
                left = deadline - self.clock()
                if found is not None or left <= 0:
                    return found
                watch.wait(left)

    # --- calls ---

    def run(self, name: str, function: Function, arguments: tuple[Any, ...]) -> int:
        """Do a call and give its return code."""
        try:
            self._run(name, function, arguments)
        except Refused as refusal:
            return int(refusal.code)
        except (SimulationError, OSError):
            return int(Return.UNKNOWN)
        return int(Return.SUCCESS)

    def _run(self, name: str, function: Function, arguments: tuple[Any, ...]) -> None:
        # Starting and stopping work also where the session is dead, or it could never be renewed.
        look = self.store.read if name.startswith(("nvmlInit", "nvmlShutdown")) else self.live_state
        state = look()
        if not (state.latencies or state.faults or function.serial):
            self._perform(function, state, arguments)
            return
        index = self._gpu_concerned(state, name, function, arguments)
        alone = function.serial and 0 <= index < len(state.gpus)
        guard: AbstractContextManager[None] = self.store.gpu_lock(index) if alone else nullcontext()
        with guard:
            self._linger(name, index)
            fault = self._fault(name, index)
            require(fault is None or fault.late, Return(fault.code) if fault else Return.SUCCESS)
            self._perform(function, look(), arguments)
            require(fault is None, Return(fault.code) if fault else Return.SUCCESS)

    def _perform(self, function: Function, state: State, arguments: tuple[Any, ...]) -> None:
        if not function.takes:
            function.run(Call(session=self, state=state, index=-1, kind=Kind.NOTHING, serial=0), *arguments)
            return
        kind, index, serial = _decode(arguments[0])
        require(kind & function.takes and index < len(state.gpus), Return.INVALID_ARGUMENT)
        gpu = state.gpus[index]
        require(self.reaches(index, gpu), Return.GPU_IS_LOST)
        call = Call(session=self, state=state, index=index, kind=kind, serial=serial)
        _require_alive(call)
        function.run(call, *arguments[1:])

    def _gpu_concerned(self, state: State, name: str, function: Function, arguments: tuple[Any, ...]) -> int:
        if name.startswith("nvmlDeviceGetHandleByIndex"):
            number, slots = memory.integer(arguments[0]), self.slots(state)
            return slots[number] if 0 <= number < len(slots) else -1
        if name.startswith("nvmlDeviceGetHandleBy"):
            wanted = memory.text(arguments[0])
            return next((slot for slot, gpu in enumerate(state.gpus) if gpu.goes_by(wanted)), -1)
        return _decode(arguments[0])[1] if function.takes else -1

    def _linger(self, name: str, index: int) -> None:
        """Take as long as told; where that is changed meanwhile, as long as told then, counted from the beginning."""
        begun = self.clock()
        if not self.store.read().latency(name, index):
            return
        with self._watches.watch() as watch:
            while True:
                watch.arm()
                left = begun + self.store.read().latency(name, index) - self.clock()
                if left <= 0:
                    return
                watch.wait(left)

    def _fault(self, name: str, index: int) -> Fault | None:
        if any(_matches(fault, name, index) for fault in self.store.read().faults):
            return self.store.update(lambda state: _use_fault(state, name, index))
        return None


def _lives(gpu: Gpu) -> tuple[int, int]:
    return gpu.pluggings, gpu.resets


def _decode(argument: Any) -> tuple[Kind, int, int]:
    value = memory.handle(argument)
    if value >> 40 != _MARK >> 40:
        return Kind.NOTHING, -1, 0
    return _KINDS.get(value >> 36 & 0xF, Kind.NOTHING), value >> 28 & 0xFF, value & 0xFFFFFFF


def _require_alive(call: Call) -> None:
    try:
        if call.kind is Kind.GPU_INSTANCE:
            call.gpu_instance()
        elif call.kind is not Kind.GPU:
            call.compute_instance()
    except Refused:
        raise Refused(Return.INVALID_ARGUMENT, "the instance of this handle is gone") from None


def _matches(fault: Fault, name: str, index: int) -> bool:
    return fault.call == name and fault.gpu in {None, index} and fault.times != 0


def _use_fault(state: State, name: str, index: int) -> tuple[State, Fault | None]:
    """Count one call against the first fault that concerns it; give the fault if it strikes."""
    for position, fault in enumerate(state.faults):
        if _matches(fault, name, index):
            left = tuple(_remaining(fault))
            if left == (fault,):
                return state, fault
            faults = (*state.faults[:position], *left, *state.faults[position + 1 :])
            return replace(state, faults=faults), None if fault.after else fault
    return state, None


def _remaining(fault: Fault) -> Iterator[Fault]:
    if fault.after:
        yield replace(fault, after=fault.after - 1)
    elif fault.times is None:
        yield fault
    elif fault.times > 1:
        yield replace(fault, times=fault.times - 1)
