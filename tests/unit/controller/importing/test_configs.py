"""Configurations of the device plugin, one beside the other: all fields and all forms, with what becomes of them."""

import pytest
from doubles.deviceplugin import gap, plan, said, selections

from controller.importing import Weight, read
from dradriver.api.node_config import decode

ANY = {"type": "any", "renamed": False}
GPU = {"type": "gpu", "renamed": False}
OFF = {"gpus": [{"mig": "off"}]}
SPREAD = {"gpus": [{"mig": "static"}], "order": "spread"}
PACKED = {"gpus": [{"mig": "static"}], "order": "packed"}


def shared(way="timeSlicing", *, flags="", resources="[{name: nvidia.com/gpu, replicas: 4}]", **fields):
    more = "".join(f"    {name}: {value}\n" for name, value in fields.items())
    return f"version: v1\n{flags}sharing:\n  {way}:\n{more}    resources: {resources}\n"


MIXED = "flags: {migStrategy: mixed}\n"
SINGLE = "flags: {migStrategy: single}\n"
SLICED = {"type": "gpu", "renamed": True}


def slices(replicas, *, rename=False, mig="off", order="spread"):
    return {"gpus": [{"mig": mig, "sharing": {"replicas": replicas, "rename": rename}}], "order": order}


RENAMED = {"nvidia.com/gpu.shared": SLICED}

CONFIGS = {
    # name: text, bridges, node configuration, what must be told
    "empty": ("", {"nvidia.com/gpu": GPU}, OFF, ()),
    "comments only": ("# nothing\n---\n", {"nvidia.com/gpu": GPU}, OFF, ()),
    "version": ("version: v1", {"nvidia.com/gpu": GPU}, OFF, ()),
    "no version": ("flags: {}", {"nvidia.com/gpu": GPU}, OFF, ()),
    "null fields": ("version: v1\nflags:\nsharing:\nresources:\nimex:\n", {"nvidia.com/gpu": GPU}, OFF, ()),
    "json": ('{"version": "v1", "flags": {"migStrategy": "none"}}', {"nvidia.com/gpu": GPU}, OFF, ()),
    "none": ("flags: {migStrategy: none}", {"nvidia.com/gpu": GPU}, OFF, ("a GPU with MIG mode on is not offered",)),
    "single": (SINGLE, {"nvidia.com/gpu": ANY}, SPREAD, ("nobody checks any more that all MIG instances",)),
    "mixed": (MIXED, {"nvidia.com/gpu": GPU}, SPREAD, ("no bridge is made for MIG profiles", "1c.3g.40gb")),
    "mixed, packed": (
        "flags: {migStrategy: mixed, plugin: {sharedDevicesAllocationPolicy: packed}}",
        {"nvidia.com/gpu": GPU},
        PACKED,
        (),
    ),
    "none, packed": (
        "flags: {plugin: {sharedDevicesAllocationPolicy: packed}}",
        {"nvidia.com/gpu": GPU},
        OFF,
        ("packed has no effect here",),
    ),
    "time-slicing": (
        shared(),
        {"nvidia.com/gpu": GPU},
        slices(4),
        (
            "shares of nvidia.com/gpu need Kubernetes 1.36 or newer",
            "kept apart in nothing, as today",
            "a claim of the class gpu.nvidia.com or mig.nvidia.com may get a share",
            "gets shares of different devices",
            "may land on one shared device",
        ),
    ),
    "time-slicing, bare name": (
        shared(resources="[{name: gpu, replicas: 48}]"),
        {"nvidia.com/gpu": GPU},
        slices(48),
        (),
    ),
    "time-slicing, renamed": (
        shared(renameByDefault="true"),
        RENAMED,
        slices(4, rename=True),
        ("shares of nvidia.com/gpu.shared need Kubernetes 1.36",),
    ),
    "time-slicing, yes": (shared(renameByDefault="yes"), RENAMED, slices(4, rename=True), ()),
    "time-slicing, Off": (shared(renameByDefault="Off"), {"nvidia.com/gpu": GPU}, slices(4), ()),
    "time-slicing, at most one": (
        shared(failRequestsGreaterThanOne="true"),
        {"nvidia.com/gpu": GPU},
        slices(4),
        ("more than one nvidia.com/gpu is not refused any more",),
    ),
    "time-slicing, rename": (
        shared(resources="[{name: gpu, rename: nvidia.com/small, replicas: 2}]"),
        {"nvidia.com/gpu": GPU},
        slices(2),
        ("resources[0].rename has no effect today either",),
    ),
    "time-slicing, the usual rename": (
        shared(renameByDefault="true", resources="[{name: gpu, rename: gpu.shared, replicas: 2}]"),
        RENAMED,
        slices(2, rename=True),
        (),
    ),
    "time-slicing, devices": (
        shared(resources='[{name: gpu, replicas: 2, devices: [0, "1:0", GPU-b1028956-cfa2-0990-bf4a-5da9abb51763]}]'),
        {"nvidia.com/gpu": GPU},
        slices(2),
        ("resources[0].devices has no effect today either",),
    ),
    "time-slicing, count of devices": (
        shared(resources="[{name: gpu, replicas: 2, devices: 3}]"),
        {"nvidia.com/gpu": GPU},
        slices(2),
        ("resources[0].devices has no effect",),
    ),
    "time-slicing, all devices": (
        shared(resources="[{name: gpu, replicas: 2, devices: all}]"),
        {"nvidia.com/gpu": GPU},
        slices(2),
        (),
    ),
    "time-slicing, named twice": (
        shared(resources="[{name: gpu, replicas: 2}, {name: nvidia.com/gpu, replicas: 6}]"),
        {"nvidia.com/gpu": GPU},
        slices(6),
        (),
    ),
    "time-slicing of what is not there": (
        shared(resources="[{name: mig-1g.10gb, replicas: 2}]"),
        {"nvidia.com/gpu": GPU},
        OFF,
        ("nvidia.com/mig-1g.10gb is not shared, since no device has that name under the strategy none",),
    ),
    "time-slicing, single": (
        shared(flags=SINGLE),
        {"nvidia.com/gpu": ANY},
        slices(4, mig="static"),
        ("MIG instances behind nvidia.com/gpu can be shared only",),
    ),
    "time-slicing, mixed": (
        shared(flags=MIXED, resources="[{name: mig-1g.10gb.me, replicas: 3}]"),
        {
            "nvidia.com/gpu": GPU,
            "nvidia.com/mig-1g.10gb.me": {"type": "mig", "profile": "1g.10gb+me", "renamed": False},
        },
        SPREAD,
        ("nvidia.com/mig-1g.10gb.me will have one pod for each device instead of 3",),
    ),
    "time-slicing, mixed, all alike": (
        shared(flags=MIXED, resources="[{name: gpu, replicas: 3}, {name: mig-1g.5gb, replicas: 3}]"),
        {"nvidia.com/gpu": GPU, "nvidia.com/mig-1g.5gb": {"type": "mig", "profile": "1g.5gb", "renamed": False}},
        slices(3, mig="static"),
        ("shared alike, those made later",),
    ),
    "time-slicing, packed": (
        shared(flags="flags: {plugin: {sharedDevicesAllocationPolicy: packed}}\n"),
        {"nvidia.com/gpu": GPU},
        slices(4, order="packed"),
        (),
    ),
    "time-slicing, too many": (
        shared(resources="[{name: gpu, replicas: 1000}]"),
        {"nvidia.com/gpu": GPU},
        slices(256),
        ("nvidia.com/gpu will have 256 pods for each device instead of 1000",),
    ),
    "time-slicing, mixed and renamed": (
        shared(
            flags=MIXED, renameByDefault="true", resources="[{name: gpu, replicas: 2}, {name: mig-1g.5gb, replicas: 3}]"
        ),
        {
            "nvidia.com/gpu.shared": SLICED,
            "nvidia.com/mig-1g.5gb.shared": {"type": "mig", "profile": "1g.5gb", "renamed": True},
        },
        slices(2, rename=True, mig="static"),
        (
            "nvidia.com/mig-1g.5gb.shared will have 2 pods for each device instead of 3",
            "shared alike, those made later",
        ),
    ),
    "mps": (
        shared("mps", flags="flags: {mpsRoot: /run/nvidia/mps}\n"),
        {"nvidia.com/gpu": GPU},
        OFF,
        ("pods find no MPS", "held to 1/4 of a GPU", "is not refused any more", "flags.mpsRoot has no counterpart"),
    ),
    "mps, several": (
        shared("mps", failRequestsGreaterThanOne="false"),
        {"nvidia.com/gpu": GPU},
        OFF,
        ("gets shares of different devices",),
    ),
    "mps, single": (shared("mps", flags=SINGLE), {"nvidia.com/gpu": ANY}, SPREAD, ("serve nothing today",)),
    "mps beside time-slicing": (
        shared() + "  mps: {renameByDefault: true, resources: [{name: gpu, replicas: 2}]}\n",
        RENAMED,
        OFF,
        ("sharing.timeSlicing has no effect today either", "while today each has 2 shares"),
    ),
    "resources": (
        'resources: {gpus: [{pattern: "A100*", name: a100}], mig: [{pattern: "1g*", name: nvidia.com/small}]}',
        {"nvidia.com/gpu": GPU},
        OFF,
        ("`resources` have no effect today either",),
    ),
    "envvar": (
        "flags: {plugin: {deviceListStrategy: envvar}}",
        {"nvidia.com/gpu": GPU},
        OFF,
        ("NVIDIA_VISIBLE_DEVICES is `void`", "must have CDI switched on"),
    ),
    "lists": (
        "flags: {plugin: {deviceListStrategy: [volume-mounts, cdi-annotations, cdi-cri]}}",
        {"nvidia.com/gpu": GPU},
        OFF,
        ("no mounts below", "CDI names are"),
    ),
    "plugin": (
        (
            "flags: {plugin: {passDeviceSpecs: true, deviceIDStrategy: index, cdiAnnotationPrefix: x.io/, "
            "nvidiaCTKPath: /usr/bin/nvidia-ctk, containerDriverRoot: /driver-root}}"
        ),
        {"nvidia.com/gpu": GPU},
        OFF,
        (
            "device nodes come with CDI",
            "told UUIDs, no indices",
            "cdiAnnotationPrefix has no",
            "nvidiaCTKPath has no",
            "where the driver lies inside",
        ),
    ),
    "roots": (
        "flags: {nvidiaDriverRoot: /run/nvidia/driver, nvidiaDevRoot: /dev2}",
        {"nvidia.com/gpu": GPU},
        OFF,
        ("the place of the NVIDIA driver is a flag", "device nodes are looked for"),
    ),
    "the usual roots": ("flags: {nvidiaDriverRoot: /, nvidiaDevRoot: /}", {"nvidia.com/gpu": GPU}, OFF, ()),
    "tegra": (
        "flags: {deviceDiscoveryStrategy: tegra}",
        {"nvidia.com/gpu": GPU},
        OFF,
        ("nodes with Tegra GPUs offer nothing",),
    ),
    "nvml": (
        "flags: {deviceDiscoveryStrategy: nvml, failOnInitError: false}",
        {"nvidia.com/gpu": GPU},
        OFF,
        ("failOnInitError has no counterpart",),
    ),
    "storage": (
        "flags: {gdsEnabled: true, mofedEnabled: true, gdrcopyEnabled: true}",
        {"nvidia.com/gpu": GPU},
        OFF,
        ("NVIDIA_GDS=enabled", "NVIDIA_MOFED=enabled", "NVIDIA_GDRCOPY=enabled"),
    ),
    "gfd": (
        "flags: {gfd: {oneshot: false, noTimestamp: true, sleepInterval: 1m30s, outputFile: /x, machineTypeFile: /y}}",
        {"nvidia.com/gpu": GPU},
        OFF,
        ("flags of GPU feature discovery have no counterpart",),
    ),
    "node features": (
        "flags: {useNodeFeatureAPI: true, gfd: {sleepInterval: 60}}",
        {"nvidia.com/gpu": GPU},
        OFF,
        ("flags of GPU feature discovery",),
    ),
    "imex": ("imex: {channelIDs: [0], required: true}", {"nvidia.com/gpu": GPU}, OFF, ("no IMEX channel",)),
    "imex without channels": (
        "imex: {channelIDs: [], required: true}",
        {"nvidia.com/gpu": GPU},
        OFF,
        ("imex.required has no effect",),
    ),
    "unknown fields": (
        "flags: {migStrategie: mixed, plugin: {devices: x}}\nshare: {}",
        {"nvidia.com/gpu": GPU},
        OFF,
        (
            "flags.migStrategie has no effect today either: it is not known; allowed are migStrategy,",
            "flags.plugin.devices has no effect",
            "share has no effect",
        ),
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_what_becomes_of_a_configuration(name):
    text, bridges, config, told = CONFIGS[name]
    made = plan(text)
    assert not made.problems
    assert selections(made) == bridges
    assert made.node_configs["configs"] == {"default": config}
    assert decode(made.node_configs).all_problems() == ()
    for part in told:
        assert part in said(made)


def test_there_are_enough_of_them():
    assert len(CONFIGS) >= 30


@pytest.mark.parametrize("name", CONFIGS)
def test_every_gap_is_complete(name):
    for one in plan(CONFIGS[name][0]).gaps:
        assert one.what
        assert one.why
        assert one.todo
        assert isinstance(one.weight, Weight)
        assert not one.users


@pytest.mark.parametrize("name", CONFIGS)
def test_a_bridge_waits_until_a_node_is_ready_and_its_class_is_derived(name):
    for one in plan(CONFIGS[name][0]).bridges:
        assert (one["apiVersion"], one["kind"]) == ("dradriver.dev/v1alpha1", "ExtendedResourceBridge")
        assert one["spec"].keys() == {"resourceName", "select", "mode"}
        assert one["spec"]["mode"] == "WhenReady"
        assert one["metadata"]["name"] == one["spec"]["resourceName"].removeprefix("nvidia.com/")


def test_a_plain_configuration_breaks_nothing():
    assert said(plan("version: v1"), breaks=True) == ""
    assert not any(one.place.startswith("sharing") for one in plan("version: v1").gaps)


def test_what_only_has_no_effect_is_a_note():
    made = plan(CONFIGS["unknown fields"][0])
    assert gap(made, "migStrategie").weight is Weight.NOTE
    assert gap(made, "migStrategie").place == "flags.migStrategie"
    assert gap(made, "migStrategie").configs == ("(file)",)


def test_the_weightiest_come_first():
    weights = [one.weight for one in plan(CONFIGS["mps"][0]).gaps]
    assert weights == sorted(weights, key=[*Weight].index)
    assert weights[0] is Weight.BREAKS


# --- what the device plugin does not start with ---------------------------------------------------

ONE = "[{name: gpu, replicas: 2}]"
WRONG = {
    "nothing but a text": ("none", ["is 'none'; must be a mapping"]),
    "a list": ("[a]", ["is a list; must be a mapping"]),
    "no YAML": ("a: [", None),
    "two documents": ("a: 1\n---\nb: 2", None),
    "a key twice": ("version: v1\nversion: v1", ["version: stands there twice, the second time at line 2"]),
    "another version": ("version: v2", ["version: is 'v2'; allowed: v1"]),
    "version as a number": ("version: 1", ["version: is 1; allowed: v1"]),
    "strategy": ("flags: {migStrategy: both}", ["flags.migStrategy: is 'both'; allowed: none, single, mixed"]),
    "flags as a list": ("flags: [a]", ["flags: is a list; must be a mapping"]),
    "plugin as a text": ("flags: {plugin: x}", ["flags.plugin: is 'x'; must be a mapping"]),
    "other capitals": ("flags: {MigStrategy: mixed}", ["flags.MigStrategy: is written migStrategy"]),
    "truth as a text": (
        "flags: {failOnInitError: maybe}",
        ["flags.failOnInitError: is 'maybe'; must be true or false"],
    ),
    "truth as a number": ("flags: {gdsEnabled: 1}", ["flags.gdsEnabled: is 1; must be true or false"]),
    "root as a number": ("flags: {nvidiaDriverRoot: 5}", ["flags.nvidiaDriverRoot: is 5; must be a text"]),
    "discovery": (
        "flags: {deviceDiscoveryStrategy: wsl}",
        ["flags.deviceDiscoveryStrategy: is 'wsl'; allowed: auto, nvml, tegra"],
    ),
    "list strategy": (
        "flags: {plugin: {deviceListStrategy: [envvar, cdi]}}",
        ["flags.plugin.deviceListStrategy[1]: is 'cdi'; allowed: envvar, volume-mounts, cdi-annotations, cdi-cri"],
    ),
    "list strategy with commas": (
        "flags: {plugin: {deviceListStrategy: 'envvar,cdi-cri'}}",
        [
            (
                "flags.plugin.deviceListStrategy[0]: is 'envvar,cdi-cri'; "
                "allowed: envvar, volume-mounts, cdi-annotations, cdi-cri"
            )
        ],
    ),
    "no list strategy": (
        "flags: {plugin: {deviceListStrategy: []}}",
        ["flags.plugin.deviceListStrategy: is a list; must have at least one entry"],
    ),
    "id strategy": (
        "flags: {plugin: {deviceIDStrategy: name}}",
        ["flags.plugin.deviceIDStrategy: is 'name'; allowed: uuid, index"],
    ),
    "policy": (
        "flags: {plugin: {sharedDevicesAllocationPolicy: spread}}",
        ["flags.plugin.sharedDevicesAllocationPolicy: is 'spread'; allowed: distributed, packed"],
    ),
    "interval": (
        "flags: {gfd: {sleepInterval: soon}}",
        ["flags.gfd.sleepInterval: is 'soon'; must be a duration such as 60s or 1m30s"],
    ),
    "CDI on Tegra": (
        "flags: {deviceDiscoveryStrategy: tegra, plugin: {deviceListStrategy: [envvar, cdi-cri]}}",
        ["flags.plugin.deviceListStrategy: has cdi-cri, which does not go with deviceDiscoveryStrategy tegra"],
    ),
    "no resources to share": ("sharing: {timeSlicing: {}}", ["sharing.timeSlicing.resources: is missing"]),
    "empty resources": (
        "sharing: {timeSlicing: {resources: []}}",
        ["sharing.timeSlicing.resources: is a list; must have at least one entry"],
    ),
    "resources as a mapping": (
        "sharing: {mps: {resources: {name: gpu}}}",
        ["sharing.mps.resources: is a mapping; must be a list"],
    ),
    "an entry that is a text": (
        "sharing: {mps: {resources: [gpu]}}",
        ["sharing.mps.resources[0]: is 'gpu'; must be a mapping"],
    ),
    "an entry without anything": (
        "sharing: {timeSlicing: {resources: [{}]}}",
        ["sharing.timeSlicing.resources[0].name: is missing", "sharing.timeSlicing.resources[0].replicas: is missing"],
    ),
    "one replica": (
        shared(resources="[{name: gpu, replicas: 1}]"),
        ["sharing.timeSlicing.resources[0].replicas: is 1; must be 2 or more"],
    ),
    "replicas as a text": (
        shared(resources="[{name: gpu, replicas: '4'}]"),
        ["sharing.timeSlicing.resources[0].replicas: is '4'; must be a whole number"],
    ),
    "replicas as a truth value": (
        shared(resources="[{name: gpu, replicas: true}]"),
        ["sharing.timeSlicing.resources[0].replicas: is true; must be a whole number"],
    ),
    "MPS with mixed": (
        shared("mps", flags=MIXED),
        ["sharing.mps: must be left out where flags.migStrategy is mixed"],
    ),
    "MPS without a root": (
        shared("mps", flags="flags: {mpsRoot: ''}\n"),
        ["flags.mpsRoot: must not be empty where sharing.mps is given"],
    ),
    "other channels": ("imex: {channelIDs: [0, 1]}", ["imex.channelIDs: is a list; must be [] or [0]"]),
    "channels as a number": ("imex: {channelIDs: 0}", ["imex.channelIDs: is 0; must be a list"]),
    "a channel as a text": ("imex: {channelIDs: [x]}", ["imex.channelIDs[0]: is 'x'; must be a whole number"]),
    "a pattern without name": ("resources: {gpus: [{pattern: x}]}", ["resources.gpus[0].name: is missing"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_the_device_plugin_does_not_start_with_is_told(name):
    text, told = WRONG[name]
    reading = read(text.encode())
    assert reading.config is None
    assert reading.problems
    if told is not None:
        assert [str(problem) for problem in reading.problems] == told


@pytest.mark.parametrize("devices", ["some", "0", "-1", "[x]", "[-1]", "[true]", "{a: 1}", "[GPU-1]", "true"])
def test_devices_to_share_are_all_or_a_count_or_a_list(devices):
    (problem,) = read(shared(resources=f"[{{name: gpu, replicas: 2, devices: {devices}}}]").encode()).problems
    assert str(problem).startswith("sharing.timeSlicing.resources[0].devices: is ")
    assert str(problem).endswith("must be all, a count from 1, or a list of indices (0), MIG indices (0:1) and UUIDs")


@pytest.mark.parametrize(
    "devices",
    [
        "[]", "[0, 1]", "['0']", "['0:1']", "[MIG-b1028956-cfa2-0990-bf4a-5da9abb51763]",
        "[MIG-GPU-b1028956-cfa2-0990-bf4a-5da9abb51763/3/0]",
    ],
)  # fmt: skip
def test_devices_that_the_device_plugin_takes_are_taken(devices):
    assert read(shared(resources=f"[{{name: gpu, replicas: 2, devices: {devices}}}]").encode()).problems == ()


@pytest.mark.parametrize("name", ["GPU", "example.com/gpu", "a b", "''", "x" * 60])
def test_names_of_resources_are_checked(name):
    (problem,) = read(shared(resources=f"[{{name: {name}, replicas: 2}}]").encode()).problems
    assert str(problem).startswith("sharing.timeSlicing.resources[0].name: is ")
    assert "with or without nvidia.com/ before it" in str(problem)


def test_several_mistakes_are_told_at_once():
    text = "version: v3\nflags: {migStrategy: x, gdsEnabled: 2}\nsharing: {mps: {resources: [{replicas: 1}]}}"
    assert [str(problem).partition(":")[0] for problem in read(text.encode()).problems] == [
        "version", "flags.migStrategy", "flags.gdsEnabled", "sharing.mps.resources[0].name",
        "sharing.mps.resources[0].replicas",
    ]  # fmt: skip


def test_what_is_too_large_is_told():
    (problem,) = read(b"a: " + b"x" * (1 << 20)).problems
    assert "larger than 1 MiB" in str(problem)
    assert "UTF-8" in str(read(b"\xff\xfe\xff").problems[0])
