import pytest

from dradriver.nvml.sysfs import pci_facts

BUS_ID = "0000:41:00.0"


@pytest.fixture
def device(tmp_path):
    """A device below a bridge, linked as the kernel links it."""
    place = tmp_path / "devices/pci0000:40/0000:40:01.1" / BUS_ID
    place.mkdir(parents=True)
    bus = tmp_path / "bus/pci/devices"
    bus.mkdir(parents=True)
    (bus / BUS_ID).symlink_to(f"../../../devices/pci0000:40/0000:40:01.1/{BUS_ID}")
    return place


def relink(tmp_path, target):
    link = tmp_path / "bus/pci/devices" / BUS_ID
    link.unlink()
    link.symlink_to(target)


def test_node_and_root_are_read(tmp_path, device):
    (device / "numa_node").write_text("1\n")
    assert pci_facts(tmp_path, BUS_ID) == (1, "pci0000:40")


@pytest.mark.parametrize("content", ["-1\n", "", "many\n"])
def test_a_node_that_the_kernel_does_not_know_is_none(tmp_path, device, content):
    (device / "numa_node").write_text(content)
    assert pci_facts(tmp_path, BUS_ID) == (None, "pci0000:40")


def test_a_missing_device_has_neither(tmp_path):
    assert pci_facts(tmp_path, BUS_ID) == (None, None)


@pytest.mark.parametrize(
    ("target", "root"),
    [
        ("/sys/devices/pci0009:01/0009:01:00.0", "pci0009:01"),
        ("../../../devices/pci10000:e0/10000:e0:06.0/10000:e1:00.0", "pci10000:e0"),
        ("../../../devices/platform/soc@0/1c00000.pcie/pci0000:00/0000:00:00.0", "pci0000:00"),
        ("../../../devices/vfio/0000:41:00.0", None),
    ],
)
@pytest.mark.usefixtures("device")
def test_the_root_is_where_the_device_hangs(tmp_path, target, root):
    relink(tmp_path, target)
    assert pci_facts(tmp_path, BUS_ID)[1] == root


def test_a_plain_folder_instead_of_a_link_gives_no_root(tmp_path):
    folder = tmp_path / "bus/pci/devices" / BUS_ID
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("0")
    assert pci_facts(tmp_path, BUS_ID) == (0, None)
