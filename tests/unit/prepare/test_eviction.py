"""Pods that ought to be evicted: when that is due, whether it happens, and what is said where it does not."""

import pytest
import structlog
from doubles.ailing import EPOCH, GPU, LOST, OTHER, PARTITION, SICK, WHOLE, Ailing, mark
from doubles.apiserver import PATIENCE, Fault

from dradriver import api
from dradriver.gpu.health import Effect
from dradriver.prepare.eviction import CHECK_SECONDS, EVICTION_SECONDS, eviction_time

TOLD = [("NotEvicted", "Pod", "p"), ("NotEvicted", "ResourceClaim", "c")]


@pytest.fixture
def node(server, client):
    made = Ailing(server=server, client=client)
    yield made
    made.errands.stop(PATIENCE)


def lose(node):
    """Lose the GPU; what is told of that is told elsewhere."""
    node.tell(gpu=(LOST,))
    node.events.happened.clear()


def requests(server):
    return server.count()


# --- when it is due ------------------------------------------------------------------------------

KEY = api.TaintKey.XID
FOR_EVER = {"key": KEY, "operator": "Exists", "effect": "NoExecute"}


def claim(*tolerations, driver=api.DRIVER_NAME, pool="node-a", device=PARTITION.device):
    result = {"driver": driver, "pool": pool, "device": device, "tolerations": list(tolerations)}
    return {"status": {"allocation": {"devices": {"results": [result]}}}}


@pytest.mark.parametrize(
    ("tolerations", "due"),
    [
        ((), 0),
        ((FOR_EVER,), None),
        (({"operator": "Exists"},), None),
        (({"operator": "Exists", "effect": ""},), None),
        (({"key": KEY, "operator": "Equal", "value": "79"},), None),
        (({"key": KEY, "value": "79", "effect": "NoExecute"},), None),
        (({"key": KEY, "operator": "Equal", "value": "48"},), 0),
        (({"key": KEY, "effect": "NoExecute"},), 0),
        (({"key": api.TaintKey.GPU_LOST, "operator": "Exists"},), 0),
        # One for another effect does not help.
        (({"key": KEY, "operator": "Exists", "effect": "NoSchedule"},), 0),
        ((FOR_EVER | {"tolerationSeconds": 300},), 300),
        ((FOR_EVER | {"tolerationSeconds": 0},), 0),
        ((FOR_EVER | {"tolerationSeconds": -5},), 0),
        # Of several the shortest counts, unless one is for ever.
        ((FOR_EVER | {"tolerationSeconds": 300}, FOR_EVER | {"tolerationSeconds": 60}), 60),
        ((FOR_EVER | {"tolerationSeconds": 300}, FOR_EVER), None),
    ],
)
def test_tolerations_say_when_a_pod_is_to_be_evicted(tolerations, due):
    devices = {("node-a", PARTITION.device): (LOST,)}
    found = eviction_time(claim(*tolerations), api.DRIVER_NAME, devices)
    assert found == (None if due is None else EPOCH + due)


@pytest.mark.parametrize(
    "other",
    [
        claim(driver="other.example.com"),
        claim(pool="node-b"),
        claim(device="gpu-7"),
        {"status": {"allocation": None}},
        {"status": {}},
        {},
    ],
)
def test_devices_of_others_and_claims_without_allocation_are_never_due(other):
    assert eviction_time(other, api.DRIVER_NAME, {("node-a", PARTITION.device): (LOST,)}) is None


def test_the_first_taint_of_any_device_that_is_not_tolerated_counts():
    results = [
        {"driver": api.DRIVER_NAME, "pool": "node-a", "device": "gpu-0", "tolerations": [FOR_EVER]},
        {"driver": api.DRIVER_NAME, "pool": "node-a", "device": "gpu-1"},
    ]
    body = {"status": {"allocation": {"devices": {"results": results}}}}
    later, gone = mark(Effect.NO_EXECUTE, since=EPOCH + 50), mark(Effect.NO_EXECUTE, key=api.TaintKey.GPU_LOST)
    devices = {("node-a", "gpu-0"): (LOST,), ("node-a", "gpu-1"): (later,)}
    assert eviction_time(body, api.DRIVER_NAME, devices) == EPOCH + 50
    devices["node-a", "gpu-0"] = (LOST, gone)
    assert eviction_time(body, api.DRIVER_NAME, devices) == EPOCH


# --- whether it happens --------------------------------------------------------------------------


def test_a_pod_that_is_not_evicted_is_told_and_counted_until_it_goes(node, server):
    node.hold("c")
    lose(node)
    node.pass_time(EVICTION_SECONDS - 1)
    assert (node.told, node.asked("pods"), node.counts[-1]) == ([], 0, 0)
    node.pass_time(1)
    assert node.told == TOLD
    assert {one.type for one in node.events.happened} == {"Warning"}
    assert node.counts[-1] == 1
    for _ in range(3):
        node.pass_time(CHECK_SECONDS)
    assert (node.told, node.counts[-1]) == (TOLD, 1)
    server.remove("pods", "p", "ns")
    node.pass_time(CHECK_SECONDS)
    assert (node.told, node.counts[-1]) == (TOLD, 0)


def test_it_is_over_when_the_device_is_well_again(node):
    node.hold("c")
    lose(node)
    node.pass_time(EVICTION_SECONDS)
    assert node.counts[-1] == 1
    node.tell()
    assert node.counts[-1] == 0
    # The next time is another one, with a time of its own.
    lose(node)
    node.pass_time(EVICTION_SECONDS - 1)
    assert node.told == []
    node.pass_time(1)
    assert node.told == TOLD


def test_nothing_is_asked_where_nothing_is_to_be_evicted(node, server):
    node.hold("c")
    node.hold("d", OTHER, pods=("q",))
    before = requests(server)
    node.teller.told({})
    node.pass_time(1000)
    assert requests(server) == before
    node.tell(gpu=(SICK,))
    before = requests(server)
    for _ in range(5):
        node.pass_time(CHECK_SECONDS)
    assert requests(server) == before


def test_a_claim_that_is_unprepared_needs_no_look_any_more(node, server):
    node.hold("c")
    lose(node)
    del node.records["c"]
    before = requests(server)
    node.pass_time(EVICTION_SECONDS)
    node.pass_time(CHECK_SECONDS)
    assert requests(server) == before
    assert node.counts[-1] == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda pod: pod["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["example.com/wait"]),
        lambda pod: pod["status"].update(phase="Succeeded"),
        lambda pod: pod["status"].update(phase="Failed"),
    ],
    ids=["is being deleted", "has succeeded", "has failed"],
)
def test_pods_that_end_are_no_matter(node, server, change):
    node.hold("c")
    lose(node)
    server.edit("pods", "p", change, "ns")
    node.pass_time(EVICTION_SECONDS)
    assert (node.told, node.counts[-1]) == ([], 0)


def test_another_pod_of_the_name_is_no_matter(node, server):
    node.hold("c")
    lose(node)
    server.remove("pods", "p", "ns")
    server.put("pods", {"metadata": {"namespace": "ns", "name": "p", "uid": "another"}, "status": {}})
    node.pass_time(EVICTION_SECONDS)
    assert (node.told, node.counts[-1]) == ([], 0)


@pytest.mark.parametrize("tolerations", [[FOR_EVER], [{"operator": "Exists"}]])
def test_a_claim_that_tolerates_the_taint_is_left_alone(node, tolerations):
    node.hold("c", tolerations=tolerations)
    lose(node)
    for _ in range(5):
        node.pass_time(CHECK_SECONDS)
    assert (node.told, node.asked("pods"), node.counts[-1]) == ([], 0, 0)


def test_who_tolerates_it_for_a_while_is_told_after_that(node):
    node.hold("c", tolerations=[FOR_EVER | {"tolerationSeconds": 100}])
    lose(node)
    for _ in range(12):
        node.pass_time(10)
    assert node.told == []
    node.pass_time(10)
    assert (node.told, node.counts[-1]) == (TOLD, 1)


def test_a_claim_that_comes_later_is_found_and_gets_its_time_too(node):
    """Its device was allocated before the GPU was lost, and prepared after that."""
    node.tell(gpu=(LOST,))
    node.hold("c")
    node.pass_time(CHECK_SECONDS)
    node.pass_time(EVICTION_SECONDS - 1)
    assert node.told == []
    node.pass_time(1)
    assert node.told == TOLD


def test_an_earlier_process_s_eviction_is_watched_on(node):
    node.hold("c")
    node.teller.resume({GPU: (LOST,)})
    node.settle()
    node.pass_time(EVICTION_SECONDS)
    assert (node.told, node.counts[-1]) == (TOLD, 1)


def test_every_pod_counts_once_and_the_claim_is_told_of_each(node):
    """Two claims of one pod, and two pods of one claim."""
    node.hold("c", pods=("p", "q"))
    node.hold("d", WHOLE, pods=("p",))
    lose(node)
    node.pass_time(EVICTION_SECONDS)
    assert node.counts[-1] == 2
    assert node.told.count(("NotEvicted", "ResourceClaim", "c")) == 2
    assert node.told.count(("NotEvicted", "ResourceClaim", "d")) == 1
    assert len(node.told) == 6


def test_a_pod_that_joins_later_is_told_too(node, server):
    node.hold("c")
    lose(node)
    node.pass_time(EVICTION_SECONDS)
    node.hold("c", pods=("p", "q"))
    node.pass_time(CHECK_SECONDS)
    assert node.told == [*TOLD, ("NotEvicted", "Pod", "q"), ("NotEvicted", "ResourceClaim", "c")]
    assert node.counts[-1] == 2


# --- an API server that does not say -------------------------------------------------------------


def test_where_pods_may_not_be_read_the_claim_is_believed_and_that_is_logged_once(node, server):
    server.fail(Fault(status=403, reason="Forbidden"), when=lambda request: "/pods/" in request.path, times=1000)
    node.hold("c", pods=("p", "q"))
    lose(node)
    with structlog.testing.capture_logs() as logs:
        node.pass_time(EVICTION_SECONDS)
        node.pass_time(CHECK_SECONDS)
    assert [line["log_level"] for line in logs if "pods cannot be read" in line["event"]] == ["warning"]
    assert node.counts[-1] == 2
    server.edit("resourceclaims", "c", lambda body: body["status"].update(reservedFor=[]), "ns")
    node.pass_time(CHECK_SECONDS)
    assert node.counts[-1] == 0


@pytest.mark.parametrize("plural", ["pods", "resourceclaims"])
def test_what_cannot_be_asked_now_stays_as_it_was_and_is_asked_again(node, server, plural):
    node.hold("c")
    lose(node)
    server.fail(Fault(status=500, reason="InternalError"), when=lambda request: f"/{plural}/" in request.path, times=9)
    node.pass_time(EVICTION_SECONDS)
    assert (node.told, node.counts[-1]) == ([], 0)
    server.heal()
    node.pass_time(CHECK_SECONDS)
    assert (node.told, node.counts[-1]) == (TOLD, 1)
    server.fail(Fault(status=500, reason="InternalError"), when=lambda request: f"/{plural}/" in request.path, times=9)
    node.pass_time(CHECK_SECONDS)
    assert node.counts[-1] == 1


def test_one_claim_that_cannot_be_asked_hides_no_other(node, server):
    node.hold("c")
    node.hold("d", WHOLE, pods=("q",))
    lose(node)
    server.fail(Fault(status=500), when=lambda request: request.path.endswith("/resourceclaims/c"), times=9)
    node.pass_time(EVICTION_SECONDS)
    assert node.told == [("NotEvicted", "Pod", "q"), ("NotEvicted", "ResourceClaim", "d")]
    assert node.counts[-1] == 1


# --- in which words ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extended", "kept", "cause"),
    [
        (False, True, "device-taint-eviction-controller of kube-controller-manager"),
        (True, True, "kubernetes#141290"),
        (False, False, "this cluster keeps no device taints"),
        (True, False, "this cluster keeps no device taints"),
    ],
)
def test_the_cause_and_the_next_step_are_told(node, extended, kept, cause):
    node.taints_kept = kept
    node.hold("c", extended=extended)
    lose(node)
    node.pass_time(EVICTION_SECONDS)
    assert node.told == TOLD
    note = node.notes[0]
    assert set(node.notes) == {note}
    for words in ("pod ns/p runs on", PARTITION.device, "claim ns/c", "node node-a", KEY, "NoExecute", cause):
        assert words in note
    assert note.endswith("`kubectl delete pod -n ns p`")
