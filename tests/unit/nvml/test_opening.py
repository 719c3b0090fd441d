import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

import dradriver.nvml
from dradriver.nvml.errors import LibraryMissing, NotSupported
from dradriver.nvml.opening import is_replaced, open_nvml


def test_a_library_that_is_not_there_is_named(tmp_path):
    library = tmp_path / "libnvidia-ml.so.1"
    with pytest.raises(LibraryMissing, match=f"{library} cannot be loaded: .*No such file"):
        open_nvml(library=library)


def test_a_file_that_is_no_library_is_named(tmp_path):
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_text("text")
    with pytest.raises(LibraryMissing, match="cannot be loaded") as caught:
        open_nvml(library=library)
    assert "install the NVIDIA driver" in str(caught.value)


def test_the_library_given_is_the_one_that_is_asked():
    """The C library stands in: it can be loaded, and has none of NVML's functions."""
    with pytest.raises(NotSupported, match="nvmlInitWithFlags failed: this driver's library has no such function"):
        open_nvml(library=Path("libc.so.6"))
    assert pynvml.nvmlLib._name == "libc.so.6"


def test_functions_of_a_library_opened_before_are_not_called(fake, opened):
    assert len(opened().gpus()) == 2
    with pytest.raises(NotSupported):
        open_nvml(library=Path("libc.so.6"))


def test_catching_errors_does_not_load_pynvml():
    program = "import sys; from dradriver.nvml import InUse, Inventory; sys.exit('pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_all_that_the_room_offers_can_be_had():
    assert all(getattr(dradriver.nvml, name) is not None for name in dradriver.nvml.__all__)
    assert dradriver.nvml.open_nvml is open_nvml
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dradriver.nvml.nothing


# --- a library that is replaced ----------------------------------------------------------------


@pytest.fixture
def installed(tmp_path):
    """A library as installers lay it: a file with its version, and the name that the loader goes by."""
    (tmp_path / "libnvidia-ml.so.570.1").touch()
    (tmp_path / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.570.1")
    return tmp_path


def maps_of(folder, *names):
    path = folder / "maps"
    lines = [
        f"7f00-7f01 r--p 00000000 fe:00 {index + 100}                    {name}" for index, name in enumerate(names)
    ]
    path.write_text(
        "\n".join(["55d0-55d1 r-xp 00000000 fe:00 7 /usr/bin/python3.11", "7ffe-7fff rw-p 0 00:00 0", *lines])
    )
    return path


def test_a_library_in_its_place_is_not_replaced(installed):
    assert not is_replaced(maps_of(installed, f"{installed}/libnvidia-ml.so.570.1"))


def test_a_library_whose_file_was_removed_is_replaced(installed):
    assert is_replaced(maps_of(installed, f"{installed}/libnvidia-ml.so.570.1 (deleted)"))


def test_a_library_whose_name_leads_elsewhere_is_replaced(installed):
    (installed / "libnvidia-ml.so.580.2").touch()
    (installed / "libnvidia-ml.so.1").unlink()
    (installed / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.2")
    assert is_replaced(maps_of(installed, f"{installed}/libnvidia-ml.so.570.1"))


def test_a_library_that_is_gone_and_has_no_successor_is_not_replaced_yet(installed):
    """A new process could load none; the driver is being installed."""
    (installed / "libnvidia-ml.so.1").unlink()
    assert not is_replaced(maps_of(installed, f"{installed}/libnvidia-ml.so.570.1"))


def test_a_process_without_library_has_none_to_replace(tmp_path):
    assert not is_replaced(maps_of(tmp_path))
    assert not is_replaced()
