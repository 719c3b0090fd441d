import threading

from controller.watching.news import News


def test_keys_come_once_and_in_the_order_of_their_first_coming():
    news = News()
    for key in ("b", "a", "b", "c", "a"):
        news.add(key)
    assert news.take() == ["b", "a", "c"]
    assert news.take() == []
    news.add("a")
    assert news.take() == ["a"]


def test_nothing_is_lost_between_threads():
    news, seen = News(), []
    writers = [
        threading.Thread(target=lambda base=base: [news.add(base + n) for n in range(500)]) for base in (0, 1000)
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        seen += news.take()
    seen += news.take()
    assert sorted(seen) == [*range(500), *range(1000, 1500)]
