"""What the composition itself decides; the rest is seen on a real node."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from dradriver.prepare import Preparer
from dradriver.runtime import Runtime

PATIENCE = 60


def runtime(**parts):
    names = ("reconciler", "preparer", "teller", "events", "publisher", "web", "nvml", "client", "watcher")
    made = Runtime.__new__(Runtime)
    vars(made).update({f"_{name}": None for name in names}, _stopping=threading.Event())
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


RUNS, ENDED = SimpleNamespace(alive=True, is_alive=lambda: True), SimpleNamespace(alive=False, is_alive=lambda: False)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, None),
        ({"publisher": RUNS, "watcher": RUNS}, None),
        ({"publisher": ENDED}, "slices"),
        ({"publisher": RUNS, "watcher": ENDED}, "offers the GPUs"),
    ],
)
def test_a_thread_that_has_ended_is_told_to_who_asks_for_health(parts, words):
    made = runtime(**parts)
    trouble = made._trouble()
    assert (trouble is None) if words is None else words in trouble
    made._stopping.set()
    assert made._trouble() is None


def node_with(*uuids):
    return SimpleNamespace(gpus={uuid: SimpleNamespace(uuid=uuid) for uuid in uuids})


def one_that_reads(*inventories):
    """Make a runtime that knows GPU a, whose NVML gives these inventories (uuids, unreadable) in turn."""
    answers = iter(inventories)

    def inventory():
        uuids, unreadable = next(answers)
        return SimpleNamespace(gpus=[SimpleNamespace(uuid=uuid) for uuid in uuids], unreadable=unreadable)

    nvml = SimpleNamespace(inventory=inventory)
    made = runtime(nvml=nvml, node=node_with("a"), complete=False, options=SimpleNamespace(mig="dynamic"))
    offered = []
    made._made_node = lambda _nvml, gpus, _mig: SimpleNamespace(gpus={gpu.uuid: gpu for gpu in gpus})
    made._offer_at_last = lambda: offered.append(sorted(made._node.gpus))
    return made, offered


def test_a_gpu_that_could_not_be_read_is_offered_once_it_can_and_what_was_offered_stays_as_it_was():
    made, offered = one_that_reads((["a"], ["b", "c"]), (["b"], ["c"]), (["a", "b", "c"], []))
    before = made._node.gpus["a"]
    for _ in range(3):
        made._offer_the_rest()
    assert offered == [["a", "b"], ["a", "b", "c"]]
    assert made._node.gpus["a"] is before
    made._offer_the_rest()  # would ask for a fourth inventory, if it still asked
    assert len(offered) == 2
