"""Reading all GPUs of the node, of which some may be lost, just reset, or hang."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pynvml

from dradriver.gpu.model import Gpu, MigInstance, MigMode
from dradriver.nvml import instances as mig
from dradriver.nvml.bounded import Bounded
from dradriver.nvml.cache import Cache, index_label
from dradriver.nvml.calls import Device, ask_twice, call
from dradriver.nvml.errors import (
    TIMEOUT,
    UNINITIALIZED,
    GpuLost,
    Hanging,
    NvmlError,
    ResetRequired,
    Uninitialized,
    is_session_gone,
)
from dradriver.nvml.facts import read_memory, read_mig_mode, read_minor
from dradriver.nvml.names import bus_order
from dradriver.nvml.records import Inventory, UnreadableGpu
from dradriver.nvml.roster import Roster
from dradriver.nvml.session import Session

READ_SECONDS: Final = 10.0
"""How long reading one GPU may take that was read before in this session, or what concerns no GPU."""

FIRST_READ_SECONDS: Final = 30.0
"""How long it may take the first time in a session: opening a GPU without persistence mode takes seconds, and on a
large node so does initializing NVML."""

CHECK_SECONDS: Final = 2.0
"""How long one GPU may take to say whether its handle is good."""

RENEWAL_SECONDS: Final = 2.0
"""How long a reading waits for other calls to end, so that a GPU that was reset can be given another handle."""

_ATTEMPTS: Final = 4


@dataclass(frozen=True, slots=True)
class _Look:
    """What one reading of the node begins with.

    Attributes:
        generation: of the session.
        cache: of that session.
        count: how many GPUs NVML has.
        versions: of the driver, and of CUDA as (major, minor).
    """

    generation: int
    cache: Cache
    count: int
    versions: tuple[str, tuple[int, int]]


class Node:
    """The GPUs of the node, each read in a bounded call of its own.

    Args:
        session: NVML's session.
        cache_of: gives the handles of a generation, within a use of the session.
        bounded: makes the calls.
        roster: who was met before.
    """

    def __init__(self, session: Session, cache_of: Callable[[int], Cache], bounded: Bounded, roster: Roster) -> None:
        self._session = session
        self._cache_of = cache_of
        self._bounded = bounded
        self._roster = roster

    def read(self) -> Inventory:
        """Read every GPU; a session that ended, or was made anew meanwhile, is followed into the next.

        Raises:
            NvmlError: NVML as a whole does not answer; a Hanging where it hangs.
        """
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(Uninitialized):
                look, read = self._attempt()
                if not (_is_any_dead(read) and self._session.is_renewed(look.generation, RENEWAL_SECONDS)):
                    return self._inventory([self._doubted(one) for one in read])
        return self._inventory(self._attempt()[1])

    def _doubted(self, one: Gpu | NvmlError) -> Gpu | NvmlError:
        return self.doubt(one) if isinstance(one, GpuLost) else one

    def doubt(self, loss: NvmlError) -> NvmlError:
        """Give what a loss means: nothing as long as a new session would show whether it is one, and cannot be had."""
        if not self._session.is_stale:
            return loss
        cause = "NVML has to be initialized anew to reach it, and a call that hangs in the driver keeps that from it"
        return Hanging(loss.call, TIMEOUT, loss.gpu, cause=cause)

    def follow(self, loss: NvmlError, cache: Cache) -> None:
        """See to it, within a use, that nobody's loss goes unnoticed where one GPU's leads to a new session.

        GPUs that are linked are reset together, and in the new session no other would look as if it had been.
        """
        if self._session.note(loss, cache.generation):
            self._check_each(cache)

    def renew(self) -> None:
        """Have NVML initialized anew at the next use, and notice first whose handle died without anybody asking."""
        with contextlib.suppress(NvmlError):
            self._bounded.run(None, READ_SECONDS, self._check_all)
        self._session.renew()

    def _check_all(self) -> None:
        with self._session.use() as generation:
            self._check_each(self._cache_of(generation))

    def _check_each(self, cache: Cache) -> None:
        """Ask all open GPUs whether their handles are good still, within a use, so that no other session begins."""
        self._bounded.each(
            (device.gpu, CHECK_SECONDS, partial(self._check, cache, device)) for device in cache.opened()
        )

    def _check(self, cache: Cache, device: Device) -> None:
        with self._session.use() as generation:
            if generation == cache.generation:
                read_memory(device)

    def _attempt(self) -> tuple[_Look, Sequence[Gpu | NvmlError]]:
        seconds = FIRST_READ_SECONDS if self._session.is_stale else READ_SECONDS
        look = self._bounded.run(None, seconds, self._begin)
        read = self._bounded.each(self._calls(look))
        for one in read:
            if isinstance(one, NvmlError) and is_session_gone(one):
                raise one
        return look, read

    def _begin(self) -> _Look:
        with self._session.use() as generation:
            cache = self._cache_of(generation)
            return _Look(generation, cache, cache.count(), (driver_version(), cuda_driver_version()))

    def _calls(self, look: _Look) -> Iterator[tuple[str, float, Callable[[], Gpu]]]:
        for index in range(look.count):
            key = key_of(self._bounded, look.cache, index)
            seconds = READ_SECONDS if look.cache.known_facts(key) else FIRST_READ_SECONDS
            yield key, seconds, partial(self._read_one, look, index)

    def _read_one(self, look: _Look, index: int) -> Gpu:
        with self._session.use() as generation:
            if generation == look.generation:
                return self._read_within(look, index)
        raise Uninitialized(
            pynvml.nvmlInitWithFlags.__name__, UNINITIALIZED, cause="NVML was initialized anew while the GPUs were read"
        )

    def _read_within(self, look: _Look, index: int) -> Gpu:
        try:
            gpu = ask_twice(lambda: _gpu(look.cache, look.cache.device(index), look.versions))
        except (GpuLost, ResetRequired) as error:
            self.follow(error, look.cache)
            raise
        self._roster.placed(gpu.uuid, gpu.pci_bus_id)
        self._session.answered(gpu.uuid, look.generation, thorough=False)
        return gpu

    def _inventory(self, read: Sequence[Gpu | NvmlError]) -> Inventory:
        gpus = [one for one in read if isinstance(one, Gpu)]
        present = {gpu.uuid for gpu in gpus}
        return Inventory(
            gpus=tuple(sorted(gpus, key=lambda gpu: bus_order(gpu.pci_bus_id))),
            unreadable=tuple(
                self._unreadable(index, one, present) for index, one in enumerate(read) if isinstance(one, NvmlError)
            ),
        )

    def _unreadable(self, index: int, error: NvmlError, present: set[str]) -> UnreadableGpu:
        """Name who was met at this index before, unless that GPU was read at another."""
        known = self._roster.uuid_at(index)
        uuid = None if known in present else known
        if uuid is not None and error.gpu == index_label(index):
            error = type(error)(error.call, error.code, uuid, cause=error.cause)
        return UnreadableGpu(index=index, uuid=uuid, pci_bus_id=self._roster.bus_id(uuid), error=error)


def key_of(bounded: Bounded, cache: Cache, index: int) -> str:
    """Give the name under which calls about the GPU at this index are bounded: its UUID, once that is known."""
    label = index_label(index)
    return label if bounded.hangs(label) else cache.name(index)


def driver_version() -> str:
    """Read the driver's version, `580.105.08`."""
    return call(None, pynvml.nvmlSystemGetDriverVersion)


def cuda_driver_version() -> tuple[int, int]:
    """Read the newest CUDA version (major, minor) that the driver supports."""
    version = call(None, pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return version // 1000, version % 1000 // 10


def instances_in(cache: Cache, device: Device, mode: MigMode | None) -> tuple[MigInstance, ...]:
    """List a GPU's instances; none where MIG mode is off."""
    if mode is None or not mode.current:
        return ()
    return mig.list_instances(device, cache.profiles(device, mode), cache.compute_profiles)


def _is_any_dead(read: Sequence[Gpu | NvmlError]) -> bool:
    return any(isinstance(one, (GpuLost, ResetRequired)) for one in read)


def _gpu(cache: Cache, device: Device, versions: tuple[str, tuple[int, int]]) -> Gpu:
    facts = cache.facts(device)
    mode = read_mig_mode(device)
    return Gpu(
        uuid=device.gpu,
        minor=read_minor(device),
        pci_bus_id=facts.pci_bus_id,
        pci_device_id=facts.pci_device_id,
        product_name=facts.product_name,
        brand=facts.brand,
        architecture=facts.architecture,
        compute_capability=facts.compute_capability,
        driver_version=versions[0],
        cuda_driver_version=versions[1],
        memory_bytes=cache.memory(device),
        mig_mode=mode,
        mig_needs_reset=mode is not None and not facts.resetless_mig,
        vgpu_guest=facts.vgpu_guest,
        profiles=cache.profiles(device, mode) if mode else (),
        instances=instances_in(cache, device, mode),
        addressing_mode=facts.addressing_mode,
        numa_node=facts.numa_node,
        pcie_root=facts.pcie_root,
    )
