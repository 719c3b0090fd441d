"""A real Kubernetes on this machine, as `hack/cluster` boots it."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.waiting import wait_for

REPOSITORY = Path(__file__).resolve().parents[2]
TOOL = REPOSITORY / "hack" / "cluster"


class ClusterError(Exception):
    """Why there is no cluster: one sentence."""


class Cluster:
    """A cluster in a directory of its own.

    Attributes:
        kubeconfig: an administrator's.
        programs: the folder of kubectl and the like.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self.programs = folder / "bin"

    def up(self, *options: str) -> None:
        """Boot, or complete what is there.

        Raises:
            ClusterError: the machine lacks something.
        """
        run_tool("up", "--dir", str(self.folder), *options)

    def down(self) -> None:
        """End it and all it has."""
        run_tool("down", "--dir", str(self.folder))

    def restart(self, component: str, *, node: str, kill: bool = False) -> None:
        """Restart a kubelet or containerd; pods keep running. Returns when the node is ready."""
        run_tool("restart", component, "--dir", str(self.folder), "--node", node, *(["--kill"] if kill else []))

    def stop(self, component: str, *, node: str, kill: bool = False) -> None:
        """Stop a kubelet or containerd; pods keep running."""
        run_tool("stop", component, "--dir", str(self.folder), "--node", node, *(["--kill"] if kill else []))

    def start(self, component: str, *, node: str) -> None:
        """Start what was stopped. Returns when the node is ready."""
        run_tool("start", component, "--dir", str(self.folder), "--node", node)

    def kill(self, component: str) -> None:
        """Kill a component of the control plane hard, and wait until it has ended; `up` starts it again."""
        pid = int((self.folder / "run" / f"{component}.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        # A large process takes a while to die, and `up` would find it alive.
        wait_for(lambda: _has_ended(pid), f"{component} to have ended")

    def change(self, **options: str) -> None:
        """Kill the control plane, but for etcd, and start it with other options, as an upgrade does.

        Args:
            options: `kubernetes`, `emulate`, `feature_gates` or `runtime_config`, as `up` takes them; "" for none.

        Raises:
            ClusterError: it does not come up.
        """
        for component in ("kube-apiserver", "kube-scheduler", "kube-controller-manager"):
            self.kill(component)
        # A person who wants that makes a new cluster, so there is no command for it.
        state = self.folder / "state.json"
        state.write_text(json.dumps(json.loads(state.read_text()) | options))
        run_tool("up", "--dir", str(self.folder))

    def environment(self, node: str) -> dict[str, str]:
        """The variables with which the plugin runs as if on a node."""
        lines = run_tool("env", "--dir", str(self.folder), "--node", node).splitlines()
        words = [shlex.split(line.removeprefix("export "))[0] for line in lines]
        return dict(word.split("=", 1) for word in words)


def _has_ended(pid: int) -> bool:
    try:
        # Behind the name, which is in brackets and may have any characters: Z is dead and waited for by nobody yet.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return True


def run_tool(*arguments: str) -> str:
    """Run hack/cluster and give what it answers; what it tells is shown where it failed.

    Raises:
        ClusterError: its sentence.
    """
    # A session of its own: Ctrl-C is for us, who then take the cluster down in order.
    done = subprocess.run(
        [sys.executable, TOOL, *arguments], capture_output=True, text=True, check=False, start_new_session=True
    )
    if done.returncode:
        told = done.stderr.strip().splitlines() or ["no reason given"]
        raise ClusterError(f"hack/cluster {' '.join(arguments)}: {told[-1].removeprefix('cluster: error: ')}")
    return done.stdout


def build(options: Sequence[str]) -> None:
    """Build the programs if they are not, telling how far it is; a failure is told again by `up`."""
    subprocess.run([sys.executable, TOOL, "build", *options], check=False)


def is_root() -> bool:
    """Tell whether a node can be booted here."""
    return os.geteuid() == 0
