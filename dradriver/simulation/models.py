"""Kinds of GPUs as data: identity, memory and what each can be cut into.

One row per profile, from published `nvidia-smi mig -lgip` and `-lgipp` listings and NVIDIA's MIG user guide. What
nobody has published is marked UNVERIFIED and chosen to be plausible. These tables describe the simulated hardware
only; the driver itself always asks NVML.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache


class Architecture(IntEnum):
    """Numbers of NVML_DEVICE_ARCH_*."""

    TURING = 6
    AMPERE = 7
    ADA = 8
    HOPPER = 9
    BLACKWELL = 10


class Brand(IntEnum):
    """Numbers of NVML_BRAND_*."""

    TESLA = 2
    NVIDIA_RTX = 13
    NVIDIA = 14


class Addressing(IntEnum):
    """Numbers of NVML_DEVICE_ADDRESSING_MODE_*."""

    NONE = 0
    HMM = 1
    ATS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Media engines: the ones that run out before the memory slices do."""

    decoders: int
    encoders: int
    jpegs: int
    ofas: int

    def plus(self, other: "Engines") -> "Engines":
        """Sum of both."""
        return Engines(
            decoders=self.decoders + other.decoders,
            encoders=self.encoders + other.encoders,
            jpegs=self.jpegs + other.jpegs,
            ofas=self.ofas + other.ofas,
        )

    def within(self, total: "Engines") -> bool:
        """Tell whether `total` suffices for these."""
        return (
            self.decoders <= total.decoders
            and self.encoders <= total.encoders
            and self.jpegs <= total.jpegs
            and self.ofas <= total.ofas
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A kind of GPU instance.

    Attributes:
        index: NVML's enumeration index, what ProfileInfo takes.
        id: hardware id, what everything else takes.
        slices: compute slices.
        count: how many fit on an empty GPU, as NVIDIA's listings say it.
        memory_mib: MiB, as the profile tells it.
        starts: memory slices at which it may lie.
        size: memory slices it covers.
        memory_at: MiB where an instance has another amount than the profile says, by start.
    """

    index: int
    id: int
    name: str
    slices: int
    count: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    engines: Engines
    starts: tuple[int, ...]
    size: int
    memory_at: tuple[tuple[int, int], ...] = ()

    def memory_of(self, start: int) -> int:
        """MiB of an instance placed at `start`."""
        return dict(self.memory_at).get(start, self.memory_mib)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A kind of GPU.

    Attributes:
        device_id: PCI device and vendor, as NVML packs them (0x233010DE).
        memory_mib: MiB with MIG off; None where NVML answers NOT_SUPPORTED (memory shared with the CPU).
        grid: memory slices; 0 without MIG.
        max_mig_devices: how many MIG devices at once.
        nvlink_fabric: registered with a fabric manager.
    """

    name: str
    product: str
    architecture: Architecture
    compute_capability: tuple[int, int]
    device_id: int
    brand: Brand
    memory_mib: int | None
    grid: int
    max_mig_devices: int
    profiles: tuple[Profile, ...]
    addressing: Addressing = Addressing.HMM
    nvlink_fabric: bool = False

    @property
    def mig_capable(self) -> bool:
        """It can be cut at all."""
        return bool(self.profiles)

    @property
    def mig_needs_reset(self) -> bool:
        """Switching MIG mode waits for a GPU reset (Ampere) instead of happening at once (Hopper and later)."""
        return self.architecture < Architecture.HOPPER

    @property
    def engines(self) -> Engines:
        """What the whole GPU has: as much as its largest profile."""
        return max(self.profiles, key=lambda profile: (profile.size, profile.slices)).engines


# Enumeration index and name pattern of each hardware id.
_SEVEN_SLICE_INDEX = {19: 0x00, 20: 0x07, 15: 0x09, 14: 0x01, 9: 0x02, 5: 0x03, 0: 0x04}
_A30_INDEX = {14: 0x00, 21: 0x07, 5: 0x01, 6: 0x08, 0: 0x03}
_RTX_PRO_INDEX = {
    14: 0x00, 21: 0x07, 47: 0x0A, 65: 0x0F, 67: 0x0D,
    5: 0x01, 35: 0x0B, 64: 0x10, 66: 0x0E,
    0: 0x03, 32: 0x0C,
}  # fmt: skip

_Places = Mapping[int, tuple[Sequence[int], int]]
_MemoryAt = Mapping[int, tuple[tuple[int, int], ...]]

# Where an instance may lie, by hardware id: starts and size in memory slices.
_SEVEN_SLICE_PLACES: _Places = {
    19: (range(7), 1),
    20: (range(7), 1),
    15: ((0, 2, 4, 6), 2),
    14: ((0, 2, 4), 2),
    9: ((0, 4), 4),
    5: ((0,), 4),
    0: ((0,), 8),
}
_A30_PLACES: _Places = {14: (range(4), 1), 21: (range(4), 1), 5: ((0, 2), 2), 6: ((0, 2), 2), 0: ((0,), 4)}
_RTX_PRO_PLACES: _Places = {
    **dict.fromkeys((14, 21, 47, 65, 67), ((0, 3, 6, 9), 3)),
    **dict.fromkeys((5, 35, 64, 66), ((0, 6), 6)),
    **dict.fromkeys((0, 32), ((0,), 12)),
}

# id, name, compute slices, count, MiB, multiprocessors, copy engines, decoders, encoders, JPEG engines, OFAs
_Row = tuple[int, str, int, int, int, int, int, int, int, int, int]

_A30: tuple[_Row, ...] = (
    (14, "1g.6gb", 1, 4, 5952, 14, 1, 1, 0, 0, 0),  # The guide says no decoder, the listing one.
    (21, "1g.6gb+me", 1, 1, 5952, 14, 1, 1, 0, 1, 1),
    (5, "2g.12gb", 2, 2, 11968, 28, 2, 2, 0, 0, 0),
    (6, "2g.12gb+me", 2, 1, 11968, 28, 2, 2, 0, 1, 1),
    (0, "4g.24gb", 4, 1, 24000, 56, 4, 4, 0, 1, 1),
)
_A100_40: tuple[_Row, ...] = (
    (19, "1g.5gb", 1, 7, 4864, 14, 1, 0, 0, 0, 0),
    (20, "1g.5gb+me", 1, 1, 4864, 14, 1, 1, 0, 1, 1),
    (15, "1g.10gb", 1, 4, 9984, 14, 1, 1, 0, 0, 0),  # MiB UNVERIFIED: as for 2g.
    (14, "2g.10gb", 2, 3, 9984, 28, 2, 1, 0, 0, 0),
    (9, "3g.20gb", 3, 2, 20096, 42, 3, 2, 0, 0, 0),
    (5, "4g.20gb", 4, 1, 20096, 56, 4, 2, 0, 0, 0),
    (0, "7g.40gb", 7, 1, 40192, 98, 7, 5, 0, 1, 1),
)
_A100_80: tuple[_Row, ...] = (
    (19, "1g.10gb", 1, 7, 9728, 14, 1, 0, 0, 0, 0),
    (20, "1g.10gb+me", 1, 1, 9728, 14, 1, 1, 0, 1, 1),
    (15, "1g.20gb", 1, 4, 19968, 14, 1, 1, 0, 0, 0),  # MiB UNVERIFIED: as for 2g.
    (14, "2g.20gb", 2, 3, 19968, 28, 2, 1, 0, 0, 0),
    (9, "3g.40gb", 3, 2, 40192, 42, 3, 2, 0, 0, 0),
    (5, "4g.40gb", 4, 1, 40192, 56, 4, 2, 0, 0, 0),
    (0, "7g.80gb", 7, 1, 80896, 98, 7, 5, 0, 1, 1),
)
_H100_80: tuple[_Row, ...] = (
    (19, "1g.10gb", 1, 7, 9984, 16, 1, 1, 0, 1, 0),
    (20, "1g.10gb+me", 1, 1, 9984, 16, 1, 1, 0, 1, 1),
    (15, "1g.20gb", 1, 4, 20096, 26, 1, 1, 0, 1, 0),
    (14, "2g.20gb", 2, 3, 20096, 32, 2, 2, 0, 2, 0),
    (9, "3g.40gb", 3, 2, 40448, 60, 3, 3, 0, 3, 0),
    (5, "4g.40gb", 4, 1, 40448, 64, 4, 4, 0, 4, 0),
    (0, "7g.80gb", 7, 1, 81152, 132, 8, 7, 0, 7, 1),
)
_H100_NVL: tuple[_Row, ...] = (
    (19, "1g.12gb", 1, 7, 11008, 16, 1, 1, 0, 1, 0),
    (20, "1g.12gb+me", 1, 1, 11008, 16, 1, 1, 0, 1, 1),
    (15, "1g.24gb", 1, 4, 22144, 26, 1, 1, 0, 1, 0),
    (14, "2g.24gb", 2, 3, 22144, 32, 2, 2, 0, 2, 0),
    (9, "3g.47gb", 3, 2, 47488, 60, 3, 3, 0, 3, 0),
    (5, "4g.47gb", 4, 1, 47488, 64, 4, 4, 0, 4, 0),
    (0, "7g.94gb", 7, 1, 95360, 132, 8, 7, 0, 7, 1),
)
_H200: tuple[_Row, ...] = (
    (19, "1g.18gb", 1, 7, 16384, 16, 1, 1, 0, 1, 0),
    (20, "1g.18gb+me", 1, 1, 16384, 16, 1, 1, 0, 1, 1),
    (15, "1g.35gb", 1, 4, 33024, 26, 1, 1, 0, 1, 0),
    (14, "2g.35gb", 2, 3, 33024, 32, 2, 2, 0, 2, 0),
    (9, "3g.71gb", 3, 2, 71168, 60, 3, 3, 0, 3, 0),
    (5, "4g.71gb", 4, 1, 71168, 64, 4, 4, 0, 4, 0),
    (0, "7g.141gb", 7, 1, 143360, 132, 8, 7, 0, 7, 1),
)
_B200: tuple[_Row, ...] = (
    (19, "1g.23gb", 1, 7, 22528, 18, 2, 1, 0, 1, 0),
    (20, "1g.23gb+me", 1, 1, 22528, 18, 2, 1, 0, 1, 1),
    (15, "1g.45gb", 1, 4, 45312, 30, 2, 1, 0, 1, 0),
    (14, "2g.45gb", 2, 3, 45312, 36, 4, 2, 0, 2, 0),
    (9, "3g.90gb", 3, 2, 91136, 70, 6, 3, 0, 3, 0),  # All but the count UNVERIFIED; seen as 89 GB.
    (5, "4g.90gb", 4, 1, 91136, 72, 8, 4, 0, 4, 0),  # (as above)
    (0, "7g.180gb", 7, 1, 182272, 148, 16, 7, 0, 7, 1),  # (as above)
)
_GB200: tuple[_Row, ...] = (
    (19, "1g.23gb", 1, 7, 22528, 18, 2, 1, 0, 1, 0),  # Other drivers: 1g.24gb, 20480 MiB.
    (20, "1g.23gb+me", 1, 1, 22528, 18, 2, 1, 0, 1, 1),
    (15, "1g.47gb", 1, 4, 46592, 32, 2, 1, 0, 1, 0),
    (14, "2g.47gb", 2, 3, 46592, 38, 4, 2, 0, 2, 0),
    (9, "3g.93gb", 3, 2, 94208, 74, 6, 3, 0, 3, 0),  # All but the count UNVERIFIED.
    (5, "4g.93gb", 4, 1, 94208, 76, 8, 4, 0, 4, 0),  # (as above)
    (0, "7g.186gb", 7, 1, 188416, 152, 16, 7, 0, 7, 1),  # (as above)
)
_RTX_PRO_6000: tuple[_Row, ...] = (
    (14, "1g.24gb", 1, 4, 24192, 46, 1, 1, 1, 1, 0),
    (21, "1g.24gb+me", 1, 1, 24192, 46, 1, 1, 1, 1, 1),
    (47, "1g.24gb+gfx", 1, 4, 24192, 46, 1, 1, 1, 1, 0),
    (65, "1g.24gb+me.all", 1, 1, 24192, 46, 1, 4, 4, 4, 1),
    (67, "1g.24gb-me", 1, 4, 24192, 46, 1, 0, 0, 0, 0),
    (5, "2g.48gb", 2, 2, 48512, 94, 2, 2, 2, 2, 0),
    (35, "2g.48gb+gfx", 2, 2, 48512, 94, 2, 2, 2, 2, 0),
    (64, "2g.48gb+me.all", 2, 1, 48512, 94, 2, 4, 4, 4, 1),
    (66, "2g.48gb-me", 2, 2, 48512, 94, 2, 0, 0, 0, 0),
    (0, "4g.96gb", 4, 1, 97280, 188, 4, 4, 4, 4, 1),
    (32, "4g.96gb+gfx", 4, 1, 97280, 188, 4, 4, 4, 4, 1),
)

# Two halves of an A100 40 GB differ a little; which one has more is UNVERIFIED.
_A100_40_MEMORY_AT: _MemoryAt = {9: ((4, 20224),)}


def _profiles(
    rows: tuple[_Row, ...],
    index: dict[int, int],
    places: _Places,
    memory_at: _MemoryAt | None = None,
) -> tuple[Profile, ...]:
    return tuple(
        Profile(
            index=index[ident],
            id=ident,
            name=name,
            slices=slices,
            count=count,
            memory_mib=memory,
            multiprocessors=sms,
            copy_engines=copies,
            engines=Engines(decoders=decoders, encoders=encoders, jpegs=jpegs, ofas=ofas),
            starts=tuple(places[ident][0]),
            size=places[ident][1],
            memory_at=(memory_at or {}).get(ident, ()),
        )
        for ident, name, slices, count, memory, sms, copies, decoders, encoders, jpegs, ofas in rows
    )


def _seven(rows: tuple[_Row, ...], memory_at: _MemoryAt | None = None) -> tuple[Profile, ...]:
    return _profiles(rows, _SEVEN_SLICE_INDEX, _SEVEN_SLICE_PLACES, memory_at)


_ALL = (
    Model(
        name="a30",
        product="NVIDIA A30",
        architecture=Architecture.AMPERE,
        compute_capability=(8, 0),
        device_id=0x20B710DE,
        brand=Brand.NVIDIA,
        memory_mib=24576,
        grid=4,
        max_mig_devices=4,
        profiles=_profiles(_A30, _A30_INDEX, _A30_PLACES),
    ),
    Model(
        name="a100-40gb",
        product="NVIDIA A100-SXM4-40GB",
        architecture=Architecture.AMPERE,
        compute_capability=(8, 0),
        device_id=0x20B010DE,
        brand=Brand.NVIDIA,
        memory_mib=40960,
        grid=8,
        max_mig_devices=7,
        profiles=_seven(_A100_40, _A100_40_MEMORY_AT),
    ),
    Model(
        name="a100-80gb",
        product="NVIDIA A100-SXM4-80GB",
        architecture=Architecture.AMPERE,
        compute_capability=(8, 0),
        device_id=0x20B210DE,
        brand=Brand.NVIDIA,
        memory_mib=81920,
        grid=8,
        max_mig_devices=7,
        profiles=_seven(_A100_80),
    ),
    Model(
        name="h100-80gb",
        product="NVIDIA H100 80GB HBM3",
        architecture=Architecture.HOPPER,
        compute_capability=(9, 0),
        device_id=0x233010DE,
        brand=Brand.NVIDIA,
        memory_mib=81559,
        grid=8,
        max_mig_devices=7,
        profiles=_seven(_H100_80),
        nvlink_fabric=True,
    ),
    Model(
        name="h100-nvl",
        product="NVIDIA H100 NVL",
        architecture=Architecture.HOPPER,
        compute_capability=(9, 0),
        device_id=0x232110DE,
        brand=Brand.NVIDIA,
        memory_mib=95830,
        grid=8,
        max_mig_devices=7,
        profiles=_seven(_H100_NVL),
    ),
    Model(
        name="h200",
        product="NVIDIA H200",
        architecture=Architecture.HOPPER,
        compute_capability=(9, 0),
        device_id=0x233510DE,
        brand=Brand.NVIDIA,
        memory_mib=143771,
        grid=8,
        max_mig_devices=7,
        profiles=_seven(_H200),
        nvlink_fabric=True,
    ),
    Model(
        name="b200",
        product="NVIDIA B200",
        architecture=Architecture.BLACKWELL,
        compute_capability=(10, 0),
        device_id=0x290110DE,
        brand=Brand.NVIDIA,
        memory_mib=183359,
        grid=8,
        max_mig_devices=7,
        profiles=_seven(_B200),
        nvlink_fabric=True,
    ),
    Model(
        name="gb200",
        product="NVIDIA GB200",
        architecture=Architecture.BLACKWELL,
        compute_capability=(10, 0),
        device_id=0x294110DE,
        brand=Brand.NVIDIA,
        memory_mib=189471,
        grid=8,
        max_mig_devices=7,
        profiles=_seven(_GB200),
        addressing=Addressing.ATS,
        nvlink_fabric=True,
    ),
    Model(
        name="rtx-pro-6000",
        product="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        architecture=Architecture.BLACKWELL,
        compute_capability=(12, 0),
        device_id=0x2BB510DE,
        brand=Brand.NVIDIA_RTX,
        memory_mib=97887,
        grid=12,
        max_mig_devices=4,
        profiles=_profiles(_RTX_PRO_6000, _RTX_PRO_INDEX, _RTX_PRO_PLACES),
    ),
    Model(
        name="l4",
        product="NVIDIA L4",
        architecture=Architecture.ADA,
        compute_capability=(8, 9),
        device_id=0x27B810DE,
        brand=Brand.NVIDIA,
        memory_mib=23034,
        grid=0,
        max_mig_devices=0,
        profiles=(),
    ),
    Model(
        name="t4",
        product="Tesla T4",
        architecture=Architecture.TURING,
        compute_capability=(7, 5),
        device_id=0x1EB810DE,
        brand=Brand.TESLA,
        memory_mib=15360,
        grid=0,
        max_mig_devices=0,
        profiles=(),
        addressing=Addressing.NONE,
    ),
    Model(
        name="gb10",
        product="NVIDIA GB10",
        architecture=Architecture.BLACKWELL,
        compute_capability=(12, 1),
        device_id=0x2E1210DE,
        brand=Brand.NVIDIA,
        memory_mib=None,
        grid=0,
        max_mig_devices=0,
        profiles=(),
        addressing=Addressing.ATS,
    ),
)

MODELS: dict[str, Model] = {model.name: model for model in _ALL}
"""Every kind of GPU by the name used in machine descriptions."""


@lru_cache
def gpu_instance_ids(grid: int, size: int) -> range:
    """Ids that NVML hands out for instances covering `size` of `grid` memory slices.

    Observed: 0 for the whole GPU, 1 and 2 for halves, 3 to 6 for quarters, 7 to 14 for eighths, so the ids of one
    GPU are not sequential. That the 1g profile with double memory counts as a quarter is UNVERIFIED.
    """
    parts = grid // size
    return range(parts - 1, 2 * parts - 1)
