"""Where our two sockets lie."""

import base64
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dradriver.kubelet.errors import SocketPathTooLongError

MAX_PATH_BYTES: Final = 107
"""sun_path of unix(7) has 108 bytes, one of them for the closing NUL."""

PLUGINS_FOLDER: Final = Path("/var/lib/kubelet/plugins")
REGISTRY_FOLDER: Final = Path("/var/lib/kubelet/plugins_registry")


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketPaths:
    """Absolute paths, the same on the host and in our mount namespace: the kubelet dials what we tell it.

    Attributes:
        dra: the DRA service, in a folder of our own.
        registration: the registration service, in the folder that the kubelet watches.
    """

    dra: Path
    registration: Path


def socket_paths(
    driver_name: str,
    *,
    plugins_folder: Path = PLUGINS_FOLDER,
    registry_folder: Path = REGISTRY_FOLDER,
    pod_uid: str = "",
) -> SocketPaths:
    """Choose the sockets' paths.

    With a pod's UID both names are unique to that pod, so that the old and the new pod of a rolling update
    can serve side by side; the names are those of Kubernetes' own helper library, its shorter forms
    included.

    Raises:
        SocketPathTooLongError: no form fits into 107 bytes.
    """
    plugins, registry = _absolute(plugins_folder), _absolute(registry_folder)
    dra = plugins / driver_name / (f"dra-{pod_uid}.sock" if pod_uid else "dra.sock")
    candidates = [registry / name for name in _registration_names(driver_name, pod_uid)]
    registration = next((path for path in candidates if path_fits(path)), candidates[-1])
    check_path(dra)
    check_path(registration)
    return SocketPaths(dra=dra, registration=registration)


def path_fits(path: Path) -> bool:
    """Tell whether a socket can have this path."""
    return len(os.fsencode(path)) <= MAX_PATH_BYTES


def check_path(path: Path) -> None:
    """Refuse a path that no socket can have.

    Raises:
        SocketPathTooLongError: longer than 107 bytes.
    """
    if not path_fits(path):
        raise SocketPathTooLongError(
            f"socket path {path} is {len(os.fsencode(path))} bytes long and at most {MAX_PATH_BYTES} are possible: "
            "use a shorter kubelet plugins or registry folder"
        )


def _absolute(folder: Path) -> Path:
    return Path(os.path.abspath(folder))  # noqa: PTH100 - resolve() would follow links to a longer path


def _registration_names(driver_name: str, pod_uid: str) -> list[str]:
    """Names in order of preference, the last one shortest."""
    if not pod_uid:
        return [f"{driver_name}-reg.sock"]
    return [
        f"{driver_name}-{pod_uid}-reg.sock",
        f"{driver_name}-{_digest(pod_uid, 8)}-reg.sock",
        "dra-" + _digest(driver_name + "\0" + pod_uid, 16) + "-reg.sock",
    ]


def _digest(text: str, size: int) -> str:
    """First bytes of the SHA-256, in base64 for file names, without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).decode().rstrip("=")
