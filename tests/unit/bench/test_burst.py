import json

import pytest
from bench.burst import LATENCIES, Burst, _slow, measure
from bench.figures import Figure
from doubles.machines import simulation_main


def burst(*, slow=True, prepare=(4510.0,), unprepare=(9900.0,)):
    return Burst(
        claims=56,
        most=7,
        slow=slow,
        prepare=Figure(what="prepare", values=prepare),
        unprepare=Figure(what="unprepare", values=unprepare),
    )


def test_the_limit_is_that_of_the_fullest_gpu():
    assert burst().limit == 2000 + 7 * 300
    assert burst(slow=False).limit == 0


def test_ratio_and_overhead_are_what_lies_beyond_the_limit():
    assert burst().ratio.median == pytest.approx(1.1)
    assert burst(prepare=(4100.0 + 56,)).overhead.values == (1.0,)
    assert burst(slow=False, prepare=(112.0,)).overhead.values == (2.0,)


def test_lines_tell_both_directions():
    assert "1.10 times the serial limit of 4.1 s" in "".join(burst().lines())
    assert "Unprepare 1.10 times 9.0 s" in "".join(burst().lines())
    assert "2.00 ms for each claim" in "".join(burst(slow=False, prepare=(112.0,)).lines())


@pytest.fixture
def simulation(tmp_path):
    folder = tmp_path / "node"
    assert simulation_main(["--state", str(folder), "create", "1xh100-80gb"]) == 0
    return folder


def latencies(simulation, capsys):
    capsys.readouterr()
    simulation_main(["--state", str(simulation), "show"])
    return json.loads(capsys.readouterr().out)["latencies_ms"]


def test_gpus_are_slow_within_the_block_only(simulation, capsys):
    with _slow(simulation):
        assert latencies(simulation, capsys) == LATENCIES
    assert latencies(simulation, capsys) == {}


class Caller:
    """Notes the largest number of claims in the hands of the plugin at each end of a burst."""

    def __init__(self):
        self.held, self.calls = set(), []

    def prepare(self, claims):
        self.held.update(claims)
        self.calls.append(len(claims))

    def unprepare(self, claims):
        assert self.held.issuperset(claims)
        self.held.difference_update(claims)


def test_one_claim_of_each_gpu_then_all_are_measured_and_given_back(simulation):
    caller = Caller()
    found = measure(caller, simulation, [["a", "b"], ["c", "d"]], rounds=2)
    assert [(each.claims, each.most, each.slow) for each in found] == [(2, 1, True), (4, 2, True), (4, 2, False)]
    assert {len(each.prepare.values) for each in found} == {2}
    assert caller.held == set()
    assert sum(caller.calls) == 2 * (2 + 4 + 4)
