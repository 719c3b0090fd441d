"""The plugin is replaced, the driver is missing, loaded anew or upgraded: no claim fails by that, and none is lost."""

import signal
import time

import pytest
from support import hasty
from support.gpunode import DYNAMIC
from support.manifests import GPU, MIG, claim, pod, profile, request
from support.sight import slices
from support.waiting import wait_for

SMALL = profile("1g.10gb")
INIT = "nvmlInitWithFlags"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def hold(space, name, *cel, device_class=MIG):
    """Run a pod with a claim of its own."""
    space.add(claim(name, request("it", device_class, *cel)), pod(name, claims=[name]))
    return space.running(name)[0]


def slice_uids(node):
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in slices(node.server)}


# --- a rolling update --------------------------------------------------------------------------------------


def of_pod(uid):
    return (*DYNAMIC, "--pod-uid", uid)


FIRST, SECOND = "6f0a7c1e-0000-4000-8000-000000000001", "6f0a7c1e-0000-4000-8000-000000000002"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_pods_start_all_the_time_while_one_plugin_follows_another(number, use_node, space):
    node = use_node(options=of_pod(FIRST))
    before = slice_uids(node)
    first, second = node.plugin, node.another(*of_pod(SECOND))
    names = [f"pod-{index}" for index in range(30)]
    try:
        for index, name in enumerate(names):
            if index == 8:
                second.start()
            if index == 16:
                second.wait_ready()
                first.send(number)
            space.add(claim(name, request("it", MIG, SMALL)), pod(name, claims=[name]))
            assert slice_uids(node) == before
            # A rate of pods, not a wait for anything.
            time.sleep(0.5)
        assert first.wait_end() == (0 if number is signal.SIGTERM else -number)
    finally:
        node.plugin = second
    devices = [node.check(each)["app"][0] for each in space.running(*names)]
    assert len({device.uuid for device in devices}) == len(names)
    assert {name: space.failures(name) for name in names} == {name: [] for name in names}
    space.delete(*names)
    node.wait_clean()
    assert slice_uids(node) == before


def profiles(node):
    """Profiles in the slices."""
    published = node.published().values()
    return {each["attributes"]["profile"]["string"] for each in published if "profile" in each["attributes"]}


def test_of_two_plugins_with_other_flags_the_newer_one_publishes(use_node):
    """Nothing goes back and forth between them, and the older one takes over again where the newer one dies."""
    node = use_node(options=of_pod(FIRST))
    assert "3g.40gb" in profiles(node)
    second = node.another(*of_pod(SECOND), "--profiles", "1g.10gb")
    try:
        second.start()
        second.wait_ready()
        wait_for(lambda: profiles(node) == {"1g.10gb"}, "the newer plugin's slices", state=lambda: profiles(node))
        versions = node.versions()
        for _ in range(3):
            # As long as either would need to undo the other's work several times.
            time.sleep(1)
            assert node.versions() == versions
    finally:
        second.send(signal.SIGKILL)
        second.wait_end()
    wait_for(lambda: "3g.40gb" in profiles(node), "the older plugin's slices", state=lambda: profiles(node))


def test_two_plugins_beside_each_other_know_each_others_claims(use_node, space):
    node = use_node(options=of_pod(FIRST))
    old = node.check(hold(space, "old", SMALL))["app"]
    first, second = node.plugin, node.another(*of_pod(SECOND))
    second.start()
    try:
        second.wait_ready()
        new = node.check(hold(space, "new", SMALL))["app"]
        assert old != new
        # The newest plugin is asked, also for what the other one has prepared.
        space.delete("old")
        assert len(node.simulation.instances()) == 1
        assert second.stop() == 0
        third = node.check(hold(space, "third", SMALL))["app"]
        assert third != new
        space.delete("new", "third")
        node.wait_clean()
    finally:
        node.plugin = first
        if second.running:
            second.stop()


# --- the driver --------------------------------------------------------------------------------------------


def test_without_a_driver_claims_of_an_earlier_boot_are_unprepared_and_gpus_offered_when_it_comes(node, space):
    hold(space, "part", SMALL)
    hold(space, "gpu", device_class=GPU)
    node.plugin.stop()
    node.simulation.run("reboot")
    node.simulation.run("fail", INIT, "--error", "DRIVER_NOT_LOADED")
    # What another process has published is not this one's.
    node.server.kubectl("delete", "resourceslices", "--all")
    try:
        node.plugin.start()
        said = wait_for(lambda: "[+] registered" in node.plugin.page("/readyz") and node.plugin.page("/readyz"), "it")
        assert "no GPUs" in said
        space.wake("part")
        space.delete("part", "gpu")
        node.wait_clean()
        assert node.published() == {}
    finally:
        node.simulation.run("fail", INIT, "--clear")
    node.plugin.wait_ready()
    node.check(hold(space, "after", SMALL))


@pytest.mark.parametrize("version", [None, "999.12.34"], ids=["reload", "upgrade"])
def test_the_driver_is_replaced_while_pods_run(version, node, space):
    node.plugin.stop()
    node.start(program=hasty.PROGRAM)
    lost = node.check(hold(space, "lost", SMALL))["app"][0]
    whole = node.check(hold(space, "whole", device_class=GPU))["app"][0]
    node.simulation.run("driver-reload", *(["--version", version] if version else []))
    assert lost.name in space.told("ResourceClaim", "lost", "PartitionLost")
    node.plugin.wait_ready()
    after = hold(space, "after", SMALL)
    assert node.check(after)["app"][0].uuid != lost.uuid
    wanted = node.simulation.show()["driver_version"]
    assert version in {None, wanted}
    assert f"libnvidia-ml.so.{wanted}" in space.server.kubectl(
        "exec", "-n", space.name, "after", "--", "sh", "-c", f"ls {LIBRARIES}"
    )
    assert space.failures("after") == []
    assert node.check(space.pod("whole"))["app"][0] == whole
    space.delete("lost", "whole", "after")
    node.wait_clean()
    again = node.check(hold(space, "again", SMALL))["app"][0]
    assert again.instance["profile"] == "1g.10gb"
    node.plugin.stop()
