"""What watches over the GPUs' health, put together, and everybody who is told of it.

One listener for all: what GPUs report goes to the monitor first, whose verdict is a taint some milliseconds later.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dradriver import api, health
from dradriver.gpu.health import HealthWishes, Place
from dradriver.health import Monitor
from dradriver.health.requests import FOLDER, Requests
from dradriver.listening import Listener
from dradriver.nvml import Event, EventType
from dradriver.observe.metrics import Metrics
from dradriver.offering import Offering, Shown
from dradriver.offering.verdicts import told_health
from dradriver.reporting import NodeReporter, Note

if TYPE_CHECKING:
    from dradriver.kubelet import HealthBoard
    from dradriver.nvml import Nvml
    from dradriver.prepare.errands import Errands
    from dradriver.prepare.health_telling import HealthTeller

FILE: Final = "health.json"
TELL_SECONDS: Final = 0.05
"""After a taint was handed over to the publisher, until people are told."""

CHANGES: Final = EventType.MIG_CONFIG | EventType.GPU_UNAVAILABLE | EventType.RECOVERY_ACTION
"""Events after which another look at the GPUs may show something else."""


@dataclass(slots=True, kw_only=True)
class Around:
    """What this has to do with.

    Attributes:
        folder: the plugin's own.
        boot_id: of the running kernel.
        hardware: opens NVML if that is still to be done; raises NvmlError.
        offering: what gives devices their taints.
        wishes: what the administrator wants otherwise than the table.
        annotation: the order to clear that stands at the node, None while that is not known.
        is_our_turn: whether no newer process of this driver publishes for the node.
        metrics: see Metrics.
        reporter: tells people about the node.
        board: where the kubelet reads how devices are; None without one.
    """

    folder: Path
    boot_id: str
    hardware: "Callable[[], Nvml]"
    offering: Offering
    wishes: Callable[[], HealthWishes]
    annotation: Callable[[], str | None]
    is_our_turn: Callable[[], bool]
    metrics: Metrics
    reporter: NodeReporter
    board: "HealthBoard | None"


class HealthKeeping:
    """Listener and monitor, and who is told.

    Args:
        around: see Around.
    """

    def __init__(self, around: Around) -> None:
        self._around = around
        self._teller: HealthTeller | None = None
        self._errands: Errands | None = None
        self._listener = Listener(
            around.hardware, types=CHANGES | health.TYPES, hear=self._hear, missed=self._on_missed_events
        )
        self._monitor = Monitor(
            health.Around(
                boot_id=around.boot_id,
                file=around.folder / FILE,
                hardware=around.hardware,
                numbers=lambda: around.offering.numbers,
                ears=self._listener,
                place=around.offering.place,
                claims=self._claims,
                wishes=around.wishes,
                annotation=around.annotation,
                requests=Requests(around.folder / FOLDER),
                is_our_turn=around.is_our_turn,
                on_problem=self._on_problem,
                on_unknown=self._on_unknown,
                on_marks=around.offering.mark,
                on_news=self._on_news,
                on_look=lambda: around.metrics.succeeded("health"),
            )
        )

    @property
    def alive(self) -> bool:
        """Whether the thread that asks the GPUs runs."""
        return self._monitor.alive

    def load(self) -> None:
        """Give devices the taints that an earlier process knew of, before anything is offered."""
        self._monitor.load()
        self._around.offering.mark(self._monitor.marks)

    def start(self, teller: "HealthTeller", errands: "Errands") -> None:
        """Watch from now on.

        Args:
            teller: tells those who hold devices.
            errands: the thread that tells.
        """
        teller.resume(self._monitor.marks)
        self._teller, self._errands = teller, errands
        errands.at(self._tell, errands.clock())
        self._listener.start()
        # What was reported between the loading and now, another process of this driver has heard.
        self._monitor.catch_up()
        self._monitor.start()

    def stop(self) -> None:
        """End; what is known is kept."""
        self._listener.stop()
        self._monitor.stop()

    def shown(self, shown: Shown) -> None:
        """Tell kubelet and metrics how the devices are that are offered now."""
        if self._around.board is not None:
            self._around.board.post(told_health(shown, int(time.time())))
        devices = (device for group in shown.node.offer.pool.groups for device in group.devices)
        self._around.metrics.set_tainted_devices((one.key, one.effect) for device in devices for one in device.taints)

    def _hear(self, event: Event) -> None:
        self._monitor.hear(event)
        if event.type & CHANGES:
            gpu_uuid = event.gpu_uuid if event.type is EventType.MIG_CONFIG else ""
            self._around.offering.wake("a GPU tells of a change", gpu_uuid=gpu_uuid)
        kind = (event.type.name or "other").lower().replace("_", "-")
        self._around.metrics.gpu_event(kind, xid=event.data if event.type is EventType.XID else None)

    def _on_missed_events(self) -> None:
        self._monitor.wake()
        self._around.offering.wake("a change may have gone unheard")

    def _claims(self, gpu_uuid: str, place: Place | None) -> Iterable[str]:
        return [record.plan.uid for record in self._around.offering.claims(gpu_uuid, place)]

    def _on_problem(self, text: str) -> None:
        self._around.reporter.set("health file", {"": Note("HealthNotKept", text)} if text else {})

    def _on_unknown(self, names: Sequence[str]) -> None:
        text = (
            f"an order to clear health names {', '.join(names)}, which are no GPUs of this node: name them as in "
            "`dradriver health`, or say `all`"
        )
        self._around.reporter.set("clear", {"": Note("UnknownGpus", text)} if names else {})

    def _on_news(self) -> None:
        if self._errands is not None:
            # The slice is written first: to the API server, an Event is as much work.
            self._errands.at(self._tell, self._errands.clock() + TELL_SECONDS)

    def _tell(self) -> None:
        """Tell what the GPUs deserve by now: those who hold devices, and those who look after the node."""
        marks = self._monitor.marks
        if self._teller is not None:
            self._teller.told(marks)
        every = [(uuid, mark) for uuid, deserved in marks.items() for mark in deserved]
        self._around.reporter.set("health", {mark.text: _note(mark.text, mark.gravity) for _, mark in every})
        unheard = {uuid for uuid, mark in every if mark.key == api.TaintKey.UNMONITORED}
        self._around.metrics.set_gpus_unmonitored(len(unheard))


def _note(text: str, gravity: int) -> Note:
    return Note("GpuUnhealthy" if gravity else "GpuReported", text)
