"""A store kept equal to what the API server has: list once, then watch for ever.

In three levels, each testable alone: `Reflector.run` never ends and owns the delays; `Reflector.round` lists if it
has to and then watches once; `Reflector._stream` is one watch request.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import structlog

from dradriver.kube.backoff import Backoff
from dradriver.kube.client import Client, Selector, Watch
from dradriver.kube.errors import GoneError, KubeError, ServerError, UnreachableError
from dradriver.kube.resources import Object, Resource
from dradriver.kube.store import Store, key_of

_PAGE = 500
_SMALL_PAGE = 100
"""Objects that are asked for at once. Where little is kept of them, the page that is being read is most of what the
process ever needs: a slice of partitions is 50 KiB of text, and many times that as an object."""

_FAILURES_BEFORE_LIST = 3

_EARLY = 2.0
"""Seconds by which a stream may miss its length; a server that ends it earlier shuts down."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times of a reflector, in seconds, and where it takes time and chance from.

    Attributes:
        shortest: lower bound of what we ask the server as the length of one watch.
        longest: upper bound; chosen at random in between so that not all nodes come back together.
        silence: after which the connection counts as dead. API servers send a bookmark each minute (seen on 1.34 and
            1.37), so that two have been missed by then.
        healthy: a stream that lived that long was a good one. A shorter one is a failure, even if it ended
            without an error: a server that ends every stream at once must not be asked in a tight loop.
        backoff: delays after failures.
        unreached: upper bound of the delays while there is no answer at all, which burdens nobody; what waits for the
            server to be back waits for this at most.
        clock: monotonic seconds.
        chance: random number in [0, 1).
    """

    shortest: float = 240.0
    longest: float = 480.0
    silence: float = 150.0
    healthy: float = 5.0
    backoff: Backoff = field(default_factory=Backoff)
    unreached: float = 10.0
    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random

    def watch_seconds(self) -> float:
        """Length to ask for."""
        return self.shortest + (self.longest - self.shortest) * self.chance()

    def delay(self, error: Exception | None, failures: int) -> float:
        """Seconds to wait after that many failures in a row, the last of which was this error (None: an early end)."""
        delay = self.backoff.delay_for(error, failures, chance=self.chance)
        return min(delay, self.unreached) if isinstance(error, UnreachableError) else delay


class Reflector:
    """Keeps a store current in a thread of its own.

    The callback runs on that thread, between two reads from the stream: it may note a key somewhere (a WorkQueue)
    and do nothing else.

    Args:
        client: access to the API server.
        resource: what to follow.
        store: where it goes; it may have other writers.
        selector: which objects.
        on_change: called with the key of each object that changed or vanished, and for a list with "".
        on_return: called when the server answers again after it did not, or after it ended a stream before its time:
            it may have been restarted as another version.
        project: what the store keeps of an object; its metadata with name, namespace, uid and resourceVersion has to be
            kept. With it a list is read page by page from the newest state, for one process that follows a whole
            cluster; without it as the server has it in its cache, for a process on each node.
        pace: times.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        store: Store,
        *,
        selector: Selector = Selector(),  # noqa: B008 - frozen
        on_change: Callable[[str], None] = lambda _key: None,
        on_return: Callable[[], None] = lambda: None,
        project: Callable[[Object], Object] | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._client = client
        self._resource = resource
        self._store = store
        self._selector = selector
        self._on_change = on_change
        self._on_return = on_return
        self._project = project or _all_of_it
        self._cached = "" if project else "0"
        self._page = _SMALL_PAGE if project else _PAGE
        self._pace = pace or Pace()
        self._position = ""
        self._watch: Watch | None = None
        self._opened: float | None = None
        self._is_lost = False
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._woken = threading.Event()
        self._synced = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def has_synced(self) -> bool:
        """Whether a list has arrived at any time."""
        return self._synced.is_set()

    @property
    def error(self) -> Exception | None:
        """What ended the last round early; None where nothing did, and while a stream is open."""
        return self._error

    def wait_synced(self, timeout: float) -> bool:
        """Wait for the first list, at most that many seconds."""
        return self._synced.wait(timeout)

    def start(self) -> None:
        """Start the thread."""
        name = f"reflector-{self._resource.plural}"
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def end(self) -> None:
        """End the stream, and the thread as soon as it comes back from a call; does not wait for that."""
        # In this order, see _wait.
        self._stopped.set()
        self._woken.set()
        with self._lock:
            if self._watch is not None:
                self._watch.abort()

    def wake(self) -> None:
        """The server is known to answer others again: end a rest that it owes to not answering. Harmless otherwise."""
        self._woken.set()

    def stop(self, timeout: float = 5.0) -> bool:
        """`end`, and wait; False if the thread still hangs in a call after that many seconds."""
        self.end()
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def run(self, *, rounds: int | None = None) -> None:
        """Go round until stopped, or that many times."""
        failures = 0
        while not self._stopped.is_set() and rounds != 0:
            rounds = None if rounds is None else rounds - 1
            error = self._error = self._attempt()
            failures = 0 if self._was_healthy() else failures + 1
            self._rest(error, failures)

    def round(self) -> None:
        """List unless we know where to go on, then follow one stream to its end.

        Raises:
            KubeError: whatever ended it early; after GoneError the next round lists.
        """
        if not self._position:
            self._list()
        try:
            self._stream()
        except GoneError:
            self._position = ""
            raise

    def _attempt(self) -> Exception | None:
        self._opened = None
        try:
            self.round()
        except GoneError as error:
            return error
        except KubeError as error:
            self._is_lost = True
            return error
        except Exception as error:
            log.exception("defect in a reflector", resource=self._resource.plural)
            return error
        return None

    def _was_healthy(self) -> bool:
        return self._opened is not None and self._pace.clock() - self._opened >= self._pace.healthy

    def _rest(self, error: Exception | None, failures: int) -> None:
        """Wait as the last round deserves it. The first expired position costs nothing: that is daily life."""
        if self._stopped.is_set() or failures == 0:
            return
        if isinstance(error, GoneError) and failures == 1:
            return
        if failures >= _FAILURES_BEFORE_LIST:
            # A position the server cannot serve (restored from a backup) would fail for ever.
            self._position = ""
        delay = self._pace.delay(error, failures)
        log.warning(
            "watch failed, will try again",
            resource=self._resource.plural,
            error=str(error or "the server ended the stream at once"),
            failures=failures,
            seconds=round(delay, 1),
        )
        self._wait(delay, wakeable=isinstance(error, UnreachableError | ServerError))

    def _wait(self, seconds: float, *, wakeable: bool) -> None:
        (self._woken if wakeable else self._stopped).wait(seconds)
        if not self._stopped.is_set():
            self._woken.clear()

    def _list(self) -> None:
        # "0" lets the server answer from its cache: a whole cluster of nodes may come at the same time.
        listing = self._client.list(
            self._resource,
            selector=self._selector,
            resource_version=self._cached,
            limit=self._page,
            project=self._project,
        )
        if not self._store.replace(listing.items, listing.resource_version):
            since = self._store.floor
            listing = self._client.list(
                self._resource, selector=self._selector, limit=self._page, project=self._project
            )
            self._store.replace(listing.items, listing.resource_version, since=since)
        self._position = listing.resource_version
        self._synced.set()
        self._on_change("")
        self._note_return()

    def _note_return(self) -> None:
        if self._is_lost:
            self._is_lost = False
            self._on_return()

    def _stream(self) -> None:
        seconds = self._pace.watch_seconds()
        watch = self._client.watch(
            self._resource,
            selector=self._selector,
            resource_version=self._position,
            seconds=seconds,
            silence=self._pace.silence,
        )
        self._opened = self._pace.clock()
        self._error = None
        self._note_return()
        with watch, self._abortable(watch):
            for event in watch.events():
                self._deliver(event.type, event.object)
        self._is_lost = self._pace.clock() - self._opened < seconds - _EARLY

    @contextlib.contextmanager
    def _abortable(self, watch: Watch) -> Iterator[None]:
        with self._lock:
            self._watch = watch
        if self._stopped.is_set():
            watch.abort()
        try:
            yield
        finally:
            with self._lock:
                self._watch = None

    def _deliver(self, kind: str, item: Object) -> None:
        if kind in {"ADDED", "MODIFIED"}:
            changed = self._store.put(self._project(item), watched=True)
        else:
            changed = kind == "DELETED" and self._store.remove(item)
        self._position = str(item["metadata"]["resourceVersion"])
        if changed:
            self._on_change(key_of(item))


def _all_of_it(item: Object) -> Object:
    return item
