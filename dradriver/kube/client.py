"""Five verbs and a watch on plain dicts.

No typed models: they cost tens of MiB, and a model that is older than the server drops what it does not know, which
the next PUT would then erase. No limit on the client's side either; the server has priority and fairness for that.
"""

import email.utils
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

from dradriver.kube.errors import GoneError, ServerError, from_status, mapping, wait_seconds
from dradriver.kube.resources import Object, Resource
from dradriver.kube.transport import Request, Stream, Transport

_OK = range(200, 300)
_PAGED_ATTEMPTS = 3
"""To read a list page by page: the API server keeps old states for minutes, and each attempt begins with the newest."""


class PatchKind(StrEnum):
    """Media types of patches."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"
    """Server-side apply; JSON is valid YAML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Which objects of a resource.

    Attributes:
        namespace: "" means all.
        fields: field selector.
        labels: label selector.
    """

    namespace: str = ""
    fields: str = ""
    labels: str = ""

    def query(self) -> dict[str, str]:
        """As query parameters."""
        given = {"fieldSelector": self.fields, "labelSelector": self.labels}
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Objects, and the resourceVersion at which they were read."""

    items: tuple[Object, ...]
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """One change: type ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: Object


class Watch:
    """Events of one stream, in order, until the server ends it."""

    def __init__(self, stream: Stream, *, target: str) -> None:
        self._stream = stream
        self._target = target

    def events(self) -> Iterator[WatchEvent]:
        """Iterate over the events.

        Raises:
            GoneError: the resourceVersion is too old (it may come as HTTP status or inside the stream).
            ApiError: any other Status inside the stream.
            UnreachableError: the connection broke, was silent for too long, or was aborted.
        """
        for line in self._stream.lines():
            document = _decode(line, target=self._target)
            item = document.get("object")
            if document.get("type") == "ERROR" or not isinstance(item, dict):
                status = mapping(item)
                raise from_status(_code(status), status, target=self._target)
            yield WatchEvent(type=str(document.get("type")), object=item)

    def abort(self) -> None:
        """End the iteration in another thread."""
        self._stream.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()


class Client:
    """Access to the API server. Safe to share between threads.

    All calls raise ApiError (by status), UnreachableError, ImpossibleNameError or KubeconfigError, and nothing else.

    Args:
        transport: carries the requests.
        timeout: seconds after which a call that has not been answered in full is given up.
    """

    def __init__(self, transport: Transport, *, timeout: float = 30.0) -> None:
        self._transport = transport
        self._timeout = timeout

    def get(self, resource: Resource, name: str, *, namespace: str = "", timeout: float | None = None) -> Object:
        """Read one object, live."""
        return self._call("GET", resource.path(namespace=namespace, name=name), timeout=timeout)

    def list(
        self,
        resource: Resource,
        *,
        selector: Selector = Selector(),
        resource_version: str = "",
        limit: int = 500,
        project: Callable[[Object], Object] = lambda item: item,
    ) -> Listing:
        """Read all pages of a list.

        Args:
            resource: what to list.
            selector: which of them.
            resource_version: "" is the newest state (quorum read); "0" is whatever the server has in its cache.
            limit: objects for each page. A server that answers from its cache ("0") may send all at once.
            project: what is kept of each object, called page by page so that never all of them are there in full.
        """
        query = selector.query() | ({"resourceVersion": resource_version} if resource_version else {})
        path = resource.path(namespace=selector.namespace)

        def kept(page: Object) -> Iterator[Object]:
            return (project(item) for item in _items(page, resource))

        for _ in range(_PAGED_ATTEMPTS):
            # Where the pages' snapshot is compacted while we read, they are of no use together.
            with suppress(GoneError):
                return self._pages(path, query, str(limit), kept)
        # All at once cannot suffer that, but takes room for all of it.
        page = self._call("GET", path, query=selector.query())
        return Listing(items=tuple(kept(page)), resource_version=_version(page))

    def _pages(
        self, path: str, query: Mapping[str, str], limit: str, kept: Callable[[Object], Iterable[Object]]
    ) -> Listing:
        """Read a list page by page.

        Raises:
            GoneError: the first pages are too old by now for the next one.
        """
        page = self._call("GET", path, query={**query, "limit": limit})
        items = list(kept(page))
        while token := mapping(page.get("metadata")).get("continue"):
            others = {name: value for name, value in query.items() if name != "resourceVersion"}
            page = self._call("GET", path, query=others | {"limit": limit, "continue": token})
            items += kept(page)
        return Listing(items=tuple(items), resource_version=_version(page))

    def create(
        self, resource: Resource, body: Object, *, dry_run: bool = False, timeout: float | None = None
    ) -> Object:
        """Create; the namespace is the object's own. Unknown fields are an InvalidError, as in all writes."""
        path = resource.path(namespace=_namespace(body))
        return self._call("POST", path, query=_write_query(dry_run=dry_run), body=body, timeout=timeout)

    def replace(
        self,
        resource: Resource,
        body: Object,
        *,
        subresource: str = "",
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> Object:
        """Replace; a resourceVersion or uid in the object's metadata is a precondition (ConflictError)."""
        name = body["metadata"]["name"]
        path = resource.path(namespace=_namespace(body), name=name, subresource=subresource)
        return self._call("PUT", path, query=_write_query(dry_run=dry_run), body=body, timeout=timeout)

    def patch(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any] | tuple[Mapping[str, Any], ...],
        *,
        kind: PatchKind = PatchKind.MERGE,
        namespace: str = "",
        subresource: str = "",
        field_manager: str = "dradriver",
    ) -> Object:
        """Patch; a JSON patch is a tuple of operations."""
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        query = _write_query() | {"fieldManager": field_manager}
        return self._call("PATCH", path, query=query, body=body, content_type=kind)

    def apply(
        self,
        resource: Resource,
        body: Object,
        *,
        field_manager: str,
        subresource: str = "",
        force: bool = True,
        dry_run: bool = False,
    ) -> Object:
        """Server-side apply of a partial object.

        Args:
            resource: type of the object.
            body: the fields we own, with apiVersion, kind and name.
            field_manager: who we are.
            subresource: such as `status`.
            force: take over fields that others own.
            dry_run: validate only.
        """
        query = _write_query(dry_run=dry_run) | {"fieldManager": field_manager, "force": str(force).lower()}
        path = resource.path(namespace=_namespace(body), name=body["metadata"]["name"], subresource=subresource)
        return self._call("PATCH", path, query=query, body=body, content_type=PatchKind.APPLY)

    def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
    ) -> Object:
        """Delete, if uid and resourceVersion (where given) are still the object's (ConflictError)."""
        given = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {key: value for key, value in given.items() if value}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        return self._call("DELETE", resource.path(namespace=namespace, name=name), body=body)

    def watch(
        self,
        resource: Resource,
        *,
        selector: Selector = Selector(),
        resource_version: str,
        seconds: float,
        silence: float = 150.0,
    ) -> Watch:
        """Open one watch, with bookmarks.

        Args:
            resource: what to watch.
            selector: which of them.
            resource_version: where the last list or watch ended.
            seconds: after which the server ends the stream by itself.
            silence: seconds without a word after which the connection counts as dead; bookmarks come each minute.
        """
        query = selector.query() | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(round(seconds)),
        }
        path = resource.path(namespace=selector.namespace)
        stream = self._transport.open(Request(method="GET", path=path, query=query, timeout=silence))
        target = f"WATCH {path}"
        if stream.status not in _OK:
            try:
                body = b"\n".join(stream.lines())
            finally:
                stream.close()
            raise from_status(stream.status, _document(body), target=target, retry_after=_retry_after(stream.headers))
        return Watch(stream, target=target)

    def server_version(self) -> tuple[int, int]:
        """Ask for the version of Kubernetes: major and minor.

        Raises:
            ServerError: what answered is no API server.
        """
        answer = self._call("GET", "/version")
        try:
            # Some distributions write 36+.
            return int(answer["major"]), int(str(answer["minor"]).rstrip("+"))
        except (KeyError, ValueError) as error:
            raise _unreadable(json.dumps(answer).encode(), target="GET /version") from error

    def close(self) -> None:
        """Close idle connections."""
        self._transport.close()

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        timeout: float | None = None,
    ) -> Object:
        request = Request(
            method=method,
            path=path,
            query=query or {},
            body=None if body is None else json.dumps(body, separators=(",", ":")).encode(),
            content_type=content_type,
            timeout=self._timeout if timeout is None else timeout,
        )
        answer = self._transport.send(request)
        target = f"{method} {path}"
        if answer.status not in _OK:
            raise from_status(
                answer.status, _document(answer.body), target=target, retry_after=_retry_after(answer.headers)
            )
        return _decode(answer.body, target=target)


def _write_query(*, dry_run: bool = False) -> dict[str, str]:
    # Strict: a server too old for a field says so instead of storing the rest.
    query = {"fieldValidation": "Strict", "fieldManager": "dradriver"}
    return query | {"dryRun": "All"} if dry_run else query


def _namespace(body: Object) -> str:
    return str((body.get("metadata") or {}).get("namespace") or "")


def _version(page: Object) -> str:
    return str(mapping(page.get("metadata")).get("resourceVersion") or "")


def _items(page: Object, resource: Resource) -> list[Object]:
    """Items of a list lack apiVersion and kind; a caller should not have to know where an object came from."""
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    items = page.get("items") or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise _unreadable(json.dumps(page).encode(), target=f"LIST {resource.plural}")
    return [head | item for item in items]


def _decode(body: bytes, *, target: str) -> Object:
    document = _parsed(body)
    if document is None:
        raise _unreadable(body, target=target)
    return document


def _unreadable(body: bytes, *, target: str) -> ServerError:
    message = f"unreadable answer {body[:80]!r}; is that the API server, or a proxy?"
    return ServerError(status=200, reason="Unreadable", message=message, target=target)


def _document(body: bytes) -> Object:
    """A Status object, or the text that something in front of the API server sent instead."""
    document = _parsed(body)
    return {"message": body[:200].decode(errors="replace").strip()} if document is None else document


def _parsed(body: bytes) -> Object | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _code(status: Mapping[str, Any]) -> int:
    """The HTTP status that a Status object names; 500 where it names none."""
    code = status.get("code")
    return code if isinstance(code, int) else 500


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds from Retry-After, which may be a number or a date; None if absent or unreadable."""
    value = headers.get("retry-after", "")
    if not value.endswith("GMT"):
        return wait_seconds(value)
    try:
        date = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    return wait_seconds(date.timestamp() - time.time())
