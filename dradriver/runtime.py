"""What runs behind the sockets: GPUs, records, slices and the web server, put together.

Loading all this takes most of the start, so the daemon imports it when the DRA socket is up.
"""

import ctypes
import gc
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from dradriver import api
from dradriver.cdi.files import SpecFolder
from dradriver.cdi.host import DriverRoot, nvml_library
from dradriver.cdi.nodes import DeviceTree
from dradriver.flags import Options
from dradriver.gpu.policy import GpuRule, OfferPolicy
from dradriver.healthkeeping import Around as HealthAround
from dradriver.healthkeeping import HealthKeeping
from dradriver.kube import RESOURCE_CLAIMS, Client, EventRecorder, KubeconfigError
from dradriver.kubelet import ClaimReference, HealthBoard
from dradriver.nodeconfig import NodeConfiguration, Wanted
from dradriver.numbering import GpuMemory
from dradriver.nvml import SimulationUnusable
from dradriver.observe import logs
from dradriver.observe.errors import ObserveError
from dradriver.observe.metrics import Metrics, SliceWrite
from dradriver.observe.readiness import Readiness
from dradriver.observe.web import WebServer, parse_endpoint
from dradriver.offering import Around, Offering, Shown
from dradriver.prepare import Preparer
from dradriver.prepare.containers import Containers
from dradriver.prepare.errors import RecordError
from dradriver.prepare.eviction import Around as EvictionAround
from dradriver.prepare.health_telling import HealthTeller
from dradriver.prepare.locks import Locks
from dradriver.prepare.reconciler import Reconciler, Surroundings
from dradriver.prepare.records import Records
from dradriver.prepare.telling import ClaimTeller
from dradriver.publish import Phase, Publisher, Status
from dradriver.reporting import NodeReporter, Note
from dradriver.turns import Turn

if TYPE_CHECKING:
    from dradriver.nvml import Nvml

REGISTERED: Final = "registered"
PUBLISHED: Final = "published"

_log = structlog.get_logger()


class RuntimeStartError(Exception):
    """Why the plugin cannot run: one sentence for the person who started it."""


class Runtime:
    """Everything of one plugin process but its sockets.

    Args:
        options: what the process was told.
        on_outdated: called once when only a new process can go on: the driver was replaced by another version, and a
            process keeps the library that it has loaded.
        board: where the kubelet reads the health of devices.
    """

    def __init__(
        self,
        options: Options,
        *,
        on_outdated: Callable[[], None] = lambda: None,
        board: HealthBoard | None = None,
    ) -> None:
        logs.configure(log_format=options.log_format, level=options.log_level)
        self._options = options
        self._on_outdated = on_outdated
        self._board = board
        self._stopping = threading.Event()
        self._readiness = Readiness((REGISTERED, PUBLISHED))
        self._metrics = Metrics(node=options.node_name, driver=api.DRIVER_NAME, version=version("dradriver"))
        self._nvml: Nvml | None = None
        self._opening = threading.Lock()
        self._started = False
        self._client: Client | None = None
        self._publisher: Publisher | None = None
        self._web: WebServer | None = None
        self._folder = options.plugins_folder / api.DRIVER_NAME
        # Only with the UID of a pod can there be another process of this driver on the node.
        shared = bool(options.pod_uid)
        self._records = Records(self._folder / "claims", shared=shared)
        self._locks = Locks(self._folder / "locks" if shared else None)
        self._turn = Turn(self._folder / "publishing" if shared else None, name=options.pod_uid)
        self._preparer: Preparer | None = None
        self._events: EventRecorder | None = None
        self._teller: ClaimTeller | None = None
        self._reconciler: Reconciler | None = None
        self._boot_id = _boot_id(self._proc())
        self._containers = self._make_containers()
        self._reporter = NodeReporter(options.node_name)
        self._configuration = self._make_configuration()
        self._offering = self._make_offering()
        self._health = self._make_health()

    # --- start and stop --------------------------------------------------------------------------

    def start(self) -> Preparer:
        """Load everything; returns what answers the kubelet's calls.

        A node whose driver is missing starts all the same: claims can be unprepared, and the GPUs are
        offered as soon as the driver appears.

        Raises:
            RuntimeStartError: flags, kubeconfig or folders are not usable.
        """
        try:
            self._records.load()
        except RecordError as error:
            raise RuntimeStartError(str(error)) from error
        with ThreadPoolExecutor(max_workers=2, thread_name_prefix="start") as pool:
            client = pool.submit(_connect, self._options.kubeconfig)
            hardware = pool.submit(self._read_gpus)
            self._serve_web()
            self._client = client.result()
            self._publisher = self._make_publisher(self._client)
            self._teller = self._make_teller(self._client)
            self._preparer = self._make_preparer(self._teller)
            hardware.result()
        self._configuration.load()
        self._health.load()
        self._offering.compute()
        self._reconciler = self._make_reconciler(self._client, self._preparer, self._teller)
        # An unprepare that finds no record has nothing to undo, so lost ones are made again before the first call.
        self._reconciler.recover_records()
        self._reconciler.start()
        self._configuration.start(self._client)
        self._offering.attach(self._client, self._publisher)
        self._offering.start()
        self._health.start(self._make_health_teller(self._client, self._teller), self._teller.errands)
        self._started = True
        return self._preparer

    def hurry(self) -> None:
        """Let calls that wait for something fail now, since the process is to end."""
        if self._preparer is not None:
            self._preparer.hurry()

    def settle(self) -> None:
        """Give memory back that only the start needed; garbage is collected from now on, what is there stays."""
        gc.collect()
        gc.freeze()
        gc.enable()
        # Only glibc has it, and needs it.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)

    def on_registration(self, *, registered: bool, message: str) -> None:
        """Note what the kubelet says of our registration; it may just have wiped the node's slices."""
        if registered:
            self._readiness.met(REGISTERED)
        else:
            self._readiness.unmet(REGISTERED, message)
        if registered and self._publisher is not None:
            self._publisher.mark_dirty("the kubelet has registered this plugin")

    def stop(self) -> None:
        """Stop in the reverse order of the start; the sockets are closed by now. Slices and claims stay.

        Against an API server that does not answer, what tells claims and what tells slices are waited for side by side.
        """
        self._stopping.set()
        self._health.stop()
        self._configuration.stop()
        self._offering.stop()
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="stop") as pool:
            if self._publisher is not None:
                pool.submit(self._publisher.stop)
            self._stop_telling()
        self._turn.end()
        if self._web is not None:
            self._web.stop()
        if self._nvml is not None:
            self._nvml.close()
        if self._client is not None:
            self._client.close()

    def _stop_telling(self) -> None:
        """Stop what deals with claims, in order: each may have something to say to the next one."""
        if self._reconciler is not None:
            self._reconciler.stop()
        if self._preparer is not None:
            self._preparer.close(wait=False)
        if self._teller is not None:
            self._teller.stop()
        if self._events is not None:
            self._events.stop()

    def _serve_web(self) -> None:
        try:
            endpoint = parse_endpoint(self._options.http_endpoint)
            if endpoint is not None:
                self._web = WebServer(
                    endpoint, registry=self._metrics.registry, readiness=self._readiness, alive=self._trouble
                )
        except ObserveError as error:
            raise RuntimeStartError(str(error)) from error
        if self._web is not None:
            _log.info("serving metrics and health", endpoint=str(self._web.endpoint))

    def _trouble(self) -> str | None:
        """Say what only a new process can mend; None if nothing."""
        if self._stopping.is_set() or not self._started:
            return None
        if self._publisher is not None and not self._publisher.alive:
            return "a thread that keeps the slices true has ended"
        if self._publisher is not None and not self._offering.alive:
            return "the thread that offers the GPUs has ended"
        if self._publisher is not None and not self._configuration.alive:
            return "a thread that follows the node's configuration has ended"
        if not self._health.alive:
            return "the thread that watches over the GPUs has ended"
        return None

    def _make_preparer(self, teller: ClaimTeller) -> Preparer:
        preparer = Preparer(
            driver=api.DRIVER_NAME,
            read=self._read_claim,
            records=self._records,
            containers=self._containers,
            boot_id=self._boot_id,
            node=lambda: self._offering.node,
            metrics=self._metrics,
            locks=self._locks,
            teller=teller,
        )
        preparer.count_devices()
        return preparer

    def _make_teller(self, client: Client) -> ClaimTeller:
        node_name = self._options.node_name
        self._events = EventRecorder(client, controller=api.DRIVER_NAME, instance=node_name)
        self._events.start()
        self._reporter.attach(self._events)
        teller = ClaimTeller(client, self._events, driver=api.DRIVER_NAME, node_name=node_name)
        teller.start()
        return teller

    def _make_reconciler(self, client: Client, preparer: Preparer, teller: ClaimTeller) -> Reconciler:
        around = Surroundings(
            records=self._records,
            specs=self._containers.specs,
            locks=self._locks,
            node=lambda: self._offering.node,
            boot_id=self._boot_id,
            reclaim=self._options.reclaim_unknown_mig,
        )
        return Reconciler(
            around=around,
            preparer=preparer,
            claims=lambda: client.list(RESOURCE_CLAIMS).items,
            reporter=teller,
            metrics=self._metrics,
        )

    def _read_claim(self, reference: ClaimReference, *, timeout: float) -> Mapping[str, Any]:
        assert self._client is not None  # noqa: S101 (set before the first call is let through)
        return self._client.get(RESOURCE_CLAIMS, reference.name, namespace=reference.namespace, timeout=timeout)

    def _make_publisher(self, client: Client) -> Publisher:
        publisher = Publisher(
            client,
            driver=api.DRIVER_NAME,
            node_name=self._options.node_name,
            pool_name=self._options.node_name,
            on_status=self._on_published,
            on_doubt=self._offering.doubt,
            is_our_turn=self._turn.is_ours,
            meter=SliceMeter(self._metrics),
        )
        publisher.start()
        return publisher

    def _on_published(self, status: Status) -> None:
        if status.phase is Phase.PUBLISHED:
            self._readiness.met(PUBLISHED)
        else:
            self._readiness.unmet(PUBLISHED, status.message or "slices are being written")

    # --- paths of the host -----------------------------------------------------------------------

    def _proc(self) -> Path:
        return self._options.driver_root / "proc" if self._options.simulation else Path("/proc")

    def _make_containers(self) -> Containers:
        options = self._options
        return Containers(
            root=DriverRoot(here=options.driver_root_here, host=PurePosixPath(options.driver_root)),
            tree=self._device_tree(),
            specs=SpecFolder(options.cdi_root, kind=api.CDI_KIND),
            hook=options.cdi_hook,
        )

    def _device_tree(self) -> DeviceTree:
        options, proc = self._options, self._proc()
        dev, host_dev = _dev_folders(options)
        return DeviceTree(
            dev=dev,
            host_dev=host_dev,
            proc=proc,
            sys=options.driver_root / "sys" if options.simulation else Path("/sys"),
            proc_devices=options.proc_devices or proc / "devices",
        )

    # --- GPUs ------------------------------------------------------------------------------------

    def _make_offering(self) -> Offering:
        options = self._options
        around = Around(
            driver=api.DRIVER_NAME,
            node_name=options.node_name,
            boot_id=self._boot_id,
            hardware=self._opened,
            records=self._records,
            memory=GpuMemory(self._folder / "gpu-numbers.json", boot_id=self._boot_id),
            reporter=self._reporter,
            on_read=self._on_gpus_read,
            on_look=lambda: self._metrics.succeeded("offer"),
            on_show=self._on_shown,
            on_offer=self._turn.take,
            on_outdated=self._on_outdated,
            unready=lambda reason: self._readiness.unmet(PUBLISHED, reason),
        )
        return Offering(around, wanted=lambda: self._configuration.current)

    def _on_shown(self, shown: Shown) -> None:
        self._health.shown(shown)

    def _make_health(self) -> HealthKeeping:
        return HealthKeeping(
            HealthAround(
                folder=self._folder,
                boot_id=self._boot_id,
                hardware=self._opened,
                offering=self._offering,
                wishes=lambda: self._configuration.current.health,
                annotation=lambda: self._configuration.current.clear,
                is_our_turn=self._turn.keeps,
                metrics=self._metrics,
                reporter=self._reporter,
                board=self._board,
            )
        )

    def _make_health_teller(self, client: Client, teller: ClaimTeller) -> HealthTeller:
        assert self._events is not None  # noqa: S101 (made with the teller of claims)
        around = EvictionAround(
            client=client,
            events=self._events,
            errands=teller.errands,
            driver=api.DRIVER_NAME,
            node_name=self._options.node_name,
            taints_kept=lambda: self._offering.keeps_taints,
            on_not_evicted=self._metrics.set_pods_not_evicted,
        )
        return HealthTeller(around, records=self._records.all)

    def _make_configuration(self) -> NodeConfiguration:
        options = self._options
        return NodeConfiguration(
            options.node_config,
            remembered=self._folder / "node-config.json",
            node_name=options.node_name,
            defaults=OfferPolicy(default=GpuRule(mig=options.mig, profiles=options.profiles)),
            on_change=self._on_configuration,
        )

    def _on_configuration(self, wanted: Wanted) -> None:
        problems = {text: Note("NodeConfigurationProblem", text) for text in wanted.problems}
        self._reporter.set("configuration", problems)
        _log.info("configuration", name=wanted.name, allocation=wanted.allocation, settled=wanted.settled)
        self._offering.wake("the configuration has changed")

    def _opened(self) -> "Nvml":
        # Loads pynvml, beside the Kubernetes client.
        from dradriver.nvml import open_nvml  # noqa: PLC0415

        with self._opening:
            if self._nvml is None:
                library = None if self._options.simulation else nvml_library(self._options.driver_root_here)
                self._nvml = open_nvml(simulation=self._options.simulation, library=library)
            return self._nvml

    def _on_gpus_read(self) -> None:
        # The driver may have been installed just now, with a /dev of its own.
        self._containers.tree = self._device_tree()

    def _read_gpus(self) -> None:
        try:
            self._offering.read()
        except SimulationUnusable as error:
            raise RuntimeStartError(str(error)) from error


class SliceMeter:
    """Counts what the publisher does."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def wrote(self, verb: str) -> None:
        """Count a write."""
        self._metrics.slice_written(cast("SliceWrite", verb))

    def failed(self, reason: str) -> None:
        """Count a failed attempt."""
        self._metrics.slice_failed(reason)

    def published(self, status: Status) -> None:
        """Note how much is published, and when."""
        self._metrics.set_slices_published(status.slices)
        self._metrics.succeeded("publish")


def _connect(kubeconfig: Path | None) -> Client:
    # Takes 0.3 s to load, hence beside everything else.
    from dradriver.kube.connection import connect  # noqa: PLC0415

    try:
        return connect(kubeconfig)
    except KubeconfigError as error:
        raise RuntimeStartError(str(error)) from error


def _dev_folders(options: Options) -> tuple[Path, PurePosixPath]:
    """Find device nodes: in the driver root where that has a /dev of its own, else in the host's."""
    here = options.driver_root_here / "dev"
    if (here / "nvidiactl").exists():
        return here, PurePosixPath(options.driver_root / "dev")
    return Path("/dev"), PurePosixPath("/dev")


def _boot_id(proc: Path) -> str:
    path = proc / "sys/kernel/random/boot_id"
    try:
        return path.read_text().strip()
    except OSError as error:
        raise RuntimeStartError(f"cannot read {path}: {os.strerror(error.errno or 0)}") from error
