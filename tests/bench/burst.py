"""Many claims at once on GPUs that take their time: how near the plugin comes to what the hardware takes at least.

Changes of one GPU are made one after another, those of different GPUs side by side. So the GPU with the most claims
sets a limit; what a burst takes beyond it is the plugin's, the API server's and the simulation's.
"""

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.calls import Claims
from bench.figures import Figure, timed
from bench.world import PROFILE, Caller
from doubles.machines import simulation_main

MODE: Final = 2000.0
CREATE: Final = 300.0
DESTROY: Final = 1000.0
LATENCIES: Final = {
    "nvmlDeviceSetMigMode": MODE,
    "nvmlDeviceCreateGpuInstanceWithPlacement": CREATE,
    "nvmlGpuInstanceDestroy": DESTROY,
}
"""Milliseconds, as seen on real GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """One burst, measured several times.

    Attributes:
        claims: how many at once.
        most: how many of them on one GPU.
        slow: whether the GPUs take their time.
        prepare: until all are prepared.
        unprepare: until all are unprepared.
    """

    claims: int
    most: int
    slow: bool
    prepare: Figure
    unprepare: Figure

    @property
    def limit(self) -> float:
        """Milliseconds that the fullest GPU takes at least to make its partitions."""
        return (MODE + self.most * CREATE) * self.slow

    @property
    def ratio(self) -> Figure:
        """How many times the limit it takes until all are prepared."""
        return Figure(what="ratio", values=tuple(value / self.limit for value in self.prepare.values), unit="x")

    @property
    def overhead(self) -> Figure:
        """Milliseconds beyond the limit for each claim."""
        values = tuple((value - self.limit) / self.claims for value in self.prepare.values)
        return Figure(what="overhead for each claim", values=values)

    def lines(self) -> Iterator[str]:
        """What the figures mean, for people."""
        if not self.slow:
            yield f"  {self.claims} claims on instant GPUs: {self.overhead.median:.2f} ms for each claim"
            return
        back = self.most * DESTROY + MODE
        yield (
            f"  {self.claims} claims, {self.most} on a GPU: Prepare {self.ratio.median:.2f} times the serial limit of "
            f"{self.limit / 1000:.1f} s, {self.overhead.median:.1f} ms beyond it for each claim; "
            f"Unprepare {self.unprepare.median / back:.2f} times {back / 1000:.1f} s"
        )


def measure(caller: Caller, simulation: Path, groups: Sequence[Claims], *, rounds: int) -> list[Burst]:
    """Prepare and unprepare one claim of each GPU, then all; at last all with GPUs that take no time.

    Args:
        caller: of the plugin.
        simulation: folder of its simulated machine.
        groups: claims for partitions, by GPU.
        rounds: how often each.
    """
    with _slow(simulation):
        slow = [_burst(caller, some, rounds=rounds, slow=True) for some in ([group[:1] for group in groups], groups)]
    return [*slow, _burst(caller, groups, rounds=rounds, slow=False)]


@contextlib.contextmanager
def _slow(simulation: Path) -> Iterator[None]:
    _set(simulation, LATENCIES)
    try:
        yield
    finally:
        _set(simulation, dict.fromkeys(LATENCIES, 0.0))


def _set(simulation: Path, latencies: dict[str, float]) -> None:
    for name, milliseconds in latencies.items():
        with contextlib.redirect_stdout(io.StringIO()):
            simulation_main(["--state", str(simulation), "latency", name, f"{milliseconds:g}"])


def _burst(caller: Caller, groups: Sequence[Claims], *, rounds: int, slow: bool) -> Burst:
    claims = [claim for group in groups for claim in group]
    with ThreadPoolExecutor(len(claims)) as pool:
        list(pool.map(caller.prepare, [[] for _ in claims]))
        times = [(_all(pool, caller.prepare, claims), _all(pool, caller.unprepare, claims)) for _ in range(rounds)]
    prepare, unprepare = zip(*times, strict=True)
    what = f"{len(claims)} x {PROFILE} at once on {'slow' if slow else 'instant'} GPUs"
    return Burst(
        claims=len(claims),
        most=max(map(len, groups)),
        slow=slow,
        prepare=Figure(what=f"{what}: Prepare", values=prepare),
        unprepare=Figure(what=f"{what}: Unprepare", values=unprepare),
    )


def _all(pool: ThreadPoolExecutor, call: Callable[[Claims], None], claims: Claims) -> float:
    return timed(lambda: list(pool.map(call, [[claim] for claim in claims])))
