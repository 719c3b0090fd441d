import threading

import pytest

from controller.watching.news import EVERYTHING, News


def test_keys_come_once_and_in_the_order_of_their_first_coming():
    news = News()
    for key in ("b", "a", "b", "c", "a"):
        news.add("nodes", key)
    assert news.take() == [("nodes", "b"), ("nodes", "a"), ("nodes", "c")]
    assert news.take() == []
    news.add("nodes", "a")
    assert news.take() == [("nodes", "a")]


def test_groups_are_apart():
    news = News(most=2)
    for number in range(5):
        news.add("claims", f"c{number}")
    news.add("nodes", "c1")
    assert news.take() == [("claims", EVERYTHING), ("nodes", "c1")]


def test_everything_stands_for_what_came_before_and_after():
    news = News()
    for key in ("a", EVERYTHING, "b"):
        news.add("nodes", key)
    assert news.take() == [("nodes", EVERYTHING)]


@pytest.mark.parametrize(("count", "kept"), [(3, 3), (4, 1), (100_000, 1)])
def test_ever_new_names_do_not_pile_up(count, kept):
    """As those of claims do, in a process that waits for months and takes nothing."""
    news = News(most=3)
    for number in range(count):
        news.add("claims", f"claim-{number}")
    assert sum(map(len, news._keys.values())) == kept
    assert len(news.take()) == kept


def test_nothing_is_lost_between_threads():
    news, seen = News(), []
    writers = [
        threading.Thread(target=lambda base=base: [news.add("nodes", str(base + n)) for n in range(500)])
        for base in (0, 1000)
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        seen += news.take()
    seen += news.take()
    assert sorted(int(key) for _, key in seen) == [*range(500), *range(1000, 1500)]
