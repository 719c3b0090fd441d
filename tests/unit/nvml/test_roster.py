import pytest

from dradriver.nvml.roster import Roster


@pytest.fixture
def roster():
    roster = Roster()
    roster.counted(2)
    roster.met(0, "GPU-a")
    roster.met(1, "GPU-b")
    return roster


def known(roster):
    return roster.uuid_at(0), roster.uuid_at(1)


def test_gpus_are_found_by_index_and_by_name(roster):
    assert known(roster) == ("GPU-a", "GPU-b")
    assert (roster.index_of("GPU-b"), roster.index_of("GPU-c"), roster.uuid_at(2)) == (1, None, None)


def test_the_same_count_changes_nothing(roster):
    roster.counted(2)
    assert known(roster) == ("GPU-a", "GPU-b")


def test_another_count_means_other_gpus(roster):
    roster.counted(3)
    assert known(roster) == (None, None)
    assert roster.index_of("GPU-a") is None


def test_where_nvml_contradicts_nothing_is_believed_any_more(roster):
    roster.met(0, "GPU-b")
    assert known(roster) == ("GPU-b", None)
    assert roster.index_of("GPU-b") == 0


def test_places_stay_whatever_the_indices_do(roster):
    roster.placed("GPU-a", "0000:41:00.0")
    roster.counted(1)
    assert (roster.bus_id("GPU-a"), roster.bus_id("GPU-b"), roster.bus_id(None)) == ("0000:41:00.0", None, None)
