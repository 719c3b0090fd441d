"""What a node remembers of its GPUs, in a small file: the numbers in device names, and what the GPUs were.

A name stays with its GPU while device minors move. A GPU that is missing keeps its number for the rest of the boot,
and for as long as a claim holds it. After a reboot a missing GPU has been taken out, so that its replacement gets the
number of the place. What a GPU was is needed when it has vanished while a claim holds it: its devices stay published.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import structlog

from dradriver import files
from dradriver.gpu.model import Gpu, MigProfile, Placement
from dradriver.gpu.names import number_gpus

MOST: Final = 9999
"""A number that still fits into every name; device minors are below 256."""

VERSION: Final = 2
"""Of the file: 1 has numbers only. A reader takes either."""

_log = structlog.get_logger()


class GpuMemory:
    """The file, and what is in it. A file that cannot be read or written costs stable names, nothing else.

    Args:
        path: the file.
        boot_id: of the running kernel.
        keep: False for who only looks: then nothing is written.
    """

    def __init__(self, path: Path, *, boot_id: str, keep: bool = True) -> None:
        self._path = path
        self._boot_id = boot_id
        self._writes = keep
        self._numbers, self._facts, self._known_boot = _read(path)
        self._written = self._content(self._known_boot)

    @property
    def facts(self) -> Mapping[str, Gpu]:
        """UUID to the GPU as it was last seen, without instances and MIG mode, for every GPU that has a number."""
        return dict(self._facts)

    @property
    def numbers(self) -> Mapping[str, int]:
        """UUID to number, of every GPU that is remembered."""
        return dict(self._numbers)

    def learn(self, numbers: Mapping[str, int]) -> None:
        """Take numbers over that somebody else knows, where the file has lost them; what is known here stays."""
        taken = set(self._numbers.values())
        for uuid, number in numbers.items():
            if uuid not in self._numbers and number not in taken:
                _log.warning("the number of a GPU was lost, it is known from a claim's record", gpu=uuid, number=number)
                self._numbers[uuid] = number
                taken.add(number)

    def number(self, gpus: Iterable[Gpu], *, held: frozenset[str]) -> dict[str, int]:
        """Number the GPUs of the node as before, and keep what is new.

        Args:
            gpus: what the node has now.
            held: UUIDs of GPUs that claims hold.

        Returns:
            UUID to number, of every GPU that is remembered.
        """
        gpus = tuple(gpus)
        if self._known_boot != self._boot_id:
            present = {gpu.uuid for gpu in gpus} | held
            self._numbers = {uuid: number for uuid, number in self._numbers.items() if uuid in present}
        self._numbers = number_gpus(gpus, self._numbers)
        facts = {**self._facts, **{gpu.uuid: replace(gpu, instances=(), mig_mode=None) for gpu in gpus}}
        self._facts = {uuid: gpu for uuid, gpu in facts.items() if uuid in self._numbers}
        self._keep()
        return dict(self._numbers)

    def _keep(self) -> None:
        content = self._content(self._boot_id)
        if content == self._written or not self._writes:
            return
        document = {
            "version": VERSION,
            "bootID": self._boot_id,
            "numbers": self._numbers,
            "gpus": {uuid: asdict(gpu) for uuid, gpu in self._facts.items()},
        }
        try:
            files.write_durably(self._path, json.dumps(document))
        except OSError as error:
            _log.error("numbers of GPUs cannot be kept, names may change", file=str(self._path), error=str(error))
        self._known_boot, self._written = self._boot_id, content

    def _content(self, boot_id: str) -> tuple[dict[str, int], dict[str, Gpu], str]:
        return dict(self._numbers), dict(self._facts), boot_id


def _read(path: Path) -> tuple[dict[str, int], dict[str, Gpu], str]:
    try:
        document = json.loads(path.read_text())
        return _numbers(document["numbers"]), _facts(document.get("gpus") or {}), str(document["bootID"])
    except FileNotFoundError:
        return {}, {}, ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _log.error("numbers of GPUs are lost, names may change", file=str(path), error=repr(error))
        return {}, {}, ""


def _numbers(entries: dict[str, object]) -> dict[str, int]:
    numbers = {uuid: number for uuid, number in entries.items() if isinstance(number, int) and 0 <= number <= MOST}
    if len(numbers) < len(entries) or len(set(numbers.values())) < len(numbers):
        raise ValueError("numbers are not small and different ones")
    return numbers


def _facts(entries: Mapping[str, Any]) -> dict[str, Gpu]:
    """Read what the GPUs were; one that another version wrote differently is not known, which does no harm."""
    known = {}
    for uuid, entry in entries.items():
        try:
            known[uuid] = _gpu(entry)
        except (KeyError, TypeError, AttributeError) as error:
            _log.warning("what a GPU was is not known any more", gpu=uuid, error=repr(error))
    return known


def _gpu(entry: Mapping[str, Any]) -> Gpu:
    profiles = tuple(
        MigProfile(**{**profile, "placements": tuple(Placement(**one) for one in profile["placements"])})
        for profile in entry["profiles"]
    )
    changed = {
        "profiles": profiles,
        "compute_capability": tuple(entry["compute_capability"]),
        "cuda_driver_version": tuple(entry["cuda_driver_version"]),
        "instances": (),
    }
    return Gpu(**{**entry, **changed})
