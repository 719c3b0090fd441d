"""A record that was lost, made again from the claim's CDI spec: the second place where it stands what was made.

The spec tells the devices by name, and the UUIDs that the containers were given. It does not tell which request
a device answers, nor the name of the claim; the claim itself does, when the kubelet asks for it again or the
reconciler finds it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dradriver import api
from dradriver.gpu.model import MigInstance
from dradriver.gpu.offer import OfferedDevice
from dradriver.prepare.node import Node
from dradriver.prepare.plan import Plan, PlannedDevice
from dradriver.prepare.records import Made, Record, State


class UnrecoverableError(ValueError):
    """A CDI spec that does not tell what was made; the message says why."""


def recover(path: Path, *, uid: str, boot_id: str, node: Node) -> Record:
    """Read a record back from a CDI spec.

    Args:
        path: the spec.
        uid: claim UID.
        boot_id: of the running kernel. Specs do not outlive a boot where they lie below /var/run; where they do,
            what they name does not exist, and the record undoes nothing.
        node: what exists now.

    Raises:
        UnrecoverableError: the spec is damaged, or names devices that the node does not have.
        NvmlError: the GPUs cannot be asked now; the spec may tell all the same, later.
    """
    try:
        entries = json.loads(path.read_text())["devices"]
        devices, made = [], {}
        for entry in entries:
            device, instance = _device(entry, uid, node)
            devices.append(device)
            if instance is not None:
                made[device.device] = instance
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnrecoverableError(f"CDI spec {path} does not tell what was made: {error!r}") from error
    plan = Plan(namespace="", name="", uid=uid, devices=tuple(devices))
    return Record(boot_id=boot_id, state=State.PREPARED, plan=plan, made=made, spec_path=str(path))


def _device(entry: Mapping[str, Any], uid: str, node: Node) -> tuple[PlannedDevice, Made | None]:
    name = str(entry["name"]).removeprefix(f"{uid}-")
    share_id = None
    if name not in node.offer.devices:
        # A share's UID stands behind the device's name; a UID has five groups.
        groups = name.rsplit("-", 5)
        name, share_id = groups[0], "-".join(groups[1:])
    offered = node.offer.devices[name]
    variables = dict(str(line).split("=", 1) for line in entry["containerEdits"]["env"])
    uuid = variables[api.device_variable(name)]
    admin = api.ADMIN_ACCESS_VARIABLE in variables
    instance = _instance(offered, uuid, node)
    device = PlannedDevice(
        requests=(),
        pool=node.offer.pool.name,
        device=name,
        gpu_uuid=offered.gpu.uuid,
        profile_id=None if offered.profile is None else offered.profile.id,
        profile_name=None if offered.profile is None else offered.profile.name,
        placement=offered.placement,
        instance_uuid=None if offered.instance is None else offered.instance.uuid,
        make=offered.profile is not None and offered.instance is None and not admin,
        admin_access=admin,
        share_id=share_id,
    )
    return device, None if offered.profile is None else _made(instance, uuid)


def _instance(offered: OfferedDevice, uuid: str, node: Node) -> MigInstance | None:
    instances = node.hardware.instances(offered.gpu.uuid)
    return next((instance for instance in instances if instance.uuid == uuid), None)


def _made(instance: MigInstance | None, uuid: str) -> Made:
    """Say what was made; an instance that is gone keeps its UUID, so that nobody else's is taken for it."""
    if instance is None or instance.compute_instance_id is None:
        return Made(gpu_instance_id=-1, compute_instance_id=-1, uuid=uuid)
    return Made(gpu_instance_id=instance.gpu_instance_id, compute_instance_id=instance.compute_instance_id, uuid=uuid)
