import math
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from dradriver.prepare.patience import ANSWER_SECONDS, FIRST_PAUSE, LONGEST_PAUSE, Patience

KUBELET = 45.0


class Time:
    """A clock that moves only when somebody sleeps."""

    def __init__(self):
        self.now = 1000.0
        self.slept = []

    def sleep(self, seconds):
        self.now += seconds
        self.slept.append(seconds)


def patience(time, seconds=KUBELET, chance=0.5):
    return Patience(time.now + seconds, clock=lambda: time.now, sleep=time.sleep, chance=lambda: chance)


def pauses(mine):
    return next(number for number in count() if not mine.pause(number))


def test_pauses_double_up_to_a_second():
    time = Time()
    mine = patience(time)
    for attempt in range(7):
        assert mine.pause(attempt)
    assert [round(seconds, 3) for seconds in time.slept] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_pauses_differ_by_a_quarter_at_most():
    """Claims that wait for the same holder are not to come back in the same instant."""
    for chance, factor in ((0.0, 0.75), (1.0, 1.25)):
        time = Time()
        patience(time, chance=chance).pause(0)
        assert math.isclose(time.slept[0], FIRST_PAUSE * factor)


@given(seconds=st.floats(0, 100), chance=st.floats(0, 1), work=st.floats(0, 3))
def test_a_call_ends_in_time_to_be_answered(seconds, chance, work):
    time = Time()
    mine = patience(time, seconds, chance)
    for attempt in count():
        time.now += work
        if not mine.pause(attempt):
            break
        assert mine.left() >= ANSWER_SECONDS - 1e-6
    # It gave up because the next pause did not fit, not earlier.
    assert mine.left() <= ANSWER_SECONDS + LONGEST_PAUSE * 1.25 + 1e-6


def test_the_time_of_the_kubelet_is_used():
    time = Time()
    start = time.now
    assert pauses(patience(time)) > 40
    assert KUBELET - 2.5 <= time.now - start <= KUBELET - ANSWER_SECONDS


def test_nothing_is_left_after_the_deadline():
    time = Time()
    mine = patience(time, 1)
    time.now += 5
    assert mine.left() == 0
    assert not mine.pause(0)
    assert time.slept == []


def test_a_share_of_the_patience_ends_earlier_but_never_later():
    time = Time()
    mine = patience(time, 10)
    assert mine.at_most(3).left() == 3
    assert mine.at_most(30).left() == 10
    mine.at_most(3).pause(0)
    assert time.slept


def test_work_ends_before_the_deadline():
    time = Time()
    mine = patience(time, 10)
    assert mine.now() == time.now
    assert mine.answer_by == mine.deadline - ANSWER_SECONDS
