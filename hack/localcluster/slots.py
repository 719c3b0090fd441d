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
_SLOTS = 100
# Below the range from which the kernel picks ports for outgoing connections (32768 on).
_FIRST_PORT, _PORTS = 20000, 100
_CONTROL_PORTS = 5


class _Entry(TypedDict):
    dir: str
    slot: int


@dataclass(frozen=True, slots=True)
class Slot:
    """One cluster's share of the machine's ports and of 10.0.0.0/8."""

    number: int

    @property
    def _first(self) -> int:
        return _FIRST_PORT + self.number * _PORTS

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
        return f"10.{100 + self.number}.{index}"

    def address(self, index: int) -> str:
        """The node's own address, on its bridge."""
        return f"{self.subnet(index)}.1"

    @property
    def services(self) -> str:
        """The addresses of services, apart from those of pods."""
        return f"10.{100 + self.number}.128.0/17"

    @property
    def first_service(self) -> str:
        """The address that the API server has as a service."""
        return f"10.{100 + self.number}.128.1"

    @property
    def ports(self) -> range:
        """Every port of the slot that may be used."""
        return range(self._first, self._first + _CONTROL_PORTS + 2 * MAX_NODES)


def free(slot: Slot) -> bool:
    """Whether no one else uses the slot's ports or addresses just now."""
    base = int.from_bytes(socket.inet_aton(f"10.{100 + slot.number}.0.0"), "big")
    return not network.overlaps(base, 0xFFFF0000, network.routed()) and all(map(_port_free, slot.ports))


def _port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def take(layout: Layout, is_free: Callable[[Slot], bool] = free) -> Slot:
    """Give the cluster a slot and write it down; a cluster that has one keeps it.

    Raises:
        ClusterError: every slot is taken.
    """
    with _registry() as known:
        if layout.id not in known:
            known[layout.id] = {"dir": str(layout.root), "slot": _choose(known, layout, is_free)}
        return Slot(known[layout.id]["slot"])


def _choose(known: dict[str, _Entry], layout: Layout, is_free: Callable[[Slot], bool]) -> int:
    taken = {entry["slot"] for entry in known.values()}
    # Different users have different registries: starting apart makes them rarely meet.
    begin = int(layout.id, 16)
    for number in ((begin + step) % _SLOTS for step in range(_SLOTS)):
        if number not in taken and is_free(Slot(number)):
            return number
    raise ClusterError(
        f"no free ports: all {_SLOTS} blocks from {_FIRST_PORT} on are in use; end a cluster by `hack/cluster down`"
    )


def give_back(layout: Layout) -> None:
    """Strike the cluster from the registry."""
    with _registry() as known:
        known.pop(layout.id, None)


@contextlib.contextmanager
def _registry() -> Iterator[dict[str, _Entry]]:
    """The clusters known, to read and change; what is changed is written when the block ends well."""
    path = cache_dir() / "clusters.json"
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
