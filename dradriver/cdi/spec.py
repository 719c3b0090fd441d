"""CDI specs as data, with the lowest version number that says what they use.

A runtime refuses a spec whose declared version is newer than its own, and one whose declared version is
older than what the spec uses; so the version is always computed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

READ_ONLY: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET: Final = ("nosuid", "nodev", "noexec", "rbind", "rprivate")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A character device in the container.

    Attributes:
        path: in the container.
        host_path: on the host; None where the host has no such file, which the numbers make up for.
        major: device major.
        minor: device minor.
    """

    path: str
    host_path: str | None
    major: int
    minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A bind mount of a host's file or folder."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = READ_ONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A program of the host that runs while the container is made."""

    path: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """What is added to a container."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiDevice:
    """A named device: what a container gets that asks for it."""

    name: str
    edits: ContainerEdits


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiSpec:
    """One spec file.

    Attributes:
        kind: `vendor/class`.
        devices: at least one.
        edits: what every container gets that uses any of the devices, once.
    """

    kind: str
    devices: tuple[CdiDevice, ...]
    edits: ContainerEdits

    def qualified_names(self) -> tuple[str, ...]:
        """Names as the runtime takes them: `vendor/class=device`."""
        return tuple(f"{self.kind}={device.name}" for device in self.devices)

    def host_paths(self) -> Iterable[str]:
        """Every path of the host that a container of this spec depends on."""
        for edits in (self.edits, *(device.edits for device in self.devices)):
            yield from (mount.host_path for mount in edits.mounts)
            yield from (node.host_path for node in edits.device_nodes if node.host_path is not None)
            yield from (hook.path for hook in edits.hooks)

    def to_json(self) -> dict[str, Any]:
        """Write the spec as the CDI schema wants it."""
        return {
            "cdiVersion": self.version(),
            "kind": self.kind,
            "devices": [{"name": device.name, "containerEdits": _edits(device.edits)} for device in self.devices],
            "containerEdits": _edits(self.edits),
        }

    def version(self) -> str:
        """Find the lowest CDI version that knows everything used here.

        0.5.0 brought `hostPath` of device nodes and device names that begin with a digit; everything else
        used here is older.
        """
        every = (self.edits, *(device.edits for device in self.devices))
        host_paths = any(node.host_path is not None for edits in every for node in edits.device_nodes)
        digits = any(device.name[:1].isdigit() for device in self.devices)
        return "0.5.0" if host_paths or digits else "0.3.0"


def _edits(edits: ContainerEdits) -> dict[str, Any]:
    written = {
        "env": list(edits.env),
        "deviceNodes": [_node(node) for node in edits.device_nodes],
        "mounts": [_mount(mount) for mount in edits.mounts],
        "hooks": [_hook(hook) for hook in edits.hooks],
    }
    return {key: value for key, value in written.items() if value}


def _node(node: DeviceNode) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": node.path, "type": "c", "major": node.major, "minor": node.minor}
    if node.host_path is not None:
        entry["hostPath"] = node.host_path
    return entry | {"permissions": "rw"}


def _mount(mount: Mount) -> dict[str, Any]:
    return {"hostPath": mount.host_path, "containerPath": mount.container_path, "options": list(mount.options)}


def _hook(hook: Hook) -> dict[str, Any]:
    return {"hookName": "createContainer", "path": hook.path, "args": list(hook.args)}
