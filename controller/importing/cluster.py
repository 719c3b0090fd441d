"""What a plan has to know of a cluster: nodes, who asks for GPUs, who limits them, whose classes carry their names.

Made of plain Kubernetes objects; of each only what matters is kept, and what is not as it should be counts as absent:
it is the API server's business to keep objects well formed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeAlias

from controller.importing.names import DOMAIN
from dradriver.api.problems import show_value

Object: TypeAlias = Mapping[str, Any]
Version: TypeAlias = tuple[int, int]

_PREFIX: Final = f"{DOMAIN}/"
_MIRROR: Final = "kubernetes.io/config.mirror"
MOST_OBJECTS: Final = 1_000_000
"""More than any cluster has of what is read; YAML can say more than that in a few lines."""
_DEEPEST: Final = 10
_VERSION: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")
_OVER: Final = frozenset({"Succeeded", "Failed"})
_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
_COUNTED_CLAIMS: Final = "count/resourceclaims.resource.k8s.io"
KAI_QUEUE: Final = "KAI Queue"
"""Kind of a limit that is a queue of KAI's."""
_TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {
    "Pod": (),
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
"""Where the pod is in an object of that kind."""


class ClusterError(ValueError):
    """Data that is no Kubernetes object; the message says what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node.

    Attributes:
        name: the node's.
        labels: all of them.
        resources: how many of each extended resource of our domain it allocates; none of which it has 0, since names
            of layouts that are gone stay with 0.
        kubelet: version of the kubelet, major and minor; None where that is not known.
        containerd: the same of containerd; None for another runtime, too.
        taints: key, value and effect of each.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)
    kubelet: Version | None = None
    containerd: Version | None = None
    taints: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A pod, or what makes pods of a template, that has to do with GPUs.

    Attributes:
        name: kind, namespace and name, for people.
        node: on which it runs, "" where that is not known.
        requests: per extended resource of our domain the most that one container asks for.
        total: the same for all containers together, without those for the start.
        initial: resources that containers for the start ask for.
        priority: of the pod.
        class_name: of its runtime class.
        visible: what a container's variable NVIDIA_VISIBLE_DEVICES is set to, "" where it is not.
        labels: labels of our domain by which it chooses nodes.
        scheduler: who places it.
        bound: whether it comes with its node, so that no scheduler sees it.
    """

    name: str
    node: str = ""
    requests: Mapping[str, int] = field(default_factory=dict)
    total: Mapping[str, int] = field(default_factory=dict)
    initial: tuple[str, ...] = ()
    priority: int = 0
    class_name: str = ""
    visible: str = ""
    labels: tuple[str, ...] = ()
    scheduler: str = "default-scheduler"
    bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A ResourceQuota, or a queue, that limits extended resources of our domain.

    Attributes:
        kind: of the object.
        namespace: "" for one of the cluster.
        name: the object's.
        hard: extended resource to what is allowed, as it is written.
        scoped: whether it counts some pods only.
        keys: all that it limits, under the names that it uses.
    """

    kind: str
    namespace: str = ""
    name: str
    hard: Mapping[str, str] = field(default_factory=dict)
    scoped: bool = False
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {'/'.join(filter(None, (self.namespace, self.name)))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """All of it.

    Attributes:
        nodes: by name.
        users: of GPUs.
        limits: of them.
        classes: extended resource to the names of the DeviceClasses that carry it.
        topologies: Kueue's topologies, by name.
        claim_quotas: quotas that count claims as objects.
        version: of Kubernetes, major and minor; None where that is not known.
        autoscalers: Deployments of the Cluster Autoscaler.
        exporters: DaemonSets of dcgm-exporter that are not told to read claims.
        daemon_pods: namespace and name of a DaemonSet, and a node where a pod of it runs.
    """

    nodes: Mapping[str, Node] = field(default_factory=dict)
    users: tuple[User, ...] = ()
    limits: tuple[Limit, ...] = ()
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    topologies: tuple[str, ...] = ()
    claim_quotas: tuple[Limit, ...] = ()
    version: Version | None = None
    autoscalers: tuple[str, ...] = ()
    exporters: tuple[str, ...] = ()
    daemon_pods: frozenset[tuple[str, str, str]] = frozenset()

    def using(self, *resources: str) -> tuple[str, ...]:
        """Name those who ask for one of these resources."""
        return tuple(user.name for user in self.users if user.requests.keys() & set(resources))

    def limiting(self, *resources: str) -> tuple[str, ...]:
        """Name what limits one of these resources."""
        return tuple(str(limit) for limit in self.limits if limit.hard.keys() & set(resources))


def read_cluster(objects: Iterable[object], *, version: Version | None = None) -> Cluster:
    """Take from objects what matters; lists among them are opened.

    Args:
        objects: of Kubernetes.
        version: of the API server, where one was asked.

    Raises:
        ClusterError: something has no kind.
    """
    found = list(islice(_opened(objects), MOST_OBJECTS + 1))
    if len(found) > MOST_OBJECTS:
        raise ClusterError(f"there are more than {MOST_OBJECTS:,} objects; leave out what has nothing to do with GPUs")
    nodes = [_node(one) for one in found if one["kind"] == "Node"]
    users = [user for one in found if (user := _user(one)) is not None]
    limits = [limit for one in found if (limit := _limit(one)) is not None]
    classes: dict[str, tuple[str, ...]] = {}
    for one in found:
        name = _text(_map(one.get("spec")).get("extendedResourceName"))
        if one["kind"] == "DeviceClass" and name:
            classes[name] = (*classes.get(name, ()), _meta(one, "name"))
    return Cluster(
        nodes={node.name: node for node in nodes},
        # What makes pods says more than each of its pods, and stands first where there is no room for all.
        users=tuple(sorted(users, key=lambda user: user.name.startswith("Pod "))),
        limits=tuple(limit for limit in limits if limit.hard or limit.kind == KAI_QUEUE),
        classes=classes,
        topologies=tuple(_meta(one, "name") for one in found if one["kind"] == "Topology"),
        claim_quotas=tuple(limit for limit in limits if _COUNTED_CLAIMS in limit.keys),
        version=version,
        autoscalers=tuple(_title(one) for one in found if _runs(one, "Deployment", "cluster-autoscaler")),
        exporters=tuple(_title(one) for one in found if _runs(one, "DaemonSet", "dcgm-exporter") and not _reads(one)),
        daemon_pods=frozenset(each for one in found if (each := _daemon_pod(one)) is not None),
    )


def _opened(objects: Iterable[object], depth: int = 0) -> Iterator[Object]:
    if depth > _DEEPEST:
        raise ClusterError(f"lists lie more than {_DEEPEST} deep in one another: they are no Kubernetes objects")
    for one in objects:
        if not isinstance(one, dict) or not isinstance(one.get("kind"), str):
            raise ClusterError(f"{show_value(one)} has no `kind`: it is no Kubernetes object")
        if one["kind"].endswith("List") and isinstance(one.get("items"), list):
            # The items of a typed list have no kind of their own where a client has decoded them.
            kind = one["kind"].removesuffix("List")
            items = ({"kind": kind, **item} if kind and isinstance(item, dict) else item for item in one["items"])
            yield from _opened(items, depth + 1)
        else:
            yield one


# --- nodes ----------------------------------------------------------------------------------------


def _node(one: Object) -> Node:
    status = _map(one.get("status"))
    # While the device plugin is away, the node allocates 0 and its capacity still tells what there is.
    told = {**_map(status.get("capacity")), **_positive(status.get("allocatable"))}
    info = _map(status.get("nodeInfo"))
    return Node(
        name=_meta(one, "name"),
        labels=_texts(_map(one.get("metadata")).get("labels")),
        resources=_positive(told),
        kubelet=_version(info.get("kubeletVersion"), "v"),
        containerd=_version(info.get("containerRuntimeVersion"), "containerd://"),
        taints=tuple(_taint(_map(taint)) for taint in _list(_map(one.get("spec")).get("taints"))),
    )


def _taint(taint: Object) -> tuple[str, str, str]:
    return _text(taint.get("key")), _text(taint.get("value")), _text(taint.get("effect"))


def _version(text: object, before: str) -> Version | None:
    found = _VERSION.match(_text(text).removeprefix(before)) if _text(text).startswith(before) else None
    return (int(found[1]), int(found[2])) if found else None


def _positive(resources: object) -> dict[str, int]:
    return {name: count for name, count in _counts(resources).items() if count > 0}


def _counts(resources: object) -> dict[str, int]:
    given = ((name, _count(value)) for name, value in _map(resources).items())
    return {name: count for name, count in given if name.startswith(_PREFIX) and count is not None}


def _count(value: object) -> int | None:
    """Read a quantity of things that cannot be divided."""
    text = str(value)
    if text.endswith("k") and text[:-1].isascii() and text[:-1].isdigit():
        return _count(text[:-1] + "000")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


_MOST_DIGITS: Final = 18

# --- users ----------------------------------------------------------------------------------------


def _user(one: Object) -> User | None:
    if one["kind"] not in _TEMPLATES or _map(one.get("status")).get("phase") in _OVER or _is_made(one):
        return None
    pod = _map(_walk(one, _TEMPLATES[one["kind"]]))
    spec = _map(pod.get("spec"))
    first, later = _containers(spec.get("initContainers")), _containers(spec.get("containers"))
    asked = [_counts(_map(_map(container.get("resources")).get("limits"))) for container in (*first, *later)]
    user = User(
        name=_title(one),
        node=_text(spec.get("nodeName")),
        requests=_most(asked),
        total=_sum(asked[len(first) :]),
        initial=tuple(sorted({name for counts in asked[: len(first)] for name in counts})),
        priority=_priority(spec),
        class_name=_text(spec.get("runtimeClassName")),
        visible=_visible((*first, *later)),
        labels=tuple(sorted(set(_node_labels(spec)))),
        scheduler=_text(spec.get("schedulerName")) or "default-scheduler",
        bound=_MIRROR in _map(_map(pod.get("metadata")).get("annotations")) or _has_node(one, spec),
    )
    return user if user.requests or user.visible or user.labels else None


def _priority(spec: Object) -> int:
    """Give a pod's priority; a template names a class only, which counts as more than the usual."""
    if isinstance(spec.get("priority"), int):
        return int(spec["priority"])
    return 1 if _text(spec.get("priorityClassName")) else 0


def _daemon_pod(one: Object) -> tuple[str, str, str] | None:
    if one["kind"] != "Pod" or _map(one.get("status")).get("phase") in _OVER:
        return None
    owners = map(_map, _list(_map(one.get("metadata")).get("ownerReferences")))
    owner = next((_text(each.get("name")) for each in owners if each.get("kind") == "DaemonSet"), "")
    node = _text(_map(one.get("spec")).get("nodeName"))
    return (_meta(one, "namespace"), owner, node) if owner and node else None


def _is_made(one: Object) -> bool:
    """Tell whether a ReplicaSet or Job is one that a Deployment or CronJob has made, which speaks for it."""
    return one["kind"] in ("ReplicaSet", "Job") and bool(_list(_map(one.get("metadata")).get("ownerReferences")))


def _has_node(one: Object, spec: Object) -> bool:
    return one["kind"] != "Pod" and bool(_text(spec.get("nodeName")))


def _most(asked: list[dict[str, int]]) -> dict[str, int]:
    return {name: max(one.get(name, 0) for one in asked) for counts in asked for name in counts}


def _sum(asked: list[dict[str, int]]) -> dict[str, int]:
    return {name: sum(one.get(name, 0) for one in asked) for counts in asked for name in counts}


def _visible(containers: Iterable[Object]) -> str:
    variables = (_map(one) for container in containers for one in _list(container.get("env")))
    return next((_text(one.get("value")) for one in variables if one.get("name") == _VISIBLE and one.get("value")), "")


def _node_labels(spec: Object) -> Iterator[str]:
    """Find the labels of our domain by which a pod chooses nodes, and those by which it is spread."""
    yield from (name for name in _map(spec.get("nodeSelector")) if name.startswith(_PREFIX))
    affinity = _map(_map(spec.get("affinity")).get("nodeAffinity"))
    required = _map(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    terms = [
        *_list(required.get("nodeSelectorTerms")),
        *(
            _map(one).get("preference")
            for one in _list(affinity.get("preferredDuringSchedulingIgnoredDuringExecution"))
        ),
    ]
    for expression in (one for term in terms for one in _list(_map(term).get("matchExpressions"))):
        if _text(_map(expression).get("key")).startswith(_PREFIX):
            yield _text(_map(expression).get("key"))


# --- onlookers ------------------------------------------------------------------------------------


def _runs(one: Object, kind: str, image: str) -> bool:
    return one["kind"] == kind and any(image in _text(container.get("image")) for container in _pod_containers(one))


def _reads(one: Object) -> bool:
    """Tell whether dcgm-exporter reads claims: by a variable or a flag."""
    for container in _pod_containers(one):
        flags = (_text(word) for word in (*_list(container.get("command")), *_list(container.get("args"))))
        variables = {
            _text(each.get("name")): _text(each.get("value")) for each in map(_map, _list(container.get("env")))
        }
        if variables.get(_READS_CLAIMS, "").lower() in _TRUE or any(flag in _READS_FLAGS for flag in flags):
            return True
    return False


_READS_CLAIMS: Final = "KUBERNETES_ENABLE_DRA"
_READS_FLAGS: Final = ("--kubernetes-enable-dra", "--kubernetes-enable-dra=true")
_TRUE: Final = ("true", "1", "t")


def _pod_containers(one: Object) -> list[dict[str, Any]]:
    return _containers(_walk(one, (*_TEMPLATES.get(one["kind"], ()), "spec", "containers")))


def _title(one: Object) -> str:
    return f"{one['kind']} {_meta(one, 'namespace') or 'default'}/{_meta(one, 'name')}"


# --- limits ---------------------------------------------------------------------------------------


def _limit(one: Object) -> Limit | None:
    reader = _LIMITS.get(one["kind"])
    if reader is None:
        return None
    spec = _map(one.get("spec"))
    written = reader(spec)
    hard = {name: text for name, text in written.items() if name.startswith(_PREFIX)}
    scoped = bool(spec.get("scopes") or spec.get("scopeSelector"))
    return Limit(
        # Volcano's and KAI's queues are both of kind Queue; KAI's counts GPUs without naming a resource.
        kind=KAI_QUEUE if _is_kai(one) else one["kind"],
        namespace=_meta(one, "namespace"),
        name=_meta(one, "name"),
        hard=hard,
        scoped=scoped,
        keys=tuple(written),
    )


def _is_kai(one: Object) -> bool:
    return one["kind"] == "Queue" and _text(one.get("apiVersion")).startswith("scheduling.run.ai/")


def _quota(spec: Object) -> dict[str, str]:
    hard = ((name.removeprefix("requests."), value) for name, value in _map(spec.get("hard")).items())
    return {name: str(value) for name, value in hard}


def _cluster_queue(spec: Object) -> dict[str, str]:
    flavors = (_map(one) for group in _list(spec.get("resourceGroups")) for one in _list(_map(group).get("flavors")))
    resources = (_map(one) for flavor in flavors for one in _list(flavor.get("resources")))
    return {_text(one.get("name")): str(one.get("nominalQuota")) for one in resources}


def _queue(spec: Object) -> dict[str, str]:
    return {name: str(value) for name, value in _map(spec.get("capability")).items()}


def _limit_range(spec: Object) -> dict[str, str]:
    ranges = (_map(_map(one).get("max")) for one in _list(spec.get("limits")))
    return {name: str(value) for one in ranges for name, value in one.items()}


_LIMITS: Final = {
    "ResourceQuota": _quota,
    "ClusterQueue": _cluster_queue,
    "Queue": _queue,
    "LimitRange": _limit_range,
}

# --- plain data -----------------------------------------------------------------------------------


def _map(value: object) -> dict[str, Any]:
    return {str(key): one for key, one in value.items()} if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> dict[str, str]:
    return {key: one for key, one in _map(value).items() if isinstance(one, str)}


def _containers(value: object) -> list[dict[str, Any]]:
    return [_map(one) for one in _list(value)]


def _walk(one: Object, path: tuple[str, ...]) -> object:
    value: object = one
    for step in path:
        value = _map(value).get(step)
    return value


def _meta(one: Object, name: str) -> str:
    return _text(_map(one.get("metadata")).get(name))
