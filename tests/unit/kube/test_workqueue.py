import threading

from hypothesis import given
from hypothesis import strategies as st

from dradriver.kube import Backoff, WorkQueue
from dradriver.kube.errors import from_status


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def make(clock=None):
    return WorkQueue(backoff=Backoff(initial=1, maximum=8), clock=clock or Clock(), chance=lambda: 0.0)


def drain(queue):
    keys = []
    while (key := queue.get(timeout=0)) is not None:
        keys.append(key)
        queue.done(key)
    return keys


def test_a_waiting_key_is_there_once_and_order_is_kept():
    queue = make()
    for key in "abcab":
        queue.add(key)
    assert drain(queue) == ["a", "b", "c"]


def test_a_key_added_while_held_comes_back_after_done():
    queue = make()
    queue.add("a")
    assert queue.get(timeout=0) == "a"
    queue.add("a")
    assert queue.get(timeout=0) is None
    queue.done("a")
    assert drain(queue) == ["a"]


def test_a_delayed_key_comes_when_due_and_the_earliest_time_counts():
    clock = Clock()
    queue = make(clock)
    queue.add_after("a", 30)
    queue.add_after("a", 5)
    queue.add_after("a", 60)
    clock.now += 4.9
    assert drain(queue) == []
    clock.now += 0.2
    assert drain(queue) == ["a"]
    clock.now += 100
    assert drain(queue) == []


def test_adding_at_once_does_not_cancel_a_later_date():
    clock = Clock()
    queue = make(clock)
    queue.add_after("a", 30)
    queue.add("a")
    assert drain(queue) == ["a"]
    clock.now += 31
    assert drain(queue) == ["a"]


def test_retries_slow_down_for_each_key_until_forgotten():
    queue = make()
    assert [queue.retry("a") for _ in range(5)] == [1, 2, 4, 8, 8]
    assert queue.retry("b") == 1
    queue.forget("a")
    assert queue.retry("a") == 1


def test_retry_obeys_the_server():
    queue = make()
    assert queue.retry("a", error=from_status(429, {}, target="x", retry_after=20.0)) == 20


def test_close_wakes_a_waiting_worker():
    queue = WorkQueue()
    got = []
    worker = threading.Thread(target=lambda: got.append(queue.get()))
    worker.start()
    queue.close()
    worker.join(20)
    assert got == [None]
    queue.add("late")
    assert queue.get() is None


def test_a_delayed_key_wakes_a_worker_that_waits_without_limit():
    queue = WorkQueue()
    got = []
    worker = threading.Thread(target=lambda: got.append(queue.get()))
    worker.start()
    queue.add_after("a", 0.01)
    worker.join(20)
    assert got == ["a"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=20))
def test_every_delayed_key_arrives_once_by_its_earliest_time(plans):
    clock = Clock()
    queue = make(clock)
    for key, seconds in plans:
        queue.add_after(key, seconds)
    clock.now += 10
    assert sorted(drain(queue)) == sorted({key for key, _ in plans})


@given(st.lists(st.sampled_from(["add a", "add b", "get", "done"]), max_size=40))
def test_no_key_is_held_twice_and_none_is_lost(steps):
    queue, held, wanted = make(), [], set()
    for step in steps:
        if step == "get":
            key = queue.get(timeout=0)
            if key is not None:
                assert key not in held
                held.append(key)
                wanted.discard(key)
        elif step == "done" and held:
            queue.done(held.pop(0))
        elif step.startswith("add"):
            queue.add(step[-1])
            wanted.add(step[-1])
    for key in held:
        queue.done(key)
    assert set(drain(queue)) == wanted
