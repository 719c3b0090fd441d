"""`Nvml.inventory` where GPUs are reset, lost or hang: on a scripted driver, and on simulated nodes."""

import contextlib
import io
import threading

import pytest

from dradriver.nvml import bounded, node, open_nvml
from dradriver.nvml.errors import DriverMismatch, GpuLost, Hanging, Uninitialized
from dradriver.nvml.records import EventType
from dradriver.nvml.session import LOST_PAUSE
from dradriver.simulation.__main__ import main

INIT, SHUTDOWN, COUNT = "nvmlInitWithFlags", "nvmlShutdown", "nvmlDeviceGetCount_v2"
MEMORY, MINOR, BY_INDEX = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetHandleByIndex_v2"
BUS_IDS = {"GPU-0": "0000:41:00.0", "GPU-1": "0000:40:00.0"}


@pytest.fixture
def soon(monkeypatch):
    """Limits that a test can wait for, and that GPUs which do not hang keep on a machine that others use, too."""
    monkeypatch.setattr(bounded, "PATIENCE", 0.02)
    monkeypatch.setattr(node, "READ_SECONDS", 1.5)
    monkeypatch.setattr(node, "FIRST_READ_SECONDS", 1.5)
    monkeypatch.setattr(node, "RENEWAL_SECONDS", 0.05)


def uuids(inventory):
    return {gpu.uuid for gpu in inventory.gpus}


def back(nvml, key):
    """Wait until nothing hangs for a GPU any more."""
    pause = threading.Event()
    while nvml._bounded.hangs(key):
        pause.wait(0.01)


# --- a GPU that hangs -----------------------------------------------------------------------------


@pytest.mark.parametrize("call", [MEMORY, MINOR, "nvmlDeviceGetMigMode", BY_INDEX])
def test_a_gpu_that_hangs_is_unreadable_and_the_others_are_fresh(fake, nvml, hang, soon, call):
    nvml.inventory()
    nvml._cache.forget_devices()
    hang(call, 0)
    fake.gpus[1].mode = [0, 0]
    inventory = nvml.inventory()
    assert [(gpu.uuid, gpu.mig_mode.current) for gpu in inventory.gpus] == [("GPU-1", False)]
    (hanging,) = inventory.unreadable
    assert (hanging.index, hanging.uuid, hanging.pci_bus_id) == (0, "GPU-0", BUS_IDS["GPU-0"])
    assert isinstance(hanging.error, Hanging)
    assert (hanging.error.gpu, hanging.error.call) == ("GPU-0", call.removesuffix("_v2"))


def test_while_it_hangs_nothing_more_is_asked_of_it_and_the_words_stay(fake, nvml, hang, soon):
    nvml.inventory()
    hang(MINOR, 0)
    first = nvml.inventory().unreadable
    asked = fake.calls[MINOR]
    for _ in range(3):
        (again,) = nvml.inventory().unreadable
        assert str(again.error) == str(first[0].error)
    assert fake.calls[MINOR] == asked + 3  # The other GPU's.
    hang.leave()
    back(nvml, "GPU-0")
    assert uuids(nvml.inventory()) == {"GPU-0", "GPU-1"}
    assert nvml.unreadable() == ()
    assert nvml.returns("GPU-0") == 0


@pytest.mark.parametrize("index", [0, 1])
def test_a_gpu_that_hangs_from_the_start_has_no_name_and_keeps_nobody_waiting(nvml, hang, soon, index):
    hang(BY_INDEX, index)
    for _ in range(2):
        inventory = nvml.inventory()
        assert uuids(inventory) == {f"GPU-{1 - index}"}
        (hanging,) = inventory.unreadable
        assert (hanging.index, hanging.uuid, hanging.error.gpu) == (index, None, f"GPU {index}")
    # Looking for the other by name does not touch it.
    nvml._cache.forget_devices()
    assert nvml.minor(f"GPU-{1 - index}") == 1 - index
    hang.leave()
    back(nvml, f"GPU {index}")
    assert len(nvml.inventory().gpus) == 2


def test_all_that_hang_are_waited_for_together(nvml, hang, soon):
    nvml.inventory()
    hang(MINOR)
    inventory = nvml.inventory()
    assert inventory.gpus == ()
    assert {one.uuid: one.pci_bus_id for one in inventory.unreadable} == BUS_IDS


@pytest.mark.parametrize("call", [COUNT, "nvmlSystemGetDriverVersion", INIT])
def test_what_concerns_no_gpu_hangs_for_all(fake, nvml, hang, soon, call):
    nvml.inventory()
    hang(call)
    if call == INIT:
        nvml.renew()
    for _ in range(2):
        with pytest.raises(Hanging, match=f"^{call.removesuffix('_v2')} failed: it was called at "):
            nvml.inventory()
    hang.leave()
    back(nvml, None)
    assert len(nvml.inventory().gpus) == 2


def test_nvml_is_not_shut_down_under_a_call_that_hangs(fake, nvml, hang, soon):
    nvml.inventory()
    hang(MINOR, 0)
    nvml.inventory()
    nvml.renew()
    assert uuids(nvml.inventory()) == {"GPU-1"}
    assert (fake.calls[INIT], fake.calls[SHUTDOWN]) == (1, 0)
    hang.leave()
    back(nvml, "GPU-0")
    assert len(nvml.inventory().gpus) == 2
    assert fake.calls[INIT] == 2


def test_many_who_read_a_node_with_a_gpu_that_hangs(fake, nvml, hang, soon):
    nvml.inventory()
    hang(MINOR, 0)
    seen = []
    readers = [threading.Thread(target=lambda: seen.append(nvml.inventory())) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert [uuids(one) for one in seen] == [{"GPU-1"}] * 8
    assert len(nvml._bounded._late["GPU-0"]) <= 8
    hang.leave()
    back(nvml, "GPU-0")
    assert len(nvml.inventory().gpus) == 2


# --- a GPU that was reset -------------------------------------------------------------------------


@pytest.mark.parametrize("call", [MEMORY, MINOR, "nvmlDeviceGetMigMode"])
@pytest.mark.parametrize("index", [0, 1])
def test_a_reset_does_not_show(fake, nvml, call, index):
    nvml.inventory()
    fake.failures[call] = [0] * index + [15, 15]
    inventory = nvml.inventory()
    assert (uuids(inventory), inventory.unreadable) == ({"GPU-0", "GPU-1"}, ())
    assert fake.calls[INIT] == 2
    assert [nvml.returns(f"GPU-{number}") for number in (index, 1 - index)] == [1, 0]


def test_a_gpu_that_stays_lost_keeps_its_name_in_the_new_session(fake, nvml):
    nvml.inventory()
    fake.failures |= {MEMORY: [15, 15], BY_INDEX: [15, 15]}
    (lost,) = nvml.inventory().unreadable
    assert (lost.index, lost.uuid, lost.pci_bus_id) == (0, "GPU-0", BUS_IDS["GPU-0"])
    assert isinstance(lost.error, GpuLost)
    assert lost.error.gpu == "GPU-0"
    assert fake.calls[INIT] == 2


def test_a_name_that_another_gpu_has_is_not_given_to_the_lost_one(fake, nvml):
    nvml.inventory()
    # NVML has the GPUs in another order in this session, and the first of them is lost.
    nvml._roster._uuids = {0: "GPU-1", 1: "GPU-0"}
    nvml.renew()
    fake.failures[BY_INDEX] = [15, 15]
    inventory = nvml.inventory()
    (lost,) = inventory.unreadable
    assert (uuids(inventory), lost.uuid, lost.error.gpu) == ({"GPU-1"}, None, "GPU 0")
    assert len(nvml.inventory().gpus) == 2
    assert (nvml.returns("GPU-0"), nvml.returns("GPU-1")) == (0, 0)


def test_while_calls_keep_the_session_from_being_made_anew_nobody_knows_whether_a_gpu_is_lost(fake, nvml, soon):
    nvml.inventory()
    fake.failures[MEMORY] = [15, 15]
    with nvml._session.use():
        (one,) = nvml.inventory().unreadable
        assert (one.uuid, type(one.error)) == ("GPU-0", Hanging)
        assert fake.calls[INIT] == 1
    assert nvml.inventory().unreadable == ()
    assert (fake.calls[INIT], nvml.returns("GPU-0")) == (2, 1)


def test_a_call_that_ends_soon_is_waited_for(fake, nvml):
    nvml.inventory()
    fake.failures[MEMORY] = [15, 15]
    use = nvml._session.use()
    use.__enter__()
    threading.Timer(0.1, lambda: use.__exit__(None, None, None)).start()
    assert nvml.inventory().unreadable == ()


def test_a_session_that_ends_at_every_reading_is_told(fake, nvml):
    fake.failures[MINOR] = 1
    with pytest.raises(Uninitialized):
        nvml.inventory()
    assert fake.calls[INIT] == 1 + 4


def test_an_upgraded_driver_is_told_at_once(fake, nvml):
    nvml.inventory()
    fake.failures |= {MINOR: [1, 1], INIT: 18}
    with pytest.raises(DriverMismatch):
        nvml.inventory()


def test_a_session_that_others_make_anew_meanwhile_is_followed(fake, nvml):
    nvml.inventory()
    left = [1, 1]
    # Not by another thread, which might come too late, but as if between two GPUs.
    fake.hooks[MINOR] = lambda: left and (left.pop(), nvml.renew())
    inventory = nvml.inventory()
    assert (len(inventory.gpus), inventory.unreadable) == (2, ())
    assert fake.calls[INIT] == 3


# --- simulated nodes ------------------------------------------------------------------------------


class Machine:
    """A simulated node, in the hands of the one who stands before it."""

    def __init__(self, folder, clock):
        self.folder = folder
        self.do("create", "4xh100-80gb", "--mig", "on")
        self.nvml = open_nvml(simulation=folder)
        self.nvml._session._clock = self.nvml._session._lives._clock = clock
        self.nvml._session._started = clock()
        self.uuids = [gpu.uuid for gpu in self.nvml.gpus()]

    def do(self, *words):
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["--state", str(self.folder), *map(str, words)]) == 0

    @property
    def returns(self):
        return [self.nvml.returns(uuid) for uuid in self.uuids]


@pytest.fixture
def machine(tmp_path, clock):
    machine = Machine(tmp_path / "node", clock)
    yield machine
    machine.nvml.close()


def test_a_reset_of_a_simulated_gpu_does_not_show_in_the_inventory(machine):
    for count in (1, 2, 3):
        machine.do("reset", "--gpu", 2)
        assert len(machine.nvml.inventory().gpus) == 4
        assert machine.returns == [0, 0, count, 0]


def test_of_gpus_that_were_reset_together_each_came_back(machine):
    generation = machine.nvml._session.generation
    for gpu in (0, 1, 3):
        machine.do("reset", "--gpu", gpu)
    assert len(machine.nvml.inventory().gpus) == 4
    assert machine.nvml._session.generation == generation + 1
    assert machine.returns == [1, 1, 0, 1]


@pytest.mark.parametrize("first", ["readings", "instances", "renew"])
def test_whoever_notices_first(machine, first):
    for gpu in (0, 1, 3):
        machine.do("reset", "--gpu", gpu)
    if first == "readings":
        machine.nvml.readings(machine.uuids[3])
    elif first == "renew":
        machine.nvml.renew()
    else:
        with pytest.raises(GpuLost):
            machine.nvml.instances(machine.uuids[0])
    assert len(machine.nvml.inventory().gpus) == 4
    assert machine.returns == [1, 1, 0, 1]


def test_who_waits_for_events_does_not_keep_a_reset_from_being_noticed(machine, clock):
    clock.now += LOST_PAUSE
    with contextlib.closing(machine.nvml.watch_events(EventType.XID)) as events:
        for gpu in (0, 3):
            machine.do("reset", "--gpu", gpu)
        with contextlib.suppress(GpuLost):
            events.wait(0)
        for _ in range(3):
            events.wait(0)
        assert set(events.watched) == set(machine.uuids)
    assert len(machine.nvml.inventory().gpus) == 4
    assert machine.returns == [1, 0, 0, 1]


def test_nor_in_its_readings(machine):
    before = machine.nvml.readings(machine.uuids[3])
    machine.do("reset", "--gpu", 3)
    assert machine.nvml.readings(machine.uuids[3]) == before
    assert machine.returns[3] == 1


def test_a_simulated_gpu_that_is_lost_keeps_its_name_and_comes_back(machine, clock):
    place = {gpu.uuid: gpu.pci_bus_id for gpu in machine.nvml.gpus()}
    machine.do("lose", "--gpu", 1)
    for _ in range(3):
        (lost,) = machine.nvml.inventory().unreadable
        assert (lost.uuid, lost.pci_bus_id) == (machine.uuids[1], place[machine.uuids[1]])
        with pytest.raises(GpuLost, match=machine.uuids[1]):
            machine.nvml.readings(machine.uuids[1])
        clock.now += LOST_PAUSE
    assert machine.returns == [0, 0, 0, 0]
    machine.do("recover", "--gpu", 1)
    clock.now += LOST_PAUSE
    machine.nvml.inventory()
    assert machine.nvml.inventory().unreadable == ()
    assert machine.returns == [0, 1, 0, 0]


def test_a_driver_reload_brings_back_all(machine):
    machine.do("driver-reload")
    assert len(machine.nvml.inventory().gpus) == 4
    assert machine.returns == [1, 1, 1, 1]


def test_hot_plug_brings_back_only_the_one_that_went(machine):
    machine.do("unplug", "--gpu", 1)
    assert len(machine.nvml.inventory().gpus) == 3
    machine.do("plug", "--gpu", 1)
    assert len(machine.nvml.inventory().gpus) == 4
    machine.nvml.renew()
    machine.nvml.inventory()
    assert [machine.returns[number] for number in (0, 2, 3)] == [0, 0, 0]


def test_memory_that_is_to_be_repaired_and_actions_are_read(machine):
    left, right = machine.uuids[:2]
    machine.do("xid", 95, "--gpu", 0)
    assert machine.nvml.readings(left).recovery not in {None, 0}
    assert machine.nvml.readings(right).recovery == 0
