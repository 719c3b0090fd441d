"""The host's files: /proc, /sys, /dev and the driver's, in step with the state."""

import errno
import os
import stat
import subprocess
from dataclasses import replace

import pytest

from dradriver import simulation
from dradriver.simulation import administration, description, hardware, hostroot
from dradriver.simulation.hostroot import caps_minor
from dradriver.simulation.store import Store


@pytest.fixture
def root(node):
    return simulation.root(node.folder)


def text(path):
    return path.read_text()


def names(path):
    return sorted(one.name for one in path.iterdir())


@pytest.mark.parametrize(
    ("gpu", "gi", "ci", "minor"),
    [(0, 0, None, 3), (0, 0, 0, 4), (3, 3, 3, 439), (6, 11, 5, 918), (31, 14, 7, 4322)],
)
def test_minors_of_capabilities(gpu, gi, ci, minor):
    assert caps_minor(gpu, gi, ci) == minor


def test_the_table_of_minors(root):
    lines = text(root / "proc/driver/nvidia-caps/mig-minors").splitlines()
    table = dict(line.split() for line in lines)
    assert lines[:4] == ["config 1", "monitor 2", "gpu0/gi0/access 3", "gpu0/gi0/ci0/access 4"]
    assert lines[-1] == "gpu31/gi14/ci7/access 4322"
    assert table["gpu6/gi11/ci5/access"] == "918"
    assert len(table) == len(lines) == 2 + 32 * 15 * 9
    assert len(set(table.values())) == len(table)


def test_what_a_node_has_without_instances(root):
    assert names(root / "dev") == [
        "nvidia-caps", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl",
    ]  # fmt: skip
    assert names(root / "dev/nvidia-caps") == ["nvidia-cap1", "nvidia-cap2"]
    assert names(root / "proc/driver/nvidia/capabilities") == ["gpu0", "mig"]
    assert text(root / "proc/driver/nvidia/capabilities/mig/config") == (
        "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n"
    )
    assert "580.105.08" in text(root / "proc/driver/nvidia/version")


def test_numbers_of_devices(node, root):
    majors = node.state.majors
    lines = text(root / "proc/devices").splitlines()
    for major, name in ((195, "nvidia"), (195, "nvidiactl"), (majors.uvm, "nvidia-uvm"), (majors.caps, "nvidia-caps")):
        assert f"{major} {name}" in lines


def test_majors_are_nobodys_on_this_machine(node):
    with open("/proc/devices") as file:  # noqa: PTH123  # Reads the real one.
        taken = {line.split()[0] for line in file if line.strip()}
    majors = node.state.majors
    assert len({majors.uvm, majors.caps, majors.imex, 195}) == 4
    assert not {str(majors.uvm), str(majors.caps), str(majors.imex)} & taken


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_nodes_are_devices_for_root(node, root):
    node.create_mig(19, 0)
    majors = node.state.majors
    for name, major, minor, mode in (
        ("nvidia0", 195, 0, 0o666),
        ("nvidiactl", 195, 255, 0o666),
        ("nvidia-modeset", 195, 254, 0o666),
        ("nvidia-uvm", majors.uvm, 0, 0o666),
        ("nvidia-uvm-tools", majors.uvm, 1, 0o666),
        ("nvidia-caps/nvidia-cap1", majors.caps, 1, 0o400),
        ("nvidia-caps/nvidia-cap66", majors.caps, 66, 0o444),
        ("nvidia-caps/nvidia-cap67", majors.caps, 67, 0o444),
    ):
        found = (root / "dev" / name).stat()
        assert stat.S_ISCHR(found.st_mode), name
        assert (os.major(found.st_rdev), os.minor(found.st_rdev)) == (major, minor)
        assert stat.S_IMODE(found.st_mode) == mode


@pytest.mark.parametrize("code", [errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP])
def test_nodes_are_files_where_none_can_be_made(tmp_path, monkeypatch, code):
    def refuse(*_arguments):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "mknod", refuse)
    state = description.build(description.read_machine("1xl4"))
    hostroot.render(tmp_path, state, shown=None)
    assert (tmp_path / "dev/nvidia0").is_file()
    assert stat.S_IMODE((tmp_path / "dev/nvidia0").stat().st_mode) == 0o666


# --- instances ------------------------------------------------------------------------------------


def test_capabilities_live_as_long_as_their_instances(node, root):
    node.create_mig(9, 4)
    folder = root / "proc/driver/nvidia/capabilities/gpu0/mig/gi1"
    assert names(folder) == ["access", "ci0"]
    assert text(folder / "access").startswith(f"DeviceFileMinor: {3 + 9}\nDeviceFileMode: 292\n")
    assert text(folder / "ci0/access").startswith("DeviceFileMinor: 13\n")
    assert {"nvidia-cap12", "nvidia-cap13"} <= set(names(root / "dev/nvidia-caps"))
    node.do(hardware.destroy_compute_instance, 0, serial=node.gpu().instances[0].compute[0].serial)
    assert names(folder) == ["access"]
    node.do(hardware.destroy_gpu_instance, 0, serial=node.gpu().instances[0].serial)
    assert names(root / "proc/driver/nvidia/capabilities") == ["gpu0", "mig"]
    assert names(root / "dev/nvidia-caps") == ["nvidia-cap1", "nvidia-cap2"]
    assert names(folder.parent) == []


def test_a_gpu_without_mig_has_no_capabilities(make_node):
    node = make_node("1xl4")
    assert names(node.folder / "root/proc/driver/nvidia/capabilities") == ["mig"]


def test_another_minor_moves_all_that_hangs_on_it(node, root):
    node.create_mig(19, 0)
    node.do(administration.change_minor, 0, minor=5)
    assert "nvidia5" in names(root / "dev")
    assert "nvidia0" not in names(root / "dev")
    assert names(root / "proc/driver/nvidia/capabilities") == ["gpu5", "mig"]
    access = root / "proc/driver/nvidia/capabilities/gpu5/mig/gi7/ci0/access"
    assert f"DeviceFileMinor: {caps_minor(5, 7, 0)}\n" in text(access)
    assert f"nvidia-cap{caps_minor(5, 7, 0)}" in names(root / "dev/nvidia-caps")
    assert "Device Minor: \t 5\n" in text(root / "proc/driver/nvidia/gpus/0000:09:00.0/information")


def test_minors_can_be_swapped_over_a_third(make_node):
    node = make_node("2xl4")
    before = [gpu.uuid for gpu in node.state.gpus]
    for index, minor in ((0, 9), (1, 0), (0, 1)):
        node.do(administration.change_minor, index, minor=minor)
    assert names(node.folder / "root/dev")[-3:] == ["nvidia0", "nvidia1", "nvidiactl"]
    assert [gpu.minor for gpu in node.state.gpus] == [1, 0]
    assert [gpu.uuid for gpu in node.state.gpus] == before


# --- PCI ------------------------------------------------------------------------------------------


def test_pci_tree(make_node):
    node = make_node("4xh100-80gb")
    devices = node.folder / "root/sys/bus/pci/devices"
    assert names(devices) == [gpu.bus_id for gpu in node.state.gpus]
    for gpu in node.state.gpus:
        link = devices / gpu.bus_id
        assert link.is_symlink()
        assert link.resolve().parts[-3] == gpu.pcie_root
        assert text(link / "numa_node") == f"{gpu.numa_node}\n"
        assert (text(link / "vendor"), text(link / "device")) == ("0x10de\n", "0x2330\n")
        assert gpu.uuid in text(node.folder / f"root/proc/driver/nvidia/gpus/{gpu.bus_id}/information")
    assert [gpu.numa_node for gpu in node.state.gpus] == [0, 0, 1, 1]
    assert [gpu.pcie_root for gpu in node.state.gpus] == ["pci0000:08", "pci0000:08", "pci0000:26", "pci0000:26"]


def test_sixteen_gpus_have_buses_of_their_own(make_node):
    node = make_node("16xl4")
    assert len({gpu.bus_id for gpu in node.state.gpus}) == 16
    parents = {(node.folder / "root/sys/bus/pci/devices" / gpu.bus_id).resolve().parent for gpu in node.state.gpus}
    assert len(parents) == 16


# --- driver files ---------------------------------------------------------------------------------


def test_driver_files(root):
    libraries = root / "usr/lib/x86_64-linux-gnu"
    for soname, file in (
        ("libcuda.so.1", "libcuda.so.580.105.08"),
        ("libnvidia-ml.so.1", "libnvidia-ml.so.580.105.08"),
        ("libnvidia-ptxjitcompiler.so.1", "libnvidia-ptxjitcompiler.so.580.105.08"),
    ):
        assert (libraries / file).is_file()
        assert str((libraries / soname).readlink()) == file
    assert names(root / "lib/firmware/nvidia/580.105.08") == ["gsp_ga10x.bin", "gsp_tu10x.bin"]


def test_another_driver_leaves_nothing_of_the_old_one(node, root):
    node.do(administration.driver_reload, "595.10.01")
    left = [path for path in root.rglob("*") if "580" in path.name]
    assert left == []
    assert str((root / "usr/lib/x86_64-linux-gnu/libcuda.so.1").readlink()) == "libcuda.so.595.10.01"
    assert "595.10.01" in text(root / "proc/driver/nvidia/version")


def test_nvidia_smi_tells_what_it_was_given(root):
    done = subprocess.run(
        [root / "usr/bin/nvidia-smi"],
        env={"PATH": os.environ["PATH"], "NVIDIA_VISIBLE_DEVICES": "void", "MINE": "MIG-1", "OTHER": "x"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "simulated NVIDIA driver 580.105.08" in done.stdout
    assert "env NVIDIA_VISIBLE_DEVICES=void" in done.stdout
    assert "env MINE=MIG-1" in done.stdout
    assert "OTHER" not in done.stdout


# --- keeping in step ------------------------------------------------------------------------------


def test_what_strangers_changed_is_put_right_when_out_of_step(node, root):
    (root / "dev/nvidia0").unlink()
    (root / "dev/nvidia7").touch()
    (root / "proc/driver/nvidia/version").unlink()
    (root / "proc/driver/nvidia/capabilities/gpu0/mig/gi7/ci0").mkdir(parents=True)
    os.utime(node.folder / "rendered", (0, 0))
    assert simulation.root(node.folder) == root
    assert (root / "dev/nvidia0").exists()
    assert not (root / "dev/nvidia7").exists()
    assert (root / "proc/driver/nvidia/version").exists()
    assert names(root / "proc/driver/nvidia/capabilities") == ["gpu0", "mig"]


def test_changes_by_steps_lead_to_the_same_as_all_at_once(make_node, tmp_path):
    node = make_node("3xh100-80gb")
    node.create_mig(14, 0, index=1)
    node.create_mig(19, 6, index=2)
    node.do(administration.change_minor, 1, minor=4)
    node.do(administration.reset, 2)
    node.do(administration.raise_xid, 0, number=13)
    hostroot.render(tmp_path, node.state, shown=None)
    assert listing(tmp_path) == listing(node.folder / "root")


def listing(root):
    return {
        str(path.relative_to(root)): str(path.readlink()) if path.is_symlink() else path.stat().st_mode
        for path in root.rglob("*")
    }


def test_a_change_of_no_file_touches_none(node, root):
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*")}
    node.do(administration.raise_xid, 0, number=13)
    node.do(lambda state: replace(state, latencies=(("nvmlShutdown", 1.0),)))
    assert {path: path.lstat().st_mtime_ns for path in root.rglob("*")} == before
    assert Store(node.folder)._rendered() == node.state.generation
