from controller.labelling.pacing import Pace

EIGHT, SEVEN = {"gpu.count": "8"}, {"gpu.count": "7"}


def test_what_is_undone_is_written_twice_as_late_each_time():
    pace, now, waited = Pace(least=2.0, most=10.0), 0.0, []
    for _ in range(6):
        waited.append(pace.wait("a", EIGHT, now=now))
        now += waited[-1]
        pace.wrote("a", EIGHT, now=now)
    assert waited == [0.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_node_that_changes_does_not_wait_for_what_was_undone():
    pace = Pace(least=2.0)
    for _ in range(5):
        pace.wrote("a", EIGHT, now=0.0)
    assert pace.wait("a", EIGHT, now=0.0) == 32.0
    assert pace.wait("a", SEVEN, now=0.0) == 2.0
    pace.wrote("a", SEVEN, now=2.0)
    assert pace.wait("a", EIGHT, now=2.0) == 2.0


def test_a_node_that_changes_all_the_time_is_written_at_the_same_pace():
    pace, now = Pace(least=2.0), 0.0
    for number in range(20):
        labels = {"gpu.count": str(number)}
        assert pace.wait("a", labels, now=now) == (2.0 if number else 0.0)
        now += 2.0
        pace.wrote("a", labels, now=now)


def test_nodes_do_not_wait_for_each_other():
    pace = Pace()
    pace.wrote("a", EIGHT, now=0.0)
    assert pace.wait("a", EIGHT, now=0.0) > 0
    assert pace.wait("b", EIGHT, now=0.0) == 0.0


def test_a_node_that_was_left_in_peace_begins_anew():
    pace = Pace(least=2.0)
    for _ in range(3):
        pace.wrote("a", EIGHT, now=0.0)
    assert pace.wait("a", EIGHT, now=0.0) == 8.0
    pace.wrote("a", EIGHT, now=1000.0)
    assert pace.wait("a", EIGHT, now=1000.0) == 2.0


def test_a_pace_of_nothing_never_waits():
    pace = Pace(least=0.0, most=0.0)
    for _ in range(3):
        assert pace.wait("a", EIGHT, now=0.0) == 0.0
        pace.wrote("a", EIGHT, now=0.0)


def test_a_node_that_is_gone_is_forgotten():
    pace = Pace()
    pace.wrote("a", EIGHT, now=0.0)
    pace.forget("a")
    assert pace.wait("a", EIGHT, now=0.0) == 0.0
    pace.forget("a")
