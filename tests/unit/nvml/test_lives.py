import pytest

from dradriver.nvml.lives import RESETS, RESETS_SECONDS, Lives

LOST, RESET = 15, 16


@pytest.fixture
def lives(clock):
    lives = Lives(clock)
    lives.answered("GPU-1", thorough=True)
    return lives


def test_a_gpu_that_was_always_well_never_came_back(lives):
    lives.answered("GPU-1", thorough=False)
    lives.renewed()
    lives.answered("GPU-1", thorough=True)
    assert (lives.returns("GPU-1"), lives.returns("GPU-of-nobody")) == (0, 0)


def test_one_that_was_lost_and_answers_came_back_once(lives):
    lives.failed("GPU-1", LOST)
    assert lives.returns("GPU-1") == 0
    lives.renewed()
    for _ in range(2):
        lives.answered("GPU-1", thorough=False)
        assert lives.returns("GPU-1") == 1
    lives.failed("GPU-1", LOST)
    lives.answered("GPU-1", thorough=False)
    assert lives.returns("GPU-1") == 2


def test_one_that_was_never_well_does_not_come_back(lives):
    lives.failed("GPU-2", LOST)
    lives.answered("GPU-2", thorough=True)
    assert lives.returns("GPU-2") == 0


def test_where_the_driver_ends_the_session_all_that_were_known_come_back(lives):
    lives.answered("GPU-2", thorough=True)
    lives.ended()
    lives.renewed()
    lives.answered("GPU-1", thorough=False)
    lives.answered("GPU-3", thorough=False)
    assert [lives.returns(f"GPU-{number}") for number in (1, 2, 3)] == [1, 0, 0]


def test_one_that_must_be_reset_came_back_when_it_says_so_no_more(lives):
    lives.failed("GPU-1", RESET)
    lives.answered("GPU-1", thorough=False)
    lives.renewed()
    lives.answered("GPU-1", thorough=False)
    assert lives.returns("GPU-1") == 0
    lives.answered("GPU-1", thorough=True)
    assert lives.returns("GPU-1") == 1


def test_one_that_must_be_reset_and_was_came_back_by_any_answer(lives):
    lives.failed("GPU-1", RESET)
    lives.failed("GPU-1", LOST)  # Its handle, after the reset.
    lives.answered("GPU-1", thorough=False)
    assert lives.returns("GPU-1") == 1


def test_a_new_session_may_help_one_that_answered_in_this_one(lives):
    assert lives.failed("GPU-1", LOST)
    assert not lives.failed("GPU-1", LOST)


def test_it_does_not_help_one_that_is_lost_in_it_too(lives, clock):
    assert lives.failed("GPU-1", LOST)
    lives.renewed()
    for _ in range(3):
        clock.now += RESETS_SECONDS
        assert not lives.failed("GPU-1", LOST)


def test_it_may_help_again_where_the_trouble_is_another(lives):
    assert lives.failed("GPU-1", RESET)
    lives.renewed()
    assert not lives.failed("GPU-1", RESET)
    assert lives.failed("GPU-1", LOST)


def test_one_that_flaps_does_not_lead_to_sessions_without_end(lives, clock):
    asked = []
    for _ in range(60):
        lives.answered("GPU-1", thorough=True)
        asked.append(lives.failed("GPU-1", LOST))
        clock.now += RESETS_SECONDS / 30
    once = [True] * RESETS + [False] * (30 - RESETS)
    assert asked == once * 2


def test_one_does_not_wait_for_another_that_flaps(lives):
    lives.answered("GPU-2", thorough=True)
    for _ in range(2 * RESETS):
        lives.answered("GPU-1", thorough=True)
        lives.failed("GPU-1", LOST)
    assert lives.failed("GPU-2", LOST)
