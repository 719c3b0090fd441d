"""Machines that are known by name only."""

import tempfile
from pathlib import Path

import pytest

from dradriver.nvml.errors import SimulationUnusable
from dradriver.nvml.machines import known_gpus, read_machine
from dradriver.simulation.models import MODELS


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_every_gpu_is_known():
    known = {gpu.name: gpu for gpu in known_gpus()}
    assert list(known) == list(MODELS)
    h100, gb10 = known["h100-80gb"], known["gb10"]
    assert (h100.product_name, h100.memory_mib, h100.mig_capable) == ("NVIDIA H100 80GB HBM3", 81559, True)
    assert (gb10.memory_mib, gb10.mig_capable) == (None, False)


def test_a_machine_is_read_and_nothing_of_it_is_left(folder):
    gpus = read_machine("2xa30,1xt4", driver="595.10.01")
    assert [gpu.product_name for gpu in gpus] == ["NVIDIA A30", "NVIDIA A30", "Tesla T4"]
    assert [gpu.pci_bus_id for gpu in gpus] == sorted(gpu.pci_bus_id for gpu in gpus)
    assert {gpu.driver_version for gpu in gpus} == {"595.10.01"}
    assert list(folder.iterdir()) == []


def test_all_partitions_are_told_whatever_the_file_says_of_mig_mode(folder):
    file = folder / "machine.yaml"
    file.write_text("driver: '590.44.01'\ngpus: [{gpu: a100-40gb, mig: off}]")
    (gpu,) = read_machine(str(file))
    assert gpu.mig_enabled
    assert "1g.5gb" in {profile.name for profile in gpu.profiles}
    assert gpu.driver_version == "590.44.01"


@pytest.mark.parametrize(
    ("machine", "driver", "sentence"),
    [
        ("3xh100", None, "^unknown gpu 'h100'"),
        ("17xt4", None, "^a machine has 1 to 16 GPUs"),
        ("1xt4", "latest", "^driver version 'latest'"),
        ("no file", None, "^machine 'no file' is neither"),
    ],
)
def test_what_is_no_machine_is_told_in_the_simulations_words(folder, machine, driver, sentence):
    with pytest.raises(SimulationUnusable, match=sentence):
        read_machine(machine, driver=driver)
    assert list(folder.iterdir()) == []


def test_no_room_is_told(monkeypatch):
    def full(*_arguments, **_named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(SimulationUnusable, match="No space left on device"):
        read_machine("1xt4")
