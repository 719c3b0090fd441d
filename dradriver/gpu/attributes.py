"""What a device says of itself in a slice: attributes and capacities, under the names of NVIDIA's driver."""

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from dradriver import api
from dradriver.gpu import counters
from dradriver.gpu.devices import OfferedDevice
from dradriver.gpu.model import Gpu, MigInstance, MigProfile
from dradriver.gpu.policy import Detail
from dradriver.resource import AttributeValue, Version, limits

T = TypeVar("T")

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

_LEAN = frozenset(
    {
        api.Attribute.TYPE,
        api.Attribute.PROFILE,
        api.Attribute.UUID,
        api.Attribute.PARENT_UUID,
        api.Attribute.PRODUCT_NAME,
        api.Attribute.PCIE_ROOT,
        api.Attribute.SHARING,
        api.Attribute.RENAMED,
        api.Capacity.MEMORY,
        api.Capacity.SHARES,
    }
)
"""What selectors are written with. The scheduler pays for every other entry with every pod, used or not."""


def said(detail: Detail, entries: Mapping[str, T]) -> dict[str, T]:
    """Keep of attributes or capacities what is to be published."""
    return {name: value for name, value in entries.items() if detail is Detail.FULL or name in _LEAN}


def attributes(device: OfferedDevice, *, uuid: str = "") -> dict[str, AttributeValue]:
    """Give the attributes that every device of its type has.

    Args:
        device: whose.
        uuid: of the MIG instance of a partition that a claim holds, where it is known and to be told.
    """
    gpu, names = device.gpu, api.Attribute
    major, minor = gpu.compute_capability
    cuda_major, cuda_minor = gpu.cuda_driver_version
    return _identity(device, uuid) | {
        names.PRODUCT_NAME: _cut(gpu.product_name),
        names.BRAND: _cut(gpu.brand),
        names.ARCHITECTURE: _cut(gpu.architecture),
        names.CUDA_COMPUTE_CAPABILITY: Version(f"{major}.{minor}.0"),
        names.DRIVER_VERSION: Version(semantic_version(gpu.driver_version)),
        names.CUDA_DRIVER_VERSION: Version(f"{cuda_major}.{cuda_minor}.0"),
        names.PCI_BUS_ID: gpu.pci_bus_id,
    }


def optional_attributes(gpu: Gpu) -> dict[str, AttributeValue]:
    """Give the attributes that only some GPUs have."""
    values = {
        api.Attribute.ADDRESSING_MODE: gpu.addressing_mode,
        api.Attribute.NUMA_NODE: gpu.numa_node,
        api.Attribute.PCIE_ROOT: gpu.pcie_root,
    }
    return {name: value for name, value in values.items() if value is not None}


def uniform_optionals(devices: Iterable[OfferedDevice]) -> dict[str, frozenset[str]]:
    """Find for each device type the optional attributes that all its devices have.

    A selector that reads an attribute one device lacks aborts the allocation for the whole pod, even
    where other devices would fit; so devices of a type all carry it, or none does.
    """
    uniform: dict[str, frozenset[str]] = {}
    for device in devices:
        present = frozenset(optional_attributes(device.gpu))
        uniform[device_type(device)] = uniform.get(device_type(device), present) & present
    return uniform


def device_type(device: OfferedDevice) -> str:
    """Tell the value of the attribute `type`."""
    return api.DeviceType.GPU if device.profile is None else api.DeviceType.MIG


def capacity(device: OfferedDevice, *, partitionable: bool) -> dict[str, int]:
    """Give the capacities of a device; memory in bytes.

    Args:
        device: whose.
        partitionable: its GPU is offered with partitions, beside which a whole GPU tells its engines too.
    """
    if device.profile is not None:
        return _profile_capacity(device.profile) | _instance_capacity(device.instance)
    if not partitionable:
        # An unknown amount is published as zero: leaving the name out would abort every pod whose
        # selector reads it, also on other nodes.
        return {api.Capacity.MEMORY: device.gpu.memory_bytes or 0}
    totals = counters.engine_totals(device.gpu.profiles)
    memory = max(profile.memory_mib for profile in device.gpu.profiles) * _MIB
    return {name: totals[counter] for name, counter in _CAPACITIES.items()} | {api.Capacity.MEMORY: memory}


def fitting(said: Mapping[str, AttributeValue], capacity: Mapping[str, int]) -> dict[str, int]:
    """Leave out which memory slices an instance covers, as its name tells too, if a device says more than it may.

    That happens on GPUs of twelve slices, and must not keep them from being offered.

    Args:
        said: attributes of the device.
        capacity: all that is to be said of its capacities.
    """
    if len(said) + len(capacity) <= limits.ATTRIBUTES_AND_CAPACITIES_PER_DEVICE:
        return dict(capacity)
    return {name: value for name, value in capacity.items() if not name.startswith(api.Capacity.MEMORY_SLICE)}


def semantic_version(text: str) -> str:
    """Turn a driver version into semver: `580.105.08` becomes `580.105.8`, `570.86` becomes `570.86.0`."""
    numbers = [str(int(number)) for number in re.findall(r"\d+", text)[:3]]
    return ".".join([*numbers, "0", "0", "0"][:3])


def _identity(device: OfferedDevice, uuid: str) -> dict[str, AttributeValue]:
    if device.profile is None:
        return {api.Attribute.TYPE: api.DeviceType.GPU, api.Attribute.UUID: device.gpu.uuid}
    identity: dict[str, AttributeValue] = {
        api.Attribute.TYPE: api.DeviceType.MIG,
        api.Attribute.PARENT_UUID: device.gpu.uuid,
        api.Attribute.PROFILE: device.profile.name,
    }
    known = uuid or (device.instance is not None and device.instance.uuid)
    return identity | ({api.Attribute.UUID: known} if known else {})


def _cut(text: str) -> str:
    """Shorten a name to what an attribute may hold; NVML's may be longer."""
    return text.encode()[: limits.VALUE_BYTES].decode(errors="ignore")


def _profile_capacity(profile: MigProfile) -> dict[str, int]:
    engines = {name: counters.ENGINES[counter](profile) for name, counter in _CAPACITIES.items()}
    return engines | {api.Capacity.MEMORY: profile.memory_mib * _MIB}


def _instance_capacity(instance: MigInstance | None) -> dict[str, int]:
    """Tell what is known of an existing instance only: its slices, and its real memory."""
    if instance is None:
        return {}
    slices = {f"{api.Capacity.MEMORY_SLICE}{index}": 1 for index in instance.placement.slices}
    return slices if instance.memory_mib is None else slices | {api.Capacity.MEMORY: instance.memory_mib * _MIB}
