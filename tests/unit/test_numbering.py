import json
from dataclasses import replace

import pytest
from doubles.machines import gpus

from dradriver.numbering import GpuMemory

FIRST, SECOND = gpus("2xt4")
NOBODY = frozenset()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gpu-numbers.json"


def numbers(path, found, *, boot_id="boot-1", held=NOBODY):
    return GpuMemory(path, boot_id=boot_id).number(found, held=held)


def test_numbers_survive_a_restart_in_which_minors_moved(path):
    assert numbers(path, [FIRST, SECOND]) == {FIRST.uuid: 0, SECOND.uuid: 1}
    moved = [replace(FIRST, minor=1), replace(SECOND, minor=0)]
    assert numbers(path, moved) == {FIRST.uuid: 0, SECOND.uuid: 1}


def test_a_missing_gpu_keeps_its_number_within_a_boot(path):
    numbers(path, [FIRST, SECOND])
    assert numbers(path, [replace(SECOND, minor=0)]) == {FIRST.uuid: 0, SECOND.uuid: 1}


def test_a_replaced_gpu_gets_the_number_of_its_place_after_a_reboot(path):
    numbers(path, [FIRST, SECOND])
    new = replace(FIRST, uuid="GPU-new")
    assert numbers(path, [new, SECOND], boot_id="boot-2") == {"GPU-new": 0, SECOND.uuid: 1}


def test_a_gpu_that_a_claim_holds_keeps_its_number_over_a_reboot(path):
    numbers(path, [FIRST, SECOND])
    new = replace(FIRST, uuid="GPU-new")
    found = numbers(path, [new, SECOND], boot_id="boot-2", held=frozenset({FIRST.uuid}))
    assert found == {FIRST.uuid: 0, SECOND.uuid: 1, "GPU-new": 2}


@pytest.mark.parametrize(
    "content",
    [
        '{"numbers": {"GPU-a": Infinity}, "bootID": "boot-1"}',
        '{"numbers": {"GPU-a": -1}, "bootID": "boot-1"}',
        '{"numbers": {"GPU-a": 1000000}, "bootID": "boot-1"}',
        '{"numbers": {"GPU-a": 1, "GPU-b": 1}, "bootID": "boot-1"}',
        "[" * 100_000,
    ],
)
def test_numbers_that_make_no_names_are_lost(path, content):
    path.write_text(content)
    assert numbers(path, [FIRST]) == {FIRST.uuid: 0}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"numbers": {"GPU-a": "x"}, "bootID": "b"}', '{"numbers": 1}'])
def test_a_damaged_file_costs_the_memory_only(path, content):
    path.write_text(content)
    assert numbers(path, [FIRST]) == {FIRST.uuid: 0}
    assert json.loads(path.read_text())["numbers"] == {FIRST.uuid: 0}


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path):
    assert numbers(tmp_path / "missing/numbers.json", [FIRST]) == {FIRST.uuid: 0}


def test_nothing_is_written_when_nothing_changed(path):
    numbers(path, [FIRST])
    path.chmod(0o400)
    before = path.stat().st_mtime_ns
    numbers(path, [FIRST])
    assert path.stat().st_mtime_ns == before


# --- what the GPUs were ---------------------------------------------------------------------------

H100 = gpus("1xh100-80gb", mig="on")[0]


def test_what_a_gpu_was_survives_a_restart(path):
    numbers(path, [H100, FIRST])
    kept = GpuMemory(path, boot_id="boot-1").facts
    assert kept == {H100.uuid: replace(H100, mig_mode=None), FIRST.uuid: FIRST}
    assert kept[H100.uuid].profiles == H100.profiles


def test_a_gpu_that_has_no_number_any_more_is_forgotten(path):
    numbers(path, [H100, FIRST])
    numbers(path, [FIRST], boot_id="boot-2")
    assert set(GpuMemory(path, boot_id="boot-2").facts) == {FIRST.uuid}


def test_a_file_of_version_1_has_numbers_only(path):
    path.write_text(json.dumps({"version": 1, "bootID": "boot-1", "numbers": {SECOND.uuid: 0}}))
    memory = GpuMemory(path, boot_id="boot-1")
    assert memory.facts == {}
    assert memory.number([FIRST, SECOND], held=NOBODY) == {SECOND.uuid: 0, FIRST.uuid: 1}


@pytest.mark.parametrize("entry", [None, {}, {"uuid": "GPU-a"}, {"profiles": 1}, {"profiles": [{}]}])
def test_facts_that_cannot_be_read_cost_no_number(path, entry):
    document = {"bootID": "boot-1", "numbers": {SECOND.uuid: 0}, "gpus": {SECOND.uuid: entry}}
    path.write_text(json.dumps(document))
    memory = GpuMemory(path, boot_id="boot-1")
    assert memory.facts == {}
    assert memory.number([SECOND], held=NOBODY) == {SECOND.uuid: 0}


def test_instances_that_come_and_go_are_not_written(path):
    memory = GpuMemory(path, boot_id="boot-1")
    memory.number([H100], held=NOBODY)
    before = path.stat().st_mtime_ns
    memory.number([replace(H100, mig_mode=None)], held=NOBODY)
    assert path.stat().st_mtime_ns == before


def test_who_only_looks_writes_nothing(path):
    numbers(path, [FIRST])
    before = path.read_bytes()
    looking = GpuMemory(path, boot_id="boot-1", keep=False)
    assert looking.number([replace(SECOND, minor=0)], held=NOBODY) == {FIRST.uuid: 0, SECOND.uuid: 1}
    assert GpuMemory(path.with_name("none"), boot_id="boot-1", keep=False).number([FIRST], held=NOBODY) == {
        FIRST.uuid: 0
    }
    assert path.read_bytes() == before
    assert not path.with_name("none").exists()
