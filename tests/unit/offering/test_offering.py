"""What a node offers while GPUs, claims, configuration and API server change."""

from dataclasses import replace

import pytest
from doubles.apiserver import Fault
from doubles.offering import wanted
from doubles.versions import Kubernetes

from dradriver.gpu.policy import GpuFilter, GpuRule
from dradriver.gpu.profiles import parse_choice
from dradriver.kube import KubeError
from dradriver.nodeconfig import Wanted
from dradriver.offering import holders
from dradriver.offering import offering as module

ONE_G = "gpu-0-mig-1g10gb-19-0"
THREE_G = "gpu-0-mig-3g40gb-9-4"
LOST, UNWANTED, FOREIGN = "gpu-lost", "not-offered", "foreign-mig-instance"


# --- looking --------------------------------------------------------------------------------------


def test_what_does_not_change_is_offered_once(node):
    assert [node.look() for _ in range(3)] == [module.LOOK_SECONDS] * 3
    assert len(node.slices.offers) == 1
    assert {"gpu-0", "gpu-1", ONE_G} <= set(node.names)


def test_claims_on_what_is_offered_change_nothing(node):
    node.look()
    claim = node.claim(ONE_G)
    assert not isinstance(node.prepare(claim), list)
    assert node.records.all()
    node.look()
    node.unprepare(claim)
    node.look()
    assert len(node.slices.offers) == 1
    assert node.tainted(FOREIGN) == []


def test_nothing_is_offered_before_the_labels_of_the_node_are_known(node):
    node.want = wanted(settled=False)
    node.look()
    assert node.slices.offers == []
    assert node.offering.node is not None, "what is prepared already has to be served"
    node.want = wanted()
    node.look()
    assert len(node.slices.offers) == 1


# --- GPUs that come and go ------------------------------------------------------------------------


def test_a_gpu_that_is_lost_stays_with_a_taint_and_its_neighbour_without(node):
    node.look()
    before = node.names
    node.simulate("lose", "--gpu", "1")
    node.look()
    assert node.names == before
    assert node.tainted(LOST) == [name for name in before if name.startswith("gpu-1")]
    assert "GpuUnreadable" in node.notes.reasons
    assert "GpuLost" in node.notes.reasons
    node.simulate("recover", "--gpu", "1")
    node.nvml.renew()
    node.look()
    assert (node.names, node.tainted(LOST), node.notes.now) == (before, [], {})


@pytest.mark.parametrize(("error", "looks"), [("UNKNOWN", 1), ("TIMEOUT", 4)])
def test_a_gpu_that_fails_once_or_does_not_come_back_in_time_stays_as_it_was(error, looks, node):
    """Whether anybody should get it is for its health to say, which tells how long that has gone on."""
    node.look()
    before = node.slices.offers[-1]
    node.simulate("fail", "nvmlDeviceGetMinorNumber", "--gpu", "1", "--error", error)
    for _ in range(looks):
        node.look()
        assert node.slices.offers[-1] == before
        assert "GpuUnreadable" in node.notes.reasons
    if error == "UNKNOWN":
        node.look()
        assert node.tainted(LOST) == [name for name in node.names if name.startswith("gpu-1")]
    node.simulate("fail", "nvmlDeviceGetMinorNumber", "--clear")
    node.look()
    assert (node.slices.offers[-1], node.notes.now) == (before, {})


def test_a_gpu_that_is_lost_is_remembered_by_the_next_process(node):
    node.look()
    before = node.names
    node.simulate("lose", "--gpu", "1")
    node.again()
    node.look()
    assert node.names == before
    assert node.tainted(LOST) == [name for name in before if name.startswith("gpu-1")]


def test_minors_that_move_change_no_name(node):
    node.look()
    before = node.slices.offers[-1]
    node.simulate("minor", "--gpu", "0", "7")
    node.look()
    node.again()
    node.look()
    assert node.slices.offers[-1] == before
    assert {gpu.minor for gpu in node.offering.node.gpus.values()} == {7, 1}


def test_a_driver_that_fails_once_hides_nothing_and_twice_taints_everything(node):
    node.look()
    before = node.names
    node.simulate("fail", "nvmlDeviceGetCount", "--error", "UNKNOWN")
    assert node.look() == module.RETRY_SECONDS
    assert node.tainted(LOST) == []
    node.look()
    assert node.names == node.tainted(LOST) == before
    assert "GpusUnavailable" in node.notes.reasons
    node.simulate("fail", "nvmlDeviceGetCount", "--clear")
    node.look()
    assert (node.names, node.tainted(LOST), node.notes.now) == (before, [], {})


def test_numbers_that_are_lost_are_known_from_the_records_of_claims(node):
    node.look()
    node.simulate("unplug", "--gpu", "0")
    node.look()
    node.simulate("plug", "--gpu", "0", "--replace")
    node.look()
    node.look()
    claim = node.claim("gpu-2-mig-1g10gb-19-0")
    assert node.prepare(claim).devices
    before = set(node.names)
    (node.folder / "gpus.json").write_text("{")
    node.again()
    node.look()
    assert set(node.names) == before
    assert "gpu-0" not in node.names


# --- instances of others --------------------------------------------------------------------------


def made_by_others(node, profile, start, gpu=0):
    node.simulate("instance", "create", "--gpu", str(gpu), "--start", str(start), profile)


def test_instances_that_others_make_and_destroy_are_followed(make):
    node = make(want=wanted("static"), mig_mode="on")
    node.look()
    assert node.names == []
    made_by_others(node, "3g.40gb", 4)
    node.look()
    assert node.names == [THREE_G]
    node.simulate("instance", "destroy", "--gpu", "0", "--all")
    node.look()
    assert node.names == []


def test_an_instance_that_vanishes_under_its_claim_stays_for_it(make):
    node = make(want=wanted("static"), mig_mode="on")
    made_by_others(node, "3g.40gb", 4)
    node.look()
    uuid = node.slices.devices[THREE_G].attributes["uuid"]
    claim = node.claim(THREE_G)
    node.prepare(claim)
    node.simulate("instance", "destroy", "--gpu", "0", "--all")
    node.look()
    assert node.offering._shown.keeps_for_claims
    assert node.tainted(UNWANTED) == [THREE_G]
    assert node.slices.devices[THREE_G].attributes["uuid"] == uuid
    node.released(claim)
    node.look(after=holders.ASK_SECONDS)
    assert node.names == []


def test_places_that_others_take_are_tainted_as_long_as_they_do(node):
    node.look()
    node.simulate("mig", "--gpu", "0", "on")
    made_by_others(node, "2g.20gb", 4)
    node.look()
    tainted = node.tainted(FOREIGN)
    assert {"gpu-0", THREE_G, "gpu-0-mig-1g10gb-19-4"} <= set(tainted)
    assert ONE_G not in tainted
    assert not any(name.startswith("gpu-1") for name in tainted)
    node.simulate("instance", "destroy", "--gpu", "0", "--all")
    node.look()
    assert node.tainted(FOREIGN) == []


# --- configurations -------------------------------------------------------------------------------


def test_what_a_claim_holds_outlives_its_rule(node):
    node.look()
    claim = node.claim(THREE_G)
    node.prepare(claim)
    node.want = wanted("static")
    node.look()
    assert node.offering._shown.keeps_for_claims
    assert node.names == [THREE_G, "gpu-1"], "the whole GPU is in MIG mode"
    assert node.tainted(UNWANTED) == [THREE_G]
    node.released(claim)
    node.look(after=holders.ASK_SECONDS)
    assert node.names == ["gpu-0", "gpu-1"]


def test_what_a_claim_holds_outlives_its_rule_over_a_restart(node):
    node.look()
    claim = node.claim(THREE_G)
    node.prepare(claim)
    node.again()
    node.want = wanted("off")
    node.look()
    assert node.names == [THREE_G, "gpu-1"]
    assert node.tainted(UNWANTED) == [THREE_G]
    node.released(claim)
    assert node.nvml.instances(node.uuids()[0]) == ()
    node.look(after=holders.ASK_SECONDS)
    assert node.names == ["gpu-0", "gpu-1"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_claim_that_is_allocated_and_not_prepared_yet_keeps_its_device(node, restarted):
    node.look()
    if restarted:
        for number, part in enumerate(node.slices.offers[-1]):
            node.server.put("resourceslices", published(part, number))
    claim = node.claim(THREE_G)
    if restarted:
        node.again()
    node.want = wanted(profiles="1g.10gb")
    node.look()
    assert node.offering._shown.keeps_for_claims
    assert node.tainted(UNWANTED) == [THREE_G]
    assert node.prepare(claim).devices
    node.released(claim)
    node.look(after=holders.ASK_SECONDS)
    assert THREE_G not in node.names


def published(part, number):
    """A slice with these devices, one of a pool whose others are there too."""
    devices = [{"name": device.name} for device in part.devices]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"slice-{number}"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "node-a",
            "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def test_a_claim_that_was_allocated_while_its_device_vanished_gets_it_back(node):
    node.look()
    node.want = wanted(profiles="1g.10gb")
    node.look()
    assert THREE_G not in node.names
    claim = node.claim(THREE_G)
    node.look(after=2 * holders.CHECK_SECONDS[0])
    assert node.tainted(UNWANTED) == [THREE_G]
    assert node.prepare(claim).devices


def test_nothing_vanishes_while_the_api_server_does_not_say_what_claims_hold(node):
    node.look()
    node.server.fail(Fault(status=500), when=lambda request: "resourceclaims" in request.path, times=float("inf"))
    node.want = wanted(profiles="1g.10gb")
    with pytest.raises(KubeError):
        node.look()
    assert len(node.slices.offers) == 1
    node.server.heal()
    node.look()
    assert THREE_G not in node.names


def test_a_node_that_is_held_offers_nothing_and_serves_its_claims(node):
    node.look()
    claim = node.claim(THREE_G)
    node.want = wanted(allocation="hold")
    node.look()
    assert node.names == []
    assert len(node.slices.offers[-1]) == 1
    assert node.prepare(claim).devices
    node.want = wanted()
    node.look()
    assert node.slices.offers[-1] == node.slices.offers[0]


# --- what only looks like an exception -----------------------------------------------------------------


def test_without_taints_what_a_claim_held_goes_with_it_too(node):
    node.server.strip = Kubernetes(minor=37, taints=False)
    node.look()
    claim = node.claim(ONE_G)
    node.prepare(claim)
    node.want = wanted(profiles="3g.40gb")
    node.look()
    assert ONE_G in node.names
    assert node.offering._shown.keeps_for_claims
    node.released(claim)
    node.look(after=holders.ASK_SECONDS)
    assert ONE_G not in node.names


def test_without_counters_no_held_instance_goes_with_its_neighbour(make):
    node = make(want=wanted("static"), mig_mode="on")
    node.server.strip = Kubernetes(minor=37, partitions=False)
    for start in (0, 1, 2):
        made_by_others(node, "1g.10gb", start)
    node.look()
    first, second, third = node.names
    for name in (first, second):
        node.prepare(node.claim(name))
    gone = next(one for one in node.nvml.instances(node.uuids()[0]) if one.placement.start == 0)
    node.simulate("instance", "destroy", "--gpu", "0", "--uuid", gone.uuid)
    node.look()
    assert node.names == [first, second], "beside what exists for a claim only, nothing new"
    assert node.tainted(UNWANTED) == [first]
    assert third not in node.names


def test_an_instance_that_is_made_anew_is_told_by_its_new_uuid(make):
    node = make(want=wanted("static"), mig_mode="on")
    made_by_others(node, "3g.40gb", 4)
    node.look()
    claim = node.claim(THREE_G)
    node.prepare(claim)
    before = node.slices.devices[THREE_G].attributes["uuid"]
    node.simulate("instance", "destroy", "--gpu", "0", "--all")
    node.look()
    made_by_others(node, "3g.40gb", 4)
    node.look()
    assert node.tainted(UNWANTED) == []
    (instance,) = node.nvml.instances(node.uuids()[0])
    assert node.slices.devices[THREE_G].attributes["uuid"] == instance.uuid != before


@pytest.mark.parametrize("restarted", [False, True])
def test_a_gpu_that_is_taken_out_stays_for_a_claim_that_is_not_prepared_yet(node, restarted):
    node.look()
    for number, part in enumerate(node.slices.offers[-1]):
        node.server.put("resourceslices", published(part, number))
    node.claim("gpu-1")
    node.simulate("unplug", "--gpu", "1")
    if restarted:
        node.again()
    node.look()
    assert "gpu-1" in node.tainted(LOST)


def test_a_process_that_finds_no_devices_in_the_slices_asks_what_is_allocated(node):
    node.look()
    node.claim(ONE_G)
    node.want = wanted(allocation="hold")
    node.look()
    for number, part in enumerate(node.slices.offers[-1]):
        node.server.put("resourceslices", published(part, number))
    node.again()
    node.look()
    node.want = wanted("off")
    node.look()
    assert node.tainted(UNWANTED) == [ONE_G]
    assert node.slices.devices["gpu-0"].consumes


def test_admin_access_holds_nothing(node):
    node.look()
    node.claim(ONE_G, adminAccess=True)
    node.prepare(node.claim(THREE_G, adminAccess=True))
    node.want = wanted("off")
    node.look()
    assert node.names == ["gpu-0", "gpu-1"]


def lists(node):
    return node.server.count(lambda request: request.method == "GET" and request.path.endswith("/resourceclaims"))


def test_what_a_record_tells_the_api_server_is_not_asked_for(node):
    node.look()
    claim = node.claim(THREE_G)
    node.want = wanted(profiles="1g.10gb")
    node.look()
    node.prepare(claim)
    node.look()
    for _ in range(10):
        node.look(after=2 * holders.CHECK_SECONDS[-1])
    before = lists(node)
    for _ in range(10):
        node.look(after=holders.ASK_SECONDS)
    assert lists(node) == before
    assert node.tainted(UNWANTED) == [THREE_G]


def test_what_no_gpu_of_the_node_has_is_not_asked_for_again(node):
    node.claim("gpu-vfio-0")
    node.look()
    for _ in range(10):
        node.look(after=2 * holders.CHECK_SECONDS[-1])
    before = lists(node)
    for _ in range(10):
        node.look(after=holders.ASK_SECONDS)
    assert lists(node) == before


def test_a_claim_is_prepared_on_what_is_not_offered_any_more(node):
    """Nothing else can have it, and the pod would wait a minute for the next attempt."""
    claim = node.claim(THREE_G)
    node.want = wanted(profiles="1g.10gb")
    node.offering.read()
    node.offering.compute()
    node.node = node.offering.node
    assert THREE_G not in node.node.offer.devices
    assert node.prepare(claim).devices


def test_a_node_is_held_while_its_driver_is_not_there(node):
    node.look()
    node.simulate("fail", "nvmlDeviceGetCount", "--error", "UNKNOWN")
    node.want = wanted(allocation="hold")
    node.look()
    assert node.names == []


def test_why_nothing_is_published_before_the_labels_are_known_is_told(node):
    node.want = wanted(settled=False)
    node.look()
    assert "labels" in node.not_ready[-1]


# --- API servers ----------------------------------------------------------------------------------


def test_a_server_that_keeps_no_counters_is_offered_whole_gpus_until_it_does(node):
    node.server.strip = Kubernetes(minor=35, partitions=False, taints=False)
    node.look()
    assert node.names == ["gpu-0", "gpu-1"]
    assert node.notes.reasons == ["PartitionsNotOffered", "TaintsNotKept"]
    node.server.strip = Kubernetes(minor=37)
    node.look()
    assert node.names == ["gpu-0", "gpu-1"], "nobody has doubted it"
    node.offering.doubt()
    node.look()
    assert ONE_G in node.names
    assert node.notes.now == {}


def test_a_server_of_1_34_gets_each_counter_set_beside_its_devices(node):
    node.server.strip = Kubernetes(minor=34)
    node.look()
    assert all(len(part.counter_sets) == 1 and part.devices for part in node.slices.offers[-1])


def test_a_server_without_taints_is_not_offered_the_devices_of_a_lost_gpu(node):
    node.server.strip = Kubernetes(minor=37, taints=False)
    node.look()
    node.simulate("lose", "--gpu", "1")
    node.look()
    assert node.names
    assert all(name.startswith("gpu-0") for name in node.names)


def test_a_doubt_has_the_same_slices_offered_again(node):
    node.look()
    node.offering.doubt()
    node.look()
    assert node.slices.offers[0] == node.slices.offers[1]


def test_a_server_that_does_not_answer_is_asked_again(node):
    node.server.fail(Fault(status=503), times=float("inf"))
    with pytest.raises(KubeError):
        node.look()
    assert node.slices.offers == []
    node.server.heal()
    node.look()
    assert ONE_G in node.names


# --- telling --------------------------------------------------------------------------------------


def test_profiles_that_no_gpu_has_are_told(node):
    node.want = wanted(profiles="1g.10gb,9g.90gb")
    node.look()
    reason, note = node.notes.now["profiles"]
    assert reason == "UnknownProfiles"
    assert "has the profiles 9g.90gb;" in note
    node.want = wanted()
    node.look()
    assert node.notes.now == {}


def test_profiles_of_a_rule_that_is_for_no_gpu_of_this_node_do_not_matter(node):
    other = GpuRule(filter=GpuFilter(product_names=("*A100*",)), profiles=parse_choice("1g.5gb"))
    node.want = Wanted(policy=replace(wanted().policy, rules=(other,)), settled=True)
    node.look()
    assert node.notes.now == {}


# --- the thread -----------------------------------------------------------------------------------


@pytest.fixture
def running(node, monkeypatch):
    """A node whose thread runs and looks only when it is woken; gives what counts the looks."""
    looks = []
    look = node.offering.look
    monkeypatch.setattr(node.offering, "look", lambda: (looks.append(look()), 3600.0)[1])
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.01)
    node.offering.start()
    node.server.wait(lambda: len(looks) == 1)
    yield node, looks
    node.offering.stop()
    assert not node.offering.alive


def test_what_this_driver_does_for_claims_is_no_reason_to_look(running):
    node, looks = running
    node.node = node.offering.node
    claim = node.claim(ONE_G)
    assert node.prepare(claim).devices
    first = node.uuids()[0]
    node.offering.wake("its own instance", gpu_uuid=first)
    assert not node.server.wait(lambda: len(looks) > 1, timeout=0.3)
    made_by_others(node, "3g.40gb", 4)
    node.offering.wake("somebody else's instance", gpu_uuid=first)
    assert node.server.wait(lambda: len(looks) == 2)
    assert node.server.wait(lambda: THREE_G in node.tainted(FOREIGN))


def test_a_change_of_unknown_kind_is_a_reason_to_look(running):
    node, looks = running
    node.offering.wake("something")
    assert node.server.wait(lambda: len(looks) == 2)
    node.offering.wake("a GPU that nobody knows", gpu_uuid="GPU-new")
    assert node.server.wait(lambda: len(looks) == 3)
