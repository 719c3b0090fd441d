"""The controller, which kills itself: `python -P killed_writer.py NTH [flags of the controller]`.

It ends with SIGKILL right before its NTH write of a class or a bridge, counted from 1, as if the power had been cut
between two writes.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from controller.__main__ import main
from dradriver.kube.transport import Answer, HttpTransport, Request

_WRITTEN = ("/deviceclasses", "/extendedresourcebridges")


def program(nth: int) -> Sequence[str]:
    """What Python is to run instead of the controller."""
    return ("-P", str(Path(__file__).resolve()), str(nth))


class Killer:
    """Sends requests as they are, and none from the nth write on."""

    def __init__(self, nth: int) -> None:
        self._left = nth
        self._send = HttpTransport.send

    def __call__(self, transport: HttpTransport, request: Request) -> Answer:
        """One request."""
        if _is_write(request):
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
        return self._send(transport, request)


def _is_write(request: Request) -> bool:
    is_ours = any(part in request.path for part in _WRITTEN)
    return is_ours and request.method != "GET" and "dryRun" not in request.query


if __name__ == "__main__":
    killer = Killer(int(sys.argv[1]))
    # An instance would not be bound to the transport.
    HttpTransport.send = lambda *arguments: killer(*arguments)  # type: ignore[method-assign] # noqa: PLW0108
    del sys.argv[1]
    main()
