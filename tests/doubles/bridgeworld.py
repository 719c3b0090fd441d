"""A cluster's bridges and classes in memory: carries decisions out, and keeps the rules that the real thing has.

Its scheduler has the fault of Kubernetes 1.37.2 (kubernetes#141103): it forgets a name when any class that carries it
loses it or is deleted, whoever else carries it; a write of a class with a name makes it known.
"""

from dataclasses import dataclass, field, replace

from controller.api import (
    FINALIZER,
    BaseKeeping,
    Bridge,
    BridgeSpec,
    BridgeStatus,
    DeviceTally,
    Mode,
    NodeTally,
    Select,
)
from controller.bridges import (
    AddFinalizer,
    ApplyClass,
    ClearName,
    DeleteClass,
    ReleaseClass,
    RemoveFinalizer,
    Situation,
    Waiting,
    decide,
    keep_base_classes,
    owners_of,
)
from controller.watching.model import SeenClass

NAME = "nvidia.com/gpu"
OURS = ("app.kubernetes.io/managed-by", "dradriver.dev/bridge", "dradriver.dev/base-class")
NOTES = ("dradriver.dev/hash", "dradriver.dev/written-by", "dradriver.dev/adopted", "dradriver.dev/former")


def bridge(name="gpu", **more):
    """A bridge; `more` are fields of its spec, or of itself."""
    own = {key: more.pop(key) for key in list(more) if key in Bridge.__slots__}
    spec = {
        "resource_name": NAME,
        "select": Select(type="gpu"),
        "device_class_name": f"{name}.gpu.dradriver.dev",
        **more,
    }
    return Bridge(name=name, uid=f"uid-{name}", spec=BridgeSpec(**spec), **own)


def foreign(name, extended_name=NAME, **more):
    """A class that somebody else made."""
    spec = {"selectors": [{"cel": {"expression": "true"}}]}
    return SeenClass(name=name, spec=spec | ({"extendedResourceName": extended_name} if extended_name else {}), **more)


class ConflictError(Exception):
    pass


@dataclass
class World:
    """Bridges and classes by name, and claims' names by class.

    Attributes:
        known: what the scheduler knows: the class of each name.
        history: every state of who carries the name, in order.
        keeping: of base classes; None if they are not looked at.
    """

    bridges: dict[str, Bridge] = field(default_factory=dict)
    classes: dict[str, SeenClass] = field(default_factory=dict)
    users: dict[str, set[str]] = field(default_factory=dict)
    devices: DeviceTally = field(default_factory=lambda: DeviceTally(published=8, allocatable=8))
    nodes: NodeTally = field(default_factory=lambda: NodeTally(dra=1))
    unsupported: str = ""
    rivals: frozenset[str] = frozenset()
    carried: set[str] = field(default_factory=set)
    known: dict[str, str] = field(default_factory=dict)
    history: list[frozenset[str]] = field(default_factory=list)
    version: int = 0
    incarnation: int = 0
    tellings: list = field(default_factory=list)
    waiting: Waiting | None = None
    keeping: BaseKeeping | None = None
    base_states: dict = field(default_factory=dict)
    notices: list = field(default_factory=list)

    # --- what others do --------------------------------------------------------------------------

    def add(self, *items):
        for item in items:
            if isinstance(item, Bridge):
                self.version += 1
                created = item.created or f"2026-01-01T00:00:{self.version:06d}Z"
                self.bridges[item.name] = replace(item, created=created, resource_version=str(self.version))
            else:
                self.put_class(item)

    def put_class(self, item):
        """Write a class; the scheduler hears of it."""
        self.version += 1
        former = self.classes.get(item.name)
        self.classes[item.name] = replace(item, resource_version=str(self.version), uid=item.uid or f"u{self.version}")
        if former is not None and former.extended_name and former.extended_name != item.extended_name:
            self.known.pop(former.extended_name, None)
        if item.extended_name:
            self.known[item.extended_name] = item.name
        self._note()

    def remove_class(self, name):
        gone = self.classes.pop(name)
        if gone.extended_name:
            self.known.pop(gone.extended_name, None)
        self._note()

    def delete(self, name):
        """Somebody deletes a bridge."""
        found = self.bridges[name]
        if found.finalizers:
            self.bridges[name] = replace(found, deleting=True)
        else:
            del self.bridges[name]

    def change(self, name, **spec):
        """Somebody edits a bridge's spec."""
        found = self.bridges[name]
        self.bridges[name] = replace(found, spec=replace(found.spec, **spec), generation=found.generation + 1)

    def _note(self):
        carriers = self.carriers()
        self.carried |= carriers
        self.history.append(carriers)

    def carriers(self, name=NAME):
        return frozenset(each.name for each in self.classes.values() if each.extended_name == name)

    # --- the controller --------------------------------------------------------------------------

    def situation(self, name=NAME):
        ordered = sorted(self.bridges.values(), key=lambda each: (each.created, each.name))
        owners = owners_of(ordered, self.classes)
        mine = tuple(each for each in ordered if each.spec.resource_name == name)
        return Situation(
            resource_name=name,
            bridges=mine,
            classes=dict(self.classes),
            owners=owners,
            users={key: tuple(sorted(value)) for key, value in self.users.items()},
            devices={each.name: self.devices for each in mine},
            nodes={each.name: self.nodes for each in mine},
            unsupported=self.unsupported,
            writer=f"controller-{self.incarnation}",
            rivals=self.rivals if name == NAME else frozenset(),
            waiting=self.waiting,
        )

    def step(self, name=NAME, *, interrupted_after=None):
        """One look, as the reconciler does it; a crash after some actions forgets what only memory had.

        Who carries it beside ours is remembered for NAME only.
        """
        if name == NAME:
            self.rivals |= self.carried
            self.carried = set()
        decision = decide(self.situation(name))
        versions = {}
        for index, action in enumerate(decision.actions):
            if index == interrupted_after:
                self.crash()
                return decision
            self.do(action, versions)
        if interrupted_after is not None:
            self.crash()
            return decision
        if name == NAME:
            self.rivals = decision.rivals
        self.tellings += decision.tellings
        for each, status in decision.statuses.items():
            if each in self.bridges:
                self.bridges[each] = replace(self.bridges[each], status=status)
        return decision

    def keep(self, *, interrupted_after=None):
        """A look at base classes."""
        if self.keeping is None:
            return ()
        decision = keep_base_classes(self.classes, self.bridges.values(), self.keeping, self.base_states)
        versions = {}
        for action in decision.actions[:interrupted_after]:
            self.do(action, versions)
        if interrupted_after is not None:
            self.crash()
            return decision.actions
        self.base_states = decision.states
        self.notices += decision.notices
        return decision.actions

    def crash(self):
        self.base_states = {}
        self.rivals, self.carried = frozenset(), set(self.carriers())
        self.incarnation += 1

    def settle(self, name=NAME):
        """Look at a name until nothing is to be done."""
        for _ in range(10):
            if not [*self.step(name).actions, *self.keep()]:
                return
        raise AssertionError(f"never comes to rest: {self.step(name).actions}, {self.keep()}")

    def do(self, action, versions):
        match action:
            case AddFinalizer() | RemoveFinalizer():
                self._finalize(action)
            case ClearName():
                found = self._guarded(action, versions)
                spec = {key: value for key, value in found.spec.items() if key != "extendedResourceName"}
                self._write(replace(found, spec=spec), versions)
            case ReleaseClass():
                found = self._guarded(action, versions)
                spec = {**found.spec, **action.spec, "extendedResourceName": None}
                spec = {key: value for key, value in spec.items() if value is not None}
                labels = {**_without(found.labels, OURS), **action.labels}
                self._write(
                    replace(found, spec=spec, labels=labels, annotations=_without(found.annotations, NOTES)), versions
                )
            case ApplyClass():
                self._apply(action, versions)
            case DeleteClass():
                self._guarded(action, versions)
                self.remove_class(action.name)

    def _finalize(self, action):
        found = self.bridges[action.bridge]
        assert found.resource_version == action.resource_version
        if found.deleting and FINALIZER not in action.finalizers:
            del self.bridges[action.bridge]
            return
        self.version += 1
        self.bridges[action.bridge] = replace(found, finalizers=action.finalizers, resource_version=str(self.version))

    def _guarded(self, action, versions):
        found = self.classes[action.name]
        if found.resource_version != versions.get(action.name, action.resource_version):
            raise ConflictError(action)
        return found

    def _apply(self, action, versions):
        others = self.carriers(action.extended_name) - {action.name} if action.extended_name else set()
        found = self.classes.get(action.name)
        had = found is not None and found.extended_name == action.extended_name
        assert had or not others, f"{action.name} would carry {action.extended_name} beside {others}"
        if action.resource_version:
            self._guarded(action, versions)
        made = found or SeenClass(name=action.name)
        self._write(
            replace(
                made,
                # What we owned and leave out now goes: so it is with server-side apply.
                labels={**_without(made.labels, OURS), **action.labels},
                annotations={**_without(made.annotations, NOTES), **action.annotations},
                spec={**made.spec, **action.spec},
            ),
            versions,
        )

    def _write(self, item, versions):
        self.put_class(item)
        versions[item.name] = self.classes[item.name].resource_version

    # --- asking ----------------------------------------------------------------------------------

    def status(self, name="gpu") -> BridgeStatus:
        return self.bridges[name].status

    def reasons(self, name="gpu"):
        """Reason of each condition that holds, and why it is not ready."""
        conditions = self.status(name).conditions
        return {str(each.type): each.reason for each in conditions if each.holds or each.type == "Ready"}

    def edited(self, name, **fields):
        """A class with other fields, as somebody writes it who takes the rest as it is."""
        return replace(self.classes[name], **fields)


def _without(mapping, keys):
    return {key: value for key, value in mapping.items() if key not in keys}


__all__ = ["FINALIZER", "NAME", "Mode", "World", "bridge", "foreign"]
