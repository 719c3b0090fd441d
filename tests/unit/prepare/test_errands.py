"""The thread for errands: in order, at their dates, and none of them ends it."""

import threading

import pytest
import structlog

from dradriver.kube import UnreachableError
from dradriver.prepare.errands import Errands

LIMIT = 30.0


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def errands(clock):
    made = Errands("errands", capacity=4, clock=clock)
    made.start()
    yield made
    made.stop(LIMIT)


def settle(errands):
    # What is due is run before what waits.
    passed = threading.Event()
    errands.soon(passed.set)
    assert passed.wait(LIMIT)


def block(errands):
    """Keep the thread busy until the returned event is set."""
    entered, go_on = threading.Event(), threading.Event()

    def wait():
        entered.set()
        assert go_on.wait(LIMIT)

    errands.soon(wait)
    assert entered.wait(LIMIT)
    return go_on


def test_errands_are_run_in_order_by_one_thread(errands):
    done = []
    for number in range(3):
        errands.soon(lambda number=number: done.append((number, threading.current_thread().name)))
    settle(errands)
    assert done == [(number, "errands") for number in range(3)]


def test_a_dated_errand_is_run_once_when_its_time_has_come(errands, clock):
    done = []
    errands.at(lambda: done.append(clock.now), 130.0)
    settle(errands)
    assert done == []
    clock.now = 130.0
    settle(errands)
    clock.now = 999.0
    settle(errands)
    assert done == [130.0]


def test_the_thread_wakes_by_itself_for_a_date():
    real, ran = Errands("errands"), threading.Event()
    real.start()
    real.at(ran.set, real.clock() + 0.02)
    assert ran.wait(LIMIT)
    real.stop(LIMIT)


def test_of_two_dates_of_one_errand_the_earlier_counts(errands, clock):
    done = []
    for when in (150.0, 120.0, 180.0):
        errands.at(done.clear, when)
    errands.at(done.clear, 110.0)
    settle(errands)
    done.append(1)
    clock.now = 110.0
    settle(errands)
    assert done == []
    done.append(2)
    clock.now = 200.0
    settle(errands)
    assert done == [2]


def test_an_errand_may_give_itself_its_next_date(errands, clock):
    done = []

    def again():
        done.append(clock.now)
        errands.at(again, clock.now + 10)

    errands.at(again, clock.now)
    settle(errands)
    for _ in range(3):
        clock.now += 10
        settle(errands)
    assert done == [100.0, 110.0, 120.0, 130.0]


def test_what_is_too_much_is_left_out_but_no_date_is(errands):
    done, last, go_on = [], threading.Event(), block(errands)
    with structlog.testing.capture_logs() as logs:
        for number in range(3):
            errands.soon(lambda number=number: done.append(number))
        errands.soon(last.set)
        errands.soon(lambda: done.append("too much"))
        errands.at(lambda: done.append("dated"), 100.0)
    go_on.set()
    assert last.wait(LIMIT)
    assert done == ["dated", 0, 1, 2]
    assert [line["log_level"] for line in logs if "left out" in line["event"]] == ["warning"]


@pytest.mark.parametrize(
    ("error", "level"), [(UnreachableError("GET c: connection refused"), "warning"), (KeyError("uid"), "error")]
)
def test_an_errand_that_fails_keeps_no_other_from_being_run(errands, error, level):
    done = []

    def fail():
        raise error

    with structlog.testing.capture_logs() as logs:
        errands.soon(fail)
        errands.at(fail, 0.0)
        errands.soon(lambda: done.append(1))
        settle(errands)
    assert done == [1]
    assert [line["log_level"] for line in logs] == [level, level]


def test_a_stop_runs_what_waits_and_leaves_later_dates(clock):
    errands, done = Errands("errands", clock=clock), []
    errands.start()
    errands.at(lambda: done.append("later"), 101.0)
    errands.soon(lambda: done.append("now"))
    errands.stop(LIMIT)
    assert done == ["now"]


def test_a_stop_waits_no_longer_than_it_is_told(errands):
    done, go_on = [], block(errands)
    errands.soon(lambda: done.append(1))
    errands.stop(0.01)
    assert done == []
    go_on.set()


def test_what_was_never_started_can_be_stopped():
    Errands("errands").stop()
