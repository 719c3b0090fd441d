"""The controller, put together.

Start: web server, then the reflectors, also where another process leads, so that a successor has everything when its
time comes; then the election. Work begins when this process leads and everything has been listed once.

Stop: work first, then the Lease is given back, then the rest. It is not given back but left to run out if a worker
hangs in a call, or if a write got no answer: what may still be carried out must not meet a successor. For the same
reason calls that write are shorter than the time between the renew deadline and the end of the Lease. Whoever loses the
Lease ends: what it had begun is not trusted any more.
"""

import importlib.metadata
import threading
from functools import partial
from typing import Final

import structlog

from controller.acting import Actor, unsupported_because
from controller.flags import Options
from controller.labelling import Labeller
from controller.metrics import Metrics
from controller.reconciler import Reconciler, Wishes
from controller.watching import Watcher
from dradriver.ending import Ending
from dradriver.kube import Client, Elector, EventRecorder, KubeError, WorkQueue
from dradriver.kube.connection import connect
from dradriver.observe.errors import ObserveError
from dradriver.observe.readiness import Readiness
from dradriver.observe.web import WebServer, parse_endpoint

LEASE: Final = "dradriver-controller"
REPORTER: Final = "dradriver.dev/controller"

_SYNCED: Final = "synced"
_ELECTION_CALL: Final = 4.0
WRITE_SECONDS: Final = 4.0
"""After which a call that writes is given up: less than the Lease lasts longer than its holder may act."""

_READ_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 2 * WRITE_SECONDS
"""For which a worker is waited for: it may read before it sees that it is to end."""

_LOOK_SECONDS: Final = 1.0

log = structlog.get_logger(__name__)


class ManagerError(Exception):
    """Why the controller cannot run: one sentence for the person who started it."""


class Manager:
    """One controller, from start to stop."""

    def __init__(self, options: Options, ending: Ending) -> None:
        """Put it together.

        Raises:
            ManagerError: there is no usable kubeconfig.
        """
        self._options = options
        self._ending = ending
        self._metrics = Metrics(version=importlib.metadata.version("dradriver"))
        self._readiness = Readiness([_SYNCED])
        self._elected = threading.Event()
        self._stopping = threading.Event()
        self._gave_up = threading.Event()
        self._is_up = False
        client = self._connect(timeout=_READ_SECONDS)
        writer = self._connect(timeout=WRITE_SECONDS)
        self._queue: WorkQueue[str] = WorkQueue()
        self._events = EventRecorder(client, controller=REPORTER, instance=options.identity)
        self._elector = Elector(
            # Of its own, so that renewing never waits for a connection that work holds.
            self._connect(timeout=_ELECTION_CALL),
            namespace=options.namespace,
            name=LEASE,
            identity=options.identity,
            on_elected=self._elected.set,
            on_lost=ending.ask,
        )
        self._watcher = Watcher(
            client, on_change=self._on_change, on_return=self._on_return, on_waiting=self._on_waiting
        )
        self._actor = Actor(writer, self._watcher, may_act=self._may_act, on_action=self._metrics.acted)
        self._labeller = self._make_labeller(writer) if options.labels else None
        self._reconciler = Reconciler(
            partial(unsupported_because, client),
            watcher=self._watcher,
            actor=self._actor,
            record=self._events.record,
            metrics=self._metrics,
            queue=self._queue,
            wishes=Wishes(identity=options.identity, discovery=options.discovery, base_classes=options.base_classes),
            on_lost=self._give_up,
        )

    def run(self) -> int:
        """Work until the end is asked for; gives the exit status, 1 if leadership was lost.

        Raises:
            ManagerError: it cannot start.
        """
        web = self._serve()
        self._events.start()
        self._watcher.start()
        self._elector.start()
        self._is_up = True
        begun = False
        while not self._ending.wait(_LOOK_SECONDS if begun else _LOOK_SECONDS / 10):
            self._tell()
            if not begun and self._elected.is_set() and self._watcher.has_synced:
                log.info("leading", identity=self._options.identity)
                self._reconciler.start()
                if self._labeller is not None:
                    self._labeller.start()
                begun = True
        self._stop(web)
        return 1 if self._elector.is_lost or self._gave_up.is_set() else 0

    def _make_labeller(self, client: Client) -> Labeller:
        return Labeller(
            client,
            self._watcher,
            may_act=self._may_act,
            on_write=self._metrics.label_written,
            on_counts=self._metrics.set_labelled,
        )

    def _may_act(self) -> bool:
        return self._elector.leads and not self._stopping.is_set()

    def _give_up(self) -> None:
        """The reconciler has ended, which only another process mends, although we may hold the Lease still."""
        if not self._stopping.is_set():
            self._gave_up.set()
            self._ending.ask()

    def _on_change(self, is_small: bool) -> None:  # noqa: FBT001 (called so by the watcher)
        self._reconciler.wake(is_small)

    def _on_return(self) -> None:
        self._reconciler.ask_again()

    def _on_waiting(self) -> None:
        self._reconciler.wake_for_pods()

    def _connect(self, *, timeout: float) -> Client:
        try:
            return connect(self._options.kubeconfig, timeout=timeout, user_agent="dradriver-controller")
        except KubeError as error:
            raise ManagerError(str(error)) from error

    def _serve(self) -> WebServer | None:
        try:
            endpoint = parse_endpoint(self._options.http_endpoint)
            if endpoint is None:
                return None
            web = WebServer(endpoint, registry=self._metrics.registry, readiness=self._readiness, alive=self._trouble)
        except ObserveError as error:
            raise ManagerError(str(error)) from error
        log.info("serving", endpoint=str(web.endpoint))
        return web

    def _tell(self) -> None:
        """Bring metrics and readiness up to date."""
        self._metrics.set_leading(leads=self._elector.leads)
        trouble = self._watcher.trouble()
        if self._watcher.has_synced:
            self._readiness.met(_SYNCED)
        elif trouble:
            self._readiness.unmet(_SYNCED, "; ".join(f"{name}: {error}" for name, error in trouble.items()))

    def _trouble(self) -> str | None:
        """What only a restart mends."""
        if not self._is_up:
            return None
        if dead := self._watcher.dead():
            return f"nobody follows {', '.join(dead)}"
        if not self._elector.alive:
            return "the elector has ended"
        if self._reconciler.was_started and not self._reconciler.alive:
            return "the reconciler has ended"
        if self._labeller is not None and self._labeller.has_ended:
            return "the labeller has ended"
        return None

    def _stop(self, web: WebServer | None) -> None:
        log.info("stopping", leads=self._elector.leads)
        self._stopping.set()
        has_ended = self._reconciler.stop(_STOP_SECONDS)
        if self._labeller is not None:
            has_ended &= self._labeller.stop(_STOP_SECONDS)
        if has_ended and not self._actor.is_in_doubt:
            self._elector.stop()
        else:
            # It is held until the process ends, and runs out then.
            log.warning("lease not given back, since a write may be on its way; a successor has to wait")
        self._events.stop()
        self._watcher.stop(1.0)
        if web is not None:
            web.stop()
