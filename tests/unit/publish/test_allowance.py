from hypothesis import given
from hypothesis import strategies as st

from dradriver.publish.allowance import Allowance


def test_a_burst_passes_and_then_one_in_an_interval():
    now = [100.0]
    allowance = Allowance(burst=3, interval=2, clock=lambda: now[0])
    assert [allowance.take() for _ in range(4)] == [0, 0, 0, 2]
    now[0] += 1.5
    assert allowance.take() == 0.5
    now[0] += 0.5
    assert [allowance.take() for _ in range(2)] == [0, 2]
    now[0] += 1000
    assert [allowance.take() for _ in range(4)] == [0, 0, 0, 2]


def test_several_are_taken_together_or_not_at_all():
    now = [100.0]
    allowance = Allowance(burst=5, interval=2, clock=lambda: now[0])
    assert [allowance.take(3), allowance.take(3), allowance.take(2)] == [0, 2, 0]
    assert allowance.take(1) == 2


def test_more_than_a_burst_is_given_when_it_is_full():
    now = [100.0]
    allowance = Allowance(burst=5, interval=2, clock=lambda: now[0])
    assert [allowance.take(), allowance.take(99)] == [0, 2]
    now[0] += 2
    assert [allowance.take(99), allowance.take()] == [0, 2]


@given(st.lists(st.floats(0, 5), max_size=60))
def test_never_more_than_the_burst_and_one_for_each_interval(steps):
    now = [0.0]
    allowance = Allowance(burst=3, interval=2, clock=lambda: now[0])
    taken = 0
    for step in steps:
        now[0] += step
        taken += allowance.take() == 0
        assert taken <= 3 + now[0] / 2 + 1e-6
