"""The state on disk: readers without locks, several writers, processes killed at any instant."""

import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver import simulation
from dradriver.simulation import administration, description, hardware, hostroot, store
from dradriver.simulation.errors import FolderForeign, StateDamaged, StateExists, StateMissing
from dradriver.simulation.models import MODELS
from dradriver.simulation.state import Fault, Latency, Process, RemappedRows, Rename, decode, encode
from dradriver.simulation.store import Store

WORKER = Path(__file__).with_name("worker.py")


def build(machine="2xh100-80gb", **options):
    return description.build(description.read_machine(machine), mig=True, **options)


@pytest.fixture
def fresh(folder):
    Store(folder).create(build())
    return Store(folder)


def create_instance(state, index=0, start=0, profile=19):
    after, made = hardware.create_gpu_instance(state, index, profile_id=profile, start=start)
    after, _ = hardware.create_compute_instance(after, index, serial=made.serial, profile_id=0)
    return after, made


# --- reading and writing --------------------------------------------------------------------------


def test_a_reader_sees_what_another_wrote(fresh, folder):
    reader = Store(folder)
    assert reader.read().gpus[0].instances == ()
    made = fresh.update(create_instance)
    assert reader.read().gpus[0].instances[0].serial == made.serial
    assert reader.read() == fresh.read()


def test_an_unchanged_state_is_the_same_object(fresh):
    assert fresh.read() is fresh.read()


def test_an_unchanged_gpu_is_the_same_object_also_for_readers(fresh, folder):
    reader = Store(folder)
    before = reader.read()
    fresh.update(create_instance)
    assert reader.read().gpus[1] is before.gpus[1]


def test_a_change_that_fails_or_changes_nothing_writes_nothing(fresh):
    before = (fresh.folder / "state").read_bytes()

    def explode(_state):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fresh.update(explode)
    assert fresh.update(lambda state: (state, "unchanged")) == "unchanged"
    assert (fresh.folder / "state").read_bytes() == before


def test_generations_count_changes(fresh):
    numbers = [fresh.read().generation]
    for _ in range(3):
        fresh.update(lambda state: (administration.raise_xid(state, 0, number=13), None))
        numbers.append(fresh.read().generation)
    assert numbers == [1, 2, 3, 4]


def test_a_node_is_not_replaced_by_accident(fresh, folder):
    before = fresh.read()
    with pytest.raises(StateExists, match="--force"):
        Store(folder).create(build("1xl4"))
    assert fresh.read() == before


def test_a_replaced_node_ends_sessions_but_not_processes(fresh, folder):
    loads = fresh.read().driver_loads
    Store(folder).create(build("1xl4"), force=True)
    after = fresh.read()
    assert [gpu.model for gpu in after.gpus] == ["l4"]
    assert after.driver_loads == loads + 1
    assert not (folder / "root/dev/nvidia1").exists()


def test_a_folder_that_was_made_anew_is_noticed(fresh, folder):
    fresh.read()
    (folder / "state").unlink()
    with pytest.raises(StateMissing):
        fresh.read()
    Store(folder).create(build("1xt4"))
    assert [gpu.model for gpu in fresh.read().gpus] == ["t4"]


def test_a_store_that_is_forgotten_keeps_no_file_open(fresh, folder):
    def opened():
        return [link for link in Path("/proc/self/fd").iterdir() if str(link.resolve()) == str(folder / "state")]

    fresh.read()
    before = len(opened())
    other = Store(folder)
    other.read()
    assert len(opened()) == before + 1
    del other
    assert len(opened()) == before


def test_no_node_at_all(folder):
    with pytest.raises(StateMissing, match="create 1xh100-80gb"):
        Store(folder).read()
    with pytest.raises(StateMissing, match="create 1xh100-80gb"):
        Store(folder).update(lambda state: (state, None))


def test_a_killed_creation_can_be_repeated(folder):
    folder.mkdir()
    (folder / "state").touch()
    with pytest.raises(StateMissing):
        Store(folder).read()
    Store(folder).create(build())
    assert len(Store(folder).read().gpus) == 2


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"format": 1}\n{}', b"\xff\xfe", b'{"format": 0}'])
def test_what_is_no_state_is_said_so(data):
    with pytest.raises(StateDamaged, match="create --force"):
        decode(data)


def test_a_state_too_large_is_refused(fresh):
    fault = Fault(call="x" * store.SLOT_BYTES, code=1)
    with pytest.raises(StateDamaged, match="too large"):
        fresh.update(lambda state: (administration.add_fault(state, fault), None))
    assert fresh.read().faults == ()


# --- half-written slots ---------------------------------------------------------------------------


def slot_of(folder, newest):
    """Position of the content of the newer or older slot."""
    headers = store._headers((folder / "state").read_bytes()[: 2 * store._HEADER_BYTES])
    return (max if newest else min)(headers)


def spoil(folder, position, data):
    with (folder / "state").open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_a_slot_that_a_killed_writer_left_is_passed_over(fresh, folder):
    """It wrote part of the older slot and never came to the header."""
    fresh.update(create_instance)
    expected = fresh.read()
    spoil(folder, slot_of(folder, newest=False).offset + 10, b"killed here")
    assert Store(folder).read() == expected
    fresh.update(lambda state: (administration.raise_xid(state, 0, number=13), None))
    assert Store(folder).read() == fresh.read()
    assert fresh.read().generation == expected.generation + 1


@pytest.mark.parametrize("damage", [b"9", b"garbage", b"\x00" * 44, b"99999999999999999999 0000000010 0000000001\n"])
def test_a_header_that_is_wrong_leaves_the_other_slot(fresh, folder, damage):
    before = fresh.read()
    fresh.update(create_instance)
    spoil(folder, slot_of(folder, newest=True).slot * store._HEADER_BYTES, damage)
    assert Store(folder).read() == before


def test_damage_everywhere_is_said_and_mended_by_force(fresh, folder):
    fresh.update(create_instance)
    for newest in (True, False):
        spoil(folder, slot_of(folder, newest=newest).offset, b"XX")
    with pytest.raises(StateDamaged, match="create --force"):
        Store(folder).read()
    Store(folder).create(build("1xt4"))
    assert [gpu.model for gpu in Store(folder).read().gpus] == ["t4"]


# --- JSON -----------------------------------------------------------------------------------------

numbers = st.integers(0, 1000)
processes = st.builds(
    Process,
    pid=numbers,
    gpu_instance=st.none() | numbers,
    compute_instance=st.none() | numbers,
    memory_mib=numbers,
)
renames = st.builds(Rename, id=numbers, name=st.none() | st.text(), memory_mib=st.none() | numbers)
rows = st.builds(RemappedRows, correctable=numbers, uncorrectable=numbers, pending=st.booleans(), failure=st.booleans())
faults = st.builds(
    Fault, call=st.text(), code=numbers, after=numbers, times=st.none() | numbers, gpu=st.none() | numbers
)


@settings(deadline=None, max_examples=50)
@given(
    model=st.sampled_from(sorted(MODELS)),
    processes=st.lists(processes).map(tuple),
    renames=st.lists(renames).map(tuple),
    rows=rows,
    faults=st.lists(faults).map(tuple),
    latencies=st.lists(st.builds(Latency, st.text(), st.floats(0, 1e6), st.none() | numbers)).map(tuple),
    xids=st.lists(numbers.filter(bool), max_size=5),
)
def test_json_keeps_everything(model, processes, renames, rows, faults, latencies, xids):
    state = build(f"2x{model}")
    if state.gpus[0].kind.mig_capable:
        state, _ = create_instance(state, profile=0)
    gpu = replace(state.gpus[1], processes=processes, renames=renames, rows=rows)
    state = replace(state.with_gpu(1, gpu), faults=faults, latencies=latencies)
    for xid in xids:
        state = administration.raise_xid(state, 0, number=xid)
    assert decode(encode(state)) == state


def test_a_state_from_before_latencies_of_one_gpu_is_read():
    state = replace(build(), latencies=(Latency("nvmlDeviceGetName", 5.0),))
    older = encode(state).replace(b'["nvmlDeviceGetName",5.0,null]', b'["nvmlDeviceGetName",5.0]')
    assert older != encode(state)
    assert decode(older) == state


# --- several at once ------------------------------------------------------------------------------


def start_worker(folder, *arguments):
    command = [sys.executable, str(WORKER), str(folder), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_lose_no_change(folder):
    """Each makes and destroys 25 instances on the same GPU: every single step is counted by an event."""
    Store(folder).create(build())
    workers = [start_worker(folder, 0, start, 25) for start in (0, 4)]
    for worker in workers:
        output, _ = worker.communicate(timeout=120)
        assert worker.returncode == 0
        assert output.split() == ["ready"]
    state = Store(folder).read()
    assert state.gpus[0].instances == ()
    assert state.next_event - 1 == 2 * 25 * 4
    assert hostroot_matches(folder)


def test_a_reader_never_meets_a_half_change(folder):
    """A thread reads without pause while another process makes and destroys one instance."""
    Store(folder).create(build())
    worker = start_worker(folder, 0, 0, 60)
    generations, reader = [], Store(folder)
    while worker.poll() is None:
        state = reader.read()
        check(state)
        generations.append(state.generation)
    worker.communicate()
    assert worker.returncode == 0
    assert generations == sorted(generations)
    assert len(set(generations)) > 1


def test_threads_share_a_store(fresh):
    def work(index):
        for _ in range(20):
            made = fresh.update(lambda state: create_instance(state, index))
            fresh.update(
                lambda state, ident=made.id: (administration.destroy_instance(state, index, ident=ident), None)
            )

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert fresh.read().next_event - 1 == 2 * 20 * 4
    assert all(gpu.instances == () for gpu in fresh.read().gpus)


def test_a_process_killed_at_any_instant_leaves_a_whole_node(folder):
    Store(folder).create(build())
    chance = random.Random(7)
    seen = set()
    for _ in range(12):
        worker = start_worker(folder, 0, 0, 10**6)
        assert worker.stdout.readline() == "ready\n"
        threading.Event().wait(chance.uniform(0, 0.02))
        worker.send_signal(signal.SIGKILL)
        worker.communicate(timeout=60)
        state = Store(folder).read()
        check(state)
        seen.add(state.generation)
        simulation.root(folder)
        assert hostroot_matches(folder)
        clear(folder)
    assert len(seen) == 12


# --- folders of others ----------------------------------------------------------------------------


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["root/precious", "state", "notes", "root/a/b/c", "rendering", "locked"])
@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_somebody_else_is_left_as_it_is(folder, name, force):
    path = folder / name
    path.parent.mkdir(parents=True)
    path.write_text("of somebody else")
    with pytest.raises(FolderForeign, match="name an empty folder"):
        Store(folder).create(build(), force=force)
    assert contents(folder) == {Path(name): b"of somebody else"}


def test_a_linked_root_is_refused_and_what_it_leads_to_is_kept(folder, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/precious").write_text("of somebody else")
    folder.mkdir()
    (folder / "root").symlink_to(tmp_path / "home")
    with pytest.raises(FolderForeign):
        Store(folder).create(build())
    assert contents(tmp_path / "home") == {Path("precious"): b"of somebody else"}


def test_a_root_that_became_a_link_is_refused_by_every_change(fresh, folder, tmp_path):
    (tmp_path / "home/dev").mkdir(parents=True)
    (tmp_path / "home/dev/nvidia0").write_text("of somebody else")
    (folder / "root").rename(folder / "old")
    (folder / "root").symlink_to(tmp_path / "home")
    for change in (lambda: fresh.create(build("1xl4"), force=True), lambda: fresh.update(create_instance)):
        with pytest.raises(FolderForeign, match="symbolic link"):
            change()
    assert contents(tmp_path / "home") == {Path("dev/nvidia0"): b"of somebody else"}


def test_a_root_without_our_mark_is_not_cleared(fresh, folder):
    (folder / "rendered").unlink()
    (folder / "root/precious").write_text("of somebody else")
    for change in (fresh.render, lambda: fresh.create(build("1xl4"), force=True)):
        with pytest.raises(FolderForeign, match="was not made by this simulation"):
            change()
    assert (folder / "root/precious").read_text() == "of somebody else"


def test_what_a_killed_creation_leaves_is_no_obstacle(folder):
    folder.mkdir()
    (folder / "lock").touch()
    (folder / "state").touch()
    Store(folder).create(build("1xl4"))
    assert hostroot_matches(folder)


def test_a_creation_killed_while_it_renders_can_be_completed(folder, monkeypatch):
    def die(root, *_arguments, **_options):
        root.mkdir()
        (root / "half").write_text("")
        raise KeyboardInterrupt

    monkeypatch.setattr(hostroot, "render", die)
    with pytest.raises(KeyboardInterrupt):
        Store(folder).create(build("1xl4"))
    monkeypatch.undo()
    Store(folder).render()
    assert hostroot_matches(folder)


def clear(folder):
    """What an administrator does afterwards; a compute instance may be missing, nothing else."""
    for instance in Store(folder).read().gpus[0].instances:
        Store(folder).update(
            lambda state, ident=instance.id: (administration.destroy_instance(state, 0, ident=ident), 0)
        )
    assert Store(folder).read().gpus[0].instances == ()


def check(state):
    for gpu in state.gpus:
        taken = [cell for one in gpu.instances for cell in range(one.start, one.start + one.size)]
        assert len(taken) == len(set(taken))
        serials = [one.serial for one in gpu.instances]
        serials += [compute.serial for one in gpu.instances for compute in one.compute]
        assert all(serial < state.next_serial for serial in serials)
        assert len(serials) == len(set(serials))


def hostroot_matches(folder):
    root = folder / "root"
    wanted = hostroot.tree(Store(folder).read())
    present = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or not path.is_dir()}
    folders = {path for path, entry in wanted.items() if isinstance(entry, hostroot.Folder)}
    empty = {path for path in root.rglob("*") if path.is_dir() and not path.is_symlink() and not any(path.iterdir())}
    assert present == set(wanted) - folders
    assert {str(path.relative_to(root)) for path in empty} <= folders
    return all(path_shows(root / path, entry) for path, entry in wanted.items())


def path_shows(path, entry):
    match entry:
        case hostroot.File(text, _):
            return path.read_text() == text
        case hostroot.Link(target):
            return str(path.readlink()) == target
        case _:
            return path.exists()
