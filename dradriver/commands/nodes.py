"""`dradriver nodes`: what nodes would publish that do not exist (yet)."""

import argparse
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from dradriver.commands import printing
from dradriver.commands import wishes as told
from dradriver.commands.published import empty_picture, publish, show
from dradriver.commands.wishes import CommandError, UsageError
from dradriver.gpu.model import Gpu, MigMode
from dradriver.gpu.names import number_gpus
from dradriver.gpu.policy import OfferPolicy
from dradriver.gpu.profiles import MigOffer
from dradriver.nvml import SimulationUnusable
from dradriver.nvml.machines import known_gpus, read_machine
from dradriver.resource.wire import quantity

NAME: Final = "dradriver nodes"


def main(arguments: Sequence[str]) -> int:
    """Do what the words say; returns the exit status: 1 if a GPU cannot be published, 2 for mistakes in the words."""
    values = _parser().parse_args(arguments)
    try:
        status: int = values.do(values)
    except CommandError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return error.status
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__, allow_abbrev=False)
    verbs = parser.add_subparsers(required=True, metavar="template | machines")
    template = verbs.add_parser(
        "template",
        help="print the slices of a node with such GPUs",
        allow_abbrev=False,
        epilog=_names(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    template.add_argument("machine", metavar="MACHINE", help="8xh100-80gb, 4xa30,2xl4, or a file (docs/simulation.md)")
    template.add_argument("--driver-version", metavar="VERSION", help="of the NVIDIA driver on such nodes")
    told.add_flags(template, node_name="template")
    template.set_defaults(do=_template)
    machines = verbs.add_parser("machines", help="list the GPUs that MACHINE may name", allow_abbrev=False)
    machines.set_defaults(do=_machines)
    return parser


def _names() -> str:
    text = f"GPUs: {', '.join(gpu.name for gpu in known_gpus())}"
    return textwrap.fill(text, break_on_hyphens=False)


def _template(values: argparse.Namespace) -> int:
    wishes = told.read(values)
    try:
        found = read_machine(values.machine, driver=values.driver_version)
    except SimulationUnusable as error:
        raise UsageError(str(error)) from error
    gpus = tuple(as_template(found, wishes.policy))
    picture = empty_picture(wishes, gpus, number_gpus(gpus, {}))
    return show(publish(picture, wishes), wishes, command=f"{NAME} template")


def as_template(gpus: Iterable[Gpu], policy: OfferPolicy) -> Iterator[Gpu]:
    """Give GPUs plain UUIDs that are the same each time, and the MIG mode that is needed for what is offered of them.

    Args:
        gpus: of one machine, in the order of their bus ids.
        policy: what is offered.
    """
    for index, gpu in enumerate(gpus):
        named = replace(gpu, uuid=f"GPU-00000000-0000-0000-0000-{index:012d}")
        on = policy.rule(named, index).mig is MigOffer.DYNAMIC
        yield named if gpu.mig_mode is None else replace(named, mig_mode=MigMode(current=on, pending=on))


def _machines(_values: argparse.Namespace) -> int:
    rows = [("NAME", "PRODUCT", "MEMORY", "MIG")]
    for gpu in known_gpus():
        memory = "-" if gpu.memory_mib is None else quantity(gpu.memory_mib << 20)
        rows.append((gpu.name, gpu.product_name, memory, "yes" if gpu.mig_capable else "no"))
    printing.write(printing.aligned(rows))
    return 0
