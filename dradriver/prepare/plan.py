"""From a claim and the offered devices to what is to be done: a pure function, with every refusal."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dradriver import api
from dradriver.gpu.devices import OfferedDevice
from dradriver.gpu.health import Place
from dradriver.gpu.model import Placement
from dradriver.gpu.offer import Offer
from dradriver.kubelet import ClaimReference
from dradriver.prepare.claim import AllocatedClaim, OpaqueConfig, Result
from dradriver.prepare.errors import PlanError

if TYPE_CHECKING:
    from dradriver.api.config import DeviceConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevice:
    """One device of a claim.

    Attributes:
        requests: main requests that this device answers.
        make: the partition is to be created; False for whole GPUs and instances that others made.
        share_id: UID of this share of a device that several claims may have at once; else None.
        shares: how many of that device's shares it takes.
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    gpu_uuid: str
    profile_id: int | None = None
    profile_name: str | None = None
    placement: Placement | None = None
    instance_uuid: str | None = None
    make: bool = False
    admin_access: bool = False
    share_id: str | None = None
    shares: int = 1

    @property
    def place(self) -> tuple[object, ...]:
        """All that tells one place on the node from another, and what is done there."""
        return (
            self.device,
            self.gpu_uuid,
            self.profile_id,
            self.placement,
            self.make,
            self.share_id,
            self.admin_access,
        )

    @property
    def partition(self) -> Place | None:
        """Where the partition lies; None for a whole GPU."""
        if self.profile_id is None or self.placement is None:
            return None
        return Place(profile_id=self.profile_id, placement=self.placement)

    def conflicts_with(self, other: "PlannedDevice") -> bool:
        """Tell whether both use a common part of one GPU.

        An admin's access conflicts with nothing, and two shares of one device do not conflict with each other.
        """
        if self.gpu_uuid != other.gpu_uuid or self.admin_access or other.admin_access:
            return False
        if self.device == other.device and self.share_id and other.share_id:
            return False
        if self.placement is None or other.placement is None:
            return True
        return self.placement.overlaps(other.placement)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that preparing one claim takes."""

    namespace: str
    name: str
    uid: str
    devices: tuple[PlannedDevice, ...]

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name}"

    @property
    def reference(self) -> ClaimReference:
        """The claim as the kubelet names it."""
        return ClaimReference(namespace=self.namespace, name=self.name, uid=self.uid)

    @property
    def names(self) -> list[str]:
        """Names of the devices."""
        return [device.device for device in self.devices]

    def means_the_same_as(self, other: "Plan") -> bool:
        """Tell whether two plans of a claim mean the same places, whatever requests they answer."""
        return {device.place for device in self.devices} == {device.place for device in other.devices}

    def fits(self, claim: AllocatedClaim) -> bool:
        """Tell whether this plan was made for the claim's present allocation, whatever is offered by now.

        A plan that was recovered from a CDI spec does not know its requests: the devices decide.
        """
        allocated = {(_identity(result), (result.request,)) for result in claim.results}
        planned = {(_identity(device), device.requests) for device in self.devices}
        if all(device.requests for device in self.devices):
            return allocated == planned
        return {entry[0] for entry in allocated} == {entry[0] for entry in planned}


def _identity(device: PlannedDevice | Result) -> tuple[object, ...]:
    return device.pool, device.device, device.share_id, device.admin_access


def make_plan(claim: AllocatedClaim, offer: Offer) -> Plan:
    """Decide what preparing a claim takes.

    Raises:
        PlanError: a pool or device that is not ours, a configuration that does not fit or is not known.
    """
    devices = tuple(_planned(claim, result, offer) for result in claim.results)
    _check_configs(claim, offer)
    _check_overlap(claim, devices)
    return Plan(namespace=claim.namespace, name=claim.name, uid=claim.uid, devices=devices)


def _planned(claim: AllocatedClaim, result: Result, offer: Offer) -> PlannedDevice:
    device = _offered(claim, result, offer)
    instance = device.instance
    return PlannedDevice(
        requests=(result.request,),
        pool=result.pool,
        device=result.device,
        gpu_uuid=device.gpu.uuid,
        profile_id=None if device.profile is None else device.profile.id,
        profile_name=None if device.profile is None else device.profile.name,
        placement=device.placement,
        instance_uuid=None if instance is None else instance.uuid,
        make=device.is_made_here and device.gpu.uuid not in offer.static and not result.admin_access,
        admin_access=result.admin_access,
        share_id=result.share_id,
        shares=result.shares,
    )


def _offered(claim: AllocatedClaim, result: Result, offer: Offer) -> OfferedDevice:
    if result.pool != offer.pool.name:
        raise PlanError(
            f"{claim}, request {result.subrequest}: device {result.device} is of pool {result.pool}, "
            f"this node serves pool {offer.pool.name}; delete the pod, so that it is scheduled anew"
        )
    # Also what is offered no more: the scheduler has given it away while it was, and nobody else can have it.
    device = offer.find(result.device)
    if device is None:
        raise PlanError(
            f"{claim}, request {result.subrequest}: this node has no device {result.device} (any more), "
            f"it offers {_some(offer.devices)}; delete the pod, so that it is scheduled anew"
        )
    return device


def _some(names: Iterable[str], most: int = 4) -> str:
    names = list(names)
    shown = ", ".join(names[:most]) or "none"
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _check_overlap(claim: AllocatedClaim, devices: tuple[PlannedDevice, ...]) -> None:
    for index, device in enumerate(devices):
        for other in devices[:index]:
            if (device.device, device.share_id) == (other.device, other.share_id):
                raise PlanError(f"{claim}: device {device.device} is allocated twice, which no container can be given")
            if device.conflicts_with(other):
                raise PlanError(f"{claim}: its devices {other.device} and {device.device} overlap on one GPU")


def _check_configs(claim: AllocatedClaim, offer: Offer) -> None:
    """Refuse what is not understood anywhere, and what cannot be done where it is the last word.

    Class configs come before claim configs, and a later one wins. A config for all requests misses devices
    of another type; one that names a request must fit it.
    """
    decoded = [(config, _decoded(claim, config)) for config in claim.configs]
    for result in claim.results:
        meant = _type(_offered(claim, result, offer))
        effective: tuple[OpaqueConfig, DeviceConfig] | None = None
        for config, parameters in decoded:
            if not config.covers(result):
                continue
            if _type_of(parameters) == meant:
                effective = config, parameters
            elif config.requests:
                raise PlanError(
                    f"{_where(claim, config)}: {parameters.kind} is not for devices of type {meant}, "
                    f"which request {result.subrequest} got"
                )
        if effective is not None:
            _check_support(_where(claim, effective[0]), effective[1])


def _decoded(claim: AllocatedClaim, config: OpaqueConfig) -> "DeviceConfig":
    # Most claims carry none, and pydantic takes a while to load.
    from dradriver.api.config import InvalidConfigError, decode  # noqa: PLC0415

    try:
        return decode(config.parameters)
    except InvalidConfigError as error:
        raise PlanError(f"{_where(claim, config)}: {error}") from error


def _where(claim: AllocatedClaim, config: OpaqueConfig) -> str:
    owner = "its DeviceClass" if config.source == "FromClass" else "the claim"
    return f"{claim}, configuration of {owner} for {', '.join(config.requests) or 'all requests'}"


def _type(device: OfferedDevice) -> str:
    return api.DeviceType.GPU if device.profile is None else api.DeviceType.MIG


def _type_of(config: "DeviceConfig") -> str:
    return api.DeviceType.GPU if config.kind == "GpuConfig" else api.DeviceType.MIG


def _check_support(where: str, config: "DeviceConfig") -> None:
    from dradriver.api.config import why_unsupported  # noqa: PLC0415 (as above)

    if why := why_unsupported(config):
        raise PlanError(f"{where}: {why}")
