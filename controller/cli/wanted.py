"""What `--apply` would write, and what it leaves alone because it is somebody else's. Pure: nothing is written here."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from controller.api import BRIDGES
from controller.cli.differences import differences, patch
from controller.cli.printing import as_yaml
from controller.cli.writes import Refusal, Write, title
from controller.importing import Plan
from dradriver.api.node_config import DEFAULT_NAME, decode
from dradriver.api.text import TextError, parse
from dradriver.kube import NODES, Object, Resource

FIELD_MANAGER: Final = "dradriver-plan"
"""Owner of the fields that `--apply` writes."""

CONFIG_MAPS: Final = Resource(group="", version="v1", plural="configmaps", kind="ConfigMap", namespaced=True)
QUOTAS: Final = Resource(group="", version="v1", plural="resourcequotas", kind="ResourceQuota", namespaced=True)

NODE_CONFIG_MAP: Final = "dradriver-node-config"
NODE_CONFIG_NAMESPACE: Final = "dradriver"
NODE_CONFIG_KEY: Final = "nodes.yaml"
LABEL: Final = "dradriver.dev/config"


def config_map(plan: Plan) -> Object | None:
    """Make the ConfigMap of node configurations; None where the plan has none."""
    return _config_map(plan.node_configs) if plan.node_configs["configs"] else None


def _config_map(document: Mapping[str, Any]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NODE_CONFIG_MAP, "namespace": NODE_CONFIG_NAMESPACE},
        "data": {NODE_CONFIG_KEY: as_yaml(document)},
    }


# --- bridges --------------------------------------------------------------------------------------


def bridges(plan: Plan, live: Iterable[Object]) -> Iterator[Write | Refusal]:
    """Compare the plan's bridges with those that there are.

    Args:
        plan: the plan.
        live: all bridges of the cluster.
    """
    there = {item["metadata"]["name"]: item for item in live}
    for body in plan.bridges:
        name, resource = body["metadata"]["name"], body["spec"]["resourceName"]
        same, others = there.get(name), _others(there, name, resource)
        if same is not None and same["spec"].get("resourceName") != resource:
            yield Refusal(
                object=f"{BRIDGES.kind} {name}",
                why=f"there is one of that name for {same['spec'].get('resourceName')}, which cannot be changed",
                todo=f"delete it if nobody needs it (kubectl delete erb {name}), and apply again",
            )
        elif same is None and others:
            yield _other_bridge(name, body, others[0])
        else:
            yield Write(resource=BRIDGES, body=dict(body), live=same)


def stale_bridges(plan: Plan, live: Iterable[Object]) -> list[str]:
    """Name the bridges that an earlier `--apply` has written, and that the plan has no more.

    One whose resource the plan bridges is none: another entry of the plan tells of it.
    """
    wanted = {body["spec"]["resourceName"] for body in plan.bridges}
    return [
        item["metadata"]["name"]
        for item in live
        if item["spec"].get("resourceName") not in wanted and _is_applied(item)
    ]


def stale_quotas(plan: Plan, live: Iterable[Object]) -> list[tuple[str, str]]:
    """Give namespace and name of the quotas that an earlier `--apply` has written, and that the plan has no more."""
    wanted = {_key(body) for body in plan.limits.quotas}
    return [_key(item) for item in live if _key(item) not in wanted and _is_applied(item)]


def _key(item: Mapping[str, Any]) -> tuple[str, str]:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def _is_applied(item: Object) -> bool:
    return any(entry.get("manager") == FIELD_MANAGER for entry in item["metadata"].get("managedFields") or ())


def _others(there: Mapping[str, Object], name: str, resource: str) -> list[Object]:
    return [item for other, item in there.items() if other != name and item["spec"].get("resourceName") == resource]


def _other_bridge(name: str, body: Mapping[str, Any], other: Object) -> Write | Refusal:
    """Keep one that selects the same under another name."""
    found = other["metadata"]["name"]
    renamed = Write(resource=BRIDGES, body={**body, "metadata": {"name": found}}, live=other, needed=False)
    if other["spec"].get("select") == body["spec"]["select"]:
        return renamed
    told = "; ".join(map(str, differences(renamed)))
    return Refusal(
        object=f"{BRIDGES.kind} {name}",
        why=f"{body['spec']['resourceName']} has the bridge {found} already, and of two bridges the older one works; "
        f"there {told}",
        todo=f"leave it so, or set what the plan wants ({patch(renamed)}), or delete it "
        f"({shlex.join(['kubectl', 'delete', 'erb', found])}), and apply again",
    )


# --- node configurations --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfigs:
    """What is to be done about node configurations.

    Attributes:
        item: the ConfigMap.
        present: names of the plan's configurations that the ConfigMap has already, as the plan wants them.
        names: all of the plan.
    """

    item: Write | Refusal
    present: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


def node_configs(plan: Plan, live: Object | None) -> NodeConfigs:
    """Put the plan's configurations into the ConfigMap, by name; what else is there stays.

    Args:
        plan: the plan.
        live: the ConfigMap; None where there is none.
    """
    wanted = plan.node_configs["configs"]
    names = frozenset(wanted)
    text = (live or {}).get("data", {}).get(NODE_CONFIG_KEY, "")
    if not text:
        item = Write(resource=CONFIG_MAPS, body=_config_map(plan.node_configs), live=live)
        return NodeConfigs(item=item, names=names)
    document = _document(text)
    if document is None or decode(document).problems:
        return NodeConfigs(item=_unreadable(), names=names)
    there = document["configs"]
    present = frozenset(name for name, config in wanted.items() if there.get(name) == config)
    merged = document | {"configs": there | wanted}
    if problems := decode(merged).problems:
        return NodeConfigs(item=_too_much(str(problems[0])), present=present, names=names)
    write = Write(resource=CONFIG_MAPS, body=_config_map(merged), live=live, needed=present != names)
    return NodeConfigs(item=write, present=present, names=names)


def _document(text: str) -> dict[str, Any] | None:
    try:
        found = parse(text.encode())
    except TextError:
        return None
    return found.value if isinstance(found.value, dict) and not found.problems else None


def _unreadable() -> Refusal:
    return Refusal(
        object=f"ConfigMap {NODE_CONFIG_NAMESPACE}/{NODE_CONFIG_MAP}",
        why=f"its {NODE_CONFIG_KEY} has mistakes, so nothing can be added",
        todo="correct it (`dradriver config check` tells the mistakes), and apply again",
    )


def _too_much(problem: str) -> Refusal:
    return Refusal(
        object=f"ConfigMap {NODE_CONFIG_NAMESPACE}/{NODE_CONFIG_MAP}",
        why=f"with the configurations of the plan it would have a mistake: {problem}",
        todo="take out what is not needed, and apply again",
    )


# --- labels ---------------------------------------------------------------------------------------


def labels(plan: Plan, live: Iterable[Object], served: frozenset[str]) -> Iterator[Write | Refusal]:
    """Compare the labels of nodes with those that the plan wants; what is as wanted is not touched.

    Args:
        plan: the plan.
        live: nodes.
        served: configurations of the plan that the ConfigMap has; a label that names another one would mean nothing.
    """
    for node in live:
        wanted = plan.nodes.get(node["metadata"]["name"])
        if wanted is None or not wanted.planned:
            continue
        found = (node["metadata"].get("labels") or {}).get(LABEL, "")
        if (wanted.label or DEFAULT_NAME) not in served:
            yield _not_there(node, wanted.label or DEFAULT_NAME)
        elif found == wanted.label:
            yield Write(resource=NODES, body=_labelled(node, wanted.label), live=node, needed=False)
        elif found and not _is_ours(node):
            yield _labelled_by_others(node, found, wanted.label)
        else:
            yield Write(resource=NODES, body=_labelled(node, wanted.label), live=node)


def _labelled(node: Object, label: str) -> Object:
    # Without the uid, a node that has gone meanwhile would be made anew.
    metadata = {"name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
    return {
        "apiVersion": NODES.api_version,
        "kind": NODES.kind,
        "metadata": metadata | ({"labels": {LABEL: label}} if label else {}),
    }


def _is_ours(node: Object) -> bool:
    """Tell whether an earlier `--apply` has set the label, and nobody since."""
    entries = node["metadata"].get("managedFields") or ()
    owners = {entry.get("manager") for entry in entries if f"f:{LABEL}" in _owned_labels(entry)}
    return owners == {FIELD_MANAGER}


def _owned_labels(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = entry.get("fieldsV1") or {}
    owned: Mapping[str, Any] = fields.get("f:metadata", {}).get("f:labels", {})
    return owned


def _not_there(node: Object, label: str) -> Refusal:
    return Refusal(
        object=title(NODES, node["metadata"]),
        why=f"its label {LABEL} is left as it is, since the ConfigMap does not have the configuration {label} of the "
        "plan",
        todo="see what is said of the ConfigMap, and apply again",
    )


def _labelled_by_others(node: Object, found: str, wanted: str) -> Refusal:
    name = node["metadata"]["name"]
    change = f"{LABEL}={wanted} --overwrite" if wanted else f"{LABEL}-"
    return Refusal(
        object=title(NODES, node["metadata"]),
        why=f"somebody has set its label {LABEL} to {found}, and the plan wants {wanted or 'none'}",
        todo=f"leave it, or change it: kubectl label node {name} {change}",
    )
