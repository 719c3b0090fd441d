"""Both servers, in the order in which they have to come and go."""

import logging
from collections.abc import Callable
from typing import Final

from dradriver.kubelet.dra import WORKERS, DraServer
from dradriver.kubelet.health import HealthBoard
from dradriver.kubelet.model import ClaimHandler
from dradriver.kubelet.paths import SocketPaths
from dradriver.kubelet.registration import HEALTH_VERSIONS, VERSIONS, RegistrationServer
from dradriver.kubelet.sockets import remove_dead_siblings

_log = logging.getLogger(__name__)

STOP_SECONDS: Final = 20.0
"""Of the 30 s that a pod is given by default, so that the rest of the shutdown has time too."""


class Plugin:
    """What the kubelet sees of this process.

    Start:

    1. `serve`: remove what killed pods of this driver have left, then open the DRA socket. Nobody calls yet.
    2. The caller replays its journal.
    3. `register`: open the registration socket. The kubelet calls from here on.

    Stop:

    1. Remove the registration socket: the kubelet chooses another instance, or counts its 30 s.
    2. End the streams of health.
    3. Refuse new calls and wait for the running ones, at most `grace` seconds.
    4. Remove the DRA socket. Slices stay: they are the kubelet's to remove when we do not come back.
    """

    def __init__(
        self,
        handler: ClaimHandler,
        *,
        driver_name: str,
        paths: SocketPaths,
        on_status: Callable[[bool, str], None],
        board: HealthBoard | None = None,
        workers: int = WORKERS,
    ) -> None:
        """Keep what is needed; see `DraServer` and `RegistrationServer`.

        Without a board there is no health service, and the kubelet is not told of one.

        Raises:
            SocketPathTooLongError: a path is longer than 107 bytes.
        """
        self._driver_name = driver_name
        self._paths = paths
        self._dra = DraServer(handler, paths.dra, board=board, workers=workers)
        self._registration = RegistrationServer(
            driver_name=driver_name,
            endpoint=paths.dra,
            socket_path=paths.registration,
            on_status=on_status,
            versions=(*VERSIONS, *HEALTH_VERSIONS) if board else VERSIONS,
        )

    @property
    def serving(self) -> bool:
        """Both sockets are there and ours."""
        return self._dra.serving and self._registration.serving

    def serve(self) -> None:
        """Open the DRA socket.

        Raises:
            KubeletError: see `dradriver.kubelet.errors`.
        """
        for path in remove_dead_siblings(self._paths, self._driver_name):
            _log.info("removed the socket %s of an instance that was killed", path)
        self._dra.start()

    def register(self) -> None:
        """Open the registration socket.

        Raises:
            RegistryMissingError: there is no registry folder.
            KubeletError: see `dradriver.kubelet.errors`.
        """
        self._registration.start()

    def ensure(self) -> bool:
        """Bring back sockets that someone has removed; to be called every few seconds.

        Returns whether that was needed.

        Raises:
            KubeletError: it is not possible now; call again.
        """
        restored = self._dra.ensure()
        return self._registration.ensure() or restored

    def stop(self, grace: float = STOP_SECONDS) -> None:
        """Leave in the order above; safe to call at any time, also twice."""
        self._registration.stop()
        self._dra.stop(grace)
