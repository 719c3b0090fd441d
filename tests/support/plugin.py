"""The plugin as a process of its own."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.waiting import wait_for

_END_SECONDS = 20.0
PROGRAM = ("-m", "dradriver")
"""What Python is to run."""


class Plugin:
    """`python -m dradriver`, with its log and its web pages.

    Args:
        environment: added to ours.
        arguments: of the command line; a free port for the web pages is added.
        log: file that everything it says is appended to.
    """

    def __init__(self, *, environment: Mapping[str, str], arguments: Sequence[str], log: Path) -> None:
        self._environment = {**os.environ, **environment}
        self._arguments = list(arguments)
        self._log = log
        self._from = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, arguments: Sequence[str] | None = None, *, program: Sequence[str] = PROGRAM) -> None:
        """Start it, with other arguments from now on if some are given; `program` is for this start only."""
        assert not self.running, "the plugin runs already"
        self._arguments = self._arguments if arguments is None else list(arguments)
        command = [sys.executable, *program, "--http-endpoint", "127.0.0.1:0", *self._arguments]
        self._from = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C is for us, who need it until the pods are gone.
            self._process = subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self._process is not None
        return self._process.pid

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; gives the exit status, negative for a signal."""
        assert self._process is not None
        self._process.send_signal(number)
        try:
            return self._process.wait(_END_SECONDS)
        finally:
            self._process.kill()

    def send(self, number: signal.Signals) -> None:
        """Send a signal; its end can be waited for later."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait_end(self) -> int:
        """Wait until it ends by itself; gives the exit status, negative for a signal."""
        process = self._process
        assert process is not None
        wait_for(lambda: process.poll() is not None, "the plugin to end", seconds=60, state=self.log)
        return process.returncode

    def log(self) -> str:
        """All it said, of every start."""
        return self._log.read_text() if self._log.exists() else ""

    def entries(self) -> list[dict[str, Any]]:
        """The log lines since the last start, those that are JSON."""
        said = self._log.read_bytes()[self._from :].decode()
        return [json.loads(line) for line in said.splitlines() if line.startswith("{") and line.endswith("}")]

    def wait_ready(self) -> None:
        """Wait until it is registered and has published.

        Raises:
            AssertionError: it ended, or does not get there.
        """
        wait_for(self._is_ready, "the plugin to be ready", seconds=60, state=lambda: self.page("/readyz"))

    def _is_ready(self) -> bool:
        assert self.running, f"the plugin ended:\n{self.log()}"
        return self.page("/readyz").startswith("ready")

    def page(self, path: str) -> str:
        """One of its web pages, whatever its status; empty while it does not serve yet."""
        # The last one: after an upgrade of the driver the process starts anew by itself.
        endpoint = next((entry["endpoint"] for entry in reversed(self.entries()) if "endpoint" in entry), None)
        if endpoint is None:
            return ""
        try:
            with urllib.request.urlopen(f"http://{endpoint}{path}", timeout=10) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()
        except OSError:
            return ""
