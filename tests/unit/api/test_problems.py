import pytest

from dradriver.api.problems import Problem, show_path, show_value


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ((), ""),
        (("configs",), "configs"),
        (("configs", "a100", "gpus", 0, "mig"), "configs.a100.gpus[0].mig"),
        (("configs", "all-1g.5gb", "order"), "configs['all-1g.5gb'].order"),
        (("two\nlines",), "['two\\nlines']"),
        ((0, 1), "[0][1]"),
    ],
)
def test_a_path_is_written_as_people_do(path, shown):
    assert show_path(path) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "empty"),
        (False, "false"),
        (True, "true"),
        ({"a": 1}, "a mapping"),
        ([1], "a list"),
        ("off", "'off'"),
        (7, "7"),
        ("two\nlines", "'two\\nlines'"),
    ],
)
def test_a_value_is_written_so_that_it_is_found(value, shown):
    assert show_value(value) == shown


def test_what_is_long_is_shortened():
    assert len(show_value("x" * 5000)) < 100
    assert len(show_path(("x." * 5000,))) < 100


def test_a_problem_is_its_path_and_its_text():
    assert str(Problem(path=("a", 0), text="is missing")) == "a[0]: is missing"
    assert str(Problem(text="it is empty")) == "it is empty"
