"""Keeps nodes' labels: one worker, node by node, and only as long as this process leads."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from controller.api import BRIDGES, Mode, resource_name_of
from controller.labelling.features import Publication, features
from controller.labelling.names import LABEL_MANAGER, STRATEGY
from controller.labelling.pacing import Pace
from controller.labelling.planning import plan
from controller.labelling.projections import HeldLabels, project_facts, project_labels
from controller.watching import Watcher
from controller.watching.news import News
from controller.watching.watcher import Listener
from dradriver.kube import (
    NODES,
    RESOURCE_SLICES,
    Backoff,
    Client,
    ConflictError,
    InvalidError,
    KubeError,
    NotFoundError,
    Resource,
    WorkQueue,
)

log = structlog.get_logger(__name__)

GRACE_SECONDS: Final = 600.0
"""For which a node has to publish nothing before its labels go: a driver that is updated is away for minutes."""

_LOOK: Final = ""
"""Key of the work queue for taking in what has changed; all others are names of nodes."""

_GATHER_SECONDS: Final = 0.5
_BETWEEN_SECONDS: Final = 0.02
"""Between two writes, so that thousands of nodes at once are no burden for the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Times.

    Attributes:
        grace: seconds for which a node has to publish nothing before its labels go.
        gather: seconds by which changes are gathered.
        between: seconds between two writes.
        pace: time between writes to one node.
        backoff: delays after failures.
        clock: monotonic seconds.
    """

    grace: float = GRACE_SECONDS
    gather: float = _GATHER_SECONDS
    between: float = _BETWEEN_SECONDS
    pace: Pace = field(default_factory=Pace)
    backoff: Backoff = field(default_factory=Backoff)
    clock: Callable[[], float] = time.monotonic


class Labeller:
    """Applies labels.

    Args:
        client: access to the API server.
        watcher: from which slices, nodes and bridges are read; not started yet.
        may_act: asked before every write; the work ends where it says no.
        on_write: told how each attempt ended: `written`, `conflict`, or `failed`.
        on_counts: told on how many nodes there are labels of ours, and on how many somebody else holds some.
        terms: times.
    """

    def __init__(
        self,
        client: Client,
        watcher: Watcher,
        *,
        may_act: Callable[[], bool],
        on_write: Callable[[str], None] = lambda _outcome: None,
        on_counts: Callable[[int, int], None] = lambda _labelled, _yielding: None,
        terms: Terms | None = None,
    ) -> None:
        self._client = client
        self._watcher = watcher
        self._may_act = may_act
        self._on_write = on_write
        self._on_counts = on_counts
        self._terms = terms or Terms()
        self._queue: WorkQueue[str] = WorkQueue(backoff=self._terms.backoff, clock=self._terms.clock)
        self._news: News[Resource] = News()
        self._node_of: dict[str, str] = {}
        self._slices_of: dict[str, set[str]] = {}
        self._bridged: frozenset[str] = frozenset()
        self._looked: dict[str, HeldLabels] = {}
        self._gone: dict[str, float] = {}
        self._labelled: set[str] = set()
        self._yielding: set[str] = set()
        self._failures = 0
        self._next = -float("inf")
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        for resource, project in ((RESOURCE_SLICES, project_facts), (NODES, project_labels), (BRIDGES, None)):
            watcher.listen(resource, Listener(project=project, on_change=self._noter(resource)))

    def start(self) -> None:
        """Start working, on everything."""
        self._queue.add(_LOOK)
        self._thread = threading.Thread(target=self.run, name="labeller", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> bool:
        """Finish what is being worked on; False if that still hangs in a call after so many seconds."""
        self._ended.set()
        self._queue.close()
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def has_ended(self) -> bool:
        """Whether it was started and works no more."""
        return self._thread is not None and not self._thread.is_alive()

    def run(self) -> None:
        """Work until stopped, or until this process does not lead any more."""
        while (key := self._queue.get()) is not None:
            try:
                self._work(key)
            finally:
                self._queue.done(key)
            if not self._may_act():
                log.warning("stopped labelling", reason="this process does not lead any more")
                return

    def _work(self, key: str) -> None:
        try:
            if key == _LOOK:
                self._look()
            else:
                self._settle(key)
            self._on_counts(len(self._labelled), len(self._yielding))
        except Exception as error:
            delay = self._queue.retry(key)
            log.exception("defect in the labeller", node=key, error=str(error), seconds=round(delay, 1))

    # --- what there is ---------------------------------------------------------------------------

    def _noter(self, resource: Resource) -> Callable[[str], None]:
        def note(key: str) -> None:
            self._news.add(resource, key)
            self._queue.add_after(_LOOK, self._terms.gather)

        return note

    def _look(self) -> None:
        nodes: set[str] = set()
        for resource, key in self._news.take():
            nodes |= self._concerned(resource, key)
        for node in sorted(nodes):
            self._queue.add(node)

    def _concerned(self, resource: Resource, key: str) -> set[str]:
        """Find the nodes that a change concerns; the key "" is a list, after which everything may be different."""
        if resource is BRIDGES:
            return self._renamed()
        if resource is NODES:
            keys = [key] if key else self._watcher.items(NODES).keys() | self._looked.keys()
            return {each for each in keys if not self._is_known(each)}
        if key:
            return self._index(key)
        return set().union(*(self._index(each) for each in self._watcher.items(RESOURCE_SLICES) | self._node_of))

    def _is_known(self, node: str) -> bool:
        """Whether a node's labels are as they were when nothing was to be done: its kubelet writes it all the time."""
        item = self._watcher.item(NODES, node)
        return item is not None and self._looked.get(node) == item["more"]

    def _index(self, key: str) -> set[str]:
        """Note on which node a slice is, and was."""
        item = self._watcher.item(RESOURCE_SLICES, key)
        former, node = self._node_of.pop(key, ""), "" if item is None else item["seen"].node
        if former:
            self._slices_of[former].discard(key)
        if node:
            self._node_of[key] = node
            self._slices_of.setdefault(node, set()).add(key)
        return {former, node} - {""}

    def _renamed(self) -> set[str]:
        """Take the names of bridges as they are now; nodes whose labels may depend on it."""
        names = frozenset(
            resource_name_of(item)
            for item in self._watcher.bridges()
            if item.get("spec", {}).get("mode") != Mode.DISABLED
        )
        if names == self._bridged:
            return set()
        self._bridged = names
        return set(self._slices_of)

    # --- what is done ----------------------------------------------------------------------------

    def _settle(self, node: str) -> None:
        item = self._watcher.item(NODES, node)
        if item is None:
            self._forget(node)
            return
        held: HeldLabels = item["more"]
        _mark(self._labelled, node, is_in=bool(held.mine))
        wanted = self._wanted(node, held)
        if wanted is None:
            # What changes that comes with a slice, or with time.
            self._looked[node] = held
            return
        _mark(self._yielding, node, is_in=any(name in wanted for name, _ in held.foreign))
        uid = str(item["metadata"].get("uid", ""))
        labels = plan(wanted, held)
        if labels is None:
            self._looked[node] = held
        else:
            self._looked.pop(node, None)
            self._write(node, uid, labels)

    def _wanted(self, node: str, held: HeldLabels) -> dict[str, str] | None:
        """Labels for the node; None where it is to stay as it is."""
        keys = self._slices_of.get(node, ())
        items = [item for key in keys if (item := self._watcher.item(RESOURCE_SLICES, key)) is not None]
        found = features(
            [Publication(slice=item["seen"], facts=item["more"]) for item in items],
            bridged=self._bridged,
            strategy=dict(held.foreign).get(STRATEGY, ""),
        )
        if found is None or found:
            self._gone.pop(node, None)
            return found
        return self._after_grace(node) if held.mine else None

    def _after_grace(self, node: str) -> dict[str, str] | None:
        """No labels, once nothing has been published for long enough."""
        now = self._terms.clock()
        left = self._gone.setdefault(node, now) + self._terms.grace - now
        if left <= 0:
            return {}
        self._queue.add_after(node, left)
        return None

    def _forget(self, node: str) -> None:
        for known in (self._labelled, self._yielding):
            known.discard(node)
        self._looked.pop(node, None)
        self._gone.pop(node, None)
        self._terms.pace.forget(node)
        if not self._slices_of.get(node):
            self._slices_of.pop(node, None)

    def _write(self, node: str, uid: str, labels: dict[str, str]) -> None:
        now = self._terms.clock()
        if (wait := self._terms.pace.wait(node, labels, now=now)) > 0:
            self._queue.add_after(node, wait)
            return
        if self._ended.wait(max(0.0, self._next - now)) or not self._may_act():
            return
        self._next = self._terms.clock() + self._terms.between
        # The uid, since server-side apply would make a node that is gone, had we the right to.
        metadata = {"name": node, "uid": uid} | ({"labels": labels} if labels else {})
        body = {"apiVersion": NODES.api_version, "kind": NODES.kind, "metadata": metadata}
        try:
            # Never with force: what somebody has got hold of meanwhile is a conflict, and stays theirs.
            self._client.apply(NODES, body, field_manager=LABEL_MANAGER, force=False)
        except NotFoundError:
            return
        except KubeError as error:
            self._fail(node, error)
            return
        self._failures = 0
        self._terms.pace.wrote(node, labels, now=self._terms.clock())
        self._queue.forget(node)
        self._on_write("written")
        log.info("labelled", node=node, labels=len(labels))

    def _fail(self, node: str, error: KubeError) -> None:
        delay = self._queue.retry(node, error=error)
        if not isinstance(error, ConflictError | InvalidError):
            # What fails for one node does so for all of them.
            self._failures += 1
            self._next = self._terms.clock() + self._terms.backoff.delay_for(error, self._failures)
        self._on_write("conflict" if isinstance(error, ConflictError) else "failed")
        log.warning("will try again to label", node=node, error=str(error), seconds=round(delay, 1))


def _mark(known: set[str], node: str, *, is_in: bool) -> None:
    if is_in:
        known.add(node)
    else:
        known.discard(node)
