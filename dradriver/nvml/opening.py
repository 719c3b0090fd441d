"""Where NVML comes from: the host's library, one under a driver root, or a simulated node.

pynvml keeps one library for the process in the module variable `nvmlLib`, and remembers the functions it found there;
both are set here, so the last session opened decides. A process has one session.
"""

import ctypes
from pathlib import Path
from typing import Final

import pynvml

from dradriver.nvml.access import Nvml
from dradriver.nvml.errors import LIBRARY_NOT_FOUND, LibraryMissing, SimulationUnusable

LIBRARY: Final = "libnvidia-ml.so.1"
MAPPED: Final = "/libnvidia-ml.so"


def open_nvml(*, simulation: Path | None = None, library: Path | None = None) -> Nvml:
    """Open a session.

    Args:
        simulation: state folder of a simulated node; goes before `library`.
        library: absolute path of libnvidia-ml.so.1, for a driver that is installed under a root of its own; None lets
            the loader find it.

    Raises:
        LibraryMissing: the library cannot be loaded; the text says why.
        SimulationUnusable: the folder holds no simulated node.
        DriverUnavailable: there is a library, but no driver for it to talk to.
    """
    if simulation is None:
        return _open(_load(str(library or LIBRARY)), Path("/sys"))
    return _open(*_load_simulated(simulation))


def is_replaced(maps: Path = Path("/proc/self/maps")) -> bool:
    """Tell whether another NVML library lies on disk than the one this process has loaded.

    The loader gives a process the library it has, whatever lies at its path by now: only a new process gets another.

    Args:
        maps: where the kernel tells which files are mapped.
    """
    # Address, rights, offset, device, inode, and the name where there is one.
    names = {"".join(line.split(maxsplit=5)[5:]) for line in maps.read_text().splitlines() if MAPPED in line}
    return any(name.endswith(" (deleted)") or _at_its_place(Path(name)) != Path(name) for name in names)


def _at_its_place(loaded: Path) -> Path:
    """Follow the name that the loader goes by, beside the file it led to."""
    place = loaded.with_name(LIBRARY)
    return place.resolve() if place.exists() else loaded


def _open(library: object, sys_root: Path) -> Nvml:
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 -- Functions of another library would be called.
    return Nvml(sys_root=sys_root)


def _load_simulated(folder: Path) -> tuple[object, Path]:
    # Not loaded where a real GPU is used.
    from dradriver import simulation  # noqa: PLC0415
    from dradriver.simulation.errors import SimulationError  # noqa: PLC0415

    try:
        return simulation.open_library(folder), simulation.root(folder) / "sys"
    except (SimulationError, OSError) as error:
        raise SimulationUnusable("open_library", LIBRARY_NOT_FOUND, cause=str(error)) from error


def _load(library: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(library)
    except OSError as error:
        raise LibraryMissing("dlopen", LIBRARY_NOT_FOUND, cause=f"{library} cannot be loaded: {error}") from error
