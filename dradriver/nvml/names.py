"""NVML's numbers as the words that users' selectors compare.

The spellings of architectures and brands are those that NVIDIA's driver publishes (go-nvlib's), since DeviceClasses
and claims written for it select by them. A number that is newer than these tables is `Unknown`: a device is
offered with a poor attribute rather than not at all.
"""

from typing import Final

UNKNOWN: Final = "Unknown"

AMPERE: Final = 7
HOPPER: Final = 9
_ARCHITECTURE_UNKNOWN: Final = 0xFFFFFFFF

_ARCHITECTURES: Final = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    AMPERE: "Ampere",
    8: "Ada Lovelace",
    HOPPER: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}

_BRANDS: Final = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}

_ADDRESSING_MODES: Final = {0: "None", 1: "HMM", 2: "ATS"}

# By NVML_GPU_INSTANCE_PROFILE_*: what a profile has more or less than the plain one of its size.
_PROFILE_SUFFIXES: Final = {
    0x07: "+me",
    0x08: "+me",
    0x0A: "+gfx",
    0x0B: "+gfx",
    0x0C: "+gfx",
    0x0D: "-me",
    0x0E: "-me",
    0x0F: "+me.all",
    0x10: "+me.all",
    0x11: "+gfx",
}


def architecture_name(code: int) -> str:
    """Spell an nvmlDeviceArchitecture_t."""
    return _ARCHITECTURES.get(code, UNKNOWN)


def brand_name(code: int) -> str:
    """Spell an nvmlBrandType_t."""
    return _BRANDS.get(code, UNKNOWN)


def addressing_mode_name(code: int) -> str | None:
    """Spell an nvmlDeviceAddressingModeType_t; None for one that is not known."""
    return _ADDRESSING_MODES.get(code)


def switches_mig_without_reset(architecture: int) -> bool:
    """Tell it by architecture; one that NVML does not know either counts as needing the reset, the safe side."""
    return HOPPER <= architecture < _ARCHITECTURE_UNKNOWN


def sysfs_bus_id(nvml_bus_id: str) -> str:
    """Turn NVML's `00000000:C1:00.0` (8-digit domain) into the kernel's `0000:c1:00.0`."""
    domain, _, rest = nvml_bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def bus_order(pci_bus_id: str) -> tuple[int, str]:
    """Sort key for bus ids as sysfs writes them; domains may have more than four digits."""
    domain, _, rest = pci_bus_id.partition(":")
    return int(domain, 16), rest


def profile_name(index: int, *, slices: int, memory_mib: int, total_bytes: int | None) -> str:
    """Compute a profile's name, such as `1g.10gb+me`, where NVML gives none (its v1 structure).

    The rule is that of NVIDIA's own tools: the share of the GPU's memory is rounded up to eighths, and the GPU's memory
    up to whole GiB; their product, rounded to whole numbers, is the name's size.

    Args:
        index: NVML_GPU_INSTANCE_PROFILE_* enum index, from which the suffix follows.
        slices: compute slices.
        memory_mib: the profile's memory in MiB.
        total_bytes: the GPU's memory in bytes; where unknown the profile's own memory is rounded.
    """
    gigabytes = _nominal_gigabytes(memory_mib, total_bytes) if total_bytes else round(memory_mib / 1024)
    return f"{slices}g.{gigabytes}gb{_PROFILE_SUFFIXES.get(index, '')}"


def _nominal_gigabytes(memory_mib: int, total_bytes: int) -> int:
    eighths = -(-(memory_mib << 20) * 8 // total_bytes)
    total_gib = -(-total_bytes // 2**30)
    # Half is rounded up, in whole numbers.
    return (2 * eighths * total_gib + 8) // 16
