import subprocess
import sys

import pytest

from dradriver.turns import Turn

PROGRAM = """
import sys
from pathlib import Path
from dradriver.turns import Turn
turn = Turn(Path(sys.argv[1]), name=sys.argv[2])
turn.take()
print(turn.is_ours(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "publishing"


def test_alone_it_is_always_ours(folder):
    assert Turn(None, name="a").is_ours()
    turn = Turn(folder, name="a")
    assert turn.is_ours(), "nobody has taken part"
    turn.take()
    turn.take()
    assert turn.is_ours()
    turn.end()
    assert list(folder.iterdir()) == []


def test_the_newest_that_takes_part_has_the_turn(folder):
    old, new = Turn(folder, name="b", born=10), Turn(folder, name="a", born=11)
    old.take()
    assert (old.is_ours(), new.is_ours()) == (True, True)
    new.take()
    assert (old.is_ours(), new.is_ours()) == (False, True)
    new.end()
    assert old.is_ours()
    old.end()


def test_what_all_know_is_kept_by_one_of_them(folder):
    assert Turn(None, name="a").keeps()
    old, new = Turn(folder, name="b", born=10), Turn(folder, name="a", born=11)
    assert old.keeps(), "nobody else takes part"
    old.take()
    assert (old.keeps(), new.keeps()) == (True, False)
    new.take()
    assert (old.keeps(), new.keeps()) == (False, True)
    new.end()
    assert (old.keeps(), new.keeps()) == (True, False)
    old.end()
    assert new.keeps()


def test_two_that_were_born_at_once_agree(folder):
    both = [Turn(folder, name=name, born=10) for name in "ab"]
    for turn in both:
        turn.take()
    assert [turn.is_ours() for turn in both] == [False, True]
    for turn in both:
        turn.end()


def test_births_are_compared_by_time_not_by_digits(folder):
    old, new = Turn(folder, name="a", born=9), Turn(folder, name="a2", born=10)
    for turn in (old, new):
        turn.take()
    assert not old.is_ours()
    for turn in (old, new):
        turn.end()


@pytest.mark.parametrize("kill", [False, True])
def test_a_process_that_ends_leaves_its_turn_to_the_others(folder, kill):
    old = Turn(folder, name="old")
    old.take()
    command = [sys.executable, "-c", PROGRAM, str(folder), "new"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "True\n"
        assert not old.is_ours()
        if kill:
            process.kill()
        else:
            process.stdin.write("\n")
            process.stdin.flush()
        process.wait()
    assert old.is_ours()
    assert len(list(folder.iterdir())) == 1, "nothing of the other is left"
    old.end()


def test_what_an_earlier_boot_has_left_is_nobody(folder):
    folder.mkdir()
    (folder / f"{10**18:020d}-gone").touch()
    turn = Turn(folder, name="a", born=1)
    assert turn.is_ours()
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_used_leaves_everybody_the_turn(tmp_path):
    file = tmp_path / "file"
    file.touch()
    turn = Turn(file / "publishing", name="a")
    turn.take()
    assert turn.is_ours()
    turn.end()


def test_an_unfinished_file_is_nobody(folder):
    folder.mkdir()
    (folder / f".{10**18:020d}-begun").touch()
    assert Turn(folder, name="a", born=1).is_ours()
    assert len(list(folder.iterdir())) == 1
