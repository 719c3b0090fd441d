"""What becomes of each field of a configuration: the gaps that a field by itself makes.

Sources: the device plugin's source for what a field does there; this driver's docs for what it does instead.
"""

from collections.abc import Iterator
from typing import Final

from controller.importing import names, sharing
from controller.importing.case import Case, Rule, note
from controller.importing.environment import Override
from controller.importing.gaps import Gap, Weight
from dradriver.api.problems import Problem, show_path, show_value

_GDS: Final = (("gdrcopy_enabled", "gdrcopyEnabled", "NVIDIA_GDRCOPY"), ("gds_enabled", "gdsEnabled", "NVIDIA_GDS"))
_STORAGE: Final = (*_GDS, ("mofed_enabled", "mofedEnabled", "NVIDIA_MOFED"))


def gaps(case: Case) -> Iterator[Gap]:
    """Tell what is otherwise for one configuration."""
    for problem in case.assigned.ignored:
        yield _ignored(case, problem)
    for override in case.assigned.overridden:
        yield _overridden(case, override)
    for rule in _RULES:
        yield from rule(case)


def _ignored(case: Case, problem: Problem) -> Gap:
    place, _, _ = str(problem).partition(": ")
    return note(
        case,
        place,
        f"{place} has no effect today either: it {problem.text}",
        "the device plugin passes over fields that it does not know without a word",
        "take it out, or correct it if it is a slip of the pen and plan again",
    )


def _overridden(case: Case, one: Override) -> Gap:
    place = show_path(one.path)
    return note(
        case,
        place,
        f"{place}: {_listed(one.given)} has no effect today either: {one.variable} says {one.text}",
        f"the variable {one.variable} of the device plugin's container, or its flag {one.flag}, goes before the file, "
        "and is the same for all its configurations; the GPU operator sets some always",
        f"see that {one.text} is what is meant; if the file is, give --env {one.variable}= and plan again",
    )


def _listed(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else show_value(value).strip("'")


# --- strategies -----------------------------------------------------------------------------------


def _none(case: Case) -> Iterator[Gap]:
    if case.config.flags.mig_strategy == "none":
        yield note(
            case,
            "flags.migStrategy",
            "a GPU with MIG mode on is not offered under the strategy none",
            "the device plugin offers the GPU itself then, on which nothing can run until MIG mode is off",
            "switch MIG mode off there, or plan with the strategy single or mixed",
        )


def _single(case: Case) -> Iterator[Gap]:
    if case.config.flags.mig_strategy != "single":
        return
    invalid = [
        node.name for node in case.assigned.nodes if "-MIG-INVALID" in node.labels.get(f"{names.GPU}.product", "")
    ]
    if invalid:
        yield case.gap(
            users=[],
            place="flags.migStrategy",
            what=f"GPUs of {', '.join(invalid)}, which serve nothing today, will be offered",
            why="the device plugin refuses nodes whose MIG instances differ, or that have GPUs with and without MIG",
            todo="make their instances alike before they move, or let pods ask by profile",
        )
    yield case.gap(
        users=[],
        place="flags.migStrategy",
        what="nobody checks any more that all MIG instances of a node with the strategy single are alike",
        why="the device plugin does not start on a node with several profiles; the bridge takes whole GPUs and "
        "instances of every profile",
        todo="keep the layout of such nodes uniform, or use the strategy mixed and ask by profile",
    )


def _mixed(case: Case) -> Iterator[Gap]:
    if case.config.flags.mig_strategy != "mixed":
        return
    if not any(offer.devices == "mig" for offer in case.offers):
        yield case.weighed(
            Weight.BREAKS,
            users=[],
            place="flags.migStrategy",
            what="no bridge is made for MIG profiles of nodes with the strategy mixed",
            why="their names come from the instances that exist, which no configuration tells",
            todo="plan with the cluster's nodes, name the profiles (--profile), or let the controller discover them",
        )
    yield note(
        case,
        "flags.migStrategy",
        "instances that share a GPU instance, such as 1c.3g.40gb, are not offered",
        "the device plugin does not offer them either: it has names for whole GPU instances only",
    )


# --- names ----------------------------------------------------------------------------------------


def _resources(case: Case) -> Iterator[Gap]:
    given = case.config.resources
    if given.gpus or given.mig:
        yield note(
            case,
            "resources",
            "names of one's own in `resources` have no effect today either",
            "the device plugin reads them and takes its own names",
            "take them out; a bridge that selects by productName gives a model a name of its own",
        )


# --- what containers see --------------------------------------------------------------------------


def _devices(case: Case) -> Iterator[Gap]:
    plugin, place = case.config.flags.plugin, "flags.plugin.deviceListStrategy"
    listed = plugin.device_list_strategy
    if "envvar" in listed:
        yield case.gap(
            place=place,
            what="NVIDIA_VISIBLE_DEVICES is `void` in containers, no list of UUIDs",
            why="devices come through CDI, and a UUID in that variable would make an older runtime add them once more",
            todo="let programs that parse it read DRADRIVER_DEVICES, which lists the UUIDs",
        )
    if "volume-mounts" in listed:
        yield case.gap(
            place=place,
            what="there are no mounts below /var/run/nvidia-container-devices any more",
            why="devices come through CDI",
            todo="set accept-nvidia-visible-devices-as-volume-mounts back in the container runtime's configuration",
        )
    cdi = [one for one in listed if one.startswith("cdi-")]
    if cdi:
        yield case.gap(
            users=[],
            place=place,
            what="CDI names are k8s.gpu.nvidia.com/claim=... of one claim, no k8s.device-plugin.nvidia.com/gpu=<UUID>",
            why="each claim has a specification of its own, which goes with it",
            todo="change what reads those names or annotations, such as admission policies",
        )
    else:
        yield case.gap(
            users=[],
            place=place,
            what="the container runtime must have CDI switched on; its nvidia runtime is not needed any more",
            why="devices come through CDI and not through the runtime's hook",
            todo="see that containerd (1.7: enable_cdi, 2: on by default) or CRI-O has it before the node moves",
        )


def _ids(case: Case) -> Iterator[Gap]:
    if case.config.flags.plugin.device_id_strategy == "index":
        yield case.gap(
            place="flags.plugin.deviceIDStrategy",
            what="containers are told UUIDs, no indices",
            why="an index changes its GPU when another one is added or lost",
            todo="let programs count from 0: inside a container CUDA numbers what it sees that way, now as before",
        )


def _specs(case: Case) -> Iterator[Gap]:
    plugin = case.config.flags.plugin
    if plugin.pass_device_specs:
        yield note(
            case,
            "flags.plugin.passDeviceSpecs",
            "device nodes come with CDI, always",
            "CDI carries them, cgroup included",
        )
    if plugin.cdi_annotation_prefix != "cdi.k8s.io/":
        place = "flags.plugin.cdiAnnotationPrefix"
        yield note(case, place, f"{place} has no counterpart", "the kubelet passes CDI names itself")
    if plugin.nvidia_ctk_path is not None:
        place = "flags.plugin.nvidiaCTKPath"
        todo = "see --nvidia-cdi-hook-path where nvidia-cdi-hook lies in an unusual place"
        yield note(
            case, place, f"{place} has no counterpart", "this driver calls nvidia-cdi-hook, not nvidia-ctk", todo
        )


def _storage(case: Case) -> Iterator[Gap]:
    for attribute, field, variable in _STORAGE:
        if getattr(case.config.flags, attribute):
            yield case.weighed(
                Weight.BREAKS,
                place=f"flags.{field}",
                what=f"containers get neither {variable}=enabled nor the devices that come with it",
                why="this driver passes GPUs and nothing else",
                todo="keep pods that need it on nodes with the device plugin, or pass the devices by another driver",
            )


def _imex(case: Case) -> Iterator[Gap]:
    if case.config.imex.channel_ids:
        yield case.weighed(
            Weight.BREAKS,
            place="imex.channelIDs",
            what="containers get no IMEX channel",
            why="this driver passes none; NVIDIA's driver does so for its ComputeDomains",
            todo="use a ComputeDomain for jobs that span nodes, or keep these nodes on the device plugin",
        )
    elif case.config.imex.required:
        yield note(case, "imex.required", "imex.required has no effect, today either", "no channel is asked for")


# --- how it runs ----------------------------------------------------------------------------------


def _roots(case: Case) -> Iterator[Gap]:
    flags = case.config.flags
    if flags.nvidia_driver_root not in (None, "", "/"):
        yield case.gap(
            users=[],
            place="flags.nvidiaDriverRoot",
            what="the place of the NVIDIA driver is a flag of the plugin, the same on all nodes of its DaemonSet",
            why="node configurations do not name it",
            todo=f"start the plugin with --nvidia-driver-root={flags.nvidia_driver_root}",
        )
    if flags.nvidia_dev_root not in (None, "", flags.nvidia_driver_root):
        yield case.gap(
            users=[],
            place="flags.nvidiaDevRoot",
            what="device nodes are looked for below the driver's root or on the host, nowhere else",
            why="this driver has no flag for another place",
            todo=f"see with `dradriver slices` that it finds the devices of {flags.nvidia_dev_root}",
        )
    if flags.plugin.container_driver_root is not None:
        yield note(
            case,
            "flags.plugin.containerDriverRoot",
            "where the driver lies inside the plugin's container is a flag of this plugin, too",
            "node configurations do not name it",
            f"start the plugin with --container-driver-root={flags.plugin.container_driver_root}",
        )


def _tegra(case: Case) -> Iterator[Gap]:
    if case.config.flags.device_discovery_strategy == "tegra":
        yield case.weighed(
            Weight.BREAKS,
            place="flags.deviceDiscoveryStrategy",
            what="nodes with Tegra GPUs offer nothing",
            why="this driver finds GPUs through NVML only",
            todo="keep these nodes on the device plugin",
        )


def _init_error(case: Case) -> Iterator[Gap]:
    if not case.config.flags.fail_on_init_error:
        yield note(
            case,
            "flags.failOnInitError",
            "failOnInitError has no counterpart",
            "this driver stays up and tries again until the NVIDIA driver answers; /readyz says what is missing",
        )


def _gfd(case: Case) -> Iterator[Gap]:
    given = case.config.flags.gfd.model_fields_set
    if given or case.config.flags.use_node_feature_api is not None:
        yield note(
            case,
            "flags.gfd" if given else "flags.useNodeFeatureAPI",
            "flags of GPU feature discovery have no counterpart",
            "this driver does not run it",
            "see what is said of node labels",
        )


_RULES: Final[tuple[Rule, ...]] = (
    _none, _single, _mixed, *sharing.RULES, _resources, _devices, _ids, _specs, _storage, _imex, _roots, _tegra,
    _init_error, _gfd,
)  # fmt: skip
