"""The end comes whatever the process is doing, and takes nothing along that should stay."""

import subprocess
import sys
import threading

from dradriver.ending import Ending


def python(program, *arguments):
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_what_is_asked_for_stays_asked_for():
    ending = Ending()
    assert not ending.wait(0)
    ending.ask()
    ending.ask()
    assert [ending.wait(60) for _ in range(5)] == [True] * 5


def test_who_waits_is_woken():
    ending, woken = Ending(), threading.Event()
    waiter = threading.Thread(target=lambda: ending.wait(300) and woken.set())
    waiter.start()
    ending.ask()
    assert woken.wait(60)
    waiter.join(60)


# Each Python function that is entered while somebody waits is interrupted by a signal: also the one that holds a lock.
INTERRUPTED = """
import signal, sys
from dradriver.ending import Ending
ending = Ending()
signal.signal(signal.SIGTERM, lambda *_: ending.ask())
def interrupt(frame, event, _):
    if event == "call" and frame.f_code.co_name not in ("ask", "<lambda>"):
        signal.raise_signal(signal.SIGTERM)
sys.setprofile(interrupt)
found = ending.wait(50)
sys.setprofile(None)
print(found)
"""


def test_a_signal_may_come_at_any_instant_of_the_waiting():
    assert python(INTERRUPTED).stdout.strip() == "True"


STUCK = """
import atexit, logging, sys, threading
from concurrent.futures import ThreadPoolExecutor
import dradriver.__main__ as program

def run(arguments):
    started = threading.Event()
    def hang():
        started.set()
        threading.Event().wait()
    ThreadPoolExecutor().submit(hang)
    started.wait()
    atexit.register(print, "temporary files are removed")
    logging.getLogger("dradriver").warning("a record")
    logging.getLogger("library").debug("a detail")
    print("last words", end=" ")
    if "crash" in sys.argv:
        raise RuntimeError("a defect")
    return 3

program.run = run
program.main()
"""


def test_a_call_that_hangs_does_not_keep_the_process():
    done = python(STUCK)
    assert (done.returncode, done.stdout) == (3, "last words temporary files are removed\n")


def test_nor_does_it_after_a_crash_which_is_told_after_what_was_held_back():
    done = python(STUCK, "crash")
    assert (done.returncode, done.stdout) == (1, "last words temporary files are removed\n")
    assert done.stderr.startswith("warning: a record\nTraceback")
    assert "RuntimeError: a defect" in done.stderr


def test_bad_flags_end_it_as_they_always_did():
    done = subprocess.run(
        [sys.executable, "-m", "dradriver", "--mig", "perhaps"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "error: " in done.stderr
