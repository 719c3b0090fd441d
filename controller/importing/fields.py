"""What becomes of each field of a configuration: the gaps that a field by itself makes.

Sources: the device plugin's source for what a field does there; this driver's docs for what it does instead.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from controller.importing import names
from controller.importing.assigned import Assigned
from controller.importing.bridges import Offer
from controller.importing.cluster import Cluster, User
from controller.importing.deviceplugin import Config
from controller.importing.gaps import Gap, Weight
from dradriver.api.problems import Problem

_GDS: Final = (("gdrcopy_enabled", "gdrcopyEnabled", "NVIDIA_GDRCOPY"), ("gds_enabled", "gdsEnabled", "NVIDIA_GDS"))
_STORAGE: Final = (*_GDS, ("mofed_enabled", "mofedEnabled", "NVIDIA_MOFED"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A configuration and whom it concerns.

    Attributes:
        assigned: the configuration.
        offers: what it offers.
        cluster: who asks.
    """

    assigned: Assigned
    offers: tuple[Offer, ...]
    cluster: Cluster

    @property
    def config(self) -> Config:
        """What it says."""
        return self.assigned.config

    @property
    def resources(self) -> frozenset[str]:
        """Names that it offers."""
        return frozenset(offer.resource for offer in self.offers)

    def users(self, *, of: frozenset[str] | None = None) -> list[User]:
        """Find who may run there: who asks for what is offered and does not run on a node with another one."""
        wanted, nodes = self.resources if of is None else of, set(self.assigned.node_names)
        asking = (user for user in self.cluster.users if user.requests.keys() & wanted)
        return [user for user in asking if not user.node or not self.cluster.nodes or user.node in nodes]

    def gap(self, *, users: list[User] | None = None, limits: tuple[str, ...] = (), **said: str) -> Gap:
        """Make a gap that differs, of this configuration."""
        return self.weighed(Weight.DIFFERS, users=users, limits=limits, **said)

    def weighed(
        self, weight: Weight, *, users: list[User] | None = None, limits: tuple[str, ...] = (), **said: str
    ) -> Gap:
        """Make a gap of this configuration; `users` are all that may run there, unless they are given."""
        touched = self.users() if users is None else users
        return Gap(
            **{"place": "", **said},
            weight=weight,
            configs=(self.assigned.name,),
            nodes=self.assigned.node_names,
            users=tuple(user.name for user in touched),
            limits=limits,
        )


def gaps(case: Case, ignored: tuple[Problem, ...]) -> Iterator[Gap]:
    """Tell what is otherwise for one configuration."""
    for problem in ignored:
        yield _ignored(case, problem)
    for rule in _RULES:
        yield from rule(case)


def _note(case: Case, place: str, what: str, why: str, todo: str = "nothing") -> Gap:
    return case.weighed(Weight.NOTE, users=[], place=place, what=what, why=why, todo=todo)


def _ignored(case: Case, problem: Problem) -> Gap:
    place, _, _ = str(problem).partition(": ")
    return _note(
        case,
        place,
        f"{place} has no effect today either: it {problem.text}",
        "the device plugin passes over fields that it does not know without a word",
        "take it out, or correct it if it is a slip of the pen and plan again",
    )


# --- strategies -----------------------------------------------------------------------------------


def _none(case: Case) -> Iterator[Gap]:
    if case.config.flags.mig_strategy == "none":
        yield _note(
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
    yield _note(
        case,
        "flags.migStrategy",
        "instances that share a GPU instance, such as 1c.3g.40gb, are not offered",
        "the device plugin does not offer them either: it has names for whole GPU instances only",
    )


# --- sharing --------------------------------------------------------------------------------------


def _shared(case: Case) -> frozenset[str]:
    return frozenset(offer.resource for offer in case.offers if offer.strategy != "none")


def _field(case: Case) -> str:
    return "sharing.mps" if case.config.strategy == "mps" else "sharing.timeSlicing"


def _replicas(case: Case) -> Iterator[Gap]:
    """Tell that sharing is still to come; `nodeconfigs` has the place where it will be written."""
    for offer in case.offers:
        if offer.strategy == "none":
            continue
        yield case.weighed(
            Weight.BREAKS,
            users=case.users(of=frozenset({offer.resource})),
            limits=case.cluster.limiting(offer.resource),
            place=f"{_field(case)}.resources",
            what=f"{offer.resource} will have one pod for each device instead of {offer.replicas}"
            if offer.resource == offer.base
            else f"{offer.resource} will have no devices, while today each has {offer.replicas} shares",
            why="node configurations of this driver have no field `sharing` yet: each device goes to one claim, and "
            "counts "
            f"as {offer.base}, not shared",
            todo="keep these nodes on the device plugin until this driver shares devices, or share one claim between "
            "pods",
        )


def _not_offered(case: Case) -> Iterator[Gap]:
    bases = {offer.base for offer in case.offers}
    for name in case.config.replicas():
        if name not in bases:
            yield _note(
                case,
                f"{_field(case)}.resources",
                f"{name} is not shared, since no device has that name under the strategy "
                f"{case.config.flags.mig_strategy}",
                "the device plugin passes over it without a word",
                "take it out",
            )


def _both(case: Case) -> Iterator[Gap]:
    if case.config.sharing.mps and case.config.sharing.time_slicing:
        yield _note(
            case,
            "sharing.timeSlicing",
            "sharing.timeSlicing has no effect today either, since sharing.mps is given",
            "the device plugin takes MPS where both are given, without a word",
            "take one of the two out",
        )


def _greater_than_one(case: Case) -> Iterator[Gap]:
    shared = _shared(case)
    if not shared:
        return
    place = f"{_field(case)}.failRequestsGreaterThanOne"
    listed = ", ".join(sorted(shared))
    asking = [user for user in case.users(of=shared) if any(user.requests.get(name, 0) > 1 for name in shared)]
    if case.config.at_most_one:
        yield case.gap(
            users=asking,
            limits=case.cluster.limiting(*shared),
            place=place,
            what=f"a container that asks for more than one {listed} is not refused any more",
            why="the device plugin fails such a pod with UnexpectedAdmissionError; the scheduler gives it as many "
            "different devices, or leaves it pending where there are not as many",
            todo="limit each container to 1 by a LimitRange in each namespace; the plan has one to copy",
        )
    else:
        yield case.gap(
            users=asking,
            limits=case.cluster.limiting(*shared),
            place=place,
            what=f"a container that asks for several {listed} gets shares of different devices, or waits",
            why="the device plugin may give it several shares of one device; a claim's request never gets one twice",
            todo="let such pods ask for 1: more shares never meant more of a device",
        )


def _mps(case: Case) -> Iterator[Gap]:
    if case.config.strategy != "mps":
        return
    counts = sorted({str(offer.replicas) for offer in case.offers if offer.strategy == "mps"}) or ["N"]
    yield case.weighed(
        Weight.BREAKS,
        users=case.users(of=_shared(case)),
        place="sharing.mps",
        what="pods find no MPS: no CUDA_MPS_PIPE_DIRECTORY, no control daemon, no compute mode EXCLUSIVE_PROCESS",
        why="this driver does not start MPS; a claim or class that asks for it is refused when it is prepared",
        todo="keep these nodes on the device plugin, or let MIG instances take the place of MPS",
    )
    yield case.weighed(
        Weight.BREAKS,
        users=case.users(of=_shared(case)),
        place="sharing.mps",
        what=f"no pod is held to 1/{', 1/'.join(counts)} of a GPU's memory and threads",
        why="those limits are set by the MPS control daemon",
        todo="as above; MIG instances hold pods to their part",
    )
    if case.config.flags.mps_root is not None:
        yield _note(case, "flags.mpsRoot", "flags.mpsRoot has no counterpart", "there is no MPS control daemon")


def _mig_and_mps(case: Case) -> Iterator[Gap]:
    if case.config.strategy == "mps" and case.config.flags.mig_strategy == "single":
        yield _note(
            case,
            "sharing.mps",
            "nodes of this configuration whose GPUs are cut into MIG instances serve nothing today",
            "the device plugin refuses MPS on MIG instances",
            "decide for such nodes what they are for before they move",
        )


def _shared_mig(case: Case) -> Iterator[Gap]:
    cut = frozenset(offer.resource for offer in case.offers if offer.strategy != "none" and offer.devices != "gpu")
    if cut:
        yield case.gap(
            users=[],
            place=f"{_field(case)}.resources",
            what=f"MIG instances behind {', '.join(sorted(cut))} can be shared only while their layout is fixed",
            why="a device that is shared must not draw on counters of its GPU, too: schedulers have been seen to "
            "count them wrong",
            todo="leave `mig: static` in the node configuration; `dynamic` and sharing exclude each other on a GPU",
        )


def _policy(case: Case) -> Iterator[Gap]:
    policy = case.config.flags.plugin.shared_devices_allocation_policy
    spreads = policy == "distributed"
    if not spreads and case.config.flags.mig_strategy == "none" and not _shared(case):
        yield _note(
            case,
            "flags.plugin.sharedDevicesAllocationPolicy",
            "packed has no effect here, today either",
            _NOTHING_SHARED,
        )
    if spreads and (_shared(case) or case.config.flags.mig_strategy != "none"):
        yield case.gap(
            users=[],
            place="flags.plugin.sharedDevicesAllocationPolicy",
            what="pods spread over a node's GPUs in a fixed order, not to the one that is used least",
            why="the scheduler takes the first device that fits, in the order of the slices; `order: spread` sorts "
            "them",
            todo="nothing, or `order: packed` where GPUs shall be filled one after the other",
        )


_NOTHING_SHARED: Final = "it chooses among shares and MIG instances, of which there are none"


def _renames(case: Case) -> Iterator[Gap]:
    sharer = case.config.sharer
    for index, one in enumerate(sharer.resources if sharer else ()):
        place = f"{_field(case)}.resources[{index}]"
        usual = names.shared(one.name) if sharer and sharer.rename_by_default else None
        if one.rename not in (None, usual):
            yield _note(
                case,
                f"{place}.rename",
                f"{place}.rename has no effect today either",
                "the device plugin reads it and takes the name that renameByDefault gives",
                "take it out; a bridge can have any name if you want another one: add it by hand",
            )
        if one.devices != "all":
            yield _note(
                case,
                f"{place}.devices",
                f"{place}.devices has no effect today either: all devices are shared",
                "the device plugin reads it and takes all",
                "take it out; this driver's node configurations can choose GPUs by a filter",
            )


def _resources(case: Case) -> Iterator[Gap]:
    given = case.config.resources
    if given.gpus or given.mig:
        yield _note(
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
        yield _note(
            case,
            "flags.plugin.passDeviceSpecs",
            "device nodes come with CDI, always",
            "CDI carries them, cgroup included",
        )
    if plugin.cdi_annotation_prefix != "cdi.k8s.io/":
        place = "flags.plugin.cdiAnnotationPrefix"
        yield _note(case, place, f"{place} has no counterpart", "the kubelet passes CDI names itself")
    if plugin.nvidia_ctk_path is not None:
        place = "flags.plugin.nvidiaCTKPath"
        todo = "see --nvidia-cdi-hook-path where nvidia-cdi-hook lies in an unusual place"
        yield _note(
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
        yield _note(case, "imex.required", "imex.required has no effect, today either", "no channel is asked for")


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
        yield _note(
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
        yield _note(
            case,
            "flags.failOnInitError",
            "failOnInitError has no counterpart",
            "this driver stays up and tries again until the NVIDIA driver answers; /readyz says what is missing",
        )


def _gfd(case: Case) -> Iterator[Gap]:
    given = case.config.flags.gfd.model_fields_set
    if given or case.config.flags.use_node_feature_api is not None:
        yield _note(
            case,
            "flags.gfd" if given else "flags.useNodeFeatureAPI",
            "flags of GPU feature discovery have no counterpart",
            "this driver does not run it",
            "see what is said of node labels",
        )


_Rule = Callable[[Case], Iterator[Gap]]
_RULES: Final[tuple[_Rule, ...]] = (
    _none, _single, _mixed, _replicas, _not_offered, _both, _greater_than_one, _mps, _mig_and_mps, _shared_mig, _policy,
    _renames, _resources, _devices, _ids, _specs, _storage, _imex, _roots, _tegra, _init_error, _gfd,
)  # fmt: skip
