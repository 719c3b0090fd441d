"""How soon an error of a GPU is a taint in the API server: injected into the simulated hardware, seen on a watch."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from bench.figures import Figure
from bench.world import Cluster, Folders, until
from doubles.kubelet import HealthStream

from dradriver.gpu.health import HealthWishes
from dradriver.health import Around, Monitor
from dradriver.health.requests import Requests
from dradriver.kube import RESOURCE_SLICES, Reflector, Store
from dradriver.kube.connection import connect
from dradriver.nvml import open_nvml
from dradriver.simulation import administration
from dradriver.simulation.state import State
from dradriver.simulation.store import Store as Hardware

FATAL: Final = 79
SETTLE_SECONDS: Final = 0.5
_UNHEALTHY: Final = 2
_LIMIT: Final = 60.0


def measure(folders: Folders, cluster: Cluster, kubeconfig: Path, *, rounds: int) -> tuple[Figure, ...]:
    """Let GPUs fall off the bus in turn, and reset them when all have.

    Args:
        folders: of the plugin that runs, and of its simulated node.
        cluster: where it publishes.
        kubeconfig: of the API server.
        rounds: errors to measure.

    Returns:
        Milliseconds from the change of the hardware until all devices of its GPU are seen to have the taint
        (NoExecute), until the kubelet is told of them, and from the reset until they are seen without.
    """
    hardware = Hardware(folders.simulation)
    count = len(hardware.read().gpus)
    sick, well = [], []
    with _watching(cluster, kubeconfig) as wait:
        while len(sick) < rounds:
            for gpu in range(min(count, rounds - len(sick))):
                begin = time.perf_counter()
                change(hardware, lambda state, gpu=gpu: administration.raise_xid(state, gpu, number=FATAL))
                sick.append((wait(gpu, True) - begin) * 1000)
            for gpu in range(count):
                begin = time.perf_counter()
                change(hardware, lambda state, gpu=gpu: administration.reset(state, gpu))
                well.append((wait(gpu, False) - begin) * 1000)
            # A reset ends the session with NVML, and what happens before the next one listens nobody hears.
            time.sleep(SETTLE_SECONDS)
    return (
        Figure(what=f"Xid {FATAL} -> taints of all {_devices(cluster)} devices of a GPU", values=tuple(sick)),
        Figure(what=f"Xid {FATAL} -> message to the kubelet", values=tuple(_to_kubelet(folders, hardware, count))),
        Figure(what="reset -> taints gone", values=tuple(well)),
    )


def monitor(simulation: Path, *, rounds: int) -> tuple[Figure, int]:
    """Look at well GPUs again and again, in this process.

    Returns:
        Milliseconds of processor time for one look, and how many GPUs there are.
    """
    nvml = open_nvml(simulation=simulation, library=None)
    with tempfile.TemporaryDirectory() as folder, closing(nvml):
        numbers = {gpu.uuid: number for number, gpu in enumerate(nvml.inventory().gpus)}
        watched = Monitor(
            Around(
                boot_id="bench",
                file=Path(folder) / "health.json",
                hardware=lambda: nvml,
                numbers=lambda: numbers,
                ears=_Ears(),
                place=lambda _gpu, _instance: None,
                claims=lambda _gpu, _place: (),
                wishes=HealthWishes,
                annotation=lambda: None,
                requests=Requests(Path(folder) / "requests"),
                is_our_turn=lambda: True,
                on_problem=lambda _text: None,
                on_unknown=lambda _names: None,
                on_marks=lambda _marks: None,
                on_news=lambda: None,
                on_look=lambda: None,
            )
        )
        watched.load()
        watched.look()
        values = []
        for _ in range(rounds):
            begin = time.process_time()
            watched.look()
            values.append((time.process_time() - begin) * 1000)
    return Figure(what="one look at all GPUs, processor time", values=tuple(values)), len(numbers)


class _Ears:
    silence = 0.0

    def why_unheard(self, gpu_uuid: str) -> str | None:
        return None


def _to_kubelet(folders: Folders, hardware: Hardware, count: int) -> Iterator[float]:
    with HealthStream(folders.socket) as stream:
        stream.wait_for(lambda one: one.newest)
        for gpu in range(count):
            begin = time.perf_counter()
            change(hardware, lambda state, gpu=gpu: administration.raise_xid(state, gpu, number=FATAL))
            stream.wait_for(lambda one, gpu=gpu: one.newest[f"gpu-{gpu}"].health == _UNHEALTHY)
            yield (time.perf_counter() - begin) * 1000
        for gpu in range(count):
            change(hardware, lambda state, gpu=gpu: administration.reset(state, gpu))


def change(hardware: Hardware, happen: Callable[[State], State]) -> None:
    """Let something happen to the simulated hardware."""
    hardware.update(lambda state: (happen(state), None))


def _devices(cluster: Cluster) -> int:
    return sum(name == "gpu-0" or name.startswith("gpu-0-") for name in cluster.devices())


@contextmanager
def _watching(cluster: Cluster, kubeconfig: Path) -> Iterator[Callable[[int, bool], float]]:
    """Give a function that waits until all devices of a GPU are tainted, or none is, and says when that was seen."""
    client, store, news = connect(kubeconfig), Store(), threading.Condition()
    seen = [0.0]

    def note(_key: str) -> None:
        with news:
            seen[0] = time.perf_counter()
            news.notify_all()

    reflector = Reflector(client, RESOURCE_SLICES, store, selector=cluster.slice_selector, on_change=note)
    reflector.start()

    def wait(gpu: int, tainted: bool) -> float:  # noqa: FBT001
        with news:
            if not news.wait_for(lambda: _is(store, gpu, tainted=tainted), _LIMIT):
                raise TimeoutError(f"bench: gpu-{gpu} is not {'tainted' if tainted else 'well'} in {_LIMIT:.0f} s")
            return seen[0]

    try:
        until(lambda: reflector.has_synced)
        yield wait
    finally:
        reflector.stop(_LIMIT)
        client.close()


def _is(store: Store, gpu: int, *, tainted: bool) -> bool:
    mine = [
        {taint["effect"] for taint in device.get("taints") or ()}
        for item in store.snapshot().values()
        for device in item["spec"].get("devices") or ()
        if device["name"] == f"gpu-{gpu}" or device["name"].startswith(f"gpu-{gpu}-")
    ]
    return bool(mine) and all("NoExecute" in effects if tainted else not effects for effects in mine)
