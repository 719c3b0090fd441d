"""What may pass is waited for within the call, with no lock held, and nobody starves."""

import threading
import time

import pytest
from doubles.kubelet import CALL_SECONDS

from dradriver.kube.errors import UnreachableError
from dradriver.kubelet import Failed, Prepared
from dradriver.kubelet._grpc import grpc
from dradriver.kubelet.dra import WORKERS, DraServer
from dradriver.nvml import DriverNotLoaded, InUse, Process
from dradriver.prepare.locks import Locks, claim_lock
from dradriver.prepare.patience import ANSWER_SECONDS, Patience
from dradriver.prepare.preparer import GONE_SECONDS, WAITING
from dradriver.proto import dra_v1_pb2

ONE_G = "gpu-0-mig-1g10gb-19-{}".format
UNREACHABLE = UnreachableError("GET claim: connection refused")
LIMIT = 30.0


class Time:
    """Passes only while somebody sleeps; `meanwhile` is what happens then, with how many seconds have passed."""

    def __init__(self, node):
        self.ahead = 0.0
        self.slept = []
        self.meanwhile = lambda passed: None
        node.preparer._patience = lambda deadline: Patience(
            deadline, clock=lambda: time.monotonic() + self.ahead, sleep=self.sleep, chance=lambda: 0.5
        )

    def sleep(self, seconds):
        self.ahead += seconds
        self.slept.append(seconds)
        self.meanwhile(self.ahead)


@pytest.fixture
def passing(node):
    return Time(node)


def once(act, after=0.0):
    """Do something once, when enough time has passed."""
    done = []

    def meanwhile(passed):
        if passed >= after and not done:
            done.append(passed)
            act()

    return meanwhile


def delete(node, claim):
    del node.claims["ns", claim.name]


# --- holders -------------------------------------------------------------------------------------


def test_a_device_that_is_freed_while_the_call_waits_is_got(node, passing):
    holder, successor = node.allocate(ONE_G(0)), node.allocate(ONE_G(0))
    node.prepare(holder)
    passing.meanwhile = once(lambda: node.unprepare(holder), after=5)
    assert isinstance(node.prepare(successor, seconds=CALL_SECONDS), Prepared)
    assert 5 <= passing.ahead < 7
    assert node.specs() == [successor.uid]


def test_a_holder_that_stays_is_named_with_its_pods_when_the_time_is_over(node, passing):
    holder, successor = node.allocate(ONE_G(0)), node.allocate("gpu-0")
    node.prepare(holder)
    node.claims["ns", holder.name]["status"]["reservedFor"] = [
        {"resource": "pods", "name": "trainer-7", "uid": "p"},
        {"resource": "others", "name": "not-a-pod", "uid": "q"},
    ]
    answer = node.prepare(successor, seconds=CALL_SECONDS)
    assert isinstance(answer, Failed)
    assert f"still held by claim ns/{holder.name} (UID {holder.uid})" in answer.message
    assert answer.message.endswith("; it is reserved for pod ns/trainer-7")
    assert CALL_SECONDS - 3 < passing.ahead < CALL_SECONDS - ANSWER_SECONDS
    assert node.specs() == [holder.uid]


def test_pods_that_cannot_be_asked_for_are_left_out(node, passing):
    holder, successor = node.allocate(ONE_G(0)), node.allocate("gpu-0")
    node.prepare(holder)
    delete(node, holder)
    message = node.prepare(successor, seconds=3).message
    assert f"still held by claim ns/{holder.name}" in message
    assert "reserved for" not in message


def test_a_holder_whose_claim_is_gone_is_released_after_a_while(node, passing):
    holder, successor = node.allocate(ONE_G(0)), node.allocate("gpu-0")
    node.prepare(holder)
    delete(node, holder)
    assert isinstance(node.prepare(successor, seconds=CALL_SECONDS), Prepared)
    assert GONE_SECONDS <= passing.ahead < GONE_SECONDS + 2
    assert node.instances() == []
    assert node.specs() == [successor.uid]
    assert node.unprepare(holder) is None


def test_a_holder_whose_claim_was_made_anew_is_released(node, passing):
    holder = node.allocate(ONE_G(0))
    node.prepare(holder)
    successor = node.allocate(ONE_G(0), name=holder.name)
    assert isinstance(node.prepare(successor, seconds=CALL_SECONDS), Prepared)
    assert passing.ahead >= GONE_SECONDS


def test_a_holder_that_was_looked_at_by_an_earlier_call_has_used_its_time(node, passing):
    holder, successor = node.allocate(ONE_G(0)), node.allocate("gpu-0")
    node.prepare(holder)
    delete(node, holder)
    assert isinstance(node.prepare(successor, seconds=5), Failed)
    passing.ahead += 60
    before = passing.ahead
    # Of the deadline that the kubelet counts from now.
    node.preparer.prepare([successor], deadline=time.monotonic() + passing.ahead + CALL_SECONDS)
    assert passing.ahead - before < 2
    assert node.specs() == [successor.uid]


def test_a_holder_whose_claim_comes_back_keeps_its_device(node, passing):
    holder, successor = node.allocate(ONE_G(0)), node.allocate("gpu-0")
    node.prepare(holder)
    kept = node.claims.pop(("ns", holder.name))
    passing.meanwhile = once(lambda: node.claims.update({("ns", holder.name): kept}), after=GONE_SECONDS / 2)
    assert isinstance(node.prepare(successor, seconds=CALL_SECONDS), Failed)
    assert node.specs() == [holder.uid]


def test_a_holder_in_use_keeps_its_device_though_its_claim_is_gone(node, passing, monkeypatch):
    """The kubelet frees early on a forced deletion: the old container may still run."""
    holder, successor = node.allocate("gpu-0"), node.allocate("gpu-0")
    node.prepare(holder)
    delete(node, holder)
    running = [Process(pid=7, gpu_instance_id=None, compute_instance_id=None)]
    monkeypatch.setattr(node.nvml, "processes", lambda _: tuple(running))
    passing.meanwhile = once(running.clear, after=20)
    assert isinstance(node.prepare(successor, seconds=CALL_SECONDS), Prepared)
    assert passing.ahead >= 20


def test_an_api_server_that_is_down_releases_no_holder(node, passing):
    holder, successor = node.allocate(ONE_G(0)), node.allocate("gpu-0")
    node.prepare(holder)
    reads = node.preparer._read

    def read(reference, *, timeout):
        if reference.uid == holder.uid:
            raise UNREACHABLE
        return reads(reference, timeout=timeout)

    node.preparer._read = read
    delete(node, holder)
    assert isinstance(node.prepare(successor, seconds=CALL_SECONDS), Failed)
    assert node.specs() == [holder.uid]


def test_a_holder_of_an_earlier_boot_is_no_obstacle_for_long(node):
    holder, successor = node.allocate("gpu-0"), node.allocate("gpu-0")
    node.prepare(holder)
    delete(node, holder)
    node.simulate("reboot")
    node.restart()
    Time(node)
    assert isinstance(node.prepare(successor, seconds=CALL_SECONDS), Prepared)


# --- what else passes ----------------------------------------------------------------------------


def test_a_partition_in_use_is_tried_again_with_its_gpu_unlocked(node, passing, monkeypatch):
    """Else one slow container would cost every other pod of the GPU its call."""
    busy, neighbour = node.allocate(ONE_G(0)), node.allocate(ONE_G(1))
    node.prepare(busy)
    destroy = node.nvml.destroy_compute_instance
    in_use = [True]

    def refuse(gpu, **ids):
        if in_use:
            raise InUse("nvmlComputeInstanceDestroy", 19, gpu)
        destroy(gpu, **ids)

    monkeypatch.setattr(node.nvml, "destroy_compute_instance", refuse)
    answers = []

    def meanwhile(passed):
        if passed > 5 and in_use:
            in_use.clear()
            # A call from within another one's pause would wait for ever for a lock that this one holds.
            answers.append(node.prepare(neighbour, seconds=2))

    passing.meanwhile = meanwhile
    assert node.unprepare(busy, seconds=CALL_SECONDS) is None
    assert isinstance(answers[0], Prepared)
    assert node.specs() == [neighbour.uid]


def test_a_partition_that_stays_in_use_is_told_with_its_processes(node, passing, monkeypatch):
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)

    def refuse(gpu, **_):
        raise InUse("nvmlComputeInstanceDestroy", 19, gpu)

    monkeypatch.setattr(node.nvml, "destroy_compute_instance", refuse)
    monkeypatch.setattr(
        node.nvml, "processes", lambda _: (Process(pid=1, gpu_instance_id=None, compute_instance_id=None),)
    )
    message = node.unprepare(claim, seconds=CALL_SECONDS).message
    assert "it is in use" in message
    assert "processes on the GPU: 1 (" in message
    assert passing.ahead > CALL_SECONDS - 3


def test_an_api_server_that_comes_back_is_enough(node, passing):
    claim = node.allocate(ONE_G(0))
    node.read_error = UNREACHABLE

    def back():
        node.read_error = None

    passing.meanwhile = once(back, after=15)
    assert isinstance(node.prepare(claim, seconds=CALL_SECONDS), Prepared)


def test_a_driver_that_appears_is_enough(node, passing):
    claim = node.allocate(ONE_G(0))
    known, node.node = node.node, None

    def appear():
        node.node = known

    passing.meanwhile = once(appear, after=15)
    assert isinstance(node.prepare(claim, seconds=CALL_SECONDS), Prepared)


def test_a_driver_that_is_being_replaced_is_waited_for(node, passing, monkeypatch):
    claim = node.allocate(ONE_G(0))

    def gone(*_, **__):
        raise DriverNotLoaded("nvmlInitWithFlags", 9)

    monkeypatch.setattr(node.nvml, "driver_version", gone)
    passing.meanwhile = once(monkeypatch.undo, after=15)
    assert isinstance(node.prepare(claim, seconds=CALL_SECONDS), Prepared)


@pytest.mark.parametrize("device", ["gpu-77", "gpu-0-mig-9g-9-9"])
def test_what_cannot_pass_is_answered_at_once(node, passing, device):
    assert isinstance(node.prepare(node.allocate(device), seconds=CALL_SECONDS), Failed)
    assert passing.slept == []


def test_a_claim_of_a_call_that_waits_does_not_keep_the_others(node, passing):
    """Answers of one call come together, so what can be prepared is prepared before the wait."""
    holder = node.allocate(ONE_G(0))
    node.prepare(holder)
    waits, free = node.allocate(ONE_G(0)), node.allocate("gpu-1")
    passing.meanwhile = once(lambda: node.unprepare(holder), after=3)
    assert all(isinstance(answer, Prepared) for answer in node.prepare(waits, free, seconds=CALL_SECONDS))


# --- in time -------------------------------------------------------------------------------------


def test_locks_and_gets_end_in_time_for_the_answer(node, monkeypatch):
    deadlines, timeouts = [], []
    hold, read = Locks.hold, node.preparer._read

    def noted_hold(self, names, deadline):
        deadlines.append(deadline)
        return hold(self, names, deadline)

    def noted_read(reference, *, timeout):
        timeouts.append(timeout)
        return read(reference, timeout=timeout)

    monkeypatch.setattr(Locks, "hold", noted_hold)
    node.preparer._read = noted_read
    deadline = time.monotonic() + 5
    claim = node.allocate(ONE_G(0))
    node.preparer.prepare([claim], deadline=deadline)
    node.preparer.unprepare([claim], deadline=deadline)
    assert deadlines
    assert all(one <= deadline - ANSWER_SECONDS for one in deadlines)
    assert all(0 < one <= 5 - ANSWER_SECONDS for one in timeouts)


def test_a_claim_that_others_work_on_is_told_as_busy(node):
    claim = node.allocate(ONE_G(0))
    with node.preparer._locks.hold([claim_lock(claim.uid)], time.monotonic() + LIMIT):
        assert "was busy with another call" in node.prepare(claim, seconds=1.1).message


# --- seats, and the end --------------------------------------------------------------------------


def client(path):
    channel = grpc.insecure_channel(f"unix:{path}")

    def call(method, claim):
        request = getattr(dra_v1_pb2, f"{method}Request")(
            claims=[dra_v1_pb2.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid)]
        )
        stub = channel.unary_unary(
            f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(dra_v1_pb2, f"{method}Response").FromString,
        )
        return stub.future(request, timeout=CALL_SECONDS)

    return channel, call


class Sleepers:
    """Counts calls that sleep, and wakes them when told."""

    def __init__(self, node):
        self.changed = threading.Condition()
        self.asleep = 0
        self.woken = threading.Event()
        node.preparer._patience = lambda deadline: Patience(deadline, sleep=self.sleep)

    def sleep(self, _):
        with self.changed:
            self.asleep += 1
            self.changed.notify_all()
        self.woken.wait(LIMIT)

    def wait_for(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: self.asleep == count, LIMIT), self.asleep


@pytest.fixture
def served(node, tmp_path):
    server = DraServer(node.preparer, tmp_path / "dra.sock")
    server.start()
    channel, call = client(tmp_path / "dra.sock")
    yield call
    channel.close()
    server.stop(5)


def test_forty_waiting_calls_do_not_keep_an_unprepare_from_being_answered(node, served):
    sleepers = Sleepers(node)
    holder = node.allocate("gpu-0")
    node.prepare(holder)
    waiting = [served("NodePrepareResources", node.allocate("gpu-0")) for _ in range(WAITING["prepare"])]
    sleepers.wait_for(len(waiting))
    # One more is not let wait, so that it takes no thread from anybody.
    more = served("NodePrepareResources", late := node.allocate("gpu-0")).result()
    assert "still held by" in more.claims[late.uid].error
    answer = served("NodeUnprepareResources", holder).result()
    assert answer.claims[holder.uid].error == ""
    # And what can be prepared is prepared.
    other = node.allocate("gpu-1")
    assert served("NodePrepareResources", other).result().claims[other.uid].devices
    node.preparer.hurry()
    sleepers.woken.set()
    errors = [next(iter(call.result().claims.values())).error for call in waiting]
    assert errors.count("") == 1
    assert all("still held by" in error for error in errors if error)


def test_threads_suffice_for_all_that_may_wait():
    assert WORKERS - sum(WAITING.values()) >= 8


def test_waiting_unprepares_have_seats_of_their_own(node, monkeypatch):
    sleepers = Sleepers(node)
    holder = node.allocate("gpu-0")
    node.prepare(holder, seconds=LIMIT)
    claims = [node.allocate("gpu-0") for _ in range(WAITING["prepare"])]
    threads = [threading.Thread(target=node.prepare, args=(claim,), kwargs={"seconds": LIMIT}) for claim in claims]
    for thread in threads:
        thread.start()
    sleepers.wait_for(len(threads))
    busy = node.allocate("gpu-1-mig-1g10gb-19-0")
    node.prepare(busy)
    destroy = node.nvml.destroy_compute_instance
    tries = []

    def refuse_once(gpu, **ids):
        tries.append(gpu)
        if len(tries) == 1:
            raise InUse("nvmlComputeInstanceDestroy", 19, gpu)
        destroy(gpu, **ids)

    monkeypatch.setattr(node.nvml, "destroy_compute_instance", refuse_once)
    node.preparer._patience = Patience
    assert node.unprepare(busy, seconds=LIMIT) is None
    node.preparer.hurry()
    sleepers.woken.set()
    for thread in threads:
        thread.join(LIMIT)
    assert not any(thread.is_alive() for thread in threads)


def test_seats_are_given_back(node, passing):
    holder = node.allocate("gpu-0")
    node.prepare(holder)
    for _ in range(WAITING["prepare"] + 1):
        passing.ahead = 0.0
        passing.slept.clear()
        node.prepare(node.allocate("gpu-0"), seconds=4)
        assert passing.slept


def test_a_hurry_ends_the_wait_of_a_call_at_once(node):
    holder, waits = node.allocate("gpu-0"), node.allocate("gpu-0")
    node.prepare(holder)
    attempts = threading.Event()
    check = node.preparer._records.reserve

    def noted(record):
        attempts.set()
        check(record)

    node.preparer._records.reserve = noted
    answers = []
    call = threading.Thread(target=lambda: answers.append(node.prepare(waits, seconds=600)))
    call.start()
    assert attempts.wait(LIMIT)
    node.preparer.hurry()
    call.join(LIMIT)
    assert not call.is_alive()
    assert "still held by" in answers[0].message


def test_in_a_hurry_nobody_begins_to_wait(node, passing):
    holder, waits = node.allocate("gpu-0"), node.allocate("gpu-0")
    node.prepare(holder)
    node.preparer.hurry()
    assert isinstance(node.prepare(waits, seconds=600), Failed)
    assert passing.slept == []
    # But what needs no wait is done: the process still has the time.
    assert node.unprepare(holder) is None
