"""A small HTTP server that tells how we are: /metrics, /healthz, /readyz."""

import errno
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from dradriver.observe.errors import EndpointError, EndpointSyntaxError
from dradriver.observe.readiness import Readiness

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_Page: TypeAlias = Callable[[], tuple[str, str]]

_log = logging.getLogger(__name__)

_OK: Final = "200 OK"
_UNAVAILABLE: Final = "503 Service Unavailable"
_CLIENT_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 3600.0
_MAX_PORT: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where to listen: all addresses of the node where the host is empty, any free port where it is 0."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint | None:
    """Read `host:port`, `[v6 address]:port` or `:port`; None for an empty text, which means no server.

    Raises:
        EndpointSyntaxError: it is none of these.
    """
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > _MAX_PORT or _is_unclear(host, bare):
        raise EndpointSyntaxError(
            f"HTTP endpoint {text!r} is not understood: give host:port, [v6 address]:port, :port for all addresses, "
            "or nothing for no server"
        )
    return Endpoint(host=bare, port=int(port))


def _is_unclear(host: str, bare: str) -> bool:
    """A v6 address needs its brackets, anything else must not have any."""
    return (":" in bare) != (host == f"[{bare}]") or "[" in bare or "]" in bare


class WebServer:
    """Serves until it is stopped, in threads of its own that do not keep the process alive."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        registry: CollectorRegistry,
        readiness: Readiness,
        alive: Callable[[], str | None] = lambda: None,
        metrics_path: str = "/metrics",
    ) -> None:
        """Listen and serve at once.

        Args:
            endpoint: where.
            registry: what /metrics shows.
            readiness: what /readyz shows: 200 once every condition holds, 503 before.
            alive: what is wrong with this process that only a restart can mend; None if nothing is.
            metrics_path: another path for /metrics.

        Raises:
            EndpointError: the address cannot be listened at.
        """
        pages: dict[str, _Page] = {"/healthz": lambda: _health(alive()), "/readyz": lambda: _ready(readiness)}
        self._server = _listen(endpoint)
        self._server.set_app(_application(pages, metrics_path, make_wsgi_app(registry)))
        self.endpoint = Endpoint(host=endpoint.host, port=self._server.server_port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="web", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; requests that are being answered are left to themselves."""
        # Wakes the thread, which would look only after its poll interval whether it should end.
        self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _health(trouble: str | None) -> tuple[str, str]:
    return (_OK, "ok\n") if trouble is None else (_UNAVAILABLE, f"not healthy: {trouble}\n")


def _ready(readiness: Readiness) -> tuple[str, str]:
    report = readiness.report()
    ready = all(reason is None for reason in report.values())
    lines = ["ready" if ready else "not ready"]
    lines += [f"[+] {name}" if reason is None else f"[-] {name}: {reason}" for name, reason in report.items()]
    return _OK if ready else _UNAVAILABLE, "\n".join(lines) + "\n"


def _application(pages: dict[str, _Page], metrics_path: str, metrics: "WSGIApplication") -> "WSGIApplication":
    known = ", ".join([metrics_path, *pages])

    def answer(path: str, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            return _text(start_response, "405 Method Not Allowed", "only GET and HEAD\n")
        if path == metrics_path:
            return metrics({**environ, "REQUEST_METHOD": "GET"}, start_response)
        if path in pages:
            return _text(start_response, *pages[path]())
        return _text(start_response, "404 Not Found", f"there are {known}\n")

    def application(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        try:
            body = answer(path, environ, start_response)
        except Exception:  # noqa: BLE001 - wsgiref would print the traceback to stderr, between lines of JSON
            _log.exception("answering %s crashed", path)
            body = _text(start_response, "500 Internal Server Error", "see the log\n")
        return [] if environ["REQUEST_METHOD"] == "HEAD" else body

    return application


def _text(start_response: "StartResponse", status: str, body: str) -> list[bytes]:
    data = body.encode()
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(data)))])
    return [data]


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_SECONDS

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        """Write nothing: a probe each few seconds is no news."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without asking DNS for our own name, as the parent does, which may take long."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not self.is_for_all)
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    @property
    def is_for_all(self) -> bool:
        """Listens at every address, of both kinds."""
        return self.server_address[0] == ""

    def handle_error(self, request: object, client_address: object) -> None:
        """Write nothing about a client that went away."""


def _listen(endpoint: Endpoint) -> _Server:
    dual = not endpoint.host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or ":" in endpoint.host else socket.AF_INET
    server_type = type("Server", (_Server,), {"address_family": family})
    try:
        server: _Server = server_type((endpoint.host, endpoint.port), _Handler)
    except OSError as error:
        hint = "stop what uses it, or " if error.errno == errno.EADDRINUSE else ""
        raise EndpointError(
            f"cannot serve HTTP at {endpoint}: {error.strerror or error}; {hint}choose another --http-endpoint"
        ) from error
    return server
