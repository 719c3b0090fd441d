"""Time limits, and servers or proxies that speak HTTP in other ways than an API server does."""

import json
import threading
import time
from types import SimpleNamespace

import pytest
import urllib3
from doubles.apiserver import PATIENCE
from doubles.rawserver import serving

from dradriver.kube import NODES, RESOURCE_SLICES, Client, UnreachableError
from dradriver.kube import transport as room
from dradriver.kube.transport import HttpTransport, Request

NODE = json.dumps({"kind": "Node", "metadata": {"name": "a"}}).encode()
EVENT = json.dumps({"type": "ADDED", "object": {"metadata": {"name": "s", "resourceVersion": "2"}}}).encode() + b"\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


def client(url, **options):
    transport = HttpTransport(
        server=url, manager=urllib3.PoolManager(), authorization=lambda: "", user_agent="t", **options
    )
    return Client(transport)


def dripping(data):
    """Each byte comes long before a limit for one read is over, all of them long after one for the whole."""

    def script(connection):
        for byte in data:
            connection.sendall(bytes([byte]))
            time.sleep(0.05)

    return script


@pytest.mark.parametrize(
    "answer",
    [
        b"%bcontent-length: %d\r\n\r\n%b" % (OK, len(NODE), NODE),
        b"%btransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (OK, len(NODE), NODE),
        b"HTTP/1.0 200 OK\r\n\r\n" + NODE,
    ],
)
@pytest.mark.parametrize("at_once", [0, 60])
def test_a_dripping_answer_is_given_up_when_its_time_is_over(answer, at_once):
    def script(connection):
        connection.sendall(answer[:at_once])
        dripping(answer[at_once:] + b" " * 200)(connection)

    with serving(script) as url, pytest.raises(UnreachableError, match=r"[Tt]imed? ?out|Timeout"):
        client(url).get(NODES, "a", timeout=0.3)


def test_a_slow_answer_is_taken_while_there_is_time():
    answer = b"%bcontent-length: %d\r\n\r\n%b" % (OK, len(NODE), NODE)

    def script(connection):
        connection.sendall(answer[:-10])
        dripping(answer[-10:])(connection)

    with serving(script) as url:
        assert client(url).get(NODES, "a", timeout=PATIENCE)["metadata"]["name"] == "a"


class Breaking:
    """A manager whose first connections break after some time."""

    pool_classes_by_scheme = {}  # noqa: RUF012 - replaced, not changed

    def __init__(self, *seconds):
        self.now, self.seconds, self.limits = 0.0, list(seconds), []

    def request(self, *_arguments, timeout, **_options):
        self.limits.append((timeout.connect_timeout, timeout.read_timeout))
        if self.seconds:
            self.now += self.seconds.pop(0)
            raise urllib3.exceptions.ProtocolError("Connection aborted.")
        return SimpleNamespace(status=200, headers={}, data=NODE)


def test_what_a_broken_connection_took_is_missing_to_the_second_one():
    manager = Breaking(7.0)
    transport = HttpTransport(
        server="http://x", manager=manager, authorization=lambda: "", user_agent="t", clock=lambda: manager.now
    )
    assert transport.send(Request(method="GET", path="/", timeout=8.0)).status == 200
    assert manager.limits == [(5.0, 8.0), (1.0, 1.0)]


def test_a_connection_that_breaks_when_the_time_is_over_is_the_last():
    manager = Breaking(8.0)
    transport = HttpTransport(
        server="http://x", manager=manager, authorization=lambda: "", user_agent="t", clock=lambda: manager.now
    )
    with pytest.raises(UnreachableError, match="aborted"):
        transport.send(Request(method="GET", path="/", timeout=8.0))
    assert len(manager.limits) == 1


# --- watches --------------------------------------------------------------------------------------

WAYS = {
    "as an API server": (OK + b"transfer-encoding: chunked\r\n\r\n", b"%x\r\n%b\r\n" % (len(EVENT), EVENT)),
    "proxy that closes": (
        OK + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n",
        b"%x\r\n%b\r\n" % (len(EVENT), EVENT),
    ),
    "until the end": (OK + b"connection: close\r\n\r\n", EVENT),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n\r\n", EVENT),
    "known length": (OK + b"content-length: %d\r\n\r\n" % (3 * len(EVENT)), EVENT),
}


@pytest.fixture(params=WAYS.values(), ids=WAYS.keys())
def way(request):
    return request.param


def watch(url):
    return client(url).watch(RESOURCE_SLICES, resource_version="1", seconds=60)


def test_events_are_delivered_when_they_come(way):
    head, event = way
    delivered = [threading.Event(), threading.Event()]

    def script(connection):
        connection.sendall(head)
        for each in delivered:
            connection.sendall(event)
            each.wait(PATIENCE)

    with serving(script) as url, watch(url) as stream:
        events = stream.events()
        for each in delivered:
            assert next(events).object["metadata"]["name"] == "s"
            each.set()


@pytest.mark.parametrize("way", [WAYS["proxy that closes"], WAYS["HTTP/1.0"]])
def test_silence_before_the_first_event_is_not_that_before_the_headers(way, monkeypatch):
    monkeypatch.setattr(room, "_HEADER_TIMEOUT", 1.0)
    head, event = way

    def script(connection):
        connection.sendall(head)
        time.sleep(1.5)
        connection.sendall(event)

    with serving(script) as url, watch(url) as stream:
        assert next(stream.events()).type == "ADDED"


def test_a_reader_is_stopped_from_another_thread(way):
    head, event = way
    never, ended = threading.Event(), threading.Event()

    def script(connection):
        connection.sendall(head + event)
        never.wait(PATIENCE)

    def follow(stream, reading):
        try:
            for _ in stream.events():
                reading.set()
        except UnreachableError:
            pass
        ended.set()

    reading = threading.Event()
    with serving(script) as url, watch(url) as stream:
        reader = threading.Thread(target=follow, args=(stream, reading))
        reader.start()
        assert reading.wait(PATIENCE)
        stream.abort()
        assert ended.wait(PATIENCE)
        never.set()
        reader.join(PATIENCE)


def test_a_connection_cut_within_a_chunk_is_an_error():
    head, _ = WAYS["as an API server"]
    with serving(lambda connection: connection.sendall(head + b"ff\r\n{")) as url, watch(url) as stream:
        events = stream.events()
        with pytest.raises(UnreachableError):
            next(events)
