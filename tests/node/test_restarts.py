"""Pods and slices outlive the plugin and the kubelet, and nothing is lost in between."""

import signal

import pytest
from support.manifests import GPU, MIG, claim, pod, profile, request
from support.waiting import wait_for


def identity(pod):
    """What changes when a pod, or one of its containers, is touched."""
    containers = pod["status"]["containerStatuses"]
    return pod["metadata"]["uid"], [(each["containerID"], each["restartCount"]) for each in containers]


def hold(space, name="holder", wish="3g.40gb"):
    """Run a pod with a partition of its own."""
    space.add(claim(name, request("it", MIG, profile(wish))), pod(name, claims=[name]))
    return space.running(name)[0]


def end_container(space, name):
    """End the program of a pod's container; the kubelet starts it again."""
    before = space.pod(name)["status"]["containerStatuses"][0]["restartCount"]
    space.server.kubectl("exec", "-n", space.name, name, "--", "kill", "1", check=False)

    def again():
        status = space.pod(name)["status"]["containerStatuses"][0]
        return status["restartCount"] > before and status["ready"]

    wait_for(again, "the container to run again", state=space.story)


ENDS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)


@ENDS
def test_a_running_pod_and_the_slices_outlive_the_plugin(number, node, space):
    before = hold(space)
    seen, versions = node.check(before), node.versions()
    status = node.plugin.stop(number)
    assert status == (0 if number is signal.SIGTERM else -signal.SIGKILL)
    node.start()
    assert identity(space.pod("holder")) == identity(before)
    assert node.check(space.pod("holder")) == seen
    space.delete("holder")
    node.wait_clean()
    assert node.versions() == versions


@ENDS
def test_a_container_restarts_without_the_plugin(number, node, space):
    seen = node.check(hold(space))
    node.plugin.stop(number)
    end_container(space, "holder")
    assert node.plugin.running is False
    assert sight_of(node, space) == seen
    node.start()


def sight_of(node, space):
    return node.check(space.pod("holder"))


def test_a_container_restarts_after_the_plugin_did(node, space):
    seen = node.check(hold(space))
    node.plugin.stop()
    node.start()
    end_container(space, "holder")
    assert sight_of(node, space) == seen


def test_the_next_process_prepares_beside_what_the_last_one_left(node, space):
    first = node.check(hold(space))["app"][0]
    node.plugin.stop(signal.SIGKILL)
    node.start()
    second = node.check(hold(space, "second"))["app"][0]
    assert second.uuid != first.uuid
    assert second.gpu["uuid"] == first.gpu["uuid"]


def test_a_pod_deleted_without_the_plugin_goes_when_it_is_back(node, space):
    hold(space)
    node.plugin.stop(signal.SIGKILL)
    space.server.delete("Pod", "holder", namespace=space.name, grace=1)
    wait_for(lambda: "deletionTimestamp" in space.pod("holder")["metadata"], "the deletion to begin")
    assert node.simulation.instances()
    node.start()
    space.gone("holder")
    node.wait_clean()


def test_a_pod_whose_device_is_not_offered_any_more_is_not_touched(node, space):
    before = hold(space)
    node.plugin.stop()
    node.start(["--mig", "dynamic", "--profiles", "1g.10gb"])
    assert identity(space.pod("holder")) == identity(before)
    space.delete("holder")
    node.wait_clean()


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_the_kubelet_restarts(kill, node, space):
    before = hold(space)
    seen, published = node.check(before), node.published()
    node.restart_kubelet(kill=kill)
    wait_for(lambda: node.published() == published, "the slices to be back", state=lambda: len(node.published()))
    assert identity(space.pod("holder")) == identity(before)
    node.plugin.wait_ready()
    node.check(hold(space, "second", "1g.10gb"))
    assert node.check(space.pod("holder")) == seen
    space.delete("holder", "second")
    node.wait_clean()


def test_a_whole_gpu_outlives_both(node, space):
    space.add(claim("gpu", request("it", GPU)), pod("gpu", claims=["gpu"]))
    (before,) = space.running("gpu")
    seen = node.check(before)
    node.plugin.stop()
    node.restart_kubelet()
    node.start()
    assert identity(space.pod("gpu")) == identity(before)
    end_container(space, "gpu")
    assert node.check(space.pod("gpu")) == seen
