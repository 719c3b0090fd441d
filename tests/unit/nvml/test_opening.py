import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

import dradriver.nvml
from dradriver.nvml.errors import LibraryMissing, NotSupported
from dradriver.nvml.opening import open_nvml


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
