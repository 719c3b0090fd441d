"""A record that was lost, made again from the claim's CDI spec: the second place where it stands what was made.

The spec tells the devices by name, and the UUIDs that the containers were given. It does not tell which request
a device answers, nor the name of the claim; the claim itself does, when the kubelet asks for it again or the
reconciler finds it.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dradriver import api
from dradriver.gpu.devices import OfferedDevice
from dradriver.gpu.model import MigInstance
from dradriver.prepare.errors import HardwareError, RecordError
from dradriver.prepare.node import Node
from dradriver.prepare.plan import Plan, PlannedDevice
from dradriver.prepare.records import Made, Record, State

_GPU = re.compile(r"gpu-\d+")


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
        PrepareError: likewise, since the spec cannot be read now or a GPU is not there now.
    """
    try:
        entries = json.loads(_text(path))["devices"]
        devices, made = [], {}
        for entry in entries:
            device, instance = _device(entry, uid, node)
            devices.append(device)
            if instance is not None:
                made[device.device] = instance
        if not devices:
            raise ValueError("it has no devices")  # noqa: TRY301 (damaged as much as any other)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnrecoverableError(f"CDI spec {path} does not tell what was made: {error!r}") from error
    plan = Plan(namespace="", name="", uid=uid, devices=tuple(devices))
    return Record(boot_id=boot_id, state=State.PREPARED, plan=plan, made=made, spec_path=str(path))


def _text(path: Path) -> str:
    if path.exists() and not path.is_file():
        # A pipe would never end.
        raise UnrecoverableError(f"{path} is no file")
    try:
        return path.read_text()
    except FileNotFoundError as error:
        raise UnrecoverableError(f"CDI spec {path} is gone") from error
    except OSError as error:
        raise RecordError(f"cannot read the CDI spec {path}: {os.strerror(error.errno or 0)}") from error


def _device(entry: Mapping[str, Any], uid: str, node: Node) -> tuple[PlannedDevice, Made | None]:
    prefix, name = entry["name"][: len(uid) + 1], entry["name"][len(uid) + 1 :]
    if prefix != f"{uid}-":
        raise ValueError(f"{entry['name']} is no device of this claim")
    _check_gpu(name, node)
    share_id = None
    if node.offer.find(name) is None:
        # A share's UID stands behind the device's name; a UID has five groups.
        groups = name.rsplit("-", 5)
        name, share_id = groups[0], "-".join(groups[1:])
    offered = node.offer.find(name)
    if offered is None:
        raise ValueError(f"{name} is no device of this node")
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


def _check_gpu(name: str, node: Node) -> None:
    """Make sure that the GPU of a device is there, for one that does not answer now may come back."""
    gpu = _GPU.match(name)
    if gpu is not None and not any((known := _GPU.match(one)) and known[0] == gpu[0] for one in node.offer.devices):
        raise HardwareError(f"device {name}: its GPU is not there now, or could not be read; see the plugin's log")


def _gpu_name(device: str) -> str:
    return device.partition("-mig-")[0]


def _instance(offered: OfferedDevice, uuid: str, node: Node) -> MigInstance | None:
    instances = node.hardware.instances(offered.gpu.uuid)
    return next((instance for instance in instances if instance.uuid == uuid), None)


def _made(instance: MigInstance | None, uuid: str) -> Made:
    """Say what was made; an instance that is gone keeps its UUID, so that nobody else's is taken for it."""
    if instance is None or instance.compute_instance_id is None:
        return Made(gpu_instance_id=-1, compute_instance_id=-1, uuid=uuid)
    return Made(gpu_instance_id=instance.gpu_instance_id, compute_instance_id=instance.compute_instance_id, uuid=uuid)
