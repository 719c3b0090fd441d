from hypothesis import given
from hypothesis import strategies as st

from dradriver.kube import Backoff
from dradriver.kube.errors import ServerError, UnreachableError, from_status

chances = st.floats(min_value=0, max_value=1, exclude_max=True)


@given(st.integers(min_value=1, max_value=10**6), chances)
def test_delays_stay_between_the_bounds(failures, chance):
    delay = Backoff().delay(failures, chance=lambda: chance)
    assert 0.8 <= delay <= 30


@given(st.integers(min_value=1, max_value=100), chances)
def test_delays_never_shrink_with_failures(failures, chance):
    backoff = Backoff()
    assert backoff.delay(failures, chance=lambda: chance) <= backoff.delay(failures + 1, chance=lambda: chance)


def test_without_jitter_each_delay_doubles():
    backoff = Backoff(initial=1, maximum=10)
    assert [backoff.delay(n, chance=lambda: 0.0) for n in range(7)] == [0, 1, 2, 4, 8, 10, 10]


def test_server_may_ask_for_more_than_the_maximum():
    backoff = Backoff(initial=1, maximum=10)
    busy = from_status(429, {}, target="x", retry_after=60.0)
    assert backoff.delay_for(busy, 1, chance=lambda: 0.0) == 60
    assert backoff.delay_for(UnreachableError("x"), 1, chance=lambda: 0.0) == 1
    assert backoff.delay_for(None, 2, chance=lambda: 0.0) == 2
    failed = ServerError(status=500, reason="", message="", target="", retry_after=0.5)
    assert backoff.delay_for(failed, 1, chance=lambda: 0.0) == 1
