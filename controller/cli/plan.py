"""`kubectl dra plan`: what nodes need to move from the device plugin to DRA, and what will not be as it was."""

import argparse
from collections.abc import Sequence

from controller.cli import report
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

NAME = "kubectl dra plan"


def main(arguments: Sequence[str]) -> int:
    """Do what the words say; returns the exit status: 1 for mistakes in a file, 2 for mistakes in the words."""
    values = _parser().parse_args(arguments)
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
        required=True,
        help="the device plugin's ConfigMap, or one configuration of it; - for standard input",
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
    parser.add_argument(
        "--default-config", metavar="NAME", default="", help="DEFAULT_CONFIG of the device plugin's side-car"
    )
    parser.add_argument(
        "--fallbacks",
        metavar="NAMES",
        type=_fallbacks,
        default=FALLBACKS,
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
    source = _source(values.device_plugin_config)
    env = dict(values.env)
    readings = {key: read(text, env=env) for key, text in source.texts.items()}
    mistakes = [*source.problems, *_mistakes(source, readings)]
    tell(f"{_named(values.device_plugin_config)}: {mistake}" for mistake in mistakes)
    plan = make_plan(
        readings,
        _cluster(values.objects),
        default=values.default_config,
        fallbacks=values.fallbacks,
        profiles=values.profile,
        env=env,
    )
    told = source.name or _named(values.device_plugin_config)
    write(report.to_yaml(plan, source=told) if values.output == "yaml" else report.to_tables(plan))
    return 1 if mistakes else 0


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
