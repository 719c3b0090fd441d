"""How administrators name GPUs, and the folder by which a command asks the plugin."""

import os
import stat

import pytest
from structlog.testing import capture_logs

from dradriver.health.requests import MOST_BYTES, Requests, chosen

A, B, C = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000", "GPU-c"
NUMBERS = {A: 0, B: 3, C: 13}


@pytest.mark.parametrize(
    ("words", "uuids"),
    [
        (["all"], [A, B, C]),
        (["gpu-3"], [B]),
        (["gpu-13", "gpu-0"], [C, A]),
        (["gpu-3-mig-1g10gb-19-0"], [B]),
        (["gpu-3", "gpu-3-mig-1g10gb-19-0", B], [B]),
        ([A], [A]),
        (["gpu-0,gpu-3"], [A, B]),
        ([" gpu-0 ,\tgpu-3,\n"], [A, B]),
        (["gpu-3", "all"], [B, A, C]),
        ([], []),
        (["", ","], []),
    ],
)
def test_what_names_gpus(words, uuids):
    assert chosen(words, NUMBERS) == (tuple(uuids), ())


@pytest.mark.parametrize(
    "word", ["gpu-1", "gpu-03", "gpu-", "gpu-3x", "gpu-3-", "GPU-3", "3", "everything", A.lower(), A[:12], "ALL"]
)
def test_what_names_none(word):
    assert chosen([word, "gpu-0"], NUMBERS) == ((A,), (word,))


def test_each_unknown_word_is_told_once():
    assert chosen(["x,gpu-9", "x"], NUMBERS) == ((), ("x", "gpu-9"))


def test_all_of_none_is_no_mistake():
    assert chosen(["all"], {}) == ((), ())


# --- the folder -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "clear-health"


@pytest.fixture
def requests(folder):
    return Requests(folder)


def test_no_folder_and_an_empty_one_are_no_requests(requests, folder):
    assert requests.take() == []
    assert not folder.exists(), "only who asks makes it"
    folder.mkdir()
    assert requests.take() == []


def test_what_is_asked_is_taken_once(requests, folder):
    path = requests.ask(["gpu-0", A])
    assert path.parent == folder
    assert Requests(folder).take() == ["gpu-0", A]
    assert not path.exists()
    assert requests.take() == []
    assert list(folder.iterdir()) == []


def test_only_the_administrator_can_ask(requests, folder):
    path = requests.ask(["all"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_several_requests_are_taken_together(requests):
    assert len({requests.ask([f"gpu-{number}"]) for number in range(20)}) == 20
    assert sorted(requests.take()) == sorted(f"gpu-{number}" for number in range(20))


def test_a_request_that_was_withdrawn_is_none(requests):
    requests.ask(["gpu-0"]).unlink()
    assert requests.take() == []


def test_nobody_can_ask_where_there_is_no_plugin(tmp_path):
    with pytest.raises(FileNotFoundError):
        Requests(tmp_path / "nobody" / "clear-health").ask(["all"])


def test_what_is_being_written_is_left_alone(requests, folder):
    folder.mkdir()
    unfinished = folder / ".0123.tmp"
    unfinished.write_text("gpu-")
    assert requests.take() == []
    assert unfinished.exists()


def damage(path, kind):
    if kind == "no text":
        path.write_bytes(b"gpu-0\n\xff")
    elif kind == "too long":
        path.write_text("gpu-0\n" * MOST_BYTES)
    elif kind == "link":
        path.symlink_to(path.parent.parent / "elsewhere")
    else:
        os.mkfifo(path)


@pytest.mark.parametrize("kind", ["no text", "too long", "link", "pipe"])
def test_a_damaged_request_is_removed_and_the_others_are_obeyed(requests, folder, tmp_path, kind):
    (tmp_path / "elsewhere").write_text("all\n")
    good = requests.ask(["gpu-3"])
    bad = folder / "0"
    damage(bad, kind)
    with capture_logs() as logs:
        assert requests.take() == ["gpu-3"]
    assert [(one["log_level"], one["file"]) for one in logs] == [("warning", str(bad))]
    assert not good.exists()
    assert not bad.is_symlink()
    assert not bad.exists()
    assert (tmp_path / "elsewhere").read_text() == "all\n"


def test_what_cannot_be_removed_is_told_once_and_not_obeyed(requests, folder):
    (folder / "again").mkdir(parents=True)
    with capture_logs() as logs:
        assert [requests.take() for _ in range(3)] == [[], [], []]
    assert [one["file"] for one in logs] == [str(folder / "again")]
    assert (folder / "again").exists()


def test_a_request_that_stays_is_not_obeyed_again_and_again(requests, monkeypatch):
    path = requests.ask(["all"])

    def refuse(self):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(type(path), "unlink", refuse)
    with capture_logs() as logs:
        assert [requests.take(), requests.take()] == [[], []]
    assert len(logs) == 1
    monkeypatch.undo()
    assert requests.take() == ["all"], "as soon as it goes"


def test_a_folder_that_is_none_is_told_once(requests, folder):
    folder.touch()
    with capture_logs() as logs:
        assert [requests.take(), requests.take()] == [[], []]
    assert [(one["log_level"], one["file"]) for one in logs] == [("warning", str(folder))]
