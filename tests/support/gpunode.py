"""A Kubernetes node with simulated GPUs and the plugin: put together, and looked after between tests."""

import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support import identity, sight
from support.cluster import REPOSITORY, Cluster
from support.plugin import PROGRAM, Plugin
from support.server import Body, Server
from support.simulated import SimulatedNode
from support.waiting import wait_for

NODE = "node-a"
DYNAMIC = ("--mig", "dynamic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a test wants of its node.

    Attributes:
        machine: of `python -m dradriver.simulation create`: a short name, or the text of a YAML file.
        mig: MIG mode at first, `on` or `off`.
        before: simulation commands to run before the plugin starts.
        options: of the plugin.
    """

    machine: str = "8xh100-80gb"
    mig: str = "off"
    before: tuple[tuple[str, ...], ...] = ()
    options: tuple[str, ...] = DYNAMIC


class GpuNode:
    """One simulated machine with a running plugin.

    Attributes:
        simulation: its hardware.
        plugin: the process.
        home: folder in which the plugin keeps what it remembers.
        records: folder of the records of claims.
        specs: folder of CDI specs.
    """

    def __init__(self, *, cluster: Cluster, server: Server, kubeconfig: Path, folder: Path, setup: Setup) -> None:
        self.setup = setup
        self.cluster = cluster
        self.server = server
        self.simulation = SimulatedNode(folder / "simulation")
        self.simulation.run("create", _machine(setup.machine, folder), "--mig", setup.mig)
        for command in setup.before:
            self.simulation.run(*command)
        environment = cluster.environment(NODE)
        self.home = Path(environment["KUBELET_PLUGINS_DIRECTORY_PATH"]) / sight.DRIVER
        self.records = self.home / "claims"
        self.specs = Path(environment["CDI_ROOT"])
        self._environment = environment
        self._made = 0
        self._given = ("--kubeconfig", str(kubeconfig), "--simulation", str(self.simulation.folder))
        self.plugin = Plugin(
            environment=environment, arguments=(*self._given, *setup.options), log=folder / "plugin.log"
        )
        self._mig_at_first = {gpu["uuid"]: bool(gpu["mig"] and gpu["mig"]["current"]) for gpu in self.simulation.gpus()}
        self._first = self._hardware()
        self.spoilt = False

    def start(self, options: Sequence[str] | None = None, *, program: Sequence[str] = PROGRAM) -> None:
        """Start the plugin and wait until it is ready; other options from now on if some are given."""
        if options is not None:
            self.spoilt = True
        self.plugin.start(None if options is None else (*self._given, *options), program=program)
        self.plugin.wait_ready()

    def another(self, *options: str) -> Plugin:
        """Make a second plugin of this node, with these options instead; it is not started, nor looked after."""
        self.spoilt = True
        self._made += 1
        return Plugin(
            environment=self._environment,
            arguments=(*self._given, *options),
            log=self.simulation.folder.parent / f"plugin-{self._made}.log",
        )

    def command_environment(self) -> dict[str, str]:
        """The variables with which a command of the plugin's program finds this node."""
        return {**os.environ, **self._environment, "SIMULATION": str(self.simulation.folder)}

    def close(self) -> None:
        """Stop the plugin and remove what it keeps on the node, as if the machine were another one now."""
        status = self.plugin.stop() if self.plugin.running else None
        shutil.rmtree(self.home, ignore_errors=True)
        assert status in {0, None}, f"the plugin ended with status {status}"

    # --- asking ----------------------------------------------------------------------------------

    def check(self, pod: Body) -> dict[str, list[sight.Device]]:
        """Make sure that every container sees exactly its devices; gives the devices of each."""
        return sight.check(self.server, self.simulation, pod)

    def device(self, name: str) -> sight.Device:
        """What a published device stands for."""
        return sight.locate(self.server, self.simulation, name)

    def published(self) -> dict[str, Body]:
        """The devices in the slices by name."""
        return sight.published(self.server)

    def versions(self) -> dict[str, str]:
        """The slices' resource versions by name, of a pool that is complete: a change is several writes."""
        found = wait_for(self._whole_pool, "the pool to be complete", state=lambda: sight.slices(self.server))
        return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in found}

    def _whole_pool(self) -> list[Body]:
        """The slices, none while some of them are to come or to go."""
        found = sight.slices(self.server)
        pools = [each["spec"]["pool"] for each in found]
        generations = {pool["generation"] for pool in pools}
        return found if len(generations) == 1 and pools[0]["resourceSliceCount"] == len(found) else []

    def record(self, claim: Body) -> Path:
        """The file in which the plugin notes what it did for a claim."""
        return self.records / f"{claim['metadata']['uid']}.json"

    def restart_kubelet(self, *, kill: bool = False) -> None:
        """Restart the kubelet; returns when the node is ready again."""
        self.cluster.restart("kubelet", node=NODE, kill=kill)

    def leftovers(self) -> list[str]:
        """What is still there of claims, in words; empty when all is as it was at first."""
        now, first = self._hardware(), self._first
        hardware = [f"GPU {uuid} has {now[uuid]}, had {first[uuid]}" for uuid in now if now[uuid] != first[uuid]]
        records = [f"record {path.name}" for path in self.records.glob("*")]
        return [*hardware, *records, *(f"CDI spec {path.name}" for path in self.specs.glob("*"))]

    def wait_clean(self) -> None:
        """Wait until nothing is left of claims; the kubelet unprepares a forced deletion a little later."""
        wait_for(lambda: not self.leftovers(), "everything of claims to be gone", seconds=20, state=self.leftovers)

    def accept_hardware(self) -> None:
        """Take the hardware as it is now for what shall be left of it; a test has changed it on purpose."""
        self._first = self._hardware()

    def _hardware(self) -> dict[str, object]:
        """What is to be the same afterwards; MIG mode may go off where nothing is cut, but not stay on."""
        return {
            gpu["uuid"]: (gpu["instances"], gpu["minor"], self._mig_at_first.get(gpu["uuid"], False) or gpu["mig"])
            for gpu in self.simulation.gpus()
        }


def _machine(text: str, folder: Path) -> str:
    folder.mkdir(parents=True)
    if "\n" not in text:
        return text
    file = folder / "machine.yaml"
    file.write_text(text)
    return str(file)


class Keeper:
    """Gives each test the node it wants, and keeps it for the next one while that wants the same.

    Attributes:
        labels: of every namespace of the tests that this looks after.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.server = Server(cluster.kubeconfig, programs=cluster.programs)
        self._folder = folder
        self._made = 0
        self.current: GpuNode | None = None
        self.labels = {"dradriver.dev/test": secrets.token_hex(4)}
        for file in ("rbac.yaml", "deviceclasses.yaml"):
            self.server.kubectl("apply", "-f", str(REPOSITORY / "deploy" / file))
        self.kubeconfig = folder / "kubeconfig"
        self._stand_in = identity.StandIn(self.server, NODE)
        self.kubeconfig.write_text(self.server.kubeconfig_for(self._stand_in.token()))

    def use(self, setup: Setup) -> GpuNode:
        """Give a node that was set up so, with a ready plugin, and nothing left on it."""
        node = self.current
        if node is not None and node.setup == setup and not node.spoilt and node.plugin.running:
            return node
        self.end()
        self._made += 1
        self.current = node = GpuNode(
            cluster=self.cluster,
            server=self.server,
            kubeconfig=self.kubeconfig,
            folder=self._folder / f"machine-{self._made}",
            setup=setup,
        )
        node.start()
        return node

    def end(self) -> None:
        """Close the node that is there."""
        if self.current is not None:
            node, self.current = self.current, None
            node.close()

    def close(self) -> None:
        """Close the node and the connection, and see namespaces of tests out."""
        try:
            self.end()
            wait_for(self._no_spaces, "the namespaces of tests to be gone", seconds=60)
        finally:
            self._stand_in.remove()
            self.server.close()

    def _no_spaces(self) -> bool:
        selector = ",".join(f"{key}={value}" for key, value in self.labels.items())
        return not self.server.list("Namespace", labelSelector=selector)
