"""Machine descriptions: `8xh100-80gb`, `4xa30,2xl4`, or a YAML file for all that has to be said, to a fresh state.

A file looks like this; everything but `gpu` is optional:

    driver: 580.105.08
    gpus:
      - gpu: h100-80gb
        count: 2
        mig: on
        numa: 1
      - gpu: gb200
        profiles:
          19: {name: 1g.24gb, memory_mib: 20480}
      - gpu: t4
"""

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dradriver.simulation.administration import new_serial, new_uuid
from dradriver.simulation.errors import BadInput
from dradriver.simulation.models import MODELS
from dradriver.simulation.state import Gpu, Majors, Rename, State

DEFAULT_DRIVER = "580.105.08"
MAX_GPUS = 16

_SHORT = re.compile(r"([1-9][0-9]*)x(.+)")
_VERSION = re.compile(r"[0-9]{3}\.[0-9]{1,3}(\.[0-9]{1,3})?")
_FILE_KEYS = ("driver", "gpus")
_GPU_KEYS = ("gpu", "count", "mig", "numa", "profiles")
_PROFILE_KEYS = ("name", "memory_mib")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A GPU as described; None where the description leaves the choice to us."""

    model: str
    mig: bool | None = None
    numa_node: int | None = None
    renames: tuple[Rename, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine as described."""

    gpus: tuple[Wanted, ...]
    driver: str = DEFAULT_DRIVER


# --- reading --------------------------------------------------------------------------------------


def read_machine(text: str) -> Machine:
    """Read `<count>x<gpu>`, several of them with commas between, or the YAML file of that name.

    Raises:
        BadInput: it is neither, or says something unknown or out of range.
    """
    if _is_file(text):
        return _limited(_file(Path(text)))
    parts = [_SHORT.fullmatch(part) for part in text.split(",")]
    if not all(parts):
        raise BadInput(
            f"machine {text!r} is neither <count>x<gpu>, such as 8xh100-80gb or 4xa30,2xl4, nor a file; "
            f"gpu is one of {', '.join(MODELS)}"
        )
    return _limited(Machine(gpus=tuple(gpu for part in parts if part for gpu in _several(part[1], part[2]))))


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:
        # Too long for a name.
        return False


def _several(count: str, model: str) -> tuple[Wanted, ...]:
    # One too many is found out as well as a million too many.
    return (Wanted(model=_model(model)),) * min(int(count), MAX_GPUS + 1)


def check_driver(version: Any) -> str:
    """Return a driver version as it is.

    Raises:
        BadInput: it does not look like one.
    """
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise BadInput(f"driver version {version!r}: give one like {DEFAULT_DRIVER} (in YAML, in quotes)")
    return version


def _limited(machine: Machine) -> Machine:
    if not 1 <= len(machine.gpus) <= MAX_GPUS:
        raise BadInput(
            f"a machine has 1 to {MAX_GPUS} GPUs, not {len(machine.gpus) or 'none'}{' or more' if machine.gpus else ''}"
        )
    return machine


def _model(name: Any) -> str:
    if not isinstance(name, str) or name not in MODELS:
        raise BadInput(f"unknown gpu {name!r}: it is one of {', '.join(MODELS)}")
    return name


def _file(path: Path) -> Machine:
    import yaml  # noqa: PLC0415  # Only files need it, and it costs as much as all the rest.

    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"machine file {path} cannot be read: {reason}") from None
    fields = _mapping(content, _FILE_KEYS, f"machine file {path}")
    rows = fields.get("gpus")
    if not isinstance(rows, list) or not rows:
        raise BadInput(f"machine file {path}: gpus must be a list with at least one entry")
    return Machine(
        gpus=tuple(gpu for row in rows for gpu in _row(row)),
        driver=check_driver(fields.get("driver", DEFAULT_DRIVER)),
    )


def _mapping(value: Any, keys: tuple[str, ...], where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadInput(f"{where}: expected a mapping with {', '.join(keys)}")
    unknown = [str(key) for key in value if key not in keys]
    if unknown:
        raise BadInput(f"{where}: unknown {', '.join(unknown)}; allowed are {', '.join(keys)}")
    return value


def _row(row: Any) -> tuple[Wanted, ...]:
    fields = _mapping(row, _GPU_KEYS, "an entry of gpus")
    model = _model(fields.get("gpu"))
    count = _integer(fields.get("count", 1), f"count of {model}", 1, MAX_GPUS)
    mig = fields.get("mig")
    if not (mig is None or isinstance(mig, bool)):
        raise BadInput(f"mig of {model} is {mig!r}: it is on or off")
    gpu = Wanted(
        model=model,
        mig=_mig(model, mig=mig),
        numa_node=_integer(fields["numa"], f"numa of {model}", -1, 255) if "numa" in fields else None,
        renames=tuple(_renames(model, fields.get("profiles", {}))),
    )
    return (gpu,) * count


def _mig(model: str, *, mig: bool | None) -> bool | None:
    if mig and not MODELS[model].mig_capable:
        raise BadInput(f"mig of {model} is on: this GPU has no MIG")
    return mig


def _integer(value: Any, what: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadInput(f"{what} is {value!r}: it is a number from {low} to {high}")
    return value


def _renames(model: str, profiles: Any) -> Iterator[Rename]:
    known = tuple(profile.id for profile in MODELS[model].profiles)
    if not isinstance(profiles, dict):
        raise BadInput(f"profiles of {model}: expected a mapping from profile id to name and memory_mib")
    for ident, change in profiles.items():
        if ident not in known:
            raise BadInput(f"profiles of {model}: no id {ident!r}; it has {', '.join(map(str, known)) or 'none'}")
        fields = _mapping(change, _PROFILE_KEYS, f"profile {ident} of {model}")
        name, memory = fields.get("name"), fields.get("memory_mib")
        if name is not None and not (isinstance(name, str) and name):
            raise BadInput(f"profile {ident} of {model}: name is {name!r}, not a text")
        if memory is not None:
            _integer(memory, f"memory_mib of profile {ident} of {model}", 1, 1 << 24)
        yield Rename(id=ident, name=name, memory_mib=memory)


# --- building -------------------------------------------------------------------------------------


def build(machine: Machine, *, mig: bool = False, driver: str | None = None) -> State:
    """Make the state of a machine that was just switched on for the first time; UUIDs are new each time.

    Args:
        machine: what it has.
        mig: MIG mode where the description does not say; GPUs without MIG do not mind.
        driver: its version; None = as described.
    """
    count = len(machine.gpus)
    return State(
        boot_id=str(uuid.uuid4()),
        driver=driver or machine.driver,
        majors=_majors(),
        gpus=tuple(_gpu(wanted, index, count, mig=mig) for index, wanted in enumerate(machine.gpus)),
    )


def _gpu(wanted: Wanted, index: int, count: int, *, mig: bool) -> Gpu:
    enabled = MODELS[wanted.model].mig_capable and (mig if wanted.mig is None else wanted.mig)
    # Two GPUs share a PCIe root complex, and the second half of them hangs on the second socket, as in common servers.
    return Gpu(
        model=wanted.model,
        uuid=new_uuid(),
        serial=new_serial(),
        minor=index,
        bus_id=f"0000:{0x09 + 0x0F * index:02x}:00.0",
        pcie_root=f"pci0000:{0x08 + 0x1E * (index // 2):02x}",
        numa_node=2 * index // count if wanted.numa_node is None else wanted.numa_node,
        mig=enabled,
        mig_pending=enabled,
        renames=wanted.renames,
    )


def _majors() -> Majors:
    taken = _real_majors()
    free = [number for number in range(511, 384, -1) if number not in taken]
    return Majors(uvm=free[0], caps=free[1], imex=free[2])


def _real_majors() -> set[int]:
    try:
        lines = Path("/proc/devices").read_text().splitlines()
    except OSError:
        return set()
    return {int(line.split()[0]) for line in lines if line and line.split()[0].isdigit()}
