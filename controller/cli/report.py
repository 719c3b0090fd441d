"""A plan as text: a stream of manifests that kubectl takes, with remarks; or tables."""

import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from controller.cli.applying import Outcome
from controller.cli.printing import WIDTH, aligned, as_yaml, plain, remark, some
from controller.cli.wanted import LABEL, NODE_CONFIG_MAP, NODE_CONFIG_NAMESPACE, config_map
from controller.importing import Gap, Plan

_CAUTION: Final = (
    f"Where there is a ConfigMap {NODE_CONFIG_NAMESPACE}/{NODE_CONFIG_MAP} already, `kubectl apply` puts this one in "
    "its place;\n`kubectl dra plan --apply` adds to it."
)


def manifests(plan: Plan) -> Iterator[Mapping[str, Any]]:
    """Give the objects that the plan wants: bridges, node configurations, quotas."""
    yield from plan.bridges
    if (made := config_map(plan)) is not None:
        yield made
    yield from plan.limits.quotas


def to_yaml(plan: Plan, *, source: str) -> str:
    """Write it as manifests for `kubectl apply -f -`; everything else is in comments."""
    head = remark(f"Made of {source} by `kubectl dra plan`. Nothing has been changed in the cluster.\n{_CAUTION}")
    sections = [head, _gap_remarks(plan.gaps), _label_remarks(plan)]
    sections += [f"---\n{as_yaml(one)}" for one in manifests(plan)]
    sections += _snippets(plan)
    return "".join(sections)


def _gap_remarks(gaps: Sequence[Gap]) -> str:
    lines = ["", f"What will not be as it was ({len(gaps)}):"]
    for gap in gaps:
        lines += ["", *_told(gap)]
    return remark("\n".join(lines))


def _label_remarks(plan: Plan) -> str:
    commands = list(_label_commands(plan))
    return remark("\n".join(["", "Labels of nodes:", *commands])) if commands else ""


def _label_commands(plan: Plan) -> Iterator[str]:
    for node, wanted in plan.nodes.items():
        if wanted.label:
            yield f"kubectl label node {shlex.quote(node)} {LABEL}={wanted.label}"


def _snippets(plan: Plan) -> Iterator[str]:
    """Settings that belong into files and namespaces of others."""
    parts: list[tuple[str, Sequence[Mapping[str, Any]]]] = [
        ("Kueue: into its Configuration (controller_manager_config.yaml), then restart it", [plan.limits.kueue]),
        ("Volcano: arguments of the scheduler's plugins, and capabilities of queues", [plan.limits.volcano]),
        ("KAI: into the ClusterRole of its scheduler and binder", [plan.limits.kai]),
        ("At most one share for each container: into each namespace", list(plan.limits.ranges)),
    ]
    for title, documents in parts:
        texts = [as_yaml(one) for one in documents if one]
        if texts:
            yield "\n" + remark("\n".join([f"{title}:", *"---\n".join(texts).rstrip().split("\n")]))


def to_tables(plan: Plan) -> str:
    """Write it for people."""
    parts = [_bridges(plan), _configs(plan), _nodes(plan), _quotas(plan), _gaps(plan.gaps)]
    return "\n".join(part for part in parts if part)


def _bridges(plan: Plan) -> str:
    rows: list[tuple[str, ...]] = [("BRIDGE", "RESOURCE", "MODE", "DEVICES")]
    for one in plan.bridges:
        spec = one["spec"]
        select = ", ".join(f"{name}: {_word(value)}" for name, value in spec["select"].items())
        rows.append((one["metadata"]["name"], spec["resourceName"], spec["mode"], select))
    return _table(rows)


def _word(value: object) -> str:
    if isinstance(value, list):
        return " or ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _configs(plan: Plan) -> str:
    rows: list[tuple[str, ...]] = [("NODE CONFIGURATION", "MIG", "SHARES", "ORDER")]
    for name, config in plan.node_configs["configs"].items():
        rule = config["gpus"][0]
        rows.append((name, rule["mig"], _shares(rule.get("sharing")), config.get("order", "-")))
    return _table(rows)


def _shares(sharing: Mapping[str, Any] | None) -> str:
    if sharing is None:
        return "-"
    return f"{sharing['replicas']}, renamed" if sharing["rename"] else str(sharing["replicas"])


def _nodes(plan: Plan) -> str:
    rows: list[tuple[str, ...]] = [("NODE", "DEVICE PLUGIN CONFIGURATION", f"LABEL {LABEL}")]
    rows += [(name, one.config or _UNKNOWN, one.label or "-") for name, one in plan.nodes.items()]
    return _table(rows)


_UNKNOWN: Final = "(does not start)"
"""Of a node whose label names an entry that there is not, say; `none` would read like a strategy for MIG."""


def _quotas(plan: Plan) -> str:
    rows: list[tuple[str, ...]] = [("QUOTA TO ADD", "NAMESPACE", "HARD")]
    for one in plan.limits.quotas:
        hard = ", ".join(f"{name}={value}" for name, value in one["spec"]["hard"].items())
        rows.append((one["metadata"]["name"], one["metadata"]["namespace"], hard))
    return _table(rows)


def _table(rows: list[tuple[str, ...]]) -> str:
    return aligned([[plain(cell) for cell in row] for row in rows]) if len(rows) > 1 else ""


def to_gaps(gaps: Sequence[Gap]) -> str:
    """Write gaps alone, for people; "" for none."""
    return _gaps(gaps) if gaps else ""


def _gaps(gaps: Sequence[Gap]) -> str:
    lines = [f"WHAT WILL NOT BE AS IT WAS ({len(gaps)})"]
    for gap in gaps:
        lines += ["", *map(plain, _told(gap))]
    return "\n".join(lines) + "\n"


def _told(gap: Gap) -> Iterator[str]:
    yield from _wrapped(f"[{gap.weight.value}] ", gap.what)
    yield from _wrapped("    why:     ", gap.why)
    yield from _wrapped("    to do:   ", gap.todo)
    touched = {
        "from": (gap.place,) if gap.place else (),
        "config": gap.configs,
        "nodes": gap.nodes,
        "pods": gap.users,
        "limits": gap.limits,
    }
    for word, names in touched.items():
        if names:
            yield from _wrapped(f"    {word + ':':<9}", some(names))


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH - 2, initial_indent=head, subsequent_indent=" " * (4 if head[0] == "[" else len(head))
    ) or [head]


def to_outcomes(outcomes: Sequence[Outcome], *, dry_run: bool) -> str:
    """Write what became of each object, one line for each."""
    mark = " (dry run)" if dry_run else ""
    return _table([("OBJECT", "RESULT"), *((one.object, f"{one.what}{mark}") for one in outcomes)])
