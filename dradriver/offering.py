"""Keeps what the node offers true: from GPUs, claims, configuration and API server to the slices that are published.

One thread looks again and again; whoever notices something (an NVML event, a changed configuration, a doubtful answer
of the API server) only wakes it. A look reads the GPUs, computes everything anew and hands the result to the publisher,
which writes what differs.

What a claim holds stays published as long as it holds it, whatever else changes; see `gpu.offer`. The records of this
node tell that of claims that were prepared. A claim may also be allocated and not prepared yet, which only the API
server knows: it is asked when a device is about to vanish from the slices, and once more after that.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import structlog

from dradriver import api
from dradriver.gpu import names
from dradriver.gpu.model import Gpu, MigInstance, Placement
from dradriver.gpu.offer import Offer, Situation, in_bus_order, make_offer
from dradriver.gpu.policy import GpuRule
from dradriver.gpu.profiles import MigOffer, missing
from dradriver.kube import RESOURCE_CLAIMS, RESOURCE_SLICES, Client, KubeError, Selector
from dradriver.nodeconfig import Wanted
from dradriver.numbering import GpuMemory
from dradriver.nvml import DriverMismatch, Inventory, NvmlError, SimulationUnusable, UnreadableGpu
from dradriver.prepare.errors import RecordError
from dradriver.prepare.node import Node
from dradriver.prepare.partitions import Hardware
from dradriver.prepare.records import Record, Records
from dradriver.publish import Features, probe_features
from dradriver.resource import Device, InvalidPoolError, Layout, Pool, Slice, lay_out, validate

LOOK_SECONDS: Final = 5.0
"""How often the GPUs are looked at when nothing tells of a change."""
RELEASE_SECONDS: Final = 1.0
"""How often, while a device stays published for its claim only."""
RETRY_SECONDS: Final = 5.0
"""How often NVML or the API server is tried while it is missing."""
SETTLE_SECONDS: Final = 0.3
"""What comes within this time after a change is looked at together."""
ALLOCATED_SECONDS: Final = 10.0
"""How often the API server is asked whether claims that are not prepared here still hold devices."""
SECOND_CHECK_SECONDS: Final = 2.0
"""A scheduler that had not seen our write has bound its pod by then."""

_log = structlog.get_logger()


class NodeHardware(Hardware, Protocol):
    """The GPUs, as `dradriver.nvml.Nvml` shows them."""

    def inventory(self) -> Inventory:
        """Read all GPUs; raises NvmlError if NVML as a whole does not answer."""


class SlicePublisher(Protocol):
    """Publishes, as `dradriver.publish.Publisher` does."""

    def set_slices(self, slices: Iterable[Slice]) -> None:
        """Offer these instead of what was offered before; returns at once."""


class Reporter(Protocol):
    """Tells people about the node; returns at once, never raises, and says the same only once."""

    def holds(self, topic: str, reason: str, note: str) -> None:
        """Something is not as it should be; `topic` tells one such thing from another."""

    def is_over(self, topic: str) -> None:
        """It is as it should be (again)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a MIG instance lies, and what it is."""

    gpu_uuid: str
    profile_id: int
    placement: Placement

    @classmethod
    def of(cls, gpu: Gpu, instance: MigInstance) -> "Place":
        """Say where an instance lies."""
        return cls(gpu_uuid=gpu.uuid, profile_id=instance.profile_id, placement=instance.placement)


@dataclass(slots=True, kw_only=True)
class Around:
    """What the offering has to do with.

    Attributes:
        driver: name of the driver.
        node_name: name of the node, and of the pool.
        boot_id: of the running kernel.
        hardware: opens NVML if that is still to be done; raises NvmlError.
        records: of prepared claims.
        memory: of the node's GPUs.
        reporter: see Reporter.
        on_read: called after each reading of the GPUs.
        on_outdated: the driver was replaced, and only a new process can load its library.
        unready: told why nothing is published.
    """

    driver: str
    node_name: str
    boot_id: str
    hardware: Callable[[], NodeHardware]
    records: Records
    memory: GpuMemory
    reporter: Reporter
    on_read: Callable[[], None]
    on_outdated: Callable[[], None]
    unready: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picture:
    """All that decides what is offered; equal pictures give equal offers.

    Attributes:
        gpus: without what this driver makes on them for claims.
        numbers: of these GPUs.
        wanted: by the administrator.
        features: of the API server; None as long as they are unknown.
        absent: UUIDs of GPUs that do not answer.
        held: devices that claims hold, see `gpu.offer.Situation`.
    """

    gpus: tuple[Gpu, ...]
    numbers: Mapping[str, int]
    wanted: Wanted
    features: Features | None
    absent: frozenset[str]
    held: Mapping[str, str]

    @property
    def situation(self) -> Situation:
        """As `make_offer` wants it."""
        known = self.features
        return Situation(
            held=self.held,
            absent=self.absent,
            layout=Layout.APART if known is None else known.layout,
            taints=known is None or known.taints,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What was computed last, and from what."""

    picture: _Picture
    node: Node

    @property
    def names(self) -> frozenset[str]:
        """Of the devices that are to be published."""
        return frozenset(device.name for device in self._devices)

    @property
    def keeps_for_claims(self) -> bool:
        """Whether devices are published for the sake of their claims only."""
        return any(taint.key in _KEPT for device in self._devices for taint in device.taints)

    def is_true_to(self, picture: _Picture) -> bool:
        """Tell whether a picture gives the same offer; claims on devices that are offered anyway do not matter."""
        if replace(picture, held={}) != replace(self.picture, held={}):
            return False
        return self._that_matter(picture.held) == self._that_matter(self.picture.held)

    @property
    def _devices(self) -> Iterable[Device]:
        return (device for group in self.node.offer.pool.groups for device in group.devices)

    def _that_matter(self, held: Mapping[str, str]) -> Mapping[str, str]:
        plain = {device.name for device in self._devices if not device.taints}
        return {name: uuid for name, uuid in held.items() if name not in plain}


class Offering:
    """What the node offers, and the thread that keeps it true.

    `read` and `compute` come first, without an API server, so that claims can be prepared; `start` does the rest.

    Args:
        around: see Around.
        wanted: what the administrator wants at this moment.
        clock: monotonic seconds.
    """

    def __init__(
        self, around: Around, *, wanted: Callable[[], Wanted], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._around = around
        self._wanted = wanted
        self._clock = clock
        self._client: Client | None = None
        self._publisher: SlicePublisher | None = None
        self._shown: _Shown | None = None
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._changed: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offering", daemon=True)
        # From here on only the thread touches it, once it runs.
        self._hardware: NodeHardware | None = None
        self._inventory: Inventory | None = None
        self._failures = 0
        self._features: Features | None = None
        self._doubtful = True
        self._seen: dict[str, Gpu] = {}
        self._places: frozenset[Place] = frozenset()
        self._slices: tuple[Slice, ...] = ()
        self._published: frozenset[str] | None = None
        self._allocated: frozenset[str] = frozenset()
        self._ask_at = 0.0
        self._asked = float("-inf")

    @property
    def node(self) -> Node | None:
        """What claims are prepared from; None while the GPUs are unknown."""
        return None if self._shown is None else self._shown.node

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def attach(self, client: Client, publisher: SlicePublisher) -> None:
        """Say whom to ask and whom to tell; once, before `start`."""
        self._client, self._publisher = client, publisher

    def start(self) -> None:
        """Offer, from now on."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End; a look under way is waited for at most that many seconds."""
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def wake(self, reason: str, *, gpu_uuid: str = "") -> None:
        """Look now: something has changed, on one GPU or anywhere."""
        _log.debug("looking at what is offered", reason=reason, gpu=gpu_uuid)
        self._note(gpu_uuid)

    def doubt(self) -> None:
        """Ask the API server anew what it keeps: it may be another one by now, or have other gates."""
        self._doubtful = True
        self._note("")

    def _note(self, gpu_uuid: str) -> None:
        with self._lock:
            self._changed.add(gpu_uuid)
            self._wake.set()

    def _noted(self) -> frozenset[str]:
        """Which GPUs have changed since this was asked last, "" for anything else."""
        with self._lock:
            changed = frozenset(self._changed)
            self._changed.clear()
            self._wake.clear()
        return changed

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._noted()
            due = self._clock() + self._try_to_look()
            while self._wake.wait(max(0.0, due - self._clock())) and not self._stopping.wait(SETTLE_SECONDS):
                if not self._is_ours(self._noted()):
                    break

    def _is_ours(self, changed: frozenset[str]) -> bool:
        """Tell whether what has changed is only what this driver makes and undoes for claims, which is the rule."""
        shown = self._shown
        if shown is None or "" in changed:
            return False
        known = {gpu.uuid: gpu for gpu in shown.picture.gpus}
        try:
            return all(uuid in known and self._is_as_before(known[uuid]) for uuid in changed)
        except NvmlError:
            return False

    def _is_as_before(self, gpu: Gpu) -> bool:
        """Tell whether a GPU that is cut for claims has the same instances of others as before."""
        assert self._hardware is not None  # noqa: S101 (the GPU has been read)
        if gpu.mig_mode is not None:
            return False
        before = self._recorded_places()
        now = replace(gpu, instances=self._hardware.instances(gpu.uuid))
        return _without_ours(now, before | self._recorded_places(), switched=True) == gpu

    def _try_to_look(self) -> float:
        """Look once; returns after how many seconds to look again."""
        try:
            return self.look()
        except KubeError as error:
            _log.warning("the API server does not tell what it can hold", error=str(error), retry_seconds=RETRY_SECONDS)
            self._around.unready(str(error))
        except Exception:  # noqa: BLE001 (whatever it was, the GPUs are not to stay hidden for ever)
            _log.exception("what is offered cannot be computed", retry_seconds=RETRY_SECONDS)
        return RETRY_SECONDS

    def look(self) -> float:
        """Read, compute, hand over to the publisher; returns after how many seconds to look again.

        Raises:
            KubeError: the API server does not answer what has to be asked.
        """
        answered = self.read()
        if self._inventory is None and not self._around.memory.facts:
            return RETRY_SECONDS
        self._ask_features()
        self._forget_released()
        self.compute()
        shown = self._shown
        if shown is not None and shown.picture.wanted.settled:
            shown = self._keep_allocated(shown)
            self._publish(shown)
        if not answered:
            return RETRY_SECONDS
        hurry = self._ask_at or (shown is not None and shown.keeps_for_claims)
        return RELEASE_SECONDS if hurry else LOOK_SECONDS

    # --- reading ---------------------------------------------------------------------------------

    def read(self) -> bool:
        """Read the GPUs; returns whether NVML answered.

        Raises:
            SimulationUnusable: that will not pass by itself.
        """
        self._places = self._recorded_places()
        try:
            self._hardware = self._around.hardware()
            inventory = self._hardware.inventory()
        except SimulationUnusable:
            raise
        except NvmlError as error:
            self._missed(error)
            return False
        self._failures = 0
        self._around.reporter.is_over("driver")
        self._around.on_read()
        self._inventory = inventory
        self._seen |= {gpu.uuid: gpu for gpu in inventory.gpus}
        self._tell_unreadable(inventory)
        return True

    def _missed(self, error: NvmlError) -> None:
        self._failures += 1
        self._around.reporter.holds("driver", "GpusUnavailable", f"the GPUs are not available: {error}")
        if self._inventory is None:
            self._around.unready(f"no GPUs: {error}")
        if isinstance(error, DriverMismatch) and (self._inventory is not None or _is_replaced()):
            _log.warning("the driver was replaced, starting anew", error=str(error))
            self._around.on_outdated()

    def _tell_unreadable(self, inventory: Inventory) -> None:
        reporter = self._around.reporter
        for gpu in inventory.unreadable:
            name = gpu.uuid or gpu.pci_bus_id or f"with index {gpu.index}"
            reporter.holds(f"unreadable {name}", "GpuUnreadable", f"GPU {name} cannot be read: {gpu.error}")
        for uuid in (gpu.uuid for gpu in inventory.gpus):
            reporter.is_over(f"unreadable {uuid}")

    # --- computing -------------------------------------------------------------------------------

    def compute(self) -> None:
        """Compute what is offered from what was read last."""
        if self._hardware is None:
            return
        picture = self._paint()
        if self._shown is not None and self._shown.is_true_to(picture):
            return
        offer = make_offer(
            picture.gpus,
            pool=self._around.node_name,
            policy=picture.wanted.policy,
            numbers=picture.numbers,
            situation=picture.situation,
        )
        node = Node(gpus={gpu.uuid: gpu for gpu in picture.gpus}, offer=offer, hardware=self._hardware)
        self._shown = _Shown(picture=picture, node=node)
        self._tell_offer(picture, offer)

    def _paint(self) -> _Picture:
        records = self._records()
        held = dict.fromkeys(self._allocated, "") | _held(records, self._around.boot_id)
        present = {gpu.uuid: gpu for gpu in self._present()}
        kept = self._kept(present, self._holders(records, held))
        wanted, ours = self._wanted(), self._places | self._recorded_places()
        gpus = in_bus_order((*present.values(), *kept))
        counted = self._features is None or self._features.partitionable
        numbers = self._around.memory.number(gpus, held=frozenset(gpu.uuid for gpu in kept))
        return _Picture(
            gpus=tuple(
                _without_ours(gpu, ours, switched=counted and _is_switched(gpu, wanted.policy.rule(gpu, index)))
                for index, gpu in enumerate(gpus)
            ),
            numbers={gpu.uuid: numbers[gpu.uuid] for gpu in gpus},
            wanted=wanted,
            features=self._features,
            absent=frozenset(gpu.uuid for gpu in kept),
            held=held,
        )

    def _present(self) -> tuple[Gpu, ...]:
        # One failed reading may be a driver that is just being reloaded; the second counts.
        gone = self._failures > 1
        return () if gone or self._inventory is None else self._inventory.gpus

    def _kept(self, present: Mapping[str, Gpu], holders: frozenset[str]) -> list[Gpu]:
        """GPUs that are not there but stay published, as they were: claims hold them, or they may come back."""
        known = {**self._around.memory.facts, **self._seen}
        last = self._inventory or _NOTHING
        staying = holders | ({gpu.uuid for gpu in last.gpus} if self._failures > 1 else set())
        return [
            gpu
            for uuid, gpu in known.items()
            if uuid not in present and (uuid in staying or _is_among(gpu, last.unreadable))
        ]

    def _holders(self, records: Iterable[Record], held: Mapping[str, str]) -> frozenset[str]:
        """UUIDs of GPUs of which claims hold something."""
        recorded = {device.gpu_uuid for record in records for device in record.plan.devices}
        numbers = {} if self._shown is None else self._shown.picture.numbers
        allocated = {uuid for uuid, number in numbers.items() if any(names.is_of_gpu(name, number) for name in held)}
        return frozenset(recorded | allocated)

    def _records(self) -> tuple[Record, ...]:
        try:
            self._around.records.refresh()
        except RecordError as error:
            _log.warning("records of another instance are not seen now", error=str(error))
        return self._around.records.all()

    def _recorded_places(self) -> frozenset[Place]:
        return frozenset(
            Place(gpu_uuid=device.gpu_uuid, profile_id=device.profile_id, placement=device.placement)
            for record in self._around.records.all()
            if record.boot_id == self._around.boot_id
            for device in record.plan.devices
            if device.make and device.profile_id is not None and device.placement is not None
        )

    # --- publishing ------------------------------------------------------------------------------

    def _ask_features(self) -> None:
        if not self._doubtful:
            return
        assert self._client is not None  # noqa: S101 (set before the thread starts)
        self._doubtful = False
        try:
            features = probe_features(self._client, self._around.driver, self._around.node_name)
        except BaseException:
            self._doubtful = True
            raise
        if features != self._features:
            _log.info("the API server keeps", layout=features.layout, taints=features.taints)
        self._features = features
        # The publisher may have withdrawn what was offered, and is to try again now.
        self._slices = ()

    def _publish(self, shown: _Shown) -> None:
        assert self._publisher is not None  # noqa: S101 (set before the thread starts)
        hold = shown.picture.wanted.hold
        layout = shown.picture.situation.layout or Layout.APART
        slices = lay_out(Pool(name=self._around.node_name, groups=()) if hold else shown.node.offer.pool, layout)
        if slices == self._slices:
            return
        try:
            validate(slices, layout)
        except InvalidPoolError as error:
            _log.exception("nothing new is offered: the API server would refuse the slices", problems=error.problems)
            self._around.unready(str(error))
            return
        _log.info("offering", devices=len(shown.names), slices=len(slices), gpus=len(shown.node.gpus), hold=hold)
        self._publisher.set_slices(slices)
        self._slices = slices
        if not hold:
            self._published = shown.names

    def _keep_allocated(self, shown: _Shown) -> _Shown:
        """See to it that no device vanishes from the slices that a claim holds, be it one that is not prepared yet."""
        if shown.picture.wanted.hold or not self._may_be_allocated(shown):
            return shown
        more = self._ask_allocated() - shown.names - self._allocated
        if more:
            self._allocated |= more
            self.compute()
        return self._shown or shown

    def _may_be_allocated(self, shown: _Shown) -> bool:
        """Whether devices are about to vanish, or have just vanished while a scheduler may not have known."""
        if self._published is None:
            self._published = self._published_before()
        if self._published - shown.names:
            self._ask_at = self._clock() + SECOND_CHECK_SECONDS
            return True
        due = bool(self._ask_at) and self._clock() >= self._ask_at
        self._ask_at = 0.0 if due else self._ask_at
        return due

    def _forget_released(self) -> None:
        """Ask again, now and then, whether the claims that are known from the API server only still hold something."""
        if self._allocated and self._clock() >= self._asked + ALLOCATED_SECONDS:
            self._allocated &= self._ask_allocated()

    def _ask_allocated(self) -> frozenset[str]:
        assert self._client is not None  # noqa: S101 (set before the thread starts)
        self._asked = self._clock()
        claims = self._client.list(RESOURCE_CLAIMS).items
        return allocated_devices(claims, driver=self._around.driver, pool=self._around.node_name)

    def _published_before(self) -> frozenset[str]:
        """Names of the devices in the slices that exist, from an earlier process or another driver."""
        assert self._client is not None  # noqa: S101 (set before the thread starts)
        selector = Selector(fields=f"spec.nodeName={self._around.node_name},spec.driver={self._around.driver}")
        slices = self._client.list(RESOURCE_SLICES, selector=selector).items
        return frozenset(device["name"] for item in slices for device in item["spec"].get("devices") or ())

    # --- telling ---------------------------------------------------------------------------------

    def _tell_offer(self, picture: _Picture, offer: Offer) -> None:
        dropped = picture.situation.layout is None and any(rule.mig is MigOffer.DYNAMIC for rule in _by_rule(picture))
        self._say(dropped, "counters", "PartitionsNotOffered", _NO_COUNTERS)
        self._say(not picture.situation.taints, "taints", "TaintsNotKept", _NO_TAINTS)
        unknown = {name for rule, gpus in _by_rule(picture).items() for name in missing(rule.profiles, gpus)}
        note = f"no GPU for which they are wanted has the profiles {', '.join(sorted(unknown))}: see `nvidia-smi mig -lgip`"
        self._say(bool(unknown), "profiles", "UnknownProfiles", note)
        offering = {device.gpu.uuid for device in offer.devices.values()}
        for gpu in picture.gpus:
            uuid = gpu.uuid
            self._say(uuid in picture.situation.absent, f"absent {uuid}", "GpuLost", _absent(uuid))
            problems = "; ".join(offer.refused.get(uuid, ()))
            self._say(bool(problems), f"refused {uuid}", "GpuRefused", f"GPU {uuid} is not offered: {problems}")
            self._say(uuid not in offering, f"empty {uuid}", "GpuOffersNothing", _empty(uuid))

    def _say(self, holds: bool, topic: str, reason: str, note: str) -> None:  # noqa: FBT001 (a fact and its name)
        if holds:
            self._around.reporter.holds(topic, reason, note)
        else:
            self._around.reporter.is_over(topic)


_NOTHING: Final = Inventory(gpus=(), unreadable=())

_KEPT: Final = frozenset({api.TaintKey.NOT_OFFERED, api.TaintKey.GPU_LOST})
"""Taints of devices that are published for the sake of their claims only."""

_NO_COUNTERS: Final = (
    "no partitions are offered: the API server drops their counters, so that memory would be given out twice; use "
    "Kubernetes 1.36 or newer, or enable the feature gate DRAPartitionableDevices"
)
_NO_TAINTS: Final = (
    "the API server drops device taints, so that devices which cannot be used are withheld instead; use Kubernetes "
    "1.36 or newer, or enable the feature gate DRADeviceTaints"
)


def _by_rule(picture: _Picture) -> dict[GpuRule, list[Gpu]]:
    found: dict[GpuRule, list[Gpu]] = {}
    for index, gpu in enumerate(picture.gpus):
        found.setdefault(picture.wanted.policy.rule(gpu, index), []).append(gpu)
    return found


def _is_replaced() -> bool:
    # Loads pynvml, which whoever opens NVML does beside other things.
    from dradriver.nvml import is_replaced  # noqa: PLC0415

    return is_replaced()


def _absent(uuid: str) -> str:
    return (
        f"GPU {uuid} does not answer or is not there any more; its devices stay published with a taint as long as "
        "claims hold them: see the kernel's log on the node for Xid messages, and reset or replace it"
    )


def _empty(uuid: str) -> str:
    return (
        f"GPU {uuid} offers nothing: it is in MIG mode and has no instance that fills its profile, or its rule says "
        "mig: off"
    )


def allocated_devices(claims: Iterable[Mapping[str, Any]], *, driver: str, pool: str) -> frozenset[str]:
    """Name the devices of a pool that claims are allocated."""
    return frozenset(
        result["device"]
        for claim in claims
        for result in (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or ()
        if result["driver"] == driver and result["pool"] == pool
    )


def _held(records: Iterable[Record], boot_id: str) -> dict[str, str]:
    """Devices that prepared claims hold, with the UUID of the MIG instance behind each where it is known."""
    held: dict[str, str] = {}
    for record in records:
        for device in record.plan.devices:
            made = record.made.get(device.device) if record.boot_id == boot_id else None
            held[device.device] = made.uuid if made is not None else device.instance_uuid or ""
    return held


def _without_ours(gpu: Gpu, ours: frozenset[Place], *, switched: bool) -> Gpu:
    """Leave out what this driver makes and undoes for claims: instances, and MIG mode where it switches that itself."""
    others = tuple(one for one in gpu.instances if Place.of(gpu, one) not in ours)
    return replace(gpu, instances=others, mig_mode=None if switched else gpu.mig_mode)


def _is_switched(gpu: Gpu, rule: GpuRule) -> bool:
    return rule.mig is MigOffer.DYNAMIC and not gpu.mig_needs_reset and not gpu.vgpu_guest


def _is_among(gpu: Gpu, unreadable: Iterable[UnreadableGpu]) -> bool:
    """Tell whether a GPU that is missing may be one that NVML counts; of a lost one it may say nothing more."""
    return any(_is_unnamed(one) or gpu.uuid == one.uuid or gpu.pci_bus_id == one.pci_bus_id for one in unreadable)


def _is_unnamed(one: UnreadableGpu) -> bool:
    return one.uuid is None and one.pci_bus_id is None
