"""Calls that may hang, with real threads; a hang is an Event that a test sets."""

import subprocess
import sys
import threading

import pynvml
import pytest

from dradriver.nvml import bounded as module
from dradriver.nvml.bounded import Bounded
from dradriver.nvml.errors import GpuLost, Hanging, NotFound, TimedOut, translate

SHORT, LONG = 0.05, 60


@pytest.fixture
def bounded():
    bounded = Bounded()
    yield bounded
    bounded.close()


@pytest.fixture
def hang():
    """Make work that hangs until told, and tells that it began; all of it ends with the test."""
    leave = threading.Event()

    def make():
        began = threading.Event()

        def work():
            began.set()
            assert leave.wait(LONG)
            return "late"

        return work, began

    make.leave = leave.set
    yield make
    leave.set()


def threads():
    return [one for one in threading.enumerate() if one.name == "nvml"]


def until(condition):
    """Wait for something that another thread is about to do."""
    pause = threading.Event()
    for _ in range(6000):
        if condition():
            return
        pause.wait(0.01)
    pytest.fail("did not happen")


def fail(code):
    raise translate("nvmlDeviceGetUUID", code, "GPU-1")


def test_answers_come_back(bounded):
    assert [bounded.run("GPU-1", LONG, lambda number=number: number) for number in range(3)] == [0, 1, 2]
    assert bounded.run(None, LONG, lambda: None) is None


def test_errors_pass_through(bounded):
    with pytest.raises(NotFound, match="GPU-1"):
        bounded.run("GPU-1", LONG, lambda: fail(6))
    with pytest.raises(ZeroDivisionError):
        bounded.run("GPU-1", LONG, lambda: 1 / 0)
    with pytest.raises(KeyboardInterrupt):
        bounded.run("GPU-1", LONG, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert bounded.run("GPU-1", LONG, lambda: "well") == "well"


def test_one_caller_needs_one_thread(bounded):
    used = {bounded.run(f"GPU-{number % 4}", LONG, threading.get_ident) for number in range(100)}
    assert len(used) == 1
    assert threading.get_ident() not in used


def test_a_call_that_hangs_is_left_behind_and_told(bounded, hang):
    work, began = hang()
    with pytest.raises(Hanging) as caught:
        bounded.run("GPU-1", SHORT, work)
    assert began.is_set()
    error = caught.value
    assert isinstance(error, TimedOut)
    assert (error.gpu, error.code) == ("GPU-1", 10)
    assert "it was called at 20" in str(error)
    assert "reset the GPU or reboot the node" in str(error)


def test_the_nvml_function_that_hangs_is_named(bounded, hang, monkeypatch):
    work, _ = hang()

    def nvmlDeviceGetMemoryInfo():  # noqa: N802 -- The library's name.
        return work()

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", nvmlDeviceGetMemoryInfo)
    with pytest.raises(Hanging, match=r"^nvmlDeviceGetMemoryInfo for GPU-1 failed: it was called at "):
        bounded.run("GPU-1", SHORT, pynvml.nvmlDeviceGetMemoryInfo)
    with pytest.raises(Hanging, match=r"^NVML failed: "):
        bounded.run(None, SHORT, hang()[0])


def test_further_calls_about_it_fail_at_once_with_the_same_words(bounded, hang):
    with pytest.raises(Hanging) as first:
        bounded.run("GPU-1", SHORT, hang()[0])
    before = len(threads())
    for _ in range(50):
        with pytest.raises(Hanging) as again:
            bounded.run("GPU-1", LONG, lambda: pytest.fail("called"))
        assert str(again.value) == str(first.value)
        assert again.value is not first.value
    assert len(threads()) == before
    assert str(bounded.hangs("GPU-1")) == str(first.value)


def test_calls_about_others_go_on(bounded, hang):
    with pytest.raises(Hanging):
        bounded.run("GPU-1", SHORT, hang()[0])
    assert bounded.run("GPU-2", LONG, lambda: 2) == 2
    assert bounded.run(None, LONG, lambda: 3) == 3
    assert (bounded.hangs("GPU-2"), bounded.hangs(None)) == (None, None)


def test_it_is_asked_again_once_the_call_is_back(bounded, hang):
    with pytest.raises(Hanging):
        bounded.run("GPU-1", SHORT, hang()[0])
    hang.leave()
    until(lambda: bounded.hangs("GPU-1") is None)
    before = len(threads())
    assert bounded.run("GPU-1", LONG, lambda: "well") == "well"
    assert len(threads()) == before


def test_of_two_calls_that_hang_both_must_come_back(bounded, hang):
    (first, began), (second, _) = hang(), hang()
    errors = []

    def ask():
        with pytest.raises(Hanging) as caught:
            bounded.run("GPU-1", 0.5, first)
        errors.append(caught.value)

    beside = threading.Thread(target=ask)
    beside.start()
    assert began.wait(LONG)
    with pytest.raises(Hanging):
        bounded.run("GPU-1", SHORT, second)
    beside.join(LONG)
    assert len(errors) == 1
    assert len(bounded._late["GPU-1"]) == 2
    hang.leave()
    until(lambda: bounded.hangs("GPU-1") is None)
    assert bounded._late == {}


def test_an_error_that_comes_late_is_nobodys(bounded):
    leave = threading.Event()

    def work():
        leave.wait(LONG)
        fail(15)

    with pytest.raises(Hanging):
        bounded.run("GPU-1", SHORT, work)
    leave.set()
    until(lambda: bounded.hangs("GPU-1") is None)
    with pytest.raises(GpuLost):
        bounded.run("GPU-1", LONG, lambda: fail(15))


def test_a_call_that_ends_just_when_the_time_is_over_counts(bounded):
    job = module._Job("GPU-1", 0.0, lambda: "well")
    job.do()
    bounded._done(module._Worker(lambda *_: None), job)
    assert bounded._collect(job) == "well"
    assert bounded.hangs("GPU-1") is None


def test_several_are_asked_in_order_with_errors_in_their_places(bounded):
    calls = [("GPU-1", LONG, lambda: 1), ("GPU-2", LONG, lambda: fail(6)), (None, LONG, lambda: 3)]
    first, second, third = bounded.each(calls)
    assert (first, third) == (1, 3)
    assert isinstance(second, NotFound)
    with pytest.raises(ZeroDivisionError):
        bounded.each([("GPU-1", LONG, lambda: 1 / 0)])


def test_one_that_takes_long_does_not_keep_the_next_from_beginning(bounded, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", SHORT)
    other = threading.Event()

    def slow():
        assert other.wait(LONG)
        return "slow"

    assert bounded.each([("GPU-1", LONG, slow), ("GPU-2", LONG, other.set)]) == ["slow", None]


def test_those_that_hang_are_waited_for_together(bounded, hang, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", SHORT)
    kinds = [type(one) for one in bounded.each((f"GPU-{number}", SHORT, hang()[0]) for number in range(4))]
    assert kinds == [Hanging] * 4
    assert [type(one) for one in bounded.each([("GPU-3", LONG, hang()[0]), ("GPU-4", LONG, lambda: 4)])] == [
        Hanging,
        int,
    ]


def test_many_callers_at_once_get_each_their_own_answer(bounded):
    wrong = []

    def ask(number):
        answers = [bounded.run(f"GPU-{number % 3}", LONG, lambda turn=turn: (number, turn)) for turn in range(200)]
        wrong.extend(answers if answers != [(number, turn) for turn in range(200)] else [])

    before = len(threads())
    callers = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(LONG)
    assert wrong == []
    assert len(threads()) - before <= 8


def test_threads_end_where_it_is_closed_those_that_hang_once_they_are_back(bounded, hang):
    # Those of earlier tests may end meanwhile.
    before = set(threads())
    with pytest.raises(Hanging):
        bounded.run("GPU-1", SHORT, hang()[0])
    bounded.run("GPU-2", LONG, lambda: 2)
    assert len(set(threads()) - before) == 2
    bounded.close()
    until(lambda: len(set(threads()) - before) == 1)
    hang.leave()
    until(lambda: not set(threads()) - before)
    assert bounded.run("GPU-1", LONG, lambda: "well") == "well"
    until(lambda: not set(threads()) - before)


def test_a_call_that_hangs_does_not_keep_the_process_from_ending():
    program = (
        "import threading; from dradriver.nvml.bounded import Bounded; from dradriver.nvml import TimedOut\n"
        "try: Bounded().run('GPU-1', 0.05, threading.Event().wait)\n"
        "except TimedOut as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=LONG)
    assert done.stdout.startswith("NVML for GPU-1 failed: it was called at ")
    assert done.stderr == ""
