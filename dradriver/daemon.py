"""The kubelet plugin, put together: with `runtime`, the only module that knows every room.

Start: the DRA socket is served first, since a restarted plugin is called at once by a kubelet that knows it;
then the Kubernetes client and NVML are loaded side by side; then the pool is computed; then the registration
socket invites the kubelet, while slices are published.

Stop: streams of health end first, since they are calls that nobody else ends; then registration goes, so that the
kubelet sends nothing more; calls under way are finished; slices stay, since the kubelet removes them itself if nobody
comes back within 30 s.

After an upgrade of the driver the process stops and starts anew, since it cannot load another NVML library.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Final

from dradriver import api
from dradriver.ending import Ending, last_acts
from dradriver.flags import Options
from dradriver.kubelet import (
    ClaimHandler,
    ClaimReference,
    Failed,
    HealthBoard,
    KubeletError,
    Plugin,
    Prepared,
    socket_paths,
)

if TYPE_CHECKING:
    from dradriver.runtime import Runtime

SOCKET_CHECK_SECONDS: Final = 5.0
"""How often removed sockets are looked for."""

_log = logging.getLogger(__name__)


class DaemonError(Exception):
    """Why the plugin cannot run: one sentence for the person who started it."""


class Daemon:
    """One kubelet plugin, from start to stop."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._ending = Ending()
        self._terminated = False
        self._outdated = False
        self._gate = Gate()
        self._board = HealthBoard()
        self._runtime: Runtime | None = None

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; returns the exit status.

        Where only a new process can go on, this one stops in order and becomes it: same pid, same arguments, so that
        nobody counts it as a crash, and the kubelet finds the sockets again before it has missed them.

        Raises:
            DaemonError: it cannot start.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._terminate())
        plugin = self._plugin()
        try:
            plugin.serve()
            self._serve(plugin)
        except KubeletError as error:
            raise DaemonError(str(error)) from error
        finally:
            self._board.close()
            self._gate.close()
            if self._runtime is not None:
                self._runtime.hurry()
            plugin.stop()
            if self._runtime is not None:
                self._runtime.stop()
        if self._outdated and not self._terminated:
            _become_new()
        return 0

    def _terminate(self) -> None:
        self._terminated = True
        self._ending.ask()

    def _renew(self) -> None:
        self._outdated = True
        self._ending.ask()

    def _plugin(self) -> Plugin:
        try:
            paths = socket_paths(
                api.DRIVER_NAME,
                plugins_folder=self._options.plugins_folder,
                registry_folder=self._options.registry_folder,
                pod_uid=self._options.pod_uid,
            )
        except KubeletError as error:
            raise DaemonError(str(error)) from error
        return Plugin(
            self._gate, driver_name=api.DRIVER_NAME, paths=paths, on_status=self._on_status, board=self._board
        )

    def _serve(self, plugin: Plugin) -> None:
        # Everything behind this import takes a while to load; the DRA socket is up by now.
        from dradriver.runtime import Runtime, RuntimeStartError  # noqa: PLC0415

        try:
            self._runtime = Runtime(self._options, on_outdated=self._renew, board=self._board)
            self._gate.open(self._runtime.start())
        except RuntimeStartError as error:
            raise DaemonError(str(error)) from error
        if self._ending.wait(0):
            return
        plugin.register()
        # By the time of the first look, the slices are published if the API server is there at all.
        if not self._ending.wait(SOCKET_CHECK_SECONDS):
            self._runtime.settle()
            _keep(plugin)
        while not self._ending.wait(SOCKET_CHECK_SECONDS):
            _keep(plugin)

    def _on_status(self, registered: bool, message: str) -> None:  # noqa: FBT001 (called so by the kubelet room)
        if self._runtime is not None:
            self._runtime.on_registration(registered=registered, message=message)


def _become_new() -> None:
    _log.warning("this process starts anew")
    last_acts()
    # Files of libraries, such as the driver's device nodes, would stay open in the new process.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 (no shell is wanted)


def _keep(plugin: Plugin) -> None:
    """Bring removed sockets back; what cannot be mended now is tried again."""
    try:
        plugin.ensure()
    except KubeletError as error:
        _log.error("a socket of this plugin is gone: %s", error)


class Gate:
    """Stands in for the preparer while it is being put together: a call that comes early waits for it.

    A kubelet that knew an earlier process calls as soon as the socket is there; refusing it would cost the
    pod a minute, since the kubelet is in no hurry to try again.
    """

    PATIENCE: Final = 40.0
    """Seconds; the kubelet gives up after 45."""

    def __init__(self) -> None:
        self._handler: Future[ClaimHandler] = Future()

    def open(self, handler: ClaimHandler) -> None:
        """Let calls through."""
        if not self._handler.cancelled():
            self._handler.set_result(handler)

    def close(self) -> None:
        """Give up on the preparer, if it is not there yet: calls that wait are answered now."""
        self._handler.cancel()

    def prepare(self, claims: Sequence[ClaimReference], *, deadline: float) -> Mapping[str, Prepared | Failed]:
        """Pass on as soon as possible."""
        handler = self._wait(deadline)
        return handler.prepare(claims, deadline=deadline) if handler else _not_yet(claims)

    def unprepare(self, claims: Sequence[ClaimReference], *, deadline: float) -> Mapping[str, Failed | None]:
        """Pass on as soon as possible."""
        handler = self._wait(deadline)
        return handler.unprepare(claims, deadline=deadline) if handler else _not_yet(claims)

    def _wait(self, deadline: float) -> ClaimHandler | None:
        try:
            return self._handler.result(timeout=min(self.PATIENCE, max(0.0, deadline - time.monotonic() - 1)))
        except (TimeoutError, CancelledError):
            return None


def _not_yet(claims: Sequence[ClaimReference]) -> dict[str, Failed]:
    message = "the driver on this node is still starting: see the log of the kubelet plugin for what it waits for"
    return {claim.uid: Failed(f"claim {claim.namespace}/{claim.name}: {message}") for claim in claims}
