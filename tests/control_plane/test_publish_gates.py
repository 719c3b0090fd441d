"""An API server with its feature gates off, and one that goes away."""

import os
import signal
from collections.abc import Iterator

import pytest
from doubles.pools import device_slice, node_slices, sick
from doubles.publishing import DRIVER, PATIENCE, Offer, until
from support.cluster import Cluster, ClusterError, run_tool

from dradriver.kube import UnreachableError
from dradriver.kube.connection import connect
from dradriver.publish import Features, Phase, probe_features
from dradriver.resource import Device, Slice

pytestmark = pytest.mark.control_plane

GATES = "DRAPartitionableDevices=false,DRADeviceTaints=false,DRADeviceTaintRules=false"
OPTIONS = ("--control-plane-only", "--feature-gates", GATES)


@pytest.fixture(scope="module")
def poor(tmp_path_factory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("poor"))
    try:
        made.up(*OPTIONS)
        yield made
    except ClusterError as error:
        pytest.fail(str(error), pytrace=False)
    finally:
        made.down()


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
    assert probe_features(admin, DRIVER, offer.node) == Features(layout=None, taints=False, informational_taints=False)
    assert offer.names() == []


def test_an_offer_that_loses_its_counters_is_withdrawn(offer):
    publisher = offer.publisher(node_slices())
    until(lambda: publisher.status.phase is Phase.WITHDRAWN)
    assert offer.names() == []
    assert "DRAPartitionableDevices" in publisher.status.message
    publisher.set_slices((Slice(devices=(Device(name="gpu-0"),)),))
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


def test_an_api_server_that_goes_away_is_waited_for(offer, admin, poor):
    whole = Slice(devices=(Device(name="gpu-0"), Device(name="gpu-1")))
    publisher = offer.publisher((whole,))
    assert publisher.wait_published(PATIENCE)
    before = offer.versions()
    os.kill(process_of("kube-apiserver", poor), signal.SIGKILL)
    until(lambda: not answers(admin))
    publisher.set_slices((Slice(devices=(Device(name="gpu-0"),)),))
    until(lambda: publisher.status.phase is Phase.FAILING)
    assert "no answer from the API server" in publisher.status.message
    poor.up(*OPTIONS)
    assert publisher.wait_published(PATIENCE)
    (name,) = offer.names()
    assert offer.versions()[name] != before[name]
    assert offer.generations() == {1}
    offer.delete(name)
    until(lambda: offer.names() == [name])


def process_of(program, cluster):
    lines = run_tool("status", "--dir", str(cluster.folder)).splitlines()
    (pid,) = [line.split()[1] for line in lines if line.startswith(program)]
    return int(pid)


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
