"""Of two instances on one node only the newer one writes; see `dradriver.turns`."""

from doubles.pools import device_slice

from dradriver.publish import publisher as module


def test_nothing_is_written_while_another_instance_publishes(publish, server, monkeypatch):
    monkeypatch.setattr(module, "_TURN_SECONDS", 0.02)
    asked, ours = [], []

    def is_ours():
        asked.append(bool(ours))
        return bool(ours)

    publisher = publish((device_slice(0),), is_our_turn=is_ours)
    assert server.wait(lambda: len(asked) > 3)
    assert server.writes == []
    assert not publisher.published
    ours.append(True)
    assert server.wait(lambda: publisher.published)
    assert len(server.names("resourceslices")) == 1


def test_what_another_instance_did_meanwhile_is_put_right_when_it_has_ended(publish, server, monkeypatch):
    monkeypatch.setattr(module, "_TURN_SECONDS", 0.02)
    others, doubts = [], []
    publisher = publish(
        (device_slice(0), device_slice(1)), is_our_turn=lambda: not others, on_doubt=lambda: doubts.append(True)
    )
    assert server.wait(lambda: publisher.published)
    first, second = server.names("resourceslices")
    before = devices(server, first)
    others.append(True)
    server.edit("resourceslices", first, lambda item: item["spec"]["devices"].pop())
    server.remove("resourceslices", second)
    writes = len(server.writes)
    assert not server.wait(lambda: len(server.writes) > writes, timeout=0.3)
    others.clear()
    assert server.wait(lambda: server.names("resourceslices") == [first, second])
    assert server.wait(lambda: devices(server, first) == before)
    assert server.wait(lambda: bool(doubts)), "the API server may be another one by now"


def devices(server, name):
    (found,) = (item for item in server.all("resourceslices") if item["metadata"]["name"] == name)
    return found["spec"]["devices"]
