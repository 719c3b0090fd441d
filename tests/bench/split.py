"""Where the time of a Prepare goes: the plugin's own parts in this process, each dependency behind a clock."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any, Final

import pytest
from bench.calls import Claims
from bench.figures import Figure
from bench.world import Folders, until

from dradriver import files
from dradriver.flags import parse
from dradriver.kubelet import Failed
from dradriver.prepare.preparer import Preparer
from dradriver.runtime import Runtime

PARTS: Final = ("claim GET", "NVML", "record (fsync)", "CDI file")
OWN: Final = "own overhead"
TOTAL: Final = "total, without gRPC"
_CALL_SECONDS: Final = 45.0


class Clock:
    """Adds up how long each part took, within one call of one thread; parts do not nest."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = defaultdict(float)

    def around(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, timed."""

        def measured(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                self._spent[part] += (time.perf_counter() - start) * 1000

        return measured

    def round(self, call: Callable[[], object]) -> dict[str, float]:
        """Milliseconds of each part of one call, of the rest, and of the whole."""
        self._spent.clear()
        start = time.perf_counter()
        call()
        total = (time.perf_counter() - start) * 1000
        parts = {part: self._spent[part] for part in PARTS}
        return parts | {OWN: total - sum(parts.values()), TOTAL: total}


class TimedHardware:
    """NVML, timed call by call."""

    def __init__(self, hardware: object, clock: Clock) -> None:
        self._hardware = hardware
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return self._clock.around("NVML", getattr(self._hardware, name))


@contextmanager
def composed(folders: Folders, node: str, kubeconfig: str) -> Iterator[tuple[Preparer, Clock]]:
    """What runs behind the sockets, without the sockets, with its dependencies timed."""
    options = parse([*folders.arguments(node, kubeconfig=kubeconfig), "--log-level", "warning"])
    runtime, clock = Runtime(options), Clock()
    preparer = runtime.start()
    try:
        until(lambda: runtime._publisher is not None and runtime._publisher.published, interval=0.05)
        runtime.settle()
        with pytest.MonkeyPatch.context() as patch:
            _put_clocks(patch, clock, preparer)
            assert runtime._offering.node is not None
            patch.setattr(runtime._offering.node, "hardware", TimedHardware(runtime._offering.node.hardware, clock))
            yield preparer, clock
    finally:
        runtime.stop()
        logging.getLogger().handlers.clear()


def _put_clocks(patch: pytest.MonkeyPatch, clock: Clock, preparer: Preparer) -> None:
    specs = preparer._containers.specs
    patch.setattr(preparer, "_read", clock.around("claim GET", preparer._read))
    for name in ("write_durably", "remove_durably"):
        patch.setattr(files, name, clock.around("record (fsync)", getattr(files, name)))
    for name in ("write", "remove"):
        patch.setattr(specs, name, clock.around("CDI file", getattr(specs, name)))


def split(preparer: Preparer, clock: Clock, claims: Claims, *, rounds: int) -> dict[str, list[Figure]]:
    """Prepare, repeat and unprepare one claim after another; the first of each warms up."""
    rows: dict[str, list[dict[str, float]]] = {"Prepare": [], "Repeated Prepare": [], "Unprepare": []}
    for claim in islice(cycle(claims), rounds + 1):
        for verb, taken in rows.items():
            call = preparer.unprepare if verb == "Unprepare" else preparer.prepare
            taken.append(clock.round(lambda call=call, claim=claim: _good(call([claim], deadline=_deadline()))))
    return {verb: _figures(taken[1:]) for verb, taken in rows.items()}


def _deadline() -> float:
    return time.monotonic() + _CALL_SECONDS


def _good(answers: Any) -> None:
    wrong = [answer.message for answer in answers.values() if isinstance(answer, Failed)]
    if wrong:
        raise RuntimeError(f"bench: {wrong}")


def _figures(rows: list[dict[str, float]]) -> list[Figure]:
    return [Figure(what=part, values=tuple(row[part] for row in rows)) for part in (*PARTS, OWN, TOTAL)]
