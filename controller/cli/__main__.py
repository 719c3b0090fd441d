"""`kubectl-dra` as a program."""

import sys
from typing import NoReturn

from controller.cli import run


def main() -> NoReturn:
    """Be the program."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
