"""Fifty-six pods at once, each with a seventh of a GPU, on hardware that takes its time."""

import time
from datetime import datetime

import pytest
from support.manifests import MIG, claim, pod, profile, request
from support.summary import Summary
from support.waiting import wait_for

MILLISECONDS = {
    "nvmlDeviceSetMigMode": 2000,
    "nvmlDeviceCreateGpuInstanceWithPlacement": 300,
    "nvmlGpuInstanceDestroy": 1000,
}
GPUS, PARTS = 8, 7
PREPARE_SECONDS = 2.0 + PARTS * 0.3
UNPREPARE_SECONDS = PARTS * 1.0 + 2.0
"""What one GPU takes at least, since its changes are made one after another; GPUs do it side by side."""
NAMES = [f"pod-{index}" for index in range(GPUS * PARTS)]


@pytest.fixture
def table(request):
    headings = "56 pods with 1g.10gb on 8 GPUs", "took [s]", "per-GPU serial limit [s]", "ratio"
    return Summary("burst", *headings).register(request.config)


@pytest.fixture
def slow_node(node):
    for call, milliseconds in MILLISECONDS.items():
        node.simulation.run("latency", call, str(milliseconds))
    yield node
    for call in MILLISECONDS:
        node.simulation.run("latency", call, "0")


def all_ready(space):
    """Tell whether every pod runs; those that the kubelet's race has hit are woken, which is not ours to pay for."""
    space.wake_raced()
    return all(map(is_ready, space.pods()))


def is_ready(body):
    states = body["status"].get("containerStatuses", [{}])
    return all(each.get("ready") for each in states)


def span(node, event):
    """Seconds from the begin of the first call to the end of the last one that the plugin's log tells of."""
    entries = [entry for entry in node.plugin.entries() if entry["event"] == event]
    ends = [datetime.fromisoformat(entry["ts"]).timestamp() for entry in entries]
    begins = [end - entry["seconds"] for end, entry in zip(ends, entries, strict=True)]
    return max(ends) - min(begins)


def tell(table, what, seconds, limit):
    table.add(what, seconds, limit, f"{seconds / limit:.2f}")


def test_a_burst_of_pods(slow_node, space, table):
    node = slow_node
    begun = time.monotonic()
    for name in NAMES:
        space.add(claim(name, request("it", MIG, profile("1g.10gb"))), pod(name, claims=[name]))
    wait_for(lambda: all_ready(space), "all pods to run", state=space.story)
    running = time.monotonic() - begun
    pods = space.running(*NAMES)
    devices = [node.check(each)["app"][0] for each in pods]
    assert len({device.uuid for device in devices}) == len(NAMES)
    assert {device.instance["profile"] for device in devices} == {"1g.10gb"}
    assert {name: space.failures(name) for name in NAMES} == {name: [] for name in NAMES}
    tell(table, "containers run, from the first pod on", running, PREPARE_SECONDS)
    tell(table, "claims prepared, by the plugin's log", span(node, "claim prepared"), PREPARE_SECONDS)

    begun = time.monotonic()
    for name in NAMES:
        space.server.delete("Pod", name, namespace=space.name, grace=1)
    wait_for(lambda: not node.leftovers(), "everything to be gone", state=node.leftovers)
    tell(table, "everything gone, from the first deletion on", time.monotonic() - begun, UNPREPARE_SECONDS)
    space.gone(*NAMES)
