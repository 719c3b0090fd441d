"""Other versions of Kubernetes, on request: what each keeps, in which layout, and what an upgrade changes under us.

    pytest -m other_kubernetes tests/control_plane/test_publish_versions.py

Their programs are built first, each in about ten minutes on two cores.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from doubles.allocation import Claims
from doubles.pools import sick
from doubles.publishing import DRIVER, PATIENCE, Offer, until
from doubles.scheduler import moments, view
from support.cluster import Cluster

from dradriver.kube import RESOURCE_SLICES, Client
from dradriver.kube.connection import connect
from dradriver.publish import Features, Phase, probe_features
from dradriver.resource import (
    CounterConsumption,
    CounterSet,
    Device,
    DeviceGroup,
    Layout,
    Pool,
    RequestPolicy,
    Slice,
    Taint,
    lay_out,
)

pytestmark = [pytest.mark.other_kubernetes, pytest.mark.timeout(3600)]

GATES = "DRAPartitionableDevices=true,DRADeviceTaints=true"
RULES = "resource.k8s.io/v1alpha3=true"
"""Without it the scheduler of 1.34 waits for DeviceTaintRules for ever once it knows taints."""
MODERN = Features(layout=Layout.APART, taints=True, informational_taints=True)
NOTHING = Features(layout=None, taints=False, informational_taints=False, shares=False)


@dataclass(frozen=True, kw_only=True)
class Kubernetes:
    """A version with its gates, and what it is to keep."""

    version: str
    gates: str = ""
    features: Features

    def __str__(self) -> str:
        return f"{self.version} {'with gates' if self.gates else 'as it comes'}"


OLD = Kubernetes(
    version="1.34.3",
    gates=GATES,
    features=Features(layout=Layout.TOGETHER, taints=True, informational_taints=False, shares=False),
)
PLAIN_OLD = Kubernetes(version="1.34.3", features=NOTHING)
NEWER = Kubernetes(version="1.36.3", features=MODERN)


@dataclass(frozen=True, kw_only=True)
class World:
    """A running cluster of one of these versions."""

    kubernetes: Kubernetes
    cluster: Cluster
    admin: Client

    @property
    def layout(self) -> Layout:
        layout = self.kubernetes.features.layout
        return pytest.skip("no layout") if layout is None else layout


@contextlib.contextmanager
def booted(kubernetes, folder) -> Iterator[World]:
    cluster = Cluster(folder)
    gates = ("--feature-gates", kubernetes.gates, "--runtime-config", RULES) if kubernetes.gates else ()
    try:
        cluster.up("--control-plane-only", "--kubernetes", kubernetes.version, *gates)
        with contextlib.closing(connect(cluster.kubeconfig)) as admin:
            yield World(kubernetes=kubernetes, cluster=cluster, admin=admin)
    finally:
        cluster.down()


@pytest.fixture(scope="module", params=[OLD, PLAIN_OLD, NEWER], ids=str)
def world(request, tmp_path_factory):
    with booted(request.param, tmp_path_factory.mktemp("other")) as made:
        yield made


@pytest.fixture
def offer(world):
    with Offer(world.admin, world.cluster.kubeconfig) as made:
        yield made


def group(gpu, *taints):
    """A GPU that is one device, or two partitions."""

    def device(name, kind, amount):
        consumes = (CounterConsumption(counter_set=f"gpu-{gpu}", counters={"memory": amount}),)
        return Device(name=name, attributes={"type": kind}, consumes=consumes, taints=taints)

    return DeviceGroup(
        counter_sets=(CounterSet(name=f"gpu-{gpu}", counters={"memory": 8}),),
        devices=(
            *(device(f"gpu-{gpu}-mig-{place}", "mig", 4) for place in (0, 4)),
            device(f"gpu-{gpu}", "gpu", 8),
        ),
    )


def pool(*groups):
    return Pool(name="node", groups=groups)


WHOLE = (Slice(devices=(Device(name="gpu-0", attributes={"type": "gpu"}),)),)


def test_what_it_keeps_is_found_out(offer, world):
    assert probe_features(world.admin, DRIVER, offer.node) == world.kubernetes.features
    assert offer.names() == []


def test_the_layout_it_wants_is_kept_and_not_written_again(offer, world):
    slices = lay_out(pool(group(0), group(1)), world.layout)
    publisher = offer.publisher(slices)
    assert publisher.wait_published(PATIENCE), publisher.status
    assert publisher.status.message == ""
    before = offer.versions()
    assert len(before) == {Layout.TOGETHER: 2, Layout.APART: 3}[world.layout]
    seen = view(offer.slices(), offer.node)
    assert (len(seen.devices), len(seen.sets), seen.problems) == (6, 2, ())
    publisher.stop(PATIENCE)
    again = offer.publisher(slices)
    assert again.wait_published(PATIENCE)
    assert offer.versions() == before


def test_taints_of_two_gpus_are_two_writes_in_place(offer, world):
    publisher = offer.publisher(lay_out(pool(group(0), group(1), group(2)), world.layout))
    assert publisher.wait_published(PATIENCE), publisher.status
    before = offer.versions()
    publisher.set_slices(lay_out(pool(group(0, sick()), group(1), group(2, sick())), world.layout))
    assert publisher.wait_published(PATIENCE), publisher.status
    assert sum(before[name] != version for name, version in offer.versions().items()) == 2
    assert offer.generations() == {1}
    name = offer.names()[1]
    offer.delete(name)
    took = until(lambda: offer.versions() and name in offer.names())
    print(f"slice back after {took:.3f} s")


def test_the_layout_of_other_versions_is_refused_and_doubted_once(offer, world):
    other = {Layout.APART: Layout.TOGETHER, Layout.TOGETHER: Layout.APART}[world.layout]
    doubts = []
    publisher = offer.publisher(lay_out(pool(group(0)), other), on_doubt=lambda: doubts.append(1))
    until(lambda: publisher.status.phase is Phase.FAILING)
    assert "do not fit together" in publisher.status.message
    publisher.mark_dirty("test")
    publisher.set_slices(lay_out(pool(group(0)), world.layout))
    assert publisher.wait_published(PATIENCE), publisher.status
    assert doubts == [1]
    assert view(offer.slices(), offer.node).problems == ()


@pytest.mark.parametrize("layout", Layout)
def test_what_loses_its_counters_is_withdrawn_in_either_layout(offer, world, layout):
    if world.kubernetes.features.layout is not None:
        pytest.skip("it keeps counters")
    doubts = []
    publisher = offer.publisher(lay_out(pool(group(0)), layout), on_doubt=lambda: doubts.append(1))
    until(lambda: publisher.status.phase is Phase.WITHDRAWN)
    assert offer.names() == []
    assert doubts == [1]
    publisher.set_slices(WHOLE)
    assert publisher.wait_published(PATIENCE)
    assert len(offer.names()) == 1


def test_informational_taints_are_kept_or_refused_as_was_found_out(offer, world):
    told = Taint(key=f"{DRIVER}/told", effect="None")
    device = replace(WHOLE[0].devices[0], taints=(told,))
    publisher = offer.publisher((Slice(devices=(device,)),))
    if world.kubernetes.features.informational_taints or not world.kubernetes.features.taints:
        assert publisher.wait_published(PATIENCE), publisher.status
    else:
        until(lambda: publisher.status.phase is Phase.FAILING)
        assert 'Unsupported value: "None"' in publisher.status.message


def test_its_scheduler_never_gives_memory_out_twice(offer, world):
    publisher = offer.publisher(lay_out(pool(group(0)), world.layout))
    assert publisher.wait_published(PATIENCE), publisher.status
    with Claims(world.admin, offer.node) as claims:
        claims.ask("part", device="mig")
        until(lambda: claims.device("part"))
        claims.ask("whole", device="gpu")
        until(lambda: claims.refused("whole"))
        claims.ask("other-part", device="mig")
        until(lambda: claims.device("other-part"))
        assert claims.device("whole") == ""
        claims.release("part")
        claims.release("other-part")
        until(lambda: claims.device("whole") == "gpu-0")


def test_its_scheduler_gives_out_as_many_shares_as_there_are(offer, world):
    if not world.kubernetes.features.shares:
        pytest.skip("it keeps no shares")
    publisher = offer.publisher((Slice(devices=(shared("gpu-0"), shared("gpu-1"))),))
    assert publisher.wait_published(PATIENCE), publisher.status
    with Claims(world.admin, offer.node) as claims:
        # One after the other: of claims at once one may be counted twice for a moment.
        for number in range(4):
            claims.ask(f"c{number}", device="gpu")
            until(lambda number=number: claims.device(f"c{number}"))
        assert [claims.device(f"c{number}") for number in range(4)] == ["gpu-0", "gpu-0", "gpu-1", "gpu-1"]
        claims.ask("fifth", device="gpu")
        until(lambda: claims.refused("fifth"))
        claims.release("c1")
        until(lambda: claims.device("fifth") == "gpu-0")


def shared(name):
    """A GPU of two shares; of its memory a claim takes none."""
    return Device(
        name=name,
        attributes={"type": "gpu"},
        capacity={"memory": 80 << 30, "shares": 2},
        policies={"memory": RequestPolicy(default=0), "shares": RequestPolicy(default=1, least=1)},
    )


@pytest.fixture(params=[OLD, PLAIN_OLD], ids=str)
def ageing(request, tmp_path):
    with booted(request.param, tmp_path) as made:
        yield made


def test_an_upgrade_changes_the_layout_under_a_running_driver(ageing):
    """What was allocated before stays in every complete pool, and the driver is not restarted."""
    with Offer(ageing.admin, ageing.cluster.kubeconfig) as offer:
        made, layouts, starts = [], [], []

        def look():
            features = probe_features(ageing.admin, DRIVER, offer.node)
            layouts.append(features.layout)
            # A new API server does not know what its predecessor told.
            position = ageing.admin.list(RESOURCE_SLICES).resource_version
            starts.append((position, {item["metadata"]["name"]: item for item in offer.slices()}))
            made[0].set_slices(WHOLE if features.layout is None else lay_out(pool(group(0), group(1)), features.layout))

        made.append(offer.publisher(on_doubt=look))
        look()
        assert made[0].wait_published(PATIENCE), made[0].status
        with Claims(ageing.admin, offer.node) as claims:
            claims.ask("it", device="gpu")
            until(lambda: claims.device("it"))
            ageing.cluster.change(kubernetes=NEWER.version, feature_gates="", runtime_config="")
            until(lambda: layouts[-1] is Layout.APART)
            assert made[0].wait_published(PATIENCE), made[0].status
            assert layouts == [ageing.kubernetes.features.layout, Layout.APART]
            assert len(offer.names()) == 3
            assert offer.generations() == {2}
            position, before = starts[1]
            for moment in moments(offer.events_since(position), before):
                seen = view(moment.values(), offer.node)
                assert seen is None or (claims.device("it") in seen.devices and seen.problems == ())
            claims.ask("part", device="mig")
            until(lambda: claims.device("part"))
            assert claims.device("it") != claims.device("part").partition("-mig-")[0]
