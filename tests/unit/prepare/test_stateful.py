"""Random operations on simulated nodes, with failures and kills at every step; see doubles/chaos.py for the rules.

The default run is short and always the same. The long one, which takes a minute or two for 20,000 operations:

    DRADRIVER_CHAOS_OPERATIONS=20000 pytest tests/unit/prepare/test_stateful.py -s

`DRADRIVER_CHAOS_SEED` begins with another program. A failure tells its seed and the shortest program that still fails;
`REPLAY` below takes both kinds. What is done by threads at once may not fail again at the first attempt.
"""

import itertools
import os
import tempfile
from pathlib import Path

import pytest
from doubles.chaos import SCENARIOS, Killed, Scenario, Shot, World, outcome, program, shrunk

LENGTH = 60
OPERATIONS = int(os.environ.get("DRADRIVER_CHAOS_OPERATIONS", "2400"))
FIRST_SEED = int(os.environ.get("DRADRIVER_CHAOS_SEED", "0"))

REPLAY: list[tuple[Scenario, list[tuple[str, int, int, int]]]] = [
    # Ended while the first record was written: its temporary file stayed for ever.
    (SCENARIOS[1], [("kill_boundary", 672, 279, 663), ("prepare_new", 921, 747, 522)]),
    # A failed write left its temporary file.
    (SCENARIOS[7], [("write_fault", 608, 508, 593), ("prepare_new", 680, 66, 62)]),
    # Looking for a spec that cannot be looked for was an internal error.
    (SCENARIOS[4], [("file_fault", 950, 322, 578), ("burst", 119, 583, 412)]),
    # A record that could be neither written nor removed was believed to be on disk.
    (
        SCENARIOS[3],
        [("file_fault", 9, 83, 276), ("prepare_new", 750, 910, 79), ("prepare_new", 647, 209, 11),
         ("concurrent", 191, 34, 777)],
    ),
    # A claim that was an admin's and is so no more held nothing.
    (
        SCENARIOS[5],
        [("prepare_new", 808, 79, 815), ("unprepare", 47, 138, 524), ("prepare_new", 957, 334, 339),
         ("reallocate", 431, 570, 109)],
    ),
]  # fmt: skip
"""Programs that failed once. A new one goes here while its fault is looked for."""


@pytest.fixture
def folder():
    """In memory where possible: every record is synced to disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


def describe(scenario, operations, folder, *, seed):
    """Shorten a program that fails, and tell all that is needed to repeat it."""
    numbers = itertools.count()

    def failure(some):
        return outcome(scenario, some, folder / f"shrink-{next(numbers)}")

    shortest = shrunk(operations, lambda some: failure(some)[1] is not None)
    world, error = failure(shortest)
    return f"seed {seed}: ({scenario}, {shortest}) fired {world.chaos.fired}: {error!r}"


@pytest.mark.timeout(3600)
def test_nothing_is_lost_leaked_or_held_twice_whatever_happens(folder):
    done = calls = kills = 0
    for seed in itertools.count(FIRST_SEED):
        scenario, operations = program(seed, LENGTH)
        world, error = outcome(scenario, operations, folder / str(seed))
        assert error is None, describe(scenario, operations, folder, seed=seed)
        done, calls, kills = done + world.done, calls + world.calls, kills + world.kills
        if done >= OPERATIONS:
            break
    print(f"{done} operations, {calls} calls, {kills} kills, seeds {FIRST_SEED} to {seed}")
    assert calls > done / 2
    assert kills > done / 200


@pytest.mark.parametrize(("scenario", "operations"), REPLAY)
def test_replay(scenario, operations, folder):
    assert outcome(scenario, operations, folder / "replay")[1] is None


# --- the rules can fail ------------------------------------------------------------------------


def broken(folder, operations, breaking):
    """Run a program on a node where a rule was broken by hand."""
    world = World(SCENARIOS[0], folder)
    try:
        world.run(operations)
        breaking(world)
        with pytest.raises(AssertionError) as failure:
            world.run([("calm", 0, 0, 0)])
    finally:
        world.node.close()
    return str(failure.value)


PREPARED = [("prepare_new", 1, 1, 9)]


def test_a_leaked_partition_is_noticed(folder):
    def leak(world):
        world.node.simulate("mig", "--gpu", "0", "on")
        world.node.simulate("instance", "create", "1g.10gb", "--gpu", "0", "--start", "6")

    assert "of no claim" in broken(folder, PREPARED, leak)


def test_a_lost_partition_is_noticed(folder):
    def lose(world):
        world.node.simulate("instance", "destroy", "--gpu", "0", "--all")

    assert "is gone" in broken(folder, PREPARED, lose)


def test_a_lost_spec_is_noticed(folder):
    def lose(world):
        world.node.containers.specs.remove(world.tracked[0].ref.uid)

    assert "the spec of" in broken(folder, PREPARED, lose)


def test_a_device_held_twice_is_noticed(folder):
    def double(world):
        (path,) = (world.node.folder / "claims").glob("*.json")
        uid = world.tracked[0].ref.uid
        path.with_name("other.json").write_text(path.read_text().replace(uid, "other"))

    assert "held twice" in broken(folder, PREPARED, double)


def test_a_spec_of_nobody_is_noticed(folder, monkeypatch):
    monkeypatch.setattr("dradriver.prepare.reconciler.Reconciler._remove_orphan", lambda *_: None)

    def orphan(world):
        world.node.containers.specs.path("nobody").write_text("{}")

    assert "CDI specs" in broken(folder, PREPARED, orphan)


@pytest.mark.parametrize("kind", ["boundary", "nvml", "file", "write"])
def test_a_process_is_ended_where_it_is_told(folder, kind):
    world = World(SCENARIOS[0], folder)
    world.chaos.arm(Shot(kind=kind, after=1))
    try:
        world.run(PREPARED)
    finally:
        world.node.close()
    assert world.kills == 1
    assert not issubclass(Killed, Exception)


def test_what_a_failure_does_not_need_is_left_out():
    assert shrunk(list(range(100)), lambda some: {17, 63} <= set(some)) == [17, 63]
