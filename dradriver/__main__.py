"""`dradriver`: the kubelet plugin as a program."""

import gc
import sys
from collections.abc import Sequence

from dradriver.flags import Options, parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the plugin until SIGTERM or SIGINT; returns the exit status."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    # What a start loads stays: to look for garbage in it takes time only. `Runtime.settle` ends this.
    gc.disable()
    try:
        return _run(options)
    finally:
        gc.enable()


def _run(options: Options) -> int:
    # A mistake in the flags is told before gRPC is loaded.
    from dradriver.daemon import Daemon, DaemonError  # noqa: PLC0415

    try:
        return Daemon(options).run()
    except DaemonError as error:
        print(f"dradriver: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
