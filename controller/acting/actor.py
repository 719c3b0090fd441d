"""Writes of classes and bridges, each guarded by what was seen when it was decided."""

import contextlib
import datetime as dt
from collections.abc import Callable, Iterable, Mapping

import structlog

from controller.api import (
    ADOPTED_ANNOTATION,
    BASE_LABEL,
    BRIDGE_LABEL,
    BRIDGES,
    FIELD_MANAGER,
    FORMER_ANNOTATION,
    HASH_ANNOTATION,
    MANAGED_BY_LABEL,
    WRITER_ANNOTATION,
    Bridge,
    BridgeStatus,
    encode_status,
)
from controller.bridges import (
    Action,
    AddFinalizer,
    ApplyClass,
    ClearName,
    DeleteClass,
    ReleaseClass,
    RemoveFinalizer,
)
from controller.watching import Watcher
from dradriver.kube import DEVICE_CLASSES, AlreadyExistsError, Client, KubeError, NotFoundError, Object

log = structlog.get_logger(__name__)

_OURS = {
    "labels": (MANAGED_BY_LABEL, BRIDGE_LABEL, BASE_LABEL),
    "annotations": (HASH_ANNOTATION, WRITER_ANNOTATION, ADOPTED_ANNOTATION, FORMER_ANNOTATION),
}


class NotLeadingError(KubeError):
    """Somebody else may lead by now: nothing was written."""


class TakenError(KubeError):
    """Another class has got the extended resource name meanwhile: nothing was written."""


class Actor:
    """Carries out actions. Not for several threads.

    Args:
        client: access to the API server.
        watcher: told what was written, so that the next decision knows.
        may_act: asked before every write.
        on_action: told the name of each action that was done.
    """

    def __init__(
        self,
        client: Client,
        watcher: Watcher,
        *,
        may_act: Callable[[], bool],
        on_action: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._client = client
        self._watcher = watcher
        self._may_act = may_act
        self._on_action = on_action
        self._versions: dict[str, str] = {}

    def act(self, actions: tuple[Action, ...]) -> None:
        """Carry out a decision's actions in their order.

        Raises:
            KubeError: at the first that fails, among them ConflictError if something is not any more as it was seen,
                TakenError and NotLeadingError; those behind it are not done.
        """
        # What we write ourselves on the way is no reason to stop.
        self._versions = {}
        for action in actions:
            self._check()
            log.info("acting", action=type(action).__name__, object=_object(action))
            self._do(action)
            self._on_action(type(action).__name__)

    def write_status(self, bridge: Bridge, status: BridgeStatus, *, former: Mapping[str, object]) -> None:
        """Write a bridge's status; one that is gone is none.

        Raises:
            KubeError: it was not written.
        """
        self._check()
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = _head(bridge.name) | {"status": encode_status(status, former=former, now=now)}
        try:
            answer = self._client.apply(BRIDGES, body, field_manager=FIELD_MANAGER, subresource="status")
        except NotFoundError:
            return
        self._watcher.note_bridge(answer)
        self._on_action("WriteStatus")

    def change_bridges(self, create: Iterable[Object], delete: Iterable[tuple[str, str]]) -> None:
        """Create bridges that were discovered, and delete those, by name and uid, whose profile is gone.

        Raises:
            KubeError: at the first that fails; somebody's own bridge of the same name is none.
        """
        for body in create:
            self._check()
            with contextlib.suppress(AlreadyExistsError):
                self._watcher.note_bridge(self._client.create(BRIDGES, body))
            self._on_action("CreateBridge")
        for name, uid in delete:
            self._check()
            with contextlib.suppress(NotFoundError):
                self._client.delete(BRIDGES, name, uid=uid)
            self._on_action("DeleteBridge")

    def _check(self) -> None:
        if not self._may_act():
            raise NotLeadingError("this process does not lead any more: nothing is written")

    def _do(self, action: Action) -> None:
        match action:
            case ClearName():
                self._patch_class(action.name, action.resource_version, {"spec": {"extendedResourceName": None}})
            case ApplyClass():
                self._apply(action)
            case ReleaseClass():
                metadata: Object = {part: dict.fromkeys(names) for part, names in _OURS.items()}
                metadata["labels"] |= action.labels
                body = {"metadata": metadata, "spec": {**action.spec, "extendedResourceName": None}}
                self._patch_class(action.name, action.resource_version, body)
            case DeleteClass():
                self._delete(action)
            case AddFinalizer() | RemoveFinalizer():
                self._set_finalizers(action)

    def _apply(self, action: ApplyClass) -> None:
        if action.extended_name:
            self._make_sure_that_nobody_has(action.extended_name, but=action.name)
        metadata: Object = {"name": action.name, "labels": action.labels, "annotations": action.annotations}
        version = self._versions.get(action.name, action.resource_version)
        body = {
            "apiVersion": DEVICE_CLASSES.api_version,
            "kind": DEVICE_CLASSES.kind,
            "metadata": metadata | ({"resourceVersion": version} if version else {}),
            "spec": action.spec,
        }
        # Not with force where none was seen: one that somebody made meanwhile is a conflict then.
        self._note(self._client.apply(DEVICE_CLASSES, body, field_manager=FIELD_MANAGER, force=bool(version)))

    def _make_sure_that_nobody_has(self, extended_name: str, *, but: str) -> None:
        """Look at the classes as they are now, since what the watch has told may be a moment old."""
        for item in self._client.list(DEVICE_CLASSES).items:
            seen = self._watcher.note_class(item)
            if seen.extended_name == extended_name and seen.name != but:
                raise TakenError(
                    f"DeviceClass {seen.name} carries {extended_name} by now, which DeviceClass {but} was to get; "
                    "it is decided anew"
                )

    def _patch_class(self, name: str, resource_version: str, body: Object) -> None:
        version = self._versions.get(name, resource_version)
        guard = {"resourceVersion": version}
        guarded = body | {"metadata": body.get("metadata", {}) | guard}
        try:
            self._note(self._client.patch(DEVICE_CLASSES, name, guarded, field_manager=FIELD_MANAGER))
        except NotFoundError:
            # Then it has no name either.
            log.info("class is gone", name=name)

    def _delete(self, action: DeleteClass) -> None:
        version = self._versions.get(action.name, action.resource_version)
        try:
            self._client.delete(DEVICE_CLASSES, action.name, uid=action.uid, resource_version=version)
        except NotFoundError:
            log.info("class is gone", name=action.name)
        self._watcher.forget(DEVICE_CLASSES, action.name, action.uid)

    def _set_finalizers(self, action: AddFinalizer | RemoveFinalizer) -> None:
        metadata = {"resourceVersion": action.resource_version, "finalizers": list(action.finalizers)}
        try:
            answer = self._client.patch(BRIDGES, action.bridge, {"metadata": metadata}, field_manager=FIELD_MANAGER)
        except NotFoundError:
            return
        if action.finalizers:
            self._watcher.note_bridge(answer)
        else:
            self._watcher.forget(BRIDGES, action.bridge, answer["metadata"]["uid"])

    def _note(self, answer: Object) -> None:
        seen = self._watcher.note_class(answer)
        self._versions[seen.name] = seen.resource_version


def _head(name: str) -> Object:
    return {"apiVersion": BRIDGES.api_version, "kind": BRIDGES.kind, "metadata": {"name": name}}


def _object(action: Action) -> str:
    match action:
        case AddFinalizer() | RemoveFinalizer():
            return f"ExtendedResourceBridge {action.bridge}"
        case _:
            return f"DeviceClass {action.name}"
