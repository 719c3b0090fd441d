"""What is wanted of this node, kept up to date: the file is looked at every second, the node is watched."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from dradriver.gpu.policy import OfferPolicy
from dradriver.kube import Client, Pace
from dradriver.nodeconfig import file, memory
from dradriver.nodeconfig.choice import Choice
from dradriver.nodeconfig.labels import NodeLabels
from dradriver.nodeconfig.memory import Remembered
from dradriver.nodeconfig.wanted import Labels, Wanted

if TYPE_CHECKING:
    from dradriver.api.node_config import HealthPolicy, NodeConfig

LOOK_SECONDS: Final = 1.0
"""How often the file is looked at."""

_log = structlog.get_logger()


class NodeConfiguration:
    """Follows the configuration of one node.

    `load` first, which needs no API server; then `start`. Nothing may be offered before `current.settled`.

    Args:
        path: the file of node configurations, None where the flags alone decide.
        remembered: small file in which what holds is kept for the next start.
        node_name: the node.
        defaults: what the flags say.
        on_change: called with what is wanted whenever that differs from before, on one thread; the next change waits
            until it returns.
        pace: times of the watch.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        remembered: Path,
        node_name: str,
        defaults: OfferPolicy,
        on_change: Callable[[Wanted], None] = lambda _wanted: None,
        pace: Pace | None = None,
    ) -> None:
        self._path = path
        self._memory = remembered
        self._node_name = node_name
        self._on_change = on_change
        self._pace = pace
        self._choice = Choice(path, defaults)
        self._current = self._told = Wanted(policy=defaults)
        self._remembered: Remembered | None = None
        self._mark: file.Mark | None = None
        self._seen: tuple[file.Mark | None, Labels | None, str] | None = None
        self._settled = False
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._labels: NodeLabels | None = None
        self._thread = threading.Thread(target=self._run, name="node-config", daemon=True)

    @property
    def current(self) -> Wanted:
        """What is wanted now."""
        return self._current

    @property
    def alive(self) -> bool:
        """Its threads run; only a new process can mend it if they do not."""
        return self._thread.is_alive() and self._labels is not None and self._labels.alive

    def load(self) -> Wanted:
        """Read the file and what an earlier process remembered; never fails, and does not call `on_change`."""
        self._look_at_file()
        self._remembered = memory.recall(self._memory)
        if self._remembered is not None:
            config = _config(self._path, self._remembered)
            health = None if config is None else _health(config, self._remembered)
            self._choice.recall(self._remembered, config, health)
        self._current = self._told = self._choice.choose(None, settled=False)
        return self._current

    def start(self, client: Client) -> None:
        """Follow file and node from now on; `on_change` is called once the node's labels are known."""
        self._labels = NodeLabels(client, self._node_name, on_change=self._news.set, pace=self._pace)
        self._labels.start()
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> bool:
        """End both threads; False if one still hangs after that many seconds."""
        self._stopping.set()
        self._news.set()
        ended = self._labels is None or self._labels.stop(timeout)
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return ended and not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.look()
            except Exception:  # noqa: BLE001 (whatever it was)
                # The next look may go better, and without any the node would stay as it is for ever.
                _log.exception("defect in following the node configuration")
            self._news.wait(LOOK_SECONDS)
            self._news.clear()

    def look(self) -> None:
        """Compare with file and labels as they are now, and tell what is new. For the thread of its own."""
        self._look_at_file()
        assert self._labels is not None  # noqa: S101 (it runs after `start` only)
        labels, trouble = self._labels.read(), self._labels.trouble()
        if self._seen == (self._mark, labels, trouble):
            return
        self._settled = self._settled or labels is not None
        wanted = self._choice.choose(labels, settled=self._settled, trouble=trouble)
        self._keep()
        self._current = wanted
        if wanted != self._told or wanted.clear != self._told.clear:
            self._on_change(wanted)
            self._told = wanted
        self._seen = self._mark, labels, trouble

    def _look_at_file(self) -> None:
        if self._path is None:
            return
        # Taken before the file is read: what changes meanwhile is read again.
        mark = file.look(self._path)
        if mark == self._mark:
            return
        self._mark = mark
        try:
            self._choice.take(file.read(self._path))
        except FileNotFoundError:
            self._choice.take(None)
        except OSError as error:
            self._choice.take(file.unreadable(error))
            # That may pass without a change of the file.
            self._mark = None

    def _keep(self) -> None:
        """Remember what holds, for the next process."""
        if not self._settled:
            return
        now = self._choice.to_remember()
        if now != self._remembered:
            memory.remember(self._memory, now)
            self._remembered = now


def _config(path: Path | None, remembered: Remembered) -> "NodeConfig | None":
    """Understand a remembered configuration; None where there is none, or another version had written it."""
    if path is None or remembered.config is None:
        return None
    from dradriver.api.node_config import NodeConfig, decode_config  # noqa: PLC0415 (takes pydantic)

    config = decode_config(dict(remembered.config), name=remembered.name)
    return config if isinstance(config, NodeConfig) else None


def _health(config: "NodeConfig", remembered: Remembered) -> "HealthPolicy | None":
    """Understand a remembered health policy; where another version wrote it, take the built-in one of its name."""
    from dradriver.api.node_config import BUILT_IN_POLICIES, HealthPolicy, decode_policy  # noqa: PLC0415 (likewise)

    if config.health_policy is None:
        return None
    policy = None if remembered.health is None else decode_policy(dict(remembered.health), name=config.health_policy)
    return policy if isinstance(policy, HealthPolicy) else BUILT_IN_POLICIES.get(config.health_policy)
