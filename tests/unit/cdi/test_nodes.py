from pathlib import PurePosixPath

import pytest

from dradriver.cdi.errors import DeviceNodeError
from dradriver.cdi.nodes import DeviceTree
from dradriver.cdi.spec import DeviceNode

DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
237 nvidia-caps
510 nvidia-uvm

Block devices:
  7 loop
"""


@pytest.fixture
def tree(tmp_path):
    proc, dev = tmp_path / "proc", tmp_path / "dev"
    instance = proc / "driver/nvidia/capabilities/gpu0/mig/gi7"
    (instance / "ci0").mkdir(parents=True)
    (instance / "access").write_text("DeviceFileMinor: 66\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
    (instance / "ci0/access").write_text("DeviceFileMinor: 67\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
    (proc / "devices").write_text(DEVICES)
    dev.mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia0"):
        (dev / name).write_text("")
    return DeviceTree(
        dev=dev, host_dev=PurePosixPath("/dev"), proc=proc, sys=tmp_path / "sys", proc_devices=proc / "devices"
    )


def test_control_nodes_have_their_numbers(tree):
    numbers = {node.path: (node.major, node.minor) for node in tree.control_nodes()}
    assert numbers == {
        "/dev/nvidiactl": (195, 255),
        "/dev/nvidia-uvm": (510, 0),
        "/dev/nvidia-uvm-tools": (510, 1),
        "/dev/nvidia-modeset": (195, 254),
    }


def test_a_real_character_device_tells_its_own_numbers(tree):
    (tree.dev / "nvidia0").unlink()
    (tree.dev / "nvidia0").symlink_to("/dev/null")
    assert (tree.gpu_node(0).major, tree.gpu_node(0).minor) == (1, 3)


def test_modeset_is_optional_and_nvidiactl_is_not(tree):
    (tree.dev / "nvidia-modeset").unlink()
    assert "/dev/nvidia-modeset" not in {node.path for node in tree.control_nodes()}
    (tree.dev / "nvidiactl").unlink()
    with pytest.raises(DeviceNodeError, match=r"nvidiactl is not there: load the driver's kernel module"):
        tree.control_nodes()


def test_a_missing_gpu_node_is_told(tree):
    with pytest.raises(DeviceNodeError, match="nvidia5 is not there"):
        tree.gpu_node(5)


def test_a_partition_has_the_capability_nodes_of_both_instances(tree):
    nodes = tree.partition_nodes(0, gpu_instance=7, compute_instance=0)
    assert nodes == (
        DeviceNode(path="/dev/nvidia-caps/nvidia-cap66", host_path=None, major=237, minor=66),
        DeviceNode(path="/dev/nvidia-caps/nvidia-cap67", host_path=None, major=237, minor=67),
    )


def test_capability_files_of_the_host_are_named_where_they_exist(tree):
    (tree.dev / "nvidia-caps").mkdir()
    (tree.dev / "nvidia-caps/nvidia-cap66").write_text("")
    nodes = tree.partition_nodes(0, gpu_instance=7, compute_instance=0)
    assert [node.host_path for node in nodes] == ["/dev/nvidia-caps/nvidia-cap66", None]


def test_an_instance_the_kernel_does_not_know_is_told(tree):
    with pytest.raises(DeviceNodeError, match=r"cannot read .*gi9/access: No such file"):
        tree.partition_nodes(0, gpu_instance=9, compute_instance=0)


def test_an_access_file_without_minor_is_told(tree):
    (tree.proc / "driver/nvidia/capabilities/gpu0/mig/gi7/access").write_text("odd")
    with pytest.raises(DeviceNodeError, match="names no DeviceFileMinor"):
        tree.partition_nodes(0, gpu_instance=7, compute_instance=0)


def test_a_kernel_without_capabilities_is_told(tree):
    (tree.proc / "devices").write_text("195 nvidia\n")
    with pytest.raises(DeviceNodeError, match="lists no nvidia-caps: is the NVIDIA kernel module loaded"):
        tree.major("nvidia-caps")


def test_graphics_nodes_are_those_of_the_gpu(tree):
    drm = tree.sys / "bus/pci/devices/0000:41:00.0/drm"
    for name in ("card1", "renderD129", "controlD65"):
        (drm / name).mkdir(parents=True)
    (tree.dev / "dri").mkdir()
    (tree.dev / "dri/card1").symlink_to("/dev/null")
    (tree.dev / "dri/renderD129").symlink_to("/dev/null")
    assert [node.path for node in tree.drm_nodes("0000:41:00.0")] == ["/dev/dri/card1", "/dev/dri/renderD129"]
    assert tree.drm_nodes("0000:42:00.0") == ()
