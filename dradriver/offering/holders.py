"""Which devices claims hold.

The records of this node tell of claims that were prepared here. A claim may also be allocated and not prepared yet,
which only the API server knows; to list the claims of a whole cluster is dear, so it is asked only when a device is
about to vanish from the slices, and once more shortly after that.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from dradriver.kube import RESOURCE_CLAIMS, RESOURCE_SLICES, Client, Selector
from dradriver.prepare.records import Record

ASK_SECONDS: Final = 10.0
"""How often the API server is asked whether claims that it alone knows of still hold devices."""
SECOND_CHECK_SECONDS: Final = 2.0
"""A scheduler that had not seen our write has bound its pod by then."""


def recorded(records: Iterable[Record], boot_id: str) -> dict[str, str]:
    """Name the devices of prepared claims, with the UUID of the MIG instance behind each, "" where it is not known."""
    held: dict[str, str] = {}
    for record in records:
        for device in record.plan.devices:
            made = record.made.get(device.device) if record.boot_id == boot_id else None
            held[device.device] = made.uuid if made is not None else device.instance_uuid or ""
    return held


def allocated(claims: Iterable[Mapping[str, Any]], *, driver: str, pool: str) -> frozenset[str]:
    """Name the devices of a pool that claims are allocated."""
    return frozenset(
        result["device"]
        for claim in claims
        for result in (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or ()
        if result["driver"] == driver and result["pool"] == pool
    )


class Allocations:
    """What the API server knows of allocated devices, asked as seldom as is safe.

    Args:
        client: access to the API server.
        driver: name of the driver.
        node_name: name of the node, and of the pool.
        clock: monotonic seconds.
    """

    def __init__(
        self, client: Client, *, driver: str, node_name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._driver = driver
        self._node_name = node_name
        self._clock = clock
        self._published: frozenset[str] | None = None
        self._check_at = 0.0
        self._asked = float("-inf")
        self.names: frozenset[str] = frozenset()

    @property
    def is_pending(self) -> bool:
        """Whether the second check after devices have vanished is still to come."""
        return bool(self._check_at)

    def published(self, names: frozenset[str]) -> None:
        """Note what is in the slices by now."""
        self._published = names

    def forget_released(self) -> None:
        """Drop names that no claim holds any more.

        Raises:
            KubeError: the API server does not tell.
        """
        if self.names and self._clock() >= self._asked + ASK_SECONDS:
            self.names &= self._ask()

    def keep(self, names: frozenset[str]) -> bool:
        """Find devices that claims hold and that are not among those to be published; `names` then has them.

        Returns:
            Whether there are more than were known.

        Raises:
            KubeError: the API server does not tell.
        """
        if not self._is_to_be_asked(names):
            return False
        more = self._ask() - names - self.names
        self.names |= more
        return bool(more)

    def _is_to_be_asked(self, names: frozenset[str]) -> bool:
        """Whether devices are about to vanish, or have just vanished while a scheduler may not have known."""
        if self._published is None:
            self._published = self._published_before()
        if self._published - names:
            self._check_at = self._clock() + SECOND_CHECK_SECONDS
            return True
        due = self.is_pending and self._clock() >= self._check_at
        self._check_at = 0.0 if due else self._check_at
        return due

    def _ask(self) -> frozenset[str]:
        self._asked = self._clock()
        return allocated(self._client.list(RESOURCE_CLAIMS).items, driver=self._driver, pool=self._node_name)

    def _published_before(self) -> frozenset[str]:
        """Names of the devices in the slices that exist, from an earlier process or another driver."""
        selector = Selector(fields=f"spec.nodeName={self._node_name},spec.driver={self._driver}")
        slices = self._client.list(RESOURCE_SLICES, selector=selector).items
        return frozenset(device["name"] for item in slices for device in item["spec"].get("devices") or ())
