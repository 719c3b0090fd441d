"""We and the kubelet: the sockets it finds us by, the calls it makes, our answers.

The only user of gRPC and of the generated messages. Nothing of them gets out of here: claims come as
`ClaimReference`, answers go as `Prepared` or `Failed`, verdicts on devices as `DeviceHealth`, errors are a
`KubeletError`.
"""

from dradriver.kubelet.dra import DraServer
from dradriver.kubelet.errors import (
    KubeletError,
    RegistryMissingError,
    SocketFolderError,
    SocketInUseError,
    SocketPathBlockedError,
    SocketPathTooLongError,
)
from dradriver.kubelet.health import DeviceHealth, Health, HealthBoard
from dradriver.kubelet.model import ClaimHandler, ClaimReference, Failed, Prepared, PreparedDevice
from dradriver.kubelet.paths import SocketPaths, socket_paths
from dradriver.kubelet.plugin import Plugin
from dradriver.kubelet.registration import RegistrationServer

__all__ = [
    "ClaimHandler",
    "ClaimReference",
    "DeviceHealth",
    "DraServer",
    "Failed",
    "Health",
    "HealthBoard",
    "KubeletError",
    "Plugin",
    "Prepared",
    "PreparedDevice",
    "RegistrationServer",
    "RegistryMissingError",
    "SocketFolderError",
    "SocketInUseError",
    "SocketPathBlockedError",
    "SocketPathTooLongError",
    "SocketPaths",
    "socket_paths",
]
