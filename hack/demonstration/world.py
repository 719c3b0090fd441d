"""What the demo runs on: the cluster, the simulated GPUs, the plugin process."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from localcluster.common import write

from demonstration import identity

REPOSITORY = Path(__file__).resolve().parents[2]
NODE = "node-a"
MACHINE = "8xh100-80gb"
NAMESPACE = "dradriver-demo"
# What the demo makes in its folder, apart from the marker that tells that the folder is the demo's.
_MADE = (
    "cluster",
    "gpus",
    "node-config.yaml",
    *(f"{program}.{kind}" for program in ("plugin", "controller") for kind in ("kubeconfig", "log", "pid")),
)
_CONFIGS = """\
# Label the node dradriver.dev/config=small (or whole) to choose one; without the label the plugin's flags hold.
apiVersion: dradriver.dev/v1alpha1
kind: NodeConfigs
configs:
  small:
    gpus:
      - {mig: dynamic, profiles: [1g.10gb, 2g.20gb]}
    publish: lean
  whole:
    gpus:
      - mig: off
"""


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
    def node_config(self) -> Path:
        """The file of node configurations that the plugin follows."""
        return self.folder / "node-config.yaml"

    @property
    def gpus(self) -> Path:
        """State of the simulated node."""
        return self.folder / "gpus"

    @property
    def marker(self) -> Path:
        """Tells that the folder is the demo's, so that what lies in it may be replaced and removed."""
        return self.folder / ".dradriver-demo"

    def claim(self) -> None:
        """Make a new or empty folder the demo's.

        Raises:
            DemoError: there is something in it that no demo has put there.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.marker.exists() and any(self.folder.iterdir()):
            raise DemoError(f"{self.folder} has something in it and is no demo's folder; choose an empty or a new one")
        self.marker.touch()

    def clear(self) -> None:
        """Remove what the demo made, and the folder if nothing else is in it."""
        for name in _MADE:
            path = self.folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self.marker.unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    # --- programs --------------------------------------------------------------------------------

    def run(self, command: Sequence[str], *, stdin: str | None = None) -> str:
        """Run a program and return what it prints.

        Raises:
            DemoError: it fails, with what it said; or it is not there.
        """
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=_own(), input=stdin)
        except OSError as error:
            raise DemoError(f"{command[0]} cannot be run: {error.strerror}") from error
        if done.returncode:
            raise DemoError(f"`{' '.join(command)}` failed:\n{done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def _tool(self, command: str, *options: str) -> list[str]:
        return [str(REPOSITORY / "hack/cluster"), command, "--dir", str(self.cluster), *options]

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """The environment a developer gets from `hack/cluster env`, once the cluster is up.

        Raises:
            DemoError: there is no such cluster, or it has no such node.
        """
        told = self.run(self._tool("env", "--node", NODE))
        words = (word for line in told.splitlines() for word in shlex.split(line) if "=" in word)
        return {**_own(), **dict(word.split("=", 1) for word in words)}

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run the cluster's own kubectl as administrator of this cluster, whatever the shell is set to."""
        program = (f"{self.cluster}/bin/kubectl", f"--kubeconfig={self.cluster}/kubeconfig")
        return self.run([*program, *arguments], stdin=stdin)

    def get(self, *arguments: str) -> dict[str, Any]:
        """Read objects with kubectl."""
        return _object(self.kubectl("get", *arguments, "-o", "json"), of=f"kubectl get {' '.join(arguments)}")

    def simulation(self, *arguments: str) -> str:
        """Run a verb of the simulation's command line."""
        return self.run([sys.executable, "-m", "dradriver.simulation", "--state", str(self.gpus), *arguments])

    def capability_minors(self) -> dict[str, int]:
        """Read the driver's list of capability minors: `gpu0/gi7/ci0/access` to the N of nvidia-capN."""
        lines = (self.gpus / "root/proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
        return {name: int(minor) for name, minor in (line.split() for line in lines)}

    def show_gpus(self) -> list[dict[str, Any]]:
        """Read the simulated GPUs."""
        gpus: list[dict[str, Any]] = _object(self.simulation("show"), of="the simulation")["gpus"]
        return gpus

    # --- cluster ---------------------------------------------------------------------------------

    def cluster_up(self) -> None:
        """Boot the cluster, or find it running; shows its own progress.

        Raises:
            DemoError: it does not come up; the reason has been printed.
        """
        if subprocess.run(self._tool("up"), check=False).returncode:
            raise DemoError("the cluster does not come up, see above")

    def cluster_down(self) -> None:
        """End the cluster; what it says of logs that stay is not told, since the demo removes them, too.

        Raises:
            DemoError: something of it is left; with what was said.
        """
        self.run(self._tool("down"))

    # --- our programs ----------------------------------------------------------------------------

    def start_plugin(self) -> str:
        """Start the plugin and wait until it is ready; returns its HTTP endpoint.

        Raises:
            DemoError: it ends, or does not become ready; with the end of its log.
        """
        arguments = ("--mig", "dynamic", "--simulation", str(self.gpus))
        config = ("--node-config", str(write(self.node_config, _CONFIGS)))
        return self._start("plugin", "dradriver", *arguments, *config, token=identity.bound_token(self.kubectl, NODE))

    def start_controller(self) -> str:
        """Start the controller and wait until it is ready; returns its HTTP endpoint.

        Raises:
            DemoError: it ends, or does not become ready; with the end of its log.
        """
        token = identity.controller_token(self.kubectl)
        return self._start("controller", "controller", "--discover-mig-profiles", "Enabled", token=token)

    def stop_programs(self) -> None:
        """Stop controller and plugin of an earlier demo, if they still run."""
        self._stop("controller")
        self._stop("plugin")

    def _start(self, name: str, module: str, *arguments: str, token: str) -> str:
        self._stop(name)
        log = self.folder / f"{name}.log"
        # Port 0: any free one, which the program then names in its log.
        command = [sys.executable, "-m", module, "--http-endpoint", "127.0.0.1:0"]
        command += ["--kubeconfig", str(self._kubeconfig(name, token)), *arguments]
        with log.open("w") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, env=self.environment, start_new_session=True, cwd=REPOSITORY
            )
        write(self.folder / f"{name}.pid", f"{process.pid} {_start_time(process.pid)}")
        try:
            wait_for(f"the {name} to be ready", lambda: process.poll() is not None or _is_ready(log), seconds=30)
        except DemoError as error:
            raise DemoError(f"{error}; its log ends with:\n{_tail(log)}") from error
        if process.poll() is not None:
            raise DemoError(f"the {name} ended with status {process.returncode}; its log ends with:\n{_tail(log)}")
        return _endpoint(log)

    def _kubeconfig(self, name: str, token: str) -> Path:
        """Write a kubeconfig with the rights that a program has in production, those of its service account."""
        config = _object(self.kubectl("config", "view", "--raw", "-o", "json"), of="kubectl config view")
        for user in config["users"]:
            user["user"] = {"token": token}
        return write(self.folder / f"{name}.kubeconfig", json.dumps(config), mode=0o600)

    def _stop(self, name: str) -> None:
        path = self.folder / f"{name}.pid"
        if not path.exists():
            return
        pid, _, started = path.read_text().partition(" ")
        if started and _start_time(pid) == started:
            os.kill(int(pid), signal.SIGTERM)
            wait_for(f"the {name} to stop", lambda: _start_time(pid) != started, seconds=30)
        path.unlink()


def _own() -> dict[str, str]:
    """Our environment without what leads kubectl and the plugin to another cluster than the demo's."""
    others = {"KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"}
    # A person's kuberc may give kubectl other defaults than those the demo counts on.
    return {name: value for name, value in os.environ.items() if name not in others} | {"KUBERC": "off"}


def _object(text: str, *, of: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise DemoError(f"{of} printed no JSON: {text[:200]!r}") from error
    return found


def _start_time(pid: int | str) -> str:
    """Tell when a process started, which with its pid names it for ever; empty where there is none (or a dead one)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _endpoint(log: Path) -> str:
    """Find in the plugin's log where it serves HTTP; empty if it does not yet."""
    entries = map(_entry, log.read_text(errors="replace").splitlines())
    return next((str(entry["endpoint"]) for entry in entries if "endpoint" in entry), "")


def _entry(line: str) -> dict[str, Any]:
    """What a log line says; nothing for one that is not JSON, or of which only the beginning is written yet."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_ready(log: Path) -> bool:
    endpoint = _endpoint(log)
    if not endpoint:
        return False
    # No proxy stands between us and this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{endpoint}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)  # noqa: PLR2004 (HTTP OK)
    except OSError:
        return False


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-10:])
