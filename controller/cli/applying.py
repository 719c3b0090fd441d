"""Writes a plan into the cluster by server-side apply, never by force.

What is somebody else's stays as it is, and is told; the other objects are written all the same.
"""

import shlex
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from controller.api import BRIDGES
from controller.cli.differences import differences, patch, without_mode
from controller.cli.wanted import (
    CONFIG_MAPS,
    FIELD_MANAGER,
    LABEL,
    NODE_CONFIG_MAP,
    NODE_CONFIG_NAMESPACE,
    QUOTAS,
    bridges,
    labels,
    node_configs,
    stale_bridges,
    stale_quotas,
)
from controller.cli.writes import Refusal, Write, title
from controller.importing import Plan
from dradriver.kube import NODES, Client, ConflictError, InvalidError, KubeError, NotFoundError, Object, Resource


class What(StrEnum):
    """What became of an object."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    PARTLY = "changed in part"
    """Some of its fields are somebody else's."""
    LEFT = "left as it is"
    """It is somebody else's, or cannot be written."""
    STALE = "no longer planned"
    """An earlier plan has written it; it is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one object.

    Attributes:
        object: which.
        what: became of it.
        told: cause and next step, where it is not as the plan wants it, or not wanted any more.
    """

    object: str
    what: What
    told: str = ""

    @property
    def failed(self) -> bool:
        """Whether the plan could not be written as it is."""
        return self.what in (What.PARTLY, What.LEFT)


_INSTALL: Final = "kubectl apply -f deploy/crds"
_CRD_MISSING: Final = f"the cluster does not know ExtendedResourceBridges; install them and apply again: {_INSTALL}"
_NAMESPACE_MISSING: Final = (
    f"make the namespace {NODE_CONFIG_NAMESPACE} (kubectl apply -f deploy/rbac.yaml) and apply again"
)
_KEPT: Final = frozenset({"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"})
"""Of an object's metadata: what the API server keeps, and is no change by itself."""


def apply(client: Client, plan: Plan, *, dry_run: bool = False, quotas: bool = False) -> Iterator[Outcome]:
    """Write what the plan says, object by object; never raises for one of them.

    Args:
        client: access to the API server.
        plan: what to write.
        dry_run: let the API server check everything and store nothing.
        quotas: write the plan's additional ResourceQuotas, too.
    """
    work = _Applier(client, dry_run=dry_run)
    yield from work.bridges(plan)
    served = yield from work.node_configs(plan)
    yield from work.labels(plan, served)
    if quotas:
        yield from work.quotas(plan)


class _Applier:
    def __init__(self, client: Client, *, dry_run: bool) -> None:
        self._client = client
        self._dry_run = dry_run

    def bridges(self, plan: Plan) -> Iterator[Outcome]:
        try:
            live = self._client.list(BRIDGES).items
        except NotFoundError:
            if plan.bridges:
                yield Outcome(object=f"{BRIDGES.kind}s", what=What.LEFT, told=_CRD_MISSING)
        except KubeError as error:
            yield _unread(f"{BRIDGES.kind}s", error)
        else:
            yield from self._all(bridges(plan, live))
            yield from map(_stale, stale_bridges(plan, live))

    def node_configs(self, plan: Plan) -> Generator[Outcome, None, frozenset[str]]:
        """Write the ConfigMap; returns the configurations of the plan that it has then."""
        if not plan.node_configs["configs"]:
            return frozenset()
        try:
            live = self._find(CONFIG_MAPS, NODE_CONFIG_MAP, NODE_CONFIG_NAMESPACE)
        except KubeError as error:
            yield _unread(f"ConfigMap {NODE_CONFIG_NAMESPACE}/{NODE_CONFIG_MAP}", error)
            return frozenset()
        wanted = node_configs(plan, live)
        done = self._done(wanted.item)
        yield done
        return wanted.present if done.what is What.LEFT else wanted.names

    def labels(self, plan: Plan, served: frozenset[str]) -> Iterator[Outcome]:
        if not plan.nodes:
            return
        try:
            live = self._client.list(NODES, project=_metadata).items
        except KubeError as error:
            yield _unread("Nodes", error)
            return
        yield from self._all(labels(plan, live, served))

    def quotas(self, plan: Plan) -> Iterator[Outcome]:
        for body in plan.limits.quotas:
            metadata = body["metadata"]
            try:
                live = self._find(QUOTAS, metadata["name"], metadata["namespace"])
            except KubeError as error:
                yield _unread(title(QUOTAS, metadata), error)
            else:
                yield self._done(Write(resource=QUOTAS, body=dict(body), live=live))
        yield from self._stale_quotas(plan)

    def _stale_quotas(self, plan: Plan) -> Iterator[Outcome]:
        try:
            live = self._client.list(QUOTAS).items
        except KubeError:
            # That quotas cannot be listed was told when the cluster was read.
            return
        for namespace, name in stale_quotas(plan, live):
            delete = shlex.join(["kubectl", "delete", "resourcequota", name, "-n", namespace])
            yield Outcome(
                object=f"{QUOTAS.kind} {namespace}/{name}",
                what=What.STALE,
                told="an earlier --apply has written it, and the plan has it no more; it still limits claims of its "
                f"namespace; where nobody needs it, delete it: {delete}",
            )

    def _find(self, resource: Resource, name: str, namespace: str) -> Object | None:
        try:
            return self._client.get(resource, name, namespace=namespace)
        except NotFoundError:
            return None

    def _all(self, items: Iterable[Write | Refusal]) -> Iterator[Outcome]:
        return map(self._done, items)

    def _done(self, item: Write | Refusal) -> Outcome:
        if isinstance(item, Refusal):
            return Outcome(object=item.object, what=What.LEFT, told=f"{item.why}; {item.todo}")
        if not item.needed:
            return Outcome(object=str(item), what=What.UNCHANGED, told=_otherwise(item))
        try:
            answer = self._write(item)
        except ConflictError as error:
            return self._rest(item, error)
        except KubeError as error:
            return Outcome(object=str(item), what=What.LEFT, told=_told(item, error))
        if item.live is None:
            return Outcome(object=str(item), what=What.CREATED)
        same = _content(answer) == _content(item.live)
        return Outcome(object=str(item), what=What.UNCHANGED if same else What.CHANGED)

    def _rest(self, item: Write, error: ConflictError) -> Outcome:
        """Write what nobody else has set, where it means something by itself; tell what is left."""
        left = Outcome(object=str(item), what=What.LEFT, told=_told(item, error))
        rest = without_mode(item)
        if rest is None or item.live is None:
            return left
        try:
            answer = self._write(rest)
        except KubeError:
            # Somebody has set more since it was read.
            return left
        if _content(answer) == _content(item.live):
            return left
        told = _told(replace(item, live=answer), error)
        return Outcome(object=str(item), what=What.PARTLY, told=f"{told}; its other fields are as planned")

    def _write(self, item: Write) -> Object:
        return self._client.apply(
            item.resource, item.body, field_manager=FIELD_MANAGER, force=False, dry_run=self._dry_run
        )


def _stale(name: str) -> Outcome:
    return Outcome(
        object=f"{BRIDGES.kind} {name}",
        what=What.STALE,
        told="an earlier --apply has written it, and the plan has it no more; pods that ask for its resource still get "
        f"devices by it; where nobody needs it, delete it: kubectl delete erb {shlex.quote(name)}",
    )


def _metadata(node: Object) -> Object:
    return {"metadata": node["metadata"]}


def _content(item: Object) -> Object:
    """Leave out what the API server keeps; of a node, only metadata were read."""
    metadata = {name: value for name, value in item["metadata"].items() if name not in _KEPT}
    if item.get("kind", NODES.kind) == NODES.kind:
        return {"metadata": metadata}
    return {name: value for name, value in item.items() if name != "status"} | {"metadata": metadata}


def _told(item: Write, error: KubeError) -> str:
    if isinstance(error, NotFoundError) and item.resource is CONFIG_MAPS:
        return f"{error}; {_NAMESPACE_MISSING}"
    # A field that the CRD lacks is answered with status 500 by API servers up to 1.37.
    if item.resource is BRIDGES and (isinstance(error, InvalidError) or "not declared in schema" in str(error)):
        return f"{error}; where the CRD is older than this program, bring it up to date and apply again: {_INSTALL}"
    if isinstance(error, ConflictError):
        return f"somebody else has set it otherwise ({error.message}); {_remedy(item)}"
    return f"{error}; see to that and apply again"


def _remedy(item: Write) -> str:
    if item.resource is CONFIG_MAPS:
        return (
            "put the node configurations of the plan into it by hand (kubectl dra plan -o yaml shows them), or delete "
            "it if nobody needs what it has, and apply again"
        )
    if item.resource is NODES:
        return f"see who sets the label {LABEL}, and apply again"
    return _otherwise(item) or "see who changes it at this moment, and apply again"


def _otherwise(item: Write) -> str:
    """Tell each field that is not as the plan wants it, and the command that sets them; "" for none."""
    found = "; ".join(map(str, differences(item)))
    return f"{found}; leave it so, or set what the plan wants: {patch(item)}" if found else ""


def _unread(what: str, error: KubeError) -> Outcome:
    return Outcome(object=what, what=What.LEFT, told=f"cannot be read, so nothing was written: {error}")
