"""What one pod costs the scheduler, by the way devices are published.

    PYTHONPATH=tests python -m bench --scheduler [--cycles 3] [--percent 100] [--kubeconfig FILE]

Nodes exist as objects only, each with eight GPUs. A batch of pods of one kind, each with a claim
for one device, is there before a kube-scheduler of our own starts; its processor time counts from the first claim it
allocates to the last, so neither the making of objects nor the filling of its caches is in it. Clients are not limited.
Layouts follow one another, cycle after cycle, and only ratios within a cycle are compared: the machine may be shared.
"""

import contextlib
import io
import json
import os
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path
from typing import Final, TypeAlias

from bench.figures import aligned
from doubles.machines import gpus
from support.manifests import request
from support.stage import Stage

from dradriver.gpu import counters
from dradriver.gpu.devices import OfferedDevice
from dradriver.gpu.model import Gpu
from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import Offer, make_offer
from dradriver.gpu.policy import Detail, GpuRule, OfferPolicy, Order
from dradriver.gpu.profiles import MigOffer, parse_choice
from dradriver.kube import Client, Object
from dradriver.resource import CounterConsumption, CounterSet, Device, DeviceGroup, Slice, lay_out, slice_spec

MACHINE: Final = "8xh100-80gb"
NVIDIA: Final = "NVIDIA's"
AIMS: Final = {"standard, full": 0.65, "standard, lean": 0.5}
"""At most so much of what NVIDIA's layout costs, for every kind of pod."""
_MIB: Final = 1 << 20
_PATIENCE: Final = 600.0
_PREFERRED: Final = -10
"""Niceness of the scheduler, where we may set it: what else runs should not interrupt it too often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a pod asks for.

    Attributes:
        expression: CEL, completed with the stage's ways to name attributes and capacities.
        pods: how many of them there are.
        nodes: on how many nodes.
    """

    expression: Callable[[Stage], str]
    pods: int
    nodes: int = 100


def _profile(name: str) -> Callable[[Stage], str]:
    return lambda stage: f"{stage.attribute('type')} == 'mig' && {stage.attribute('profile')} == '{name}'"


def _whole(stage: Stage) -> str:
    return f"{stage.attribute('type')} == 'gpu'"


def _loose(stage: Stage) -> str:
    return f"{stage.capacity('memory')}.compareTo(quantity('9Gi')) >= 0"


KINDS: Final[Mapping[str, Kind]] = {
    "1g": Kind(expression=_profile("1g.10gb"), pods=200),
    "3g": Kind(expression=_profile("3g.40gb"), pods=150),
    "whole": Kind(expression=_whole, pods=100),
    "loose": Kind(expression=_loose, pods=150),
    "1g to 80 %": Kind(expression=_profile("1g.10gb"), pods=900, nodes=20),
    "whole to 94 %": Kind(expression=_whole, pods=150, nodes=20),
}
"""The first four on nodes that stay nearly empty; the last two fill theirs."""
AIMED: Final = ("1g", "3g", "whole", "loose")


# --- layouts --------------------------------------------------------------------------------------


def ours(profiles: str, detail: Detail) -> tuple[Slice, ...]:
    """What our driver publishes of a node."""
    return lay_out(_offer(profiles, detail, Order.PACKED).pool)


def nvidias() -> tuple[Slice, ...]:
    """What NVIDIA's driver publishes of a node: fifteen counters, by name, every profile."""
    offer = _offer("all", Detail.FULL, Order.NVIDIA)
    groups = tuple(_with_all_counters(group, offer) for group in offer.pool.groups)
    return lay_out(replace(offer.pool, groups=groups))


def _offer(profiles: str, detail: Detail, order: Order) -> Offer:
    with contextlib.redirect_stdout(io.StringIO()):
        found = gpus(MACHINE)
    rule = GpuRule(mig=MigOffer.DYNAMIC, profiles=parse_choice(profiles))
    policy = OfferPolicy(default=rule, order=order, detail=detail)
    return make_offer(found, pool="any", policy=policy, numbers=number_gpus(found, {}))


def _with_all_counters(group: DeviceGroup, offer: Offer) -> DeviceGroup:
    (ours_,) = group.counter_sets
    gpu = offer.devices[group.devices[0].name].gpu
    full = CounterSet(name=ours_.name, counters=_all_there_is(gpu))
    devices = tuple(_taking_all(device, offer.devices[device.name], full) for device in group.devices)
    return DeviceGroup(devices=devices, counter_sets=(full,))


def _all_there_is(gpu: Gpu) -> Mapping[str, int]:
    totals = counters.engine_totals(gpu.profiles)
    memory = max(profile.memory_mib for profile in gpu.profiles) * _MIB
    return {"memory": memory} | dict(counters.set_counters(gpu.profiles, tuple(counters.ENGINES), totals))


def _taking_all(device: Device, offered: OfferedDevice, full: CounterSet) -> Device:
    taken = full.counters
    if offered.profile is not None and offered.placement is not None:
        # Quantities of zero are counters too.
        engines = {name: take(offered.profile) for name, take in counters.ENGINES.items()}
        slices = {counters.memory_slice(index): 1 for index in offered.placement.slices}
        taken = {"memory": offered.profile.memory_mib * _MIB} | engines | slices
    return replace(device, consumes=(CounterConsumption(counter_set=full.name, counters=taken),))


LAYOUTS: Final[Mapping[str, Callable[[], tuple[Slice, ...]]]] = {
    NVIDIA: nvidias,
    "standard, full": lambda: ours("standard", Detail.FULL),
    "standard, lean": lambda: ours("standard", Detail.LEAN),
    "all, full": lambda: ours("all", Detail.FULL),
}


# --- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one batch: milliseconds of the scheduler's processor time for each pod, and pods in a second."""

    cpu: float
    rate: float


Costs: TypeAlias = Mapping[str, Mapping[str, Sequence[Cost]]]
"""By layout and kind, in the order of the cycles."""


def measure(
    client: Client,
    kubeconfig: Path,
    *,
    cycles: int,
    percent: int = 100,
    layouts: Collection[str] = tuple(LAYOUTS),
) -> Costs:
    """Measure layouts, one after another, in every cycle.

    Args:
        client: an administrator's.
        kubeconfig: the same one's, for the scheduler.
        cycles: through all layouts.
        percent: of the usual number of nodes and pods.
        layouts: which of them.

    Raises:
        TimeoutError: the scheduler did not finish a batch.
    """
    found: dict[str, dict[str, list[Cost]]] = {layout: {kind: [] for kind in KINDS} for layout in layouts}
    with Stage(client, kubeconfig) as stage:
        classes = {kind: stage.add_class(f"kind-{n}", KINDS[kind].expression(stage)) for n, kind in enumerate(KINDS)}
        for _, layout in product(range(cycles), layouts):
            for nodes, kinds in groupby(KINDS, key=lambda kind: KINDS[kind].nodes):
                with _published(stage, LAYOUTS[layout](), nodes=_part(nodes, percent)):
                    for kind in kinds:
                        cost = _batch(stage, classes[kind], pods=_part(KINDS[kind].pods, percent))
                        print(f"  {layout}, {kind}: {cost.cpu:.1f} ms for each pod, {cost.rate:.1f} pods/s", flush=True)
                        found[layout][kind].append(cost)
    return found


def _part(number: int, percent: int) -> int:
    """So many percent of it, but not so few that nothing can be measured."""
    return max(2, number * percent // 100)


@contextlib.contextmanager
def _published(stage: Stage, slices: Sequence[Slice], *, nodes: int) -> Iterator[None]:
    stage.add_nodes({f"{number:04d}": slices for number in range(nodes)})
    try:
        yield
    finally:
        stage.remove_nodes()


def _batch(stage: Stage, device_class: str, *, pods: int) -> Cost:
    names = [f"pod-{number:04d}" for number in range(pods)]
    stage.add_pods({name: (None, [request("one", device_class)]) for name in names})
    try:
        with stage.watch_claims(seconds=_PATIENCE) as watch, stage.scheduler(niceness=_niceness()) as pid:
            return _followed((event.object for event in watch.events()), pid, pods=pods)
    finally:
        stage.remove_pods(names)


def _followed(claims: Iterator[Object], pid: int, *, pods: int) -> Cost:
    """Look at the scheduler's clock when the first claim is allocated, and when the last one is."""
    allocated: set[str] = set()
    first_cpu = first = 0.0
    for claim in claims:
        if not claim.get("status", {}).get("allocation"):
            continue
        if not allocated:
            first_cpu, first = processor_seconds(pid), time.monotonic()
        allocated.add(claim["metadata"]["name"])
        if len(allocated) == pods:
            seconds, passed = processor_seconds(pid) - first_cpu, time.monotonic() - first
            return Cost(cpu=seconds * 1000 / (pods - 1), rate=(pods - 1) / passed)
    raise TimeoutError(f"bench: the scheduler allocated {len(allocated)} of {pods} claims in {_PATIENCE:.0f} s")


def processor_seconds(pid: int) -> float:
    """What a process has used, threads that have ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _niceness() -> int:
    return _PREFERRED if os.geteuid() == 0 else 0


# --- telling --------------------------------------------------------------------------------------


def run(client: Client, kubeconfig: Path, *, cycles: int, percent: int) -> None:
    """Measure and print."""
    print(f"Processor time of the scheduler for each pod; nodes with {MACHINE}")
    print(aligned([("layout", "devices", "counters consumed", "KiB"), *map(_described, LAYOUTS)]))
    print()
    found = measure(client, kubeconfig, cycles=cycles, percent=percent)
    for kind in KINDS:
        print(f"\n{kind}: {_part(KINDS[kind].pods, percent)} pods, {_part(KINDS[kind].nodes, percent)} nodes; medians")
        print(aligned([("layout", "each pod", "pods/s", "of NVIDIA's", "least - most"), *_rows(kind, found)]))
    print("\nAims")
    print(aligned([("layout", "at most", *AIMED), *(_judged(layout, found) for layout in AIMS)]))


def ratios(found: Costs, layout: str, kind: str) -> list[float]:
    """Of each cycle, what a layout costs for each unit of what NVIDIA's costs."""
    pairs = zip(found[layout][kind], found[NVIDIA][kind], strict=True)
    return [cost.cpu / theirs.cpu for cost, theirs in pairs]


def _described(layout: str) -> tuple[str, ...]:
    slices = LAYOUTS[layout]()
    devices = [device for part in slices for device in part.devices]
    consumed = sum(len(entry.counters) for device in devices for entry in device.consumes)
    specs = [slice_spec(part, driver="gpu.nvidia.com", node_name="node", pool={}) for part in slices]
    size = sum(len(json.dumps(spec, separators=(",", ":"))) for spec in specs)
    return layout, str(len(devices)), str(consumed), f"{size / 1024:.0f}"


def _rows(kind: str, found: Costs) -> Iterator[tuple[str, ...]]:
    for layout in found:
        costs, of_theirs = found[layout][kind], ratios(found, layout, kind)
        yield (
            layout,
            f"{statistics.median(cost.cpu for cost in costs):.1f} ms",
            f"{statistics.median(cost.rate for cost in costs):.1f}",
            f"{statistics.median(of_theirs):.2f}",
            f"{min(of_theirs):.2f} - {max(of_theirs):.2f}",
        )


def _judged(layout: str, found: Costs) -> tuple[str, ...]:
    medians = {kind: statistics.median(ratios(found, layout, kind)) for kind in AIMED}
    words = [f"{ratio:.2f} {'met' if ratio <= AIMS[layout] else 'missed'}" for ratio in medians.values()]
    return (layout, f"{AIMS[layout]:g}", *words)
