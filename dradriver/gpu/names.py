"""Names of devices and counter sets: short, legal in DNS, and the same as NVIDIA's driver gives."""

import re
from collections.abc import Iterable, Mapping

from dradriver.gpu.model import Gpu, MigProfile, Placement

_NUMBER = re.compile(r"gpu-(0|[1-9]\d{0,3})(?:-mig-.+)?$")
_NOT_IN_A_LABEL = re.compile(r"[^a-z0-9]")


def gpu_name(number: int) -> str:
    """Name a whole GPU: `gpu-0`."""
    return f"gpu-{number}"


def partition_name(number: int, profile: MigProfile, placement: Placement) -> str:
    """Name a partition: `gpu-0-mig-1g10gb-19-3`; the profile id keeps profiles of one spelling apart."""
    label = _NOT_IN_A_LABEL.sub("-", profile.name.lower().replace(".", ""))
    return f"gpu-{number}-mig-{label}-{profile.id}-{placement.start}"


def number_of(name: str) -> int | None:
    """Read the GPU's number from the name of a device; None if it is no name of ours."""
    found = _NUMBER.match(name)
    return None if found is None else int(found[1])


def counter_set_name(number: int) -> str:
    """Name the counter set of a GPU: `gpu-0-counter-set`."""
    return f"gpu-{number}-counter-set"


def number_gpus(gpus: Iterable[Gpu], known: Mapping[str, int]) -> dict[str, int]:
    """Give every GPU the number that its names carry.

    A GPU keeps the number it once had, since allocated claims name devices by it and device minors move
    when the driver is reloaded. A new GPU gets its minor, or the lowest free number where that is taken.

    Args:
        gpus: what the node has now.
        known: UUID to number, of every GPU ever seen here.

    Returns:
        UUID to number, of every GPU ever seen, the new ones included.
    """
    numbers = dict(known)
    new = [gpu for gpu in gpus if gpu.uuid not in numbers]
    taken = set(numbers.values())
    displaced = []
    for gpu in new:
        if gpu.minor in taken:
            displaced.append(gpu)
            continue
        numbers[gpu.uuid] = gpu.minor
        taken.add(gpu.minor)
    for gpu in displaced:
        numbers[gpu.uuid] = next(number for number in range(len(numbers) + 1) if number not in taken)
        taken.add(numbers[gpu.uuid])
    return numbers
