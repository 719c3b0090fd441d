"""The verbs of the command line: each takes the parsed arguments and the node's store, and returns what to print.

What the user got wrong is `errors.BadInput`, what the hardware refuses is `codes.Refused`; `__main__` says either in
one sentence.
"""

import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dradriver.simulation import administration as admin
from dradriver.simulation import description, hardware, show
from dradriver.simulation.codes import Refused, Return, require
from dradriver.simulation.errors import BadInput
from dradriver.simulation.nvml_api import FUNCTIONS
from dradriver.simulation.state import Fault, Gpu, Process, State
from dradriver.simulation.store import Store

MAX_MINOR = 31
Verb = Callable[[Store, Namespace], str]


# --- what the user may name -------------------------------------------------------------------------


def slot(state: State, number: int) -> int:
    """Check the number of a slot, whether or not a GPU is in it.

    Raises:
        BadInput: the node has no such slot.
    """
    if not 0 <= number < len(state.gpus):
        raise BadInput(f"no GPU {number}: this node has GPUs 0 to {len(state.gpus) - 1}")
    return number


def gpu_index(state: State, number: int) -> int:
    """Check the number of a GPU that is there.

    Raises:
        BadInput: the node has no such slot.
        Refused: NOT_FOUND where no GPU is in it.
    """
    require(state.gpus[slot(state, number)].plugged, Return.NOT_FOUND, f"GPU {number} is unplugged: plug it in first")
    return number


def call_name(text: str) -> str:
    """Give the C name of an NVML function named in C or as in pynvml, where the version is left out.

    Raises:
        BadInput: the simulation has no such function.
    """
    if text == "nvmlInit":
        return "nvmlInitWithFlags"
    names = [name for name in (text, f"{text}_v2", f"{text}_v3") if name in FUNCTIONS]
    if not names:
        near = [name for name in FUNCTIONS if text.lower().removeprefix("nvml") in name.lower()]
        raise BadInput(f"no NVML call {text!r} here; there are {', '.join(near or FUNCTIONS)}")
    return names[-1] if text not in FUNCTIONS else text


def _choices(word: str, names: list[str]) -> str:
    return f"{word} {', '.join(names)}" if names else ""


def error_code(text: str) -> Return:
    """Give the return code of a name, with or without NVML_ERROR_.

    Raises:
        BadInput: there is no such code.
    """
    name = text.upper().removeprefix("NVML_ERROR_")
    names = [code.name for code in Return if code is not Return.SUCCESS]
    if name not in names:
        raise BadInput(f"no NVML error {text!r}: it is one of {', '.join(names)}")
    return Return[name]


def _each(state: State, number: int | None) -> list[int]:
    """The GPU asked for, or all that are there."""
    if number is None:
        return [index for index, gpu in enumerate(state.gpus) if gpu.plugged]
    return [gpu_index(state, number)]


def _one(store: Store, change: Callable[[State, int], State], number: int) -> None:
    """Change the node as concerns one GPU."""
    store.update(lambda state: (change(state, gpu_index(state, number)), None))


def _all(store: Store, change: Callable[[State, int], State], number: int | None) -> None:
    """Change one GPU, or each."""

    def apply(state: State) -> tuple[State, None]:
        for index in _each(state, number):
            state = change(state, index)
        return state, None

    store.update(apply)


# --- the node ---------------------------------------------------------------------------------------


def create(store: Store, arguments: Namespace) -> str:
    """Make a node."""
    machine = description.read_machine(arguments.machine)
    driver = description.check_driver(arguments.driver) if arguments.driver else None
    state = description.build(machine, mig=arguments.mig == "on", driver=driver)
    store.create(state, force=arguments.force)
    return f"{len(state.gpus)} GPUs, driver {state.driver}, in {store.folder}"


def show_node(store: Store, _arguments: Namespace) -> str:
    """Tell everything about it."""
    return json.dumps(show.describe(store.read()), indent=2)


def reboot(store: Store, _arguments: Namespace) -> str:
    """Reboot it."""
    return store.update(lambda state: (after := admin.reboot(state), f"rebooted, boot id {after.boot_id}"))


def driver_reload(store: Store, arguments: Namespace) -> str:
    """Load the driver anew."""
    version = description.check_driver(arguments.version) if arguments.version else None
    return store.update(lambda state: (after := admin.driver_reload(state, version), f"driver {after.driver} loaded"))


def reset(store: Store, arguments: Namespace) -> str:
    """Reset one GPU or all."""
    _all(store, admin.reset, arguments.gpu)
    return "reset"


def unplug(store: Store, arguments: Namespace) -> str:
    """Take GPUs out of their slots, all or none."""
    _slots(store, admin.unplug, arguments.gpu)
    return f"unplugged GPU {_listed(arguments.gpu)}"


def plug(store: Store, arguments: Namespace) -> str:
    """Put GPUs into their slots, all or none."""
    _slots(store, lambda state, index: admin.plug(state, index, other=arguments.replace), arguments.gpu)
    return f"plugged in {'another ' if arguments.replace else ''}GPU {_listed(arguments.gpu)}"


def _slots(store: Store, change: Callable[[State, int], State], numbers: list[int]) -> None:
    def apply(state: State) -> tuple[State, None]:
        for number in dict.fromkeys(numbers):
            state = change(state, slot(state, number))
        return state, None

    store.update(apply)


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, dict.fromkeys(numbers)))


# --- errors -----------------------------------------------------------------------------------------


def xid(store: Store, arguments: Namespace) -> str:
    """Report an Xid."""
    recovery = None if arguments.recovery is None else hardware.RECOVERY[arguments.recovery]
    _one(
        store,
        lambda state, index: admin.raise_xid(
            state,
            index,
            number=arguments.number,
            gpu_instance=arguments.gi,
            compute_instance=arguments.ci,
            recovery=recovery,
            times=arguments.times,
        ),
        arguments.gpu,
    )
    return f"Xid {arguments.number} on GPU {arguments.gpu}{_times(arguments)}"


def event(store: Store, arguments: Namespace) -> str:
    """Report an event of any type."""
    kind, data, times = arguments.type, arguments.data, arguments.times
    _one(store, lambda state, index: admin.tell(state, index, kind, data=data, times=times), arguments.gpu)
    return f"event {kind} on GPU {arguments.gpu}{_times(arguments)}"


def _times(arguments: Namespace) -> str:
    return "" if arguments.times == 1 else f", {arguments.times} times"


def lose(store: Store, arguments: Namespace) -> str:
    """Let a GPU fall off the bus."""
    _one(store, admin.lose, arguments.gpu)
    return f"GPU {arguments.gpu} is lost"


def recover(store: Store, arguments: Namespace) -> str:
    """Bring one GPU or all back."""
    _all(store, admin.recover, arguments.gpu)
    return "recovered"


def remap(store: Store, arguments: Namespace) -> str:
    """Set what is known of remapped rows; what is not named stays."""
    fields = ("correctable", "uncorrectable", "pending", "failure")
    given = {name: getattr(arguments, name) for name in fields if getattr(arguments, name) is not None}
    for name in ("pending", "failure"):
        if name in given:
            given[name] = given[name] == "yes"
    if not given:
        raise BadInput(f"remap needs at least one of {', '.join(f'--{name}' for name in fields)}")
    _one(
        store,
        lambda state, index: admin.remap(state, index, replace(state.gpus[index].rows, **given)),
        arguments.gpu,
    )
    return f"rows of GPU {arguments.gpu} set"


def fabric(store: Store, arguments: Namespace) -> str:
    """Set how a GPU is in its NVLink fabric."""
    name = arguments.fabric
    _one(store, lambda state, index: admin.set_fabric(state, index, name), arguments.gpu)
    return f"GPU {arguments.gpu} is in no fabric" if name == "none" else f"fabric of GPU {arguments.gpu} is {name}"


def sram(store: Store, arguments: Namespace) -> str:
    """Set whether a GPU met too many errors in SRAM."""
    exceeded = arguments.exceeded == "on"
    _one(store, lambda state, index: admin.set_sram_exceeded(state, index, exceeded=exceeded), arguments.gpu)
    return f"threshold of SRAM errors of GPU {arguments.gpu} is {'' if exceeded else 'not '}exceeded"


def retired_pending(store: Store, arguments: Namespace) -> str:
    """Set whether pages of a GPU's memory wait to be retired."""
    pending = arguments.pending == "on"
    _one(store, lambda state, index: admin.set_retired_pending(state, index, pending=pending), arguments.gpu)
    return f"{'' if pending else 'no '}pages of GPU {arguments.gpu} wait to be retired"


def minor(store: Store, arguments: Namespace) -> str:
    """Change a GPU's device minor."""
    if not 0 <= arguments.minor <= MAX_MINOR:
        raise BadInput(f"minor {arguments.minor}: it is a number from 0 to {MAX_MINOR}")
    _one(store, lambda state, index: admin.change_minor(state, index, minor=arguments.minor), arguments.gpu)
    return f"GPU {arguments.gpu} is /dev/nvidia{arguments.minor}"


def fail(store: Store, arguments: Namespace) -> str:
    """Let an NVML call fail, or work again."""
    if arguments.clear:
        call = None if arguments.call == "all" else call_name(arguments.call)
        store.update(lambda state: (admin.clear_faults(state, call), None))
        return f"{arguments.call} works again"
    if arguments.error is None:
        raise BadInput("fail needs --error NAME, or --clear to take a failure back")
    fault = Fault(
        call=call_name(arguments.call),
        code=error_code(arguments.error),
        after=arguments.after,
        times=arguments.times,
        gpu=arguments.gpu,
        late=arguments.late,
    )
    if fault.gpu is not None:
        slot(store.read(), fault.gpu)
    store.update(lambda state: (admin.add_fault(state, fault), None))
    return f"{fault.call} fails with {Return(fault.code).name}"


def latency(store: Store, arguments: Namespace) -> str:
    """Let an NVML call take time."""
    call, gpu = call_name(arguments.call), arguments.gpu
    if gpu is not None:
        slot(store.read(), gpu)
    store.update(lambda state: (admin.set_latency(state, call, arguments.milliseconds, gpu), None))
    return f"{call} takes {arguments.milliseconds:g} ms" + ("" if gpu is None else f" on GPU {gpu}")


# --- MIG and processes --------------------------------------------------------------------------------


def mig(store: Store, arguments: Namespace) -> str:
    """Switch MIG mode as an administrator would."""

    def switch(state: State) -> tuple[State, Return]:
        return hardware.set_mig_mode(state, gpu_index(state, arguments.gpu), enabled=arguments.mode == "on")

    status = store.update(switch)
    require(status is not Return.IN_USE, Return.IN_USE, f"processes or instances hold GPU {arguments.gpu}")
    waits = " after the next reset" if status is Return.RESET_REQUIRED else ""
    return f"MIG mode of GPU {arguments.gpu} is {arguments.mode}{waits}"


def instance_create(store: Store, arguments: Namespace) -> str:
    """Make an instance behind the driver's back; prints it as JSON."""

    def make(state: State) -> tuple[State, dict[str, Any]]:
        index = gpu_index(state, arguments.gpu)
        gpu = state.gpus[index]
        profile = admin.find_profile(gpu, arguments.profile)
        after, (made, _) = admin.create_instance(
            state, index, profile=profile, start=arguments.start, bare=arguments.bare
        )
        return after, show.instance(gpu, hardware.gpu_instance(after.gpus[index], serial=made.serial))

    return json.dumps(store.update(make))


def instance_destroy(store: Store, arguments: Namespace) -> str:
    """Destroy one instance, or all of a GPU."""

    def destroy(state: State, index: int) -> State:
        for ident in _chosen(state.gpus[index], arguments):
            state = admin.destroy_instance(state, index, ident=ident)
        return state

    _one(store, destroy, arguments.gpu)
    return "destroyed"


def _chosen(gpu: Gpu, arguments: Namespace) -> list[int]:
    if arguments.gi is not None:
        return [arguments.gi]
    if arguments.uuid is None:
        return [instance.id for instance in gpu.instances]
    return [_instance_of(gpu, arguments.uuid)[0]]


def _instance_of(gpu: Gpu, uuid: str) -> tuple[int, int]:
    for instance in gpu.instances:
        for compute in instance.compute:
            if compute.uuid == uuid:
                return instance.id, compute.id
    raise Refused(Return.NOT_FOUND, f"no MIG device {uuid} on this GPU")


def process_add(store: Store, arguments: Namespace) -> str:
    """Let a process use a GPU or a MIG device."""

    def add(state: State, index: int) -> State:
        gi, ci = arguments.gi, arguments.ci
        if arguments.uuid is not None:
            gi, ci = _instance_of(state.gpus[index], arguments.uuid)
        elif gi is not None and ci is None:
            ci = 0
        process = Process(pid=arguments.pid, gpu_instance=gi, compute_instance=ci, memory_mib=arguments.memory)
        return admin.add_process(state, index, process)

    _one(store, add, arguments.gpu)
    return f"process {arguments.pid} uses GPU {arguments.gpu}"


def process_remove(store: Store, arguments: Namespace) -> str:
    """Let a process stop."""
    _one(store, lambda state, index: admin.remove_process(state, index, pid=arguments.pid), arguments.gpu)
    return f"process {arguments.pid} left GPU {arguments.gpu}"
