"""When GPUs came or went: the driver's list of devices, and how often NVML is initialized anew for it."""

import threading

import pytest

from dradriver.nvml.access import Nvml
from dradriver.nvml.bus import Bus
from dradriver.nvml.errors import DriverNotLoaded
from dradriver.nvml.sysfs import held_gpus

FIRST, SECOND, THIRD = "0000:40:00.0", "0000:41:00.0", "0001:07:00.0"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "bus/pci/drivers/nvidia"
    folder.mkdir(parents=True)
    return folder


def hold(folder, *bus_ids):
    """Let the driver hold these devices; what the kernel puts beside them is there too."""
    for path in folder.iterdir():
        path.unlink()
    for name in ("bind", "unbind", "new_id", "uevent"):
        (folder / name).touch()
    (folder / "module").symlink_to("../../../../module/nvidia")
    for bus_id in bus_ids:
        (folder / bus_id).symlink_to(f"../../../../devices/pci0000:40/{bus_id}")


@pytest.fixture
def plugged(fake, clock, tmp_path, folder):
    """A session on a driver that holds two GPUs and knows both."""
    hold(folder, FIRST, SECOND)
    session = Nvml(sys_root=tmp_path, clock=clock)
    yield session
    session.close()


def initializations(fake):
    return fake.calls["nvmlInitWithFlags"]


# --- the list -----------------------------------------------------------------------------------


def test_only_devices_are_listed(tmp_path, folder):
    hold(folder, FIRST, THIRD)
    assert held_gpus(tmp_path) == {FIRST, THIRD}


def test_no_driver_holds_nothing(tmp_path):
    assert held_gpus(tmp_path) == frozenset()
    (tmp_path / "bus").write_text("a file")
    assert held_gpus(tmp_path) == frozenset()


def test_a_change_is_told_once(tmp_path, folder):
    hold(folder, FIRST)
    bus = Bus(tmp_path)
    assert not bus.has_changed()
    hold(folder, FIRST, SECOND)
    assert bus.has_changed()
    assert not bus.has_changed()
    hold(folder, SECOND)
    assert bus.has_changed()
    hold(folder, THIRD)
    assert bus.has_changed()
    assert not bus.has_changed()


def test_a_driver_that_is_unloaded_and_loaded_is_two_changes(tmp_path, folder):
    hold(folder, FIRST)
    bus = Bus(tmp_path)
    hidden = folder.rename(folder.with_name("gone"))
    assert bus.has_changed()
    assert not bus.has_changed()
    hidden.rename(folder)
    assert bus.has_changed()


def test_gpus_that_nvml_does_not_show_are_told_once(tmp_path, folder):
    hold(folder, FIRST, SECOND)
    bus = Bus(tmp_path)
    assert not bus.falls_short(2)
    assert bus.falls_short(1)
    assert not bus.falls_short(1)
    assert bus.falls_short(0)
    assert not bus.falls_short(0)
    assert not bus.falls_short(2)
    assert bus.falls_short(1)
    hold(folder, FIRST, SECOND, THIRD)
    assert bus.has_changed()
    assert not bus.falls_short(3)
    assert bus.falls_short(2)
    assert not bus.falls_short(2)


def test_more_gpus_than_the_bus_has_are_none_of_its_business(tmp_path):
    assert not Bus(tmp_path).falls_short(1)


# --- the session --------------------------------------------------------------------------------


def test_nothing_is_made_anew_while_nothing_changes(fake, plugged):
    for _ in range(3):
        assert len(plugged.gpus()) == 2
    assert initializations(fake) == 1


def test_a_changed_bus_is_one_new_initialization(fake, plugged, folder):
    plugged.gpus()
    hold(folder, FIRST)
    fake.gpus.pop()
    for _ in range(3):
        assert len(plugged.gpus()) == 1
    assert initializations(fake) == 2
    assert fake.initialized == 1


def test_a_driver_that_is_slower_than_the_kernel_gets_a_second_chance(fake, plugged, folder):
    late = fake.gpus.pop()
    hold(folder, FIRST)
    assert len(plugged.gpus()) == 1
    hold(folder, FIRST, SECOND)
    assert len(plugged.gpus()) == 1
    fake.gpus.append(late)
    fake.calls.clear()
    assert len(plugged.gpus()) == 2
    assert initializations(fake) == 1


def test_a_gpu_that_the_driver_excludes_does_not_start_nvml_again_and_again(fake, plugged, folder):
    hold(folder, FIRST, SECOND, THIRD)
    for _ in range(5):
        assert len(plugged.gpus()) == 2
    assert initializations(fake) == 3


def test_a_call_under_way_is_not_disturbed(fake, plugged, folder):
    inside, go_on = threading.Event(), threading.Event()
    fake.hooks["nvmlDeviceGetComputeRunningProcesses_v3"] = lambda: inside.set() or go_on.wait()
    answers = []
    caller = threading.Thread(target=lambda: answers.append(plugged.processes("GPU-0")))
    caller.start()
    inside.wait()
    hold(folder, FIRST, SECOND, THIRD)
    assert len(plugged.gpus()) == 2
    assert initializations(fake) == 1
    go_on.set()
    caller.join()
    assert answers == [()]
    plugged.gpus()
    assert initializations(fake) == 2


def test_a_driver_that_refuses_is_tried_by_every_reading_until_it_answers(fake, plugged, folder):
    hold(folder, FIRST, SECOND, THIRD)
    fake.failures["nvmlInitWithFlags"] = [9, 9]
    for _ in range(2):
        with pytest.raises(DriverNotLoaded):
            plugged.inventory()
    assert len(plugged.inventory().gpus) == 2


def test_an_index_is_asked_again_where_gpus_went_with_no_word_from_the_kernel(fake, clock, tmp_path):
    """Without sysfs, too, no GPU is left out because another one went."""
    session = Nvml(sys_root=tmp_path, clock=clock)
    assert [gpu.uuid for gpu in session.gpus()] == ["GPU-1", "GPU-0"]
    del fake.gpus[0]
    fake.gpus[0].index = 0
    fake.gpu = lambda handle: fake.gpus[0]
    (left,) = session.gpus()
    assert (left.uuid, session.unreadable()) == ("GPU-0", ())
    assert initializations(fake) == 1
    session.close()
