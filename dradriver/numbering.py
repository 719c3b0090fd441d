"""The numbers in device names, kept in a small file: a name stays with its GPU while device minors move.

A GPU that is missing keeps its number for the rest of the boot, and for as long as a claim holds it. After a
reboot a missing GPU has been taken out, so that its replacement gets the number of the place.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import structlog

from dradriver import files
from dradriver.gpu.model import Gpu
from dradriver.gpu.names import number_gpus

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
        return {str(uuid): int(number) for uuid, number in document["numbers"].items()}, str(document["bootID"])
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _log.error("numbers of GPUs are lost, names may change", file=str(path), error=repr(error))
        return {}, ""


def _write(path: Path, numbers: dict[str, int], boot_id: str) -> None:
    try:
        files.write_durably(path, json.dumps({"version": 1, "bootID": boot_id, "numbers": numbers}))
    except OSError as error:
        _log.error("numbers of GPUs cannot be kept, names may change", file=str(path), error=str(error))
