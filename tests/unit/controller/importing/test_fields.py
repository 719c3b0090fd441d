"""Each gap that a field makes: how much it matters, where it comes from, and what to do."""

import pytest
from doubles.deviceplugin import gap, node, plan, pod, quota, said

from controller.importing import Weight

GPU = "nvidia.com/gpu"
SHARED = f"{GPU}.shared"
BREAKS, DIFFERS, NOTE = Weight.BREAKS, Weight.DIFFERS, Weight.NOTE


def shared(way, *, flags="", **fields):
    more = "".join(f"{name}: {value}, " for name, value in fields.items())
    return f"{flags}\nsharing: {{{way}: {{{more}resources: [{{name: gpu, replicas: 4}}]}}}}"


SLICED, MPS = shared("timeSlicing"), shared("mps")
STRICT = shared("timeSlicing", failRequestsGreaterThanOne="true")
POLICY = "flags.plugin.sharedDevicesAllocationPolicy"
LISTS = "flags.plugin.deviceListStrategy"

GAPS = [
    # text, part of what is told, weight, place, part of what to do
    ("flags: {migStrategy: none}", "a GPU with MIG mode on", NOTE, "flags.migStrategy", "switch MIG mode off"),
    ("flags: {migStrategy: single}", "nobody checks", DIFFERS, "flags.migStrategy", "keep the layout"),
    ("flags: {migStrategy: mixed}", "no bridge is made", BREAKS, "flags.migStrategy", "--profile"),
    ("flags: {migStrategy: mixed}", "1c.3g.40gb", NOTE, "flags.migStrategy", "nothing"),
    ("flags: {migStrategy: mixed}", "fixed order", DIFFERS, POLICY, "order: packed"),
    (SLICED, "need Kubernetes 1.36", DIFFERS, "sharing.timeSlicing.resources", "keep them on the device plugin"),
    (SLICED, "kept apart in nothing, as today", NOTE, "sharing.timeSlicing.resources", "MIG instances"),
    (SLICED, "may get a share of a device", DIFFERS, "sharing.timeSlicing.resources", "attribute sharing"),
    (SLICED, "may land on one shared device", DIFFERS, POLICY, "order: packed"),
    (SLICED, "gets shares of different", DIFFERS, "sharing.timeSlicing.failRequestsGreaterThanOne", "ask for 1"),
    (STRICT, "is not refused any more", DIFFERS, "sharing.timeSlicing.failRequestsGreaterThanOne", "LimitRange"),
    (MPS, "instead of 4", BREAKS, "sharing.mps.resources", "keep these nodes on the device plugin"),
    (MPS, "is not refused any more", DIFFERS, "sharing.mps.failRequestsGreaterThanOne", "LimitRange"),
    (MPS, "find no MPS", BREAKS, "sharing.mps", "MIG instances"),
    (MPS, "held to 1/4", BREAKS, "sharing.mps", "MIG instances"),
    ("flags: {mpsRoot: /x}\n" + MPS, "mpsRoot has no counterpart", NOTE, "flags.mpsRoot", "nothing"),
    (shared("mps", flags="flags: {migStrategy: single}"), "serve nothing today", NOTE, "sharing.mps", "decide"),
    ("resources: {gpus: [{pattern: x, name: y}]}", "`resources` have no effect", NOTE, "resources", "productName"),
    ("", "NVIDIA_VISIBLE_DEVICES is `void`", DIFFERS, LISTS, "DRADRIVER_DEVICES"),
    ("", "must have CDI switched on", DIFFERS, LISTS, "enable_cdi"),
    ("flags: {plugin: {deviceListStrategy: volume-mounts}}", "there are no mounts", DIFFERS, LISTS, "configuration"),
    ("flags: {plugin: {deviceListStrategy: cdi-cri}}", "CDI names are", DIFFERS, LISTS, "admission"),
    ("flags: {plugin: {deviceIDStrategy: index}}", "told UUIDs", DIFFERS, "flags.plugin.deviceIDStrategy", "from 0"),
    ("flags: {plugin: {passDeviceSpecs: true}}", "device nodes come", NOTE, "flags.plugin.passDeviceSpecs", "nothing"),
    ("flags: {plugin: {sharedDevicesAllocationPolicy: packed}}", "packed has no effect here", NOTE, POLICY, "nothing"),
    ("flags: {gdsEnabled: true}", "NVIDIA_GDS=enabled", BREAKS, "flags.gdsEnabled", "another driver"),
    ("flags: {mofedEnabled: true}", "NVIDIA_MOFED=enabled", BREAKS, "flags.mofedEnabled", "another driver"),
    ("flags: {gdrcopyEnabled: true}", "NVIDIA_GDRCOPY=enabled", BREAKS, "flags.gdrcopyEnabled", "another driver"),
    ("imex: {channelIDs: [0]}", "no IMEX channel", BREAKS, "imex.channelIDs", "ComputeDomain"),
    ("imex: {required: true}", "imex.required has no effect", NOTE, "imex.required", "nothing"),
    (
        "flags: {nvidiaDriverRoot: /run/nvidia/driver}",
        "the place of the NVIDIA driver",
        DIFFERS,
        "flags.nvidiaDriverRoot",
        "--nvidia-driver-root=/run/nvidia/driver",
    ),
    (
        "flags: {nvidiaDevRoot: /other}",
        "device nodes are looked for",
        DIFFERS,
        "flags.nvidiaDevRoot",
        "dradriver slices",
    ),
    (
        "flags: {plugin: {containerDriverRoot: /d}}",
        "inside the plugin's container",
        NOTE,
        "flags.plugin.containerDriverRoot",
        "--container-driver-root=/d",
    ),
    (
        "flags: {plugin: {nvidiaCTKPath: /x}}",
        "nvidiaCTKPath has no",
        NOTE,
        "flags.plugin.nvidiaCTKPath",
        "--nvidia-cdi-hook-path",
    ),
    ("flags: {deviceDiscoveryStrategy: tegra}", "Tegra", BREAKS, "flags.deviceDiscoveryStrategy", "keep these nodes"),
    ("flags: {failOnInitError: false}", "failOnInitError has no", NOTE, "flags.failOnInitError", "nothing"),
    ("flags: {gfd: {oneshot: true}}", "flags of GPU feature discovery", NOTE, "flags.gfd", "node labels"),
    ("flags: {useNodeFeatureAPI: false}", "flags of GPU feature", NOTE, "flags.useNodeFeatureAPI", "node labels"),
    ("flags: {x: 1}", "flags.x has no effect today", NOTE, "flags.x", "slip of the pen"),
]


@pytest.mark.parametrize(("text", "part", "weight", "place", "todo"), GAPS)
def test_a_gap_says_how_much_it_matters_where_it_comes_from_and_what_to_do(text, part, weight, place, todo):
    found = gap(plan(text), part)
    assert (found.weight, found.place, found.configs) == (weight, place, ("(file)",))
    assert todo in found.todo


QUIET = [
    (MPS, "mpsRoot has"), ("", "`resources` have"), ("", "there are no mounts"), ("", "device nodes come"),
    ("", "inside the plugin's container"), (SLICED, "is not shared, since"), (SLICED, "has no effect today"),
    (MPS, "has no effect today"), ("", "imex.required"), ("", "nvidiaCTKPath"), ("", "cdiAnnotationPrefix"),
    (shared("timeSlicing", renameByDefault="true").replace("name: gpu", "name: gpu, rename: gpu.shared"), "rename has"),
    ("", "sharing"), ("", "MPS"), ("", "IMEX"), ("", "Tegra"), ("", "has no counterpart"), ("", "1c.3g"),
    ("flags: {migStrategy: single}", "a GPU with MIG mode on"),
    ("flags: {migStrategy: mixed}", "nobody checks"),
    (SLICED, "MPS"), (SLICED, "is not refused any more"), (MPS, "gets shares of different"),
    ("flags: {plugin: {sharedDevicesAllocationPolicy: packed}}\n" + SLICED, "packed has no effect"),
    ("flags: {plugin: {sharedDevicesAllocationPolicy: packed}}\n" + SLICED, "fixed order"),
    ("flags: {plugin: {deviceListStrategy: cdi-cri}}", "is `void`"),
    ("flags: {plugin: {deviceListStrategy: cdi-cri}}", "must have CDI switched on"),
    ("flags: {plugin: {deviceIDStrategy: uuid}}", "told UUIDs"),
    ("flags: {nvidiaDriverRoot: /}", "the place of the NVIDIA driver"),
    ("flags: {nvidiaDriverRoot: /a, nvidiaDevRoot: /a}", "device nodes are looked for"),
    ("imex: {channelIDs: []}", "IMEX"), ("imex: {channelIDs: [0], required: true}", "imex.required has"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "part"), QUIET)
def test_what_does_not_hold_is_not_told(text, part):
    assert part not in said(plan(text))


@pytest.mark.parametrize("rename", ["true", "false"])
def test_a_rename_of_ones_own_has_no_effect_whatever_the_default(rename):
    text = shared("timeSlicing", renameByDefault=rename).replace("name: gpu", "name: gpu, rename: small")
    assert gap(plan(text), "rename has no effect").place == "sharing.timeSlicing.resources[0].rename"


def test_the_usual_rename_without_the_default_has_no_effect_either():
    text = SLICED.replace("name: gpu", "name: gpu, rename: gpu.shared")
    assert gap(plan(text), "rename has no effect").weight is NOTE


# --- whom it touches ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "part", "touched"),
    [
        (SLICED, "need Kubernetes 1.36", True),
        (MPS, "find no MPS", True),
        ("flags: {gdsEnabled: true}", "NVIDIA_GDS", True),
        ("imex: {channelIDs: [0]}", "IMEX", True),
        ("flags: {plugin: {deviceIDStrategy: index}}", "told UUIDs", True),
        ("", "is `void`", True),
        ("flags: {deviceDiscoveryStrategy: tegra}", "Tegra", True),
        ("flags: {nvidiaDriverRoot: /x}", "the place of", False),
        ("flags: {migStrategy: single}", "nobody checks", False),
        ("flags: {failOnInitError: false}", "failOnInitError", False),
    ],
)
def test_pods_are_named_where_it_is_theirs(text, part, touched):
    made = plan(text, node("a", gpu=8), pod("p", {GPU: 1}), pod("other", {"cpu": 1}))
    assert gap(made, part).users == (("Pod ml/p",) if touched else ())
    assert gap(made, part).nodes == ("a",)


def test_quotas_on_shares_are_named():
    made = plan(SLICED, node("a", gpu=8), quota("q", {"requests.nvidia.com/gpu": "8"}))
    assert gap(made, "need Kubernetes 1.36").limits == ("ResourceQuota ml/q",)
    assert gap(made, "gets shares of different").limits == ("ResourceQuota ml/q",)


def test_only_who_asks_for_more_than_one_share_is_touched_by_that():
    one, two = pod("one", {GPU: 1}), pod("two", {GPU: 2})
    assert gap(plan(SLICED, node("a", gpu=8), one, two), "gets shares of different").users == ("Pod ml/two",)
    assert gap(plan(STRICT, node("a", gpu=8), one, two), "is not refused any more").users == ("Pod ml/two",)


def test_shares_under_their_own_name_touch_only_those_who_ask_for_them():
    renamed = shared("timeSlicing", renameByDefault="true")
    nodes = node("a", gpu=8), node("b", config="s", gpu_shared=4)
    made = plan({"default": "", "s": renamed}, *nodes, pod("p", {SHARED: 1}), pod("q", {GPU: 1}))
    assert gap(made, "shares of nvidia.com/gpu.shared need").users == ("Pod ml/p",)


def test_what_two_configurations_have_in_common_is_told_once():
    index = "flags: {plugin: {deviceIDStrategy: index}}"
    nodes = node("x", config="a", gpu=1), node("y", config="b", gpu=1)
    made = plan({"a": index, "b": index}, *nodes, pod("p", {GPU: 1}))
    found = gap(made, "told UUIDs")
    assert (found.configs, found.nodes, found.users) == (("a", "b"), ("x", "y"), ("Pod ml/p",))
