"""Which devices claims hold. Admin access holds nothing: it sees devices that others use.

The records of this node tell of claims that were prepared here. A claim may also be allocated and not prepared yet,
which only the API server knows. To list the claims of a whole cluster is dear, so it is asked only when a device is
about to vanish from the slices, some times after that, and at the start of a process that finds no slices to compare
with. What it alone knows of is asked for again as long as that is published for its claim.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from dradriver.gpu.health import Place
from dradriver.gpu.model import Gpu
from dradriver.kube import RESOURCE_CLAIMS, RESOURCE_SLICES, Client, Object, Selector
from dradriver.prepare.records import Record

ASK_SECONDS: Final = 10.0
"""How often the API server is asked whether claims that it alone knows of still hold devices."""
CHECK_SECONDS: Final = (2.0, 15.0, 150.0)
"""When it is asked again after devices have vanished: a scheduler that had chosen one may bind its pod later, after two
minutes where it waits for volumes or for its own caches."""


Handed: TypeAlias = tuple[str, bool]
"""A device as it is given out: its name, and whether in shares. A device that changes from one to the other is to the
scheduler as good as gone, since it counts the two apart."""


def handed(records: Iterable[Record], allocated: Iterable[Handed] = ()) -> Mapping[Handed, int]:
    """Count what is held of each device: its shares, or 1 where it is not shared.

    Args:
        records: of prepared claims.
        allocated: what claims hold by the API server's word only, which does not tell how many.
    """
    prepared: Counter[Handed] = Counter()
    for record in records:
        for device in record.plan.devices:
            if not device.admin_access:
                prepared[device.device, device.share_id is not None] += device.shares
    return {**dict.fromkeys(allocated, 1), **prepared}


def shares(holds: Mapping[Handed, int]) -> dict[str, int]:
    """Count the shares that are held of each device; not of one that a claim holds undivided, which decides."""
    return {name: count for (name, shared), count in holds.items() if shared and (name, False) not in holds}


def recorded(records: Iterable[Record], boot_id: str) -> dict[str, str]:
    """Name the devices of prepared claims, with the UUID of the MIG instance behind each, "" where it is not known."""
    held: dict[str, str] = {}
    for record in records:
        for device in record.plan.devices:
            made = record.made.get(device.device) if record.boot_id == boot_id else None
            if not device.admin_access:
                held[device.device] = made.uuid if made is not None else device.instance_uuid or ""
    return held


def claims_of(records: Iterable[Record], gpu_uuid: str, place: Place | None) -> list[Record]:
    """Find the claims that hold something of a GPU, or of that one partition; claims with admin access hold nothing."""
    return [
        record
        for record in records
        if any(
            device.gpu_uuid == gpu_uuid and not device.admin_access and place in (None, device.partition)
            for device in record.plan.devices
        )
    ]


def place_of(records: Iterable[Record], gpu: Gpu | None, boot_id: str, instance_id: int) -> Place | None:
    """Find out where a GPU instance lies, by its id on the GPU; None where nobody knows.

    Args:
        records: of prepared claims.
        gpu: the GPU, with instances of others.
        boot_id: of the running kernel; ids are given anew after a boot.
        instance_id: as NVML reports it.
    """
    if gpu is None:
        return None
    for record in records:
        for device in record.plan.devices if record.boot_id == boot_id else ():
            made = record.made.get(device.device)
            if made is not None and (device.gpu_uuid, made.gpu_instance_id) == (gpu.uuid, instance_id):
                return device.partition
    for instance in gpu.instances:
        if instance.gpu_instance_id == instance_id:
            return Place.of(instance)
    return None


def allocated(claims: Iterable[Mapping[str, Any]], *, driver: str, pool: str) -> frozenset[Handed]:
    """Name the devices of a pool that claims are allocated."""
    return frozenset(
        (result["device"], bool(result.get("shareID")))
        for claim in claims
        for result in (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or ()
        if result["driver"] == driver and result["pool"] == pool and not result.get("adminAccess")
    )


class Allocations:
    """What the API server knows of allocated devices, asked as seldom as is safe.

    Args:
        client: access to the API server.
        driver: name of the driver.
        node_name: name of the node, and of the pool.
        clock: monotonic seconds.
        chance: a number from 0 to 1.
    """

    def __init__(
        self,
        client: Client,
        *,
        driver: str,
        node_name: str,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._driver = driver
        self._node_name = node_name
        self._clock = clock
        self._chance = chance
        self._published: frozenset[Handed] | None = None
        self._unsure = False
        self._checks: tuple[float, ...] = ()
        self._asked = float("-inf")
        self.held: frozenset[Handed] = frozenset()

    @property
    def next_check(self) -> float:
        """When it is to be asked again after devices have vanished; infinite if never."""
        return self._checks[0] if self._checks else float("inf")

    def published(self, devices: frozenset[Handed]) -> None:
        """Note what is in the slices by now."""
        self._published = devices
        self._unsure = False

    def forget(self, devices: frozenset[Handed]) -> None:
        """Drop devices that somebody else keeps, or nobody can offer."""
        self.held -= devices

    def forget_released(self) -> None:
        """Drop devices that no claim holds any more.

        Raises:
            KubeError: the API server does not tell.
        """
        if self.held and self._clock() >= self._asked + ASK_SECONDS:
            self.held &= self._ask()

    def keep(self, devices: frozenset[Handed]) -> bool:
        """Find devices that claims hold and that are not among those to be published; `held` then has them.

        Returns:
            Whether there are more than were known.

        Raises:
            KubeError: the API server does not tell.
        """
        if not self._is_to_be_asked(devices):
            return False
        more = self._ask() - devices - self.held
        self.held |= more
        return bool(more)

    def _is_to_be_asked(self, devices: frozenset[Handed]) -> bool:
        """Whether devices are about to vanish, or have vanished while a scheduler may not have known."""
        if self._published is None:
            self._read_published()
        if self._unsure or (self._published or frozenset()) - devices:
            spread = 1 + self._chance() / 2
            self._checks = tuple(self._clock() + seconds * spread for seconds in CHECK_SECONDS)
            return True
        due = self._clock() >= self.next_check
        self._checks = self._checks[1:] if due else self._checks
        return due

    def _ask(self) -> frozenset[Handed]:
        self._asked = self._clock()
        return allocated(self._client.list(RESOURCE_CLAIMS).items, driver=self._driver, pool=self._node_name)

    def _read_published(self) -> None:
        """Read which devices an earlier process, or another driver, has published.

        If their slices are not all there, or empty since the node was held, they do not tell.
        """
        selector = Selector(fields=f"spec.nodeName={self._node_name},spec.driver={self._driver}")
        slices = self._client.list(RESOURCE_SLICES, selector=selector).items
        self._published = frozenset(
            (device["name"], bool(device.get("allowMultipleAllocations")))
            for item in slices
            for device in item["spec"].get("devices") or ()
        )
        self._unsure = not self._published or not _is_complete(slices)


def _is_complete(slices: Iterable[Object]) -> bool:
    pools = [item["spec"]["pool"] for item in slices]
    newest = max(pool.get("generation", 0) for pool in pools)
    counts = [pool.get("resourceSliceCount", 0) for pool in pools if pool.get("generation", 0) == newest]
    return bool(len(counts) >= max(counts))
