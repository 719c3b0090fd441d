import pytest
from bench.publishing import ALL, FIRST, OFFERS, SAME, TAINT, Cost, Counted, show, slices_of

from dradriver.kube.transport import Request
from dradriver.resource import validate


class Transport:
    def __init__(self):
        self.sent = []

    def send(self, request):
        self.sent.append(request)
        return "answer"


def test_only_what_changes_something_is_counted():
    counted = Counted(transport=Transport())
    for method, body in (("GET", None), ("POST", b"1234"), ("PUT", b"12"), ("DELETE", None)):
        assert counted.send(Request(method=method, path="/", body=body, timeout=1)) == "answer"
    assert (counted.writes, counted.sent) == (3, 6)
    assert len(counted.transport.sent) == 4


@pytest.mark.parametrize("name", OFFERS)
def test_a_node_of_sixteen_gpus_takes_two_counter_slices(name):
    slices = slices_of(*OFFERS[name])
    validate(slices)
    assert [bool(part.counter_sets) for part in slices] == [True] * 2 + [False] * 16


def test_medians_are_shown_by_offer_and_change(capsys):
    costs = [Cost(time=time, cpu=2.0, writes=18, sent=2048) for time in (1.0, 50.0, 7.0)]
    show({"lean": dict.fromkeys((FIRST, SAME, TAINT, ALL), costs)})
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4].split() == ["lean:", *FIRST.split(), "18", "2", "KiB", "7.00", "ms", "2.00", "ms"]
