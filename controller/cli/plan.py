"""`kubectl dra plan`: what nodes need to move from the device plugin to DRA, and what will not be as it was."""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from controller.cli import live, report
from controller.cli.files import CommandError, read_configuration, read_objects
from controller.cli.printing import tell, write
from controller.importing import (
    Cluster,
    ClusterError,
    Reading,
    Source,
    SourceError,
    make_plan,
    read,
    read_cluster,
    read_source,
)
from controller.importing.choice import FALLBACKS
from controller.importing.environment import KNOWN
from dradriver.api import PROFILE_NAME
from dradriver.kube import KubeError

NAME = "kubectl dra plan"


def main(arguments: Sequence[str]) -> int:
    """Do what the words say; returns the exit status: 1 for mistakes in a file, 2 for mistakes in the words."""
    parser = _parser()
    values = parser.parse_args(arguments)
    if not values.device_plugin_config and not values.from_cluster:
        parser.error("give --device-plugin-config or --from-cluster, or both")
    if values.objects and values.from_cluster:
        parser.error("give --objects or --from-cluster, not both")
    try:
        return _plan(values)
    except CommandError as error:
        tell([f"{NAME}: {error}"])
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__, allow_abbrev=False)
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
    parser.add_argument(
        "-o", "--output", choices=("table", "yaml"), default="table", help="for people, or for kubectl (default: table)"
    )
    return parser


def _plan(values: argparse.Namespace) -> int:
    given = _from_cluster(values) if values.from_cluster else _from_files(values)
    readings = {key: read(text, env=given.env) for key, text in given.source.texts.items()}
    mistakes = [*given.source.problems, *_mistakes(given.source, readings)]
    tell(f"{given.name}: {mistake}" for mistake in mistakes)
    plan = make_plan(
        readings,
        given.cluster,
        default=given.default,
        fallbacks=given.fallbacks,
        profiles=values.profile,
        env=given.env,
    )
    write(report.to_yaml(plan, source=given.name) if values.output == "yaml" else report.to_tables(plan))
    return 1 if mistakes else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What the plan is made of.

    Attributes:
        name: of the source, for people.
        source: configurations.
        cluster: nodes and all that; None for no cluster in particular.
        env: of the device plugin's container.
        default: DEFAULT_CONFIG of the side-car.
        fallbacks: FALLBACK_STRATEGIES of the side-car.
    """

    name: str
    source: Source
    cluster: Cluster | None
    env: Mapping[str, str]
    default: str
    fallbacks: tuple[str, ...]


def _from_files(values: argparse.Namespace) -> _Given:
    return _Given(
        name=_named(values.device_plugin_config),
        source=_source(values.device_plugin_config),
        cluster=_cluster(values.objects),
        env=dict(values.env),
        default=values.default_config or "",
        fallbacks=values.fallbacks or FALLBACKS,
    )


def _from_cluster(values: argparse.Namespace) -> _Given:
    """Read the cluster; what the words say goes before what is found there."""
    # The library that reads kubeconfigs takes long to load.
    from dradriver.kube.connection import connect  # noqa: PLC0415

    try:
        client = connect(values.kubeconfig, user_agent="kubectl-dra")
    except KubeError as error:
        raise CommandError(str(error)) from error
    with closing(client):
        found = live.look(client)
        tell(f"{NAME}: {one}" for one in found.left_out)
        plugin = None if values.device_plugin_config else live.the_plugin(found)
        source = live.source_of(client, plugin) if plugin else _source(values.device_plugin_config)
    return _Given(
        name=f"ConfigMap {source.name}" if plugin else _named(values.device_plugin_config),
        source=source,
        cluster=read_cluster(found.objects),
        env={**(plugin.env if plugin else {}), **dict(values.env)},
        default=values.default_config or (plugin.default if plugin else ""),
        fallbacks=values.fallbacks or (plugin.fallbacks if plugin else FALLBACKS),
    )


def _source(file: str) -> Source:
    try:
        return read_source(read_configuration(file))
    except SourceError as error:
        raise CommandError(f"{_named(file)}: {error}") from error


def _mistakes(source: Source, readings: dict[str, Reading]) -> list[str]:
    found = []
    for key, reading in readings.items():
        place = source.place(key)
        found += [f"{place}: {problem}" if place else str(problem) for problem in reading.problems]
    return found


def _cluster(files: list[str]) -> Cluster | None:
    if not files:
        return None
    try:
        return read_cluster(one for file in files for one in read_objects(file))
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
