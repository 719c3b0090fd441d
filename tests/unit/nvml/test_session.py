import threading

import pytest

from dradriver.nvml.errors import DriverNotLoaded, GpuLost, NotFound, ResetRequired, Uninitialized, translate
from dradriver.nvml.session import HANGS_AFTER, LOST_PAUSE, SLICE, Session

INIT, SHUTDOWN = "nvmlInitWithFlags", "nvmlShutdown"


@pytest.fixture
def session(fake, clock):
    session = Session(clock)
    yield session
    session.close()


def generation(session):
    with session.use() as number:
        return number


def fail(session, code):
    with session.use():
        raise translate("f", code, "GPU-1")


def test_a_session_stays_while_nothing_happens(session, fake):
    assert [generation(session), generation(session)] == [1, 1]
    assert (fake.calls[INIT], fake.initialized) == (1, 1)


def test_a_driver_that_is_not_there_is_told_at_once(fake, clock):
    fake.failures[INIT] = 9
    with pytest.raises(DriverNotLoaded, match="modprobe"):
        Session(clock)


def test_a_session_that_the_driver_ended_is_opened_anew(session, fake):
    with pytest.raises(Uninitialized):
        fail(session, 1)
    assert generation(session) == 2
    assert (fake.calls[SHUTDOWN], fake.initialized) == (1, 1)


def test_errors_about_one_thing_leave_the_session_alone(session):
    with pytest.raises(NotFound):
        fail(session, 6)
    assert generation(session) == 1


@pytest.mark.parametrize(("code", "kind"), [(15, GpuLost), (16, ResetRequired)])
def test_a_lost_gpu_renews_the_session_but_not_again_and_again(session, clock, code, kind):
    seen = []
    for seconds in (0, LOST_PAUSE - 1, 1, 1, LOST_PAUSE):
        clock.now += seconds
        with pytest.raises(kind):
            fail(session, code)
        seen.append(generation(session))
    assert seen == [1, 1, 2, 2, 3]


def answer(session, gpu="GPU-1"):
    with session.use() as number:
        session.answered(gpu, number, thorough=True)


@pytest.mark.parametrize("code", [15, 16])
def test_a_gpu_that_answered_before_renews_it_at_once_but_only_once(session, clock, code):
    answer(session)
    seen = []
    for _ in range(3):
        with pytest.raises((GpuLost, ResetRequired)):
            fail(session, code)
        seen.append(generation(session))
        clock.now += 1
    assert seen == [2, 2, 2]
    assert session.returns("GPU-1") == 0
    answer(session)
    assert session.returns("GPU-1") == 1


def test_a_mode_that_waits_for_a_reset_renews_nothing(session, clock):
    answer(session)
    clock.now += LOST_PAUSE
    with pytest.raises(ResetRequired), session.use():
        raise translate("nvmlDeviceSetMigMode", 16, "GPU-1")
    assert generation(session) == 1


def test_a_loss_without_a_name_renews_nothing(session, clock):
    answer(session)
    clock.now += LOST_PAUSE
    with pytest.raises(GpuLost), session.hold(1):
        raise translate("nvmlEventSetWait_v2", 15)
    assert generation(session) == 1


def test_what_a_call_of_a_former_session_says_means_nothing_now(session, clock):
    answer(session)
    use = session.use()
    assert use.__enter__() == 1
    clock.now += HANGS_AFTER + 1
    session.renew()
    answer(session)
    error = translate("f", 1, "GPU-1")
    assert not use.__exit__(type(error), error, None)
    assert (generation(session), session.returns("GPU-1")) == (2, 0)
    session.answered("GPU-2", 1, thorough=True)
    assert not session.note(translate("f", 15, "GPU-2"), 2)


def test_it_tells_whether_an_error_leads_to_a_new_session(session):
    answer(session)
    with session.use() as number:
        assert not session.note(translate("f", 6, "GPU-1"), number)
        assert not session.note(translate("f", 15, "GPU-2"), number)
        assert session.note(translate("f", 15, "GPU-1"), number)
        assert session.note(translate("f", 1), number)
        assert session.is_stale


def test_who_waits_for_a_new_session_is_told_whether_there_is_one(session, hanging):
    assert not session.is_renewed(1, 60)  # Nobody asked for one.
    session.renew()
    assert not session.is_renewed(1, 0.01)
    hanging()
    assert session.is_renewed(1, 60)
    assert generation(session) == 2
    assert session.is_renewed(1, 60)
    assert not session.is_renewed(2, 60)


def test_it_is_renewed_on_request(session):
    session.renew()
    assert generation(session) == 2
    assert generation(session) == 2


def test_it_is_not_renewed_under_another_call(session):
    with session.use() as outer:
        session.renew()
        assert generation(session) == outer == 1
    assert generation(session) == 2


@pytest.fixture
def hanging(session):
    """Another thread that is within a call, until told to leave."""
    inside, leave = threading.Event(), threading.Event()

    def hang():
        with session.use():
            inside.set()
            leave.wait(60)

    def go():
        leave.set()
        thread.join(60)

    thread = threading.Thread(target=hang)
    thread.start()
    assert inside.wait(60)
    yield go
    go()


def test_another_thread_inside_a_call_is_neither_disturbed_nor_waited_for(session, fake, hanging):
    session.renew()
    assert generation(session) == 1
    assert fake.calls[SHUTDOWN] == 0
    hanging()
    assert generation(session) == 2


def test_a_call_that_hangs_for_good_does_not_keep_handles_useless_for_good(session, fake, clock, hanging):
    session.renew()
    clock.now += HANGS_AFTER
    assert generation(session) == 1
    clock.now += 1
    assert [generation(session), generation(session)] == [2, 2]
    hanging()
    assert (generation(session), fake.calls[SHUTDOWN], fake.initialized) == (2, 1, 1)


def test_a_call_that_began_lately_is_not_taken_to_hang(session, clock, hanging):
    clock.now += HANGS_AFTER + 1
    with session.use():
        session.renew()
        assert generation(session) == 1
    assert generation(session) == 2


def test_nvml_is_not_shut_down_under_a_call(session, fake, hanging):
    session.close()
    assert fake.calls[SHUTDOWN] == 0
    with pytest.raises(Uninitialized, match="closed"):
        generation(session)
    hanging()
    assert (fake.calls[SHUTDOWN], fake.initialized) == (1, 0)
    session.close()
    assert fake.calls[SHUTDOWN] == 1


@pytest.fixture
def starting(session, hang):
    """A thread in which NVML's initialization hangs, until told to go on; gives what it got."""
    got = []
    began = hang(INIT)

    def enter():
        try:
            got.append(generation(session))
        except Uninitialized as error:
            got.append(error)

    thread = threading.Thread(target=enter)
    session.renew()
    thread.start()
    assert began.wait(60)

    def go():
        hang.leave()
        thread.join(60)
        return got

    yield go
    go()


def test_an_initialization_that_hangs_keeps_nobody_from_leaving(session, clock, hanging, request):
    # The use that hangs does not count any more, so a new session begins under it.
    clock.now += HANGS_AFTER + 1
    go = request.getfixturevalue("starting")
    hanging()
    assert session.is_stale
    assert not session.is_renewed(1, 0.01)
    with session.hold(1) as held:
        assert not held
    assert go() == [2]
    assert (generation(session), session.is_stale) == (2, False)


def test_who_comes_meanwhile_waits_for_it(session, starting):
    seen = []
    others = [threading.Thread(target=lambda: seen.append(generation(session))) for _ in range(4)]
    for other in others:
        other.start()
    assert starting() == [2]
    for other in others:
        other.join(60)
    assert seen == [2] * 4


def test_closing_meanwhile_leaves_the_shutdown_to_it(session, fake, starting):
    session.close()
    with pytest.raises(Uninitialized, match="closed"):
        generation(session)
    (error,) = starting()
    assert "closed" in str(error)
    assert (fake.initialized, fake.calls[SHUTDOWN]) == (0, 2)


def test_what_is_asked_for_meanwhile_is_for_the_next(session, starting):
    session.renew()
    assert starting() == [3]


def test_a_hold_keeps_its_generation_only(session):
    with session.hold(1) as held:
        assert held
    session.renew()
    with session.hold(1) as held:
        assert not held
    assert generation(session) == 2
    for number, good in [(1, False), (2, True)]:
        with session.hold(number) as held:
            assert held is good
    session.close()
    with session.hold(2) as held:
        assert not held


def test_an_error_within_a_hold_counts_as_one_within_a_use(session):
    with pytest.raises(Uninitialized), session.hold(1):
        raise translate("f", 1)
    assert generation(session) == 2


def test_a_use_goes_on_beside_a_hold(session):
    with session.hold(1):
        assert generation(session) == 1


def test_nvml_is_made_anew_as_soon_as_a_hold_is_over(session, fake, monkeypatch):
    monkeypatch.setattr("dradriver.nvml.session.SLICE", 1e4)
    held, seen = threading.Event(), []

    def hold():
        with session.hold(1):
            held.set()
            renewed.wait(60)
            seen.append(fake.calls[SHUTDOWN])

    renewed = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    session.renew()
    threading.Timer(0.1, renewed.set).start()
    assert generation(session) == 2
    thread.join(60)
    assert (seen, fake.calls[SHUTDOWN]) == ([0], 1)


def test_a_hold_that_hangs_is_taken_as_a_use_that_hangs(session, fake, clock):
    hold = session.hold(1)
    hold.__enter__()
    session.renew()
    clock.now += 2 * SLICE + 1  # Nobody waits for it any more.
    assert (generation(session), fake.calls[SHUTDOWN]) == (1, 0)
    clock.now += HANGS_AFTER
    assert (generation(session), fake.calls[SHUTDOWN]) == (2, 1)
    hold.__exit__(None, None, None)
    assert (generation(session), fake.initialized) == (2, 1)


def test_nvml_is_not_shut_down_under_a_hold(session, fake):
    with session.hold(1):
        session.close()
        assert fake.initialized == 1
    assert (fake.calls[SHUTDOWN], fake.initialized) == (1, 0)


def test_a_driver_that_comes_back_later_is_found(session, fake):
    session.renew()
    fake.failures[INIT] = [9, 9]
    for _ in range(2):
        with pytest.raises(DriverNotLoaded):
            generation(session)
    assert generation(session) == 2
    assert fake.initialized == 1


def test_a_failing_shutdown_does_not_keep_it_from_starting_anew(session, fake):
    fake.failures[SHUTDOWN] = [1]
    session.renew()
    assert generation(session) == 2


def test_a_closed_session_says_so(session, fake):
    session.close()
    session.close()
    assert fake.calls[SHUTDOWN] == 1
    with pytest.raises(Uninitialized, match="this session was closed"):
        generation(session)
    assert fake.initialized == 0
