"""GPUs that are not well, while offers are computed, published, held back and computed anew."""

import threading

import pytest
from doubles.apiserver import Fault
from doubles.offering import wanted
from doubles.versions import Kubernetes

from dradriver.gpu.health import Effect, Mark, Place
from dradriver.gpu.model import Placement
from dradriver.kube import KubeError
from dradriver.offering.verdicts import told_health

ONE_G, THREE_G = "gpu-0-mig-1g10gb-19-0", "gpu-0-mig-3g40gb-9-4"
XID = "gpu.nvidia.com/xid"
HERE = Place(profile_id=19, placement=Placement(start=0, size=1))


def mark(effect=Effect.NO_EXECUTE, *, value="79", place=None):
    return Mark(key=XID, value=value, effect=effect, since=1_700_000_000, text="GPU is sick: mend it", place=place)


def sick(node, *gpus, **fields):
    return {node.uuids()[number]: (mark(**fields),) for number in gpus}


def of_gpu(node, number):
    return [name for name in node.names if name == f"gpu-{number}" or name.startswith(f"gpu-{number}-")]


def told(node):
    return {one.device: (one.health.value, one.message) for one in told_health(node.offering._shown, 0)}


# --- at once --------------------------------------------------------------------------------------


def test_taints_come_and_go_without_a_look(node):
    node.look()
    before = node.slices.offers[-1]
    node.offering.mark(sick(node, 0))
    assert node.tainted("/xid") == of_gpu(node, 0)
    assert len(node.slices.offers) == 2
    node.offering.mark({})
    assert node.slices.offers[2:] == [before]


def test_only_the_slice_of_that_gpu_is_another_one(node):
    node.look()
    node.offering.mark(sick(node, 1))
    before, after = node.slices.offers
    assert len(before) == len(after)
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    assert [{device.name for device in part.devices} for part in changed] == [set(of_gpu(node, 1))]


def test_the_same_marks_again_are_not_offered_again(node):
    node.look()
    for _ in range(3):
        node.offering.mark(sick(node, 0))
    node.look()
    assert len(node.slices.offers) == 2


def test_marks_read_no_gpu(node):
    node.look()
    marks = sick(node, 0, 1)
    node.nvml.close()
    node.offering.mark(marks)
    assert node.tainted("/xid") == node.names


def test_a_partition_that_is_prepared_keeps_its_name_and_has_the_taint(node):
    node.look()
    claim = node.claim(ONE_G)
    assert node.prepare(claim).devices
    node.offering.mark(sick(node, 0, place=HERE))
    assert node.tainted("/xid") == [ONE_G]
    assert told(node)[ONE_G] == ("Unhealthy", "GPU is sick: mend it")
    assert told(node)["gpu-0"] == ("Healthy", "")


# --- before, and between looks --------------------------------------------------------------------


def test_marks_before_the_first_look_are_in_the_first_offer(node):
    node.offering.mark(sick(node, 0))
    assert node.slices.offers == []
    node.look()
    assert len(node.slices.offers) == 1
    assert node.tainted("/xid") == of_gpu(node, 0)


def test_marks_between_reading_and_the_first_offer_are_in_it(node):
    node.offering.read()
    node.offering.compute()
    node.offering.mark(sick(node, 0))
    assert node.slices.offers == []
    assert told(node)["gpu-0"][0] == "Unhealthy"
    node.look()
    assert node.tainted("/xid") == of_gpu(node, 0)


def test_the_next_process_offers_what_it_is_told_before_its_first_look(node):
    node.look()
    node.offering.mark(sick(node, 0))
    before = node.slices.offers[-1]
    marks = sick(node, 0)
    node.again()
    node.offering.mark(marks)
    node.look()
    assert node.slices.offers == [before]


def test_looks_keep_the_marks_and_marks_keep_what_looks_found(node):
    node.look()
    node.offering.mark(sick(node, 0))
    node.simulate("lose", "--gpu", "1")
    node.look()
    assert node.tainted("/xid") == of_gpu(node, 0)
    assert node.tainted("/gpu-lost") == of_gpu(node, 1)
    node.offering.mark(sick(node, 0, effect=Effect.NO_SCHEDULE))
    assert node.tainted("/gpu-lost") == of_gpu(node, 1)


def test_a_partition_that_is_offered_later_has_the_taint_of_its_gpu(make):
    node = make(want=wanted("off"))
    node.look()
    node.offering.mark(sick(node, 0))
    assert node.tainted("/xid") == ["gpu-0"]
    node.want = wanted("dynamic")
    node.look()
    assert ONE_G in node.names
    assert node.tainted("/xid") == of_gpu(node, 0)


def test_nothing_is_offered_while_the_labels_are_not_known(node):
    node.want = wanted(settled=False)
    node.look()
    node.offering.mark(sick(node, 0))
    assert node.slices.offers == []
    node.want = wanted()
    node.look()
    assert node.tainted("/xid") == of_gpu(node, 0)


# --- hold -----------------------------------------------------------------------------------------


def test_nothing_is_offered_while_the_node_is_held(node):
    node.want = wanted(allocation="hold")
    node.look()
    node.offering.mark(sick(node, 0))
    node.look()
    assert not any(part.devices for offer in node.slices.offers for part in offer)
    assert told(node)["gpu-0"][0] == "Unhealthy"
    node.want = wanted()
    node.look()
    assert node.tainted("/xid") == of_gpu(node, 0)


def test_a_mark_between_the_wish_to_hold_and_the_look_at_it_offers_nothing(node):
    node.look()
    node.want = wanted(allocation="hold")
    node.offering._around.on_read = lambda: node.offering.mark(sick(node, 0))
    node.look()
    assert [sum(len(part.devices) for part in offer) for offer in node.slices.offers[1:]] == [0]


def test_a_mark_between_the_end_of_a_hold_and_the_look_at_it_offers_nothing_old(node):
    node.look()
    node.want = wanted(allocation="hold")
    node.look()
    node.want = wanted("off")
    node.offering.mark(sick(node, 0))
    assert node.names == []
    node.look()
    assert node.names == ["gpu-0", "gpu-1"]
    assert node.tainted("/xid") == ["gpu-0"]


# --- claims ---------------------------------------------------------------------------------------


def test_a_mark_does_not_take_away_what_a_claim_may_hold(node):
    """A device that is about to vanish is looked for in the claims first, however soon a GPU tells something."""
    node.look()
    node.claim(ONE_G)
    node.want = wanted("off")
    shown = node.offering._around.on_show

    def tell(_shown):
        node.offering._around.on_show = shown
        node.offering.mark(sick(node, 1))

    node.offering._around.on_show = tell
    node.look()
    assert all(ONE_G in {device.name for part in offer for device in part.devices} for offer in node.slices.offers)
    assert node.names == ["gpu-0", ONE_G, "gpu-1"]
    assert node.tainted("/xid") == ["gpu-1"]


def test_while_the_api_server_does_not_tell_of_claims_taints_come_all_the_same(node):
    node.look()
    before = node.names
    node.claim(ONE_G)
    node.want = wanted("off")
    node.server.fail(Fault(status=403), when=lambda request: "resourceclaims" in request.path, times=float("inf"))
    with pytest.raises(KubeError):
        node.look()
    node.offering.mark(sick(node, 1))
    assert node.names == before
    assert node.tainted("/xid") == of_gpu(node, 1)


def test_without_taints_a_sick_gpu_is_withheld_by_the_next_look_but_for_what_claims_hold(node):
    node.server.strip = Kubernetes(minor=36, taints=False)
    node.look()
    before = node.names
    node.claim(ONE_G)
    prepared = node.claim(THREE_G)
    assert node.prepare(prepared).devices
    node.offering.mark(sick(node, 0))
    assert node.names == before
    assert node.offering._wake.is_set()
    node.look()
    assert set(before) - set(node.names) == {name for name in before if name.startswith("gpu-0")} - {ONE_G, THREE_G}
    assert node.tainted("") == []
    node.offering.mark({})
    node.look()
    assert node.names == before


# --- what the API server keeps --------------------------------------------------------------------


@pytest.mark.parametrize(("minor", "expected"), [(34, False), (36, True)])
def test_what_only_tells_is_offered_where_the_api_server_knows_it(node, minor, expected):
    node.server.strip = Kubernetes(minor=minor)
    node.look()
    node.offering.mark(sick(node, 0, effect=Effect.NONE))
    assert node.tainted("/xid") == (of_gpu(node, 0) if expected else [])
    assert told(node)["gpu-0"] == ("Healthy", "GPU is sick: mend it")


def test_marks_during_doubt_wait_for_the_answer(node):
    node.look()
    node.offering.doubt()
    node.offering.mark(sick(node, 0))
    assert node.tainted("/xid") == of_gpu(node, 0)
    node.server.strip = Kubernetes(minor=34)
    node.look()
    assert node.tainted("/xid") == of_gpu(node, 0)
    assert all(part.counter_sets for part in node.slices.offers[-1] if part.devices)


# --- threads --------------------------------------------------------------------------------------


def test_marks_beside_looks_in_another_thread_end_with_the_last_marks(node):
    node.look()
    uuids = node.uuids()
    stop = threading.Event()
    problems = []

    def looks():
        flip = False
        while not stop.is_set():
            flip = not flip
            node.want = wanted("dynamic", "standard" if flip else "all")
            try:
                node.offering.look()
            except Exception as error:  # noqa: BLE001 (told by the test)
                problems.append(error)

    thread = threading.Thread(target=looks)
    thread.start()
    for count in range(200):
        node.offering.mark({uuids[count % 2]: (mark(value=str(count)),)})
    stop.set()
    thread.join()
    assert problems == []
    values = {device.name: {taint.value for taint in device.taints} for device in node.slices.devices.values()}
    assert {name for name, found in values.items() if found == {"199"}} == set(of_gpu(node, 1))
    assert all(found == set() for name, found in values.items() if name in of_gpu(node, 0))
    for offer in node.slices.offers:
        marked = {device.name[:5] for part in offer for device in part.devices if device.taints}
        assert len(marked) <= 1
