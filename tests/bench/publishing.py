"""What publishing costs: a node of sixteen GPUs, our publisher in this process, a real API server."""

import contextlib
import io
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog
from bench.figures import aligned, in_unit
from bench.world import DRIVER, Cluster
from doubles.machines import gpus

from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import make_offer
from dradriver.gpu.policy import Detail, GpuRule, OfferPolicy
from dradriver.gpu.profiles import MigOffer, parse_choice
from dradriver.kube import Client
from dradriver.kube.connection import connect
from dradriver.kube.transport import Answer, Request, Stream, Transport
from dradriver.publish import Publisher
from dradriver.resource import Slice, Taint, lay_out

MACHINE: Final = "16xh100-80gb"
OFFERS: Final = {
    "standard, full": ("standard", Detail.FULL),
    "standard, lean": ("standard", Detail.LEAN),
    "all, full": ("all", Detail.FULL),
}
FIRST: Final = "for the first time"
SAME: Final = "the same again"
TAINT: Final = "a taint on one GPU"
ALL: Final = "a taint on every GPU"
_LIMIT: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one change: milliseconds until it is published, and of this process's processor time; bytes that were sent."""

    time: float
    cpu: float
    writes: int
    sent: int


@dataclass(kw_only=True)
class Counted:
    """A transport that counts what changes something."""

    transport: Transport
    writes: int = 0
    sent: int = 0

    def send(self, request: Request) -> Answer:
        if request.method != "GET":
            self.writes += 1
            self.sent += len(request.body or b"")
        return self.transport.send(request)

    def open(self, request: Request) -> Stream:
        return self.transport.open(request)

    def close(self) -> None:
        self.transport.close()


def measure(cluster: Cluster, kubeconfig: Path, *, rounds: int) -> dict[str, dict[str, list[Cost]]]:
    """Publish, and change what is published; costs by offer and change."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return {
        name: _changes(cluster, kubeconfig, slices_of(profiles, detail), rounds=rounds)
        for name, (profiles, detail) in OFFERS.items()
    }


def slices_of(profiles: str, detail: Detail) -> tuple[Slice, ...]:
    """What the node offers."""
    with contextlib.redirect_stdout(io.StringIO()):
        found = gpus(MACHINE)
    policy = OfferPolicy(default=GpuRule(mig=MigOffer.DYNAMIC, profiles=parse_choice(profiles)), detail=detail)
    return lay_out(make_offer(found, pool="any", policy=policy, numbers=number_gpus(found, {})).pool)


def show(found: Mapping[str, Mapping[str, Sequence[Cost]]]) -> None:
    """Print medians."""
    print(f"\nPublishing {MACHINE} (medians)")
    rows = [("what", "writes", "sent", "time", "processor time")]
    rows += [_row(f"{name}: {change}", costs) for name, changes in found.items() for change, costs in changes.items()]
    print(aligned(rows))


def _changes(cluster: Cluster, kubeconfig: Path, slices: Sequence[Slice], *, rounds: int) -> dict[str, list[Cost]]:
    found: dict[str, list[Cost]] = {FIRST: [], SAME: [], TAINT: [], ALL: []}
    for _ in range(rounds):
        cluster.remove_slices()
        with _publisher(cluster, kubeconfig) as (publisher, counted):
            publish = _publishing(publisher, counted)
            found[FIRST].append(publish(slices))
            found[SAME].append(publish([replace(part) for part in slices]))
            found[TAINT].append(publish([*slices[:-1], _tainted(slices[-1])]))
            found[ALL].append(publish([_tainted(part) for part in slices]))
    cluster.remove_slices()
    return found


@contextlib.contextmanager
def _publisher(cluster: Cluster, kubeconfig: Path) -> Iterator[tuple[Publisher, Counted]]:
    client = connect(kubeconfig)
    counted = Counted(transport=client._transport)
    names = {"driver": DRIVER, "node_name": cluster.name, "pool_name": cluster.name}
    publisher = Publisher(Client(counted), **names)
    publisher.start()
    try:
        yield publisher, counted
    finally:
        publisher.stop(_LIMIT)
        client.close()


def _publishing(publisher: Publisher, counted: Counted) -> Callable[[Sequence[Slice]], Cost]:
    def publish(slices: Sequence[Slice]) -> Cost:
        writes, sent, cpu, begin = counted.writes, counted.sent, time.process_time(), time.perf_counter()
        publisher.set_slices(tuple(slices))
        if not publisher.wait_published(_LIMIT):
            raise TimeoutError(f"bench: not published in {_LIMIT:.0f} s: {publisher.status.message}")
        return Cost(
            time=(time.perf_counter() - begin) * 1000,
            cpu=(time.process_time() - cpu) * 1000,
            writes=counted.writes - writes,
            sent=counted.sent - sent,
        )

    return publish


def _tainted(part: Slice) -> Slice:
    taint = Taint(key="gpu.nvidia.com/xid", value="79", effect="NoSchedule")
    return replace(part, devices=tuple(replace(device, taints=(taint,)) for device in part.devices))


def _row(what: str, costs: Sequence[Cost]) -> tuple[str, ...]:
    return (
        what,
        str(round(statistics.median(cost.writes for cost in costs))),
        f"{statistics.median(cost.sent for cost in costs) / 1024:.0f} KiB",
        in_unit(statistics.median(cost.time for cost in costs), "ms"),
        in_unit(statistics.median(cost.cpu for cost in costs), "ms"),
    )
