"""`kubectl dra plan`: what nodes need to move from the device plugin to DRA, and what will not be as it was."""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from controller.cli import live, report
from controller.cli.applying import apply
from controller.cli.files import CommandError, is_nothing, read_configuration, read_objects
from controller.cli.printing import tell, write
from controller.importing import (
    Cluster,
    ClusterError,
    Gap,
    Installation,
    Plan,
    Reading,
    Source,
    SourceError,
    plan_all,
    read,
    read_cluster,
    read_source,
)
from controller.importing.choice import FALLBACKS
from controller.importing.environment import KNOWN
from controller.importing.placement import place
from controller.importing.sources import ONLY
from dradriver.api import PROFILE_NAME
from dradriver.kube import Client, KubeError

NAME = "kubectl dra plan"


def main(arguments: Sequence[str]) -> int:
    """Do what the words say.

    Returns:
        the exit status: 0; 1 for mistakes in a configuration, or where something could not be read or was not written;
        2 for mistakes in the words; 3 where --apply was refused and nothing was written.
    """
    parser = _parser()
    values = parser.parse_args(arguments)
    if not values.device_plugin_config and not values.from_cluster:
        parser.error("give --device-plugin-config or --from-cluster, or both")
    if values.objects and values.from_cluster:
        parser.error("give --objects or --from-cluster, not both")
    _check_apply(parser, values)
    try:
        return _plan(values)
    except CommandError as error:
        tell([f"{NAME}: {error}"])
        return 1


def _add_applying(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--apply",
        action="store_true",
        help="write bridges, node configurations and labels of nodes into the cluster; never by force",
    )
    group.add_argument("--dry-run", action="store_true", help="let the API server check it, and store nothing")
    group.add_argument(
        "--accept-gaps",
        action="store_true",
        help="write although configurations have mistakes, or pods will break when their node moves",
    )
    group.add_argument("--with-quotas", action="store_true", help="write the additional quotas, too")


def _check_apply(parser: argparse.ArgumentParser, values: argparse.Namespace) -> None:
    if values.apply and not values.from_cluster:
        parser.error("--apply needs --from-cluster: what is written depends on the nodes that there are")
    if values.apply and values.output:
        parser.error("give --apply, which tells what became of each object, or -o")
    if not values.apply and (values.dry_run or values.accept_gaps or values.with_quotas):
        parser.error("--dry-run, --accept-gaps and --with-quotas belong to --apply")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=NAME,
        description=__doc__,
        epilog=_STATUSES,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device-plugin-config",
        metavar="FILE",
        help="the device plugin's ConfigMap, or one configuration of it; - for standard input",
    )
    parser.add_argument(
        "--from-cluster",
        action="store_true",
        help="read nodes, pods, quotas from the cluster, and the configuration if no file is given; changes nothing",
    )
    parser.add_argument(
        "--kubeconfig", metavar="FILE", type=Path, help="for --from-cluster; else KUBECONFIG and what kubectl looks for"
    )
    parser.add_argument(
        "--objects",
        metavar="FILE",
        action="append",
        default=[],
        help="nodes, pods, quotas, queues, classes, as `kubectl get ... -A -o json` writes them; may be given again",
    )
    parser.add_argument(
        "--env",
        metavar="NAME=VALUE",
        action="append",
        type=_variable,
        default=[],
        help="a variable of the device plugin's container, which goes before the file: MIG_STRATEGY=single",
    )
    parser.add_argument("--default-config", metavar="NAME", help="DEFAULT_CONFIG of the device plugin's side-car")
    parser.add_argument(
        "--fallbacks",
        metavar="NAMES",
        type=_fallbacks,
        help=f"FALLBACK_STRATEGIES of the side-car (default: {','.join(FALLBACKS)})",
    )
    parser.add_argument(
        "--profile",
        metavar="PROFILE",
        action="append",
        type=_profile,
        default=[],
        help="a MIG profile that nodes with the strategy mixed have; may be given again",
    )
    parser.add_argument("-o", "--output", choices=("table", "yaml"), help="for people, or for kubectl (default: table)")
    _add_applying(parser.add_argument_group("to change the cluster"))
    return parser


def _plan(values: argparse.Namespace) -> int:
    if not values.from_cluster:
        return _show(values, _from_files(values))
    with closing(_connected(values)) as client:
        given = _from_cluster(values, client)
        return _apply(values, given, client) if values.apply else _show(values, given)


def _show(values: argparse.Namespace, given: "_Given") -> int:
    mistakes = _told(given)
    plan = _made(values, given)
    write(report.to_yaml(plan, source=given.name) if values.output == "yaml" else report.to_tables(plan))
    return FAILED if mistakes else 0


def _apply(values: argparse.Namespace, given: "_Given", client: Client) -> int:
    mistakes = _told(given)
    plan = _made(values, given)
    if (mistakes or plan.breaking) and not values.accept_gaps:
        write(report.to_gaps(plan.breaking))
        tell([f"{NAME}: {_refusal(mistakes=mistakes, gaps=len(plan.breaking))}"])
        return REFUSED
    outcomes = []
    for outcome in apply(client, plan, dry_run=values.dry_run, quotas=values.with_quotas):
        outcomes.append(outcome)
        if outcome.told:
            tell([f"{NAME}: {outcome.object}: {outcome.told}"])
    write(report.to_outcomes(outcomes, dry_run=values.dry_run))
    return FAILED if mistakes or any(one.failed for one in outcomes) else 0


def _refusal(*, mistakes: bool, gaps: int) -> str:
    """Say why nothing was written, and the next step for just that."""
    causes, steps = [], []
    if mistakes:
        causes.append("configurations have mistakes, told above")
        steps.append("correct the mistakes")
    if gaps:
        causes.append(f"{gaps} of the gaps told as [breaks] would break pods of nodes that move")
        steps.append("do what is said at the gaps")
    return (
        f"nothing was written: {', and '.join(causes)}; {' and '.join(steps)}, or say --accept-gaps to write what is "
        "sound all the same"
    )


_STATUSES: Final = """Exit status:
  0  done
  1  a configuration has mistakes, a file or the cluster cannot be read, or --apply left something as it is
  2  the words make no sense
  3  --apply wrote nothing, since something would break: see --accept-gaps
"""

FAILED: Final = 1
"""Exit status: a configuration has mistakes, the cluster cannot be read, or something was left as it is."""
REFUSED: Final = 3
"""Exit status: nothing was written, since something would break and nobody has said that it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What the plan is made of.

    Attributes:
        name: of the sources, for people.
        sources: configurations, one for each installation.
        installations: the device plugins.
        cluster: nodes and all that; an empty one for no cluster in particular.
        gaps: that were found on the way.
    """

    name: str
    sources: tuple[Source, ...]
    installations: tuple[Installation, ...]
    cluster: Cluster
    gaps: tuple[Gap, ...] = ()


def _made(values: argparse.Namespace, given: _Given) -> Plan:
    return plan_all(given.installations, given.cluster, profiles=values.profile, found=given.gaps)


def _told(given: _Given) -> bool:
    """Tell the mistakes of configurations; returns whether there are any."""
    mistakes = []
    for source, one in zip(given.sources, given.installations, strict=True):
        name = source.name if len(given.sources) > 1 else given.name
        mistakes += [f"{name}: {mistake}" for mistake in (*source.problems, *_mistakes(source, one.readings))]
    tell(mistakes)
    return bool(mistakes)


def _from_files(values: argparse.Namespace) -> _Given:
    source = _source(values.device_plugin_config)
    return _Given(
        name=_named(values.device_plugin_config),
        sources=(source,),
        installations=(_installation(values, source, {}),),
        cluster=_cluster(values.objects) or Cluster(),
    )


def _installation(values: argparse.Namespace, source: Source, env: Mapping[str, str], **more: Any) -> Installation:
    """Put together one device plugin; what the words say goes before what was found."""
    env = {**env, **dict(values.env)}
    given = {"default": values.default_config, "fallbacks": values.fallbacks}
    readings = {key: read(text, env=env) for key, text in source.texts.items()}
    return Installation(
        # Without any text, the device plugin does not start on any of its nodes.
        readings=readings or {ONLY: Reading(problems=source.problems)},
        env=env,
        **more | {name: value for name, value in given.items() if value},
    )


def _connected(values: argparse.Namespace) -> Client:
    # The library that reads kubeconfigs takes long to load.
    from dradriver.kube.connection import connect  # noqa: PLC0415

    try:
        return connect(values.kubeconfig, user_agent="kubectl-dra")
    except KubeError as error:
        raise CommandError(str(error)) from error


def _from_cluster(values: argparse.Namespace, client: Client) -> _Given:
    found = live.look(client)
    tell(f"{NAME}: {one}" for one in found.left_out)
    cluster = read_cluster(found.objects, version=found.version)
    if values.device_plugin_config:
        source = _source(values.device_plugin_config)
        return _Given(
            name=_named(values.device_plugin_config),
            sources=(source,),
            installations=(_installation(values, source, {}),),
            cluster=cluster,
        )
    all_plugins = live.the_plugins(found)
    placed = place([plugin.candidate for plugin in all_plugins], cluster)
    pairs = list(zip(all_plugins, placed.nodes, strict=True))
    # Where nobody has a node, all are planned for none in particular.
    pairs = [(plugin, nodes) for plugin, nodes in pairs if nodes] or pairs
    plugins = [plugin for plugin, _ in pairs]
    sources = live.sources_of(client, plugins)
    installations = tuple(
        _installation(
            values,
            source,
            plugin.env,
            name=live.name_of(plugin, plugins),
            default=plugin.default,
            fallbacks=plugin.fallbacks,
            nodes=nodes,
        )
        for (plugin, nodes), source in zip(pairs, sources, strict=True)
    )
    name = ", ".join(dict.fromkeys(f"ConfigMap {source.name}" for source in sources if source.texts))
    return _Given(name=name, sources=sources, installations=installations, cluster=cluster, gaps=placed.gaps)


def _source(file: str) -> Source:
    try:
        return read_source(read_configuration(file))
    except SourceError as error:
        raise CommandError(f"{_named(file)}: {error}") from error


def _mistakes(source: Source, readings: Mapping[str, Reading]) -> list[str]:
    found = []
    for key, reading in readings.items():
        if key not in source.texts:
            continue
        place = source.place(key)
        found += [f"{place}: {problem}" if place else str(problem) for problem in reading.problems]
    return found


def _cluster(files: list[str]) -> Cluster | None:
    if not files:
        return None
    objects = [one for file in files for one in read_objects(file)]
    if all(is_nothing(one) for one in objects):
        raise CommandError(
            f"{', '.join(map(_named, files))}: there is no object in it, so nothing is known of the cluster; write it "
            "with `kubectl get nodes,pods -A -o json`, or leave --objects out"
        )
    try:
        return read_cluster(objects)
    except ClusterError as error:
        raise CommandError(f"{', '.join(map(_named, files))}: {error}") from error


def _named(file: str) -> str:
    return "standard input" if file == "-" else file


def _variable(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark or name not in KNOWN:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE with a name of {', '.join(KNOWN)}")
    return name, value


def _fallbacks(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if not set(found) <= set(FALLBACKS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(FALLBACKS)}")
    return found


def _profile(text: str) -> str:
    if not PROFILE_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a MIG profile such as 1g.10gb or 1g.10gb+me")
    return text
