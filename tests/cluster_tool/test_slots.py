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
OTHERS = [Slot(number) for number in range(100, 164)]


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
    slots = [*ALL, *OTHERS]
    pods = [ipaddress.ip_network(f"{slot.subnet(index)}.0/24") for slot in slots for index in range(MAX_NODES)]
    services = [ipaddress.ip_network(slot.services) for slot in slots]
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


def yes(_):
    return True


def no(_):
    return False


def take(layout, *, nodes=True, ports=yes, addresses=yes):
    return slots.take(layout, nodes=nodes, has_ports=ports, has_addresses=addresses)


def test_clusters_get_slots_apart_and_keep_them(clusters):
    first = [take(layout) for layout in clusters]
    again = [take(layout, ports=no, addresses=no) for layout in clusters]
    assert first == again
    assert len({slot.block for slot in first}) == 3


@pytest.mark.parametrize("obstacle", ["ports", "addresses"])
def test_a_slot_in_use_by_someone_else_is_passed_over(clusters, obstacle):
    taken = take(clusters[0])
    slots.give_back(clusters[0])
    other = take(clusters[0], **{obstacle: lambda slot: slot != taken})
    assert other != taken


def test_a_slot_given_back_can_be_taken(clusters):
    only = take(clusters[0])
    with pytest.raises(ClusterError, match="no free ports: all 100 blocks"):
        take(clusters[1], ports=lambda slot: slot == only)
    slots.give_back(clusters[0])
    assert take(clusters[1], ports=lambda slot: slot == only) == only


def test_where_the_first_range_is_routed_another_one_is_taken(clusters):
    slot = take(clusters[0], addresses=lambda slot: slot.prefix.startswith("100."))
    assert ipaddress.ip_address(slot.address(0)) in ipaddress.ip_network("100.64.0.0/10")
    assert slot.apiserver in {each.apiserver for each in ALL}


def test_two_ranges_of_addresses_do_not_give_ports_twice(clusters):
    first = take(clusters[0])
    same_ports = [slot for slot in OTHERS if slot.block == first.block]
    with pytest.raises(ClusterError, match="no free ports"):
        take(clusters[1], ports=lambda slot: slot in same_ports or slot == first)


def test_no_addresses_is_said_to_be_that_and_not_no_ports(clusters):
    with pytest.raises(ClusterError, match=r"no free addresses for nodes.*--control-plane-only"):
        take(clusters[0], addresses=no)


def test_a_control_plane_alone_needs_no_addresses(clusters):
    assert take(clusters[0], nodes=False, addresses=no).block < 100


def test_a_vpn_for_everything_blocks_nothing(monkeypatch):
    halves = [(0, 0x80000000), (0x80000000, 0x80000000), (0x0A000000, 0xFF000000)]
    monkeypatch.setattr(slots.network, "routed", lambda: halves)
    assert all(map(slots.addresses_free, [*ALL, *OTHERS]))


def test_a_cluster_whose_directory_is_gone_holds_nothing(clusters):
    only = take(clusters[0])
    clusters[0].root.rmdir()
    assert take(clusters[1], ports=lambda slot: slot == only) == only


def test_a_broken_registry_is_begun_anew(clusters, cache):
    cache.mkdir(parents=True)
    (cache / "clusters.json").write_text("{")
    take(clusters[0])
    assert clusters[0].id in json.loads((cache / "clusters.json").read_text())
    assert slots.directories() == [clusters[0].root]


def test_giving_back_twice_is_nothing(clusters, cache):
    slots.give_back(clusters[0])
    assert not cache.exists(), "nothing was taken, so nothing is written"
    take(clusters[0])
    slots.give_back(clusters[0])
    slots.give_back(clusters[0])
    assert slots.directories() == []


def test_a_listening_port_makes_a_slot_busy():
    slot = next(slot for slot in ALL if slots.ports_free(slot))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", slot.kubelet(3)))
        listener.listen()
        assert not slots.ports_free(slot)


def test_a_route_into_its_addresses_makes_a_slot_busy(monkeypatch):
    slot = Slot(7)
    base = int(ipaddress.ip_address(f"{slot.subnet(5)}.0"))
    monkeypatch.setattr(slots.network, "routed", lambda: [(base, 0xFFFFFF00)])
    assert not slots.addresses_free(slot)
    assert slots.addresses_free(Slot(8))
