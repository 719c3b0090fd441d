"""What is otherwise for every pod once its node has moved, whatever the configuration was.

Sources: KEP-5004 and its issues for what extended resources behind DeviceClasses do not do; the device plugin's source
for what it does. Only what touches somebody is told where a cluster was looked at.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from controller.importing import names
from controller.importing.assigned import gpu_nodes
from controller.importing.cluster import Cluster, User
from controller.importing.gaps import Gap, Weight

_FIRST_KUBELET: Final = (1, 35)
_FIRST_CDI: Final = (1, 7)

MOST_DEVICES: Final = 32
"""Of one claim, and so of all containers of a pod together."""

_DEFAULT_SCHEDULER: Final = "default-scheduler"
_OPERAND_LABELS: Final = "nvidia.com/gpu.deploy."
_CONTROL_LABELS: Final = ("nvidia.com/device-plugin.config", "nvidia.com/mig.config", _OPERAND_LABELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What the rules look at.

    Attributes:
        cluster: who asks.
        bridged: names that get a bridge.
    """

    cluster: Cluster
    bridged: frozenset[str]

    @property
    def known(self) -> bool:
        """Whether a cluster was looked at; else everything is told, of nobody in particular."""
        return bool(self.cluster.nodes or self.cluster.users or self.cluster.limits)

    @property
    def askers(self) -> list[User]:
        """Who asks for something that gets a bridge."""
        return [user for user in self.cluster.users if user.requests.keys() & self.bridged]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of nodes with GPUs."""
        return tuple(node.name for node in gpu_nodes(self.cluster))

    def about(self, users: list[User], **said: Any) -> Iterator[Gap]:
        """Tell it where it touches somebody, or where nobody was looked at."""
        if users or not self.known:
            yield Gap(users=tuple(user.name for user in users), **said)


def gaps(world: World) -> Iterator[Gap]:
    """Tell all of it."""
    for rule in _RULES:
        yield from rule(world)


# --- names ----------------------------------------------------------------------------------------


def _unserved(world: World) -> Iterator[Gap]:
    asked: dict[str, list[str]] = {}
    for user in world.cluster.users:
        for name in user.requests.keys() - world.bridged:
            asked.setdefault(name, []).append(user.name)
    for name, users in sorted(asked.items()):
        yield Gap(
            what=f"nothing serves {name} after the move",
            why="no configuration that a node has makes this name"
            if names.is_ours(name)
            else "it is no name of NVIDIA's device plugin",
            todo="correct the pods, add a bridge by hand, or see who serves it today",
            weight=Weight.BREAKS,
            users=tuple(users),
            limits=world.cluster.limiting(name),
        )


def _foreign(world: World) -> Iterator[Gap]:
    found: dict[str, list[str]] = {}
    for node in world.cluster.nodes.values():
        for name in node.resources.keys() - world.bridged:
            found.setdefault(name, []).append(node.name)
    for name, nodes in sorted(found.items()):
        yield Gap(
            what=f"{name}, which nodes allocate today, gets no bridge",
            why="it is not what their configuration makes: another plugin serves it, the plugin has other flags than "
            "were given, or it was not restarted since",
            todo="find out which, and plan again with the plugin's environment (--env)",
            weight=Weight.BREAKS,
            nodes=tuple(nodes),
            users=world.cluster.using(name),
            limits=world.cluster.limiting(name),
        )


# --- what must be there ---------------------------------------------------------------------------


def _server(world: World) -> Iterator[Gap]:
    version = world.cluster.version
    if version is not None and version < _FIRST_KUBELET:
        yield Gap(
            what=f"nothing serves extended resources through DRA in this cluster, which is Kubernetes {version[0]}."
            f"{version[1]}",
            why="a node that has ever had a device plugin gets to DRA from 1.35 on only; older API servers drop "
            "extendedResourceName of DeviceClasses",
            todo="upgrade first; 1.35 needs the feature gate DRAExtendedResource, from 1.36 it is on",
            weight=Weight.BREAKS,
        )


def _kubelets(world: World) -> Iterator[Gap]:
    nodes = gpu_nodes(world.cluster)
    old = [node.name for node in nodes if node.kubelet is not None and node.kubelet < _FIRST_KUBELET]
    if old:
        yield Gap(
            what="pods that ask by an extended resource are refused on nodes with a kubelet older than 1.35",
            why="older ones look for the resource in the node's status, where it is 0 after the move",
            todo="upgrade the nodes first; 1.35 needs the feature gate DRAExtendedResource, from 1.36 it is on",
            weight=Weight.BREAKS,
            nodes=tuple(old),
        )


def _runtimes(world: World) -> Iterator[Gap]:
    nodes = gpu_nodes(world.cluster)
    old = [node.name for node in nodes if node.containerd is not None and node.containerd < _FIRST_CDI]
    if old:
        yield Gap(
            what="containers get no devices on nodes with a containerd older than 1.7",
            why="it does not know CDI as this driver uses it",
            todo="upgrade containerd before the node moves",
            weight=Weight.BREAKS,
            nodes=tuple(old),
        )


# --- scheduling -----------------------------------------------------------------------------------


def _preemption(world: World) -> Iterator[Gap]:
    yield from world.about(
        [user for user in world.askers if user.priority > 0],
        what="a pod of higher priority does not push others off their GPUs; it waits until one is free",
        why="the scheduler does not preempt pods to free devices of claims (Kubernetes 1.36, 1.37)",
        todo="keep GPUs free for such pods by quotas, or queue pods before they reach the scheduler",
    )


def _closeness(world: World) -> Iterator[Gap]:
    yield from world.about(
        [user for user in world.askers if any(count > 1 for count in user.total.values())],
        what="several GPUs of a pod are the first free ones, not those that lie closest together",
        why="the scheduler goes by the order of slices; what the device plugin prefers (NVLink, PCIe) has no "
        "counterpart for extended resources",
        todo="let such pods use a ResourceClaim with matchAttribute resource.kubernetes.io/pcieRoot or numaNode",
    )


def _scoring(world: World) -> Iterator[Gap]:
    yield from world.about(
        world.askers,
        what="among nodes with free GPUs the scheduler chooses by what extended resources tell, not by what fits best",
        why="packing by NodeResourcesFit knows extended resources behind classes from Kubernetes 1.35 on; a score for "
        "devices "
        "of claims is still to come",
        todo="compare where pods go if you rely on bin-packing of GPU nodes",
        weight=Weight.NOTE,
    )


def _numa(world: World) -> Iterator[Gap]:
    yield from world.about(
        world.askers,
        what="the kubelet's TopologyManager does not align CPUs and memory with the GPU",
        why="it hears of devices from device plugins only",
        todo="where its policy is not `none`, use a ResourceClaim with resource.kubernetes.io/numaNode and a CPU "
        "driver",
    )


def _initial(world: World) -> Iterator[Gap]:
    yield from world.about(
        [user for user in world.askers if set(user.initial) & world.bridged],
        what="an init container may see more GPUs than it asked for",
        why="it shares the requests of the pod's containers, and sees all devices of each request that it shares",
        todo="see that it does not count what it finds",
    )


def _many(world: World) -> Iterator[Gap]:
    many = [user for user in world.askers if sum(user.total.get(name, 0) for name in world.bridged) > MOST_DEVICES]
    if many:
        yield Gap(
            what=f"a pod that asks for more than {MOST_DEVICES} devices is not scheduled",
            why="all extended resources of a pod are in one claim, which has room for no more",
            todo="split the pod",
            weight=Weight.BREAKS,
            users=tuple(user.name for user in many),
        )


def _bound(world: World) -> Iterator[Gap]:
    bound = [user for user in world.askers if user.bound]
    if bound:
        yield Gap(
            what="pods that come with their node, static ones among them, get no GPU",
            why="the scheduler makes the claim, and it does not see them",
            todo="let the scheduler place them: a nodeSelector instead of nodeName, a DaemonSet instead of a static "
            "pod",
            weight=Weight.BREAKS,
            users=tuple(user.name for user in bound),
        )


def _schedulers(world: World) -> Iterator[Gap]:
    for name in sorted({user.scheduler for user in world.askers} - {_DEFAULT_SCHEDULER}):
        yield Gap(
            what=f"pods are placed by {name}, which must know extended resources behind DeviceClasses, too",
            why="it makes the pod's claim, as the default scheduler does from Kubernetes 1.35 on",
            todo="see its version and what is said of queues",
            users=tuple(user.name for user in world.askers if user.scheduler == name),
        )


# --- running --------------------------------------------------------------------------------------


def _taints(world: World) -> Iterator[Gap]:
    yield from world.about(
        world.askers,
        what="a sick GPU takes no new pods and does not evict those that asked for it by its extended resource",
        why="the eviction by device taints looks at spec.resourceClaims only, which such pods do not have (Kubernetes "
        "1.37)",
        todo="watch the taints; the device plugin does not evict pods either",
        weight=Weight.NOTE,
    )


def _terminating(world: World) -> Iterator[Gap]:
    yield from world.about(
        world.askers,
        what="a pod can wait in Terminating while this driver is away from its node",
        why="the kubelet waits until the driver has given the devices back; device plugins are not asked",
        todo="look after the driver's DaemonSet first when pods do not end",
    )


def _visible(world: World) -> Iterator[Gap]:
    loud = [one for one in world.cluster.users if one.visible not in ("", "void", "none") and not _is_operand(one)]
    if loud:
        yield Gap(
            what="a NVIDIA_VISIBLE_DEVICES that the pod sets itself has no effect in containers with a device of a "
            "claim",
            why="this driver sets it to `void`, so that no runtime adds other GPUs",
            todo="take it out; a pod that sets it without asking for a GPU uses one behind everybody's back: see to it "
            "before its node moves, or the GPU has two users",
            users=tuple(user.name for user in loud),
        )


def _is_operand(user: User) -> bool:
    """Tell whether it is one of the GPU operator's own, which see all GPUs on purpose."""
    return any(label.startswith(_OPERAND_LABELS) for label in user.labels)


def _runtime_class(world: World) -> Iterator[Gap]:
    special = [user for user in world.askers if user.class_name]
    if special:
        yield Gap(
            what="the runtime class for GPUs is not needed any more",
            why="devices come through CDI, which every handler of containerd and CRI-O applies",
            todo="keep the class or take it out; do not delete the RuntimeClass while pods name it",
            weight=Weight.NOTE,
            users=tuple(user.name for user in special),
        )


# --- who looks on ---------------------------------------------------------------------------------


def _node_status(world: World) -> Iterator[Gap]:
    yield Gap(
        what="a node's capacity and allocatable tell no GPUs: 0 where a device plugin was, nothing elsewhere",
        why="what DRA offers stands in ResourceSlices, not in the node's status",
        todo="see to dashboards, billing and operators that read it",
        nodes=world.nodes,
    )


def _labels(world: World) -> Iterator[Gap]:
    selecting = [user for user in world.cluster.users if any(not _is_control(label) for label in user.labels)]
    chosen = sorted({label for user in selecting for label in user.labels if not _is_control(label)})
    listed = f": {', '.join(chosen)}" if chosen else ""
    yield from world.about(
        selecting,
        what=f"labels of nodes by which pods choose come from GPU feature discovery{listed}",
        why="where it goes with the device plugin they vanish or grow stale, and gpu.replicas, gpu.sharing-strategy "
        "and the suffixes of gpu.product tell of the device plugin's sharing",
        todo="keep GPU feature discovery on the nodes, or start the controller with --node-labels=WhenUnowned: where "
        "nobody else does, it writes what slices tell, which is not gpu.machine, gpu.mode and gpu.clique "
        "(docs/labels.md)",
    )


def _is_control(label: str) -> bool:
    return label.startswith(_CONTROL_LABELS)


def _health(world: World) -> Iterator[Gap]:
    yield Gap(
        what="what makes a GPU sick, and for how long, is decided otherwise",
        why="the device plugin keeps a GPU out until it is restarted, for any Xid that it does not ignore (13, 31, "
        "43, 45, 68, 109); this driver goes by a table, tells by taints, and lets a GPU come back",
        todo="see docs/health.md; a health policy says otherwise where you want it",
        weight=Weight.NOTE,
        nodes=world.nodes,
    )


# --- the plugin's environment ---------------------------------------------------------------------


def of_environment(env: Mapping[str, str], nodes: tuple[str, ...]) -> Iterator[Gap]:
    """Tell of variables that are no part of a configuration.

    Args:
        env: environment of a device plugin's container.
        nodes: where it is.
    """
    for name in ("DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"):
        if env.get(name):
            yield Gap(
                what=f"{name}={env[name]} has no counterpart",
                why="what Xids mean is said in a health policy of the node configuration",
                todo="write one: `ignore` for what was disabled, `noSchedule` for what was enabled",
                place=f"${name}",
                nodes=nodes,
            )
    for name in ("CDI_FEATURE_FLAGS", "CDI_DISABLE_HOOKS", "KUBELET_SOCKET"):
        if env.get(name):
            yield Gap(
                what=f"{name} has no counterpart",
                why="it changes how the device plugin works inside",
                todo="nothing, or compare what containers see",
                weight=Weight.NOTE,
                place=f"${name}",
                nodes=nodes,
            )


_RULES: Final[tuple[Callable[[World], Iterator[Gap]], ...]] = (
    _unserved, _foreign, _server, _kubelets, _runtimes, _preemption, _closeness, _scoring, _numa, _initial, _many,
    _bound, _schedulers, _taints, _terminating, _visible, _runtime_class, _node_status, _labels, _health,
)  # fmt: skip
