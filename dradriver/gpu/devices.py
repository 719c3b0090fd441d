"""Which devices a GPU gives, by a rule or because a claim holds them: names and places, nothing of slices yet."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dradriver.gpu import names
from dradriver.gpu.model import Gpu, MigInstance, MigProfile, Placement
from dradriver.gpu.policy import GpuRule
from dradriver.gpu.profiles import MigOffer, ProfileChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedDevice:
    """What a device name stands for.

    A whole GPU has neither profile nor instance. A partition has a profile and a placement, and an
    instance where it exists already and is not ours to make.
    """

    name: str
    gpu: Gpu
    profile: MigProfile | None = None
    placement: Placement | None = None
    instance: MigInstance | None = None

    @property
    def is_made_here(self) -> bool:
        """A partition that this driver makes when a claim is prepared."""
        return self.profile is not None and self.instance is None


def wanted_devices(gpu: Gpu, number: int, rule: GpuRule) -> list[OfferedDevice]:
    """Give the devices that a rule wants of a GPU, small partitions first and the whole GPU last.

    Args:
        gpu: the GPU; of its instances, those that this driver has not made for claims.
        number: as in its device names.
        rule: how it is offered.
    """
    whole = OfferedDevice(name=names.gpu_name(number), gpu=gpu)
    if rule.mig is MigOffer.DYNAMIC and not gpu.vgpu_guest:
        return _dynamic(gpu, number, rule.profiles, whole)
    if not gpu.mig_enabled:
        return [whole]
    return list(_existing(gpu, number)) if rule.mig is not MigOffer.OFF else []


def left_over_devices(
    gpu: Gpu, number: int, held: Mapping[str, str], wanted: Iterable[OfferedDevice]
) -> list[OfferedDevice]:
    """Give the devices of a GPU that claims hold though no rule wants them any more.

    Args:
        gpu: the GPU.
        number: as in its device names.
        held: names of devices that claims of the node hold; other GPUs' names do no harm.
        wanted: what is offered anyway.
    """
    offered = {device.name for device in wanted}
    table = (
        *_partitions(gpu, number, gpu.profiles),
        OfferedDevice(name=names.gpu_name(number), gpu=gpu),
    )
    return [device for device in table if device.name in held and device.name not in offered]


def is_whole(instance: MigInstance, profile: MigProfile) -> bool:
    """Tell whether one compute instance takes all of a GPU instance; only such ones are what their profile says."""
    return instance.uuid is not None and instance.compute_slices in (None, profile.compute_slices)


def _dynamic(gpu: Gpu, number: int, profiles: ProfileChoice, whole: OfferedDevice) -> list[OfferedDevice]:
    """Offer partitions where MIG mode is on or can be switched without a reset, the whole GPU where it can be off."""
    can_be_on = gpu.mig_enabled or not gpu.mig_needs_reset
    partitions = list(_partitions(gpu, number, profiles.select(gpu))) if can_be_on else []
    return partitions if gpu.mig_enabled and gpu.mig_needs_reset else [*partitions, whole]


def _partitions(gpu: Gpu, number: int, profiles: Iterable[MigProfile]) -> Iterator[OfferedDevice]:
    for profile in profiles:
        for placement in profile.placements:
            name = names.partition_name(number, profile, placement)
            yield OfferedDevice(name=name, gpu=gpu, profile=profile, placement=placement)


def _existing(gpu: Gpu, number: int) -> Iterator[OfferedDevice]:
    found = [
        (profile, instance)
        for instance in gpu.instances
        if (profile := gpu.profile(instance.profile_id)) is not None and is_whole(instance, profile)
    ]
    for profile, instance in sorted(found, key=lambda pair: (pair[1].placement.size, pair[1].placement.start)):
        yield OfferedDevice(
            name=names.partition_name(number, profile, instance.placement),
            gpu=gpu,
            profile=profile,
            placement=instance.placement,
            instance=instance,
        )
