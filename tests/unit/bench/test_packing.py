import argparse
from collections import Counter
from math import factorial
from statistics import fmean

import pytest
from bench.packing import (
    KINDS,
    MIXES,
    Comparison,
    Ledger,
    Node,
    Outcome,
    Request,
    arrival_rate,
    compare,
    interval,
    place,
    publish,
    requests,
    runs,
    serve,
    show,
    student,
    used_profiles,
)
from hypothesis import given
from hypothesis import strategies as st

from dradriver.gpu.policy import Order

COUNTERS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 127), min_size=1)


@given(COUNTERS, st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 127))))
def test_a_ledger_refuses_exactly_what_counters_refuse(totals, wishes):
    ledger, left = Ledger(totals), Counter(totals)
    for wish in wishes:
        wanted = {name: amount for name, amount in wish.items() if name in totals}
        after = ledger.left - ledger.amount(wanted)
        fits = all(left[name] >= amount for name, amount in wanted.items())
        assert (after & ledger.guards == ledger.guards) is fits
        if fits:
            ledger.left = after
            left.subtract(wanted)


def test_each_kind_finds_its_devices():
    node = Node(publish("8xh100-80gb", Order.PACKED, "all"))
    assert {kind: len(node.candidates(kind)) // 8 for kind in KINDS} == {
        "1g": 7,
        "1g+me": 7,
        "double": 4,
        "2g": 3,
        "3g": 2,
        "4g": 1,
        "7g": 1,
        "whole": 1,
        ">=1": 26,
        ">=2": 12,
        ">=4": 5,
    }


def test_devices_are_tried_as_they_are_published():
    def first(order, kind):
        node = Node(publish("8xh100-80gb", order, "standard"))
        return place(node.candidates(kind)).slices

    assert first(Order.NVIDIA, ">=1") == 8
    assert first(Order.PACKED, ">=1") == 1
    assert first(Order.SPREAD, ">=4") == 4


@pytest.mark.parametrize(("kind", "fit"), [("1g", 7), ("1g+me", 1), ("double", 4), ("2g", 3), ("3g", 2), ("whole", 1)])
def test_a_gpu_takes_as_many_partitions_as_the_hardware_allows(kind, fit):
    candidates = Node(publish("1xh100-80gb", Order.PACKED, "all")).candidates(kind)
    assert [place(candidates) is not None for _ in range(fit + 1)] == [True] * fit + [False]


def test_requests_come_as_often_and_for_what_is_asked():
    mix = {"1g": 50, "4g": 50}
    rate = arrival_rate(mix, capacity=64, load=0.5)
    assert rate == 0.5 * 64 / 2.5
    made = requests(mix, rate=rate, count=20_000, seed=1)
    assert made == requests(mix, rate=rate, count=20_000, seed=1) != requests(mix, rate=rate, count=20_000, seed=2)
    assert made[-1].at == pytest.approx(20_000 / rate, rel=0.05)
    assert fmean(request.holds for request in made) == pytest.approx(1, rel=0.05)
    assert Counter(request.kind for request in made)["1g"] == pytest.approx(10_000, rel=0.05)


def erlang(servers, offered):
    """Percent of requests that a loss system of so many servers accepts, by Erlang's first formula."""
    terms = [offered**n / factorial(n) for n in range(servers + 1)]
    return 100 * (1 - terms[-1] / sum(terms))


@pytest.mark.parametrize(("kind", "servers"), [("7g", 8), ("1g", 56)])
def test_one_kind_alone_is_accepted_as_theory_says(kind, servers):
    rate = arrival_rate({kind: 100}, capacity=64, load=0.9)
    offer = publish("8xh100-80gb", Order.PACKED, "standard")
    outcomes = [serve(offer, requests({kind: 100}, rate=rate, count=8000, seed=seed)) for seed in range(4)]
    assert fmean(outcome.percent for outcome in outcomes) == pytest.approx(erlang(servers, rate), abs=1)


def test_what_is_held_is_given_back_when_its_time_is_over():
    offer = publish("1xh100-80gb", Order.PACKED, "standard")
    arrivals = [Request(at, "whole", 1.0) for at in (0.0, 0.0, 0.5, 1.0, 1.5, 2.0)]
    outcome = serve(offer, arrivals)
    assert (outcome.asked, outcome.given) == (5 * 8, 2 * 8), "the first is warming up"


def test_only_loose_requests_are_asked_what_they_take_too_much():
    arrivals = [Request(float(index), kind, 0.5) for index, kind in enumerate(["1g", "7g", ">=2", ">=4"])]
    packed, nvidia = (
        serve(publish("1xh100-80gb", order, "standard"), arrivals) for order in (Order.PACKED, Order.NVIDIA)
    )
    assert (packed.loose_given, packed.loose_taken) == (6, 6)
    assert (nvidia.loose_given, nvidia.loose_taken) == (6, 16)


def test_the_profiles_of_a_mix_are_those_it_names():
    assert used_profiles("8xh100-80gb", MIXES["inference"]) == "1g.10gb,2g.20gb,3g.40gb"
    assert used_profiles("8xh100-80gb", MIXES["with whole GPUs"]) == "1g.10gb,2g.20gb,3g.40gb"
    assert used_profiles("8xh200", {"1g+me": 1, "double": 1, ">=4": 1}) == "1g.18gb+me,1g.35gb"


@pytest.mark.parametrize("shares", MIXES.values(), ids=MIXES)
def test_shares_of_a_mix_are_percents_of_known_kinds(shares):
    assert sum(shares.values()) == 100
    assert set(shares) <= set(KINDS)


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.776), (5, 2.571), (9, 2.262), (11, 2.201), (30, 2.042)])
def test_quantiles_are_those_of_the_tables(freedom, quantile):
    assert student(freedom) == pytest.approx(quantile, rel=0.005)


def test_an_interval_narrows_with_agreement():
    assert interval([1.0, 1.0, 1.0, 1.0, 1.0]) == (1.0, 0.0)
    assert interval([0.0, 2.0, 0.0, 2.0, 1.0]) == (1.0, pytest.approx(2.776 / 5**0.5, rel=0.005))


@pytest.mark.parametrize("text", ["4", "-5", "five", ""])
def test_too_few_seeds_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="not a number of at least 5"):
        runs(text)
    assert runs("5") == 5


def compared(mix, profiles="standard"):
    return compare(mix, profiles, machine="8xh100-80gb", load=0.8, seeds=6, arrivals=3000)


def surely(found, order):
    mean, half = found.gain(order)
    return mean - half > 0


def test_packed_beats_nvidias_order_and_spread_pays_where_large_ones_are_asked_for():
    found = compared("uniform")
    assert found.gain(Order.NVIDIA) == (0, 0)
    assert surely(found, Order.PACKED)
    assert not surely(found, Order.SPREAD)


def test_packed_serves_loose_requests_with_what_they_ask_for():
    found = compared("three in ten loose")
    assert surely(found, Order.PACKED)
    assert found.excess(Order.PACKED) < 1.02
    assert found.excess(Order.NVIDIA) > 1.1


def test_a_table_tells_figures_and_differences(capsys):
    percent = {Order.PACKED: (60, 62, 60, 62, 61), Order.SPREAD: (50,) * 5, Order.NVIDIA: (60,) * 5}
    outcomes = {order: [Outcome(asked=100, given=value) for value in values] for order, values in percent.items()}
    show("Title", [Comparison(mix="any", outcomes=outcomes)])
    title, headings, row = capsys.readouterr().out.strip().splitlines()
    assert title == "Title"
    assert headings.split()[:4] == ["mix", "packed", "spread", "nvidia"]
    assert row.split() == ["any", "61.0", "50.0", "60.0", "+1.00", "±", "1.24", "-10.00", "±", "0.00"]
