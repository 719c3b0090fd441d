"""What the scheduler decided for a claim, read from the ResourceClaim object."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dradriver.prepare.errors import ClaimError, MalformedClaimError


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One allocated device.

    Attributes:
        request: name of the main request; of `main/sub` only `main`, which is what the kubelet knows.
        subrequest: `main/sub` where a list of alternatives was requested, else the same as `request`.
        share_id: UID of this share of a device that is allocated several times; None for most.
    """

    request: str
    subrequest: str
    driver: str
    pool: str
    device: str
    admin_access: bool = False
    share_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpaqueConfig:
    """Configuration for one driver, in the order of precedence: a later one wins."""

    driver: str
    requests: tuple[str, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    source: str = "FromClaim"

    def covers(self, result: Result) -> bool:
        """Tell whether it is meant for a result; no requests means all, a main request covers its alternatives."""
        return not self.requests or result.request in self.requests or result.subrequest in self.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedClaim:
    """A claim with its allocation, results and configs of one driver only."""

    namespace: str
    name: str
    uid: str
    results: tuple[Result, ...]
    configs: tuple[OpaqueConfig, ...]

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name}"


def read_claim(claim: Mapping[str, Any], *, uid: str, driver: str) -> AllocatedClaim:
    """Read a ResourceClaim of resource.k8s.io/v1.

    Args:
        claim: the object as the API server gives it.
        uid: the UID that the kubelet named.
        driver: results and configs of other drivers are left out.

    Raises:
        MalformedClaimError: the allocation is not what the API promises.
        ClaimError: it is another object of that name, or not allocated, or has no device of this driver.
    """
    metadata = claim.get("metadata") or {}
    namespace, name = metadata.get("namespace", ""), metadata.get("name", "")
    if metadata.get("uid") != uid:
        raise ClaimError(
            f"claim {namespace}/{name} was deleted and made again (UID is {metadata.get('uid')}, "
            f"the pod was started for {uid}): delete the pod, so that it uses the new claim"
        )
    try:
        allocation = (claim.get("status") or {}).get("allocation")
        devices = (allocation or {}).get("devices") or {}
        results, configs = tuple(_results(devices, driver)), tuple(_configs(devices, driver))
    except (AttributeError, KeyError, TypeError) as error:
        raise MalformedClaimError(
            f"claim {namespace}/{name} has an allocation that cannot be read: {error!r}"
        ) from error
    if not allocation:
        raise ClaimError(f"claim {namespace}/{name} is not allocated (any more): the scheduler must allocate it first")
    if not results:
        raise ClaimError(f"claim {namespace}/{name} is allocated, but has no device of driver {driver}")
    return AllocatedClaim(namespace=namespace, name=name, uid=uid, results=results, configs=configs)


def _results(devices: Mapping[str, Any], driver: str) -> Iterator[Result]:
    for entry in devices.get("results") or ():
        if entry.get("driver") == driver:
            yield Result(
                request=entry["request"].partition("/")[0],
                subrequest=entry["request"],
                driver=driver,
                pool=entry["pool"],
                device=entry["device"],
                admin_access=bool(entry.get("adminAccess")),
                share_id=entry.get("shareID"),
            )


def _configs(devices: Mapping[str, Any], driver: str) -> Iterator[OpaqueConfig]:
    for entry in devices.get("config") or ():
        opaque = entry.get("opaque") or {}
        if opaque.get("driver") == driver:
            yield OpaqueConfig(
                driver=driver,
                requests=tuple(entry.get("requests") or ()),
                parameters=opaque.get("parameters") or {},
                source=entry.get("source", "FromClaim"),
            )
