# SPDX-License-Identifier: Apache-2.0
"""Ports and subnets: each cluster takes a numbered slot of both, so that clusters do not clash.

A slot is written down in one registry per user (clusters.json in the cache) under a lock. What other users
and programs hold is found by trying the ports and looking at the routes.
"""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from localcluster import network
from localcluster.common import ClusterError, cache_dir, locked, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from localcluster.common import Layout

MAX_NODES = 26
# The first two numbers of a slot's addresses: 10.100 to 10.199 and, where these are taken, 100.64 to 100.127, which
# the Internet does not use either (RFC 6598). A slot's number counts through both.
_SUBNETS = (*((10, 100 + index) for index in range(100)), *((100, 64 + index) for index in range(64)))
_BLOCKS = 100
# Below the range from which the kernel picks ports for outgoing connections (32768 on).
_FIRST_PORT, _PORTS = 20000, 100
_CONTROL_PORTS = 5


class _Entry(TypedDict):
    dir: str
    slot: int


@dataclass(frozen=True, slots=True)
class Slot:
    """One cluster's share of the machine's ports and of private addresses."""

    number: int

    @property
    def block(self) -> int:
        """The number of its block of ports; slots of the second range of addresses share those of the first."""
        return self.number % _BLOCKS

    @property
    def _first(self) -> int:
        return _FIRST_PORT + self.block * _PORTS

    @property
    def prefix(self) -> str:
        """Its /16 without the last two numbers."""
        return "{}.{}".format(*_SUBNETS[self.number])

    @property
    def apiserver(self) -> int:
        """The API server's port."""
        return self._first

    @property
    def etcd(self) -> int:
        """Etcd's port for clients."""
        return self._first + 1

    @property
    def etcd_peer(self) -> int:
        """Etcd's port for peers, of which there are none."""
        return self._first + 2

    @property
    def scheduler(self) -> int:
        """The scheduler's port for health and metrics."""
        return self._first + 3

    @property
    def controller_manager(self) -> int:
        """The controller manager's port for health and metrics."""
        return self._first + 4

    def kubelet(self, index: int) -> int:
        """The port of the node's kubelet; the next one answers its health check."""
        return self._first + _CONTROL_PORTS + 2 * index

    def subnet(self, index: int) -> str:
        """The node's /24 without its last number."""
        return f"{self.prefix}.{index}"

    def address(self, index: int) -> str:
        """The node's own address, on its bridge."""
        return f"{self.subnet(index)}.1"

    @property
    def services(self) -> str:
        """The addresses of services, apart from those of pods."""
        return f"{self.prefix}.128.0/17"

    @property
    def first_service(self) -> str:
        """The address that the API server has as a service."""
        return f"{self.prefix}.128.1"

    @property
    def ports(self) -> range:
        """Every port of the slot that may be used."""
        return range(self._first, self._first + _CONTROL_PORTS + 2 * MAX_NODES)


def ports_free(slot: Slot) -> bool:
    """Whether no one else uses the slot's ports just now."""
    return all(map(_port_free, slot.ports))


def addresses_free(slot: Slot) -> bool:
    """Whether no network of the machine lies in the slot's addresses just now."""
    base = int.from_bytes(socket.inet_aton(f"{slot.prefix}.0.0"), "big")
    return not network.holds(base, 0xFFFF0000, network.routed())


def _port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def take(
    layout: Layout,
    *,
    nodes: bool,
    has_ports: Callable[[Slot], bool] = ports_free,
    has_addresses: Callable[[Slot], bool] = addresses_free,
) -> Slot:
    """Give the cluster a slot and write it down; a cluster that has one keeps it.

    A control plane alone has no use for addresses, so they need not be free for it.

    Raises:
        ClusterError: every slot is taken; says whether ports or addresses are what is missing.
    """
    with _registry() as known:
        if layout.id not in known:
            blocks = {Slot(entry["slot"]).block for entry in known.values()}
            usable = (slot for slot in _candidates(layout) if slot.block not in blocks and has_ports(slot))
            slot = _choose(usable, has_addresses if nodes else lambda _: True)
            known[layout.id] = {"dir": str(layout.root), "slot": slot.number}
        return Slot(known[layout.id]["slot"])


def _choose(usable: Iterator[Slot], has_addresses: Callable[[Slot], bool]) -> Slot:
    slot = None
    for slot in usable:
        if has_addresses(slot):
            return slot
    if slot is None:
        raise ClusterError(
            f"no free ports: all {_BLOCKS} blocks from {_FIRST_PORT} on are in use; "
            "end a cluster by `hack/cluster down`"
        )
    raise ClusterError(
        "no free addresses for nodes: this machine has routes into every network from 10.100.0.0 to 10.199.0.0 and "
        "from 100.64.0.0 to 100.127.0.0 (`ip route` shows them); remove one, or use --control-plane-only"
    )


def _candidates(layout: Layout) -> Iterator[Slot]:
    # Different users have different registries: starting apart makes them rarely meet.
    begin = int(layout.id, 16)
    for first, count in ((0, _BLOCKS), (_BLOCKS, len(_SUBNETS) - _BLOCKS)):
        yield from (Slot(first + (begin + step) % count) for step in range(count))


def directories() -> list[Path]:
    """The directories of this user's clusters."""
    with _registry() as known:
        return [Path(entry["dir"]) for entry in known.values()]


def give_back(layout: Layout) -> None:
    """Strike the cluster from the registry, if there is one."""
    if _file().exists():
        with _registry() as known:
            known.pop(layout.id, None)


def _file() -> Path:
    return cache_dir() / "clusters.json"


@contextlib.contextmanager
def _registry() -> Iterator[dict[str, _Entry]]:
    """The clusters known, to read and change; what is changed is written when the block ends well."""
    path = _file()
    with locked(path.with_suffix(".lock"), waiting="waiting for another cluster to take its ports"):
        known = _living(_read(path))
        yield known
        write(path, json.dumps(known, indent=2) + "\n")


def _read(path: Path) -> dict[str, _Entry]:
    try:
        known: dict[str, _Entry] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return known


def _living(known: dict[str, _Entry]) -> dict[str, _Entry]:
    # A directory removed by hand ended its cluster without telling.
    return {name: entry for name, entry in known.items() if Path(entry["dir"]).is_dir()}
