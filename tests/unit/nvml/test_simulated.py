"""`Nvml` on simulated nodes: what the hardware's rules make of it."""

import contextlib
import io
import json
import signal
import subprocess
import sys
import threading

import pytest

from dradriver.gpu.model import MigMode, Placement
from dradriver.nvml import open_nvml
from dradriver.nvml.errors import (
    DriverMismatch,
    GpuLost,
    InsufficientResources,
    InUse,
    NotFound,
    NotSupported,
    ResetRequired,
    SimulationUnusable,
    TimedOut,
)
from dradriver.nvml.records import EventType, Process
from dradriver.nvml.session import LOST_PAUSE
from dradriver.simulation.__main__ import main
from dradriver.simulation.models import MODELS

ON, OFF = MigMode(current=True, pending=True), MigMode(current=False, pending=False)


class Node:
    """A simulated node, in the hands of the one who stands before the machine."""

    def __init__(self, folder, machine, *, mig=False):
        self.folder = folder
        self.do("create", machine, "--mig", "on" if mig else "off")

    def do(self, *words):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            assert main(["--state", str(self.folder), *map(str, words)]) == 0
        return said.getvalue()

    def show(self):
        return json.loads(self.do("show"))


@pytest.fixture
def simulated(tmp_path, clock):
    """Make a node and open it."""
    sessions = []

    def start(machine, **options):
        node = Node(tmp_path / "node", machine, **options)
        nvml = open_nvml(simulation=node.folder)
        nvml._session._clock = clock
        nvml._session._started = clock()
        sessions.append(nvml)
        return node, nvml

    yield start
    for nvml in sessions:
        nvml.close()


def make(nvml, gpu, profile_id, start):
    placement = next(one for one in gpu.profile(profile_id).placements if one.start == start)
    bare = nvml.create_gpu_instance(gpu.uuid, profile_id=profile_id, placement=placement)
    return nvml.create_compute_instance(gpu.uuid, gpu_instance_id=bare.gpu_instance_id)


def unmake(nvml, gpu, instance):
    ids = {"gpu_instance_id": instance.gpu_instance_id}
    nvml.destroy_compute_instance(gpu.uuid, **ids, compute_instance_id=instance.compute_instance_id)
    nvml.destroy_gpu_instance(gpu.uuid, **ids)


# --- what a node has ------------------------------------------------------------------------------


@pytest.mark.parametrize("mig", [True, False])
@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_machine_is_read_as_it_is(simulated, model, mig):
    node, nvml = simulated(f"2x{model}", mig=mig)
    shown = node.show()
    found = nvml.gpus()
    assert nvml.unreadable() == ()
    for gpu, real in zip(found, shown["gpus"], strict=True):
        same = {"uuid", "minor", "pci_bus_id", "numa_node"}
        assert {name: getattr(gpu, name) for name in same} == {name: real[name] for name in same}
        assert gpu.product_name == real["product"]
        assert gpu.driver_version == shown["driver_version"]
        assert ".".join(map(str, gpu.cuda_driver_version)) == shown["cuda_version"]
        assert gpu.pcie_root.startswith("pci0000:")
        assert (gpu.memory_bytes is None) == (model == "gb10")


@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_profile_is_read_as_it_is(simulated, model):
    profiles = MODELS[model].profiles
    (gpu,) = simulated(f"1x{model}", mig=True)[1].gpus()
    assert gpu.mig_mode == (ON if profiles else None)
    assert gpu.mig_needs_reset == (bool(profiles) and gpu.architecture == "Ampere")
    assert {(one.id, one.name, one.memory_mib) for one in gpu.profiles} == {
        (one.id, one.name, one.memory_mib) for one in profiles
    }


@pytest.mark.parametrize("model", sorted(name for name, model in MODELS.items() if model.profiles))
def test_names_computed_for_older_drivers_equal_those_of_newer_ones(simulated, model):
    node, nvml = simulated(f"1x{model}", mig=True)
    told = {one.id: one.name for one in nvml.gpus()[0].profiles}
    node.do("fail", "nvmlDeviceGetGpuInstanceProfileInfoV", "--error", "NOT_SUPPORTED")
    nvml.renew()
    assert {one.id: one.name for one in nvml.gpus()[0].profiles} == told


@pytest.mark.parametrize(
    ("model", "architecture", "capability", "brand"),
    [
        ("t4", "Turing", (7, 5), "Tesla"),
        ("a30", "Ampere", (8, 0), "Nvidia"),
        ("l4", "Ada Lovelace", (8, 9), "Nvidia"),
        ("h200", "Hopper", (9, 0), "Nvidia"),
        ("b200", "Blackwell", (10, 0), "Nvidia"),
    ],
)
def test_classes_are_spelled_as_selectors_expect(simulated, model, architecture, capability, brand):
    (gpu,) = simulated(f"1x{model}")[1].gpus()
    assert (gpu.architecture, gpu.compute_capability, gpu.brand) == (architecture, capability, brand)


@pytest.mark.parametrize(
    ("model", "partitions"), [("a100-40gb", 25), ("h100-80gb", 25), ("a30", 13), ("rtx-pro-6000", 30)]
)
def test_a_gpu_has_as_many_partitions_as_its_grid(simulated, model, partitions):
    (gpu,) = simulated(f"1x{model}", mig=True)[1].gpus()
    # The double-memory profile of 7-slice GPUs and all variants are counted: every (profile, place).
    assert sum(len(profile.placements) for profile in gpu.profiles) == partitions


@pytest.mark.parametrize("model", ["h100-80gb", "a100-80gb", "a30", "rtx-pro-6000"])
def test_every_partition_can_be_made_listed_and_destroyed(simulated, model):
    _, nvml = simulated(f"1x{model}", mig=True)
    (gpu,) = nvml.gpus()
    for profile in gpu.profiles:
        for placement in profile.placements:
            made = make(nvml, gpu, profile.id, placement.start)
            assert (made.profile_id, made.placement) == (profile.id, placement)
            assert made.memory_mib > 0
            assert nvml.instances(gpu.uuid) == (made,)
            unmake(nvml, gpu, made)
    assert nvml.instances(gpu.uuid) == ()


def test_profiles_are_told_with_mig_off_on_hopper(simulated):
    _, nvml = simulated("1xh100-80gb")
    off = nvml.gpus()[0].profiles
    nvml.set_mig_mode(nvml.gpus()[0].uuid, enabled=True)
    nvml.renew()
    assert nvml.gpus()[0].profiles == off != ()


def test_minors_move_with_the_node(simulated):
    node, nvml = simulated("2xl4")
    nvml.gpus()
    node.do("minor", 5, "--gpu", 0)
    assert [gpu.minor for gpu in nvml.gpus()] == [5, 1]
    assert nvml.minor(nvml.gpus()[0].uuid) == 5


# --- partitions -----------------------------------------------------------------------------------


def test_a_taken_place_is_insufficient_resources_and_changes_nothing(simulated):
    _, nvml = simulated("1xh100-80gb", mig=True)
    (gpu,) = nvml.gpus()
    made = make(nvml, gpu, 19, 2)
    for profile_id, start, size in [(19, 2, 1), (14, 2, 2), (0, 0, 8)]:
        with pytest.raises(InsufficientResources, match=gpu.uuid):
            nvml.create_gpu_instance(gpu.uuid, profile_id=profile_id, placement=Placement(start=start, size=size))
    assert nvml.instances(gpu.uuid) == (made,)


def test_a_second_compute_instance_finds_no_room(simulated):
    _, nvml = simulated("1xh100-80gb", mig=True)
    (gpu,) = nvml.gpus()
    made = make(nvml, gpu, 9, 0)
    with pytest.raises(InsufficientResources):
        nvml.create_compute_instance(gpu.uuid, gpu_instance_id=made.gpu_instance_id)
    assert nvml.instances(gpu.uuid) == (made,)


def test_a_gpu_instance_stays_while_it_holds_a_compute_instance(simulated):
    _, nvml = simulated("1xh100-80gb", mig=True)
    (gpu,) = nvml.gpus()
    made = make(nvml, gpu, 19, 0)
    with pytest.raises(InUse):
        nvml.destroy_gpu_instance(gpu.uuid, gpu_instance_id=made.gpu_instance_id)
    assert nvml.instances(gpu.uuid) == (made,)


def test_ids_come_again_uuids_do_not(simulated):
    _, nvml = simulated("1xh100-80gb", mig=True)
    (gpu,) = nvml.gpus()
    first = make(nvml, gpu, 19, 0)
    unmake(nvml, gpu, first)
    second = make(nvml, gpu, 19, 0)
    assert (first.gpu_instance_id, first.compute_instance_id) == (second.gpu_instance_id, second.compute_instance_id)
    assert first.uuid != second.uuid


def test_what_an_administrator_makes_is_seen(simulated):
    node, nvml = simulated("2xh100-80gb", mig=True)
    nvml.gpus()
    node.do("instance", "create", "3g.40gb", "--start", 4, "--gpu", 1)
    node.do("instance", "create", "1g.10gb", "--start", 0, "--bare", "--gpu", 1)
    left, right = nvml.gpus()
    assert left.instances == ()
    assert [(one.profile_id, one.placement.start, one.uuid is None) for one in right.instances] == [
        (19, 0, True),
        (9, 4, False),
    ]


def test_with_mig_off_there_is_nothing_to_make_or_destroy(simulated):
    _, nvml = simulated("1xh100-80gb")
    (gpu,) = nvml.gpus()
    assert nvml.instances(gpu.uuid) == ()
    with pytest.raises(NotSupported):
        nvml.create_gpu_instance(gpu.uuid, profile_id=19, placement=Placement(start=0, size=1))
    with pytest.raises(NotSupported):
        nvml.destroy_gpu_instance(gpu.uuid, gpu_instance_id=7)


def test_a_process_keeps_its_partition(simulated):
    node, nvml = simulated("1xh100-80gb", mig=True)
    (gpu,) = nvml.gpus()
    made = make(nvml, gpu, 19, 0)
    node.do("process", "add", 4711, "--uuid", made.uuid)
    assert nvml.processes(gpu.uuid) == (
        Process(pid=4711, gpu_instance_id=made.gpu_instance_id, compute_instance_id=made.compute_instance_id),
    )
    with pytest.raises(InUse):
        unmake(nvml, gpu, made)
    node.do("process", "remove", 4711)
    unmake(nvml, gpu, made)
    assert nvml.processes(gpu.uuid) == ()


def test_threads_work_on_their_gpus_at_once_while_the_node_is_read(simulated):
    _, nvml = simulated("4xh100-80gb", mig=True)
    gpus = nvml.gpus()
    failed = []

    def churn(gpu):
        try:
            for start in range(7):
                unmake(nvml, gpu, make(nvml, gpu, 19, start))
        except Exception as error:  # noqa: BLE001 -- Reported below, in the test's own thread.
            failed.append(error)

    threads = [threading.Thread(target=churn, args=(gpu,)) for gpu in gpus]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        inventory = nvml.inventory()
        assert (len(inventory.gpus), inventory.unreadable) == (4, ())
        nvml.renew()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert [gpu.instances for gpu in nvml.gpus()] == [()] * 4


def test_instances_outlive_a_killed_process(simulated):
    node, nvml = simulated("1xh100-80gb", mig=True)
    (gpu,) = nvml.gpus()
    program = f"""
import os, pathlib, signal
from dradriver.gpu.model import Placement
from dradriver.nvml import open_nvml
nvml = open_nvml(simulation=pathlib.Path({str(node.folder)!r}))
nvml.create_gpu_instance({gpu.uuid!r}, profile_id=9, placement=Placement(start=4, size=4))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (left,) = nvml.instances(gpu.uuid)
    assert (left.placement, left.uuid) == (Placement(start=4, size=4), None)
    assert nvml.create_compute_instance(gpu.uuid, gpu_instance_id=left.gpu_instance_id).uuid.startswith("MIG-")


# --- MIG mode ---------------------------------------------------------------------------------------


def test_hopper_switches_at_once_and_back(simulated):
    _, nvml = simulated("1xh100-80gb")
    (gpu,) = nvml.gpus()
    assert not gpu.mig_needs_reset
    nvml.set_mig_mode(gpu.uuid, enabled=True)
    assert nvml.mig_mode(gpu.uuid) == ON
    nvml.set_mig_mode(gpu.uuid, enabled=False)
    assert nvml.mig_mode(gpu.uuid) == OFF


def test_hopper_stays_as_it_is_while_instances_exist(simulated):
    _, nvml = simulated("1xh100-80gb", mig=True)
    (gpu,) = nvml.gpus()
    made = make(nvml, gpu, 19, 0)
    with pytest.raises(InUse):
        nvml.set_mig_mode(gpu.uuid, enabled=False)
    assert nvml.mig_mode(gpu.uuid) == ON
    assert nvml.instances(gpu.uuid) == (made,)


def test_ampere_needs_a_reset_and_is_left_as_it_was(simulated):
    node, nvml = simulated("1xa100-80gb")
    (gpu,) = nvml.gpus()
    assert gpu.mig_needs_reset
    with pytest.raises(ResetRequired, match="reset"):
        nvml.set_mig_mode(gpu.uuid, enabled=True)
    assert nvml.mig_mode(gpu.uuid) == OFF
    node.do("reset")
    assert nvml.gpus()[0].mig_mode == OFF


def test_a_gpu_without_mig_says_so(simulated):
    _, nvml = simulated("1xl4")
    (gpu,) = nvml.gpus()
    assert (gpu.mig_mode, gpu.profiles, nvml.instances(gpu.uuid)) == (None, (), ())
    with pytest.raises(NotSupported):
        nvml.set_mig_mode(gpu.uuid, enabled=True)


# --- trouble ------------------------------------------------------------------------------------------


def test_a_lost_gpu_is_told_and_comes_back(simulated, clock):
    node, nvml = simulated("2xh100-80gb", mig=True)
    left, right = nvml.gpus()
    node.do("lose")
    assert [gpu.uuid for gpu in nvml.gpus()] == [right.uuid]
    (unreadable,) = nvml.unreadable()
    assert (unreadable.uuid, unreadable.pci_bus_id) == (left.uuid, left.pci_bus_id)
    assert isinstance(unreadable.error, GpuLost)
    with pytest.raises(GpuLost, match=left.uuid):
        nvml.instances(left.uuid)
    clock.now += LOST_PAUSE
    nvml.gpus()
    nvml.gpus()
    assert len(nvml.unreadable()) == 1
    node.do("recover")
    assert nvml.gpus() == (left, right)
    assert nvml.unreadable() == ()


def test_a_driver_reload_is_survived(simulated):
    node, nvml = simulated("2xh100-80gb", mig=True)
    gpu = nvml.gpus()[0]
    make(nvml, gpu, 19, 0)
    node.do("driver-reload")
    assert nvml.mig_mode(gpu.uuid) == OFF
    assert [one.mig_mode for one in nvml.gpus()] == [OFF, OFF]
    assert nvml.unreadable() == ()


def test_an_upgraded_driver_needs_a_new_process(simulated):
    node, nvml = simulated("1xl4")
    nvml.gpus()
    node.do("driver-reload", "--version", "590.44.01")
    for _ in range(2):
        with pytest.raises(DriverMismatch, match="restart this process"):
            nvml.gpus()
    assert open_nvml(simulation=node.folder).driver_version() == "590.44.01"


def test_an_unknown_gpu_is_not_found(simulated):
    _, nvml = simulated("1xl4")
    with pytest.raises(NotFound, match="GPU-of-another-node"):
        nvml.minor("GPU-of-another-node")


def test_a_crash_between_the_call_and_its_answer_leaves_what_can_be_found(simulated):
    node, nvml = simulated("1xh100-80gb", mig=True)
    (gpu,) = nvml.gpus()
    place = Placement(start=2, size=1)
    node.do("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--error", "TIMEOUT", "--times", 1, "--late")
    with pytest.raises(TimedOut):
        nvml.create_gpu_instance(gpu.uuid, profile_id=19, placement=place)
    with pytest.raises(InsufficientResources):
        nvml.create_gpu_instance(gpu.uuid, profile_id=19, placement=place)
    assert [(one.placement, one.uuid) for one in nvml.instances(gpu.uuid)] == [(place, None)]


def test_a_fact_that_one_gpu_does_not_tell_is_missing_on_it_alone(simulated):
    node, nvml = simulated("2xh100-80gb")
    node.do("fail", "nvmlDeviceGetAddressingMode", "--error", "NOT_SUPPORTED", "--gpu", 1)
    assert [gpu.addressing_mode for gpu in nvml.gpus()] == ["HMM", None]


def test_a_missing_node_is_told(tmp_path):
    with pytest.raises(SimulationUnusable, match=r"^no simulated node in .*nothing: make one with"):
        open_nvml(simulation=tmp_path / "nothing")


def test_a_damaged_node_is_told(simulated):
    node, _ = simulated("1xl4")
    for file in node.folder.iterdir():
        if file.is_file():
            file.write_text("{")
    with pytest.raises(SimulationUnusable, match=str(node.folder)):
        open_nvml(simulation=node.folder)


# --- hot plug -----------------------------------------------------------------------------------------


def uuids(nvml):
    return [gpu.uuid for gpu in nvml.gpus()]


def test_gpus_that_are_taken_away_are_gone_and_the_others_stay(simulated):
    node, nvml = simulated("4xh100-80gb", mig=True)
    before = nvml.gpus()
    made = make(nvml, before[2], 19, 0)
    node.do("unplug", "--gpu", 1)
    with pytest.raises(GpuLost, match=before[1].uuid):
        nvml.instances(before[1].uuid)
    assert uuids(nvml) == [before[0].uuid, before[2].uuid, before[3].uuid]
    assert nvml.unreadable() == ()
    assert [gpu.minor for gpu in nvml.gpus()] == [0, 2, 3]
    assert nvml.instances(before[2].uuid) == (made,)
    with pytest.raises(NotFound, match=before[1].uuid):
        nvml.instances(before[1].uuid)


def test_a_gpu_that_is_plugged_in_is_read_at_the_next_look(simulated):
    node, nvml = simulated("2xh100-80gb", mig=True)
    before = uuids(nvml)
    node.do("unplug", "--gpu", 1)
    assert uuids(nvml) == before[:1]
    node.do("plug", "--gpu", 1)
    assert uuids(nvml) == before
    node.do("unplug", "--gpu", 0, 1)
    assert uuids(nvml) == []
    node.do("plug", "--gpu", 0, 1)
    generation = nvml._session._generation
    assert [uuids(nvml) for _ in range(3)] == [before] * 3
    assert nvml._session._generation == generation + 1


def test_a_gpu_that_was_not_there_at_the_start_is_read(simulated, tmp_path):
    node, first = simulated("2xh100-80gb")
    before = uuids(first)
    first.close()
    node.do("unplug", "--gpu", 0)
    nvml = open_nvml(simulation=node.folder)
    assert uuids(nvml) == before[1:]
    node.do("plug", "--gpu", 0)
    assert uuids(nvml) == before
    nvml.close()


def test_a_gpu_that_went_and_came_back_between_two_looks_is_read_again_each_time(simulated):
    node, nvml = simulated("2xh100-80gb")
    before = uuids(nvml)
    for _ in range(3):
        node.do("unplug", "--gpu", 1)
        node.do("plug", "--gpu", 1)
        assert uuids(nvml) == before[:1]
        assert uuids(nvml) == before


def test_another_gpu_in_the_slot_between_two_looks_is_told_apart(simulated):
    node, nvml = simulated("2xh100-80gb")
    before = uuids(nvml)
    node.do("unplug", "--gpu", 0)
    node.do("plug", "--gpu", 0, "--replace")
    new = node.show()["gpus"][0]["uuid"]
    assert uuids(nvml) == before[1:]
    assert uuids(nvml) == [new, before[1]]


def test_events_go_on_where_gpus_come_and_go(simulated):
    node, nvml = simulated("3xh100-80gb")
    first, second, third = uuids(nvml)
    with contextlib.closing(nvml.watch_events(EventType.XID)) as events:
        node.do("unplug", "--gpu", 1)
        assert uuids(nvml) == [first, third]
        assert events.wait(0) is None
        assert set(events.watched) == {first, third}
        node.do("plug", "--gpu", 1)
        assert uuids(nvml) == [first, second, third]
        assert events.wait(0) is None
        assert (set(events.watched), events.gaps) == ({first, second, third}, 3)
        node.do("xid", 31, "--gpu", 1)
        assert events.wait(5).gpu_uuid == second
