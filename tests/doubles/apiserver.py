"""A small API server on the loopback interface that can also misbehave.

It keeps objects with resourceVersions and a history, answers the five verbs, lists in pages and watches with
bookmarks. What it does wrong is asked for with `fail`. Every request is recorded, so that a test can count them.
"""

import contextlib
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

Object = dict[str, Any]
PATIENCE = 20.0
"""Seconds a test waits for something that ought to happen at once, on a machine that may be busy."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One request as it came in, and the client's port, which tells connections apart."""

    method: str
    path: str
    query: dict[str, str]
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    epoch: int = 0
    marks: int = 0
    port: int = 0

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"

    @property
    def is_write(self) -> bool:
        return self.method != "GET" and "dryRun" not in self.query


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong with a request.

    Attributes:
        status: answer with this status and do nothing.
        reason: of the Status object.
        message: of the Status object.
        headers: sent with it.
        raw: body instead of a Status object.
        silent: never answer (until released by `close`).
        reset: break the connection without an answer.
        stream_status: 200, then an ERROR event with this code.
        stream_ends: 200, then the end of the stream.
        stream_silent: 200, then nothing.
        late: answer only after having done the work and then broken the connection.
        truncated: do the work, and break the connection in the middle of the answer.
    """

    status: int = 0
    reason: str = ""
    message: str = "made to fail"
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    silent: bool = False
    reset: bool = False
    stream_status: int = 0
    stream_ends: bool = False
    stream_silent: bool = False
    late: bool = False
    truncated: bool = False


class Refusal(Exception):  # noqa: N818 - a signal inside this double
    def __init__(self, status: int, reason: str, message: str = "") -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message or reason


@dataclass
class _Rule:
    matches: Callable[[Recorded], bool]
    fault: Fault
    left: float


class ApiServer:
    """Use as a context manager."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.requests: list[Recorded] = []
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.history: list[tuple[int, str, str, Object]] = []
        self.version = 100
        self.minor = "37"
        self.oldest = 0
        self.bookmarks = 0
        self.stale: tuple[int, dict[tuple[str, str, str], Object]] | None = None
        self.strip: Callable[[Object], None] = lambda _item: None
        self.closed = threading.Event()
        self.stream_epoch = 0
        self._rules: list[_Rule] = []
        self._sockets: set[socket.socket] = set()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        with self.changed:
            self.changed.notify_all()
            for connection in list(self._sockets):
                _shutdown(connection)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        cluster = {"name": "c", "cluster": {"server": self.url}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        user = {"name": "u", "user": {"token": "secret"}}
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "x",
                    "clusters": [cluster],
                    "contexts": [context],
                    "users": [user],
                }
            )
        )
        return path

    # --- what others do ----------------------------------------------------------------------

    def put(self, plural: str, item: Object) -> Object:
        """Somebody else creates or replaces an object."""
        with self.changed:
            name = item["metadata"]["name"]
            key = (plural, item["metadata"].get("namespace", ""), name)
            kind = "MODIFIED" if key in self.objects else "ADDED"
            return self._store(key, item, kind)

    def edit(self, plural: str, name: str, change: Callable[[Object], None], namespace: str = "") -> Object:
        """Somebody else edits an object."""
        with self.changed:
            key = (plural, namespace, name)
            item = _copy(self.objects[key])
            change(item)
            return self._store(key, item, "MODIFIED")

    def remove(self, plural: str, name: str, namespace: str = "") -> None:
        """Somebody else deletes an object."""
        with self.changed:
            self._delete((plural, namespace, name))

    def names(self, plural: str) -> list[str]:
        with self.changed:
            return sorted(name for kind, _, name in self.objects if kind == plural)

    def all(self, plural: str) -> list[Object]:
        with self.changed:
            return [_copy(item) for key, item in sorted(self.objects.items()) if key[0] == plural]

    def bookmark(self) -> None:
        """Send a bookmark to every watch."""
        with self.changed:
            self.bookmarks += 1
            self.changed.notify_all()

    def compact(self) -> None:
        """Forget the history: every older resourceVersion is gone."""
        with self.changed:
            self.oldest = self.version
            self.end_streams()

    def end_streams(self) -> None:
        with self.changed:
            self.stream_epoch += 1
            self.changed.notify_all()

    def lag(self) -> None:
        """From now on lists with resourceVersion=0 show this moment, as a lagging server's cache would."""
        with self.changed:
            self.stale = (self.version, dict(self.objects))

    def fail(self, fault: Fault, *, when: Callable[[Recorded], bool] = lambda _r: True, times: float = 1) -> None:
        """Let the next matching requests fail."""
        with self.changed:
            self._rules.append(_Rule(when, fault, times))

    def heal(self) -> None:
        with self.changed:
            self._rules.clear()
            self.changed.notify_all()

    # --- what tests ask ----------------------------------------------------------------------

    def wait(self, condition: Callable[[], bool], timeout: float = PATIENCE) -> bool:
        """Wait until something is true; looked at after each request, and from time to time for what is elsewhere."""
        deadline = time.monotonic() + timeout
        with self.changed:
            while not condition():
                if time.monotonic() > deadline:
                    return False
                self.changed.wait(0.02)
            return True

    def count(self, matches: Callable[[Recorded], bool] = lambda _r: True) -> int:
        with self.changed:
            return sum(1 for request in self.requests if matches(request))

    @property
    def writes(self) -> list[Recorded]:
        with self.changed:
            return [request for request in self.requests if request.is_write]

    # --- inside ------------------------------------------------------------------------------

    def record(self, request: Recorded) -> Fault | None:
        with self.changed:
            self.requests.append(request)
            self.changed.notify_all()
            for rule in self._rules:
                if rule.left > 0 and rule.matches(request):
                    rule.left -= 1
                    return rule.fault
            return None

    def answer(self, request: Recorded) -> tuple[int, Object]:
        if request.path == "/version":
            return 200, {"major": "1", "minor": self.minor}
        plural, namespace, name = _target(request.path)
        with self.changed:
            if request.method == "GET":
                return 200, self._read(request, plural, namespace, name)
            if request.method == "POST":
                return 201, self._create(request, plural, namespace)
            key = (plural, namespace, name)
            # There are no namespaces here in which it could be made.
            if key not in self.objects and not namespace and _is_apply(request):
                if "uid" in request.body["metadata"]:
                    raise Refusal(409, "Conflict", f"uid mismatch: no existing {plural} {name} was found")
                return 201, self._store(key, _nameless(request.body), "ADDED", dry="dryRun" in request.query)
            if key not in self.objects:
                raise Refusal(404, "NotFound", f"{plural} {name} not found")
            if request.method == "DELETE":
                self._check(self.objects[key], (request.body or {}).get("preconditions") or {})
                return 200, self._delete(key)
            item = request.body if request.method == "PUT" else _merge(self.objects[key], request.body)
            metadata = item["metadata"]
            self._check(self.objects[key], {k: metadata[k] for k in ("uid", "resourceVersion") if k in metadata})
            return 200, self._store(key, item, "MODIFIED", dry="dryRun" in request.query)

    def _read(self, request: Recorded, plural: str, namespace: str, name: str) -> Object:
        if name:
            if (plural, namespace, name) not in self.objects:
                raise Refusal(404, "NotFound", f"{plural} {name} not found")
            return self.objects[plural, namespace, name]
        version, objects = self.version, self.objects
        if request.query.get("resourceVersion") == "0" and self.stale is not None:
            version, objects = self.stale
        items = [item for key, item in sorted(objects.items()) if key[0] == plural and namespace in {"", key[1]}]
        items = [item for item in items if _selected(item, request.query.get("fieldSelector", ""))]
        start, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", 0)) or len(items)
        metadata = {"resourceVersion": str(version)}
        if start + limit < len(items):
            metadata["continue"] = str(start + limit)
        bare = [{k: v for k, v in item.items() if k not in {"kind", "apiVersion"}} for item in items]
        return {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": bare[start : start + limit]}

    def _create(self, request: Recorded, plural: str, namespace: str) -> Object:
        item = _copy(request.body)
        metadata = item["metadata"]
        if "name" not in metadata:
            metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
        key = (plural, namespace, metadata["name"])
        if key in self.objects:
            raise Refusal(409, "AlreadyExists", f"{plural} {metadata['name']} already exists")
        return self._store(key, item, "ADDED", dry="dryRun" in request.query)

    def _check(self, item: Object, preconditions: Object) -> None:
        for name, value in preconditions.items():
            if item["metadata"][name] != value:
                raise Refusal(409, "Conflict", f"precondition {name} failed")

    def _store(self, key: tuple[str, str, str], item: Object, kind: str, *, dry: bool = False) -> Object:
        item = _copy(item)
        self.strip(item)
        devices = item.get("spec", {}).get("devices", [])
        # Of slices; those of claims are something else.
        for device in devices if isinstance(devices, list) else []:
            for taint in device.get("taints", []):
                taint.setdefault("timeAdded", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        old = self.objects.get(key)
        metadata = item["metadata"]
        metadata["uid"] = old["metadata"]["uid"] if old else metadata.get("uid") or str(uuid.uuid4())
        if dry:
            return item
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        self.objects[key] = item
        self._happened(key[0], kind, item)
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            self._delete(key)
        return _copy(item)

    def _delete(self, key: tuple[str, str, str]) -> Object:
        """Delete, or only mark as deleted what a finalizer keeps."""
        if self.objects[key]["metadata"].get("finalizers"):
            item = _copy(self.objects[key])
            item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return self._store(key, item, "MODIFIED")
        item = _copy(self.objects.pop(key))
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self._happened(key[0], "DELETED", item)
        return item

    def _happened(self, plural: str, kind: str, item: Object) -> None:
        self.history.append((self.version, plural, kind, item))
        self.changed.notify_all()

    def stream(self, request: Recorded, send: Callable[[Object], None]) -> None:
        """Write watch events until the stream ends."""
        plural, _, _ = _target(request.path)
        selector = request.query.get("fieldSelector", "")
        position = int(request.query["resourceVersion"])
        end = time.monotonic() + float(request.query.get("timeoutSeconds", 300))
        with self.changed:
            epoch, marks = request.epoch, request.marks
            if position < self.oldest:
                raise Refusal(410, "Expired", "too old resource version")

        def due() -> bool:
            over = self.closed.is_set() or epoch != self.stream_epoch
            return over or marks != self.bookmarks or self.version > position

        while True:
            with self.changed:
                self.changed.wait_for(due, max(0.0, end - time.monotonic()))
                news = [entry for entry in self.history if entry[0] > position]
                position = self.version
                over = self.closed.is_set() or epoch != self.stream_epoch or time.monotonic() >= end
                marked, marks = marks != self.bookmarks, self.bookmarks
            for _version, kind_of, kind, item in news:
                if kind_of == plural and _selected(item, selector):
                    send({"type": kind, "object": item})
            if marked:
                send({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(position)}}})
            if over:
                return

    def opened(self, connection: socket.socket) -> None:
        with self.changed:
            self._sockets.add(connection)

    def finished(self, connection: socket.socket) -> None:
        with self.changed:
            self._sockets.discard(connection)


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is not worth a word."""


class _Handler(BaseHTTPRequestHandler):
    api: ApiServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.api.opened(self.connection)

    def finish(self) -> None:
        self.api.finished(self.connection)
        super().finish()

    def log_message(self, *_: object) -> None:
        pass

    def serve(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        headers = {name.lower(): value for name, value in self.headers.items()}
        with self.api.changed:
            request = Recorded(
                method=self.command,
                path=parts.path,
                query=dict(parse_qsl(parts.query)),
                body=body,
                headers=headers,
                epoch=self.api.stream_epoch,
                marks=self.api.bookmarks,
                port=self.client_address[1],
            )
            fault = self.api.record(request)
        try:
            if fault is not None and not (fault.late or fault.truncated):
                self.misbehave(fault)
            elif request.is_watch:
                self.watch(lambda: self.api.stream(request, self.send_line))
            else:
                status, document = self.api.answer(request)
                if fault is not None and fault.late:
                    self.reset()
                else:
                    self.reply(status, json.dumps(document).encode(), cut=fault is not None)
        except Refusal as refusal:
            self.refuse(refusal.status, refusal.reason, refusal.message)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve  # noqa: N815 - names of http.server

    def misbehave(self, fault: Fault) -> None:
        if fault.reset:
            self.reset()
        elif fault.silent:
            self.api.closed.wait()
            self.close_connection = True
        elif fault.stream_status:
            status = {"kind": "Status", "code": fault.stream_status, "reason": fault.reason}
            self.watch(lambda: self.send_line({"type": "ERROR", "object": status}))
        elif fault.stream_ends:
            self.watch(lambda: None)
        elif fault.stream_silent:
            self.watch(lambda: self.api.closed.wait() and None)
        elif fault.raw is not None:
            self.reply(fault.status, fault.raw)
        else:
            self.refuse(fault.status, fault.reason, fault.message, fault.headers)

    def reset(self) -> None:
        self.close_connection = True
        _shutdown(self.connection)

    def refuse(self, status: int, reason: str, message: str, headers: dict[str, str] | None = None) -> None:
        document = {"kind": "Status", "code": status, "reason": reason, "message": message}
        self.reply(status, json.dumps(document).encode(), headers)

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.reset()

    def watch(self, events: Callable[[], None]) -> None:
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        try:
            events()
        except Refusal as refusal:
            status = {"kind": "Status", "code": refusal.status, "reason": refusal.reason}
            self.send_line({"type": "ERROR", "object": status})
        self.wfile.write(b"0\r\n\r\n")

    def send_line(self, document: Object) -> None:
        line = json.dumps(document).encode() + b"\n"
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")


def _target(path: str) -> tuple[str, str, str]:
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    return parts[0], namespace, parts[1] if len(parts) > 1 else ""


def _is_apply(request: Recorded) -> bool:
    """Server-side apply of an object itself, which makes it where it is missing, whatever resourceVersion it names."""
    is_whole = request.path.rsplit("/", 1)[-1] == (request.body or {}).get("metadata", {}).get("name")
    return request.headers.get("content-type", "").startswith("application/apply-patch") and is_whole


def _nameless(item: Object) -> Object:
    metadata = {key: value for key, value in item["metadata"].items() if key != "resourceVersion"}
    return {**item, "metadata": metadata}


def _selected(item: Object, selector: str) -> bool:
    for term in filter(None, selector.split(",")):
        path, _, wanted = term.partition("=")
        value: Any = item
        for step in path.split("."):
            value = (value or {}).get(step)
        if value != wanted:
            return False
    return True


def _merge(base: Any, patch: Any) -> Any:
    if not isinstance(patch, dict) or not isinstance(base, dict):
        return patch
    merged = {**base, **{key: _merge(base.get(key), value) for key, value in patch.items()}}
    return {key: value for key, value in merged.items() if value is not None}


def _copy(item: Object) -> Object:
    copied: Object = json.loads(json.dumps(item))
    return copied


def _shutdown(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
