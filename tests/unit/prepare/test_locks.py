import subprocess
import sys
import threading
import time

import pytest

from dradriver.prepare.errors import BusyError, RecordError
from dradriver.prepare.locks import Locks, claim_lock, gpu_lock

PATIENT = 30.0
HOLDER = """
import sys, time
from pathlib import Path
from dradriver.prepare.locks import Locks
with Locks(Path(sys.argv[1])).hold(sys.argv[2:], time.monotonic() + 30):
    print("held", flush=True)
    sys.stdin.read()
"""


def soon():
    return time.monotonic() + PATIENT


def is_free(locks, *names):
    try:
        with locks.hold(names, time.monotonic()):
            return True
    except BusyError:
        return False


@pytest.fixture(params=["threads", "files"])
def pair(request, tmp_path):
    """Two users of the same locks: threads of one process, or two processes of a rolling update."""
    if request.param == "threads":
        locks = Locks()
        return locks, locks
    return Locks(tmp_path / "locks"), Locks(tmp_path / "locks")


@pytest.fixture
def holder(tmp_path):
    """Let another process hold locks until it is told to end, or killed."""
    processes = []

    def start(*names):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path / "locks"), *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_what_one_holds_the_other_does_not_get(pair):
    mine, other = pair
    with mine.hold([claim_lock("a"), gpu_lock("GPU-0")], soon()):
        assert not is_free(other, claim_lock("a"))
        assert not is_free(other, gpu_lock("GPU-0"))
        assert is_free(other, claim_lock("b"), gpu_lock("GPU-1"))
    assert is_free(other, claim_lock("a"), gpu_lock("GPU-0"))


def test_the_error_names_what_was_busy(pair):
    mine, other = pair
    with (
        mine.hold([gpu_lock("GPU-7")], soon()),
        pytest.raises(BusyError, match=r"GPU GPU-7 was busy .* the kubelet tries again"),
        other.hold([gpu_lock("GPU-7")], time.monotonic()),
    ):
        pass


def test_a_lock_that_was_not_got_gives_back_what_was(pair):
    mine, other = pair
    with mine.hold([gpu_lock("GPU-1")], soon()):
        assert not is_free(other, gpu_lock("GPU-0"), gpu_lock("GPU-1"))
        assert is_free(mine, gpu_lock("GPU-0"))


def test_an_error_inside_gives_the_locks_back(pair):
    mine, other = pair
    with pytest.raises(ZeroDivisionError), mine.hold([claim_lock("a")], soon()):
        _ = 1 / 0
    assert is_free(other, claim_lock("a"))


def test_a_name_given_twice_is_taken_once(pair):
    mine, _ = pair
    with mine.hold([gpu_lock("GPU-0"), gpu_lock("GPU-0")], time.monotonic()):
        pass


def test_opposite_orders_do_not_block_each_other(pair):
    names = [gpu_lock("GPU-0"), gpu_lock("GPU-1")]
    failed = []

    def take(locks, order):
        try:
            for _ in range(20):
                with locks.hold(order, soon()):
                    pass
        except BusyError as error:
            failed.append(error)

    threads = [
        threading.Thread(target=take, args=(locks, order))
        for locks, order in zip(pair, (names, names[::-1]), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENT)
    assert not failed
    assert not any(thread.is_alive() for thread in threads)


def test_claims_wait_for_nobody_but_themselves(tmp_path):
    """A hundred claims at once, as in a burst: none has to wait for another one's lock."""
    locks = Locks(tmp_path / "locks")
    names = [claim_lock(f"claim-{number}") for number in range(100)]
    with locks.hold(names[:50], soon()):
        assert all(is_free(locks, name) for name in names[50:])


def test_locks_leave_no_file_for_each_claim(tmp_path):
    locks = Locks(tmp_path / "locks")
    with locks.hold([claim_lock(str(number)) for number in range(20)] + [gpu_lock("GPU-0")], soon()):
        assert sorted(path.name for path in (tmp_path / "locks").iterdir()) == ["claims.lock", "gpus.lock"]


def test_locks_keep_no_memory_of_claims(tmp_path):
    locks = Locks(tmp_path / "locks")
    with locks.hold([claim_lock("a")], soon()):
        pass
    assert locks._entries == {}


def test_another_process_holds_until_it_lets_go(tmp_path, holder):
    locks = Locks(tmp_path / "locks")
    process = holder(claim_lock("a"), gpu_lock("GPU-0"))
    assert not is_free(locks, claim_lock("a"))
    assert not is_free(locks, gpu_lock("GPU-0"))
    assert is_free(locks, claim_lock("b"))
    process.communicate("")
    with locks.hold([claim_lock("a"), gpu_lock("GPU-0")], soon()):
        pass


def test_a_killed_process_holds_nothing(tmp_path, holder):
    locks = Locks(tmp_path / "locks")
    process = holder(gpu_lock("GPU-0"))
    assert not is_free(locks, gpu_lock("GPU-0"))
    process.kill()
    process.wait()
    with locks.hold([gpu_lock("GPU-0")], soon()):
        pass


def test_a_child_process_does_not_inherit_the_lock(tmp_path):
    """A hook program that outlives its call would hold the GPU for good."""
    locks = Locks(tmp_path / "locks")
    with locks.hold([gpu_lock("GPU-0")], soon()):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert is_free(locks, gpu_lock("GPU-0"))
    finally:
        child.communicate(b"\n")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "locks").write_text("in the way")
    with (
        pytest.raises(RecordError, match=r"cannot open the lock file .*/locks/claims\.lock: "),
        Locks(tmp_path / "locks").hold([claim_lock("a")], soon()),
    ):
        pass
