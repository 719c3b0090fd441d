"""Health under hardship: storms of errors, many GPUs, calls that hang or fail, and what administrators say."""

import ctypes
import os
import select
from contextlib import contextmanager

import pytest
from support.gpunode import DYNAMIC, NODE
from support.manifests import GPU, MIG, claim, of_gpu, pod, profile, request
from support.sickness import (
    LOST,
    MEMORY,
    RECOVERY,
    UNMONITORED,
    XID,
    devices_of,
    health_command,
    metric,
    taints,
    wait_metric,
    wait_same,
    wait_taints,
    wait_well,
)
from support.sight import slices
from support.waiting import wait_for

OFF_THE_BUS = {XID: ("79", "NoExecute"), RECOVERY: ("node-reboot", "NoExecute")}
NEEDS_RESET = {XID: ("119", "NoSchedule"), RECOVERY: ("gpu-reset", "NoSchedule")}


# --- storms ----------------------------------------------------------------------------------------


class Replacements:
    """Counts how often a file is put in place in a folder."""

    _MOVED_TO = 0x80

    def __init__(self, descriptor):
        self._descriptor = descriptor
        self._seen = []

    def of(self, name):
        """How often a file of this name was, until now."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        while poll.poll(0):
            content, position = os.read(self._descriptor, 1 << 16), 0
            while position < len(content):
                # struct inotify_event: watch, mask, cookie, and the length of the name behind them.
                length = int.from_bytes(content[position + 12 : position + 16], "little")
                self._seen.append(os.fsdecode(content[position + 16 : position + 16 + length].rstrip(b"\0")))
                position += 16 + length
        return self._seen.count(name)


@contextmanager
def replacements(folder):
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK)
    assert descriptor >= 0, os.strerror(ctypes.get_errno())
    try:
        assert libc.inotify_add_watch(descriptor, os.fsencode(folder), Replacements._MOVED_TO) >= 0
        yield Replacements(descriptor)
    finally:
        os.close(descriptor)


def written(node):
    """How many slices the plugin has written since it was started."""
    return metric(node, "dradriver_slice_writes_total")


def test_a_storm_of_errors_costs_few_writes(sick, space):
    node = sick(machine="2xh100-80gb")
    uuid = node.simulation.gpus()[1]["uuid"]
    space.add(claim("before", request("it", MIG, of_gpu(uuid), profile("1g.10gb"))), pod("before", claims=["before"]))
    space.running("before")
    at_first = written(node)
    with replacements(node.home) as kept:
        for _ in range(20):
            node.simulation.run("xid", "31", "--times", "10000", "--gpu", "1")
        wait_same(node, 1, {XID: ("31", "None")})
        assert written(node) - at_first <= 4
        assert kept.of("health.json") <= 10
        # Each number is another cause. The first that keeps pods away is told, and stays.
        for number in range(1000, 3000):
            node.simulation.run("xid", str(number), "--gpu", "1")
        node.simulation.run("xid", "45", "--gpu", "1")
        wait_metric(node, "dradriver_gpu_xids_total", 1, xid="45")
        wait_taints(node, lambda found: found["gpu-1"][XID] == ("1000", "NoSchedule"), "the first to be told")
        assert written(node) - at_first <= 10
        print("slices written", written(node) - at_first, "health.json", kept.of("health.json"))
        assert kept.of("health.json") <= 400
    space.add(claim("other", request("it", GPU)), pod("other", claims=["other"]))
    assert node.check(space.running("other")[0])["app"][0].name == "gpu-0"
    assert "deletionTimestamp" not in space.running("before")[0]["metadata"]


# --- many GPUs -------------------------------------------------------------------------------------


def test_the_last_of_sixteen_gpus_and_then_all_of_them(sick):
    node = sick(machine="16xh100-80gb")
    offered = set(node.published())
    assert len([name for name in offered if "mig" not in name]) == 16
    node.simulation.run("xid", "79", "--gpu", "15")
    wait_same(node, 15, OFF_THE_BUS)
    assert taints(node).keys() == devices_of(node, 15)
    for gpu in range(15):
        node.simulation.run("xid", "95", "--gpu", str(gpu))
        node.simulation.run("remap", "--failure", "--gpu", str(gpu))
    grave = {
        XID: ("95", "NoExecute"),
        RECOVERY: ("gpu-reset", "NoExecute"),
        MEMORY: ("uncontained", "NoExecute"),
    }
    for gpu in range(15):
        wait_same(node, gpu, grave)
    assert set(node.published()) == offered == taints(node).keys()
    found = slices(node.server)
    pools = [each["spec"]["pool"] for each in found]
    assert {pool["resourceSliceCount"] for pool in pools} == {len(found)}
    assert len({pool["generation"] for pool in pools}) == 1


# --- calls that hang or fail -------------------------------------------------------------------------

QUESTIONS = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetFieldValues")


def test_a_gpu_that_hangs_keeps_nobody_from_hearing_the_others(sick, space):
    node = sick(machine="3xh100-80gb")
    uuids = [gpu["uuid"] for gpu in node.simulation.gpus()]
    for question in QUESTIONS:
        node.simulation.run("latency", question, "600000", "--gpu", "0")
    wait_same(node, 0, {UNMONITORED: ("", "None")})
    space.told("Node", NODE, "GpuReported", f"{uuids[0]} does not say how it is")
    # What it reports itself is heard all the same, as long as nothing makes the plugin listen anew.
    node.simulation.run("xid", "31", "--gpu", "0")
    wait_same(node, 0, {UNMONITORED: ("", "None"), XID: ("31", "None")})
    node.simulation.run("xid", "119", "--gpu", "1")
    wait_same(node, 1, NEEDS_RESET)
    node.simulation.run("remap", "--failure", "--gpu", "2")
    wait_same(node, 2, {MEMORY: ("remap-failed", "NoSchedule")})
    node.simulation.run("remap", "--failure", "no", "--gpu", "2")
    wait_taints(node, lambda found: devices_of(node, 2).isdisjoint(found), "the third GPU to be well again")
    space.add(
        claim("beside", request("it", MIG, of_gpu(uuids[2]), profile("3g.40gb"))), pod("beside", claims=["beside"])
    )
    node.check(space.running("beside")[0])
    # What lasts keeps new pods away.
    wait_same(node, 0, {UNMONITORED: ("", "NoSchedule"), XID: ("31", "None")})
    assert metric(node, "dradriver_gpus_unmonitored") == 1
    for question in QUESTIONS:
        node.simulation.run("latency", question, "0")
    wait_same(node, 0, {XID: ("31", "None")})
    wait_for(lambda: metric(node, "dradriver_gpus_unmonitored") == 0, "all GPUs to be heard")


READINGS = (
    *QUESTIONS,
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetGpuFabricInfoV",
)
LISTENING = ("nvmlEventSetWait_v2", "nvmlDeviceRegisterEvents")
ERRORS = ("UNKNOWN", "NOT_SUPPORTED", "GPU_IS_LOST", "NO_PERMISSION", "UNINITIALIZED", "RESET_REQUIRED", "TIMEOUT")


def test_the_monitor_survives_errors_of_every_kind(sick):
    node = sick(machine="2xh100-80gb")
    for call in (*READINGS, *LISTENING):
        for error in ERRORS:
            node.simulation.run("fail", call, "--error", error, "--times", "2", "--gpu", "0")
    looks = metric(node, "dradriver_last_success_timestamp_seconds", loop="health")
    wait_for(lambda: metric(node, "dradriver_last_success_timestamp_seconds", loop="health") > looks, "another look")
    node.simulation.run("fail", "all", "--clear")
    node.simulation.run("xid", "119", "--gpu", "0")
    wait_taints(node, lambda found: found.get("gpu-0", {}).get(XID) == NEEDS_RESET[XID], "the error to be heard")
    node.simulation.run("xid", "119", "--gpu", "1")
    wait_same(node, 1, NEEDS_RESET)
    node.simulation.run("reset")
    wait_well(node)
    assert "Traceback" not in node.plugin.log()


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        ("RESET_REQUIRED", {RECOVERY: ("gpu-reset", "NoSchedule")}),
        ("GPU_IS_LOST", {LOST: ("", "NoExecute")}),
        ("UNKNOWN", {UNMONITORED: ("", "None")}),
    ],
)
def test_what_a_gpu_refuses_to_answer_is_told_until_it_does(sick, error, wanted):
    node = sick(machine="2xh100-80gb")
    for call in READINGS:
        node.simulation.run("fail", call, "--error", error, "--gpu", "0")
    wait_same(node, 0, wanted)
    assert taints(node).keys() == devices_of(node, 0)
    node.simulation.run("fail", "all", "--clear")
    wait_well(node)


# --- what administrators say -------------------------------------------------------------------------


def test_an_administrator_ends_what_only_he_can_end(sick):
    node = sick(machine="2xh100-80gb")
    software = {XID: ("78", "NoSchedule"), RECOVERY: ("update-software", "NoSchedule")}
    assert health_command(node)[0] == 0
    for gpu in ("0", "1"):
        node.simulation.run("xid", "78", "--gpu", gpu)
    wait_same(node, 0, software)
    wait_same(node, 1, software)
    node.simulation.run("reset")
    status, text = health_command(node)
    assert status == 1
    assert text.count("Xid 78") == 2
    assert "update driver and firmware" in text
    status, text = health_command(node, "clear", "gpu-0")
    assert (status, "Xid 78" in text) == (0, False)
    wait_taints(node, lambda found: found.keys() == devices_of(node, 1), "the first GPU to be cleared")
    annotate(node, "gpu-1")
    wait_well(node)
    assert health_command(node)[0] == 0
    # The same value again says nothing new; another one does.
    node.simulation.run("xid", "78", "--gpu", "1")
    wait_same(node, 1, software)
    node.plugin.stop()
    node.start()
    wait_same(node, 1, software)
    annotate(node, "all")
    wait_well(node)
    annotate(node, None)


def annotate(node, value):
    text = "dradriver.dev/clear-health" + ("-" if value is None else f"={value}")
    node.server.kubectl("annotate", "node", NODE, "--overwrite", text)


CONFIG = """
apiVersion: dradriver.dev/v1alpha1
kind: NodeConfigs
healthPolicies:
  mine:
    xids: {79: %s, 31: %s}
configs:
  default:
    healthPolicy: mine
    gpus: [{mig: dynamic}]
"""


def test_what_errors_mean_changes_with_the_configuration_at_once(sick, space, tmp_path):
    file = tmp_path / "nodes.yaml"
    file.write_text(CONFIG % ("noExecute", "warn"))
    node = sick(machine="2xh100-80gb", options=(*DYNAMIC, "--node-config", str(file)))
    node.simulation.run("xid", "79", "--recovery", "none", "--gpu", "0")
    node.simulation.run("xid", "31", "--gpu", "1")
    wait_same(node, 0, OFF_THE_BUS)
    wait_same(node, 1, {XID: ("31", "None")})
    space.add(claim("one", request("it", GPU, of_gpu(node.simulation.gpus()[1]["uuid"]))), pod("one", claims=["one"]))
    space.running("one")
    file.write_text(CONFIG % ("warn", "noExecute"))
    wait_same(node, 0, {XID: ("79", "None")})
    wait_same(node, 1, {XID: ("31", "NoExecute")})
    space.told("Pod", "one", "DeviceTaintManagerEviction")
    space.gone("one")
    file.write_text(CONFIG % ("ignore", "ignore"))
    wait_well(node)
