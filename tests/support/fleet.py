"""Thousands of nodes that exist as objects only, with the slices that the kubelet plugin would publish there."""

import contextlib
import io
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, Self

from doubles.machines import gpus

from dradriver.api import DRIVER_NAME, Attribute
from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import make_offer
from dradriver.gpu.policy import GpuRule, OfferPolicy
from dradriver.gpu.profiles import MigOffer
from dradriver.kube import NODES, RESOURCE_SLICES, Client, NotFoundError, Object, PatchKind
from dradriver.resource import Slice, lay_out, slice_spec

MACHINE: Final = "8xh100-80gb"
GPUS: Final = 8
PROFILE: Final = "1g.10gb"
PARTITIONS: Final = 7
"""Of that profile on one GPU."""
_CLIENTS: Final = 16


class Fleet:
    """Nodes of eight H100 each, all gone when the block ends.

    Args:
        client: an administrator's.
        nodes: how many.
        partitioned: how many of them offer partitions too, with counters.

    Attributes:
        product: name of the GPUs, which nobody else's have.
    """

    def __init__(self, client: Client, *, nodes: int, partitioned: int) -> None:
        self.product = f"fleet-{secrets.token_hex(3)}"
        self.nodes = tuple(f"{self.product}-{number:05d}" for number in range(nodes))
        self._partitioned = frozenset(self.nodes[:partitioned])
        # Here and not when nodes are made: NVML's library is one for the whole process, and they are made in threads.
        self._whole, self._cut = (_layout(self.product, partitioned=cut) for cut in (False, True))
        self._client = client

    def __enter__(self) -> Self:
        try:
            self._for_all(self._make, self.nodes)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove(self.nodes)

    # --- what is to be counted -------------------------------------------------------------------

    @property
    def devices(self) -> int:
        """Whole GPUs."""
        return len(self.nodes) * GPUS

    @property
    def partitions(self) -> int:
        """Devices of `PROFILE`."""
        return len(self._partitioned) * GPUS * PARTITIONS

    def slices(self) -> int:
        """How many slices there are."""
        return sum(len(self._layout(node)) for node in self.nodes)

    # --- what happens to them --------------------------------------------------------------------

    def remove(self, nodes: Iterable[str]) -> None:
        """Remove nodes with their slices."""
        self._for_all(self._remove, nodes)

    def taint(self, node: str, *, tainted: bool) -> None:
        """Taint the first GPU of a node that has no partitions, as an Xid does, or take the taint back."""
        item = self._client.get(RESOURCE_SLICES, _slice_name(node, 0))
        taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
        item["spec"]["devices"][0]["taints"] = [taint] if tainted else []
        self._client.replace(RESOURCE_SLICES, item)

    def resize(self, node: str, gpus: int) -> None:
        """Let a node that has no partitions have so many GPUs of its eight."""
        item = self._client.get(RESOURCE_SLICES, _slice_name(node, 0))
        (body,) = self._bodies(node)
        pool = {"name": node, "generation": item["spec"]["pool"]["generation"] + 1, "resourceSliceCount": 1}
        item["spec"] |= {"devices": body["spec"]["devices"][:gpus], "pool": pool}
        self._client.replace(RESOURCE_SLICES, item)

    def beat(self, node: str, time: str) -> None:
        """Write a node's status as its kubelet does every five minutes."""
        condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": time, "reason": "KubeletReady"}
        body = {"status": {"conditions": [condition]}}
        self._client.patch(NODES, node, body, kind=PatchKind.MERGE, subresource="status", field_manager="kubelet")

    # --- making ----------------------------------------------------------------------------------

    def _for_all(self, call: Callable[[str], None], nodes: Iterable[str]) -> None:
        with ThreadPoolExecutor(_CLIENTS) as workers:
            for _ in workers.map(call, nodes):
                pass

    def _make(self, node: str) -> None:
        amounts = {"cpu": "192", "memory": "2Ti", "pods": "110"}
        status = {"allocatable": amounts, "capacity": amounts}
        head = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
        self._client.create(NODES, head | {"spec": {"unschedulable": True}, "status": status})
        for body in self._bodies(node):
            self._client.create(RESOURCE_SLICES, body)

    def _remove(self, node: str) -> None:
        for index in range(len(self._layout(node))):
            with contextlib.suppress(NotFoundError):
                self._client.delete(RESOURCE_SLICES, _slice_name(node, index))
        with contextlib.suppress(NotFoundError):
            self._client.delete(NODES, node)

    def _layout(self, node: str) -> tuple[Slice, ...]:
        return self._cut if node in self._partitioned else self._whole

    def _bodies(self, node: str) -> Iterator[Object]:
        layout = self._layout(node)
        pool: dict[str, Any] = {"name": node, "generation": 1, "resourceSliceCount": len(layout)}
        for index, part in enumerate(layout):
            yield {
                "apiVersion": RESOURCE_SLICES.api_version,
                "kind": RESOURCE_SLICES.kind,
                "metadata": {"name": _slice_name(node, index)},
                "spec": slice_spec(part, driver=DRIVER_NAME, node_name=node, pool=pool),
            }


def _slice_name(node: str, index: int) -> str:
    return f"{node}-{index}"


def _layout(product: str, *, partitioned: bool) -> tuple[Slice, ...]:
    with contextlib.redirect_stdout(io.StringIO()):
        found = gpus(MACHINE)
    rule = GpuRule(mig=MigOffer.DYNAMIC if partitioned else MigOffer.OFF)
    offer = make_offer(found, pool="any", policy=OfferPolicy(default=rule), numbers=number_gpus(found, {}))
    return tuple(
        replace(part, devices=tuple(_renamed(device, product) for device in part.devices))
        for part in lay_out(offer.pool)
    )


def _renamed(device: Any, product: str) -> Any:
    return replace(device, attributes=device.attributes | {Attribute.PRODUCT_NAME: product})
