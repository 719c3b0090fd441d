"""What the host's driver brings into every container: libraries, programs, firmware, sockets."""

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from dradriver.cdi.errors import DriverFilesError
from dradriver.cdi.spec import READ_ONLY, SOCKET, ContainerEdits, Hook, Mount

LIBRARY_FOLDERS: Final = tuple(
    f"{folder}{suffix}"
    for folder in (
        "usr/lib64",
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
        "lib64",
        "lib/x86_64-linux-gnu",
        "lib/aarch64-linux-gnu",
    )
    for suffix in ("", "/nvidia/current", "/vdpau")
)
NVML_LIBRARY: Final = "libnvidia-ml.so.1"
PROGRAMS: Final = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
PROGRAM_FOLDERS: Final = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin")
CONFIGURATION: Final = (
    "etc/OpenCL/vendors/nvidia.icd",
    "etc/vulkan/icd.d/nvidia_icd.json",
    "etc/vulkan/implicit_layer.d/nvidia_layers.json",
    "usr/share/egl/egl_external_platform.d/*nvidia*.json",
    "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "usr/share/nvidia/nvoptix.bin",
    "usr/share/vulkan/icd.d/nvidia_icd.json",
)
SOCKETS: Final = (
    "run/nvidia-persistenced/socket",
    "run/nvidia-fabricmanager/socket",
    "tmp/nvidia-mps",
)
REQUIRED_LIBRARIES: Final = ("libcuda.so", "libnvidia-ml.so")
LOADER_FOLDERS: Final = {
    "x86_64": ("usr/lib64", "usr/lib/x86_64-linux-gnu"),
    "aarch64": ("usr/lib64", "usr/lib/aarch64-linux-gnu"),
}
"""Where the loaders of Red Hat's and of Debian's family look without being told."""

HOOK_PROGRAM: Final = "nvidia-cdi-hook"
HOOK_SECONDS: Final = 5.0
CUDA_COMPAT_SINCE: Final = (1, 17, 5)
NODE_MODIFICATION_SINCE: Final = (1, 18, 0)
"""Versions of the hook program that first know `enable-cuda-compat` and `disable-device-node-modification`."""

_MOST_LINKS = 8


def nvml_library(root: Path) -> Path | None:
    """Find NVML's library below a driver root; None leaves it to the loader."""
    if root == Path("/"):
        return None
    return next((path for folder in LIBRARY_FOLDERS if (path := root / folder / NVML_LIBRARY).exists()), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRoot:
    """Where the host's driver lies.

    Attributes:
        here: the root as this process sees it, such as /driver-root in a container.
        host: the same root as the host sees it, which is what a spec must name.
    """

    here: Path
    host: PurePosixPath

    def on_host(self, path: Path) -> str:
        """Turn a path below `here` into the host's."""
        return str(self.host / path.relative_to(self.here))

    def from_host(self, path: str) -> Path:
        """Turn a path of the host into where this process sees it; paths outside the root are the same here."""
        pure = PurePosixPath(path)
        return self.here / pure.relative_to(self.host) if pure.is_relative_to(self.host) else Path(path)

    def sees(self, path: str) -> bool:
        """Tell whether a path of the host lies below the root."""
        return PurePosixPath(path).is_relative_to(self.host)

    def in_container(self, path: Path) -> str:
        """Turn a path below `here` into the place where a container finds it."""
        return str(PurePosixPath("/") / path.relative_to(self.here))


def driver_edits(root: DriverRoot, *, driver_version: str, hook: str | None = None) -> ContainerEdits:
    """Collect what every container with a GPU gets of the driver.

    Libraries are found by their version, `*.so.<driver version>`. The names by which programs load them are made
    by NVIDIA's hook program where there is one, which also refreshes the container's library cache. Without it
    each name is a mount of its own, in the folders that loaders of all distributions search: the container's
    may be another one than the host's.

    Args:
        root: where the driver lies.
        driver_version: as NVML says it.
        hook: host path of nvidia-cdi-hook; None does without.

    Raises:
        DriverFilesError: libcuda or libnvidia-ml of that version is not there.
    """
    libraries = _libraries(root, driver_version)
    mounts = [
        *(_library_mounts_with_hook if hook else _library_mounts)(root, libraries),
        *(_mount(root, path) for path in _other_files(root.here, driver_version)),
        *(_mount(root, path, options=SOCKET) for path in _existing(root.here, SOCKETS)),
    ]
    return ContainerEdits(mounts=tuple(mounts), hooks=_hooks(root, libraries, driver_version, hook) if hook else ())


def find_hook(root: DriverRoot) -> str | None:
    """Find NVIDIA's hook program in the driver root, as the host's path; None where it is not installed."""
    for path in _existing(root.here, (f"{folder}/{HOOK_PROGRAM}" for folder in PROGRAM_FOLDERS)):
        return root.on_host(path)
    return None


def _mount(root: DriverRoot, path: Path, *, at: str = "", options: tuple[str, ...] = READ_ONLY) -> Mount:
    """Mount a file of the root; what a link in it leads to is looked for in the root, not in ours."""
    return Mount(
        host_path=root.on_host(_resolved(root.here, path)),
        container_path=at or root.in_container(path),
        options=options,
    )


def _library_mounts_with_hook(root: DriverRoot, libraries: Iterable[Path]) -> Iterator[Mount]:
    return (_mount(root, path) for path in libraries)


def _library_mounts(root: DriverRoot, libraries: Iterable[Path]) -> Iterator[Mount]:
    libraries = list(libraries)
    places: dict[str, Path] = {}
    for target in libraries:
        for name in (target, *_links_to(target, libraries)):
            places.setdefault(root.in_container(name), target)
            for folder in LOADER_FOLDERS.get(platform.machine(), ()):
                places.setdefault(f"/{folder}/{name.name}", target)
    return (_mount(root, target, at=place) for place, target in sorted(places.items()))


def _libraries(root: DriverRoot, version: str) -> list[Path]:
    found: dict[str, Path] = {}
    for folder in LIBRARY_FOLDERS:
        for path in sorted((root.here / folder).glob(f"*.so.{version}")):
            # /lib is a link to /usr/lib on most hosts: the same library must not be mounted twice.
            found.setdefault(str(path.resolve()), path)
    libraries = sorted(found.values())
    names = {path.name for path in libraries}
    missing = [name for name in REQUIRED_LIBRARIES if f"{name}.{version}" not in names]
    if missing:
        raise DriverFilesError(
            f"no {' and no '.join(f'{name}.{version}' for name in missing)} below {root.here} "
            f"(looked in {', '.join(folder for folder in LIBRARY_FOLDERS if '/nvidia' not in folder)}); "
            "check that --nvidia-driver-root is the root of the running driver's files"
        )
    return libraries


def _links_to(target: Path, libraries: Iterable[Path]) -> Iterator[Path]:
    """Find the names in the same folder that lead to a library: libcuda.so.1, and libcuda.so."""
    stem = target.name.split(".so.", maxsplit=1)[0]
    known = {path.name for path in libraries}
    for path in sorted(target.parent.glob(f"{stem}.so*")):
        if path.name not in known and _final_name(path) == target.name:
            yield path


def _final_name(path: Path) -> str:
    """Follow links by name within one folder, since absolute ones point outside the driver root."""
    for _ in range(_MOST_LINKS):
        if not path.is_symlink():
            break
        path = path.parent / path.readlink().name
    return path.name


def _other_files(here: Path, version: str) -> Iterator[Path]:
    for program in PROGRAMS:
        yield from list(_existing(here, (f"{folder}/{program}" for folder in PROGRAM_FOLDERS)))[:1]
    for pattern in (*CONFIGURATION, f"lib/firmware/nvidia/{version}/gsp*.bin"):
        yield from sorted(here.glob(pattern))


def _existing(here: Path, relative: Iterable[str]) -> Iterator[Path]:
    return (path for name in relative if _resolved(here, path := here / name).exists())


def _resolved(here: Path, path: Path) -> Path:
    """Follow the links of a file as if `here` were the root of all paths."""
    for _ in range(_MOST_LINKS):
        if not path.is_symlink():
            break
        target = path.readlink()
        path = here / target.relative_to("/") if target.is_absolute() else Path(os.path.normpath(path.parent / target))
    return path


def _hooks(root: DriverRoot, libraries: Iterable[Path], version: str, hook: str) -> tuple[Hook, ...]:
    """Name the hooks that the installed program knows; an unknown one would keep a container from starting."""
    libraries = list(libraries)
    links = [
        f"{_final_name(path)}::{root.in_container(path)}"
        for target in libraries
        for path in _links_to(target, libraries)
    ]
    folders = sorted({root.in_container(path.parent) for path in libraries})
    known = _hook_version(root.from_host(hook))
    hooks = [_hook(hook, "create-symlinks", *(word for link in links for word in ("--link", link)))]
    if known >= CUDA_COMPAT_SINCE:
        hooks.append(_hook(hook, "enable-cuda-compat", f"--host-driver-version={version}"))
    if known >= NODE_MODIFICATION_SINCE:
        hooks.append(_hook(hook, "disable-device-node-modification"))
    hooks.append(_hook(hook, "update-ldcache", *(word for folder in folders for word in ("--folder", folder))))
    return tuple(hooks)


def _hook_version(program: Path) -> tuple[int, ...]:
    """Ask the hook program for its version; (0,) where it cannot be run from here or says nothing of use."""
    try:
        done = subprocess.run(  # noqa: S603 (the program that containers are about to be given to)
            [program, "--version"], capture_output=True, text=True, timeout=HOOK_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return (0,)
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", done.stdout)
    return tuple(int(number) for number in match.groups()) if match else (0,)


def _hook(program: str, name: str, *args: str) -> Hook:
    return Hook(path=program, args=(HOOK_PROGRAM, name, *args))
