"""What the scheduler decided for a claim, read from the ResourceClaim object."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dradriver import api
from dradriver.prepare.errors import ClaimError, MalformedClaimError
from dradriver.resource import parse_quantity

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One allocated device.

    Attributes:
        request: name of the main request; of `main/sub` only `main`, which is what the kubelet knows.
        subrequest: `main/sub` where a list of alternatives was requested, else the same as `request`.
        share_id: UID of this share of a device that is allocated several times; None for most.
        shares: how many of the device's shares it takes; 1 where that is not told, or there are none.
    """

    request: str
    subrequest: str
    driver: str
    pool: str
    device: str
    admin_access: bool = False
    share_id: str | None = None
    shares: int = 1


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
    try:
        metadata = _object(_object(claim, "it").get("metadata"), "metadata")
        namespace, name = (_typed(metadata.get(key, ""), str, key) for key in ("namespace", "name"))
    except TypeError as error:
        raise MalformedClaimError(f"claim of UID {uid} cannot be read: {error}") from error
    namespace, name = metadata.get("namespace", ""), metadata.get("name", "")
    if metadata.get("uid") != uid:
        raise ClaimError(
            f"claim {namespace}/{name} was deleted and made again (UID is {metadata.get('uid')}, "
            f"the pod was started for {uid}): delete the pod, so that it uses the new claim"
        )
    try:
        allocation = _object(_object(claim.get("status"), "status").get("allocation"), "allocation")
        devices = _object(allocation.get("devices"), "devices")
        results, configs = tuple(_results(devices, driver)), tuple(_configs(devices, driver))
    except (KeyError, TypeError) as error:
        raise MalformedClaimError(
            f"claim {namespace}/{name} has an allocation that cannot be read: {error!r}"
        ) from error
    if not allocation:
        raise ClaimError(f"claim {namespace}/{name} is not allocated (any more): the scheduler must allocate it first")
    if not results:
        raise ClaimError(f"claim {namespace}/{name} is allocated, but has no device of driver {driver}")
    return AllocatedClaim(namespace=namespace, name=name, uid=uid, results=results, configs=configs)


def _results(devices: Mapping[str, Any], driver: str) -> Iterator[Result]:
    for entry in _objects(devices, "results"):
        if entry.get("driver") == driver:
            request = _typed(entry["request"], str, "request")
            yield Result(
                request=request.partition("/")[0],
                subrequest=request,
                driver=driver,
                pool=_typed(entry["pool"], str, "pool"),
                device=_typed(entry["device"], str, "device"),
                admin_access=_optional(entry, "adminAccess", bool) or False,
                share_id=_optional(entry, "shareID", str) or None,
                shares=_shares(entry, driver),
            )


def _shares(entry: Mapping[str, Any], driver: str) -> int:
    """Read how many shares a result takes; the scheduler writes it, whether it was asked for or not."""
    consumed = _object(entry.get("consumedCapacity"), "consumedCapacity")
    value = consumed.get(f"{driver}/{api.Capacity.SHARES}") or consumed.get(api.Capacity.SHARES)
    try:
        return 1 if value is None else int(parse_quantity(str(value)))
    except (ValueError, ArithmeticError) as error:
        raise TypeError(f"consumedCapacity: {value!r:.40} is no number of shares") from error


def _configs(devices: Mapping[str, Any], driver: str) -> Iterator[OpaqueConfig]:
    for entry in _objects(devices, "config"):
        opaque = _object(entry.get("opaque"), "opaque")
        if opaque.get("driver") == driver:
            yield OpaqueConfig(
                driver=driver,
                requests=tuple(_typed(name, str, "requests") for name in _list(entry, "requests")),
                parameters=opaque.get("parameters") or {},
                source=_typed(entry.get("source", "FromClaim"), str, "source"),
            )


def _typed(value: Any, kind: type[T], where: str) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{where}: {kind.__name__} is expected, not {value!r:.40}")
    return value


def _optional(entry: Mapping[str, Any], key: str, kind: type[T]) -> T | None:
    value = entry.get(key)
    return None if value is None else _typed(value, kind, key)


def _object(value: Any, where: str) -> Mapping[str, Any]:
    return _typed({} if value is None else value, dict, where)


def _list(entry: Mapping[str, Any], key: str) -> list[Any]:
    value = entry.get(key)
    return _typed([] if value is None else value, list, key)


def _objects(entry: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    return (_typed(one, dict, key) for one in _list(entry, key))
