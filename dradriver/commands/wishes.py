"""What a node is to offer, as it is told on the command line of `slices` and `nodes template`.

Flags that the plugin has too mean the same here and come from the same variables, so that within the plugin's container
they need not be repeated.
"""

import argparse
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

from dradriver.gpu.policy import Detail, GpuRule, OfferPolicy, Order
from dradriver.gpu.profiles import MigOffer, ProfileChoice, parse_choice
from dradriver.resource import Layout

_Word = TypeVar("_Word", bound=StrEnum)

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NODE_NAME: Final = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")


class CommandError(Exception):
    """Why it cannot be done: one sentence for the person who asked, and the exit status."""

    status = 1


class UsageError(CommandError):
    """What was asked for makes no sense."""

    status = 2


class Form(StrEnum):
    """How slices are printed."""

    YAML = "yaml"
    JSON = "json"
    TABLE = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What is to be printed, and how.

    Attributes:
        node_name: of the slices.
        policy: what is offered of the GPUs.
        layout: where counter sets lie.
        form: see Form.
    """

    node_name: str
    policy: OfferPolicy
    layout: Layout
    form: Form


def add_flags(parser: argparse.ArgumentParser, *, node_name: str) -> None:
    """Add the flags; without one for it the node has this name."""
    add = parser.add_argument
    add("-o", "--output", type=_word(Form), default=Form.YAML, metavar="FORM", help="yaml (default), json or table")
    add("--node-name", type=_node_name, default=node_name, help=f"name of the node (default: {node_name})")
    add("--mig", type=_word(MigOffer), default=variable("MIG", "static"), help="static (default), dynamic or off [MIG]")
    add(
        "--profiles",
        type=_profiles,
        default=variable("PROFILES", "standard"),
        help="MIG profiles that `dynamic` offers: standard (default), all, or names such as 1g.10gb,3g.40gb [PROFILES]",
    )
    add(
        "--order",
        type=_word(Order),
        default=Order.PACKED,
        help="packed (default), spread or nvidia: in which order the scheduler tries the devices",
    )
    add("--publish", type=_word(Detail), default=Detail.FULL, help="full (default) or lean: what devices say of them")
    add(
        "--node-config",
        type=Path,
        default=variable("NODE_CONFIG") or None,
        metavar="FILE",
        help="file of node configurations; what it leaves out is as the other flags say [NODE_CONFIG]",
    )
    add(
        "--config",
        default="",
        metavar="NAME",
        help="which of its configurations holds (default: the one that holds for nodes without a label)",
    )
    add(
        "--layout",
        type=_word(Layout),
        default=Layout.APART,
        help="apart (default): counter sets in slices of their own, for Kubernetes 1.35 and newer; "
        "together: in the slices of their devices, for 1.34",
    )


def read(values: argparse.Namespace) -> Wishes:
    """Take the values of the flags.

    Raises:
        CommandError: the file of node configurations has mistakes, or has no such configuration.
    """
    flags = OfferPolicy(
        default=GpuRule(mig=values.mig, profiles=values.profiles), order=values.order, detail=values.publish
    )
    return Wishes(
        node_name=values.node_name,
        policy=_configured(values.node_config, values.config, flags),
        layout=values.layout,
        form=values.output,
    )


def variable(name: str, default: str = "") -> str:
    """Read an environment variable; one that is empty counts as missing."""
    return os.environ.get(name) or default


def _configured(path: Path | None, name: str, flags: OfferPolicy) -> OfferPolicy:
    if path is None:
        if name:
            raise UsageError(f"--config {name} is looked up in a file: name it with --node-config FILE")
        return flags
    # Takes pydantic, a quarter of a second.
    from dradriver.nodeconfig import file  # noqa: PLC0415
    from dradriver.nodeconfig.choice import DEFAULT_NAME  # noqa: PLC0415
    from dradriver.nodeconfig.policy import make_policy  # noqa: PLC0415

    try:
        decoded = file.read(path)
    except OSError as error:
        raise CommandError(f"{path}: it cannot be read: {error.strerror}") from error
    wanted = name or DEFAULT_NAME
    problems = decoded.problems_of(wanted)
    if problems:
        raise CommandError("\n".join(f"{path}: {problem}" for problem in problems))
    if wanted in decoded.configs:
        return make_policy(decoded.configs[wanted], flags)
    if name:
        there = ", ".join(sorted([*decoded.configs, *decoded.broken])) or "none"
        raise UsageError(f"{path} has no configuration {name!r}; there is {there}")
    return flags


# --- single values --------------------------------------------------------------------------------


def _word(kind: type[_Word]) -> Callable[[str], _Word]:
    """Check a word; unlike argparse's own choices this also looks at what comes from the environment."""

    def check(text: str) -> _Word:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(kind)}") from None

    return check


def _profiles(text: str) -> ProfileChoice:
    try:
        return parse_choice(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _node_name(text: str) -> str:
    if not _NODE_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a Kubernetes node")
    return text
