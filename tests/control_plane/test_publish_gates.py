"""An API server with its feature gates off, and one that goes away."""

import contextlib
import itertools
from collections.abc import Iterator

import pytest
from doubles.machines import gpus
from doubles.offers import Counter
from doubles.pools import device_slice, node_slices, sick
from doubles.publishing import DRIVER, PATIENCE, Offer, until
from support.cluster import Cluster, ClusterError

from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import Situation, make_offer
from dradriver.gpu.policy import GpuRule, OfferPolicy, Sharing
from dradriver.kube import KubeError, Pace, UnreachableError
from dradriver.kube.connection import connect
from dradriver.publish import Features, Phase, probe_features
from dradriver.resource import Device, Layout, RequestPolicy, Slice, lay_out

pytestmark = pytest.mark.control_plane

GATES = "DRAPartitionableDevices=false,DRADeviceTaints=false,DRADeviceTaintRules=false,DRAConsumableCapacity=false"
NOTHING = Features(layout=None, taints=False, informational_taints=False, shares=False)
EVERYTHING = Features(layout=Layout.APART, taints=True, informational_taints=True)
WHOLE = (Slice(devices=(Device(name="gpu-0"),)),)
SHARED = Device(name="gpu-0", capacity={"shares": 4}, policies={"shares": RequestPolicy(default=1, least=1)})


@contextlib.contextmanager
def booted(folder, *options) -> Iterator[Cluster]:
    made = Cluster(folder)
    try:
        made.up("--control-plane-only", *options)
        yield made
    except ClusterError as error:
        pytest.fail(str(error), pytrace=False)
    finally:
        made.down()


@pytest.fixture(
    scope="module",
    params=[("--feature-gates", GATES), ("--emulate", "1.35")],
    ids=["gates off", "1.35 as it comes"],
)
def poor(request, tmp_path_factory) -> Iterator[Cluster]:
    with booted(tmp_path_factory.mktemp("poor"), *request.param) as made:
        yield made


@pytest.fixture
def admin(poor):
    client = connect(poor.kubeconfig)
    yield client
    client.close()


@pytest.fixture
def offer(admin, poor):
    with Offer(admin, poor.kubeconfig) as made:
        yield made


def test_what_is_missing_is_found_out_before(offer, admin):
    assert probe_features(admin, DRIVER, offer.node) == NOTHING
    assert offer.names() == []


def test_an_offer_that_loses_its_counters_is_withdrawn(offer):
    publisher = offer.publisher(node_slices())
    until(lambda: publisher.status.phase is Phase.WITHDRAWN)
    assert offer.names() == []
    assert "DRAPartitionableDevices" in publisher.status.message
    publisher.set_slices(WHOLE)
    assert publisher.wait_published(PATIENCE)
    assert len(offer.names()) == 1
    assert publisher.status.message == ""


def test_taints_that_are_lost_are_told_once(offer):
    plain = Slice(devices=(Device(name="gpu-0", taints=(sick(),)),))
    publisher = offer.publisher((plain,))
    assert publisher.wait_published(PATIENCE)
    assert "DRADeviceTaints" in publisher.status.message
    before = offer.versions()
    publisher.mark_dirty("test")
    assert publisher.wait_published(PATIENCE)
    assert offer.versions() == before


def test_shares_that_are_lost_leave_a_whole_gpu_and_are_told_once(offer):
    publisher = offer.publisher((Slice(devices=(SHARED,)),))
    assert publisher.wait_published(PATIENCE)
    assert "DRAConsumableCapacity" in publisher.status.message
    ((stored,),) = (each["spec"]["devices"] for each in offer.slices())
    assert stored == {"name": "gpu-0", "capacity": {"shares": {"value": "4"}}}
    before = offer.versions()
    publisher.mark_dirty("test")
    assert publisher.wait_published(PATIENCE)
    assert offer.versions() == before


def test_a_node_that_is_to_share_offers_whole_gpus_and_says_so(offer, admin):
    found = gpus("2xh100-80gb")
    features = probe_features(admin, DRIVER, offer.node)
    policy = OfferPolicy(default=GpuRule(sharing=Sharing(replicas=4)))
    made = make_offer(
        found,
        pool=offer.node,
        policy=policy,
        numbers=number_gpus(found, {}),
        situation=Situation(layout=features.layout, taints=features.taints, shareable=features.shares),
    )
    publisher = offer.publisher(lay_out(made.pool))
    assert publisher.wait_published(PATIENCE)
    assert publisher.status.message == "", "nothing was left out"
    devices = [device for each in offer.slices() for device in each["spec"]["devices"]]
    assert [device["name"] for device in devices] == ["gpu-0", "gpu-1"]
    assert all(device["attributes"]["sharing"] == {"string": "none"} for device in devices)


def test_an_api_server_that_goes_away_is_waited_for(offer, admin, poor):
    """With the real driver's delays, which have grown to about ten seconds by then."""
    whole = Slice(devices=(Device(name="gpu-0"), Device(name="gpu-1")))
    doubts, meter = [], Counter()
    publisher = offer.publisher((whole,), pace=Pace(), on_doubt=lambda: doubts.append(1), meter=meter)
    assert publisher.wait_published(PATIENCE)
    before = offer.versions()
    poor.kill("kube-apiserver")
    until(lambda: not answers(admin))
    publisher.set_slices(WHOLE)
    until(lambda: len(meter.failures) == 4)
    assert "no answer from the API server" in publisher.status.message
    poor.up()
    took = until(lambda: publisher.published)
    print(f"written {took:.3f} s after the API server was ready")
    (name,) = offer.names()
    assert offer.versions()[name] != before[name]
    assert offer.generations() == {1}
    offer.delete(name)
    print(f"slice back after {until(lambda: offer.names() == [name]):.3f} s")
    until(lambda: doubts)
    assert doubts == [1]


def answers(client):
    try:
        probe_features(client, DRIVER, "nobody")
    except UnreachableError:
        return False
    return True


def test_counters_alone_do_not_help(offer):
    """Devices without their counters must not be offered even for a moment longer than the answer takes."""
    publisher = offer.publisher((device_slice(0),))
    until(lambda: publisher.status.phase is Phase.WITHDRAWN)
    assert publisher.status.slices == 0
    assert not publisher.published


def test_gates_that_are_switched_change_the_offer_without_a_restart(tmp_path):
    with (
        booted(tmp_path, "--feature-gates", GATES) as cluster,
        contextlib.closing(connect(cluster.kubeconfig)) as admin,
        Offer(admin, cluster.kubeconfig) as offer,
    ):
        doubts, seen = [True], []
        publisher = offer.publisher(on_doubt=lambda: doubts.append(True))

        def heed():
            """Ask as often as there are doubts, and again where no answer comes, as the driver does."""
            if not doubts:
                return
            doubts.clear()
            try:
                seen.append(probe_features(admin, DRIVER, offer.node))
            except KubeError:
                doubts.append(True)
            else:
                publisher.set_slices(node_slices() if seen[-1].partitionable else WHOLE)

        def is_offered(expected, slices):
            heed()
            return seen[-1:] == [expected] and publisher.published and len(offer.names()) == slices

        until(lambda: is_offered(NOTHING, 1))
        for gates, expected, slices in (("", EVERYTHING, 4), (GATES, NOTHING, 1)):
            cluster.change(feature_gates=gates)
            until(lambda expected=expected, slices=slices: is_offered(expected, slices))
        assert [found for found, _ in itertools.groupby(seen)] == [NOTHING, EVERYTHING, NOTHING]
