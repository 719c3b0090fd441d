"""Waiting for changes of a file: by inotify where it is to be had, and no descriptor is left behind."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pynvml
import pytest

from dradriver.simulation import administration, watches
from dradriver.simulation.watches import Watches

XID = 0x8


def inotifies():
    """How many inotify descriptors this process has."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            links.append(path.readlink().name)
        except FileNotFoundError:
            continue
    return links.count("anon_inode:inotify")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "state"
    path.write_text("old")
    return path


@pytest.fixture
def pool(file):
    pool = Watches(file)
    yield pool
    pool.close()


@pytest.fixture
def patient(monkeypatch):
    """Looks without need would hide that a change was missed."""
    monkeypatch.setattr(watches, "TRUST_SECONDS", 3600)


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


# --- one watch ------------------------------------------------------------------------------------


def test_a_change_ends_a_wait(pool, file, patient):
    armed, ended = threading.Event(), []

    def listen():
        with pool.watch() as watch:
            watch.arm()
            armed.set()
            watch.wait(3600)
            ended.append(file.read_text())

    thread = in_thread(listen)
    assert armed.wait(60)
    file.write_text("new")
    thread.join(60)
    assert ended


def test_a_change_between_arming_and_waiting_is_not_missed(pool, file, patient):
    with pool.watch() as watch:
        watch.arm()
        file.write_text("new")
        watch.wait(3600)


def test_changes_before_the_arming_are_forgotten(pool, file, patient):
    with pool.watch() as watch:
        watch.arm()
        file.write_text("new")
        watch.arm()
        assert inotifies() == 1
        with pytest.raises(BlockingIOError):
            os.read(watch.descriptor, 4096)


def test_a_file_that_is_made_anew_is_watched(pool, file, patient):
    with pool.watch() as watch:
        watch.arm()
        new = file.with_name("new")
        new.write_text("new")
        new.replace(file)
        watch.wait(3600)
        watch.arm()
        file.write_text("newer")
        watch.wait(3600)


def test_nobody_is_trusted_for_longer_than_a_second(pool, file, monkeypatch):
    monkeypatch.setattr(watches, "TRUST_SECONDS", 0.001)
    with pool.watch() as watch:
        watch.arm()
        watch.wait(3600)


# --- the pool -------------------------------------------------------------------------------------


def test_one_watch_is_used_again_and_closed_with_the_pool(file):
    before = inotifies()
    pool = Watches(file)
    for _ in range(3):
        with pool.watch() as watch:
            watch.arm()
        assert inotifies() == before + 1
    pool.close()
    assert inotifies() == before
    pool.close()


def test_waiters_do_not_share_a_watch(pool, file, patient):
    with pool.watch() as one, pool.watch() as other:
        assert one.descriptor != other.descriptor
        one.arm()
        other.arm()
        file.write_text("new")
        one.wait(3600)
        one.arm()
        other.wait(3600)


def test_a_pool_that_is_forgotten_keeps_nothing_open(file):
    before = inotifies()
    pool = Watches(file)
    with pool.watch() as watch:
        watch.arm()
    del pool, watch
    gc.collect()
    assert inotifies() == before


def test_closing_ends_waits_under_way(file, patient):
    before = inotifies()
    pool, armed = Watches(file), threading.Barrier(4)

    def listen():
        with pool.watch() as watch:
            watch.arm()
            armed.wait(60)
            watch.wait(3600)

    threads = [in_thread(listen) for _ in range(3)]
    armed.wait(60)
    pool.close()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert inotifies() == before


FORKED = """
import os, sys
from pathlib import Path
from dradriver.simulation.watches import Watches

pool = Watches(Path(sys.argv[1]))
with pool.watch() as used:
    used.arm()
child = os.fork()
if child == 0:
    with pool.watch() as own:
        own.arm()
        links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if name.isdecimal()
                 and os.path.lexists(f"/proc/self/fd/{name}")]
        os._exit(0 if own is not used and links.count("anon_inode:inotify") == 1 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
with pool.watch() as again:
    assert again is used
    again.arm()
    Path(sys.argv[1]).write_text("new")
    again.wait(3600)
    assert os.read(again.descriptor, 4096)
"""


def test_a_forked_process_opens_its_own(file):
    subprocess.run([sys.executable, "-c", FORKED, str(file)], check=True, timeout=60)


# --- without inotify ------------------------------------------------------------------------------


class NoLibrary:
    """A C library without inotify."""


class Full:
    """A kernel that has no inotify descriptor, or no watch, left."""

    def __init__(self, descriptor):
        self.inotify_init1 = lambda _flags: descriptor
        self.inotify_add_watch = lambda *_arguments: -1
        self.inotify_rm_watch = lambda *_arguments: -1


def looks(file, count):
    """Let that many waits pass by the clock; gives how long each was."""
    slept = []
    pool = Watches(file)
    with pool.watch() as watch:
        watch._sleep = slept.append
        for _ in range(count):
            watch.arm()
            watch.wait(3600)
        watch.wait(0.01)
    pool.close()
    return slept


@pytest.mark.parametrize("library", [NoLibrary(), Full(-1)], ids=["no function", "EMFILE"])
def test_without_inotify_the_clock_tells_when_to_look(file, monkeypatch, library):
    monkeypatch.setattr(watches, "_libc", lambda: library)
    assert looks(file, 2) == [watches.POLL_SECONDS, watches.POLL_SECONDS, 0.01]


def test_without_a_watch_the_clock_tells_when_to_look(file, monkeypatch):
    descriptor = ctypes.CDLL(None).inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    monkeypatch.setattr(watches, "_libc", lambda: Full(descriptor))
    before = inotifies()
    assert looks(file, 1) == [watches.POLL_SECONDS, 0.01]
    assert inotifies() == before - 1


def test_a_file_that_is_not_there_is_looked_for_by_the_clock(file):
    file.unlink()
    assert looks(file, 1) == [watches.POLL_SECONDS, 0.01]


def test_inotify_is_tried_again(file, monkeypatch, patient):
    pool = Watches(file)
    with monkeypatch.context() as patch:
        patch.setattr(watches, "_libc", NoLibrary)
        with pool.watch() as watch:
            assert watch.descriptor == -1
    with pool.watch() as watch:
        assert watch.descriptor >= 0
    pool.close()


# --- within NVML ----------------------------------------------------------------------------------


def test_a_session_keeps_no_inotify_beyond_its_end(node):
    before = inotifies()
    events = node.watch()
    for _ in range(3):
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait_v2(events, 1)
        assert inotifies() == before + 1
    pynvml.nvmlShutdown()
    assert inotifies() == before


def test_many_threads_each_hear_every_event(node, patient):
    sets, heard = [node.watch() for _ in range(4)], [[] for _ in range(4)]

    def listen(events, found):
        while len(found) < 20:
            found.append(pynvml.nvmlEventSetWait_v2(events, 60_000).eventData)

    threads = [in_thread(lambda pair=pair: listen(*pair)) for pair in zip(sets, heard, strict=True)]
    for number in range(1, 21):
        node.do(administration.raise_xid, 0, number=number)
    for thread in threads:
        thread.join(60)
    assert heard == [list(range(1, 21))] * 4


def test_a_wait_ends_with_its_session(node, patient):
    events, codes = node.watch(), []

    def listen():
        try:
            pynvml.nvmlEventSetWait_v2(events, 3_600_000)
        except pynvml.NVMLError as error:
            codes.append(error.value)

    thread = in_thread(listen)
    pynvml.nvmlShutdown()
    thread.join(60)
    # Which one depends on whether it had begun.
    assert codes in ([1], [2])
