"""What runs behind the sockets: GPUs, records, slices and the web server, put together.

Loading all this takes most of the start, so the daemon imports it when the DRA socket is up.
"""

import ctypes
import gc
import itertools
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
from dradriver.cdi.host import LIBRARY_FOLDERS, DriverRoot
from dradriver.cdi.nodes import DeviceTree
from dradriver.flags import Options
from dradriver.gpu.model import Gpu
from dradriver.gpu.offer import make_offer
from dradriver.gpu.policy import GpuRule, OfferPolicy
from dradriver.gpu.profiles import MigOffer, missing
from dradriver.kube import RESOURCE_CLAIMS, Client, EventRecorder, KubeconfigError, KubeError
from dradriver.kubelet import ClaimReference
from dradriver.numbering import remembered_numbers
from dradriver.nvml import DriverMismatch, NvmlError, SimulationUnusable
from dradriver.observe import logs
from dradriver.observe.errors import ObserveError
from dradriver.observe.metrics import Metrics, SliceWrite
from dradriver.observe.readiness import Readiness
from dradriver.observe.web import WebServer, parse_endpoint
from dradriver.prepare import Preparer
from dradriver.prepare.containers import Containers
from dradriver.prepare.errors import RecordError
from dradriver.prepare.locks import Locks
from dradriver.prepare.node import Node
from dradriver.prepare.reconciler import Reconciler, Surroundings
from dradriver.prepare.records import Records
from dradriver.prepare.telling import ClaimTeller
from dradriver.publish import Phase, Publisher, Status, probe_features
from dradriver.resource import InvalidPoolError, Pool, lay_out, validate

if TYPE_CHECKING:
    from dradriver.nvml import Nvml

REGISTERED: Final = "registered"
PUBLISHED: Final = "published"
NVML_LIBRARY: Final = "libnvidia-ml.so.1"
RETRY_SECONDS: Final = 5.0
"""How often NVML or the API server is tried while it is missing."""
REREAD_TURNS: Final = 6
"""After how many of these intervals a GPU that could not be read is read again; a broken one answers slowly."""

_log = structlog.get_logger()


class RuntimeStartError(Exception):
    """Why the plugin cannot run: one sentence for the person who started it."""


class Runtime:
    """Everything of one plugin process but its sockets.

    Args:
        options: what the process was told.
        on_outdated: called once when only a new process can go on: the driver was replaced by another version, and a
            process keeps the library that it has loaded.
    """

    def __init__(self, options: Options, *, on_outdated: Callable[[], None] = lambda: None) -> None:
        logs.configure(log_format=options.log_format, level=options.log_level)
        self._options = options
        self._on_outdated = on_outdated
        self._stopping = threading.Event()
        self._readiness = Readiness((REGISTERED, PUBLISHED))
        self._metrics = Metrics(node=options.node_name, driver=api.DRIVER_NAME, version=version("dradriver"))
        self._node: Node | None = None
        self._complete = True
        self._nvml: Nvml | None = None
        self._client: Client | None = None
        self._publisher: Publisher | None = None
        self._web: WebServer | None = None
        self._folder = options.plugins_folder / api.DRIVER_NAME
        # Only with the UID of a pod can there be another process of this driver on the node.
        shared = bool(options.pod_uid)
        self._records = Records(self._folder / "claims", shared=shared)
        self._locks = Locks(self._folder / "locks" if shared else None)
        self._preparer: Preparer | None = None
        self._events: EventRecorder | None = None
        self._teller: ClaimTeller | None = None
        self._reconciler: Reconciler | None = None
        self._watcher: threading.Thread | None = None
        self._boot_id = _boot_id(self._proc())
        self._containers = self._make_containers()

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
            hardware = pool.submit(self._try_to_read_gpus)
            self._serve_web()
            self._client = client.result()
            self._publisher = self._make_publisher(self._client)
            self._teller = self._make_teller(self._client)
            self._preparer = self._make_preparer(self._teller)
            hardware.result()
        self._reconciler = self._make_reconciler(self._client, self._preparer, self._teller)
        # An unprepare that finds no record has nothing to undo, so lost ones are made again before the first call.
        self._reconciler.recover_records()
        self._reconciler.start()
        self._watcher = threading.Thread(target=self._look_after_driver, name="driver", daemon=True)
        self._watcher.start()
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
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="stop") as pool:
            if self._publisher is not None:
                pool.submit(self._publisher.stop)
            self._stop_telling()
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
        if self._stopping.is_set():
            return None
        if self._publisher is not None and not self._publisher.alive:
            return "a thread that keeps the slices true has ended"
        if self._watcher is not None and not self._watcher.is_alive():
            return "the thread that offers the GPUs has ended"
        return None

    def _make_preparer(self, teller: ClaimTeller) -> Preparer:
        preparer = Preparer(
            driver=api.DRIVER_NAME,
            read=self._read_claim,
            records=self._records,
            containers=self._containers,
            boot_id=self._boot_id,
            node=lambda: self._node,
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
        teller = ClaimTeller(client, self._events, driver=api.DRIVER_NAME, node_name=node_name)
        teller.start()
        return teller

    def _make_reconciler(self, client: Client, preparer: Preparer, teller: ClaimTeller) -> Reconciler:
        around = Surroundings(
            records=self._records,
            specs=self._containers.specs,
            locks=self._locks,
            node=lambda: self._node,
            boot_id=self._boot_id,
            makes_partitions=self._options.mig is MigOffer.DYNAMIC,
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

    def _try_to_read_gpus(self) -> bool:
        """Read the GPUs, so that claims can be prepared; they are published later, when the server is known."""
        # Loads pynvml, beside the Kubernetes client.
        from dradriver.nvml import is_replaced, open_nvml  # noqa: PLC0415

        try:
            if self._nvml is None:
                library = None if self._options.simulation else _library(self._options.driver_root_here)
                self._nvml = open_nvml(simulation=self._options.simulation, library=library)
            inventory = self._nvml.inventory()
        except NvmlError as error:
            if isinstance(error, SimulationUnusable):
                raise RuntimeStartError(str(error)) from error
            _log.warning("GPUs are not available yet", error=str(error), retry_seconds=RETRY_SECONDS)
            self._readiness.unmet(PUBLISHED, f"no GPUs: {error}")
            if isinstance(error, DriverMismatch) and is_replaced():
                self._on_outdated()
            return False
        # The driver may have been installed just now, with a /dev of its own.
        self._containers.tree = self._device_tree()
        for gpu in inventory.unreadable:
            _log.error("a GPU cannot be read and is not offered yet", pci_bus_id=gpu.pci_bus_id, error=str(gpu.error))
        self._complete = not inventory.unreadable
        if inventory.unreadable and not inventory.gpus:
            self._readiness.unmet(PUBLISHED, f"no GPU can be read: {inventory.unreadable[0].error}")
            return False
        self._node = self._made_node(self._nvml, inventory.gpus, self._options.mig)
        return True

    def _made_node(self, nvml: "Nvml", gpus: tuple[Gpu, ...], mig: MigOffer) -> Node:
        options = self._options
        held = frozenset(device.gpu_uuid for record in self._records.all() for device in record.plan.devices)
        numbers = remembered_numbers(self._folder / "gpu-numbers.json", gpus, boot_id=self._boot_id, held=held)
        policy = OfferPolicy(default=GpuRule(mig=mig, profiles=options.profiles))
        offer = make_offer(gpus, pool=options.node_name, policy=policy, numbers=numbers)
        return Node(gpus={gpu.uuid: gpu for gpu in gpus}, offer=offer, hardware=nvml)

    def _offer_the_rest(self) -> None:
        """Look again for GPUs that could not be read, and offer them once they can.

        GPUs that are known keep the facts they were offered with: claims are allocated from them.
        """
        if self._complete or self._node is None:
            return
        try:
            inventory = self._opened().inventory()
        except NvmlError:
            # Told by whoever needs it.
            return
        known = self._node.gpus
        found = tuple(gpu for gpu in inventory.gpus if gpu.uuid not in known)
        self._complete = not inventory.unreadable
        if found:
            _log.info("GPUs that could not be read can be read now", gpus=[gpu.uuid for gpu in found])
            self._node = self._made_node(self._opened(), (*known.values(), *found), self._options.mig)
            self._offer_at_last()

    def _look_after_driver(self) -> None:
        self._offer_at_last()
        for turn in itertools.count(1):
            if self._stopping.wait(RETRY_SECONDS):
                return
            if turn % REREAD_TURNS == 0:
                self._offer_the_rest()
            if self._is_outdated():
                self._on_outdated()
                return

    def _is_outdated(self) -> bool:
        """Tell whether the driver was replaced by another version since NVML worked in this process."""
        try:
            self._opened().driver_version()
        except DriverMismatch as error:
            _log.warning("the driver was replaced, starting anew", error=str(error))
            return True
        except NvmlError:
            # It is gone, or being loaded: told by whoever needs it.
            return False
        return False

    def _offer_at_last(self) -> None:
        """Offer the GPUs, as soon as they can be read and the API server has said what it can hold."""
        while not self._stopping.is_set():
            try:
                if self._try_to_offer():
                    return
            except Exception:  # noqa: BLE001 (whatever it was, the GPUs are not to stay hidden for ever)
                _log.exception("GPUs cannot be offered", retry_seconds=RETRY_SECONDS)
            self._stopping.wait(RETRY_SECONDS)

    def _try_to_offer(self) -> bool:
        assert self._client is not None  # noqa: S101 (started after the client is there)
        assert self._publisher is not None  # noqa: S101 (likewise)
        if self._node is None and not self._try_to_read_gpus():
            return False
        try:
            node = self._offerable(self._client)
            slices = lay_out(_without_faults(node.offer.pool))
            validate(slices)
        except KubeError as error:
            _log.warning("the API server does not tell what it can hold", error=str(error), retry_seconds=RETRY_SECONDS)
            self._readiness.unmet(PUBLISHED, str(error))
            return False
        except InvalidPoolError as error:
            _log.exception("nothing is offered: the API server would refuse the slices", problems=error.problems)
            self._readiness.unmet(PUBLISHED, str(error))
            return True
        _log.info("offering", devices=len(node.offer.devices), slices=len(slices), gpus=len(node.gpus))
        self._publisher.set_slices(slices)
        return True

    def _offerable(self, client: Client) -> Node:
        """Leave partitions out where the API server would drop their counters and hand memory out twice.

        Raises:
            KubeError: the API server does not answer, or denies the question.
        """
        node = self._node
        assert node is not None  # noqa: S101 (the caller has read the GPUs)
        counted = any(group.counter_sets for group in node.offer.pool.groups)
        if counted and not probe_features(client, api.DRIVER_NAME, self._options.node_name).partitionable:
            _log.warning(
                "no partitions are offered: the API server drops their counters; "
                "use Kubernetes 1.36 or newer, or enable the feature gate DRAPartitionableDevices (from 1.35 on)"
            )
            node = self._made_node(self._opened(), tuple(node.gpus.values()), MigOffer.STATIC)
            self._node = node
        off = self._options.mig is MigOffer.OFF
        why = "is not offered with --mig off" if off else "has no instance that fills its profile"
        for gpu_uuid in node.gpus.keys() - {device.gpu.uuid for device in node.offer.devices.values()}:
            _log.warning(f"a GPU offers nothing: it is in MIG mode and {why}", gpu=gpu_uuid)
        unknown = missing(self._options.profiles, node.gpus.values())
        if unknown:
            _log.warning("no GPU of this node has these profiles", profiles=sorted(unknown))
        return node

    def _opened(self) -> "Nvml":
        assert self._nvml is not None  # noqa: S101 (GPUs have been read)
        return self._nvml


def _without_faults(pool: Pool) -> Pool:
    """Leave out the GPUs that the API server would refuse, so that one does not hide the others."""
    sound = []
    for group in pool.groups:
        try:
            validate(lay_out(Pool(name=pool.name, groups=(group,))))
        except InvalidPoolError as error:
            _log.error("a GPU is not offered: the API server would refuse it", problems=error.problems)
        else:
            sound.append(group)
    return Pool(name=pool.name, groups=tuple(sound))


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


def _library(root: Path) -> Path | None:
    """Find NVML's library below a driver root; None leaves it to the loader."""
    if root == Path("/"):
        return None
    return next((path for folder in LIBRARY_FOLDERS if (path := root / folder / NVML_LIBRARY).exists()), None)


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
