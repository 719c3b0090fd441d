# SPDX-License-Identifier: Apache-2.0
import ipaddress
import itertools
import json
import socket

import pytest
from localcluster import slots
from localcluster.common import ClusterError, Layout
from localcluster.slots import MAX_NODES, Slot

ALL = [Slot(number) for number in range(100)]


def used_ports(slot):
    control = [slot.apiserver, slot.etcd, slot.etcd_peer, slot.scheduler, slot.controller_manager]
    kubelets = [slot.kubelet(index) + extra for index in range(MAX_NODES) for extra in (0, 1)]
    return control + kubelets


def test_no_port_is_used_twice_by_any_two_clusters():
    every = list(itertools.chain.from_iterable(map(used_ports, ALL)))
    assert len(every) == len(set(every))


def test_ports_lie_below_those_the_kernel_gives_to_connections():
    assert all(1024 < port < 32768 for slot in ALL for port in used_ports(slot))


def test_the_ports_probed_are_the_ports_used():
    assert all(set(slot.ports) == set(used_ports(slot)) for slot in ALL)


def test_no_address_is_in_two_subnets():
    pods = [ipaddress.ip_network(f"{slot.subnet(index)}.0/24") for slot in ALL for index in range(MAX_NODES)]
    services = [ipaddress.ip_network(slot.services) for slot in ALL]
    assert len(set(pods)) == len(pods)
    by_start = sorted([*pods, *services])
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(by_start))


def test_the_first_service_address_is_the_one_the_api_server_takes():
    slot = Slot(3)
    assert ipaddress.ip_address(slot.first_service) == next(ipaddress.ip_network(slot.services).hosts())


def test_a_nodes_address_is_in_its_subnet():
    assert Slot(4).address(2) == "10.104.2.1"


@pytest.fixture
def clusters(tmp_path, cache):
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        folder.mkdir()
    return [Layout(folder) for folder in folders]


def everything_free(_):
    return True


def test_clusters_get_slots_apart_and_keep_them(clusters):
    first = [slots.take(layout, everything_free) for layout in clusters]
    again = [slots.take(layout, lambda _: False) for layout in clusters]
    assert first == again
    assert len(set(first)) == 3


def test_a_slot_in_use_by_someone_else_is_passed_over(clusters):
    taken = slots.take(clusters[0], everything_free)
    slots.give_back(clusters[0])
    other = slots.take(clusters[0], lambda slot: slot != taken)
    assert other != taken


def test_a_slot_given_back_can_be_taken(clusters):
    only = slots.take(clusters[0], everything_free)
    with pytest.raises(ClusterError, match="no free ports"):
        slots.take(clusters[1], lambda slot: slot == only)
    slots.give_back(clusters[0])
    assert slots.take(clusters[1], lambda slot: slot == only) == only


def test_a_cluster_whose_directory_is_gone_holds_nothing(clusters):
    only = slots.take(clusters[0], everything_free)
    clusters[0].root.rmdir()
    assert slots.take(clusters[1], lambda slot: slot == only) == only


def test_a_broken_registry_is_begun_anew(clusters, cache):
    cache.mkdir(parents=True)
    (cache / "clusters.json").write_text("{")
    slots.take(clusters[0], everything_free)
    assert clusters[0].id in json.loads((cache / "clusters.json").read_text())


def test_giving_back_twice_is_nothing(clusters):
    slots.give_back(clusters[0])
    assert slots.take(clusters[0], everything_free).number < 100


def test_a_listening_port_makes_a_slot_busy(monkeypatch):
    monkeypatch.setattr(slots.network, "routed", list)
    slot = next(slot for slot in ALL if slots.free(slot))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", slot.kubelet(3)))
        listener.listen()
        assert not slots.free(slot)


def test_a_route_into_its_addresses_makes_a_slot_busy(monkeypatch):
    slot = next(slot for slot in ALL if slots.free(slot))
    base = int(ipaddress.ip_address(f"{slot.subnet(5)}.0"))
    monkeypatch.setattr(slots.network, "routed", lambda: [(base, 0xFFFFFF00)])
    assert not slots.free(slot)
