import re

import pytest
from bench.aims import AIMS, Aims
from bench.figures import Figure, aligned, in_unit, percentile, show, timed
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=300)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([1], 99, 1),
        ([1, 2], 50, 1),
        ([1, 2], 51, 2),
        (range(1, 101), 99, 99),
        (range(1, 201), 99, 198),
        ([3, 1, 2], 0, 1),
    ],
)
def test_percentiles_are_values_that_were_measured(values, percent, expected):
    assert percentile(list(values), percent) == expected


@given(VALUES, st.integers(1, 100))
def test_a_percentile_is_the_least_value_that_is_not_exceeded_so_often(values, percent):
    found = percentile(values, percent)
    assert sum(value <= found for value in values) * 100 >= percent * len(values)
    assert sum(value < found for value in values) * 100 < percent * len(values)


@given(VALUES)
def test_a_figure_lies_between_its_extremes(values):
    figure = Figure(what="x", values=tuple(values))
    assert min(values) <= figure.median <= max(values)
    assert figure.median <= figure.p99 or len(values) < 3


@pytest.mark.parametrize(
    ("number", "text"), [(0.123, "0.12 ms"), (9.876, "9.88 ms"), (12.34, "12.3 ms"), (743.6, "744 ms")]
)
def test_numbers_have_three_digits(number, text):
    assert in_unit(number, "ms") == text


def test_columns_are_aligned():
    assert aligned([("a", "b"), ("long", "10")]) == "  a      b\n  long  10"


def test_a_table_has_a_line_for_each_figure(capsys):
    show("Title", [Figure(what="first", values=(1, 2, 3)), Figure(what="second", values=(4,), unit="MiB")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "Title"
    assert lines[3].split() == ["first", "3", "2.00", "ms", "3.00", "ms", "1.00", "ms", "3.00", "ms"]
    assert lines[4].split()[:3] == ["second", "1", "4.00"]


def test_a_call_is_made_once_and_timed():
    calls = []
    assert timed(lambda: calls.append(1)) >= 0
    assert calls == [1]


def test_each_aim_has_a_line_that_says_whether_it_was_met(capsys):
    aims = Aims()
    for index, (name, aim) in enumerate(AIMS.items()):
        aims.note(name, Figure(what=name, values=(aim.most + index % 2,)))
    aims.show()
    lines = capsys.readouterr().out.splitlines()[-len(AIMS) :]
    assert [re.sub(r"  .*", "", line.strip()) for line in lines] == list(AIMS)
    assert [line.split()[-1] for line in lines] == [("met", "missed")[index % 2] for index in range(len(AIMS))]
