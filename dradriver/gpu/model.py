"""GPUs as plain data: what a node has, independent of how it was read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Placement:
    """Where a partition lies on its GPU, in memory slices (not compute slices)."""

    start: int
    size: int

    @property
    def slices(self) -> range:
        """Numbers of the memory slices it covers."""
        return range(self.start, self.start + self.size)

    def overlaps(self, other: "Placement") -> bool:
        """Tell whether both cover a common memory slice."""
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A kind of GPU instance that a GPU can be cut into, as NVML reports it.

    Attributes:
        id: hardware id (the "ID" column of `nvidia-smi mig -lgip`), not NVML's enum index.
        name: as nvidia-smi spells it, such as `1g.10gb` or `1g.10gb+me`; another GPU may use the same
            name for another id.
        compute_slices: 1 for `1g`; the compute instance made in it has as many.
        max_instances: how many fit on an otherwise empty GPU.
        memory_mib: MiB, nominal; the real value varies a little with the placement.
        placements: every place it can lie, in ascending order of start.
    """

    id: int
    name: str
    compute_slices: int
    max_instances: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A GPU instance that exists now.

    Attributes:
        gpu_instance_id: NVML's id, not sequential and used again after the instance is destroyed.
        compute_instance_id: id of the compute instance in it; None for a bare GPU instance.
        uuid: `MIG-...` of the MIG device; None for a bare GPU instance. New at each creation.
        profile_id: hardware id of its profile.
        memory_mib: MiB, real; None where NVML does not tell.
        compute_slices: of the compute instance, which may be less than the profile's where an administrator
            has cut the GPU instance further; None where NVML does not tell.
    """

    gpu_instance_id: int
    compute_instance_id: int | None
    uuid: str | None
    profile_id: int
    placement: Placement
    memory_mib: int | None = None
    compute_slices: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigMode:
    """MIG mode now, and after the next GPU reset where the two differ (Ampere)."""

    current: bool
    pending: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One physical GPU.

    Attributes:
        uuid: `GPU-...`, its identity.
        minor: the N of /dev/nvidiaN; may change when the driver is reloaded or MIG mode is switched.
        pci_bus_id: as sysfs writes it, `0000:41:00.0`.
        pci_device_id: device id in the upper and vendor id in the lower 16 bits, `0x233010DE`; None where unknown.
        architecture: `Hopper`, `Ampere`, ...
        compute_capability: (major, minor).
        driver_version: as NVML says it, `580.105.08`.
        cuda_driver_version: (major, minor).
        memory_bytes: total; None where NVML says NOT_SUPPORTED (unified memory).
        mig_mode: None where the GPU has no MIG.
        mig_needs_reset: switching MIG mode takes a GPU reset (Ampere), so the driver never does it.
        vgpu_guest: seen from inside a vGPU virtual machine, where partitions cannot be made.
        profiles: what it can be cut into; empty where it cannot, or NVML tells nothing in its present mode.
        instances: GPU instances that exist now, bare ones included.
        addressing_mode: `HMM`, `ATS` or `None`; None where NVML cannot say.
        numa_node: from sysfs; None where unknown.
        pcie_root: from sysfs, `pci0000:40`; None where unknown.
    """

    uuid: str
    minor: int
    pci_bus_id: str
    product_name: str
    brand: str
    architecture: str
    compute_capability: tuple[int, int]
    driver_version: str
    cuda_driver_version: tuple[int, int]
    pci_device_id: int | None = None
    memory_bytes: int | None = None
    mig_mode: MigMode | None = None
    mig_needs_reset: bool = False
    vgpu_guest: bool = False
    profiles: tuple[MigProfile, ...] = ()
    instances: tuple[MigInstance, ...] = ()
    addressing_mode: str | None = None
    numa_node: int | None = None
    pcie_root: str | None = None

    @property
    def mig_enabled(self) -> bool:
        """MIG mode is on now."""
        return self.mig_mode is not None and self.mig_mode.current

    def profile(self, profile_id: int) -> MigProfile | None:
        """Find a profile by hardware id."""
        return next((profile for profile in self.profiles if profile.id == profile_id), None)
