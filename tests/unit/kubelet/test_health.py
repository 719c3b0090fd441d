import threading
import time

import pytest
from doubles.kubelet import HEALTH_V1, HEALTH_V1ALPHA1, V1, HealthStream, call
from hypothesis import given
from hypothesis import strategies as st

from dradriver.kubelet import ClaimReference, DeviceHealth, DraServer, Health, HealthBoard, Prepared
from dradriver.kubelet import health as module
from dradriver.kubelet._grpc import SocketServer, grpc
from dradriver.kubelet.health import RESEND_SECONDS, STREAMS, TIMEOUT_SECONDS, HealthService, shortened
from dradriver.kubelet.sockets import make_folder
from dradriver.proto.dra_health_v1_pb2 import HEALTHY, UNHEALTHY, UNKNOWN, NodeWatchResourcesResponse

OK, CANCELLED = grpc.StatusCode.OK, grpc.StatusCode.CANCELLED
UNAVAILABLE, EXHAUSTED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED
CLAIM = ClaimReference(namespace="team", name="training", uid="1")
LONG_SECONDS = 86_400.0


def device(name="gpu-0", health=Health.HEALTHY, message="", since=1000, pool="node-a"):
    return DeviceHealth(pool=pool, device=name, health=health, message=message, since=since)


def sick(name="gpu-0", message="Xid 79", **changes):
    return device(name, Health.UNHEALTHY, message, **changes)


def full_node(message):
    return [sick(f"gpu-{gpu}-mig-1g.10gb-19-{place}", message) for gpu in range(16) for place in range(47)]


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


class Handler:
    def prepare(self, claims, *, deadline):
        return {claim.uid: Prepared(devices=()) for claim in claims}

    def unprepare(self, claims, *, deadline):
        return dict.fromkeys(claim.uid for claim in claims)


@pytest.fixture
def board():
    """A board that repeats nothing while a test lasts."""
    return HealthBoard(resend=LONG_SECONDS)


@pytest.fixture
def serve(paths):
    servers = []

    def start(board, **options):
        servers.append(DraServer(Handler(), paths.dra, board=board, **options))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop(0)


@pytest.fixture
def serve_few(paths):
    """A server of the health service alone, with few streams and as many threads."""
    servers = []

    def start(board, streams, **options):
        service = HealthService(board, streams=streams, **options)
        server = SocketServer(paths.dra, services=service.services(), workers=streams + 1, provide_folder=make_folder)
        server.start()
        servers.append((service, server))
        return service

    yield start
    for service, server in servers:
        service.stop()
        server.stop(0)


# --- the board by itself ---


def watching(board):
    """What a stream reads, and the event that cancels it."""
    cancelled = threading.Event()
    return board.watch(cancelled), cancelled


def parsed(data):
    return {device.device.device_name: device for device in NodeWatchResourcesResponse.FromString(data).devices}


def test_a_device_is_told_with_every_field():
    board = HealthBoard(clock=lambda: 1234.9)
    board.post([sick("gpu-1", "Xid 79: reset the GPU", pool="node-b")])
    (told,) = parsed(next(watching(board)[0])).values()
    assert (told.device.pool_name, told.device.device_name) == ("node-b", "gpu-1")
    assert told.health == UNHEALTHY
    assert told.message == "Xid 79: reset the GPU"
    assert told.last_updated_time == 1234
    assert told.health_check_timeout_seconds == 30


@pytest.mark.parametrize(
    ("health", "number"), [(Health.HEALTHY, HEALTHY), (Health.UNHEALTHY, UNHEALTHY), (Health.UNKNOWN, UNKNOWN)]
)
def test_each_verdict_has_its_number(board, health, number):
    board.post([device(health=health)])
    assert parsed(next(watching(board)[0]))["gpu-0"].health == number


def test_the_words_are_those_of_the_pods_status():
    assert [str(health) for health in Health] == ["Healthy", "Unhealthy", "Unknown"]


def test_a_verdict_cannot_be_forgotten_for_two_repetitions():
    assert 2 * RESEND_SECONDS < TIMEOUT_SECONDS


def test_each_message_is_complete(board):
    stream, _ = watching(board)
    board.post([device("gpu-0"), device("gpu-1")])
    assert parsed(next(stream)).keys() == {"gpu-0", "gpu-1"}
    board.post([device("gpu-0"), sick("gpu-1")])
    told = parsed(next(stream))
    assert {name: entry.health for name, entry in told.items()} == {"gpu-0": HEALTHY, "gpu-1": UNHEALTHY}


def test_a_list_without_devices_is_told_too(board):
    stream, _ = watching(board)
    board.post([])
    assert parsed(next(stream)) == {}
    board.post([device()])
    assert parsed(next(stream)).keys() == {"gpu-0"}


def test_a_burst_is_told_once_and_by_its_last_list(board):
    stream, _ = watching(board)
    board.post([device()])
    next(stream)
    for number in range(100):
        board.post([sick(message=f"Xid {number}")])
    assert parsed(next(stream))["gpu-0"].message == "Xid 99"
    board.close()
    assert list(stream) == []


def test_what_went_and_came_back_unseen_is_told_as_it_is(board):
    stream, _ = watching(board)
    board.post([device()])
    next(stream)
    board.post([sick()])
    board.post([device()])
    assert parsed(next(stream))["gpu-0"].health == HEALTHY


@pytest.mark.parametrize(
    "again",
    [
        [device("gpu-0"), device("gpu-1")],
        [device("gpu-1"), device("gpu-0")],
        [device("gpu-0", since=2000), device("gpu-1")],
        [sick("gpu-1"), device("gpu-0"), device("gpu-1")],
    ],
    ids=["same", "other order", "other time", "last verdict counts"],
)
def test_what_changes_nothing_wakes_nobody(board, again):
    board.post([device("gpu-0"), device("gpu-1")])
    before = board._newest
    board.post(again)
    assert board._newest is before


@pytest.mark.parametrize(
    "changed",
    [
        [sick()],
        [device(message="recovered")],
        [device("gpu-1")],
        [device(pool="node-b")],
        [device(), device("gpu-1")],
        [],
    ],
    ids=["health", "message", "name", "pool", "one more", "none"],
)
def test_what_the_kubelet_can_see_is_a_change(board, changed):
    board.post([device()])
    before = board._newest
    board.post(changed)
    assert board._newest.revision == before.revision + 1


def test_an_unchanged_list_is_repeated_with_a_time_of_late():
    now = [1000.0]
    board = HealthBoard(resend=0.01, clock=lambda: now[0])
    board.post([sick()])
    stream, _ = watching(board)
    times = []
    for now[0] in (1000.0, 1010.0, 1020.0, 1030.0):
        times.append(parsed(next(stream))["gpu-0"].last_updated_time)
    assert times == [1000, 1010, 1020, 1030]


def test_a_clock_that_is_set_back_is_followed():
    now = [1000.0]
    board = HealthBoard(resend=10.0, clock=lambda: now[0])
    board.post([device()])
    assert parsed(next(watching(board)[0]))["gpu-0"].last_updated_time == 1000
    now[0] = 400.0
    assert parsed(next(watching(board)[0]))["gpu-0"].last_updated_time == 400


def test_one_message_is_made_for_all_streams_and_a_while(monkeypatch):
    now, made = [1000.0], []
    serialize = module._serialize
    monkeypatch.setattr(module, "_serialize", lambda devices, *, now: made.append(now) or serialize(devices, now=now))
    board = HealthBoard(resend=10.0, clock=lambda: now[0])
    board.post(full_node("Xid 79"))
    streams = [watching(board)[0] for _ in range(8)]
    assert len({next(stream) for stream in streams}) == 1
    assert made == [1000]
    now[0] = 1009.0
    next(watching(board)[0])
    assert made == [1000]
    board.post([device()])
    assert len({next(stream) for stream in streams}) == 1
    assert made == [1000, 1009]


def test_what_was_sent_is_never_older_than_the_kubelet_believes():
    now = [0.0]
    board = HealthBoard(resend=10.0, clock=lambda: now[0])
    board.post([device()])
    next(watching(board)[0])
    for now[0] in (3.0, 9.9, 12.0, 19.0, 25.0, 33.0):
        told = parsed(next(watching(board)[0]))["gpu-0"].last_updated_time
        assert now[0] - told + RESEND_SECONDS < TIMEOUT_SECONDS


def test_a_full_node_fits_into_a_message_of_grpc(board):
    board.post(full_node("x" * 5000))
    data = next(watching(board)[0])
    assert len(NodeWatchResourcesResponse.FromString(data).devices) == 752
    assert len(data) < 4 * 1024 * 1024 / 4


def test_a_closed_board_tells_nothing_more(board):
    board.post([device()])
    stream, _ = watching(board)
    next(stream)
    board.close()
    board.close()
    board.post([sick()])
    assert list(stream) == []
    assert list(watching(board)[0]) == []
    assert board.closed


def test_cancelling_ends_one_stream_and_no_other(board):
    board.post([device()])
    (first, cancelled), (second, _) = watching(board), watching(board)
    next(first)
    next(second)
    board.cancel(cancelled)
    assert list(first) == []
    board.post([sick()])
    assert parsed(next(second))["gpu-0"].health == UNHEALTHY


def test_posting_from_many_threads_leaves_one_whole_list(board):
    def post(writer):
        for turn in range(50):
            board.post([device(f"gpu-{gpu}", message=f"{writer}.{turn}") for gpu in range(8)])

    threads = [threading.Thread(target=post, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert board._newest.revision == 400
    (message,) = {entry.message for entry in parsed(next(watching(board)[0])).values()}
    assert message.endswith(".49")


def test_posting_does_not_wait_for_who_serializes(board, monkeypatch):
    board.post([device()])
    busy, done = threading.Event(), threading.Event()

    def serialize(_devices, *, now):
        busy.set()
        assert done.wait(60)
        return b""

    monkeypatch.setattr(module, "_serialize", serialize)
    reader = threading.Thread(target=lambda: next(watching(board)[0]))
    reader.start()
    assert busy.wait(60)
    board.post([sick()])
    assert board._newest.devices["node-a", "gpu-0"] == sick()
    done.set()
    reader.join(60)


# --- messages ---


def test_a_message_that_fits_is_left_alone():
    assert shortened("x" * 1024) == "x" * 1024
    assert shortened("") == ""


def test_a_long_message_is_cut_where_the_kubelet_would():
    assert shortened("x" * 1025) == "x" * 1021 + "..."


@pytest.mark.parametrize("letter", ["ü", "€", "𝄞"])
def test_no_character_is_cut_in_two(letter):
    cut = shortened("x" + letter * 1000)
    assert cut.endswith(letter + "...")
    assert 1020 <= len(cut.encode()) <= 1024


@given(st.text(st.characters(exclude_categories=()), max_size=1500))
def test_any_message_can_be_sent(text):
    cut = shortened(text)
    assert len(cut.encode()) <= 1024
    escaped = text.encode("utf-8", "backslashreplace").decode()
    assert cut == escaped or escaped.startswith(cut.removesuffix("..."))


def test_a_message_that_is_no_utf8_voids_nothing(board):
    board.post([sick("gpu-0", "bad file \udcff"), device("gpu-1")])
    told = parsed(next(watching(board)[0]))
    assert told["gpu-0"].message == r"bad file \udcff"
    assert told["gpu-1"].health == HEALTHY


# --- over the socket ---


def test_both_versions_are_served(serve, paths, board):
    serve(board)
    board.post([device("gpu-0"), sick("gpu-1")])
    for version in (HEALTH_V1, HEALTH_V1ALPHA1):
        with HealthStream(paths.dra, version) as stream:
            stream.wait_for(lambda stream: stream.lists)
            assert {name: entry.health for name, entry in stream.newest.items()} == {"gpu-0": 1, "gpu-1": 2}
            assert stream.newest["gpu-1"].device.pool_name == "node-a"
            assert stream.newest["gpu-1"].last_updated_time > 1_700_000_000
            told = "message" in stream.newest["gpu-1"].DESCRIPTOR.fields_by_name
            assert told is (version == HEALTH_V1)
            assert not told or stream.newest["gpu-1"].message == "Xid 79"


def test_a_change_reaches_every_stream(serve, paths, board):
    serve(board)
    board.post([device()])
    with HealthStream(paths.dra) as first, HealthStream(paths.dra, HEALTH_V1ALPHA1) as second:
        for stream in (first, second):
            stream.wait_for(lambda stream: stream.lists)
        board.post([sick()])
        for stream in (first, second):
            stream.wait_for(lambda stream: stream.newest["gpu-0"].health == UNHEALTHY)
        board.post([device()])
        for stream in (first, second):
            stream.wait_for(lambda stream: stream.newest["gpu-0"].health == HEALTHY)
            assert len(stream.lists) == 3


def test_an_unchanged_list_is_repeated(serve, paths):
    board = HealthBoard(resend=0.02)
    serve(board)
    board.post([sick()])
    with HealthStream(paths.dra) as stream:
        stream.wait_for(lambda stream: len(stream.lists) >= 5)
        assert all(entry.message == "Xid 79" for (entry,) in stream.lists)


def test_a_stream_waits_for_the_first_post(serve, paths):
    board = HealthBoard(resend=0.01)
    server = serve(board)
    with HealthStream(paths.dra) as stream:
        assert until(lambda: len(server._health._open) == 1)
        time.sleep(0.1)  # Ten times what it takes to repeat a list, had there been one.
        assert stream.lists == []
        board.post([device()])
        stream.wait_for(lambda stream: stream.lists)
        assert stream.lists[0][0].device.device_name == "gpu-0"


def test_a_burst_over_the_socket_ends_with_the_last_list(serve, paths, board):
    serve(board)
    with HealthStream(paths.dra) as stream:
        for number in range(100):
            board.post([sick(message=f"Xid {number}")])
        stream.wait_for(lambda stream: stream.newest and stream.newest["gpu-0"].message == "Xid 99")
        numbers = [int(entry.message.split()[1]) for (entry,) in stream.lists]
        assert numbers == sorted(set(numbers))


def test_a_full_node_with_long_messages_reaches_a_client_with_usual_limits(serve, paths, board):
    serve(board)
    board.post(full_node("ü" * 5000))
    with HealthStream(paths.dra) as stream:
        stream.wait_for(lambda stream: stream.lists)
        assert len(stream.newest) == 752
        assert all(len(entry.message.encode()) <= 1024 for entry in stream.newest.values())


def test_a_reader_that_does_not_read_holds_up_nobody(serve, paths, board):
    server = serve(board)
    stuck = HealthStream(paths.dra)  # never entered, so that nobody reads
    with HealthStream(paths.dra) as reader:
        assert until(lambda: len(server._health._open) == 2)
        for number in range(30):
            board.post(full_node(f"{number} " + "x" * 1000))
            reader.wait_for(
                lambda stream, number=number: stream.lists and stream.lists[-1][0].message.startswith(f"{number} ")
            )
        assert len(server._health._open) == 2
    stuck.call.cancel()
    assert until(lambda: not server._health._open)


def test_a_cancelled_stream_makes_room_at_once(serve_few, paths, board):
    service = serve_few(board, streams=1)
    board.post([device()])
    for _ in range(5):
        with HealthStream(paths.dra) as stream:
            stream.wait_for(lambda stream: stream.lists)
            stream.call.cancel()
            assert stream.wait_for_end() is CANCELLED
        assert until(lambda: not service._open)


def test_a_stream_cancelled_before_the_first_post_ends_its_thread(serve_few, paths, board):
    service = serve_few(board, streams=1)
    with HealthStream(paths.dra):
        assert until(lambda: service._open)
    assert until(lambda: not service._open)


def test_a_connection_that_breaks_ends_its_stream(serve_few, paths, board):
    service = serve_few(board, streams=1)
    stream = HealthStream(paths.dra)
    assert until(lambda: service._open)
    stream._channel.close()
    assert until(lambda: not service._open)


def test_too_many_streams_are_refused_and_the_others_live(serve_few, paths, board, caplog):
    serve_few(board, streams=2)
    board.post([device()])
    with HealthStream(paths.dra) as first, HealthStream(paths.dra) as second:
        for stream in (first, second):
            stream.wait_for(lambda stream: stream.lists)
        with HealthStream(paths.dra) as third:
            assert third.wait_for_end() is EXHAUSTED
            assert "2 streams of device health are open already" in third.call.details()
        board.post([sick()])
        for stream in (first, second):
            stream.wait_for(lambda stream: len(stream.lists) == 2)
    assert "2 streams of device health" in caplog.text


def test_claims_are_prepared_while_all_streams_are_open(serve, paths, board):
    server = serve(board, workers=1)
    streams = [HealthStream(paths.dra) for _ in range(STREAMS)]
    assert until(lambda: len(server._health._open) == STREAMS)
    entry = call(paths.dra, V1, "NodePrepareResources", [CLAIM]).claims["1"]
    assert entry.error == ""
    with HealthStream(paths.dra) as further:
        assert further.wait_for_end() is EXHAUSTED
    assert call(paths.dra, V1, "NodeUnprepareResources", [CLAIM]).claims["1"].error == ""
    for stream in streams:
        stream.call.cancel()


# --- the end ---


def stopped(stop):
    """Run it aside: it has to come back long before the grace is over."""
    stopper = threading.Thread(target=stop, daemon=True)
    stopper.start()
    stopper.join(100)
    return not stopper.is_alive()


def test_closing_the_board_ends_streams_and_refuses_others(serve, paths, board):
    server = serve(board)
    board.post([device()])
    with HealthStream(paths.dra) as stream, HealthStream(paths.dra, HEALTH_V1ALPHA1) as other:
        for each in (stream, other):
            each.wait_for(lambda stream: stream.lists)
        board.close()
        assert stream.wait_for_end() is OK
        assert other.wait_for_end() is OK
    with HealthStream(paths.dra) as late:
        assert late.wait_for_end() is UNAVAILABLE
        assert "is stopping" in late.call.details()
    assert call(paths.dra, V1, "NodePrepareResources", [CLAIM]).claims["1"].error == ""
    assert server.serving


@pytest.mark.parametrize("posted", [True, False], ids=["with a list", "before the first post"])
def test_open_streams_do_not_use_up_the_grace(serve, paths, board, posted):
    server = serve(board)
    if posted:
        board.post([device()])
    with HealthStream(paths.dra) as stream:
        assert until(lambda: server._health._open)
        assert stopped(lambda: server.stop(250))
        assert stream.wait_for_end() is OK
    assert not paths.dra.exists()


def test_a_reader_that_does_not_read_does_not_use_up_the_grace(serve, paths, board):
    server = serve(board)
    stuck = HealthStream(paths.dra)
    assert until(lambda: server._health._open)
    while until(lambda: board._message.revision == board._newest.revision, 1):
        board.post(full_node(f"{board._newest.revision} " + "x" * 1000))
    assert board._message.revision  # The stream has sent something, and is stuck with what came after it.
    assert stopped(lambda: server.stop(250))
    assert until(lambda: not server._health._open)
    with stuck:
        assert stuck.wait_for_end() is not OK


def test_streams_over_a_removed_socket_end_too(serve, paths, board):
    server = serve(board)
    board.post([device()])
    with HealthStream(paths.dra) as old:
        old.wait_for(lambda stream: stream.lists)
        paths.dra.unlink()
        assert server.ensure()
        with HealthStream(paths.dra) as new:
            new.wait_for(lambda stream: stream.lists)
            board.post([sick()])
            for stream in (old, new):
                stream.wait_for(lambda stream: stream.newest["gpu-0"].health == UNHEALTHY)
            assert stopped(lambda: server.stop(250))
            assert old.wait_for_end() is OK
            assert new.wait_for_end() is OK


def test_stop_is_safe_before_start_and_twice(paths, board):
    server = DraServer(Handler(), paths.dra, board=board)
    server.stop(0)
    server.stop(0)
    assert board.closed


def test_without_a_board_the_service_is_not_there(serve, paths):
    serve(None)
    for version in (HEALTH_V1, HEALTH_V1ALPHA1):
        with HealthStream(paths.dra, version) as stream:
            assert stream.wait_for_end() is grpc.StatusCode.UNIMPLEMENTED
