import logging
import threading
import time

import pytest
from doubles.kubelet import V1, V1BETA1, call
from hypothesis import given
from hypothesis import strategies as st

from dradriver.kubelet import ClaimReference, DraServer, Failed, Prepared, PreparedDevice
from dradriver.kubelet._grpc import grpc
from dradriver.kubelet.dra import answer_prepare, answer_unprepare
from dradriver.proto.dra_v1_pb2 import Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest


def claim(number):
    return ClaimReference(namespace="team", name=f"claim-{number}", uid=f"uid-{number}")


def device(name="gpu-0", **changes):
    fields = {
        "request_names": ("gpu",),
        "pool_name": "node-a",
        "device_name": name,
        "cdi_device_ids": (f"k8s.gpu.nvidia.com/claim={name}",),
    }
    return PreparedDevice(**{**fields, **changes})


class Handler:
    """Answers with what it was given, and remembers what it was asked."""

    def __init__(self, prepare=None, unprepare=None):
        self.answers = {"prepare": prepare, "unprepare": unprepare}
        self.calls = []

    def prepare(self, claims, *, deadline):
        return self._answer("prepare", claims, deadline)

    def unprepare(self, claims, *, deadline):
        return self._answer("unprepare", claims, deadline)

    def _answer(self, verb, claims, deadline):
        self.calls.append((verb, tuple(claims), deadline))
        answer = self.answers[verb]
        return answer(claims) if callable(answer) else answer


def prepare(answer, *claims):
    request = NodePrepareResourcesRequest(claims=[Claim(namespace=c.namespace, name=c.name, uid=c.uid) for c in claims])
    return dict(answer_prepare(Handler(prepare=answer), request, deadline=0.0).claims)


def unprepare(answer, *claims):
    request = NodeUnprepareResourcesRequest(
        claims=[Claim(namespace=c.namespace, name=c.name, uid=c.uid) for c in claims]
    )
    return dict(answer_unprepare(Handler(unprepare=answer), request, deadline=0.0).claims)


@pytest.fixture
def serve(paths):
    servers = []

    def start(handler, **options):
        server = DraServer(handler, paths.dra, **options)
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop(0)


# --- answers ---


def test_a_prepared_claim_carries_every_field():
    answer = {"uid-1": Prepared(devices=(device(share_id="s1"), device("gpu-1", request_names=())))}
    first, second = prepare(answer, claim(1))["uid-1"].devices
    assert list(first.request_names) == ["gpu"]
    assert (first.pool_name, first.device_name, first.share_id) == ("node-a", "gpu-0", "s1")
    assert list(first.cdi_device_ids) == ["k8s.gpu.nvidia.com/claim=gpu-0"]
    assert list(second.request_names) == []
    assert not second.HasField("share_id")


def test_a_failure_is_told_word_by_word():
    assert prepare({"uid-1": Failed("GPU-1 is busy")}, claim(1))["uid-1"].error == "GPU-1 is busy"
    assert unprepare({"uid-1": Failed("still in use")}, claim(1))["uid-1"].error == "still in use"


def test_one_bad_claim_leaves_its_neighbours_alone():
    entries = prepare({"uid-1": Failed("no"), "uid-2": Prepared(devices=(device(),))}, claim(1), claim(2))
    assert entries["uid-1"].error
    assert not entries["uid-2"].error
    assert len(entries["uid-2"].devices) == 1


def test_a_missing_answer_fails_that_claim_by_name():
    entries = prepare({"uid-2": Prepared(devices=())}, claim(1), claim(2))
    assert "team/claim-1 (UID uid-1)" in entries["uid-1"].error
    assert "no answer" in entries["uid-1"].error
    assert not entries["uid-2"].error
    assert "team/claim-1" in unprepare({}, claim(1))["uid-1"].error


def test_an_answer_nobody_asked_for_is_dropped_and_logged(caplog):
    entries = prepare({"uid-1": Prepared(devices=()), "stranger": Prepared(devices=())}, claim(1))
    assert entries.keys() == {"uid-1"}
    assert "stranger" in caplog.text
    assert unprepare({"uid-1": None, "stranger": None}, claim(1)).keys() == {"uid-1"}


@pytest.mark.parametrize("ask", [prepare, unprepare])
def test_an_exception_fails_each_claim_and_is_logged_with_its_traceback(ask, caplog):
    def crash(_claims):
        raise ZeroDivisionError("seven")

    entries = ask(crash, claim(1), claim(2))
    assert entries.keys() == {"uid-1", "uid-2"}
    for number in (1, 2):
        assert f"team/claim-{number}" in entries[f"uid-{number}"].error
        assert "ZeroDivisionError: seven" in entries[f"uid-{number}"].error
    assert "in crash" in caplog.text


@pytest.mark.parametrize("answer", [None, {"uid-1": "yes"}, {"uid-1": None}, ["uid-1"]])
def test_an_answer_of_the_wrong_kind_is_a_failure(answer):
    assert "team/claim-1" in prepare(answer, claim(1))["uid-1"].error


@pytest.mark.parametrize("changes", [{"pool_name": 7}, {"cdi_device_ids": (None,)}, {"device_name": "\udc80"}])
def test_a_device_that_cannot_be_sent_fails_its_claim_only(changes):
    answer = {"uid-1": Prepared(devices=(device(**changes),)), "uid-2": Prepared(devices=(device(),))}
    entries = prepare(answer, claim(1), claim(2))
    assert "team/claim-1" in entries["uid-1"].error
    assert not entries["uid-1"].devices
    assert not entries["uid-2"].error


@pytest.mark.parametrize("ask", [prepare, unprepare])
def test_a_failure_without_words_is_not_taken_for_success(ask):
    assert "unknown reason" in ask({"uid-1": Failed("")}, claim(1))["uid-1"].error


def test_a_message_that_is_no_utf8_is_escaped():
    assert prepare({"uid-1": Failed("bad file \udcff")}, claim(1))["uid-1"].error == r"bad file \udcff"


def test_failures_are_logged_with_the_claims_fields(caplog):
    with caplog.at_level(logging.DEBUG, logger="dradriver.kubelet"):
        prepare({"uid-1": Failed("busy")}, claim(1))
    (record,) = caplog.records
    assert (record.claim_namespace, record.claim_name, record.claim_uid) == ("team", "claim-1", "uid-1")


def test_a_call_without_claims_does_not_reach_the_handler():
    handler = Handler()
    assert not answer_prepare(handler, NodePrepareResourcesRequest(), deadline=0.0).claims
    assert not answer_unprepare(handler, NodeUnprepareResourcesRequest(), deadline=0.0).claims
    assert handler.calls == []


UIDS = st.sets(st.text(max_size=8), max_size=6)


@given(UIDS, UIDS, st.data())
def test_entries_are_exactly_the_claims_asked(asked, answered, data):
    results = st.sampled_from([Prepared(devices=(device(),)), Failed("no"), Failed("")])
    answer = {uid: data.draw(results) for uid in sorted(answered)}
    claims = [ClaimReference(namespace="n", name="c", uid=uid) for uid in sorted(asked)]
    entries = prepare(answer, *claims)
    assert entries.keys() == asked
    for uid, entry in entries.items():
        assert bool(entry.error) == (not isinstance(answer.get(uid), Prepared))
        assert bool(entry.devices) != bool(entry.error)


# --- over the socket ---


@pytest.mark.parametrize("version", [V1, V1BETA1])
def test_both_versions_are_served(serve, paths, version):
    handler = Handler(prepare={"uid-1": Prepared(devices=(device(share_id="s"),))}, unprepare={"uid-1": None})
    serve(handler)
    entry = call(paths.dra, version, "NodePrepareResources", [claim(1)]).claims["uid-1"]
    assert entry.devices[0].device_name == "gpu-0"
    assert list(entry.devices[0].cdi_device_ids) == ["k8s.gpu.nvidia.com/claim=gpu-0"]
    assert call(paths.dra, version, "NodeUnprepareResources", [claim(1)]).claims["uid-1"].error == ""
    assert [(verb, claims) for verb, claims, _ in handler.calls] == [
        ("prepare", (claim(1),)),
        ("unprepare", (claim(1),)),
    ]


@pytest.mark.parametrize("method", ["NodePrepareResources", "NodeUnprepareResources"])
def test_the_callers_deadline_is_passed_on(serve, paths, method):
    handler = Handler(prepare={"uid-1": Prepared(devices=())}, unprepare={"uid-1": None})
    serve(handler, clock=lambda: 1000.0)
    call(paths.dra, V1, method, [claim(1)], timeout=300)
    call(paths.dra, V1, method, [claim(1)], timeout=None)
    (_, _, given_deadline), (_, _, default) = handler.calls
    assert 1045 < given_deadline < 1302
    assert default == 1045.0


def test_an_empty_call_is_answered(serve, paths):
    serve(Handler())
    assert not call(paths.dra, V1, "NodePrepareResources", []).claims


def test_a_crash_is_no_grpc_error(serve, paths):
    serve(Handler())
    assert "team/claim-1" in call(paths.dra, V1, "NodePrepareResources", [claim(1)]).claims["uid-1"].error


def test_calls_run_side_by_side(serve, paths):
    both = threading.Barrier(2, timeout=60)

    def meet(claims):
        both.wait()
        return {c.uid: Prepared(devices=()) for c in claims}

    serve(Handler(prepare=meet))
    errors = []

    def ask(number):
        entry = call(paths.dra, V1, "NodePrepareResources", [claim(number)]).claims[f"uid-{number}"]
        errors.append(entry.error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == ["", ""]


def test_an_unknown_method_is_refused_without_a_handler_call(serve, paths):
    handler = Handler()
    serve(handler)
    with grpc.insecure_channel(f"unix:{paths.dra}") as channel:
        ask = channel.unary_unary("/v1alpha1.DRAResourceHealth/NodeWatchResources")
        with pytest.raises(grpc.RpcError) as caught:
            ask(b"", timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert handler.calls == []


def test_stop_waits_for_a_running_call(serve, paths):
    running, finish = threading.Event(), threading.Event()

    def slow(claims):
        running.set()
        finish.wait(60)
        return {c.uid: Prepared(devices=(device(),)) for c in claims}

    server = serve(Handler(prepare=slow))
    answers = []
    caller = threading.Thread(target=lambda: answers.append(call(paths.dra, V1, "NodePrepareResources", [claim(1)])))
    caller.start()
    assert running.wait(60)
    stopper = threading.Thread(target=server.stop, args=(120,))
    stopper.start()
    while paths.dra.exists():
        time.sleep(0.01)
    assert stopper.is_alive()
    finish.set()
    caller.join(60)
    stopper.join(60)
    assert not stopper.is_alive()
    assert answers[0].claims["uid-1"].devices[0].device_name == "gpu-0"


def test_stop_gives_up_on_a_call_that_hangs(serve, paths):
    running, finish = threading.Event(), threading.Event()

    def hang(_claims):
        running.set()
        finish.wait(240)
        return {}

    server = serve(Handler(prepare=hang))
    codes = []

    def ask():
        try:
            call(paths.dra, V1, "NodePrepareResources", [claim(1)], timeout=240)
        except grpc.RpcError as error:
            codes.append(error.code())

    caller = threading.Thread(target=ask)
    caller.start()
    assert running.wait(60)
    server.stop(0.05)
    caller.join(60)
    finish.set()
    assert len(codes) == 1


def test_stop_does_not_wait_for_an_open_connection(serve, paths):
    server = serve(Handler())
    with grpc.insecure_channel(f"unix:{paths.dra}") as channel:
        grpc.channel_ready_future(channel).result(timeout=60)
        stopper = threading.Thread(target=server.stop, args=(250,))
        stopper.start()
        stopper.join(100)
        assert not stopper.is_alive()
