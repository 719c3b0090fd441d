"""What the plugin of this node knows of its GPUs' health, read from its folder; nothing in it is changed."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dradriver.commands.wishes import CommandError
from dradriver.gpu import names
from dradriver.gpu.health import HealthWishes, Mark, Marks, Place
from dradriver.gpu.model import Gpu
from dradriver.health import condition as found
from dradriver.health import memory
from dradriver.health.condition import Cause, Condition
from dradriver.health.endings import Ending, ending
from dradriver.health.policy import Policy, default_policy
from dradriver.health.verdict import marks
from dradriver.nodeconfig.memory import recall
from dradriver.numbering import GpuMemory

_NO_NUMBER: Final = -1
"""Of a GPU whose number the plugin has lost: it can still be named by its UUID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One thing that is held against a GPU.

    Attributes:
        cause: what it is.
        marks: what the GPU deserves for it, one or more.
        ending: what ends it.
    """

    cause: Cause
    marks: tuple[Mark, ...]
    ending: Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the plugin knows.

    Attributes:
        numbers: UUID of each GPU to the number in its name.
        gpus: what the GPUs are, by UUID, as far as that is remembered.
        conditions: what is held against GPUs, by UUID.
        policy: what that means on this node.
        written: by a plugin that has run since the node was started, or there was nothing to write.
    """

    numbers: Mapping[str, int]
    gpus: Mapping[str, Gpu]
    conditions: Mapping[str, Condition]
    policy: Policy
    written: bool = True

    @property
    def marks(self) -> Marks:
        """What the GPUs deserve, by UUID; those that are well are left out."""
        every = {uuid: marks(condition, self.policy, uuid) for uuid, condition in self.conditions.items()}
        return {uuid: deserved for uuid, deserved in every.items() if deserved}

    @property
    def nameable(self) -> Mapping[str, int]:
        """UUID to number, also of GPUs whose number is lost and against which something is held."""
        return {**dict.fromkeys(self.marks, _NO_NUMBER), **self.numbers}

    @property
    def ordered(self) -> tuple[str, ...]:
        """UUIDs of all GPUs, by number."""
        return tuple(sorted(self.nameable, key=lambda uuid: (self.nameable[uuid], uuid)))

    @property
    def lines(self) -> tuple[str, ...]:
        """A line for each GPU that is not well, or one that says that all are; none where no GPU is known."""
        sick = tuple(self._line(uuid, self.marks[uuid]) for uuid in self.ordered if uuid in self.marks)
        return sick or ("all GPUs are well",) * bool(self.numbers)

    def _line(self, uuid: str, deserved: tuple[Mark, ...]) -> str:
        named = uuid if uuid not in self.numbers else f"{self.name(uuid)} ({uuid})"
        # Of each key the gravest counts, for each partition.
        counting = {(mark.key, mark.place): mark for mark in reversed(gravest_first(deserved))}
        return f"{named}: {', '.join(self._short(uuid, mark) for mark in gravest_first(counting.values()))}"

    def _short(self, uuid: str, mark: Mark) -> str:
        where = "" if mark.place is None else f" on {self.partition(uuid, mark.place)}"
        return f"{said(mark)}{where} since {mark.taint.time_added}"

    def held(self, uuid: str) -> tuple[Held, ...]:
        """Give what is held against a GPU and means something, the gravest first."""
        causes = self.conditions.get(uuid, Condition()).causes
        each = ((cause, marks(Condition(causes=(cause,)), self.policy, uuid)) for cause in causes)
        every = (Held(cause=cause, marks=one, ending=ending(cause, self.policy)) for cause, one in each if one)
        return tuple(sorted(every, key=lambda one: (-one.marks[0].gravity, one.marks[0].since)))

    def name(self, uuid: str) -> str:
        """Name a GPU as its device is named, or by its UUID where its number is lost."""
        number = self.numbers.get(uuid)
        return uuid if number is None else names.gpu_name(number)

    def partition(self, uuid: str, place: Place) -> str:
        """Name a partition as its device is named, or say where it lies."""
        profiles = self.gpus[uuid].profiles if uuid in self.gpus else ()
        profile = next((one for one in profiles if one.id == place.profile_id), None)
        if profile is None or uuid not in self.numbers:
            return f"{self.name(uuid)}, profile {place.profile_id} at memory slice {place.placement.start}"
        return names.partition_name(self.numbers[uuid], profile, place.placement)


def said(mark: Mark) -> str:
    """Write a taint as kubectl writes those of nodes: `key=value:effect`."""
    return f"{mark.key}{f'={mark.value}' * bool(mark.value)}:{mark.effect}"


def gravest_first(marks: Iterable[Mark]) -> list[Mark]:
    """Put marks in the order in which a person wants to see them; of equally grave ones the oldest comes first."""
    return sorted(marks, key=lambda mark: (-mark.gravity, mark.since))


def known(plugin: Path, *, boot_id: str, clock: Callable[[], float] = time.time) -> Known:
    """Read what the plugin knows, as a plugin would that starts now.

    Args:
        plugin: its folder.
        boot_id: of the running kernel: what a start of the node ends is left out.
        clock: Unix time.

    Raises:
        CommandError: no plugin has run here, or its files cannot be read.
    """
    policy = _policy(plugin / "node-config.json")
    kept = _kept(plugin / "health.json")
    now = clock()
    same = kept.boot_id in ("", boot_id)
    conditions = kept.conditions if same else _rebooted(kept.conditions, policy, now)
    numbers = GpuMemory(plugin / "gpu-numbers.json", boot_id=boot_id, keep=False)
    return Known(
        numbers=numbers.numbers,
        gpus=numbers.facts,
        conditions={uuid: found.pass_time(condition, policy, now) for uuid, condition in conditions.items()},
        policy=policy,
        written=same,
    )


def boot_id(simulation: Path | None) -> str:
    """Read which start of the kernel this is.

    Args:
        simulation: folder of a simulated node; None for this machine.

    Raises:
        CommandError: the kernel does not tell.
    """
    proc = simulation / "root/proc" if simulation else Path("/proc")
    path = proc / "sys/kernel/random/boot_id"
    try:
        return path.read_text().strip()
    except OSError as error:
        raise CommandError(f"{path}: it cannot be read: {error.strerror}") from error


def _rebooted(conditions: Mapping[str, Condition], policy: Policy, now: float) -> Mapping[str, Condition]:
    return {uuid: found.rebooted(condition, policy, now) for uuid, condition in conditions.items()}


def _kept(path: Path) -> memory.Known:
    try:
        path.parent.stat()
        return memory.read(path)
    except OSError as error:
        raise CommandError(
            f"{error.filename}: it cannot be read: {error.strerror}; --kubelet-plugins-directory-path names the "
            "kubelet's folder of plugins, in which this driver has one when it has run, and only root may read it"
        ) from error
    except ValueError as error:
        raise CommandError(
            f"{path}: it is damaged: {error}; a plugin that starts sets it aside and asks the GPUs anew"
        ) from error


def _policy(path: Path) -> Policy:
    """Give the policy that was in force last; the driver's own where none is remembered."""
    remembered = recall(path)
    if remembered is None or remembered.health is None:
        return default_policy()
    # Takes pydantic, a quarter of a second.
    from dradriver.api.node_config import HealthPolicy, decode_policy  # noqa: PLC0415
    from dradriver.nodeconfig.policy import make_wishes  # noqa: PLC0415

    policy = decode_policy(dict(remembered.health), name="remembered")
    wishes = make_wishes(policy) if isinstance(policy, HealthPolicy) else HealthWishes()
    return default_policy().adapted(wishes)
