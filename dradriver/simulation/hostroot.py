"""The host's files that belong to the GPUs: /proc, /sys, /dev and the driver's libraries, under a folder of the node.

What should be there is computed from the state (`tree`); `render` makes the folder so, touching only what differs.
Formats and numbers are those of the kernel module, see NVIDIA's MIG user guide on device nodes and capabilities.
"""

import os
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dradriver.simulation.state import Gpu, State

NVIDIA_MAJOR = 195
CONTROL_MINOR = 255
MODESET_MINOR = 254

_MINORS = 32
_GPU_INSTANCES = 15
_COMPUTE_INSTANCES = 8
_CAPS_CONFIG = 1
_CAPS_MONITOR = 2
_OWNER_ONLY = 0o400
_ALL_READ = 0o444

_LIBRARIES = {
    "libcuda.so": "libcuda.so.1",
    "libcudadebugger.so": "libcudadebugger.so.1",
    "libnvcuvid.so": "libnvcuvid.so.1",
    "libnvidia-encode.so": "libnvidia-encode.so.1",
    "libnvidia-ml.so": "libnvidia-ml.so.1",
    "libnvidia-nvvm.so": "libnvidia-nvvm.so.4",
    "libnvidia-opencl.so": "libnvidia-opencl.so.1",
    "libnvidia-ptxjitcompiler.so": "libnvidia-ptxjitcompiler.so.1",
}
_CAPABILITIES = "proc/driver/nvidia/capabilities"
_LIBRARY_FOLDER = "usr/lib/x86_64-linux-gnu"
_FIRMWARE = ("gsp_ga10x.bin", "gsp_tu10x.bin")


@dataclass(frozen=True, slots=True)
class File:
    """A regular file."""

    text: str
    mode: int = 0o444


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link."""

    target: str


@dataclass(frozen=True, slots=True)
class Node:
    """A character device; an empty file where the process may not make one."""

    major: int
    minor: int
    mode: int = 0o666


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that is there also when empty; all others are as long as something is in them."""


Entry = File | Link | Node | Folder
Tree = dict[str, Entry]


# --- what should be there -------------------------------------------------------------------------


def tree(state: State) -> Tree:
    """All files of the host, by path relative to its root."""
    entries = _node(state)
    for gpu in state.gpus:
        entries |= _gpu(state, gpu)
    return entries


def caps_minor(gpu_minor: int, gpu_instance: int, compute_instance: int | None = None) -> int:
    """Minor number under /dev/nvidia-caps that gives access to an instance (fitted to the kernel module's table)."""
    access = _CAPS_MONITOR + 1 + _GPU_INSTANCES * (1 + _COMPUTE_INSTANCES) * gpu_minor
    access += (1 + _COMPUTE_INSTANCES) * gpu_instance
    return access if compute_instance is None else access + 1 + compute_instance


def _node(state: State) -> Tree:
    return {
        **_kernel(state),
        **_control_nodes(state),
        **_driver_files(state.driver),
        "proc/driver/nvidia-caps/mig-minors": File(_mig_minors()),
        f"{_CAPABILITIES}/mig/config": _capability(_CAPS_CONFIG, _OWNER_ONLY),
        f"{_CAPABILITIES}/mig/monitor": _capability(_CAPS_MONITOR, _ALL_READ),
    }


def _kernel(state: State) -> Tree:
    majors = state.majors
    devices = (
        "Character devices:\n"
        f"  1 mem\n  5 /dev/tty\n{NVIDIA_MAJOR} nvidia\n{NVIDIA_MAJOR} nvidia-modeset\n{NVIDIA_MAJOR} nvidiactl\n"
        f"{majors.imex} nvidia-caps-imex-channels\n{majors.caps} nvidia-caps\n{majors.uvm} nvidia-uvm\n"
        "\nBlock devices:\n259 blkext\n"
    )
    version = (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {state.driver}  Release Build  (simulated)\n"
        "GCC version:  gcc version 13.3.0\n"
    )
    return {
        "proc/devices": File(devices),
        "proc/driver/nvidia/version": File(version),
        "proc/driver/nvidia/params": File("ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileMode: 438\n"),
        "proc/sys/kernel/random/boot_id": File(f"{state.boot_id}\n"),
    }


def _control_nodes(state: State) -> Tree:
    return {
        "dev/nvidiactl": Node(NVIDIA_MAJOR, CONTROL_MINOR),
        "dev/nvidia-modeset": Node(NVIDIA_MAJOR, MODESET_MINOR),
        "dev/nvidia-uvm": Node(state.majors.uvm, 0),
        "dev/nvidia-uvm-tools": Node(state.majors.uvm, 1),
        f"dev/nvidia-caps/nvidia-cap{_CAPS_CONFIG}": Node(state.majors.caps, _CAPS_CONFIG, _OWNER_ONLY),
        f"dev/nvidia-caps/nvidia-cap{_CAPS_MONITOR}": Node(state.majors.caps, _CAPS_MONITOR, _ALL_READ),
    }


def _driver_files(version: str) -> Tree:
    entries: Tree = {"usr/bin/nvidia-smi": File(_NVIDIA_SMI.replace("@VERSION@", version), 0o755)}
    for name, soname in _LIBRARIES.items():
        file = f"{name}.{version}"
        entries[f"{_LIBRARY_FOLDER}/{file}"] = File(f"simulated {file}\n", 0o644)
        entries[f"{_LIBRARY_FOLDER}/{soname}"] = Link(file)
    for name in _FIRMWARE:
        entries[f"lib/firmware/nvidia/{version}/{name}"] = File(f"simulated {name}\n", 0o644)
    return entries


@lru_cache
def _mig_minors() -> str:
    lines = [f"config {_CAPS_CONFIG}", f"monitor {_CAPS_MONITOR}"]
    for gpu in range(_MINORS):
        for gi in range(_GPU_INSTANCES):
            lines.append(f"gpu{gpu}/gi{gi}/access {caps_minor(gpu, gi)}")
            lines += [f"gpu{gpu}/gi{gi}/ci{ci}/access {caps_minor(gpu, gi, ci)}" for ci in range(_COMPUTE_INSTANCES)]
    return "\n".join(lines) + "\n"


def _capability(minor: int, mode: int) -> File:
    return File(f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n")


def _gpu(state: State, gpu: Gpu) -> Tree:
    if not gpu.plugged:
        return {}
    return {
        f"dev/nvidia{gpu.minor}": Node(NVIDIA_MAJOR, gpu.minor),
        f"proc/driver/nvidia/gpus/{gpu.bus_id}/information": File(_information(gpu)),
        **_pci(gpu),
        **({f"{_CAPABILITIES}/gpu{gpu.minor}/mig": Folder()} if gpu.kind.mig_capable else {}),
        **_instances(state, gpu),
    }


def _information(gpu: Gpu) -> str:
    return (
        f"Model: \t\t {gpu.kind.product}\nIRQ:   \t\t 0\nGPU UUID: \t {gpu.uuid}\nBus Type: \t PCIe\n"
        f"DMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t {gpu.bus_id}\n"
        f"Device Minor: \t {gpu.minor}\nGPU Excluded:\t No\n"
    )


def _pci(gpu: Gpu) -> Tree:
    root_bus = gpu.pcie_root.removeprefix("pci")
    # A bridge stands between root and GPU; its number is free as long as no two GPUs of a root share it.
    bridge = f"{root_bus}:{int(gpu.bus_id[5:7], 16) % 31 + 1:02x}.0"
    folder = f"devices/{gpu.pcie_root}/{bridge}/{gpu.bus_id}"
    device, vendor = gpu.kind.device_id >> 16, gpu.kind.device_id & 0xFFFF
    return {
        f"sys/bus/pci/devices/{gpu.bus_id}": Link(f"../../../{folder}"),
        f"sys/bus/pci/drivers/nvidia/{gpu.bus_id}": Link(f"../../../../{folder}"),
        f"sys/{folder}/numa_node": File(f"{gpu.numa_node}\n"),
        f"sys/{folder}/vendor": File(f"0x{vendor:04x}\n"),
        f"sys/{folder}/device": File(f"0x{device:04x}\n"),
        f"sys/{folder}/class": File("0x030200\n"),
    }


def _instances(state: State, gpu: Gpu) -> Tree:
    entries: Tree = {}
    for instance in gpu.instances:
        name = f"{_CAPABILITIES}/gpu{gpu.minor}/mig/gi{instance.id}"
        entries |= _access(state, name, caps_minor(gpu.minor, instance.id))
        for compute in instance.compute:
            minor = caps_minor(gpu.minor, instance.id, compute.id)
            entries |= _access(state, f"{name}/ci{compute.id}", minor)
    return entries


def _access(state: State, name: str, minor: int) -> Tree:
    return {
        f"{name}/access": _capability(minor, _ALL_READ),
        f"dev/nvidia-caps/nvidia-cap{minor}": Node(state.majors.caps, minor, _ALL_READ),
    }


_NVIDIA_SMI = """\
#!/bin/sh
# Stand-in of a simulated node: tells what this container was given.
echo "simulated NVIDIA driver @VERSION@"
for node in /dev/nvidia* /dev/nvidia-caps/*; do
    [ -c "$node" ] && echo "device $node"
done
env | while read -r line; do
    case "$line" in
        *GPU-*|*MIG-*|NVIDIA_*|CUDA_*) echo "env $line" ;;
    esac
done
exit 0
"""


# --- making it so ---------------------------------------------------------------------------------


def render(root: Path, state: State, *, shown: State | None) -> None:
    """Make `root` show `state`.

    Args:
        root: the folder; made where missing.
        state: what it shall show.
        shown: what it shows now; None where that is not certain, then the folder itself is looked through.
    """
    if shown is None:
        _make_all(root, tree(state))
    elif (shown.boot_id, shown.driver, shown.majors) != (state.boot_id, state.driver, state.majors):
        _make_difference(root, tree(shown), tree(state))
    elif shown.gpus is not state.gpus:
        pairs = [pair for pair in zip(shown.gpus, state.gpus, strict=True) if pair[0] is not pair[1]]
        _make_difference(
            root, _only_gpus(shown, [old for old, _ in pairs]), _only_gpus(state, [new for _, new in pairs])
        )


def _only_gpus(state: State, gpus: list[Gpu]) -> Tree:
    return {path: entry for gpu in gpus for path, entry in _gpu(state, gpu).items()}


def _make_difference(root: Path, old: Tree, new: Tree) -> None:
    kept = {root, *(root / path for path, entry in new.items() if isinstance(entry, Folder))}
    for path in old.keys() - new.keys():
        if not isinstance(old[path], Folder):
            (root / path).unlink(missing_ok=True)
    for path in old.keys() - new.keys():
        _prune(root / path, kept)
    for path, entry in new.items():
        if old.get(path) != entry:
            _make(root / path, entry)


def _make_all(root: Path, entries: Tree) -> None:
    root.mkdir(exist_ok=True)
    folders = {folder for path in entries for folder in Path(path).parents}
    folders |= {Path(path) for path, entry in entries.items() if isinstance(entry, Folder)}
    # Bottom up, so that a folder is empty when its turn comes.
    for present in sorted(root.rglob("*"), reverse=True):
        name = present.relative_to(root)
        if present.is_dir() and not present.is_symlink():
            if name not in folders:
                present.rmdir()
        elif isinstance(entries.get(str(name), Folder()), Folder):
            present.unlink()
    for path, entry in entries.items():
        _make(root / path, entry)


def _prune(path: Path, kept: set[Path]) -> None:
    """Take away a folder, or what held a file, as far up as nothing is left in it."""
    for folder in (path, *path.parents):
        if folder in kept:
            return
        if folder.is_dir() and not folder.is_symlink():
            if any(folder.iterdir()):
                return
            folder.rmdir()


def _make(path: Path, entry: Entry) -> None:
    if isinstance(entry, Folder):
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(path):
        _make_new(path, entry)
        return
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    _make_new(new, entry)
    new.replace(path)


def _make_new(path: Path, entry: File | Link | Node) -> None:
    match entry:
        case File(text, mode):
            path.write_text(text)
            path.chmod(mode)
        case Link(target):
            path.symlink_to(target)
        case Node():
            _make_node(path, entry)


def _make_node(path: Path, node: Node) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | node.mode, os.makedev(node.major, node.minor))
    except OSError:
        # No right to, or a file system without devices: what is looked up by name only works still.
        path.touch()
    path.chmod(node.mode)
