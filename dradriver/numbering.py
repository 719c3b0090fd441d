"""The numbers in device names, kept in a small file: a name stays with its GPU while device minors move.

A GPU that is missing keeps its number for the rest of the boot, and for as long as a claim holds it. After a
reboot a missing GPU has been taken out, so that its replacement gets the number of the place.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import structlog

from dradriver import files
from dradriver.gpu.model import Gpu
from dradriver.gpu.names import number_gpus

MOST: Final = 9999
"""A number that still fits into every name; device minors are below 256."""

_log = structlog.get_logger()


def remembered_numbers(path: Path, gpus: Iterable[Gpu], *, boot_id: str, held: frozenset[str]) -> dict[str, int]:
    """Number the GPUs of the node as before, and keep what is new.

    A file that cannot be read or written costs stable names, nothing else; it is told in the log.

    Args:
        path: the file.
        gpus: what the node has now.
        boot_id: of the running kernel.
        held: UUIDs of GPUs that prepared claims name.
    """
    gpus = tuple(gpus)
    known, known_boot = _read(path)
    if known_boot != boot_id:
        present = {gpu.uuid for gpu in gpus} | held
        known = {uuid: number for uuid, number in known.items() if uuid in present}
    numbers = number_gpus(gpus, known)
    if numbers != known or known_boot != boot_id:
        _write(path, numbers, boot_id)
    return numbers


def _read(path: Path) -> tuple[dict[str, int], str]:
    try:
        document = json.loads(path.read_text())
        return _numbers(document["numbers"]), str(document["bootID"])
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _log.error("numbers of GPUs are lost, names may change", file=str(path), error=repr(error))
        return {}, ""


def _numbers(entries: dict[str, object]) -> dict[str, int]:
    numbers = {uuid: number for uuid, number in entries.items() if isinstance(number, int) and 0 <= number <= MOST}
    if len(numbers) < len(entries) or len(set(numbers.values())) < len(numbers):
        raise ValueError("numbers are not small and different ones")
    return numbers


def _write(path: Path, numbers: dict[str, int], boot_id: str) -> None:
    try:
        files.write_durably(path, json.dumps({"version": 1, "bootID": boot_id, "numbers": numbers}))
    except OSError as error:
        _log.error("numbers of GPUs cannot be kept, names may change", file=str(path), error=str(error))
