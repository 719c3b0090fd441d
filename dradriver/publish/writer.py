"""Single writes, and what their answers mean for what we know."""

from collections.abc import Callable

from dradriver.kube import (
    RESOURCE_SLICES,
    AlreadyExistsError,
    Client,
    ConflictError,
    KubeError,
    NotFoundError,
    Object,
    Store,
)
from dradriver.publish.errors import DroppedFieldsError, NameTakenError, WriteError
from dradriver.publish.features import dropped_fields
from dradriver.publish.plan import Accepted, Identity, Plan, is_owned
from dradriver.publish.status import Meter
from dradriver.resource import same_content

COUNTER_FIELDS = frozenset({"sharedCounters", "consumesCounters"})


class Writer:
    """Carries plans out. Every answer goes into the store, so that the next plan starts from the truth.

    Where somebody else was quicker, the live object is read into the store and the next plan deals with it.

    Args:
        client: access to the API server.
        store: what is known of our slices.
        identity: whose slices.
        meter: counts writes.
        on_dropped: told of fields without which the offer is poorer but not wrong.
    """

    def __init__(
        self,
        client: Client,
        store: Store,
        identity: Identity,
        *,
        meter: Meter,
        on_dropped: Callable[[DroppedFieldsError], None],
    ) -> None:
        self._client = client
        self._store = store
        self._identity = identity
        self._meter = meter
        self._on_dropped = on_dropped
        self._conflicted = False
        self._missed = False
        self.accepted: dict[str, Accepted] = {}
        self.disowned: set[str] = set()

    def execute(self, plan: Plan) -> bool:
        """Do what the plan says.

        Nothing is deleted as obsolete unless all that is to take its place was written.

        Returns:
            Whether somebody else had written one of the slices, so that it still waits for the next plan.

        Raises:
            WriteError: one write failed; those before it are done. Also a conflict with nobody: what the server
                has is what we knew, so that trying again at once would lead nowhere.
            DroppedFieldsError: counters were left out; the slice is there without them and must go.
            NameTakenError: see there.
        """
        self._conflicted = self._missed = False
        for item in plan.clears:
            self._delete(item)
        for body in plan.updates:
            self._update(body)
        for body in plan.creates:
            self._create(body)
        for item in plan.deletes if not (self._conflicted or self._missed) else ():
            self._delete(item)
        return self._conflicted

    def _update(self, body: Object) -> None:
        try:
            echo = self._client.replace(RESOURCE_SLICES, body)
        except NotFoundError:
            self._missed = True
            self._store.forget(body)
        except ConflictError as error:
            self._refresh(body, error)
        except KubeError as error:
            raise WriteError(_name(body), error) from error
        else:
            self._take(body, echo, verb="update")

    def _create(self, body: Object) -> None:
        try:
            echo = self._client.create(RESOURCE_SLICES, body)
        except AlreadyExistsError as error:
            self._refresh(body, error)
        except KubeError as error:
            raise WriteError(_name(body), error) from error
        else:
            self._take(body, echo, verb="create")

    def _delete(self, item: Object) -> None:
        metadata = item["metadata"]
        try:
            echo = self._client.delete(
                RESOURCE_SLICES, _name(item), uid=metadata["uid"], resource_version=metadata["resourceVersion"]
            )
        except NotFoundError:
            self._store.forget(item)
        except ConflictError as error:
            self._refresh(item, error)
        except KubeError as error:
            raise WriteError(_name(item), error) from error
        else:
            self._meter.wrote("delete")
            if "deletionTimestamp" in echo.get("metadata", {}):
                # Somebody's finalizer keeps it, and it counts until then.
                self._store.put(echo)
            else:
                self._store.forget(item)

    def _refresh(self, body: Object, conflict: ConflictError) -> None:
        """Read the live object, because what we knew of it was old."""
        name = _name(body)
        live = self._read(name)
        if live is None:
            self._store.forget(body)
        elif not self._identity.owns(live):
            spec = live["spec"]
            raise NameTakenError(name, driver=spec.get("driver", ""), node_name=spec.get("nodeName", ""))
        else:
            self._store.put(live)
        if (live or {}).get("metadata", {}).get("resourceVersion") == body["metadata"].get("resourceVersion"):
            raise WriteError(name, conflict) from conflict
        self._conflicted = True

    def _read(self, name: str) -> Object | None:
        try:
            return self._client.get(RESOURCE_SLICES, name)
        except NotFoundError:
            return None
        except KubeError as error:
            raise WriteError(name, error) from error

    def _take(self, body: Object, echo: Object, *, verb: str) -> None:
        self._meter.wrote(verb)
        self._store.put(echo)
        name, sent, stored = _name(body), body["spec"], echo["spec"]
        self.accepted.pop(name, None)
        if not all(is_owned(echo, owner) for owner in body["metadata"]["ownerReferences"]):
            self.disowned.add(name)
        else:
            self.disowned.discard(name)
        if same_content(stored, sent):
            return
        error = DroppedFieldsError(name, dropped_fields(sent, stored))
        if error.fields & COUNTER_FIELDS:
            raise error
        self.accepted[name] = Accepted(sent=sent, stored=stored)
        self._on_dropped(error)


def _name(item: Object) -> str:
    return str(item["metadata"]["name"])
