# SPDX-License-Identifier: Apache-2.0
"""One bridge per node, made by the kernel's own calls so that no ip program is needed.

The bridge carries the node's address: it exists on every machine, whatever its real network is, and the
pods reach the host and the API server by it.
"""

from __future__ import annotations

import fcntl
import functools
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from localcluster.common import ClusterError, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from localcluster.common import Layout

_SYS = Path("/sys/class/net")
_ADD_BRIDGE, _DELETE_BRIDGE = 0x89A0, 0x89A1
_SET_ADDRESS, _SET_MASK = 0x8916, 0x891C
_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914
_UP = 0x1


def bridge(layout: Layout, node: str) -> str:
    """The name of a node's bridge, within the 15 letters that the kernel allows."""
    return f"dra{layout.id}{node.removeprefix('node-')}"


def exists(name: str) -> bool:
    """Whether there is an interface of this name."""
    return (_SYS / name).exists()


def create(name: str, address: str, *, service: str | None = None) -> None:
    """Make the bridge with `address`/24 and set it up; nothing changes when it is there already.

    `service` is another address for the machine, which the bridge carries under a label of its own.

    Raises:
        ClusterError: the kernel has no bridges, or refuses them.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            if not exists(name):
                fcntl.ioctl(control, _ADD_BRIDGE, name.encode() + b"\0")
            _set_address(control, name, address, mask="255.255.255.0")
            if service:
                _set_address(control, f"{name}:s", service, mask="255.255.255.255")
            _set_up(control, name, up=True)
        except OSError as error:
            raise ClusterError(
                f"no network bridge can be made ({error.strerror}); a node needs the kernel's bridge module "
                "and CAP_NET_ADMIN, --control-plane-only does without"
            ) from error


def _set_address(control: socket.socket, name: str, address: str, *, mask: str) -> None:
    for call, value in ((_SET_ADDRESS, address), (_SET_MASK, mask)):
        internet = struct.pack("<HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
        fcntl.ioctl(control, call, struct.pack("16s16s8x", name.encode(), internet))


def _set_up(control: socket.socket, name: str, *, up: bool) -> None:
    answer = fcntl.ioctl(control, _GET_FLAGS, struct.pack("16sH22x", name.encode(), 0))
    (flags,) = struct.unpack_from("H", answer, 16)
    flags = flags | _UP if up else flags & ~_UP
    fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sH22x", name.encode(), flags))


def remove_all(layout: Layout) -> None:
    """Delete every bridge that bears this cluster's mark."""
    names = [each.name for each in _SYS.glob(f"dra{layout.id}*") if (each / "bridge").is_dir()]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for name in names:
            # The kernel takes the pods' ends of the cables away a moment after their last process.
            wait_for(functools.partial(_unplugged, name), seconds=5)
            _set_up(control, name, up=False)
            fcntl.ioctl(control, _DELETE_BRIDGE, name.encode() + b"\0")


def _unplugged(name: str) -> bool:
    return not any((_SYS / name / "brif").iterdir())


def routed() -> list[tuple[int, int]]:
    """The machine's routes but the default one, as (network, mask) numbers."""
    try:
        lines = Path("/proc/net/route").read_text().splitlines()[1:]
    except OSError:
        return []
    return list(parse_routes(lines))


def parse_routes(lines: Iterable[str]) -> Iterable[tuple[int, int]]:
    """Read the lines of /proc/net/route, whose numbers are in the order of bytes of a little-endian machine."""
    for line in lines:
        fields = line.split()
        network, mask = (int.from_bytes(bytes.fromhex(fields[at])[::-1], "big") for at in (1, 7))
        if mask:
            yield network, mask


def holds(network: int, mask: int, routes: Iterable[tuple[int, int]]) -> bool:
    """Whether one of the routes leads into a subnet, or to exactly it.

    Wider routes (those of a VPN: 10.0.0.0/8, or 0.0.0.0/1 in place of the default one) do not count: the kernel
    prefers the narrower ones of our bridges, and all other addresses go where they went before.
    """
    return any(other & mask == mask and base & mask == network & mask for base, other in routes)
