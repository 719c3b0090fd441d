"""Cases of `kubectl dra plan` as files: what is given, and the whole of what is to come out.

`tests/data/device_plugin/NAME.yaml` says what is given, `NAME.plan.yaml` what comes out. After a change that is meant,
`PYTHONPATH=tests python -m support.golden` writes the latter anew; the difference is then for a person to read.
"""

from pathlib import Path
from typing import Any

import yaml
from doubles.deviceplugin import daemon_set, node, pod, quota

from controller.cli.printing import as_yaml
from controller.importing import Gap, Installation, Plan, plan_all, read, read_cluster
from controller.importing.choice import FALLBACKS
from controller.importing.plan import NodePlan
from controller.importing.sources import ONLY

FOLDER = Path(__file__).resolve().parents[1] / "data/device_plugin"
PLAIN = "plain"
"""The case with nothing special in it; of gaps that it has, too, other cases repeat the first sentence only."""


def names() -> list[str]:
    """All cases."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml") if not path.stem.endswith(".plan"))


def given(name: str) -> dict[str, Any]:
    """What a case starts from."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return found


def planned(case: dict[str, Any]) -> Plan:
    """Make the plan of a case."""
    texts = case["configs"] if "configs" in case else {ONLY: case["config"]}
    env = case.get("env", {})
    one = Installation(
        readings={key: read(text.encode(), env=env) for key, text in texts.items()},
        env=env,
        default=case.get("default", ""),
        fallbacks=tuple(case.get("fallbacks", FALLBACKS)),
    )
    version = tuple(case["version"]) if "version" in case else None
    return plan_all([one], read_cluster(_objects(case), version=version), profiles=case.get("profiles", ()))


def _objects(case: dict[str, Any]) -> list[Any]:
    makers = {"nodes": node, "pods": pod, "quotas": quota, "daemonSets": daemon_set}
    made = [maker(name, **more) for kind, maker in makers.items() for name, more in case.get(kind, {}).items()]
    return made + case.get("objects", [])


def shown(plan: Plan, usual: dict[str, Gap]) -> dict[str, Any]:
    """Show a plan as plain data, with nothing left out.

    Args:
        plan: all of it.
        usual: first sentence of a gap to the gap, as the plain case has it.
    """
    limits = plan.limits
    whole = {
        "problems": {key: [str(one) for one in found] for key, found in plan.problems.items()},
        "bridges": {one["spec"]["resourceName"]: _bridge(one) for one in plan.bridges},
        "nodeConfigs": dict(plan.node_configs["configs"]),
        "nodes": {name: _node(one) for name, one in plan.nodes.items()},
        "quotas": list(limits.quotas),
        "ranges": [one["spec"]["limits"] for one in limits.ranges],
        "kueue": limits.kueue.get("resources", {}).get("deviceClassMappings", []),
        "volcano": dict(limits.volcano),
        "gaps": [gap.what if usual.get(gap.what) == gap else _gap(gap) for gap in plan.gaps],
    }
    return {part: found for part, found in whole.items() if found}


def _node(one: NodePlan) -> dict[str, str]:
    return {"config": one.config, "label": one.label} if one.planned else {"config": one.config, "not": "planned"}


def _bridge(one: Any) -> dict[str, Any]:
    return {"name": one["metadata"]["name"], **one["spec"]}


def _gap(gap: Gap) -> dict[str, Any]:
    parts = {"weight": gap.weight.value, "what": gap.what, "why": gap.why, "todo": gap.todo, "place": gap.place}
    touched = {name: list(getattr(gap, name)) for name in ("configs", "nodes", "users", "limits")}
    return {name: found for name, found in (parts | touched).items() if found}


def usual() -> dict[str, Gap]:
    """Gaps of the plain case."""
    return {gap.what: gap for gap in planned(given(PLAIN)).gaps}


def write() -> None:
    """Write down what comes out of every case."""
    known = usual()
    for name in names():
        whole = shown(planned(given(name)), {} if name == PLAIN else known)
        (FOLDER / f"{name}.plan.yaml").write_text(as_yaml(whole))


if __name__ == "__main__":
    write()
