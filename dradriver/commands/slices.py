"""`dradriver slices`: prints what the plugin would publish of this node's GPUs, without a cluster."""

import argparse
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dradriver import api
from dradriver.cdi.host import nvml_library
from dradriver.commands import known as health
from dradriver.commands import wishes as told
from dradriver.commands.published import features, publish, show
from dradriver.commands.wishes import CommandError, UsageError, Wishes
from dradriver.gpu.health import NONE_MARKED, Marks
from dradriver.nodeconfig import Wanted
from dradriver.numbering import GpuMemory
from dradriver.nvml import Inventory, Nvml, NvmlError, SimulationUnusable, open_nvml
from dradriver.observe import logs
from dradriver.offering import notes
from dradriver.offering.gpus import Gpus
from dradriver.offering.painting import paint
from dradriver.offering.picture import Picture
from dradriver.prepare.errors import HeldError
from dradriver.prepare.records import Record, Records, decode
from dradriver.reporting import Note

NAME: Final = "dradriver slices"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where GPUs are read, and what a plugin that runs there has written.

    Attributes:
        simulation: folder of a simulated node; None for NVML.
        driver_root: under which NVML's library lies, as this process sees it.
        plugin: folder of the plugin; None where nothing of it is asked.
    """

    simulation: Path | None
    driver_root: Path
    plugin: Path | None

    @property
    def boot_id(self) -> str:
        """Of the running kernel.

        Raises:
            CommandError: the kernel does not tell.
        """
        return health.boot_id(self.simulation)

    @property
    def known(self) -> health.Known | None:
        """What the plugin knows of the GPUs' health; None where that is not asked, or cannot be read, which is told."""
        try:
            return None if self.plugin is None else health.known(self.plugin, boot_id=self.boot_id)
        except CommandError as error:
            print(f"{NAME}: health is left out: {error}", file=sys.stderr)
            return None

    def open(self) -> Nvml:
        """Open a session.

        Raises:
            CommandError: NVML is not there, or the folder is no simulated node.
        """
        try:
            return open_nvml(
                simulation=self.simulation, library=None if self.simulation else nvml_library(self.driver_root)
            )
        except SimulationUnusable as error:
            raise UsageError(str(error)) from error
        except NvmlError as error:
            raise CommandError(f"the GPUs are not available: {error}") from error


def main(arguments: Sequence[str]) -> int:
    """Do what the words say; returns the exit status: 1 if a GPU cannot be published, 2 for mistakes in the words."""
    values = _parser().parse_args(arguments)
    logs.configure(log_format="text", level="error")
    try:
        return _print(_source(values), told.read(values))
    except CommandError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return error.status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__, allow_abbrev=False)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--simulation", type=Path, metavar="DIR", help="read a simulated node instead of real GPUs [SIMULATION]"
    )
    where.add_argument("--nvml", action="store_true", help="read real GPUs (default)")
    parser.add_argument(
        "--nvidia-driver-root",
        type=Path,
        default=told.variable("DRIVER_ROOT_CTR_PATH") or told.variable("NVIDIA_DRIVER_ROOT", "/"),
        metavar="DIR",
        help="where the driver's files lie, as this process sees them (default: /) "
        "[DRIVER_ROOT_CTR_PATH, NVIDIA_DRIVER_ROOT]",
    )
    parser.add_argument(
        "--kubelet-plugins-directory-path",
        type=Path,
        default=told.variable("KUBELET_PLUGINS_DIRECTORY_PATH") or None,
        metavar="DIR",
        help="the kubelet's folder of plugins, such as /var/lib/kubelet/plugins: numbers of GPUs and claims are then "
        "those of the plugin that runs there; nothing in it is changed [KUBELET_PLUGINS_DIRECTORY_PATH]",
    )
    told.add_flags(parser, node_name=told.variable("NODE_NAME") or socket.gethostname().lower())
    return parser


def _source(values: argparse.Namespace) -> _Source:
    simulation = values.simulation or (told.variable("SIMULATION") if not values.nvml else "")
    plugins = values.kubelet_plugins_directory_path
    return _Source(
        simulation=Path(simulation) if simulation else None,
        driver_root=values.nvidia_driver_root,
        plugin=plugins / api.DRIVER_NAME if plugins else None,
    )


def _print(source: _Source, wishes: Wishes) -> int:
    nvml = source.open()
    try:
        gpus = Gpus(lambda: nvml, records=_records(source.plugin), boot_id=source.boot_id)
        inventory = _read(gpus)
    finally:
        nvml.close()
    known = source.known
    marks = NONE_MARKED if known is None else known.marks
    found = publish(_picture(gpus, source, wishes, marks), wishes)
    status = show(found, wishes, more=_unreadable(inventory), command=NAME)
    _tell_health(known)
    return status


def _tell_health(known: health.Known | None) -> None:
    for line in () if known is None else known.lines:
        print(f"{NAME}: health: {line}", file=sys.stderr)


def _read(gpus: Gpus) -> Inventory:
    try:
        return gpus.read()
    except NvmlError as error:
        raise CommandError(f"the GPUs are not available: {error}") from error


def _unreadable(inventory: Inventory) -> Iterable[Note]:
    return notes.of_inventory(inventory).values()


def _picture(gpus: Gpus, source: _Source, wishes: Wishes, marks: Marks) -> Picture:
    """Describe the node as the plugin would, except for what only the API server knows."""
    wanted = Wanted(policy=wishes.policy, settled=True)
    return paint(gpus, _memory(source), wanted=wanted, features=features(wishes), marks=marks)


# --- what the plugin has written ------------------------------------------------------------------


def _memory(source: _Source) -> GpuMemory:
    path = (source.plugin or Path("/nonexistent")) / "gpu-numbers.json"
    return GpuMemory(path, boot_id=source.boot_id, keep=False)


def _records(plugin: Path | None) -> Records:
    """Take over the records of prepared claims without touching their files."""
    if plugin is None:
        return Records(Path())
    folder = plugin / "claims"
    records = Records(folder)
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json")
        for record in [record for path in paths if (record := _record(path))]:
            records.reserve(record)
    except HeldError as error:
        raise CommandError(f"{folder}: two claims hold the same: {error}") from error
    except OSError as error:
        raise CommandError(
            f"{error.filename}: it cannot be read: {error.strerror}; --kubelet-plugins-directory-path names the "
            "kubelet's folder of plugins, in which this driver has one when it has run, and only root may read it"
        ) from error
    return records


def _record(path: Path) -> Record | None:
    try:
        return decode(path.read_text())
    except FileNotFoundError:
        # Its claim has just been unprepared.
        return None
    except ValueError as error:
        print(f"{NAME}: {path}: the record is damaged and left out: {error}", file=sys.stderr)
        return None
