"""How each device is, for the kubelet: the same story that its taints tell the scheduler."""

from collections.abc import Iterator
from dataclasses import replace

from dradriver import api
from dradriver.gpu.devices import OfferedDevice
from dradriver.gpu.offer import device_marks
from dradriver.kubelet import DeviceHealth, Health
from dradriver.offering.picture import Shown


def told_health(shown: Shown, now: int) -> Iterator[DeviceHealth]:
    """Say how each device is, also what only tells and the API server may not keep.

    Args:
        shown: what is offered.
        now: Unix time in seconds.
    """
    situation = replace(shown.picture.situation, informational=True)
    names = shown.names | (shown.picture.held.keys() & shown.node.offer.devices.keys())
    for name in sorted(names):
        device = shown.node.offer.devices[name]
        marks = device_marks(device, situation)
        if device.gpu.uuid in shown.picture.absent and not any(mark.key == api.TaintKey.GPU_LOST for mark in marks):
            yield _told(shown, name, Health.UNHEALTHY, _absent(device), now)
        elif not marks:
            yield _told(shown, name, Health.HEALTHY, "", now)
        else:
            unheard = any(mark.key == api.TaintKey.UNMONITORED for mark in marks)
            mild = Health.UNKNOWN if unheard else Health.HEALTHY
            text = "; ".join(dict.fromkeys(mark.text for mark in marks))
            yield _told(shown, name, Health.UNHEALTHY if marks[0].gravity else mild, text, marks[0].since)


def _absent(device: OfferedDevice) -> str:
    return f"GPU {device.gpu.uuid} does not answer, or is not there any more: see the Events of the node"


def _told(shown: Shown, name: str, health: Health, message: str, since: int) -> DeviceHealth:
    pool = shown.node.offer.pool.name
    return DeviceHealth(pool=pool, device=name, health=health, message=message, since=since)
