"""Which quantities of a GPU its partitions share, and which of them can ever run out.

Memory slices bind by nature: two partitions never cover the same one. An engine is counted only where
some set of partitions that fits by memory slices would ask for more of it than the GPU has; every counter
more than that costs the scheduler time for each device, node and pod, and refuses nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from dradriver.gpu.model import MigProfile, Placement

ENGINES: Mapping[str, Callable[[MigProfile], int]] = {
    "multiprocessors": lambda profile: profile.multiprocessors,
    "copy-engines": lambda profile: profile.copy_engines,
    "decoders": lambda profile: profile.decoders,
    "encoders": lambda profile: profile.encoders,
    "jpeg-engines": lambda profile: profile.jpeg_engines,
    "ofa-engines": lambda profile: profile.ofa_engines,
}
"""Counter name to what a profile takes of it. Memory is left out: a driver's rounding can make two halves
larger than the whole, and the memory slices already say it exactly."""


def memory_slice(index: int) -> str:
    """Name the counter of one memory slice."""
    return f"memory-slice-{index}"


def engine_totals(profiles: Iterable[MigProfile]) -> dict[str, int]:
    """Tell how many of each engine a GPU has: as many as its largest profile, by the rule of NVIDIA's driver."""
    profiles = tuple(profiles)
    return {name: max((take(profile) for profile in profiles), default=0) for name, take in ENGINES.items()}


def binding_engines(offered: Sequence[MigProfile], totals: Mapping[str, int]) -> tuple[str, ...]:
    """Find the fewest engine counters that refuse every set of partitions the GPU cannot hold.

    Args:
        offered: the profiles whose placements are published.
        totals: engines of the GPU, as `engine_totals` gives them.

    Returns:
        Counter names in the order of `ENGINES`.
    """
    # Of equally scarce ones the last, ofa-engines, which is the one that binds on every kind of GPU.
    rank = list(ENGINES)
    scarce_first = sorted(rank, key=lambda name: (totals[name], -rank.index(name)))
    chosen: list[str] = []
    for name in scarce_first:
        if _can_run_out(name, offered, totals, within=chosen):
            chosen.append(name)
    for name in tuple(chosen):
        others = [other for other in chosen if other != name]
        if not _can_run_out(name, offered, totals, within=others):
            chosen = others
    return tuple(name for name in ENGINES if name in chosen)


def partition_counters(profile: MigProfile, placement: Placement, engines: Iterable[str]) -> dict[str, int]:
    """Tell what a partition consumes of its GPU's counter set; quantities of zero are left out."""
    counters = {memory_slice(index): 1 for index in placement.slices}
    return counters | {name: amount for name in engines if (amount := ENGINES[name](profile))}


def set_counters(offered: Iterable[MigProfile], engines: Iterable[str], totals: Mapping[str, int]) -> dict[str, int]:
    """Tell what the counter set of a GPU holds, which is also what the whole GPU consumes."""
    length = max(placement.start + placement.size for profile in offered for placement in profile.placements)
    return {memory_slice(index): 1 for index in range(length)} | {name: totals[name] for name in engines}


def _can_run_out(name: str, offered: Sequence[MigProfile], totals: Mapping[str, int], *, within: Sequence[str]) -> bool:
    """Tell whether partitions side by side that respect the counters in `within` can exceed engine `name`.

    Partitions are intervals on a line, so it is enough to walk the line once and to keep, for each
    amount used of the counters in `within`, the largest use of the engine.
    """
    starts: dict[int, list[tuple[int, tuple[int, ...], int]]] = {}
    for profile in offered:
        used = tuple(ENGINES[counter](profile) for counter in within)
        for placement in profile.placements:
            starts.setdefault(placement.start, []).append((placement.size, used, ENGINES[name](profile)))
    most = tuple(totals[counter] for counter in within)
    length = max((start + size for start, entries in starts.items() for size, _, _ in entries), default=0)
    reached: list[dict[tuple[int, ...], int]] = [{} for _ in range(length + 1)]
    reached[0][(0,) * len(most)] = 0
    for position in range(length):
        steps = [(1, (0,) * len(most), 0), *starts.get(position, ())]
        for used, amount in reached[position].items():
            _advance(reached, position, (used, amount), steps, most)
    return any(amount > totals[name] for amount in reached[length].values())


def _advance(
    reached: list[dict[tuple[int, ...], int]],
    position: int,
    state: tuple[tuple[int, ...], int],
    steps: Iterable[tuple[int, tuple[int, ...], int]],
    most: tuple[int, ...],
) -> None:
    used, amount = state
    for size, more, extra in steps:
        total = tuple(a + b for a, b in zip(used, more, strict=True))
        if all(a <= b for a, b in zip(total, most, strict=True)):
            target = reached[position + size]
            target[total] = max(target.get(total, 0), amount + extra)
