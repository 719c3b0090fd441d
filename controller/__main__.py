"""`dradriver-controller`: the controller as a program."""

import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from dradriver.ending import Ending, leave
from dradriver.observe import early


def main() -> NoReturn:
    """Be the program: run the controller, then end this process, whatever hangs in it by then."""
    early.without_rich()
    leave(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run the controller until SIGTERM or SIGINT, or until leadership is lost; returns the exit status."""
    # structlog must not be imported before `without_rich`.
    from controller.flags import parse  # noqa: PLC0415
    from controller.manager import Manager, ManagerError  # noqa: PLC0415
    from dradriver.observe import logs  # noqa: PLC0415

    options = parse(arguments)
    logs.configure(log_format=options.log_format, level=options.log_level)
    ending = Ending()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.ask())
    try:
        return Manager(options, ending).run()
    except ManagerError as error:
        print(f"dradriver-controller: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    main()
