"""The plugin as a process: how long it takes to come up, what it costs while nothing happens."""

import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.figures import Figure
from bench.world import DRIVER, Cluster, Folders, until
from doubles.kubelet import Kubelet

from dradriver.kube import RESOURCE_SLICES, UnreachableError

_STOP_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How the plugin is started."""

    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """The plugin, until the block ends."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(self.command, env=dict(self.environment), stderr=log, stdout=log)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Milliseconds after exec; `cpu` is the processor time used until the DRA socket was there."""

    socket: float
    cpu: float
    registered: float
    published: float


def starts(program: Program, folders: Folders, cluster: Cluster, *, rounds: int) -> list[Figure]:
    """Start and stop the plugin; the first round, which compiles, does not count."""
    measured = [_start(program, folders, cluster) for _ in range(rounds + 1)][1:]
    names = {
        "socket": "exec -> DRA socket up",
        "cpu": "    processor time of that",
        "registered": "exec -> registered",
        "published": "exec -> all slices on a watch",
    }
    return [Figure(what=text, values=tuple(getattr(one, name) for one in measured)) for name, text in names.items()]


def _start(program: Program, folders: Folders, cluster: Cluster) -> Start:
    cluster.remove_slices()
    kubelet = Kubelet(registry=folders.registry, interval=0.005).start()
    seen = SliceWatch(cluster)
    try:
        begin = time.monotonic()
        with program.running() as process:
            socket = until(folders.socket.exists)
            cpu = cpu_milliseconds(process.pid)
            kubelet.wait_for(lambda double: process.poll() is not None or _knows_driver(double))
            registered = time.monotonic()
            kubelet.stop()
            published = seen.wait()
            return Start(
                socket=(socket - begin) * 1000,
                cpu=cpu,
                registered=(registered - begin) * 1000,
                published=(published - begin) * 1000,
            )
    finally:
        seen.close()
        kubelet.stop()


def _knows_driver(kubelet: Kubelet) -> bool:
    return any(known.driver == DRIVER for known in kubelet.plugins.values())


class SliceWatch:
    """Notes when the last slice of a node's pool came."""

    def __init__(self, cluster: Cluster) -> None:
        version = cluster.client.list(RESOURCE_SLICES, selector=cluster.slice_selector).resource_version
        self._watch = cluster.client.watch(
            RESOURCE_SLICES, selector=cluster.slice_selector, resource_version=version, seconds=120
        )
        self._complete = threading.Event()
        self._at = 0.0
        self._thread = threading.Thread(target=self._follow, name="slices", daemon=True)
        self._thread.start()

    def wait(self) -> float:
        """Monotonic time at which the pool was complete."""
        if not self._complete.wait(60):
            raise TimeoutError("bench: the slices did not come; see the plugin's log")
        return self._at

    def close(self) -> None:
        self._watch.abort()
        self._thread.join(10)

    def _follow(self) -> None:
        names: set[str] = set()
        try:
            with self._watch as watch:
                for event in watch.events():
                    if event.type not in {"ADDED", "MODIFIED"}:
                        continue
                    names.add(event.object["metadata"]["name"])
                    if len(names) == event.object["spec"]["pool"]["resourceSliceCount"]:
                        self._at = time.monotonic()
                        self._complete.set()
        except UnreachableError:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """MiB, and what the process does while nothing happens: milliseconds of processor time, and wake-ups, a second."""

    rss: float
    pss: float
    anonymous: float
    cpu_per_second: float
    wakeups: float
    threads: int


def idle(pid: int, *, settle: float, seconds: float) -> Idle:
    """Look at a process after a while, and again."""
    time.sleep(settle)
    cpu, switches, begin = cpu_milliseconds(pid), _switches(pid), time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - begin
    memory = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return Idle(
        rss=_mebibytes(memory, "Rss"),
        pss=_mebibytes(memory, "Pss"),
        anonymous=_mebibytes(memory, "Anonymous"),
        cpu_per_second=(cpu_milliseconds(pid) - cpu) / passed,
        wakeups=(_switches(pid) - switches) / passed,
        threads=len(_tasks(pid)),
    )


def rss(pid: int) -> float:
    """MiB."""
    return _mebibytes(Path(f"/proc/{pid}/smaps_rollup").read_text(), "Rss")


def _mebibytes(memory: str, key: str) -> float:
    match = re.search(rf"^{key}:\s+(\d+) kB$", memory, re.MULTILINE)
    if match is None:
        raise RuntimeError(f"bench: this kernel does not tell {key}")
    return int(match[1]) / 1024


def _tasks(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def cpu_milliseconds(pid: int) -> float:
    """Processor time of all threads that live, to the nanosecond; `stat` counts in hundredths of a second."""
    return sum(_first_number(task / "schedstat") for task in _tasks(pid)) / 1e6


def _switches(pid: int) -> int:
    return sum(_voluntary(task / "status") for task in _tasks(pid))


def _voluntary(status: Path) -> int:
    return _or_gone(lambda: int(status.read_text().split("voluntary_ctxt_switches:")[1].split()[0]))


def _first_number(file: Path) -> int:
    return _or_gone(lambda: int(file.read_text().split()[0]))


def _or_gone(read: Callable[[], int]) -> int:
    """A thread may end while one looks."""
    try:
        return read()
    except (FileNotFoundError, ProcessLookupError):
        return 0
