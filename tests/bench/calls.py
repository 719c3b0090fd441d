"""Prepare and Unprepare over the plugin's socket, with real claims on a real API server."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice

from bench.figures import Figure, timed
from bench.world import Caller, Cluster

from dradriver.kubelet import ClaimReference

Claims = Sequence[ClaimReference]


def floor(caller: Caller, *, rounds: int) -> Figure:
    """What gRPC costs: a call without a claim."""
    caller.prepare([])
    return Figure(
        what="empty Prepare (gRPC alone)", values=tuple(timed(lambda: caller.prepare([])) for _ in range(rounds))
    )


def claim_gets(cluster: Cluster, claim: ClaimReference, *, rounds: int) -> Figure:
    """What the API server costs: the GET of a claim by this process."""
    cluster.read(claim)
    values = tuple(timed(lambda: cluster.read(claim)) for _ in range(rounds))
    return Figure(what="GET of a claim, by this program", values=values)


def first(caller: Caller, claim: ClaimReference) -> Figure:
    """The first Prepare of a process, which looks for the driver's files and connects to the API server."""
    value = timed(lambda: caller.prepare([claim]))
    caller.unprepare([claim])
    return Figure(what="first Prepare of the process", values=(value,))


def singles(caller: Caller, what: str, claims: Claims, *, rounds: int) -> list[Figure]:
    """One claim after another: prepare, repeat, unprepare."""
    times = [_cycle(caller, [claim]) for claim in islice(cycle(claims), rounds)]
    return [
        Figure(what=f"{verb} {what}", values=column)
        for verb, column in zip(("Prepare", "Repeated Prepare", "Unprepare"), zip(*times, strict=True), strict=True)
    ]


def _cycle(caller: Caller, claims: Claims) -> tuple[float, float, float]:
    return (
        timed(lambda: caller.prepare(claims)),
        timed(lambda: caller.prepare(claims)),
        timed(lambda: caller.unprepare(claims)),
    )


def together(caller: Caller, what: str, claims: Claims, *, rounds: int) -> list[Figure]:
    """All claims at once: a call for each at the same time, and all in one call."""
    with ThreadPoolExecutor(len(claims)) as pool:
        list(pool.map(caller.prepare, [[] for _ in claims]))
        concurrent = [_concurrent(caller, pool, claims) for _ in range(rounds)]
    single = [_single(caller, claims) for _ in range(rounds)]
    count = len(claims)
    return [
        Figure(what=f"{count} x {what}, {count} calls: Prepare, all done", values=_column(concurrent, 0)),
        Figure(what=f"{count} x {what}, {count} calls: Unprepare, all done", values=_column(concurrent, 1)),
        Figure(what=f"{count} x {what}, one call: Prepare", values=_column(single, 0)),
        Figure(what=f"{count} x {what}, one call: Unprepare", values=_column(single, 1)),
    ]


def _concurrent(caller: Caller, pool: ThreadPoolExecutor, claims: Claims) -> tuple[float, float]:
    return timed(lambda: _each(pool, caller.prepare, claims)), timed(lambda: _each(pool, caller.unprepare, claims))


def _each(pool: ThreadPoolExecutor, call: Callable[[Claims], None], claims: Claims) -> None:
    list(pool.map(call, [[claim] for claim in claims]))


def _single(caller: Caller, claims: Claims) -> tuple[float, float]:
    return timed(lambda: caller.prepare(claims)), timed(lambda: caller.unprepare(claims))


def _column(rows: Iterable[tuple[float, ...]], index: int) -> tuple[float, ...]:
    return tuple(row[index] for row in rows)
