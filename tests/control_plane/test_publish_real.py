"""The publisher against a real API server, with its real defaulting, validation and garbage collector."""

import copy
import threading

import pytest
from doubles.machines import gpus
from doubles.pools import counter_slice, device_slice, node_slices, sick
from doubles.publishing import DRIVER, PATIENCE, until

from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import Situation, make_offer
from dradriver.gpu.policy import GpuRule, OfferPolicy, Order, Sharing
from dradriver.kube import NODES, RESOURCE_SLICES, Store, version_of
from dradriver.publish import Features, Phase, probe_features, slice_name
from dradriver.resource import (
    CounterConsumption,
    CounterSet,
    Device,
    Layout,
    Slice,
    Version,
    lay_out,
    same_content,
    slice_spec,
)

pytestmark = pytest.mark.control_plane


def own(offer, count):
    return [slice_name(number, driver=DRIVER, node_name=offer.node) for number in range(count)]


def published(offer, slices, **options):
    publisher = offer.publisher(slices, **options)
    assert publisher.wait_published(PATIENCE), publisher.status
    return publisher


def rich(gpus):
    """As a node with partitions really offers: 64 devices for each GPU, every kind of attribute, taints."""
    counters = {"memory": 8, "multiprocessors": 132, **{f"memory-slice-{n}": 1 for n in range(8)}}
    for first in range(0, gpus, 8):
        yield Slice(
            counter_sets=tuple(
                CounterSet(name=f"gpu-{n}", counters=counters) for n in range(first, min(first + 8, gpus))
            )
        )
    for gpu in range(gpus):
        yield Slice(
            devices=tuple(
                Device(
                    name=f"gpu-{gpu}-mig-{n}",
                    attributes={
                        "type": "mig",
                        "uuid": f"GPU-{gpu}-{n}",
                        "driverVersion": Version("580.1.2"),
                        "index": n,
                        "ecc": True,
                        "resource.kubernetes.io/pcieRoot": "pci0000:00",
                    },
                    capacity={"memory": 9728 * 2**20, "multiprocessors": 16, "copyEngines": 1},
                    consumes=(
                        CounterConsumption(
                            counter_set=f"gpu-{gpu}", counters={"memory": 1, f"memory-slice-{n % 8}": 1}
                        ),
                    ),
                    taints=(sick(),) if n % 2 else (),
                )
                for n in range(64)
            )
        )


def test_the_server_keeps_what_is_offered_and_nothing_is_written_again(offer):
    slices = tuple(rich(8))
    publisher = published(offer, slices)
    before = offer.versions()
    assert list(before) == own(offer, 9)
    for item, content in zip(offer.slices(), slices, strict=True):
        pool = {"name": offer.node, "generation": 1, "resourceSliceCount": 9}
        assert same_content(item["spec"], slice_spec(content, driver=DRIVER, node_name=offer.node, pool=pool))
        assert item["spec"]["pool"] == pool
    publisher.set_slices(tuple(rich(8)))
    publisher.stop(PATIENCE)
    again = published(offer, tuple(rich(8)))
    again.mark_dirty("test")
    assert again.wait_published(PATIENCE)
    assert offer.versions() == before


def test_the_node_owns_its_slices(offer, admin):
    published(offer, node_slices())
    uid = admin.get(NODES, offer.node)["metadata"]["uid"]
    for item in offer.slices():
        (reference,) = item["metadata"]["ownerReferences"]
        assert reference == {
            "apiVersion": "v1", "kind": "Node", "name": offer.node, "uid": uid, "controller": True
        }  # fmt: skip


def test_deleted_slices_are_back_soon(offer):
    publisher = published(offer, node_slices())
    names = own(offer, 4)
    for name in names[:2]:
        before = uids(offer)
        offer.delete(name)
        took = until(lambda: offer.names() == names)
        print(f"one slice back after {took:.3f} s")
        assert len(before - uids(offer)) == 1
    assert publisher.wait_published(PATIENCE)
    assert offer.generations() == {1}


def test_a_wipe_as_the_kubelet_does_it_is_repaired(offer, admin):
    publisher = published(offer, node_slices(8))
    before = uids(offer)
    selector = f"spec.nodeName={offer.node},spec.driver={DRIVER}"
    admin._call("DELETE", RESOURCE_SLICES.path(), query={"fieldSelector": selector})
    took = until(lambda: offer.names() == own(offer, 9))
    print(f"nine slices back after {took:.3f} s")
    assert publisher.wait_published(PATIENCE)
    assert not before & uids(offer)
    assert offer.names() == own(offer, 9)


def uids(offer):
    return {item["metadata"]["uid"] for item in offer.slices()}


def test_a_slice_deleted_right_after_our_own_update_comes_back(offer):
    publisher = published(offer, node_slices())
    for memory in range(1, 6):
        publisher.set_slices((counter_slice(3), device_slice(0, memory=memory), device_slice(1), device_slice(2)))
        assert publisher.wait_published(PATIENCE)
        offer.delete(own(offer, 2)[1])
        until(lambda: offer.names() == own(offer, 4))


def test_an_edit_is_undone(offer, admin):
    published(offer, node_slices())
    item = offer.slices()[1]
    edited = copy.deepcopy(item)
    edited["spec"]["devices"] = edited["spec"]["devices"][:1]
    version = version_of(admin.replace(RESOURCE_SLICES, edited))
    until(lambda: version_of(offer.slices()[1]) > version)
    assert same_content(offer.slices()[1]["spec"], item["spec"])


def test_a_taint_is_one_write_and_keeps_its_time(offer):
    slices = node_slices()
    publisher = published(offer, slices)
    before = offer.versions()
    tainted = (slices[0], device_slice(0, taints=(sick(),)), *slices[2:])
    publisher.set_slices(tainted)
    assert publisher.wait_published(PATIENCE)
    changed = [name for name, version in offer.versions().items() if before[name] != version]
    assert changed == [own(offer, 2)[1]]

    def times():
        return {taint["timeAdded"] for device in offer.slices()[1]["spec"]["devices"] for taint in device["taints"]}

    since = times()
    offer.delete(own(offer, 2)[1])
    until(lambda: offer.names() == own(offer, 4))
    publisher.set_slices((*tainted, device_slice(3)))
    assert publisher.wait_published(PATIENCE)
    assert offer.generations() == {2}
    assert times() == since


def test_a_watcher_never_sees_a_wrong_mixture(offer, admin):
    """From the API server's own history: complete states are the old one and the new one only."""
    publisher = published(offer, node_slices(3))
    position = admin.list(RESOURCE_SLICES).resource_version
    state = {item["metadata"]["name"]: item for item in offer.slices()}
    publisher.set_slices(tuple(device_slice(gpu, memory=5) for gpu in range(2)))
    assert publisher.wait_published(PATIENCE)
    end = int(admin.list(RESOURCE_SLICES).resource_version)
    seen = []
    with admin.watch(RESOURCE_SLICES, resource_version=position, seconds=5) as watch:
        for event in watch.events():
            name = event.object["metadata"].get("name", "")
            if event.type == "DELETED":
                state.pop(name, None)
            elif name.endswith(offer.node):
                state[name] = event.object
            seen.append(complete(state))
            if int(event.object["metadata"]["resourceVersion"]) >= end:
                break
    assert {devices for devices in seen if devices} <= {("gpu-0", "gpu-1", "gpu-2"), ("gpu-0", "gpu-1")}
    assert seen[-1] == ("gpu-0", "gpu-1")


def complete(state):
    newest = max((item["spec"]["pool"]["generation"] for item in state.values()), default=0)
    current = [item["spec"] for item in state.values() if item["spec"]["pool"]["generation"] == newest]
    if any(spec["pool"]["resourceSliceCount"] != len(current) for spec in current):
        return None
    devices = (device["name"] for spec in current for device in spec.get("devices", []))
    return tuple(sorted(name for name in devices if "mig" not in name))


def test_a_predecessor_s_slices_give_way(offer, admin):
    pool = {"name": offer.node, "generation": 3, "resourceSliceCount": 1}
    spec = slice_spec(device_slice(0), driver=DRIVER, node_name=offer.node, pool=pool)
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": f"00000-{DRIVER}-{offer.node}-"},
        "spec": spec,
    }
    admin.create(RESOURCE_SLICES, body)
    published(offer, node_slices())
    assert offer.names() == own(offer, 4)
    assert offer.generations() == {4}


def test_slices_of_a_recreated_node_have_the_new_owner(offer, admin):
    publisher = published(offer, node_slices())
    offer.delete_node()
    uid = offer.make_node()["metadata"]["uid"]

    def adopted():
        items = offer.slices()
        return len(items) == 4 and {item["metadata"]["ownerReferences"][0]["uid"] for item in items} == {uid}

    until(adopted, timeout=120)
    assert publisher.wait_published(PATIENCE)


def test_two_publishers_at_once_agree(offer):
    first, second = offer.publisher(node_slices()), offer.publisher(node_slices())
    assert first.wait_published(PATIENCE)
    assert second.wait_published(PATIENCE)
    before = offer.versions()
    first.mark_dirty("test")
    second.mark_dirty("test")
    assert first.wait_published(PATIENCE)
    assert offer.versions() == before
    assert offer.generations() == {1}


def test_an_invalid_slice_is_explained(offer):
    publisher = offer.publisher((Slice(devices=(Device(name="Not_A_Label"),)),))
    until(lambda: publisher.status.phase is Phase.FAILING)
    assert "spec.devices[0].name" in publisher.status.message
    assert "do not fit together" in publisher.status.message
    publisher.set_slices(node_slices())
    assert publisher.wait_published(PATIENCE)


def test_a_pool_without_devices_is_one_empty_slice(offer):
    published(offer, (Slice(),))
    (item,) = offer.slices()
    assert not item["spec"].get("devices")
    assert item["spec"]["pool"]["resourceSliceCount"] == 1


def test_features_are_found_without_a_trace(offer, admin):
    assert probe_features(admin, DRIVER, offer.node) == Features(
        layout=Layout.APART, taints=True, informational_taints=True
    )
    assert offer.names() == []


@pytest.mark.parametrize("machine", ["1xgb10", "8xh100-80gb", "2xt4"])
@pytest.mark.parametrize("order", [(), ("gpu-0",)])
def test_shared_gpus_are_stored_as_they_are_offered(offer, machine, order):
    """Also where memory is unknown, so that a claim takes nothing of nothing."""
    found = gpus(machine)
    policy = OfferPolicy(default=GpuRule(sharing=Sharing(replicas=256)), order=Order.SPREAD)
    situation = Situation(held=dict.fromkeys(order, ""), shares=dict.fromkeys(order, 3))
    made = make_offer(found, pool=offer.node, policy=policy, numbers=number_gpus(found, {}), situation=situation)
    publisher = published(offer, lay_out(made.pool))
    assert publisher.status.message == ""
    before = offer.versions()
    publisher.mark_dirty("test")
    assert publisher.wait_published(PATIENCE)
    assert offer.versions() == before
    (stored,) = (each["spec"]["devices"] for each in offer.slices())
    assert all(device["allowMultipleAllocations"] for device in stored)


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_as_many_shares_as_are_taken_are_stored(offer, taken):
    """Where a GPU is not to be shared any more; the API server has its own idea of what one share can look like."""
    found = gpus("2xt4")
    situation = Situation(held={"gpu-0": ""}, shares={"gpu-0": taken})
    made = make_offer(found, pool=offer.node, policy=OfferPolicy(), numbers=number_gpus(found, {}), situation=situation)
    publisher = published(offer, lay_out(made.pool))
    assert publisher.status.message == ""
    (devices,) = (each["spec"]["devices"] for each in offer.slices())
    stored = {device["name"]: device for device in devices}
    assert stored["gpu-0"]["capacity"]["shares"]["value"] == str(taken)
    assert "allowMultipleAllocations" not in stored["gpu-1"]


def test_status_tells_when_the_server_has_everything(offer):
    phases, seen = [], threading.Event()

    def note(status):
        phases.append(status.phase)
        if status.phase is Phase.PUBLISHED:
            seen.set()

    publisher = offer.publisher(node_slices(), on_status=note)
    assert seen.wait(PATIENCE)
    assert len(offer.names()) == publisher.status.slices == 4
    assert Phase.FAILING not in phases


def test_store_orders_a_real_history(offer, admin):
    """Real resourceVersions: an echo, the watch and a list tell the same story in any order."""
    publisher = published(offer, node_slices(1))
    old = offer.slices()[1]
    publisher.set_slices((counter_slice(1), device_slice(0, memory=3)))
    assert publisher.wait_published(PATIENCE)
    new = offer.slices()[1]
    for first, second in ((old, new), (new, old)):
        store = Store()
        store.put(first)
        store.put(second)
        assert store.get(new["metadata"]["name"]) == new
