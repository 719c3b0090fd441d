"""What is prepared, one file for each claim: enough to undo it without the API server and without the claim.

A record is written before the first side effect (state `preparing`) and again when everything is there
(`prepared`). It is removed when nothing of it is left. Killing the process in between loses nothing: the
record says which partitions are ours, by GPU UUID, profile and placement.
"""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import structlog

from dradriver import files
from dradriver.gpu.model import Placement
from dradriver.prepare.errors import HeldError, RecordError
from dradriver.prepare.plan import Plan, PlannedDevice

VERSION: Final = 1
"""Version of the file format. A reader takes any version and keeps fields it does not know."""

_log = structlog.get_logger()


class State(StrEnum):
    """How far a claim is."""

    PREPARING = "preparing"
    PREPARED = "prepared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A MIG instance that was made for a claim, or that existed and was given to it."""

    gpu_instance_id: int
    compute_instance_id: int
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One claim on this node.

    Attributes:
        boot_id: of the boot in which it was prepared; after a reboot no partition of it exists.
        made: device name to the MIG instance behind it.
        unknown: fields of a newer version, kept when the record is written again.
    """

    boot_id: str
    state: State
    plan: Plan
    made: Mapping[str, Made] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)


class Records:
    """All records of the node, in memory and on disk, and with them who holds which device.

    Args:
        folder: made if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._records: dict[str, Record] = {}

    def load(self) -> None:
        """Read every record; a damaged one is set aside in `quarantine/`, and the others live on.

        Raises:
            RecordError: the folder cannot be read or made.
        """
        with _translated(self._folder, "read"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in sorted(self._folder.glob("*.json")):
                self._load(path)

    def get(self, uid: str) -> Record | None:
        """Find the record of a claim."""
        return self._records.get(uid)

    def all(self) -> tuple[Record, ...]:
        """List all records."""
        with self._lock:
            return tuple(self._records.values())

    def reserve(self, record: Record) -> None:
        """Hold the devices of a claim, in memory only, unless another claim holds a part of them.

        Raises:
            HeldError: naming the device and the other claim.
        """
        plan = record.plan
        with self._lock:
            for other in self._records.values():
                if other.plan.uid != plan.uid:
                    _check_free(plan, other)
            self._records[plan.uid] = record

    def release(self, uid: str) -> None:
        """Give up a reservation of which nothing is on disk."""
        with self._lock:
            self._records.pop(uid, None)

    def write(self, record: Record) -> None:
        """Put a record on disk.

        Raises:
            RecordError: it is not there, or not durable.
        """
        path = self._path(record.plan.uid)
        with _translated(path, "write"):
            files.write_durably(path, json.dumps(_encode(record), separators=(",", ":")))
        with self._lock:
            self._records[record.plan.uid] = record

    def forget(self, uid: str) -> None:
        """Remove a record from disk and release its devices.

        Raises:
            RecordError: the file stays, and so does the hold.
        """
        path = self._path(uid)
        with _translated(path, "remove"):
            files.remove_durably(path)
        with self._lock:
            self._records.pop(uid, None)

    def _path(self, uid: str) -> Path:
        return self._folder / f"{uid}.json"

    def _load(self, path: Path) -> None:
        try:
            record = _decode(json.loads(path.read_text()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            aside = self._folder / "quarantine"
            aside.mkdir(mode=0o700, exist_ok=True)
            path.replace(aside / path.name)
            _log.error("record of a claim is damaged, set aside", file=str(path), to=str(aside), error=repr(error))
            return
        self._records[record.plan.uid] = record


def _check_free(plan: Plan, other: Record) -> None:
    for device in plan.devices:
        for held in other.plan.devices:
            if device.conflicts_with(held):
                raise HeldError(
                    f"{plan}: device {device.device} overlaps {held.device}, which is still held by {other.plan} "
                    f"(UID {other.plan.uid}); it is free as soon as the last pod of that claim has ended on this node"
                )


@contextmanager
def _translated(path: Path, verb: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"cannot {verb} {path}: {os.strerror(error.errno or 0)}; "
            "check space and permissions of the plugin's folder (--kubelet-plugins-directory-path)"
        ) from error


def _encode(record: Record) -> dict[str, Any]:
    plan = record.plan
    return dict(record.unknown) | {
        "version": VERSION,
        "bootID": record.boot_id,
        "state": record.state.value,
        "claim": {"namespace": plan.namespace, "name": plan.name, "uid": plan.uid},
        "devices": [_encode_device(device) for device in plan.devices],
        "made": {
            name: {
                "gpuInstance": made.gpu_instance_id,
                "computeInstance": made.compute_instance_id,
                "uuid": made.uuid,
            }
            for name, made in record.made.items()
        },
    }


def _encode_device(device: PlannedDevice) -> dict[str, Any]:
    placement = device.placement
    entry = {
        "requests": list(device.requests),
        "pool": device.pool,
        "device": device.device,
        "gpuUUID": device.gpu_uuid,
        "profileID": device.profile_id,
        "profile": device.profile_name,
        "placement": None if placement is None else {"start": placement.start, "size": placement.size},
        "instanceUUID": device.instance_uuid,
        "make": device.make,
        "adminAccess": device.admin_access,
        "shareID": device.share_id,
    }
    return {key: value for key, value in entry.items() if value is not None}


_KNOWN = frozenset({"version", "bootID", "state", "claim", "devices", "made"})


def _decode(document: Mapping[str, Any]) -> Record:
    claim = document["claim"]
    plan = Plan(
        namespace=claim["namespace"],
        name=claim["name"],
        uid=claim["uid"],
        devices=tuple(_decode_device(entry) for entry in document["devices"]),
    )
    made = {
        name: Made(
            gpu_instance_id=entry["gpuInstance"], compute_instance_id=entry["computeInstance"], uuid=entry["uuid"]
        )
        for name, entry in document["made"].items()
    }
    return Record(
        boot_id=document["bootID"],
        state=State(document["state"]),
        plan=plan,
        made=made,
        unknown={key: value for key, value in document.items() if key not in _KNOWN},
    )


def _decode_device(entry: Mapping[str, Any]) -> PlannedDevice:
    placement = entry.get("placement")
    return PlannedDevice(
        requests=tuple(entry["requests"]),
        pool=entry["pool"],
        device=entry["device"],
        gpu_uuid=entry["gpuUUID"],
        profile_id=entry.get("profileID"),
        profile_name=entry.get("profile"),
        placement=None if placement is None else Placement(start=placement["start"], size=placement["size"]),
        instance_uuid=entry.get("instanceUUID"),
        make=entry["make"],
        admin_access=entry.get("adminAccess", False),
        share_id=entry.get("shareID"),
    )


def with_made(record: Record, made: Mapping[str, Made], *, state: State) -> Record:
    """Give a record what was made, and its new state."""
    return replace(record, made=dict(made), state=state)
