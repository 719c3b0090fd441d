"""Follows everything that bridges depend on, and says when something of it has changed."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from controller.api import BRIDGES
from controller.watching import projections, waiting
from controller.watching.census import Census
from controller.watching.model import SeenClass, SeenPod, SeenQuota
from controller.watching.news import News
from dradriver.api import DRIVER_NAME
from dradriver.kube import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    Client,
    Object,
    Pace,
    Reflector,
    Resource,
    Selector,
    Store,
    key_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """One resource that is followed.

    Attributes:
        project: what is kept of an object.
        selector: which objects.
        put: of the census, for what is counted.
        is_aside: only explains; nothing that is done depends on it, nor on the right to see it.
    """

    project: Callable[[Object], Object]
    selector: Selector = field(default_factory=Selector)
    put: str = ""
    is_aside: bool = False


_MOST_NAMES: Final = 1_000
"""Extended resource names, and classes of each, whose carriers are remembered. Nobody asks for them in a process that
does not lead; and one that comes to lead writes all classes anyway, which is what they are remembered for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who wants to know more of a resource's objects than bridges do.

    Attributes:
        project: what is kept of an object beside `seen`, as `more`; None for nothing.
        on_change: called on the reflector's thread with the key of what changed, "" for a list. Must not wait.
    """

    project: Callable[[Object], object] | None = None
    on_change: Callable[[str], None] = lambda _key: None


_SOURCES: Final[Mapping[Resource, _Source]] = {
    BRIDGES: _Source(project=projections.project_bridge),
    DEVICE_CLASSES: _Source(project=projections.project_class),
    RESOURCE_SLICES: _Source(
        project=projections.project_slice, selector=Selector(fields=f"spec.driver={DRIVER_NAME}"), put="put_slice"
    ),
    RESOURCE_CLAIMS: _Source(project=projections.project_claim, put="put_claim"),
    NODES: _Source(project=projections.project_node, put="put_node"),
    PODS: _Source(project=waiting.project_pod, selector=waiting.UNSCHEDULED, is_aside=True),
    RESOURCE_QUOTAS: _Source(project=waiting.project_quota, is_aside=True),
}


class Watcher:
    """Keeps stores of what it follows, and a census.

    Reflectors only note what changed; `absorb` brings it into the census, on the thread that works with that.

    Args:
        client: access to the API server.
        on_change: called on reflectors' threads when there is something to absorb; True if classes changed, or what
            bridges want, of which there are few. Must not wait.
        on_return: called when the API server answers again: it may be another version now.
        on_waiting: called when pods that wait, or quotas, have changed; nothing is to be absorbed then. Must not wait.
        pace: times of the reflectors.
    """

    def __init__(
        self,
        client: Client,
        *,
        on_change: Callable[[bool], None],
        on_return: Callable[[], None] = lambda: None,
        on_waiting: Callable[[], None] = lambda: None,
        pace: Pace | None = None,
    ) -> None:
        self._on_change = on_change
        self._on_waiting = on_waiting
        self.census = Census()
        self._lock = threading.Lock()
        self._carriers: dict[str, set[str]] = {}
        self._wants: dict[str, Object] = {}
        self._statuses: dict[str, object] = {}
        self._news: News[Resource] = News()
        self._listeners: dict[Resource, Listener] = {}
        self._counted: dict[Resource, set[str]] = {resource: set() for resource in _SOURCES}
        self._stores = {resource: Store() for resource in _SOURCES}
        self._reflectors = {
            resource: Reflector(
                client,
                resource,
                self._stores[resource],
                selector=source.selector,
                on_change=self._noter(resource),
                on_return=on_return,
                project=self._projector(resource, source.project),
                pace=pace,
            )
            for resource, source in _SOURCES.items()
        }

    def listen(self, resource: Resource, listener: Listener) -> None:
        """Have somebody told of a resource's changes too; before `start`."""
        self._listeners[resource] = listener

    def start(self) -> None:
        """Start following."""
        for reflector in self._reflectors.values():
            reflector.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop following."""
        for reflector in self._reflectors.values():
            reflector.end()
        for reflector in self._reflectors.values():
            reflector.stop(timeout)

    @property
    def has_synced(self) -> bool:
        """Whether everything that work depends on has been listed once."""
        return all(
            reflector.has_synced for resource, reflector in self._reflectors.items() if not _SOURCES[resource].is_aside
        )

    def trouble(self) -> dict[str, str]:
        """Why something is not followed now, by the resource's name."""
        found = {resource.plural: reflector.error for resource, reflector in self._reflectors.items()}
        return {name: str(error) for name, error in found.items() if error is not None}

    def dead(self) -> list[str]:
        """Resources whose thread has ended, which only a restart mends."""
        return [resource.plural for resource, reflector in self._reflectors.items() if not reflector.alive]

    # --- for the thread that works with it -------------------------------------------------------

    def absorb(self) -> bool:
        """Bring what changed into the census; whether anything that matters did."""
        changed = False
        for resource, key in self._news.take():
            changed |= self._absorb(resource, key)
        return changed

    def bridges(self) -> list[Object]:
        """All bridges, as objects."""
        return list(self._stores[BRIDGES].snapshot().values())

    def classes(self) -> dict[str, SeenClass]:
        """All DeviceClasses by name."""
        return {key: item["seen"] for key, item in self._stores[DEVICE_CLASSES].snapshot().items()}

    def pods(self) -> list[SeenPod]:
        """Pods that have no node yet and ask for extended resources."""
        found = (item["seen"] for item in self._stores[PODS].snapshot().values())
        return [pod for pod in found if pod.shape.wants]

    def quotas(self) -> list[SeenQuota]:
        """Quotas that devices can count to."""
        found = (item["seen"] for item in self._stores[RESOURCE_QUOTAS].snapshot().values())
        return [quota for quota in found if quota.limits]

    def item(self, resource: Resource, key: str) -> Object | None:
        """What is kept of one object. Harmless on any thread, like `items`."""
        return self._stores[resource].get(key)

    def items(self, resource: Resource) -> dict[str, Object]:
        """What is kept of a resource's objects, by key."""
        return self._stores[resource].snapshot()

    def note_class(self, item: Object) -> SeenClass:
        """Take the answer to a write of a class, before the watch tells it."""
        projected = self._project_class(item)
        self._take(DEVICE_CLASSES, projected)
        seen: SeenClass = projected["seen"]
        return seen

    def take_carriers(self, extended_name: str) -> frozenset[str]:
        """Names of the classes that have carried a name at any moment since this was asked last, however shortly."""
        with self._lock:
            return frozenset(self._carriers.pop(extended_name, ()))

    def _projector(self, resource: Resource, project: Callable[[Object], Object]) -> Callable[[Object], Object]:
        known = self._project_class if resource is DEVICE_CLASSES else project

        def projected(item: Object) -> Object:
            listener = self._listeners.get(resource)
            more = {} if listener is None or listener.project is None else {"more": listener.project(item)}
            return known(item) | more

        return projected

    def _project_class(self, item: Object) -> Object:
        projected = projections.project_class(item)
        seen: SeenClass = projected["seen"]
        if seen.extended_name:
            with self._lock:
                self._note_carrier(seen.extended_name, seen.name)
        return projected

    def _note_carrier(self, extended_name: str, name: str) -> None:
        carriers = self._carriers.setdefault(extended_name, set())
        if len(carriers) < _MOST_NAMES:
            carriers.add(name)
        if len(self._carriers) > _MOST_NAMES:
            del self._carriers[next(iter(self._carriers))]

    def forget(self, resource: Resource, name: str, uid: str) -> None:
        """A class or bridge is gone by our doing, before the watch tells it."""
        self._stores[resource].forget({"metadata": {"name": name, "uid": uid}})
        self._noter(resource)(name)

    def note_bridge(self, item: Object) -> None:
        """Take the answer to a write of a bridge, before the watch tells it."""
        self._take(BRIDGES, projections.project_bridge(item))

    def note_status(self, item: Object) -> None:
        """Take the answer to a write of a bridge's status. It wakes nobody: whoever wrote it knows it."""
        projected = projections.project_bridge(item)
        self._stores[BRIDGES].put(projected)
        with self._lock:
            self._statuses[key_of(item)] = projected.get("status")

    def _take(self, resource: Resource, item: Object) -> None:
        """Take what a call told, as if the watch had: it will not tell again what is known."""
        if self._stores[resource].put(item):
            self._noter(resource)(key_of(item))

    def _noter(self, resource: Resource) -> Callable[[str], None]:
        if _SOURCES[resource].is_aside:
            return lambda _key: self._on_waiting()
        is_small = not _SOURCES[resource].put

        def note(key: str) -> None:
            self._news.add(resource, key)
            # The watch may tell of our own status before the answer does.
            self._on_change(is_small and not (resource is BRIDGES and self._is_only_status(key)))
            if (listener := self._listeners.get(resource)) is not None:
                listener.on_change(key)

        return note

    def _is_only_status(self, key: str) -> bool:
        """Whether a bridge wants the same as when it was absorbed last."""
        item = self._stores[BRIDGES].get(key)
        with self._lock:
            return item is not None and _wanted(item) == self._wants.get(key)

    def _absorb_bridge(self, key: str) -> bool:
        """Whether it wants something else, or somebody else has written its status."""
        item = self._stores[BRIDGES].get(key)
        with self._lock:
            former = self._wants.pop(key, None), self._statuses.pop(key, None)
            if item is None:
                return True
            self._wants[key], self._statuses[key] = _wanted(item), item.get("status")
            return (self._wants[key], self._statuses[key]) != former

    def _absorb_bridges(self) -> bool:
        for key in [*self._stores[BRIDGES].snapshot(), *self._wants]:
            self._absorb_bridge(key)
        return True

    def _absorb(self, resource: Resource, key: str) -> bool:
        if resource is BRIDGES:
            return self._absorb_bridge(key) if key else self._absorb_bridges()
        method = _SOURCES[resource].put
        if not method:
            return True
        put = getattr(self.census, method)
        if key:
            return self._put(put, resource, key, self._stores[resource].get(key))
        # A list: everything may be different, and what it does not have is gone.
        items = self._stores[resource].snapshot()
        gone = self._counted[resource] - items.keys()
        return any([self._put(put, resource, each, items.get(each)) for each in (*gone, *items)])  # noqa: C419 (all of them)

    def _put(self, put: Callable[[str, Any], bool], resource: Resource, key: str, item: Object | None) -> bool:
        counted = self._counted[resource]
        counted.discard(key) if item is None else counted.add(key)
        return put(key, None if item is None else item["seen"])


def _wanted(bridge: Object) -> Object:
    """A bridge but for what its controller says of it."""
    metadata = {name: value for name, value in bridge["metadata"].items() if name != "resourceVersion"}
    return {name: value for name, value in bridge.items() if name != "status"} | {"metadata": metadata}
