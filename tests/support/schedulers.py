"""A kube-scheduler of one's own: it serves pods of its name only and disturbs nobody else's."""

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cluster import Cluster

_STOP_SECONDS = 10.0
_ENOUGH = 10_000
"""Requests a second: the usual limit of 50 is what one would measure otherwise."""


def scheduler_program(kubeconfig: Path) -> Path:
    """Find kube-scheduler beside the kubeconfig of a cluster that `hack/cluster` made, or on PATH.

    Raises:
        FileNotFoundError: it is at neither place.
    """
    beside = Cluster(kubeconfig.parent).programs / "kube-scheduler"
    if beside.exists():
        return beside
    found = shutil.which("kube-scheduler")
    if found is None:
        raise FileNotFoundError(f"there is no kube-scheduler in {beside.parent} or on PATH; put it there")
    return Path(found)


class Scheduler:
    """One process; `log` is what it tells.

    Args:
        kubeconfig: an administrator's.
        name: the `schedulerName` of its pods.
        folder: for its configuration and log.
    """

    def __init__(self, kubeconfig: Path, *, name: str, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._config = folder / f"{name}.json"
        self._config.write_text(json.dumps(_configuration(kubeconfig, name)))
        self._program = scheduler_program(kubeconfig)
        self._port = 0

    @contextmanager
    def running(self, *, niceness: int = 0) -> Iterator[int]:
        """Run it until the block ends; gives its process id. It schedules as soon as it has read everything."""
        self._port = _free_port()
        with self.log.open("ab") as log:
            process = subprocess.Popen(self._command(), stdout=log, stderr=log, start_new_session=True)
        try:
            if niceness:
                os.setpriority(os.PRIO_PROCESS, process.pid, niceness)
            yield process.pid
        finally:
            _end(process)

    def _command(self) -> list[str]:
        return [
            str(self._program),
            f"--config={self._config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
        ]

    def told(self) -> str:
        """The end of its log."""
        return self.log.read_text()[-4000:]


def _configuration(kubeconfig: Path, name: str) -> dict[str, object]:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": _ENOUGH, "burst": _ENOUGH},
        "podMaxBackoffSeconds": 1,
        "profiles": [{"schedulerName": name}],
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
