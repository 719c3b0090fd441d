"""The thread that looks, computes, and hands over to the publisher.

It looks again and again; whoever notices something (an NVML event, a changed configuration, a doubtful answer of the
API server) only wakes it. What a claim holds stays published as long as it holds it, whatever else changes.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

import structlog

from dradriver.gpu.health import Marks, Place
from dradriver.gpu.offer import make_offer, mark_offer
from dradriver.kube import Client, KubeError
from dradriver.nodeconfig import Wanted
from dradriver.numbering import GpuMemory
from dradriver.nvml import DriverMismatch, NvmlError, SimulationUnusable
from dradriver.offering import notes
from dradriver.offering.gpus import Gpus, NodeHardware
from dradriver.offering.holders import Allocations, claims_of, handed, place_of, shares
from dradriver.offering.painting import paint
from dradriver.offering.picture import Shown
from dradriver.prepare.node import Node
from dradriver.prepare.records import Record, Records
from dradriver.publish import Features, probe_features
from dradriver.reporting import Note
from dradriver.resource import InvalidPoolError, Layout, Pool, Slice, lay_out, validate

LOOK_SECONDS: Final = 5.0
"""How often the GPUs are looked at when nothing tells of a change."""
RELEASE_SECONDS: Final = 1.0
"""How often records are looked at while a device stays published for the sake of its claim only, or while the order of
devices depends on claims: what they have changed within this time is published together."""
RETRY_SECONDS: Final = 5.0
"""How often NVML or the API server is tried while it is missing."""
SETTLE_SECONDS: Final = 0.3
"""What comes within this time after a change is looked at together."""

_log = structlog.get_logger()


class SlicePublisher(Protocol):
    """Publishes, as `dradriver.publish.Publisher` does."""

    def set_slices(self, slices: Iterable[Slice]) -> None:
        """Offer these instead of what was offered before; returns at once."""


class Reporter(Protocol):
    """Tells people about the node; returns at once, never raises, and says the same only once."""

    def set(self, subject: str, notes: Mapping[str, Note]) -> None:
        """Say all that is not as it should be of one subject; what was said before and is missing now is over."""


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
        on_look: called after each look that went through.
        on_show: called with what was computed, whenever that has changed.
        on_offer: called before the publisher is told what to offer.
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
    on_look: Callable[[], None]
    on_show: Callable[[Shown], None]
    on_offer: Callable[[], None]
    on_outdated: Callable[[], None]
    unready: Callable[[str], None]


class Offering:
    """What the node offers, and the thread that keeps it true.

    `read` and `compute` come first, without an API server, so that claims can be prepared; `attach` and `start` do the
    rest.

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
        self._shown: Shown | None = None
        self._wake = threading.Event()
        self._lock = threading.Lock()
        # Held while it is computed and handed over what is offered, by whichever thread; never during a call.
        self._offering = threading.RLock()
        self._marks: Marks = {}
        self._changed: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offering", daemon=True)
        self._client: Client | None = None
        self._publisher: SlicePublisher | None = None
        self._allocations: Allocations | None = None
        # From here on only the thread touches it, once it runs.
        self._gpus = Gpus(around.hardware, records=around.records, boot_id=around.boot_id)
        self._features: Features | None = None
        self._doubtful = True
        self._slices: tuple[Slice, ...] = ()
        self._offered: Shown | None = None

    @property
    def node(self) -> Node | None:
        """What claims are prepared from; None while the GPUs are unknown."""
        return None if self._shown is None else self._shown.node

    @property
    def numbers(self) -> Mapping[str, int]:
        """UUID to the number in device names, of all GPUs that are there, or that claims hold all the same."""
        return {} if self._shown is None else self._shown.picture.numbers

    @property
    def keeps_taints(self) -> bool:
        """Whether the API server keeps taints, as far as that is known."""
        return self._features is None or self._features.taints

    def place(self, gpu_uuid: str, instance_id: int) -> Place | None:
        """Tell where a GPU instance lies, by its id; None where that is not known."""
        shown = self._shown
        gpu = None if shown is None else shown.node.gpus.get(gpu_uuid)
        return place_of(self._around.records.all(), gpu, self._around.boot_id, instance_id)

    def claims(self, gpu_uuid: str, place: Place | None) -> list[Record]:
        """Tell which claims hold something of a GPU, or that partition of it."""
        return claims_of(self._around.records.all(), gpu_uuid, place)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def attach(self, client: Client, publisher: SlicePublisher) -> None:
        """Say whom to ask and whom to tell; once, before `start`."""
        self._client, self._publisher = client, publisher
        self._allocations = Allocations(
            client, driver=self._around.driver, node_name=self._around.node_name, clock=self._clock
        )

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
        with self._lock:
            self._changed.add(gpu_uuid)
            self._wake.set()

    def mark(self, marks: Marks) -> None:
        """Give devices the taints that their GPUs deserve for their health, at once: no GPU is read for it.

        Args:
            marks: of all GPUs that are not well.
        """
        with self._offering:
            self._marks = marks
            shown, offered = self._shown, self._offered
            if shown is None:
                return
            self._shown = marked = _marked(shown, marks)
            if offered is not None and self._slices:
                # What a look has computed since then is not to be offered before it has asked what claims hold.
                self._offer_marked(marked if offered is shown else _marked(offered, marks))
            self._around.on_show(marked)

    def _offer_marked(self, marked: Shown) -> None:
        if marked.picture.situation.taints:
            self._publish(marked, known=self._slices)
        else:
            self.wake("GPUs are not well, or are well again")

    def doubt(self) -> None:
        """Ask the API server anew what it keeps: it may be another one by now, or have other gates."""
        self._doubtful = True
        self.wake("the API server may be another one")

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._take_changes()
            due = self._clock() + self._try_to_look()
            while not self._is_time(due):
                pass

    def _is_time(self, due: float) -> bool:
        """Wait a while for something to change; returns whether it is time to look, or to end."""
        try:
            return self._has_waited(due)
        except Exception:  # noqa: BLE001 (whatever it was, a look sees more)
            _log.exception("changes cannot be told apart")
            return self._stopping.wait(RETRY_SECONDS) or True

    def _has_waited(self, due: float) -> bool:
        follows = self._shown is not None and (self._shown.keeps_for_claims or self._shown.follows_shares)
        seconds = min(due - self._clock(), RELEASE_SECONDS if follows else LOOK_SECONDS)
        if not self._stopping.is_set() and self._wake.wait(max(0.0, seconds)):
            return self._stopping.wait(SETTLE_SECONDS) or not self._is_ours(self._take_changes())
        return self._stopping.is_set() or self._clock() >= due or (follows and self._is_outdated())

    def _is_outdated(self) -> bool:
        """Tell whether a claim has given up what is published for its sake, or taken or given up a share that counts.

        Asks the records only.
        """
        assert self._allocations is not None  # noqa: S101 (attached)
        assert self._shown is not None  # noqa: S101 (something is published)
        holds = handed(self._gpus.records(), self._allocations.held)
        held = {name for name, _ in holds}
        picture = self._shown.picture
        released = self._shown.node.offer.kept & picture.held.keys() - held
        return bool(released) or (self._shown.follows_shares and shares(holds) != picture.shares)

    def _take_changes(self) -> frozenset[str]:
        """Tell which GPUs have changed since this was asked last, "" for anything else."""
        with self._lock:
            changed = frozenset(self._changed)
            self._changed.clear()
            self._wake.clear()
        return changed

    def _is_ours(self, changed: frozenset[str]) -> bool:
        """Tell whether what has changed is only what this driver makes and undoes for claims, which is the rule."""
        shown = self._shown
        if shown is None or "" in changed:
            return False
        known = {gpu.uuid: gpu for gpu in shown.picture.gpus}
        try:
            return all(uuid in known and self._gpus.is_as_before(known[uuid]) for uuid in changed)
        except NvmlError:
            return False

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
        assert self._allocations is not None  # noqa: S101 (attached)
        self._hold()
        answered = self.read()
        if not self._gpus.were_read:
            return RETRY_SECONDS
        self._ask_features()
        self._allocations.forget_released()
        self.compute()
        shown = self._shown
        if shown is not None and self._is_settled(shown.picture.wanted):
            self._keep_allocated(shown, self._allocations)
            with self._offering:
                self._publish(self._shown or shown)
        self._around.on_look()
        return LOOK_SECONDS if answered else RETRY_SECONDS

    def _is_settled(self, wanted: Wanted) -> bool:
        if not wanted.settled:
            self._around.unready("; ".join(wanted.problems) or "the labels of the node are not known yet")
        return wanted.settled

    # --- reading and computing -------------------------------------------------------------------

    def read(self) -> bool:
        """Read the GPUs; returns whether NVML answered.

        Raises:
            SimulationUnusable: that will not pass by itself.
        """
        try:
            inventory = self._gpus.read()
        except SimulationUnusable:
            raise
        except NvmlError as error:
            self._missed(error)
            return False
        self._around.on_read()
        self._around.reporter.set("driver", {})
        self._around.reporter.set("unreadable", notes.of_inventory(inventory))
        return True

    def _missed(self, error: NvmlError) -> None:
        note = Note("GpusUnavailable", f"the GPUs are not available: {error}")
        self._around.reporter.set("driver", {"": note})
        if not self._gpus.were_read:
            self._around.unready(f"no GPUs: {error}")
        if isinstance(error, DriverMismatch) and (self._gpus.were_read or _is_replaced()):
            _log.warning("the driver was replaced, starting anew", error=str(error))
            self._around.on_outdated()

    def compute(self) -> None:
        """Compute what is offered from what was read last."""
        with self._offering:
            self._compute()

    def _compute(self) -> None:
        if self._gpus.hardware is None:
            return
        picture = paint(
            self._gpus,
            self._around.memory,
            wanted=self._wanted(),
            features=self._features,
            allocated=frozenset() if self._allocations is None else self._allocations.held,
            marks=self._marks,
        )
        if self._shown is not None and self._shown.is_true_to(picture):
            return
        offer = make_offer(
            picture.gpus,
            pool=self._around.node_name,
            policy=picture.wanted.policy,
            numbers=picture.numbers,
            situation=picture.situation,
        )
        gpus = {gpu.uuid: gpu for gpu in picture.gpus}
        self._show(Shown(picture=picture, node=Node(gpus=gpus, offer=offer, hardware=self._gpus.hardware)))
        self._around.reporter.set("offer", notes.of_offer(picture, offer))

    def _show(self, shown: Shown) -> None:
        self._shown = shown
        self._around.on_show(shown)

    # --- publishing ------------------------------------------------------------------------------

    def _ask_features(self) -> None:
        if not self._doubtful:
            return
        assert self._client is not None  # noqa: S101 (attached)
        self._doubtful = False
        try:
            features = probe_features(self._client, self._around.driver, self._around.node_name)
        except BaseException:
            self._doubtful = True
            raise
        if features != self._features:
            _log.info("the API server keeps", layout=features.layout, taints=features.taints, shares=features.shares)
        self._features = features
        # The publisher may have withdrawn what was offered, and is to try again now.
        self._slices = ()

    def _keep_allocated(self, shown: Shown, allocations: Allocations) -> None:
        """See to it that no device vanishes from the slices that a claim holds, be it one that is not prepared yet."""
        if not shown.picture.wanted.hold and allocations.keep(shown.handed):
            self.compute()
        shown = self._shown or shown
        # Records tell by themselves; and what no GPU of the node has nobody can keep.
        known = handed(self._gpus.records()).keys()
        allocations.forget(frozenset(known | (allocations.held - shown.handed)))

    def _publish(self, shown: Shown, *, known: tuple[Slice, ...] = ()) -> None:
        """Hand over what was computed.

        Args:
            shown: what was computed.
            known: slices with the same devices that were valid; those that are the same now are not checked again.
        """
        assert self._allocations is not None  # noqa: S101 (attached)
        if shown.picture.wanted.hold:
            return
        layout = shown.picture.situation.layout or Layout.APART
        slices = lay_out(shown.node.offer.pool, layout)
        try:
            validate((part for part in slices if part.counter_sets or part not in known), layout)
        except InvalidPoolError as error:
            _log.exception("nothing new is offered: the API server would refuse the slices", problems=error.problems)
            self._around.unready(str(error))
            return
        self._hand_over(slices, devices=len(shown.names), gpus=len(shown.node.gpus))
        self._offered = shown
        self._allocations.published(shown.handed)

    def _hold(self) -> None:
        """Offer nothing where that is wanted, whatever state the GPUs are in."""
        wanted = self._wanted()
        if not (wanted.settled and wanted.hold):
            return
        with self._offering:
            self._offered = None
            self._hand_over(lay_out(Pool(name=self._around.node_name, groups=())), hold=True)

    def _hand_over(self, slices: tuple[Slice, ...], **facts: object) -> None:
        assert self._publisher is not None  # noqa: S101 (attached)
        if slices == self._slices:
            return
        _log.info("offering", slices=len(slices), **facts)
        self._around.on_offer()
        self._publisher.set_slices(slices)
        self._slices = slices


def _marked(shown: Shown, marks: Marks) -> Shown:
    picture = replace(shown.picture, marks=marks)
    return Shown(picture=picture, node=replace(shown.node, offer=mark_offer(shown.node.offer, picture.situation)))


def _is_replaced() -> bool:
    # Loads pynvml, which whoever opens NVML does beside other things.
    from dradriver.nvml import is_replaced  # noqa: PLC0415

    return is_replaced()
