"""How soon an error of a GPU is seen in the status of a pod: a real kubelet, which hears it from the health stream."""

import contextlib
import io
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.figures import Figure
from bench.health import FATAL, change
from support.cluster import Cluster
from support.gpunode import Keeper, Setup
from support.manifests import MIG, claim, pod, request
from support.space import Space

from dradriver.kube import PODS, Client, Object, Reflector, Selector, Store
from dradriver.kube.connection import connect
from dradriver.simulation import administration
from dradriver.simulation.store import Store as Hardware

NAME: Final = "watched"
_LIMIT: Final = 120.0


def measure(*, rounds: int) -> Figure:
    """Boot a node, run a pod that tolerates everything, and let its GPU fall off the bus some times.

    Args:
        rounds: each waits longer than the one before until the GPU is believed to be well.

    Returns:
        Milliseconds from the change of the hardware until the pod's status is seen to say Unhealthy.
    """
    with (
        tempfile.TemporaryDirectory(prefix="bn", ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as stack,
    ):
        cluster = Cluster(Path(folder) / "c")
        stack.callback(cluster.down)
        cluster.up()
        machines = Path(folder) / "m"
        machines.mkdir()
        keeper = Keeper(cluster, machines)
        stack.callback(keeper.close)
        with contextlib.redirect_stdout(io.StringIO()):
            node = keeper.use(Setup(machine="1xh100-80gb"))
        space = Space(keeper.server, "bench", labels=keeper.labels)
        stack.callback(space.clear)
        tolerant = request("it", MIG, tolerations=[{"operator": "Exists", "effect": "NoExecute"}])
        space.add(claim(NAME, tolerant), pod(NAME, claims=[NAME], terminationGracePeriodSeconds=0))
        space.running(NAME)
        client = stack.enter_context(contextlib.closing(connect(cluster.kubeconfig)))
        return Figure(
            what=f"Xid {FATAL} -> pod status says Unhealthy (real kubelet)",
            values=tuple(_measure(client, Hardware(node.simulation.folder), rounds=rounds)),
        )


def _measure(client: Client, hardware: Hardware, *, rounds: int) -> Iterator[float]:
    with _watching(client) as wait:
        wait("Healthy")
        for _ in range(rounds):
            begin = time.perf_counter()
            change(hardware, lambda state: administration.raise_xid(state, 0, number=FATAL))
            yield (wait("Unhealthy") - begin) * 1000
            change(hardware, lambda state: administration.recover(state, 0))
            wait("Healthy")


@contextmanager
def _watching(client: Client) -> Iterator[Callable[[str], float]]:
    """Give a function that waits until the pod's status says so, and says when that was seen."""
    store, news, seen = Store(), threading.Condition(), [0.0]

    def note(_key: str) -> None:
        with news:
            seen[0] = time.perf_counter()
            news.notify_all()

    def wait(health: str) -> float:
        with news:
            if not news.wait_for(lambda: any(_says(pod, health) for pod in store.snapshot().values()), _LIMIT):
                raise TimeoutError(f"bench: the pod is not {health} in {_LIMIT:.0f} s")
            return seen[0]

    reflector = Reflector(client, PODS, store, selector=Selector(fields=f"metadata.name={NAME}"), on_change=note)
    reflector.start()
    try:
        yield wait
    finally:
        reflector.stop(_LIMIT)


def _says(body: Object, health: str) -> bool:
    found = [
        resource["health"]
        for status in (body.get("status") or {}).get("containerStatuses") or ()
        for entry in status.get("allocatedResourcesStatus") or ()
        for resource in entry.get("resources") or ()
    ]
    return bool(found) and all(one == health for one in found)
