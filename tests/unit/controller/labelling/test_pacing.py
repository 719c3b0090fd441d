from controller.labelling.pacing import Pace


def test_the_first_write_is_at_once_and_others_twice_as_late_each_time():
    pace, now, waited = Pace(least=2.0, most=10.0), 0.0, []
    for _ in range(6):
        waited.append(pace.wait("a", now=now))
        now += waited[-1]
        pace.wrote("a", now=now)
    assert waited == [0.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_nodes_do_not_wait_for_each_other():
    pace = Pace()
    pace.wrote("a", now=0.0)
    assert pace.wait("a", now=0.0) > 0
    assert pace.wait("b", now=0.0) == 0.0


def test_a_node_that_was_left_in_peace_begins_anew():
    pace = Pace(least=2.0)
    for _ in range(3):
        pace.wrote("a", now=0.0)
    assert pace.wait("a", now=0.0) == 8.0
    pace.wrote("a", now=1000.0)
    assert pace.wait("a", now=1000.0) == 2.0


def test_a_node_that_is_gone_is_forgotten():
    pace = Pace()
    pace.wrote("a", now=0.0)
    pace.forget("a")
    assert pace.wait("a", now=0.0) == 0.0
    pace.forget("a")
