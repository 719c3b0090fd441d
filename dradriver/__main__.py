"""`dradriver`: the kubelet plugin as a program."""

import gc
import sys
from collections.abc import Sequence
from typing import NoReturn

from dradriver.ending import leave
from dradriver.flags import Options, parse
from dradriver.observe import early


def main() -> NoReturn:
    """Be the program: run the plugin, then end this process, whatever hangs in it by then."""
    early.hold_back()
    early.without_rich()
    try:
        status = run(sys.argv[1:])
    except Exception:  # noqa: BLE001 (the last seam: threads that serve would keep the process there for good)
        early.tell()
        sys.excepthook(*sys.exc_info())
        status = 1
    leave(status)


def run(arguments: Sequence[str]) -> int:
    """Run the plugin until SIGTERM or SIGINT, or do what a first word without a dash says; returns the exit status."""
    if arguments and not arguments[0].startswith("-"):
        return _command(arguments)
    options = parse(arguments)
    # What a start loads stays: to look for garbage in it takes time only. `Runtime.settle` ends this.
    gc.disable()
    try:
        return _run(options)
    finally:
        gc.enable()


def _command(arguments: Sequence[str]) -> int:
    from dradriver.commands import run as command  # noqa: PLC0415 (nothing that the plugin needs)

    return command(arguments)


def _run(options: Options) -> int:
    # A mistake in the flags is told before gRPC is loaded.
    from dradriver.daemon import Daemon, DaemonError  # noqa: PLC0415

    try:
        return Daemon(options).run()
    except DaemonError as error:
        early.tell()
        print(f"dradriver: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    main()
