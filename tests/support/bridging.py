"""The controller as a process, its bridges, and who carries which extended resource name at any moment."""

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from support.cluster import REPOSITORY, Cluster
from support.plugin import Plugin
from support.server import Body, Server
from support.waiting import wait_for

from controller.api import BRIDGES
from dradriver.kube import DEVICE_CLASSES, LEASES, Client, KubeError, NotFoundError

PROGRAM = ("-m", "controller")
CRD = REPOSITORY / "deploy/crds/extendedresourcebridges.yaml"
NAMESPACE = "dradriver"
LEASE = "dradriver-controller"


def bridge(name: str, resource_name: str, *, select: Body | None = None, **spec: Any) -> Body:
    """An ExtendedResourceBridge; of whole GPUs if nothing else is selected."""
    return {
        "apiVersion": BRIDGES.api_version,
        "kind": BRIDGES.kind,
        "metadata": {"name": name},
        "spec": {"resourceName": resource_name, "select": select or {"type": "gpu"}, **spec},
    }


def device_class(name: str, extended_name: str = "") -> Body:
    """A class of nothing, as somebody else would make it."""
    spec: Body = {"selectors": [{"cel": {"expression": "false"}}]}
    return {
        "apiVersion": DEVICE_CLASSES.api_version,
        "kind": DEVICE_CLASSES.kind,
        "metadata": {"name": name},
        "spec": spec | ({"extendedResourceName": extended_name} if extended_name else {}),
    }


def install(server: Server) -> None:
    """Make what the controller needs: its CRD and its rights."""
    server.kubectl("apply", "-f", str(CRD), "-f", str(REPOSITORY / "deploy/rbac.yaml"))
    server.kubectl("apply", "-f", str(REPOSITORY / "deploy/controller-rbac.yaml"))
    server.kubectl("wait", "--for=condition=Established", f"crd/{BRIDGES.plural}.{BRIDGES.group}", "--timeout=30s")


class Controllers:
    """Controllers with the rights of deploy/controller-rbac.yaml, and the bridges that they work on.

    Args:
        cluster: where.
        server: with an administrator's rights.
        admin: the same, for what is not asked by kubectl.
        folder: for logs.

    Attributes:
        kubeconfig: with the controller's rights.
    """

    def __init__(self, cluster: Cluster, server: Server, admin: Client, folder: Path) -> None:
        install(server)
        self.server = server
        self.admin = admin
        self._folder = folder
        self._made: list[Plugin] = []
        token = server.kubectl("create", "token", "dradriver-controller", "-n", NAMESPACE, "--duration=2h").strip()
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(server.kubeconfig_for(token))

    # --- processes -------------------------------------------------------------------------------

    def start(self, *options: str, leads: bool = True, program: Sequence[str] = PROGRAM) -> Plugin:
        """Start one with these options, and wait until it is ready, and leads if it is to."""
        made = self.launch(*options, program=program)
        made.wait_ready()
        if leads:
            wait_for(lambda: self.leads(made), "it to lead", seconds=60, state=made.log)
        return made

    def launch(self, *options: str, program: Sequence[str] = PROGRAM) -> Plugin:
        """Start one with these options, and wait for nothing."""
        name = f"controller-{len(self._made)}"
        made = Plugin(
            environment={"POD_NAME": name},
            # Base classes are left alone if nothing else is said: there is one set of them for all tests.
            arguments=("--kubeconfig", str(self.kubeconfig), "--base-classes", "off", *options),
            log=self._folder / f"{name}.log",
        )
        self._made.append(made)
        made.start(program=program)
        return made

    def leads(self, controller: Plugin) -> bool:
        """Whether it says that it has begun to work."""
        return any(entry["event"] == "leading" for entry in controller.entries())

    def log(self) -> str:
        """What all of them said."""
        return "\n".join(each.log() for each in self._made)

    def close(self) -> None:
        """Remove all bridges, with their classes, and end every process."""
        try:
            self._end()
            if self.all_bridges():
                # A plain one, which makes no bridges.
                self.start()
                self.clear()
        finally:
            self._end()
            with suppress(NotFoundError):
                self.admin.delete(LEASES, LEASE, namespace=NAMESPACE)

    def stop(self) -> None:
        """End every process that runs, in order."""
        self._end()

    def _end(self) -> None:
        for each in self._made:
            if each.running:
                each.stop()

    # --- bridges ---------------------------------------------------------------------------------

    def add(self, *bodies: Body) -> None:
        for body in bodies:
            self.admin.create(BRIDGES if body["kind"] == BRIDGES.kind else DEVICE_CLASSES, body)

    def change(self, name: str, **spec: Any) -> None:
        """Change fields of a bridge's spec."""
        self.admin.patch(BRIDGES, name, {"spec": spec})

    def delete(self, name: str, *, wait: bool = True) -> None:
        """Delete a bridge, and wait until it is gone."""
        self.admin.delete(BRIDGES, name)
        if wait:
            wait_for(lambda: self.find(name) is None, f"bridge {name} to be gone", state=lambda: self.find(name))

    def force(self, name: str) -> None:
        """Let a deleted bridge go though claims use its class."""
        self.admin.patch(BRIDGES, name, {"metadata": {"annotations": {"dradriver.dev/force-delete": "true"}}})

    def find(self, name: str) -> Body | None:
        try:
            return self.admin.get(BRIDGES, name)
        except NotFoundError:
            return None

    def all_bridges(self) -> list[Body]:
        return list(self.admin.list(BRIDGES).items)

    def clear(self) -> None:
        """Remove all bridges, whoever uses them."""
        for item in self.all_bridges():
            name = item["metadata"]["name"]
            self.force(name)
            self.delete(name)

    def conditions(self, name: str) -> dict[str, tuple[str, str, str]]:
        """Status, reason and message of each condition."""
        status = (self.find(name) or {}).get("status", {})
        return {
            each["type"]: (each["status"], each["reason"], each["message"]) for each in status.get("conditions", ())
        }

    def wait_reason(self, name: str, reason: str) -> str:
        """Wait until a bridge is ready, or not ready, for that reason; gives the message."""
        wait_for(
            lambda: self.conditions(name).get("Ready", ("", "", ""))[1] == reason,
            f"bridge {name} to be {reason}",
            seconds=60,
            state=lambda: (self.find(name), self.log()[-3000:]),
        )
        return self.conditions(name)["Ready"][2]

    def wait_counts(self, name: str, **numbers: int) -> None:
        """Wait for numbers of devices in a bridge's status."""

        def now() -> Body:
            return (self.find(name) or {}).get("status", {}).get("devices", {})

        wait_for(lambda: numbers.items() <= now().items(), f"bridge {name} to have {numbers}", seconds=60, state=now)

    def told(self, name: str, reason: str) -> str:
        """Wait for an Event of a bridge; gives its note."""
        selector = f"involvedObject.kind={BRIDGES.kind},involvedObject.name={name},reason={reason}"

        def found() -> str | None:
            events = self.server.list("Event", namespace="default", fieldSelector=selector)
            return next((each["message"] for each in events), None)

        return str(wait_for(found, f"an event {reason} of bridge {name}", seconds=60, state=self.log))

    # --- classes ---------------------------------------------------------------------------------

    def device_class(self, name: str) -> Body | None:
        try:
            return self.admin.get(DEVICE_CLASSES, name)
        except NotFoundError:
            return None

    def carriers(self, extended_name: str) -> set[str]:
        """Classes that carry a name now."""
        return {
            item["metadata"]["name"]
            for item in self.admin.list(DEVICE_CLASSES).items
            if item["spec"].get("extendedResourceName") == extended_name
        }

    def wait_carrier(self, extended_name: str, *names: str) -> None:
        """Wait until these classes and no others carry a name."""
        wait_for(
            lambda: self.carriers(extended_name) == set(names),
            f"{extended_name} on {names}",
            seconds=60,
            state=lambda: (self.carriers(extended_name), self.log()[-3000:]),
        )

    @contextmanager
    def referee(self) -> Iterator["Referee"]:
        """Watch who carries which name, from now on."""
        made = Referee(self.admin)
        try:
            yield made
        finally:
            made.stop()


class Referee:
    """Sees every state of every class, in the order of their history."""

    def __init__(self, client: Client) -> None:
        listing = client.list(DEVICE_CLASSES)
        self._carried = {item["metadata"]["name"]: _extended_name(item) for item in listing.items}
        self.states: list[dict[str, str]] = [dict(self._carried)]
        self._watch = client.watch(DEVICE_CLASSES, resource_version=listing.resource_version, seconds=600)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(KubeError), self._watch as watch:
            for event in watch.events():
                if event.type != "BOOKMARK":
                    name = event.object["metadata"]["name"]
                    self._carried[name] = "" if event.type == "DELETED" else _extended_name(event.object)
                    self.states.append(dict(self._carried))

    def stop(self) -> None:
        self._watch.abort()
        self._thread.join(10)

    def carriers(self, extended_name: str) -> list[frozenset[str]]:
        """Who carried the name, state by state, repetitions left out."""
        found = [
            frozenset(name for name, carried in state.items() if carried == extended_name) for state in self.states
        ]
        return [each for index, each in enumerate(found) if not index or each != found[index - 1]]


def _extended_name(item: Body) -> str:
    return str(item["spec"].get("extendedResourceName") or "")


def unique(prefix: str = "test") -> str:
    """A name that no other test has."""
    return f"{prefix}-{secrets.token_hex(3)}"


def crd() -> Body:
    """The CRD as it is installed."""
    found: Body = yaml.safe_load(CRD.read_text())
    return found
