"""From what is known of a node to the picture that decides what is offered."""

from collections.abc import Iterable, Mapping

from dradriver.gpu import names
from dradriver.gpu.health import NONE_MARKED, Marks
from dradriver.gpu.offer import in_bus_order
from dradriver.nodeconfig import Wanted
from dradriver.numbering import GpuMemory
from dradriver.offering.gpus import Gpus
from dradriver.offering.holders import Handed, handed, recorded, shares
from dradriver.offering.picture import Picture
from dradriver.prepare.records import Record
from dradriver.publish import Features


def paint(
    gpus: Gpus,
    memory: GpuMemory,
    *,
    wanted: Wanted,
    features: Features | None,
    allocated: frozenset[Handed] = frozenset(),
    marks: Marks = NONE_MARKED,
) -> Picture:
    """Put together all that decides what a node offers.

    Args:
        gpus: as they were read last.
        memory: of the node's GPUs; new ones get their numbers there.
        wanted: by the administrator.
        features: of the API server; None as long as they are unknown.
        allocated: devices that claims hold by the API server's word only.
        marks: what GPUs deserve for their health.
    """
    records, remembered = gpus.records(), memory.facts
    memory.learn(_numbers(records))
    names_only = frozenset(name for name, _ in allocated)
    kept = gpus.kept(remembered, _holders(records, names_only, memory.numbers))
    ordered = in_bus_order((*gpus.present, *kept))
    uuids = [gpu.uuid for gpu in ordered]
    numbered = memory.number(ordered, held=frozenset(gpu.uuid for gpu in kept))
    rules = [wanted.policy.rule(gpu, index) for index, gpu in enumerate(ordered)]
    counted = features is None or features.partitionable
    return Picture(
        gpus=tuple(gpus.without_ours(gpu, rule, counted=counted) for gpu, rule in zip(ordered, rules, strict=True)),
        numbers={uuid: numbered[uuid] for uuid in uuids},
        wanted=wanted,
        features=features,
        absent=frozenset(gpu.uuid for gpu in kept),
        gone=frozenset(memory.facts.keys() - set(uuids)),
        held=dict.fromkeys(names_only, "") | recorded(records, gpus.boot_id),
        marks=marks,
        shares=shares(handed(records, allocated)),
    )


def _numbers(records: Iterable[Record]) -> dict[str, int]:
    """Numbers of GPUs as the names of the devices tell that claims hold."""
    devices = (device for record in records for device in record.plan.devices)
    return {one.gpu_uuid: number for one in devices if (number := names.number_of(one.device)) is not None}


def _holders(records: Iterable[Record], allocated: frozenset[str], numbers: Mapping[str, int]) -> frozenset[str]:
    """UUIDs of GPUs of which claims hold something."""
    by_record = {device.gpu_uuid for record in records for device in record.plan.devices if not device.admin_access}
    held = {names.number_of(name) for name in allocated}
    return frozenset(by_record | {uuid for uuid, number in numbers.items() if number in held})
