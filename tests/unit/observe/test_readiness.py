import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.observe.readiness import Readiness


def test_nothing_holds_at_first():
    readiness = Readiness(("registered", "published"))
    assert not readiness.ready
    assert readiness.report() == {"registered": "not yet", "published": "not yet"}


def test_ready_when_everything_holds_and_no_more_when_something_stops():
    readiness = Readiness(("registered", "published"))
    readiness.met("registered")
    assert not readiness.ready
    readiness.met("published")
    assert readiness.ready
    readiness.unmet("registered", "the kubelet refused")
    assert not readiness.ready
    assert readiness.report() == {"registered": "the kubelet refused", "published": None}


def test_an_unknown_condition_is_a_mistake():
    with pytest.raises(KeyError, match=r"publsihed.*registered"):
        Readiness(("registered",)).met("publsihed")


def test_a_report_is_a_copy():
    readiness = Readiness(("registered",))
    report = readiness.report()
    readiness.met("registered")
    assert report == {"registered": "not yet"}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=20))
def test_the_last_word_about_each_condition_counts(words):
    readiness = Readiness("abc")
    for name, holds in words:
        readiness.met(name) if holds else readiness.unmet(name, "why")
    assert readiness.ready == all(dict(words).get(name, False) for name in "abc")


def test_threads_do_not_lose_words():
    names = [str(number) for number in range(50)]
    readiness = Readiness(names)
    threads = [threading.Thread(target=readiness.met, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert readiness.ready
