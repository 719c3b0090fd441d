"""What is remembered of each GPU within one NVML session, so that reading a node again is cheap."""

from dataclasses import dataclass, field
from pathlib import Path

import pynvml

from dradriver.gpu.model import MigMode, MigProfile
from dradriver.nvml.calls import Device, call
from dradriver.nvml.errors import NvmlError, is_session_gone
from dradriver.nvml.facts import Facts, read_facts, read_memory
from dradriver.nvml.instances import ComputeProfile, read_compute_profiles
from dradriver.nvml.profiles import read_profiles
from dradriver.nvml.roster import Roster


@dataclass(slots=True)
class Cache:
    """Handles and unchanging facts of one session (generation).

    Threads share it without a lock: entries are only added, each is one dict operation, and two threads that miss the
    same entry read the same thing twice.

    Attributes:
        roster: who was met, in this session and earlier ones.
        drops: how often all handles were dropped: one that was given before is not good for sure any more.
    """

    generation: int
    sys_root: Path
    roster: Roster = field(default_factory=Roster)
    drops: int = 0
    _count: int = 0
    _devices: dict[int, Device] = field(default_factory=dict)
    _facts: dict[str, Facts] = field(default_factory=dict)
    _profiles: dict[str, tuple[bool, tuple[MigProfile, ...]]] = field(default_factory=dict)
    _compute_profiles: dict[tuple[str, int], tuple[ComputeProfile, ...]] = field(default_factory=dict)
    _memory: dict[str, int] = field(default_factory=dict)

    def count(self) -> int:
        """Ask how many GPUs there are; where that is another number than before, an index means another GPU."""
        count = call(None, pynvml.nvmlDeviceGetCount)
        if count != self._count and self._devices:
            self.forget_devices()
        self._count = count
        self.roster.counted(count)
        return count

    def device(self, index: int) -> Device:
        """Give the GPU that NVML has at this index."""
        known = self._devices.get(index)
        if known is None:
            known = self._devices[index] = _open(index)
            self.roster.met(index, known.gpu)
        return known

    def name(self, index: int) -> str:
        """Name the GPU at this index without asking: by UUID if it was ever met there, else `GPU <index>`."""
        known = self._devices.get(index)
        return known.gpu if known else self.roster.uuid_at(index) or index_label(index)

    def opened(self) -> tuple[Device, ...]:
        """Give the GPUs of which there are handles."""
        return tuple(self._devices.values())

    def is_open(self, gpu_uuid: str) -> bool:
        """Tell whether there is a handle of this GPU."""
        return self._opened(gpu_uuid) is not None

    def find(self, gpu_uuid: str) -> Device:
        """Give the GPU with this UUID.

        It is looked for where it was met last, then by every index: NVML's own search by UUID can take 10 s on a large
        node. It has the last word on why there is none. Where the GPU has kept its index, no other is touched, which
        may hang.

        Raises:
            NvmlError: NotFound, or what keeps that GPU from being opened.
        """
        return self._opened(gpu_uuid) or self._met(gpu_uuid) or self._searched(gpu_uuid) or _open_by_uuid(gpu_uuid)

    def forget_devices(self) -> None:
        """Drop handles and indices, which a switch of MIG mode may change; facts are kept by UUID."""
        self._devices.clear()
        self.drops += 1

    def facts(self, device: Device) -> Facts:
        """Give what does not change; read at the first good answer."""
        known = self._facts.get(device.gpu)
        if known is None:
            known = self._facts[device.gpu] = read_facts(device, self.sys_root)
        return known

    def known_facts(self, gpu_uuid: str) -> Facts | None:
        """Give what was read before, without asking."""
        return self._facts.get(gpu_uuid)

    def memory(self, device: Device) -> int | None:
        """Read total memory in bytes; the last good answer where NVML does not tell now."""
        memory = read_memory(device)
        if memory is None:
            return self._memory.get(device.gpu)
        self._memory[device.gpu] = memory
        return memory

    def profiles(self, device: Device, mode: MigMode) -> tuple[MigProfile, ...]:
        """Give what the GPU can be cut into.

        The first answer that is not empty stays, so that names stay; an empty one stays while the MIG mode does.
        """
        asked_in, profiles = self._profiles.get(device.gpu, (None, ()))
        if not profiles and asked_in != mode.current:
            profiles = read_profiles(device, self.memory(device))
            self._profiles[device.gpu] = (mode.current, profiles)
        return profiles

    def compute_profiles(
        self, device: Device, instance: pynvml.c_nvmlGpuInstance_t, profile_id: int
    ) -> tuple[ComputeProfile, ...]:
        """Give what GPU instances of this profile can hold; asked of the first one met."""
        key = device.gpu, profile_id
        known = self._compute_profiles.get(key)
        if not known:
            known = self._compute_profiles[key] = read_compute_profiles(device, instance)
        return known

    def _opened(self, gpu_uuid: str) -> Device | None:
        return next((device for device in self.opened() if device.gpu == gpu_uuid), None)

    def _met(self, gpu_uuid: str) -> Device | None:
        """Open the GPU where it was met last; None where another is there now."""
        index = self.roster.index_of(gpu_uuid)
        if index is None or index >= self.count():
            return None
        try:
            device = self.device(index)
        except NvmlError as error:
            if is_session_gone(error):
                raise
            return _open_by_uuid(gpu_uuid)
        return device if device.gpu == gpu_uuid else None

    def _searched(self, gpu_uuid: str) -> Device | None:
        for index in range(self.count()):
            try:
                device = self.device(index)
            except NvmlError as error:
                if is_session_gone(error):
                    raise
                continue
            if device.gpu == gpu_uuid:
                return device
        return None


def index_label(index: int) -> str:
    """Name a GPU whose UUID is not known."""
    return f"GPU {index}"


def _open(index: int) -> Device:
    label = index_label(index)
    handle = call(label, pynvml.nvmlDeviceGetHandleByIndex, index)
    return Device(call(label, pynvml.nvmlDeviceGetUUID, handle), handle)


def _open_by_uuid(gpu_uuid: str) -> Device:
    return Device(gpu_uuid, call(gpu_uuid, pynvml.nvmlDeviceGetHandleByUUID, gpu_uuid))
