"""The plugin is killed at every boundary; the next one goes on, the pod runs, and nothing is left in the end."""

import signal
import time

import pytest
from support import killed
from support.manifests import GPU, MIG, claim, pod, profile, request
from support.summary import Summary

from dradriver.prepare.boundaries import Boundary

# A partition of a GPU in whole-GPU mode, in the order in which it passes them; a record is written several times.
PREPARING = [
    (Boundary.RECORD_TEMPORARY_WRITTEN, 1),
    (Boundary.PREPARING_RECORDED, 1),
    (Boundary.MODE_SWITCHED_ON, 1),
    (Boundary.GPU_INSTANCE_CREATED, 1),
    (Boundary.COMPUTE_INSTANCE_CREATED, 1),
    (Boundary.SPEC_WRITTEN, 1),
    (Boundary.RECORD_TEMPORARY_WRITTEN, 2),
    (Boundary.PREPARED_RECORDED, 1),
]
# A whole GPU in MIG mode.
PREPARING_WHOLE = [(Boundary.MODE_SWITCHED_OFF, 1)]
UNPREPARING = [
    (Boundary.RECORD_TEMPORARY_WRITTEN, 1),
    (Boundary.UNPREPARING_RECORDED, 1),
    (Boundary.COMPUTE_INSTANCE_DESTROYED, 1),
    (Boundary.GPU_INSTANCE_DESTROYED, 1),
    (Boundary.MODE_SWITCHED_OFF, 1),
    (Boundary.SPEC_REMOVED, 1),
    (Boundary.RECORD_REMOVED, 1),
]


def named(cases):
    return pytest.mark.parametrize(("boundary", "nth"), cases, ids=[f"{boundary}-{nth}" for boundary, nth in cases])


@pytest.fixture(scope="module")
def table(request):
    headings = "killed at", "while", "pod runs after [s]", "nothing left after [s]"
    return Summary("kill matrix", *headings).register(request.config)


def test_every_boundary_is_in_the_matrix():
    assert {boundary for boundary, _ in [*PREPARING, *PREPARING_WHOLE, *UNPREPARING]} == set(Boundary)


def restarted(node):
    """Start the plugin after its death; gives the moment at which the start began."""
    assert node.plugin.wait_end() == -signal.SIGKILL
    begun = time.monotonic()
    node.start()
    return begun


def prepare(node, space, wish, boundary, nth):
    """Run a pod whose claim is prepared twice; gives its devices, and how long it took from the second start."""
    node.plugin.stop()
    node.start(program=killed.program(boundary, nth))
    space.add(claim("it", wish), pod("it", claims=["it"]))
    begun = restarted(node)
    space.wake("it")
    (running,) = space.running("it")
    return node.check(running)["app"], time.monotonic() - begun


def unprepared(node, space):
    """Delete the pod; gives how long it took until nothing was left."""
    begun = time.monotonic()
    space.delete("it")
    node.wait_clean()
    return time.monotonic() - begun


@named(PREPARING)
def test_killed_while_preparing_a_partition(boundary, nth, node, space, table):
    (device,), seconds = prepare(node, space, request("it", MIG, profile("1g.10gb")), boundary, nth)
    assert device.instance["profile"] == "1g.10gb"
    assert len(node.simulation.instances()) == 1
    table.add(f"{boundary} ({nth})", "prepare", seconds, unprepared(node, space))


@named(PREPARING_WHOLE)
def test_killed_while_preparing_a_whole_gpu(boundary, nth, use_node, space, table):
    node = use_node(mig="on")
    (device,), seconds = prepare(node, space, request("it", GPU), boundary, nth)
    assert device.instance is None
    table.add(f"{boundary} ({nth})", "prepare of a whole GPU", seconds, unprepared(node, space))


@named(UNPREPARING)
def test_killed_while_unpreparing_a_partition(boundary, nth, node, space, table):
    space.add(claim("it", request("it", MIG, profile("1g.10gb"))), pod("it", claims=["it"]))
    assert len(node.check(space.running("it")[0])["app"]) == 1
    node.plugin.stop()
    node.start(program=killed.program(boundary, nth))
    space.server.delete("Pod", "it", namespace=space.name, grace=1)
    begun = restarted(node)
    space.wake("it")
    space.gone("it")
    node.wait_clean()
    table.add(f"{boundary} ({nth})", "unprepare", "", time.monotonic() - begun)
