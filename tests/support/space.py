"""A namespace of one test: what it makes, waits for and removes there."""

import itertools
import re
from pathlib import Path

from support.server import Body, Server
from support.waiting import wait_for

_RACE = "no relationship found between node"


class Space:
    """One namespace.

    Args:
        server: where.
        name: of a namespace that does not exist yet.
        labels: of the namespace.
    """

    def __init__(self, server: Server, name: str, *, labels: dict[str, str] | None = None) -> None:
        self.server = server
        self.name = name
        self._woken: set[str] = set()
        self._marks = itertools.count()
        server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}})

    def add(self, *bodies: Body) -> None:
        """Create objects."""
        for body in bodies:
            self.server.create(body, namespace=self.name)

    def apply(self, file: Path) -> list[str]:
        """Create what a file says, as a user would; gives the names of its pods."""
        self.server.kubectl("apply", "-n", self.name, "-f", str(file))
        return [pod["metadata"]["name"] for pod in self.pods()]

    # --- waiting ---------------------------------------------------------------------------------

    def running(self, *names: str) -> list[Body]:
        """Wait until all containers of pods are ready; gives the pods."""
        return [wait_for(lambda name=name: self._ready(name), f"pod {name} to run", state=self.story) for name in names]

    def _ready(self, name: str) -> Body | None:
        pod = self.pod(name)
        containers = pod["status"].get("containerStatuses", [{}])
        if all(each.get("ready") for each in containers):
            return pod
        if pod["spec"].get("nodeName"):
            self._messages(name, "FailedPrepareDynamicResources")
        return None

    def _messages(self, name: str, reason: str) -> list[str]:
        """What events of a pod say, but for a race of kubelet and API server, after which the kubelet is woken up.

        The kubelet may ask for a claim before the API server knows that the pod is on its node, and would then try
        again only after a minute or more. A change of the pod makes it try at once.
        """
        events = self.server.list("Event", namespace=self.name, fieldSelector=f"involvedObject.name={name}")
        messages = [str(each["message"]) for each in events if each["reason"] == reason]
        ours = [message for message in messages if _RACE not in message]
        if len(ours) != len(messages) and name not in self._woken:
            self._woken.add(name)
            self.wake(name)
        return ours

    def wake_raced(self) -> None:
        """Wake every pod that the kubelet's race with the API server has hit."""
        events = self.server.list("Event", namespace=self.name, fieldSelector="reason=FailedPrepareDynamicResources")
        hit = {str(each["involvedObject"]["name"]) for each in events if _RACE in each["message"]}
        for name in hit - self._woken:
            self._woken.add(name)
            self.wake(name)

    def wake(self, name: str) -> None:
        """Change a pod a little, so that the kubelet tries at once what it would try again in a minute.

        It wakes a pod that is being deleted too; one that is gone by then is fine.
        """
        mark = f"dradriver.dev/again={next(self._marks)}"
        self.server.kubectl("annotate", "--overwrite", "pod", "-n", self.name, name, mark, check=False)

    def unschedulable(self, name: str) -> str:
        """Wait until the scheduler has found no place for a pod; gives its reason."""

        def refused() -> str | None:
            found = [each for each in self.pod(name)["status"].get("conditions", ()) if each["type"] == "PodScheduled"]
            return next((each["message"] for each in found if each["status"] == "False"), None)

        return str(wait_for(refused, f"pod {name} to be refused by the scheduler", state=self.story))

    def event(self, name: str, reason: str, pattern: str) -> str:
        """Wait for an event of a pod; gives its message.

        Raises:
            AssertionError: none of that reason matches the pattern.
        """

        messages = wait_for(lambda: self._messages(name, reason), f"an event {reason} of pod {name}", state=self.story)
        assert any(re.search(pattern, message) for message in messages), f"{pattern!r} not in {messages}"
        return messages[0]

    def told(self, kind: str, name: str, reason: str, pattern: str = "") -> str:
        """Wait for an event of any object; gives its message. Those of cluster-scoped objects are in `default`."""
        namespace = "default" if kind == "Node" else self.name
        selector = f"involvedObject.kind={kind},involvedObject.name={name},reason={reason}"

        def found() -> str | None:
            events = self.server.list("Event", namespace=namespace, fieldSelector=selector)
            return next((each["message"] for each in events if re.search(pattern, each["message"])), None)

        return str(wait_for(found, f"an event {reason} of {kind} {name} with {pattern!r}", state=self.story))

    def told_health(self, name: str, health: str) -> list[str]:
        """Wait until the status of a pod says so of all its devices; gives the messages."""

        def found() -> list[str] | None:
            said = _healths(self.pod(name))
            return [message for _, message in said] if {each for each, _ in said} == {health} else None

        return wait_for(found, f"pod {name} to be told {health}", state=self.story) or []

    def failures(self, name: str) -> list[str]:
        """What events say of failed attempts to prepare a pod's claims, but for the kubelet's race."""
        return self._messages(name, "FailedPrepareDynamicResources")

    def gone(self, *names: str) -> None:
        """Wait until pods are gone; the kubelet has unprepared their claims by then."""
        for name in names:
            wait_for(
                lambda name=name: self.server.find("Pod", name, namespace=self.name) is None,
                f"pod {name} to be gone",
                state=self.story,
            )

    # --- asking and removing ---------------------------------------------------------------------

    def pod(self, name: str) -> Body:
        return self.server.get("Pod", name, namespace=self.name)

    def pods(self) -> list[Body]:
        return self.server.list("Pod", namespace=self.name)

    def claim(self, name: str) -> Body:
        return self.server.get("ResourceClaim", name, namespace=self.name)

    def delete(self, *names: str) -> None:
        """Delete pods as `kubectl delete --now` does, and wait until they are gone."""
        for name in names:
            self.server.delete("Pod", name, namespace=self.name, grace=1)
        self.gone(*names)

    def clear(self) -> None:
        """Remove pods and claims, then the namespace, whose end nobody waits for."""
        self.delete(*(pod["metadata"]["name"] for pod in self.pods()))
        self.server.delete("Namespace", self.name)

    def story(self) -> str:
        """Pods and events, for people."""
        pods = self.server.kubectl("get", "pods", "-n", self.name, "-o", "wide", check=False)
        events = self.server.kubectl("events", "-n", self.name, check=False)
        return f"\n{pods}\n{events}"


def _healths(pod: Body) -> list[tuple[str, str]]:
    """What a pod's status says of its devices: health and message of each."""
    containers = pod["status"].get("containerStatuses", ())
    found = [each for container in containers for each in container.get("allocatedResourcesStatus", ())]
    return [(device["health"], device.get("message", "")) for each in found for device in each["resources"]]
