"""The registration service: tells the kubelet who we are, and hears whether it takes us."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from dradriver.kubelet._grpc import Call, SocketServer, grpc, unary_service
from dradriver.kubelet.sockets import need_folder
from dradriver.proto.registration_v1_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)

_log = logging.getLogger(__name__)

PLUGIN_TYPE: Final = "DRAPlugin"
VERSIONS: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""Best first. Kubernetes 1.34 and newer know both, 1.32 and 1.33 only the second."""

HEALTH_VERSIONS: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""To be told behind `VERSIONS`. Kubernetes 1.37 opens the first that it knows, and none that it is not told of; older
ones skip names that they do not know, and ask for v1alpha1 always."""

_WORKERS: Final = 2


class RegistrationServer:
    """Serves the registration socket; the kubelet finds it, asks, and tells us its verdict.

    The kubelet removes this node's ResourceSlices at its own start and asks again after that. So each
    verdict `True` means: publish now.
    """

    def __init__(
        self,
        *,
        driver_name: str,
        endpoint: Path,
        socket_path: Path,
        on_status: Callable[[bool, str], None],
        versions: Sequence[str] = VERSIONS,
    ) -> None:
        """Keep what is needed to serve.

        Args:
            driver_name: as in ResourceSlices.
            endpoint: absolute path of the DRA socket, as the host sees it.
            socket_path: absolute; its folder has to exist.
            on_status: called from a gRPC thread after each verdict with (registered, reason why not). It has
                to return within the kubelet's 5 s.
            versions: services of the endpoint, best first.

        Raises:
            SocketPathTooLongError: no socket can have this path.
        """
        self._info = PluginInfo(type=PLUGIN_TYPE, name=driver_name, endpoint=str(endpoint), supported_versions=versions)
        self._on_status = on_status
        self._server = SocketServer(
            socket_path,
            services=[unary_service("pluginregistration.Registration", self._calls())],
            workers=_WORKERS,
            provide_folder=need_folder,
        )

    @property
    def serving(self) -> bool:
        """The kubelet can find us."""
        return self._server.serving

    def start(self) -> None:
        """Listen: from here on the kubelet may register us and call the endpoint.

        Raises:
            RegistryMissingError: there is no registry folder.
            KubeletError: the socket cannot be made; see `dradriver.kubelet.errors`.
        """
        self._server.start()

    def ensure(self) -> bool:
        """Make the socket again if it has been removed; returns whether it was. Raises as `start` does."""
        return self._server.ensure()

    def stop(self, grace: float = 0.0) -> None:
        """Remove the socket, which deregisters us, and stop after at most `grace` seconds."""
        self._server.stop(grace)

    def _calls(self) -> dict[str, Call]:
        return {
            "GetInfo": (self._get_info, InfoRequest, PluginInfo),
            "NotifyRegistrationStatus": (self._notify, RegistrationStatus, RegistrationStatusResponse),
        }

    def _get_info(self, _request: InfoRequest, _context: grpc.ServicerContext) -> PluginInfo:
        return self._info

    def _notify(self, status: RegistrationStatus, _context: grpc.ServicerContext) -> RegistrationStatusResponse:
        if status.plugin_registered:
            _log.info("registered with the kubelet")
        else:
            _log.error("the kubelet refused to register %s: %s", self._info.name, status.error)
        try:
            self._on_status(status.plugin_registered, status.error)
        except Exception:  # noqa: BLE001 - the seam: the kubelet must not take our trouble for a refusal
            _log.exception("reacting to the kubelet's verdict crashed")
        return RegistrationStatusResponse()
