"""The way of a node from the device plugin to DRA: `kubectl dra plan --apply`, then the driver and the controller.

The device plugin is a DaemonSet that only looks like one, and the node's status says what it would have served.
"""

import json
import subprocess
import sys
from collections import Counter
from contextlib import suppress

import pytest
from support.bridging import Controllers, install
from support.gpunode import NODE
from support.manifests import IMAGE, pod
from support.waiting import wait_for

from controller.api import BRIDGES
from controller.cli.wanted import CONFIG_MAPS
from dradriver.kube import DEVICE_CLASSES, NODES, NotFoundError

SHARED = "nvidia.com/gpu.shared"
CHOICE, LABEL = "nvidia.com/device-plugin.config", "dradriver.dev/config"
MANIFEST = ("dradriver-node-config", "dradriver")
SLICED = """
version: v1
flags: {migStrategy: none}
sharing:
  timeSlicing:
    renameByDefault: true
    resources: [{name: nvidia.com/gpu, replicas: 4}]
"""


def serve(admin, count):
    """Let the node's status say that a device plugin serves so many, or that one has served once."""
    amount = {SHARED: str(count)}
    admin.patch(NODES, NODE, {"status": {"capacity": amount, "allocatable": amount}}, subresource="status")


def choose(admin, **labels):
    admin.patch(NODES, NODE, {"metadata": {"labels": {CHOICE: None, LABEL: None} | labels}})


@pytest.fixture
def legacy(admin, keeper, space):
    """A node with a device plugin that shares GPUs. Gives the function that takes the plugin away."""
    install(keeper.server)
    for body in (config_map(space.name, {"default": "version: v1", "sliced": SLICED}), daemon_set(space.name)):
        keeper.server.kubectl("apply", "-f", "-", text=json.dumps(body))
    choose(admin, **{CHOICE: "sliced"})
    serve(admin, 8)

    def remove():
        keeper.server.kubectl("delete", "daemonset", "-n", space.name, "plugin", "--wait", "--ignore-not-found")
        serve(admin, 0)

    yield remove
    remove()
    choose(admin)
    for item in admin.list(BRIDGES).items:
        admin.delete(BRIDGES, item["metadata"]["name"])
    with suppress(NotFoundError):
        admin.delete(CONFIG_MAPS, MANIFEST[0], namespace=MANIFEST[1])


def config_map(namespace, data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": namespace}, "data": data}


def daemon_set(namespace):
    folder = {"name": "configs", "mountPath": "/available-configs"}
    sleeper = {"image": IMAGE, "command": ["sleep", "86400"], "volumeMounts": [folder]}
    variables = [{"name": "CONFIG_FILE_SRCDIR", "value": "/available-configs"}]
    containers = [{"name": "nvidia-device-plugin"} | sleeper, {"name": "car", "env": variables} | sleeper]
    spec = {"containers": containers, "volumes": [{"name": "configs", "configMap": {"name": "c"}}]}
    labels = {"app": "plugin"}
    template = {"metadata": {"labels": labels}, "spec": spec | {"terminationGracePeriodSeconds": 0}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "plugin", "namespace": namespace},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


def planned(cluster, *words):
    """Run the program."""
    program = [sys.executable, "-m", "controller.cli", "plan", "--from-cluster"]
    command = [*program, "--kubeconfig", str(cluster.kubeconfig), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), (done.stdout, done.stderr)
    return {line.split("   ")[0].strip(): line.split("   ")[-1].strip() for line in done.stdout.splitlines()[1:]}


def test_a_node_that_is_handed_over_after_apply_serves_what_the_plan_says(
    cluster, admin, keeper, legacy, space, use_node, tmp_path
):
    expected = ("ExtendedResourceBridge gpu.shared", "ConfigMap dradriver/dradriver-node-config", f"Node {NODE}")
    assert planned(cluster, "--apply") == dict(zip(expected, ("created", "created", "changed"), strict=True))
    assert planned(cluster, "--apply") == dict.fromkeys(expected, "unchanged")
    controllers = Controllers(cluster, keeper.server, admin, tmp_path)
    try:
        controllers.start()
        assert controllers.carriers(SHARED) == set()
        # The node moves.
        legacy()
        file = tmp_path / "nodes.yaml"
        file.write_text(admin.get(CONFIG_MAPS, MANIFEST[0], namespace=MANIFEST[1])["data"]["nodes.yaml"])
        node = use_node(machine="2xh100-80gb", options=("--node-config", str(file)))
        controllers.wait_reason("gpu.shared", "Serving")
        names = [f"sharer-{index}" for index in range(4)]
        for name in names:
            limits = {"resources": {"limits": {SHARED: "1"}}}
            space.add(pod(name, {"name": "app", "image": IMAGE, "command": ["sleep", "86400"], **limits}))
            space.running(name)
        seen = Counter(tuple(device.name for device in node.check(each)["app"]) for each in space.running(*names))
        assert all(len(devices) == 1 for devices in seen)
        assert sum(seen.values()) == len(names)
        # More pods than GPUs: they share.
        assert len(seen) <= 2
        space.delete(*names)
        node.spoilt = True
    finally:
        controllers.close()
    wait_for(lambda: not carried(admin), "the class to be gone")


def carried(admin):
    return [item for item in admin.list(DEVICE_CLASSES).items if item["spec"].get("extendedResourceName") == SHARED]
