"""What the controller costs in a large cluster: time to the first full status, memory, CPU at rest, reaction.

    PYTHONPATH=tests python -m bench --controller [--nodes 5000] [--rounds 200] [--idle 10] [--kubeconfig FILE]

Nodes exist as objects only, each with eight GPUs; every twenty-fifth offers partitions. What their kubelets would write
every five minutes is written here at the same rate while one looks at the processor time.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from bench.figures import Figure, aligned, show
from bench.process import cpu_milliseconds, rss
from bench.world import until
from support.fleet import GPUS, PROFILE, Fleet

from controller.api import BRIDGES
from dradriver.kube import LEASES, NODES, Client, NotFoundError, Object, version_of
from dradriver.kube.resources import Resource

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_CRDS: Final = Resource(
    group="apiextensions.k8s.io", version="v1", plural="customresourcedefinitions",
    kind="CustomResourceDefinition", namespaced=False,
)  # fmt: skip
_NAMESPACE: Final = "default"
_LEASE: Final = "dradriver-controller"
_PATIENCE: Final = 900.0
_BEAT_SECONDS: Final = 300.0
"""In which a kubelet writes its node's status once while nothing happens."""
_QUIET_SECONDS: Final = 10.0
_UNQUIET_SECONDS: Final = 300.0
"""After which it is measured beside whatever goes on."""
_LABELS: Final = ("--node-labels", "WhenUnowned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was seen of one start of the controller.

    Attributes:
        status: milliseconds from exec until all bridges tell all devices.
        labels: the same until all nodes are labelled; None where they are not wanted.
        cpu: milliseconds of processor time until then.
        rss: MiB at rest.
        peak: MiB at most.
        resting: milliseconds of processor time in a second while nothing happens.
        beating: the same while kubelets write their nodes' statuses.
        reactions: from the write of a slice to the bridge's status.
        label_reactions: from the write of a slice to the node's label.
        writes: of labels.
    """

    status: float
    labels: float | None
    cpu: float
    rss: float
    peak: float
    resting: float
    beating: float
    reactions: tuple[float, ...]
    label_reactions: tuple[float, ...] = ()
    writes: int = 0


class Controller:
    """The controller as a process with a log."""

    def __init__(self, kubeconfig: Path, folder: Path, *options: str) -> None:
        self.log = folder / "log"
        self.log.write_bytes(b"")
        command = [sys.executable, "-m", "controller", "--kubeconfig", str(kubeconfig), "--namespace", _NAMESPACE]
        with self.log.open("ab") as log:
            self.begin = time.monotonic()
            self._process = subprocess.Popen(
                [*command, "--http-endpoint", "127.0.0.1:0", *options], stdout=log, stderr=log, cwd=_REPOSITORY
            )

    @property
    def pid(self) -> int:
        if self._process.poll() is not None:
            raise RuntimeError(f"bench: the controller ended:\n{self.log.read_text()[-3000:]}")
        return self._process.pid

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        finally:
            self._process.kill()

    def leads(self) -> bool:
        return self.pid > 0 and '"leading"' in self.log.read_text()

    def metric(self, name: str) -> float:
        """The value of a metric, with its labels as written; 0 where there is none."""
        serving = next(json.loads(line) for line in self.log.read_text().splitlines() if '"serving"' in line)
        with urllib.request.urlopen(f"http://{serving['endpoint']}/metrics", timeout=10) as answer:
            found = re.search(rf"^{re.escape(name)} (\S+)$", answer.read().decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def peak(self) -> float:
        """MiB."""
        match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        return int(match[1]) / 1024 if match else 0.0


class Bench:
    """A fleet, its bridges, and controllers that are started one after another.

    Args:
        client: an administrator's.
        kubeconfig: the same one's.
        fleet: the nodes.
    """

    def __init__(self, client: Client, kubeconfig: Path, fleet: Fleet) -> None:
        self._client = client
        self._kubeconfig = kubeconfig
        self._fleet = fleet
        self._whole, self._parts = fleet.product, f"{fleet.product}-mig"

    @contextmanager
    def bridges(self) -> Iterator[None]:
        """Two bridges, of whole GPUs and of partitions; gone when the block ends."""
        product = {"productName": self._fleet.product}
        for name, select in ((self._whole, {"type": "gpu"}), (self._parts, {"profile": PROFILE})):
            head = {"apiVersion": BRIDGES.api_version, "kind": BRIDGES.kind, "metadata": {"name": name}}
            spec = {"resourceName": f"example.com/{name}", "select": select | product}
            self._client.create(BRIDGES, head | {"spec": spec})
        try:
            yield
        finally:
            self._remove_bridges()

    def _remove_bridges(self) -> None:
        for name in (self._whole, self._parts):
            self._client.delete(BRIDGES, name)
        with running(self._kubeconfig, self._client):
            until(lambda: not any(map(self._exists, (self._whole, self._parts))), interval=0.1, limit=_PATIENCE)

    def _exists(self, name: str) -> bool:
        try:
            return bool(self._client.get(BRIDGES, name))
        except NotFoundError:
            return False

    def run(self, *options: str, rounds: int, idle: float) -> Found:
        """Start a controller and measure it."""
        wants_labels = _LABELS[0] in options
        self._forget_status()
        with running(self._kubeconfig, self._client, *options) as controller:
            status = until(self._is_full, interval=0.02, limit=_PATIENCE) - controller.begin
            labels = self._labelled(controller) - controller.begin if wants_labels else None
            cpu = cpu_milliseconds(controller.pid)
            time.sleep(min(idle, 5.0))
            resting = _cpu_per_second(controller.pid, idle)
            memory, peak = rss(controller.pid), controller.peak()
            reactions = tuple(self._react(number) for number in range(rounds))
            label_reactions = tuple(self._relabel(number) for number in range(rounds)) if wants_labels else ()
            with self._beating():
                beating = _cpu_per_second(controller.pid, idle)
            return Found(
                status=status * 1000,
                labels=None if labels is None else labels * 1000,
                cpu=cpu,
                rss=memory,
                peak=peak,
                resting=resting,
                beating=beating,
                reactions=reactions,
                label_reactions=label_reactions,
                writes=round(controller.metric('dradriver_controller_label_writes_total{outcome="written"}')),
            )

    def _forget_status(self) -> None:
        """Take away what an earlier controller has written, or this one would seem to be at once at its end."""
        for name in (self._whole, self._parts):
            body = {"status": {"devices": None, "nodes": None}}
            self._client.patch(BRIDGES, name, body, subresource="status", field_manager="bench")

    def _status(self, name: str) -> dict[str, Any]:
        return (self._client.get(BRIDGES, name).get("status") or {}).get("devices") or {}

    def _is_full(self) -> bool:
        return (
            self._status(self._whole).get("published") == self._fleet.devices
            and self._status(self._parts).get("published") == self._fleet.partitions
        )

    def _labelled(self, controller: Controller) -> float:
        ours = 'dradriver_controller_labelled_nodes{labels="ours"}'
        return until(lambda: controller.metric(ours) >= len(self._fleet.nodes), interval=0.5, limit=_PATIENCE)

    def _react(self, number: int) -> float:
        """Milliseconds from a taint to the status that counts it, and the taint is gone again afterwards."""
        node = self._fleet.nodes[-1 - number % 10]
        self._fleet.taint(node, tainted=True)
        begin = time.monotonic()
        passed = until(lambda: self._status(self._whole).get("tainted") == 1, interval=0.01) - begin
        self._fleet.taint(node, tainted=False)
        until(lambda: self._status(self._whole).get("tainted") == 0, interval=0.05)
        return passed * 1000

    def _relabel(self, number: int) -> float:
        """Milliseconds from a GPU's going to the label that counts it no more."""
        node = self._fleet.nodes[len(self._fleet.nodes) // 2 + number]
        self._fleet.resize(node, GPUS - 1)
        begin = time.monotonic()
        passed = until(lambda: self._count(node) == GPUS - 1, interval=0.01) - begin
        self._fleet.resize(node, GPUS)
        until(lambda: self._count(node) == GPUS, interval=0.1)
        return passed * 1000

    def _count(self, node: str) -> int:
        return int(self._client.get(NODES, node)["metadata"]["labels"]["nvidia.com/gpu.count"])

    @contextmanager
    def _beating(self) -> Iterator[None]:
        """Nodes' statuses are written as often as kubelets do, while the block runs."""
        ended = threading.Event()

        def beat() -> None:
            number = 0
            while not ended.wait(_BEAT_SECONDS / len(self._fleet.nodes)):
                number += 1
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                self._fleet.beat(self._fleet.nodes[number % len(self._fleet.nodes)], now)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(30)


@contextmanager
def running(kubeconfig: Path, client: Client, *options: str) -> Iterator[Controller]:
    """A controller that ends with the block, and leaves no Lease to wait for."""
    with tempfile.TemporaryDirectory() as folder:
        made = Controller(kubeconfig, Path(folder), *options)
        try:
            until(made.leads, interval=0.02, limit=_PATIENCE)
            yield made
        finally:
            made.stop()
            _forget_lease(client)


def _forget_lease(client: Client) -> None:
    try:
        client.delete(LEASES, _LEASE, namespace=_NAMESPACE)
    except NotFoundError:
        return


def install(client: Client) -> None:
    """Make the CRD, where it is not there."""
    body = yaml.safe_load((_REPOSITORY / "deploy/crds/extendedresourcebridges.yaml").read_text())
    client.apply(_CRDS, body, field_manager="bench")
    until(lambda: _is_served(client), interval=0.1)


def _is_served(client: Client) -> bool:
    try:
        client.list(BRIDGES)
    except NotFoundError:
        return False
    return True


def _wait_until_quiet(client: Client, patience: float) -> None:
    """Wait until a controller manager, where there is one, has written that these nodes' kubelets are silent."""
    end = time.monotonic() + patience
    version, since = 0, time.monotonic()
    while time.monotonic() - since < _QUIET_SECONDS and time.monotonic() < end:
        time.sleep(_QUIET_SECONDS / 5)
        newest = max(map(version_of, client.list(NODES, project=_metadata).items))
        if newest != version:
            version, since = newest, time.monotonic()


def _metadata(item: Object) -> Object:
    return {"metadata": item["metadata"]}


def _cpu_per_second(pid: int, seconds: float) -> float:
    before, begin = cpu_milliseconds(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_milliseconds(pid) - before) / (time.monotonic() - begin)


def empty(client: Client, kubeconfig: Path, *, seconds: float) -> float:
    """MiB of a controller that leads where nothing is."""
    with running(kubeconfig, client) as controller:
        time.sleep(seconds)
        return rss(controller.pid)


# --- telling --------------------------------------------------------------------------------------


def run(
    client: Client,
    kubeconfig: Path,
    *,
    nodes: int,
    rounds: int,
    idle: float,
    patience: float = _UNQUIET_SECONDS,
) -> dict[str, Found]:
    """Measure and print.

    Args:
        client: an administrator's.
        kubeconfig: the same one's.
        nodes: how many.
        rounds: reactions that are measured.
        idle: seconds for which the processor time at rest is measured.
        patience: seconds for which it is waited at most until nobody else writes nodes.
    """
    install(client)
    print(f"{os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}", flush=True)
    baseline = empty(client, kubeconfig, seconds=min(idle, 5.0))
    print(f"nothing to follow: RSS {baseline:.1f} MiB", flush=True)
    with Fleet(client, nodes=nodes, partitioned=max(1, nodes // 25)) as fleet:
        print(
            f"{nodes} nodes: {fleet.slices()} slices, {fleet.devices} GPUs, {fleet.partitions} of {PROFILE}", flush=True
        )
        _wait_until_quiet(client, patience)
        bench, found = Bench(client, kubeconfig, fleet), {}
        with bench.bridges():
            for title, options in (
                ("no labels", ()),
                ("labels, first time", _LABELS),
                ("labels, restarted", _LABELS),
            ):
                found[title] = bench.run(*options, rounds=rounds, idle=idle)
                _show(title, found[title], baseline)
    return found


def _show(title: str, found: Found, baseline: float) -> None:
    labels = (
        [] if found.labels is None else [("all nodes labelled", f"{found.labels / 1000:.1f} s, {found.writes} writes")]
    )
    rows = [
        ("first full status", f"{found.status / 1000:.1f} s"),
        *labels,
        ("processor time of that", f"{found.cpu / 1000:.1f} s"),
        ("RSS", f"{found.rss:.1f} MiB, {found.rss - baseline:.1f} above nothing, {found.peak:.1f} at most"),
        ("processor time at rest", f"{found.resting:.1f} ms/s"),
        ("with kubelets' heartbeats", f"{found.beating:.1f} ms/s"),
    ]
    show(title, [Figure(what="slice -> status", values=found.reactions), *_reaction(found.label_reactions)])
    print(aligned(rows), flush=True)


def _reaction(values: tuple[float, ...]) -> list[Figure]:
    return [Figure(what="slice -> label", values=values)] if values else []
