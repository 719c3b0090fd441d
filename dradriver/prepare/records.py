"""What is prepared, one file for each claim: enough to undo it without the API server and without the claim.

A record is written before the first side effect (state `preparing`), again when everything is there
(`prepared`), and once more before anything is destroyed (`unpreparing`). It is removed when nothing of it is
left. Killing the process in between loses nothing: the record says which partitions are ours, by GPU UUID,
profile and placement. States only go forward.
"""

import json
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeAlias

import structlog

from dradriver import files
from dradriver.gpu.model import Placement
from dradriver.prepare.boundaries import Boundary, passed
from dradriver.prepare.errors import HeldError, RecordError
from dradriver.prepare.plan import Plan, PlannedDevice

VERSION: Final = 1
"""Version of the file format. A reader takes any version and keeps fields it does not know."""

UNFINISHED_SECONDS: Final = 60.0
"""So old is a temporary file that nobody writes any more."""

Version: TypeAlias = tuple[int, int, int]
"""Inode, time of writing and size of a file: another one after every write."""

TICK_NANOSECONDS: Final = 50_000_000
"""More than the time of a file may lag behind the clock: 10 ms on kernels with 100 ticks a second."""

_log = structlog.get_logger()


class State(StrEnum):
    """How far a claim is."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    UNPREPARING = "unpreparing"


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
        spec_path: where the CDI spec of the claim lies; empty until it is known.
        unknown: fields of a newer version, kept when the record is written again.
    """

    boot_id: str
    state: State
    plan: Plan
    made: Mapping[str, Made] = field(default_factory=dict)
    spec_path: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict)


class Records:
    """All records of the node, in memory and on disk, and with them who holds which device.

    Args:
        folder: made if it is missing.
        shared: another process may write here too, so that files are looked at again before they are believed.
    """

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        self._folder = folder
        self._shared = shared
        self._lock = threading.Lock()
        # Whoever finds nothing new must not go on while another thread still reads what is new.
        self._reading = threading.Lock()
        self._changed: int | None = None
        self._records: dict[str, Record] = {}
        self._versions: dict[str, Version] = {}
        self.quarantined: dict[str, Path] = {}

    def load(self) -> None:
        """Read every record; a damaged one is set aside in `quarantine/`, and the others live on.

        Raises:
            RecordError: the folder cannot be read or made.
        """
        with _translated(self._folder, "read"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._remove_unfinished()
            try:
                self._read_all()
            except OSError as error:
                _log.warning("records cannot all be read, trying once more", error=str(error))
                self._read_all(last=True)

    def _remove_unfinished(self) -> None:
        """Remove what processes that were killed had begun to write; another process may be writing just now."""
        for path in self._folder.glob(".*.json.tmp"):
            # One that cannot be removed is in nobody's way.
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > UNFINISHED_SECONDS:
                    path.unlink()

    def refresh(self) -> None:
        """See what another process has written since; does nothing where there is none.

        Raises:
            RecordError: the folder cannot be read.
        """
        if self._shared:
            with _translated(self._folder, "read"):
                self._keep_folder()
                self._read_all()

    def _keep_folder(self) -> None:
        """Make the folder again, with every record in it, if somebody has removed it."""
        if self._folder.is_dir():
            return
        _log.error("the folder of the records was removed, it is made again", folder=str(self._folder))
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for record in self.all():
            files.write_durably(self._path(record.plan.uid), _text(record))
        self._changed = None

    def _read_all(self, *, last: bool = False) -> None:
        with self._reading:
            changed = self._folder.stat().st_mtime_ns
            if changed == self._changed:
                return
            # Whatever is written within the same tick of the file system's clock leaves the folder's time as it is.
            settled = time.time_ns() - changed > TICK_NANOSECONDS
            known = dict(self._versions)
            found = self._scan()
            for uid in known.keys() - found.keys():
                self._drop(uid)
            for uid in sorted(uid for uid, version in found.items() if known.get(uid) != version):
                self._load(uid, found[uid], last=last)
            self._changed = changed if settled else None

    def _scan(self) -> dict[str, Version]:
        versions = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if not entry.name.endswith(".json"):
                    continue
                # Another process may remove it in this moment; and what is no file at all, like a link that leads
                # nowhere, is no record.
                with suppress(OSError):
                    status = entry.stat()
                    if stat.S_ISREG(status.st_mode):
                        versions[entry.name.removesuffix(".json")] = _version_of(status)
        return versions

    def _drop(self, uid: str) -> None:
        """Forget what another process has removed, unless this one has written it meanwhile."""
        with self._lock:
            if _version(self._path(uid)) is None:
                self._records.pop(uid, None)
                self._versions.pop(uid, None)

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
                # What another boot's record held does not exist any more.
                if other.plan.uid != plan.uid and other.boot_id == record.boot_id:
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
        text = _text(record)
        try:
            with _translated(path, "write"):
                self._keep_folder()
                files.write_durably(path, text, written=lambda: passed(Boundary.RECORD_TEMPORARY_WRITTEN))
                version = _version(path)
        except RecordError:
            # Whoever starts anew would read what is there, so memory must not say otherwise.
            with suppress(OSError), self._lock:
                if path.read_text() == text:
                    self._records[record.plan.uid] = record
            raise
        with self._lock:
            self._records[record.plan.uid] = record
            if version is not None:
                self._versions[record.plan.uid] = version

    def forget(self, uid: str) -> None:
        """Remove a record from disk and release its devices.

        Raises:
            RecordError: the file stays, and so does the hold.
        """
        path = self._path(uid)
        with _translated(path, "remove"):
            self._keep_folder()
            files.remove_durably(path)
        with self._lock:
            self._records.pop(uid, None)
            self._versions.pop(uid, None)

    def _path(self, uid: str) -> Path:
        return self._folder / f"{uid}.json"

    def _load(self, uid: str, version: Version, *, last: bool) -> None:
        path = self._path(uid)
        try:
            record = decode(path.read_text())
            if record.plan.uid != uid:
                raise ValueError(f"it is the record of claim {record.plan.uid}")  # noqa: TRY301 (damaged all the same)
        except FileNotFoundError:
            return
        except OSError as error:
            # Nobody may go on without knowing what this claim holds.
            if not last:
                raise
            self._set_aside(uid, path, error)
            return
        except ValueError as error:
            self._set_aside(uid, path, error)
            return
        with self._lock:
            # What this process has written or removed since is newer than what was read.
            if _version(path) == version:
                self._records[uid] = record
                self._versions[uid] = version

    def _set_aside(self, uid: str, path: Path, error: Exception) -> None:
        aside = self._folder / "quarantine"
        try:
            aside.mkdir(mode=0o700, exist_ok=True)
            path.replace(aside / path.name)
        except FileNotFoundError:
            pass  # Another process has found it damaged too.
        except OSError as failure:
            _log.error("a damaged record cannot be set aside", file=str(path), to=str(aside), error=str(failure))
        with self._lock:
            self._records.pop(uid, None)
            self._versions.pop(uid, None)
            self.quarantined[uid] = aside / path.name
        _log.error("record of a claim is damaged, set aside", file=str(path), to=str(aside), error=str(error))


def _version(path: Path) -> Version | None:
    try:
        return _version_of(path.stat())
    except FileNotFoundError:
        return None


def _version_of(status: os.stat_result) -> Version:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _check_free(plan: Plan, other: Record) -> None:
    for device in plan.devices:
        for held in other.plan.devices:
            if device.conflicts_with(held):
                raise HeldError(
                    f"{plan}: device {device.device} overlaps {held.device}, which is still held by {other.plan} "
                    f"(UID {other.plan.uid}); it is free as soon as the last pod of that claim has ended on this node",
                    holder=other.plan.uid,
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


def _text(record: Record) -> str:
    return json.dumps(_encode(record), separators=(",", ":"))


def _encode(record: Record) -> dict[str, Any]:
    plan = record.plan
    return dict(record.unknown) | {
        "version": VERSION,
        "bootID": record.boot_id,
        "specPath": record.spec_path,
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
        "shares": None if device.shares == 1 else device.shares,
    }
    return {key: value for key, value in entry.items() if value is not None}


_KNOWN = frozenset({"version", "bootID", "specPath", "state", "claim", "devices", "made"})


def decode(text: str) -> Record:
    """Read the content of a record's file.

    Raises:
        ValueError: it is not a record; the message says where.
    """
    try:
        return _decode(_object(json.loads(text), "the file"))
    except RecursionError as error:
        raise ValueError("the file is nested too deeply") from error


def _decode(document: Mapping[str, Any]) -> Record:
    claim = _object(document.get("claim"), "claim")
    plan = Plan(
        namespace=_value(claim, "namespace", str),
        name=_value(claim, "name", str),
        uid=_value(claim, "uid", str),
        devices=tuple(_decode_device(_object(entry, "devices")) for entry in _value(document, "devices", list)),
    )
    if not plan.devices:
        raise ValueError("devices: there is none")
    return Record(
        boot_id=_value(document, "bootID", str),
        state=State(_value(document, "state", str)),
        plan=plan,
        made={name: _decode_made(_object(entry, "made")) for name, entry in _value(document, "made", dict).items()},
        spec_path=_value(document, "specPath", str, ""),
        unknown={key: value for key, value in document.items() if key not in _KNOWN},
    )


def _decode_made(entry: Mapping[str, Any]) -> Made:
    return Made(
        gpu_instance_id=_value(entry, "gpuInstance", int),
        compute_instance_id=_value(entry, "computeInstance", int),
        uuid=_value(entry, "uuid", str),
    )


def _decode_device(entry: Mapping[str, Any]) -> PlannedDevice:
    placement = entry.get("placement")
    device = PlannedDevice(
        requests=tuple(_texts(entry, "requests")),
        pool=_value(entry, "pool", str),
        device=_value(entry, "device", str),
        gpu_uuid=_value(entry, "gpuUUID", str),
        profile_id=_value(entry, "profileID", int, None),
        profile_name=_value(entry, "profile", str, None),
        placement=None if placement is None else _decode_placement(_object(placement, "placement")),
        instance_uuid=_value(entry, "instanceUUID", str, None),
        make=_value(entry, "make", bool),
        admin_access=_value(entry, "adminAccess", bool, False),
        share_id=_value(entry, "shareID", str, None),
        shares=_value(entry, "shares", int, 1),
    )
    if (device.profile_id is None) != (device.placement is None):
        raise ValueError(f"device {device.device}: profileID and placement belong together")
    if device.make and device.profile_id is None:
        raise ValueError(f"device {device.device}: make is for partitions")
    return device


def _decode_placement(entry: Mapping[str, Any]) -> Placement:
    return Placement(start=_value(entry, "start", int), size=_value(entry, "size", int))


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: an object is expected, not {value!r:.40}")  # noqa: TRY004 (one error for all damage)
    return value


def _texts(entry: Mapping[str, Any], key: str) -> list[str]:
    texts: list[Any] = _value(entry, key, list)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{key}: a list of strings is expected")
    return texts


_REQUIRED: Final = object()


def _value(entry: Mapping[str, Any], key: str, kind: type, default: Any = _REQUIRED) -> Any:
    value = entry.get(key, default)
    if value is _REQUIRED:
        raise ValueError(f"{key} is missing")
    if value is default and key not in entry:
        return default
    # In Python a bool is an int; in a record it is not.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{key}: {kind.__name__} is expected, not {value!r:.40}")
    return value
