"""What is wrong with an offer, in words: object, cause and next step."""

from collections.abc import Mapping
from typing import Final

from dradriver.gpu.offer import Offer
from dradriver.gpu.profiles import MigOffer, missing
from dradriver.nvml import Inventory
from dradriver.offering.picture import Picture
from dradriver.reporting import Note

_NO_COUNTERS: Final = Note(
    "PartitionsNotOffered",
    "no partitions are offered: the API server drops their counters, so that memory would be given out twice; use "
    "Kubernetes 1.36 or newer, or enable the feature gate DRAPartitionableDevices",
)
_NO_SHARES: Final = Note(
    "SharesNotOffered",
    "GPUs are offered unshared: the API server drops what tells that several claims may have a device, so that shares "
    "would be given out wrongly; use Kubernetes 1.36 or newer, or enable the feature gate DRAConsumableCapacity",
)
_NO_TAINTS: Final = Note(
    "TaintsNotKept",
    "the API server drops device taints, so that devices which cannot be used are withheld instead; use Kubernetes "
    "1.36 or newer, or enable the feature gate DRADeviceTaints",
)


def of_offer(picture: Picture, offer: Offer) -> Mapping[str, Note]:
    """Say what keeps a node from offering all that is wanted of it; the keys tell one such thing from another."""
    notes = {}
    if picture.situation.layout is None and any(rule.mig is MigOffer.DYNAMIC for rule in picture.by_rule):
        notes["counters"] = _NO_COUNTERS
    if not picture.situation.taints:
        notes["taints"] = _NO_TAINTS
    if not picture.situation.shareable and any(rule.sharing is not None for rule in picture.by_rule):
        notes["shares"] = _NO_SHARES
    notes |= {f"unshared {uuid}": _unshared(uuid) for uuid in sorted(offer.unshared)}
    if unknown := {name for rule, gpus in picture.by_rule.items() for name in missing(rule.profiles, gpus)}:
        notes["profiles"] = _unknown_profiles(unknown)
    notes |= {f"absent {uuid}": _absent(uuid) for uuid in picture.absent}
    notes |= {f"gone {uuid}": _gone(uuid) for uuid in picture.gone}
    notes |= {f"refused {uuid}": _refused(uuid, problems) for uuid, problems in offer.refused.items()}
    offering = {device.gpu.uuid for device in offer.devices.values()}
    return notes | {f"empty {gpu.uuid}": _empty(gpu.uuid) for gpu in picture.gpus if gpu.uuid not in offering}


def of_inventory(inventory: Inventory) -> Mapping[str, Note]:
    """Say which GPUs cannot be read."""
    names = {gpu.uuid or gpu.pci_bus_id or f"with index {gpu.index}": gpu.error for gpu in inventory.unreadable}
    return {name: Note("GpuUnreadable", f"GPU {name} cannot be read: {error}") for name, error in names.items()}


def _unshared(uuid: str) -> Note:
    return Note(
        "GpuNotShared",
        f"GPU {uuid} is offered unshared: it is cut for claims (mig: dynamic), and what is shared cannot be cut; say "
        "`mig: static` or `mig: off` in its rule of the node configuration, or drop `sharing` there",
    )


def _unknown_profiles(names: set[str]) -> Note:
    text = f"no GPU for which they are wanted has the profiles {', '.join(sorted(names))}; see `nvidia-smi mig -lgip`"
    return Note("UnknownProfiles", text)


def _absent(uuid: str) -> Note:
    return Note(
        "GpuLost",
        f"GPU {uuid} does not answer or is not there any more; its devices stay published with a taint while claims "
        "hold them or it may come back: see the kernel's log on the node for Xid messages, and reset or replace it",
    )


def _gone(uuid: str) -> Note:
    return Note(
        "GpuGone",
        f"GPU {uuid} was here since the node has booted and is not any more, so it is not offered; where that is not "
        "wanted, see the kernel's log on the node for what became of it",
    )


def _refused(uuid: str, problems: tuple[str, ...]) -> Note:
    text = f"GPU {uuid} is not offered, since the API server would refuse it: {'; '.join(problems)}"
    return Note("GpuRefused", f"{text}; please report this, with the output of `dradriver slices`")


def _empty(uuid: str) -> Note:
    return Note(
        "GpuOffersNothing",
        f"GPU {uuid} offers nothing: it is in MIG mode, and has no instance that fills its profile or is not to be "
        "offered (mig: off); make instances with `nvidia-smi mig -cgi`, or switch MIG mode off",
    )
