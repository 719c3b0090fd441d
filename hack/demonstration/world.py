"""What the demo runs on: the cluster, the simulated GPUs, the plugin process."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
NODE = "node-a"
MACHINE = "8xh100-80gb"
NAMESPACE = "dradriver-demo"
SERVICE_ACCOUNT = "dradriver-kubelet-plugin"


class DemoError(Exception):
    """What is not as it should be: one sentence."""


def wait_for(what: str, condition: Callable[[], Any], *, seconds: float = 60.0) -> Any:
    """Wait until a condition gives something true, and return that.

    Raises:
        DemoError: it does not in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise DemoError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.1)


@dataclass(frozen=True)
class World:
    """Folders and programs of one demo."""

    folder: Path

    @property
    def cluster(self) -> Path:
        """State of the cluster."""
        return self.folder / "cluster"

    @property
    def gpus(self) -> Path:
        """State of the simulated node."""
        return self.folder / "gpus"

    # --- programs --------------------------------------------------------------------------------

    def run(self, command: Sequence[str], **more: Any) -> str:
        """Run a program and return what it prints.

        Raises:
            DemoError: it fails; with what it said.
        """
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment(), **more)
        if done.returncode:
            raise DemoError(f"`{' '.join(command)}` failed:\n{done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def environment(self) -> dict[str, str]:
        """The environment a developer gets from `hack/cluster env`."""
        output = subprocess.run(
            [REPOSITORY / "hack/cluster", "env", "--dir", self.cluster, "--node", NODE],
            capture_output=True,
            text=True,
            check=False,
        )
        words = (word for line in output.stdout.splitlines() for word in shlex.split(line) if "=" in word)
        return {**os.environ, **dict(word.split("=", 1) for word in words)}

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as administrator."""
        return self.run(["kubectl", *arguments], input=stdin)

    def get(self, *arguments: str) -> dict[str, Any]:
        """Read objects with kubectl."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def simulation(self, *arguments: str) -> str:
        """Run a verb of the simulation's command line."""
        return self.run([sys.executable, "-m", "dradriver.simulation", "--state", str(self.gpus), *arguments])

    def capability_minors(self) -> dict[str, int]:
        """Read the driver's list of capability minors: `gpu0/gi7/ci0/access` to the N of nvidia-capN."""
        lines = (self.gpus / "root/proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
        return {name: int(minor) for name, minor in (line.split() for line in lines)}

    def show_gpus(self) -> list[dict[str, Any]]:
        """Read the simulated GPUs."""
        gpus: list[dict[str, Any]] = json.loads(self.simulation("show"))["gpus"]
        return gpus

    # --- cluster ---------------------------------------------------------------------------------

    def cluster_up(self) -> None:
        """Boot the cluster, or find it running; shows its own progress.

        Raises:
            DemoError: it does not come up; the reason has been printed.
        """
        command = [REPOSITORY / "hack/cluster", "up", "--dir", self.cluster]
        if subprocess.run(command, check=False).returncode:
            raise DemoError("the cluster does not come up, see above")

    def cluster_down(self) -> None:
        """End the cluster.

        Raises:
            DemoError: something of it is left.
        """
        if subprocess.run([REPOSITORY / "hack/cluster", "down", "--dir", self.cluster], check=False).returncode:
            raise DemoError("the cluster does not end, see above")

    # --- plugin ----------------------------------------------------------------------------------

    def plugin_kubeconfig(self) -> Path:
        """Write a kubeconfig with the rights the plugin has in production: those of its service account."""
        config = json.loads(self.kubectl("config", "view", "--raw", "-o", "json"))
        token = self.kubectl("create", "token", SERVICE_ACCOUNT, "-n", "dradriver", "--duration", "24h").strip()
        for user in config["users"]:
            user["user"] = {"token": token}
        path = self.folder / "plugin.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))
        return path

    def start_plugin(self) -> str:
        """Start the plugin and wait until it is ready; returns its HTTP endpoint.

        Raises:
            DemoError: it ends, or does not become ready; with the end of its log.
        """
        self.stop_plugin()
        log = self.folder / "plugin.log"
        # Port 0: any free one, which the plugin then names in its log.
        command = [sys.executable, "-m", "dradriver", "--mig", "dynamic", "--http-endpoint", "127.0.0.1:0"]
        command += ["--simulation", str(self.gpus), "--kubeconfig", str(self.plugin_kubeconfig())]
        with log.open("w") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, env=self.environment(), start_new_session=True, cwd=REPOSITORY
            )
        (self.folder / "plugin.pid").write_text(f"{process.pid} {_start_time(process.pid)}")
        try:
            wait_for("the plugin to be ready", lambda: process.poll() is not None or _is_ready(log), seconds=30)
        except DemoError as error:
            raise DemoError(f"{error}; its log ends with:\n{_tail(log)}") from error
        if process.poll() is not None:
            raise DemoError(f"the plugin ended with status {process.returncode}; its log ends with:\n{_tail(log)}")
        return _endpoint(log)

    def stop_plugin(self) -> None:
        """Stop the plugin of an earlier demo, if it still runs."""
        path = self.folder / "plugin.pid"
        if not path.exists():
            return
        pid, started = path.read_text().split()
        if _start_time(int(pid)) == started:
            os.kill(int(pid), signal.SIGTERM)
            wait_for("the plugin to stop", lambda: _start_time(int(pid)) != started, seconds=30)
        path.unlink()


def _start_time(pid: int) -> str:
    """Tell when a process started, which with its pid names it for ever; empty where there is none (or a dead one)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _endpoint(log: Path) -> str:
    """Find in the plugin's log where it serves HTTP; empty if it does not yet."""
    lines = (json.loads(line) for line in log.read_text().splitlines() if line.endswith("}"))
    return next((str(line["endpoint"]) for line in lines if "endpoint" in line), "")


def _is_ready(log: Path) -> bool:
    endpoint = _endpoint(log)
    try:
        with urllib.request.urlopen(f"http://{endpoint}/readyz", timeout=2) as answer:
            return bool(endpoint) and bool(answer.status == 200)  # noqa: PLR2004 (HTTP OK)
    except OSError:
        return False


def _tail(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-10:])
