"""From GPUs to the devices of the node's pool: a pure function, the only one that decides what is offered."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dradriver import api
from dradriver.gpu import counters, names
from dradriver.gpu.model import Gpu, MigInstance, MigProfile, Placement
from dradriver.gpu.policy import GpuRule, OfferPolicy
from dradriver.gpu.profiles import MigOffer, ProfileChoice
from dradriver.resource import (
    AttributeValue,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceGroup,
    Pool,
    Version,
    limits,
)

_MIB = 1 << 20

_CAPACITIES = {
    api.Capacity.MULTIPROCESSORS: "multiprocessors",
    api.Capacity.COPY_ENGINES: "copy-engines",
    api.Capacity.DECODERS: "decoders",
    api.Capacity.ENCODERS: "encoders",
    api.Capacity.JPEG_ENGINES: "jpeg-engines",
    api.Capacity.OFA_ENGINES: "ofa-engines",
}
"""Capacity name to the counter of the same quantity."""

_OPTIONAL = (api.Attribute.ADDRESSING_MODE, api.Attribute.NUMA_NODE, api.Attribute.PCIE_ROOT)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The pool to publish, and what its device names stand for."""

    pool: Pool
    devices: Mapping[str, OfferedDevice]


def make_offer(gpus: Iterable[Gpu], *, pool: str, policy: OfferPolicy, numbers: Mapping[str, int]) -> Offer:
    """Decide which devices a node offers, in the order in which the scheduler shall try them.

    GPUs come in the order of their PCI bus ids, and on each GPU small partitions before large ones and
    the whole GPU last, so that a request that names no size takes the smallest device that fits.

    Args:
        gpus: what the node has.
        pool: name of the pool.
        policy: what the administrator wants.
        numbers: UUID to the number in device names, of every GPU.
    """
    ordered = sorted(gpus, key=_by_bus)
    rules = [policy.rule(gpu, index) for index, gpu in enumerate(ordered)]
    offered = [_devices_of(gpu, numbers[gpu.uuid], rule) for gpu, rule in zip(ordered, rules, strict=True)]
    uniform = _uniform_optionals(device for devices in offered for device in devices)
    groups = tuple(
        _group(devices, numbers, rule.mig, uniform) for devices, rule in zip(offered, rules, strict=True) if devices
    )
    return Offer(
        pool=Pool(name=pool, groups=groups),
        devices={device.name: device for devices in offered for device in devices},
    )


def _by_bus(gpu: Gpu) -> tuple[str, str]:
    return gpu.pci_bus_id, gpu.uuid


def _devices_of(gpu: Gpu, number: int, rule: GpuRule) -> list[OfferedDevice]:
    whole = OfferedDevice(name=names.gpu_name(number), gpu=gpu)
    if rule.mig is MigOffer.DYNAMIC and not gpu.vgpu_guest:
        return _dynamic(gpu, number, rule.profiles, whole)
    if not gpu.mig_enabled:
        return [whole]
    return _existing(gpu, number) if rule.mig is not MigOffer.OFF else []


def _dynamic(gpu: Gpu, number: int, profiles: ProfileChoice, whole: OfferedDevice) -> list[OfferedDevice]:
    """Offer partitions where MIG mode is on or can be switched without a reset, the whole GPU where it can be off."""
    partitions = [
        OfferedDevice(
            name=names.partition_name(number, profile, placement), gpu=gpu, profile=profile, placement=placement
        )
        for profile in profiles.select(gpu)
        for placement in profile.placements
        if gpu.mig_enabled or not gpu.mig_needs_reset
    ]
    return partitions if gpu.mig_enabled and gpu.mig_needs_reset else [*partitions, whole]


def _existing(gpu: Gpu, number: int) -> list[OfferedDevice]:
    found = [
        (profile, instance)
        for instance in gpu.instances
        if (profile := gpu.profile(instance.profile_id)) is not None and is_whole(instance, profile)
    ]
    return [
        OfferedDevice(
            name=names.partition_name(number, profile, instance.placement),
            gpu=gpu,
            profile=profile,
            placement=instance.placement,
            instance=instance,
        )
        for profile, instance in sorted(found, key=lambda pair: (pair[1].placement.size, pair[1].placement.start))
    ]


def is_whole(instance: MigInstance, profile: MigProfile) -> bool:
    """Tell whether one compute instance takes all of a GPU instance; only such ones are what their profile says."""
    return instance.uuid is not None and instance.compute_slices in (None, profile.compute_slices)


def _group(
    devices: Sequence[OfferedDevice], numbers: Mapping[str, int], mig: MigOffer, uniform: Mapping[str, frozenset[str]]
) -> DeviceGroup:
    gpu = devices[0].gpu
    offered = list(dict.fromkeys(device.profile for device in devices if device.profile is not None))
    if mig is not MigOffer.DYNAMIC or not offered:
        return DeviceGroup(devices=tuple(_device(device, uniform, consumes=()) for device in devices))
    totals = counters.engine_totals(gpu.profiles)
    engines = counters.binding_engines(offered, totals)
    counter_set = CounterSet(
        name=names.counter_set_name(numbers[gpu.uuid]), counters=counters.set_counters(offered, engines, totals)
    )
    return DeviceGroup(
        devices=tuple(
            _device(device, uniform, consumes=(_consumption(device, counter_set, engines),)) for device in devices
        ),
        counter_sets=(counter_set,),
    )


def _consumption(device: OfferedDevice, counter_set: CounterSet, engines: Iterable[str]) -> CounterConsumption:
    if device.profile is None or device.placement is None:
        return CounterConsumption(counter_set=counter_set.name, counters=counter_set.counters)
    return CounterConsumption(
        counter_set=counter_set.name,
        counters=counters.partition_counters(device.profile, device.placement, engines),
    )


def _device(
    device: OfferedDevice, uniform: Mapping[str, frozenset[str]], *, consumes: tuple[CounterConsumption, ...]
) -> Device:
    optional = {name: value for name, value in _optionals(device.gpu).items() if name in uniform[_type(device)]}
    return Device(
        name=device.name,
        attributes=_attributes(device) | optional,
        capacity=_capacity(device, partitionable=bool(consumes)),
        consumes=consumes,
    )


def _type(device: OfferedDevice) -> str:
    return api.DeviceType.GPU if device.profile is None else api.DeviceType.MIG


def _attributes(device: OfferedDevice) -> dict[str, AttributeValue]:
    gpu, names_ = device.gpu, api.Attribute
    major, minor = gpu.compute_capability
    cuda_major, cuda_minor = gpu.cuda_driver_version
    return _identity(device) | {
        names_.PRODUCT_NAME: _cut(gpu.product_name),
        names_.BRAND: _cut(gpu.brand),
        names_.ARCHITECTURE: _cut(gpu.architecture),
        names_.CUDA_COMPUTE_CAPABILITY: Version(f"{major}.{minor}.0"),
        names_.DRIVER_VERSION: Version(semantic_version(gpu.driver_version)),
        names_.CUDA_DRIVER_VERSION: Version(f"{cuda_major}.{cuda_minor}.0"),
        names_.PCI_BUS_ID: gpu.pci_bus_id,
    }


def _identity(device: OfferedDevice) -> dict[str, AttributeValue]:
    if device.profile is None:
        return {api.Attribute.TYPE: api.DeviceType.GPU, api.Attribute.UUID: device.gpu.uuid}
    identity: dict[str, AttributeValue] = {
        api.Attribute.TYPE: api.DeviceType.MIG,
        api.Attribute.PARENT_UUID: device.gpu.uuid,
        api.Attribute.PROFILE: device.profile.name,
    }
    if device.instance is not None and device.instance.uuid is not None:
        identity[api.Attribute.UUID] = device.instance.uuid
    return identity


def _cut(text: str) -> str:
    """Shorten a name to what an attribute may hold; NVML's may be longer."""
    return text.encode()[: limits.VALUE_BYTES].decode(errors="ignore")


def semantic_version(text: str) -> str:
    """Turn a driver version into semver: `580.105.08` becomes `580.105.8`, `570.86` becomes `570.86.0`."""
    numbers = [str(int(number)) for number in re.findall(r"\d+", text)[:3]]
    return ".".join([*numbers, "0", "0", "0"][:3])


def _optionals(gpu: Gpu) -> dict[str, AttributeValue]:
    values = (gpu.addressing_mode, gpu.numa_node, gpu.pcie_root)
    return {name: value for name, value in zip(_OPTIONAL, values, strict=True) if value is not None}


def _uniform_optionals(devices: Iterable[OfferedDevice]) -> dict[str, frozenset[str]]:
    """Find for each device type the optional attributes that all its devices have.

    A selector that reads an attribute one device lacks aborts the allocation for the whole pod, even
    where other devices would fit; so devices of a type all carry it, or none does.
    """
    uniform: dict[str, frozenset[str]] = {}
    for device in devices:
        present = frozenset(_optionals(device.gpu))
        uniform[_type(device)] = uniform.get(_type(device), present) & present
    return uniform


def _capacity(device: OfferedDevice, *, partitionable: bool) -> dict[str, int]:
    if device.profile is not None:
        return _profile_capacity(device.profile) | _instance_capacity(device.instance)
    if not partitionable:
        # An unknown amount is published as zero: leaving the name out would abort every pod whose
        # selector reads it, also on other nodes.
        return {api.Capacity.MEMORY: device.gpu.memory_bytes or 0}
    totals = counters.engine_totals(device.gpu.profiles)
    memory = max(profile.memory_mib for profile in device.gpu.profiles) * _MIB
    return {name: totals[counter] for name, counter in _CAPACITIES.items()} | {api.Capacity.MEMORY: memory}


def _profile_capacity(profile: MigProfile) -> dict[str, int]:
    engines = {name: counters.ENGINES[counter](profile) for name, counter in _CAPACITIES.items()}
    return engines | {api.Capacity.MEMORY: profile.memory_mib * _MIB}


def _instance_capacity(instance: MigInstance | None) -> dict[str, int]:
    """Tell what is known of an existing instance only: its slices, and its real memory."""
    if instance is None:
        return {}
    slices = {f"{api.Capacity.MEMORY_SLICE}{index}": 1 for index in instance.placement.slices}
    return slices if instance.memory_mib is None else slices | {api.Capacity.MEMORY: instance.memory_mib * _MIB}
