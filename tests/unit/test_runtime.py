"""What the composition itself decides; the rest is seen on a real node."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from dradriver.prepare import Preparer
from dradriver.runtime import Runtime

PATIENCE = 60


def runtime(**parts):
    names = ("reconciler", "preparer", "teller", "events", "publisher", "web", "nvml", "client")
    made = Runtime.__new__(Runtime)
    vars(made).update({f"_{name}": None for name in names}, _stopping=threading.Event(), _started=True)
    for name in ("offering", "configuration", "health", "turn"):
        vars(made)[f"_{name}"] = SimpleNamespace(stop=lambda: None, end=lambda: None, alive=True)
    vars(made).update({f"_{name}": part for name, part in parts.items()})
    return made


def test_an_api_server_that_does_not_answer_costs_one_time_out_only():
    both = threading.Barrier(2)

    def wait():
        both.wait(PATIENCE)

    order = []
    part = SimpleNamespace(stop=lambda: order.append("web"))
    runtime(publisher=SimpleNamespace(stop=wait), reconciler=SimpleNamespace(stop=wait), web=part).stop()
    assert not both.broken
    assert order == ["web"]


def test_what_has_something_to_tell_is_stopped_before_who_tells_it():
    order = []

    def note(name):
        return lambda **_options: order.append(name)

    runtime(
        **{name: SimpleNamespace(stop=note(name)) for name in ("reconciler", "teller", "events", "web")},
        **{name: SimpleNamespace(close=note(name)) for name in ("preparer", "nvml", "client")},
    ).stop()
    assert order == ["reconciler", "preparer", "teller", "events", "web", "nvml", "client"]


def test_a_call_that_hangs_does_not_keep_the_preparer_from_closing():
    inside, leave = threading.Event(), threading.Event()
    pool = ThreadPoolExecutor(max_workers=1)
    call = pool.submit(lambda: (inside.set(), leave.wait(PATIENCE)))
    assert inside.wait(PATIENCE)
    preparer = Preparer.__new__(Preparer)
    preparer._pools = {"prepare": pool}
    runtime(preparer=preparer).stop()
    assert not call.done()
    leave.set()
    assert call.result(PATIENCE)


RUNS, ENDED = SimpleNamespace(alive=True), SimpleNamespace(alive=False)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, None),
        ({"publisher": RUNS, "offering": RUNS}, None),
        ({"publisher": ENDED, "offering": RUNS}, "slices"),
        ({"publisher": RUNS, "offering": ENDED}, "offers the GPUs"),
        ({"publisher": RUNS, "health": ENDED}, "watches over the GPUs"),
    ],
)
def test_a_thread_that_has_ended_is_told_to_who_asks_for_health(parts, words):
    made = runtime(**parts)
    trouble = made._trouble()
    assert (trouble is None) if words is None else words in trouble
    made._started = False
    assert made._trouble() is None, "what is not there yet has not ended"
    made._started = True
    made._stopping.set()
    assert made._trouble() is None
