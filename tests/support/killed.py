"""The plugin, which kills itself: `python -P killed.py BOUNDARY NTH [flags of the plugin]`.

It ends with SIGKILL when it passes the boundary for the NTH time, counted from 1, as if the power of the process had
been cut between two instructions there.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from dradriver.__main__ import main
from dradriver.prepare.boundaries import Boundary, watch


def program(boundary: Boundary, nth: int = 1) -> Sequence[str]:
    """What Python is to run instead of the plugin."""
    return ("-P", str(Path(__file__).resolve()), boundary.value, str(nth))


class Killer:
    """Counts how often a boundary is passed, and kills this process at one of these times."""

    def __init__(self, boundary: Boundary, nth: int) -> None:
        self._boundary = boundary
        self._left = nth
        self._lock = threading.Lock()

    def __call__(self, passed: Boundary) -> None:
        if passed is self._boundary:
            with self._lock:
                self._left -= 1
                if not self._left:
                    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    watch(Killer(Boundary(sys.argv[1]), int(sys.argv[2])))
    del sys.argv[1:3]
    main()
