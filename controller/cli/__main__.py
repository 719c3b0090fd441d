"""`kubectl-dra` as a program."""

import sys
from typing import Final, NoReturn

from controller.cli import run

_INTERRUPTED: Final = 130
"""As shells tell it: 128 and the number of the signal."""


def main() -> NoReturn:
    """Be the program; who interrupts it knows why it ends."""
    try:
        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
