"""Command line of the simulated node: `python -m dradriver.simulation --state DIR VERB ...`.

Exit codes: 0 done; 1 the hardware refuses; 2 the request itself cannot be used. Either failure is one sentence on
stderr.
"""

import os
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from dradriver.simulation import commands, hardware
from dradriver.simulation.codes import Refused
from dradriver.simulation.errors import SimulationError
from dradriver.simulation.models import MODELS
from dradriver.simulation.store import Store

REFUSED = 1
BAD_INPUT = 2


class _Parser(ArgumentParser):
    """Says what is wrong in one sentence, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}\n")


def _number(text: str, *, low: int = 0, high: int = 0xFFFFFFFF) -> int:
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
    return int(text)


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1e6:  # noqa: PLR2004  # A quarter of an hour; also refuses NaN.
        raise ArgumentTypeError(f"{text!r} is not a number of milliseconds from 0 to 1000000")
    return value


class _Verbs:
    """Adds verbs that all take --state."""

    def __init__(self, parser: ArgumentParser) -> None:
        """Make room for verbs in `parser`."""
        self._verbs = parser.add_subparsers(
            title="verbs", dest="verb", required=True, metavar="VERB", parser_class=_Parser
        )

    def add(self, name: str, run: commands.Verb | None, text: str) -> ArgumentParser:
        """Add a verb."""
        parser = self._verbs.add_parser(name, help=text, description=text)
        parser.add_argument("--state", type=Path, default=SUPPRESS, metavar="DIR", help="folder of the node")
        if run:
            parser.set_defaults(run=run)
        return parser


def parser() -> ArgumentParser:
    """Build the parser."""
    top = _Parser(
        prog="python -m dradriver.simulation",
        description=f"A simulated GPU node.\n\nGPUs: {', '.join(MODELS)}",
        formatter_class=RawDescriptionHelpFormatter,
    )
    top.add_argument("--state", type=Path, default=SUPPRESS, metavar="DIR", help="folder of the node")
    verbs = _Verbs(top)
    _add_node(verbs)
    _add_errors(verbs)
    _add_faults(verbs)
    _add_mig(verbs)
    return top


def _gpu(parser: ArgumentParser, default: int | None = 0) -> None:
    text = "index of the GPU (default 0)" if default == 0 else "index of the GPU (default: any)"
    parser.add_argument("--gpu", type=_number, default=default, metavar="I", help=text)


def _add_node(verbs: _Verbs) -> None:
    create = verbs.add("create", commands.create, "make a node")
    create.add_argument("machine", help="<count>x<gpu>, such as 8xh100-80gb or 4xa30,2xl4, or a YAML file")
    create.add_argument("--mig", choices=("on", "off"), default="off", help="MIG mode of GPUs that have it")
    create.add_argument("--driver", metavar="VERSION", help="driver version")
    create.add_argument("--force", action="store_true", help="replace a node that is there")
    verbs.add("show", commands.show_node, "print the node as JSON")
    verbs.add("reboot", commands.reboot, "reboot the machine: new boot id, instances and processes gone")
    reload = verbs.add("driver-reload", commands.driver_reload, "load the driver anew: instances gone")
    reload.add_argument("--version", help="another version")
    _gpu(verbs.add("reset", commands.reset, "reset GPUs: pending MIG mode and remappings in force"), None)
    _add_slots(verbs)


def _add_slots(verbs: _Verbs) -> None:
    unplug = verbs.add("unplug", commands.unplug, "take GPUs off the PCI bus, whatever uses them")
    plug = verbs.add("plug", commands.plug, "put unplugged GPUs back; NVML sees them when it is initialised anew")
    for verb in (unplug, plug):
        verb.add_argument("--gpu", type=_number, nargs="+", required=True, metavar="I", help="indices of the GPUs")
    plug.add_argument("--replace", action="store_true", help="put other GPUs there: same slots, new UUIDs")


def _add_errors(verbs: _Verbs) -> None:
    xid = verbs.add("xid", commands.xid, "report an Xid")
    xid.add_argument("number", type=partial(_number, low=1), help="the Xid; 999 = unknown")
    xid.add_argument("--gi", type=_number, metavar="ID", help="GPU instance at fault (default: whole GPU)")
    xid.add_argument("--ci", type=_number, metavar="ID", help="compute instance at fault")
    xid.add_argument("--recovery", choices=tuple(hardware.RECOVERY), help="new recovery action (default: by Xid)")
    _times(xid)
    _gpu(xid)
    event = verbs.add("event", commands.event, "report an event of any type; nothing else changes")
    event.add_argument(
        "type", choices=tuple(hardware.EVENT_TYPES), metavar="TYPE", help=", ".join(hardware.EVENT_TYPES)
    )
    event.add_argument("--data", type=_number, default=0, metavar="N", help="what comes with it (default 0)")
    _times(event)
    _gpu(event)
    _gpu(verbs.add("lose", commands.lose, "let a GPU fall off the bus (with Xid 79)"))
    _gpu(verbs.add("recover", commands.recover, "bring GPUs back as if nothing had happened"), None)
    remap = verbs.add("remap", commands.remap, "set a GPU's remapped rows")
    for name in ("correctable", "uncorrectable"):
        remap.add_argument(f"--{name}", type=_number, metavar="N", help=f"rows remapped for {name} errors")
    for name in ("pending", "failure"):
        remap.add_argument(
            f"--{name}", nargs="?", const="yes", choices=("yes", "no"), help=f"the {name} flag (default yes)"
        )
    _gpu(remap)
    _add_readings(verbs)
    minor = verbs.add("minor", commands.minor, "change a GPU's device minor")
    minor.add_argument("minor", type=_number)
    _gpu(minor)


def _add_readings(verbs: _Verbs) -> None:
    fabric = verbs.add("fabric", commands.fabric, "set how a GPU is in its NVLink fabric")
    # --state is the node's folder.
    fabric.add_argument("fabric", choices=tuple(hardware.FABRIC), help="none = it is in none")
    _gpu(fabric)
    sram = verbs.add("sram", commands.sram, "set whether a GPU met more errors in SRAM than allowed")
    sram.add_argument("--exceeded", choices=("on", "off"), required=True)
    _gpu(sram)
    retired = verbs.add(
        "retired-pending", commands.retired_pending, "set whether pages wait to be retired (pre-Ampere)"
    )
    retired.add_argument("pending", choices=("on", "off"))
    _gpu(retired)


def _times(parser: ArgumentParser) -> None:
    parser.add_argument("--times", type=partial(_number, low=1), default=1, metavar="N", help="how often (default 1)")


def _add_faults(verbs: _Verbs) -> None:
    fail = verbs.add("fail", commands.fail, "let an NVML call fail")
    fail.add_argument("call", metavar="CALL", help="its C or Python name; with --clear also: all")
    fail.add_argument("--error", metavar="NAME", help="what it returns, such as IN_USE")
    fail.add_argument("--times", type=partial(_number, low=1), metavar="N", help="so often (default: always)")
    fail.add_argument("--after", type=_number, default=0, metavar="N", help="let N calls pass first")
    fail.add_argument("--late", action="store_true", help="the call takes effect before it fails")
    fail.add_argument("--clear", action="store_true", help="let it work again")
    _gpu(fail, None)
    latency = verbs.add("latency", commands.latency, "let an NVML call take time; 0 takes it back")
    latency.add_argument("call", metavar="CALL", help="its C or Python name")
    latency.add_argument("milliseconds", metavar="MS", type=_milliseconds)
    _gpu(latency, None)


def _add_mig(verbs: _Verbs) -> None:
    mig = verbs.add("mig", commands.mig, "switch MIG mode")
    mig.add_argument("mode", choices=("on", "off"))
    _gpu(mig)
    instance = _Verbs(verbs.add("instance", None, "make or destroy MIG instances as an administrator"))
    create = instance.add("create", commands.instance_create, "make a GPU instance with a compute instance")
    create.add_argument("profile", help="name or id, such as 1g.10gb")
    create.add_argument("--start", type=_number, metavar="N", help="first memory slice (default: any)")
    create.add_argument("--bare", action="store_true", help="without a compute instance")
    _gpu(create)
    destroy = instance.add("destroy", commands.instance_destroy, "destroy an instance")
    which = destroy.add_mutually_exclusive_group(required=True)
    which.add_argument("--gi", type=_number, metavar="ID", help="by GPU instance id")
    which.add_argument("--uuid", help="by the UUID of its MIG device")
    which.add_argument("--all", action="store_true", help="every instance of the GPU")
    _gpu(destroy)
    process = _Verbs(verbs.add("process", None, "processes that use GPUs"))
    _add_process(process.add("add", commands.process_add, "let a process use a GPU or MIG device"))
    remove = process.add("remove", commands.process_remove, "let a process stop")
    remove.add_argument("pid", type=_number)
    _gpu(remove)


def _add_process(add: ArgumentParser) -> None:
    add.add_argument("pid", type=_number)
    add.add_argument("--uuid", help="the MIG device it uses")
    add.add_argument("--gi", type=_number, metavar="ID", help="or its GPU instance id")
    add.add_argument("--ci", type=_number, metavar="ID", help="and compute instance id (default 0)")
    add.add_argument("--memory", type=_number, default=0, metavar="MIB", help="memory it uses (default 0)")
    _gpu(add)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and give the exit code."""
    top = parser()
    arguments = top.parse_args(argv)
    if "state" not in arguments:
        top.error("--state DIR is missing: name the folder of the node")
    run: Callable[..., str] = arguments.run
    try:
        print(run(Store(arguments.state), arguments), flush=True)
    except BrokenPipeError:
        # Who reads us has seen enough. Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Refused as refusal:
        return _say(f"refused: {refusal}", REFUSED)
    except SimulationError as error:
        return _say(str(error), BAD_INPUT)
    except OSError as error:
        return _say(f"{error.filename or arguments.state}: {error.strerror}", BAD_INPUT)
    return 0


def _say(sentence: str, code: int) -> int:
    print(f"simulation: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
