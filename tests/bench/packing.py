"""How much of what is asked for a node takes in, by the order in which its devices are published.

    PYTHONPATH=tests python -m bench.packing [--seeds 10] [--arrivals 8000] [--load 0.9] [--machine 8xh100-80gb]

A calculation, not a measurement: requests arrive at random, keep what they get for a random time, and what does not fit
is lost. Devices are those of a pool as our driver publishes it, tried one after another as the scheduler does, and
counters decide what fits. Every order sees the same requests, so differences are much surer than the figures.
"""

import argparse
import heapq
import io
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from statistics import NormalDist, fmean, stdev
from typing import Final

from bench.figures import aligned
from doubles.machines import gpus

from dradriver.gpu.devices import OfferedDevice
from dradriver.gpu.model import Gpu
from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import Offer, make_offer
from dradriver.gpu.policy import GpuRule, OfferPolicy, Order
from dradriver.gpu.profiles import MigOffer, parse_choice
from dradriver.resource import Device, lay_out

MACHINE: Final = "8xh100-80gb"
SLICES: Final = 8
"""Memory slices of a GPU."""
LOAD: Final = 0.9
"""Memory slices asked for by memory slices there are."""
SEEDS: Final = 10
LEAST_SEEDS: Final = 5
ARRIVALS: Final = 8000
OURS: Final = (Order.PACKED, Order.SPREAD)
LOOSE: Final = ">"
"""What the names of kinds that only say how much begin with."""
VARIANTS: Final = {"1g+me", "double"}
"""What only `--profiles all` offers."""
MEMORY_SLICE: Final = "memory-slice-"
WARM_UP: Final = 0.1
"""The share of requests after which a node that began empty is taken to be as full as it will be."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a request asks for.

    Attributes:
        slices: memory slices that it needs, which is what it counts for.
        fits: tells whether a device would do, were it free.
    """

    slices: int
    fits: Callable[[OfferedDevice], bool]


def partition(compute: int, memory: int, suffix: str = "") -> Kind:
    """A profile: so many compute slices, so many memory slices and such an end of its name."""

    def fits(device: OfferedDevice) -> bool:
        profile, placement = device.profile, device.placement
        return (
            profile is not None
            and placement is not None
            and (profile.compute_slices, placement.size) == (compute, memory)
            and profile.name.partition("+")[2] == suffix
        )

    return Kind(memory, fits)


def at_least(memory: int) -> Kind:
    """Any device with so many memory slices, and so also a whole GPU."""
    return Kind(memory, lambda device: device.placement is None or device.placement.size >= memory)


KINDS: Final = {
    "1g": partition(1, 1),
    "1g+me": partition(1, 1, "me"),
    "double": partition(1, 2),
    "2g": partition(2, 2),
    "3g": partition(3, 4),
    "4g": partition(4, 4),
    "7g": partition(7, 8),
    "whole": Kind(8, lambda device: device.profile is None),
    ">=1": at_least(1),
    ">=2": at_least(2),
    ">=4": at_least(4),
}
"""Of GPUs with eight memory slices."""

MIXES: Final[Mapping[str, Mapping[str, int]]] = {
    "uniform": {"1g": 20, "2g": 20, "3g": 20, "4g": 20, "7g": 20},
    "inference": {"1g": 60, "2g": 25, "3g": 15},
    "training": {"1g": 15, "2g": 15, "3g": 20, "4g": 20, "7g": 30},
    "small and half": {"1g": 50, "3g": 50},
    "every profile": {"1g": 30, "1g+me": 10, "double": 15, "2g": 15, "3g": 15, "4g": 10, "7g": 5},
    "with whole GPUs": {"1g": 51, "2g": 21, "3g": 13, "whole": 15},
    "small and 4g": {"1g": 60, "2g": 20, "4g": 20},
    "three in ten loose": {"1g": 14, "2g": 14, "3g": 14, "4g": 14, "7g": 14, ">=1": 10, ">=2": 10, ">=4": 10},
}
"""What people may ask for: name of a kind to how often, in percent. Loose requests only say how much they need."""


@dataclass(frozen=True, slots=True)
class Request:
    """One arrival: when, what, and how long it keeps what it gets; in units of the mean holding time."""

    at: float
    kind: str
    holds: float


def requests(mix: Mapping[str, int], *, rate: float, count: int, seed: int) -> list[Request]:
    """Arrivals at random times, `rate` of them in each unit of time on average."""
    chance = random.Random(seed)
    kinds = chance.choices(list(mix), list(mix.values()), k=count)
    now, made = 0.0, []
    for kind in kinds:
        now += chance.expovariate(rate)
        made.append(Request(now, kind, chance.expovariate(1.0)))
    return made


def arrival_rate(mix: Mapping[str, int], *, capacity: int, load: float) -> float:
    """How many requests have to arrive in a mean holding time to ask for `load` times `capacity` memory slices."""
    slices = sum(KINDS[kind].slices * share for kind, share in mix.items())
    return load * capacity * sum(mix.values()) / slices


class Ledger:
    """What is left of one counter set, all counters in one integer: a byte for each, its highest bit a guard.

    Taking more than there is clears a counter's guard, so one comparison checks them all.
    """

    def __init__(self, counters: Mapping[str, int]) -> None:
        self._offset = {name: 8 * index for index, name in enumerate(counters)}
        self.guards = sum(0x80 << offset for offset in self._offset.values())
        self.left = self.guards + self.amount(counters)

    def amount(self, counters: Mapping[str, int]) -> int:
        """Write quantities in the same form."""
        assert max(counters.values(), default=0) < 0x80
        return sum(quantity << self._offset[name] for name, quantity in counters.items())


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that would do.

    Attributes:
        ledger: where it takes from.
        amount: what it takes, in the ledger's form.
        slices: how many memory slices that is.
    """

    ledger: Ledger
    amount: int
    slices: int


class Node:
    """A node's pool, as far as it decides what is given to whom."""

    def __init__(self, offer: Offer) -> None:
        slices = lay_out(offer.pool)
        self._ledgers = {one.name: Ledger(one.counters) for part in slices for one in part.counter_sets}
        self._devices = [
            (offer.devices[device.name], self._candidate(device)) for part in slices for device in part.devices
        ]

    def _candidate(self, device: Device) -> Candidate:
        (consumption,) = device.consumes
        ledger = self._ledgers[consumption.counter_set]
        slices = sum(name.startswith(MEMORY_SLICE) for name in consumption.counters)
        return Candidate(ledger, ledger.amount(consumption.counters), slices)

    def candidates(self, kind: str) -> list[Candidate]:
        """The devices that a request would accept, in the order in which they are tried."""
        return [candidate for device, candidate in self._devices if KINDS[kind].fits(device)]


def place(candidates: Iterable[Candidate]) -> Candidate | None:
    """Take the first that is free, as the scheduler does."""
    for candidate in candidates:
        ledger = candidate.ledger
        left = ledger.left - candidate.amount
        if left & ledger.guards == ledger.guards:
            ledger.left = left
            return candidate
    return None


@dataclass(slots=True)
class Outcome:
    """Memory slices that were asked for and given, and of loose requests also those taken from the node for that."""

    asked: int = 0
    given: int = 0
    loose_given: int = 0
    loose_taken: int = 0

    def note(self, kind: str, candidate: Candidate | None) -> None:
        """Count one request."""
        slices = KINDS[kind].slices
        self.asked += slices
        if candidate is None:
            return
        self.given += slices
        if kind.startswith(LOOSE):
            self.loose_given += slices
            self.loose_taken += candidate.slices

    @property
    def percent(self) -> float:
        """Acceptance, weighted with memory slices."""
        return 100 * self.given / self.asked


def serve(offer: Offer, arrivals: Sequence[Request]) -> Outcome:
    """Let requests come to a node that is empty at first; those before it has filled are not counted."""
    node, outcome = Node(offer), Outcome()
    candidates = {kind: node.candidates(kind) for kind in {request.kind for request in arrivals}}
    held: list[tuple[float, int, Candidate]] = []
    for index, request in enumerate(arrivals):
        while held and held[0][0] <= request.at:
            _, _, ended = heapq.heappop(held)
            ended.ledger.left += ended.amount
        found = place(candidates[request.kind])
        if found is not None:
            heapq.heappush(held, (request.at + request.holds, index, found))
        if index >= len(arrivals) * WARM_UP:
            outcome.note(request.kind, found)
    return outcome


@cache
def gpus_of(machine: str) -> tuple[Gpu, ...]:
    """The GPUs of a simulated machine, read without a word."""
    with redirect_stdout(io.StringIO()):
        return gpus(machine)


def publish(machine: str, order: Order, profiles: str) -> Offer:
    """The pool that our driver publishes on a simulated machine; profiles as `--profiles` takes them."""
    found = gpus_of(machine)
    rule = GpuRule(mig=MigOffer.DYNAMIC, profiles=parse_choice(profiles))
    policy = OfferPolicy(default=rule, order=order)
    return make_offer(found, pool="bench", policy=policy, numbers=number_gpus(found, {}))


def used_profiles(machine: str, mix: Mapping[str, int]) -> str:
    """The profiles a mix names, as `--profiles` takes them."""
    devices = publish(machine, Order.PACKED, "all").devices.values()
    kinds = [KINDS[kind] for kind in mix if not kind.startswith(LOOSE)]
    used = {device.profile.name for device in devices if device.profile and any(kind.fits(device) for kind in kinds)}
    return ",".join(sorted(used))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What came of one mix, by order: one outcome for each seed, the same requests at the same place."""

    mix: str
    outcomes: Mapping[Order, Sequence[Outcome]]

    def acceptance(self, order: Order) -> float:
        """Percent on average."""
        return fmean(outcome.percent for outcome in self.outcomes[order])

    def gain(self, order: Order) -> tuple[float, float]:
        """How many points more than with NVIDIA's order: the mean, and half the width of its 95 % interval."""
        pairs = zip(self.outcomes[order], self.outcomes[Order.NVIDIA], strict=True)
        return interval([ours.percent - theirs.percent for ours, theirs in pairs])

    def excess(self, order: Order) -> float:
        """How many times what a loose request asks for it takes from the node; there must be such requests."""
        given = sum(outcome.loose_given for outcome in self.outcomes[order])
        return sum(outcome.loose_taken for outcome in self.outcomes[order]) / given

    def row(self) -> tuple[str, ...]:
        """A line of a table."""
        means = (f"{self.acceptance(order):.1f}" for order in Order)
        gains = ("{:+.2f} ± {:.2f}".format(*self.gain(order)) for order in OURS)
        return (self.mix, *means, *gains)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean of a few independent values, and half the width of its 95 % confidence interval (Student's t)."""
    return fmean(values), student(len(values) - 1) * stdev(values) / len(values) ** 0.5


def student(freedom: int) -> float:
    """Quantile 0.975 of Student's t distribution: the usual expansion around the normal one, good from 4 on."""
    z = NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def compare(mix: str, profiles: str, *, machine: str, load: float, seeds: int, arrivals: int) -> Comparison:
    """Let every order serve the same requests; profiles as `--profiles` takes them."""
    offers = {order: publish(machine, order, profiles) for order in Order}
    rate = arrival_rate(MIXES[mix], capacity=SLICES * len(gpus_of(machine)), load=load)
    traces = [requests(MIXES[mix], rate=rate, count=arrivals, seed=seed) for seed in range(seeds)]
    return Comparison(
        mix=mix, outcomes={order: [serve(offer, trace) for trace in traces] for order, offer in offers.items()}
    )


def show(title: str, comparisons: Iterable[Comparison]) -> None:
    """Print a table."""
    gains = (f"{order} - {Order.NVIDIA}" for order in OURS)
    headings = ("mix", *Order, *gains)
    print(f"\n{title}")
    print(aligned([headings, *(comparison.row() for comparison in comparisons)]))


def measure(*, machine: str = MACHINE, load: float = LOAD, seeds: int = SEEDS, arrivals: int = ARRIVALS) -> None:
    """Print what each order accepts, first with the usual profiles published, then with those in use only."""
    run = partial(compare, machine=machine, load=load, seeds=seeds, arrivals=arrivals)
    every = {mix for mix, shares in MIXES.items() if not VARIANTS.isdisjoint(shares)}
    usual = [run(mix, "all" if mix in every else "standard") for mix in MIXES]
    used = [run(mix, used_profiles(machine, MIXES[mix])) for mix in MIXES if mix not in every]
    show(f"Packing, calculated: {machine}, load {load:g}, {seeds} seeds", usual)
    show("The same with no other profiles published than the mix asks for", used)
    print("  percent of the memory slices asked for that were given; differences with 95 % intervals")
    for found in usual:
        if any(kind.startswith(LOOSE) for kind in MIXES[found.mix]):
            times = ", ".join(f"{found.excess(order):.2f} ({order})" for order in Order)
            print(f"  a loose request takes so many times what it asks for: {times}")


def runs(text: str) -> int:
    """A number of seeds that gives an interval."""
    if not text.isdigit() or int(text) < LEAST_SEEDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least {LEAST_SEEDS}")
    return int(text)


def main() -> int:
    """Run by hand."""
    parser = argparse.ArgumentParser(prog="bench.packing", description="Compare the orders of devices.")
    parser.add_argument("--machine", default=MACHINE, help="GPUs with eight memory slices (default: %(default)s)")
    parser.add_argument("--load", type=float, default=LOAD, help="slices asked for by slices there are")
    parser.add_argument("--seeds", type=runs, default=SEEDS, help="runs of each mix (default: %(default)s)")
    parser.add_argument("--arrivals", type=int, default=ARRIVALS, help="requests in each run (default: %(default)s)")
    measure(**vars(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
