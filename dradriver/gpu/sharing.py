"""Which devices several claims may have at once, and what they say of it.

A device is shared or it consumes counters, never both: schedulers count the two apart, and give such a device out twice
(kubernetes#134100, kubernetes#139034). So a GPU that is cut for claims is not shared. And a device changes from one to
the other only while nobody holds it, since what a claim holds in one way the scheduler does not see in the other.
"""

from collections.abc import Iterable, Mapping

from dradriver import api
from dradriver.gpu.devices import OfferedDevice, wanted_devices
from dradriver.gpu.model import Gpu
from dradriver.gpu.policy import GpuRule, Sharing
from dradriver.gpu.profiles import MigOffer
from dradriver.resource import AttributeValue, RequestPolicy


def is_partitioned(gpu: Gpu, rule: GpuRule) -> bool:
    """Tell whether a rule has a GPU cut when claims are prepared, which some GPUs cannot be."""
    return rule.mig is MigOffer.DYNAMIC and any(device.is_made_here for device in wanted_devices(gpu, 0, rule))


def wish(gpu: Gpu, rule: GpuRule) -> Sharing | None:
    """Say how the devices of a GPU are to be shared; None if they are not to be, or cannot be beside partitions."""
    return None if rule.sharing is None or is_partitioned(gpu, rule) else rule.sharing


def shares(
    wanted: Iterable[OfferedDevice],
    left_over: Iterable[OfferedDevice],
    *,
    wished: Sharing | None,
    held: Mapping[str, str],
    held_shares: Mapping[str, int],
) -> dict[str, int]:
    """Say which devices of a GPU are shared, and by how many.

    Args:
        wanted: devices that are offered.
        left_over: devices that are offered for the sake of their claims only.
        wished: how the wanted ones are to be shared.
        held: devices that claims hold, in whichever way.
        held_shares: those of them that claims hold in shares, and how many.

    Returns:
        Name to number of shares. A device that is held stays what it is. One that is not to be shared any more has as
        many shares as are taken, so that no others can be.
    """
    found = {device.name: held_shares[device.name] for device in (*wanted, *left_over) if device.name in held_shares}
    if wished is None:
        return found
    return found | {
        device.name: wished.replicas for device in wanted if device.name in held_shares or device.name not in held
    }


def unwished(
    wanted: Iterable[OfferedDevice],
    wished: Sharing | None,
    *,
    held: Mapping[str, str],
    held_shares: Mapping[str, int],
) -> frozenset[str]:
    """Name the wanted devices that claims hold in shares though they are not to be shared, or the other way round."""
    names = (device.name for device in wanted if device.name in held)
    return frozenset(name for name in names if (name in held_shares) != (wished is not None))


def attributes(rule: GpuRule, *, shared: bool) -> dict[str, AttributeValue]:
    """Say whether a device is shared, and whether its rule wants a name for it."""
    return {
        api.Attribute.SHARING: api.Sharing.TIME_SLICING if shared else api.Sharing.NONE,
        api.Attribute.RENAMED: rule.sharing is not None and rule.sharing.renamed,
    }


def policies(capacity: Mapping[str, int]) -> dict[str, RequestPolicy]:
    """Say what a claim takes of a shared device: one share, and of everything else nothing unless it asks for it.

    A capacity without a policy would go to the first claim as a whole.
    """
    return {
        name: RequestPolicy(default=1, least=1) if name == api.Capacity.SHARES else RequestPolicy(default=0)
        for name in capacity
    }
