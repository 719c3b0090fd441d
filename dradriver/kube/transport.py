"""Bytes to the API server and back. The only place that knows urllib3."""

import contextlib
import http.client
import io
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlencode

import urllib3

from dradriver.kube.errors import UnreachableError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CONNECT_TIMEOUT = 5.0
_HEADER_TIMEOUT = 15.0
_CONNECTION = re.compile(r"^<?[\w.]+\(.*?\)(?: at 0x\w+>)?: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request.

    Attributes:
        method: HTTP method.
        path: absolute path, unescaped names are safe by construction.
        query: query parameters.
        body: encoded body, or None.
        content_type: media type of the body.
        timeout: seconds after which we give up, whatever has arrived by then; of a stream, seconds of silence.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"
    timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A complete HTTP answer; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Stream(Protocol):
    """An answer that is read line by line while it arrives."""

    @property
    def status(self) -> int:
        """HTTP status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers, names in lower case."""

    def lines(self) -> Iterator[bytes]:
        """Lines without their end, until the server ends the answer.

        Raises:
            UnreachableError: if the connection breaks, is silent for too long, or `abort` was called.
        """

    def abort(self) -> None:
        """Make a reader in another thread stop at once. Harmless at any time."""

    def close(self) -> None:
        """Give the connection up; the reader calls it."""


class Transport(Protocol):
    """The seam at which tests put something else."""

    def send(self, request: Request) -> Answer:
        """Send and wait for the complete answer.

        Raises:
            UnreachableError: if none came.
        """

    def open(self, request: Request) -> Stream:
        """Send and return when the headers are there.

        Raises:
            UnreachableError: if none came.
        """

    def close(self) -> None:
        """Close idle connections."""


class HttpTransport:
    """A transport over urllib3: keep-alive connections, no retries of its own but one.

    A GET whose connection breaks is sent once more, in the time that is left: that is how an idle connection ends
    that the server closed while we took it from the pool, and a lost claim GET would cost its pod a minute.

    Where an answer does not come in time, idle connections are given up, too: a machine that has vanished, or a way to
    it, says nothing on any of them, and each would cost somebody a time-out.

    Args:
        server: base URL.
        manager: makes connections; they are taught to keep to a time limit.
        authorization: value of the header, "" for none.
        user_agent: sent with every request.
        proxy: URL of the proxy that the manager goes through, for messages.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        server: str,
        manager: urllib3.PoolManager,
        authorization: Callable[[], str],
        user_agent: str,
        proxy: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._server = server.rstrip("/")
        self._manager = manager
        self._authorization = authorization
        self._user_agent = user_agent
        self._through = f" (asked through the proxy {proxy}; NO_PROXY names servers to reach without)" if proxy else ""
        manager.pool_classes_by_scheme = {
            scheme: _patient(pool) for scheme, pool in manager.pool_classes_by_scheme.items()
        }

    def send(self, request: Request) -> Answer:
        """See Transport."""
        response = self._request(request, _Patience(request.timeout, self._clock), streamed=False)
        return Answer(status=response.status, headers=_headers(response), body=response.data)

    def open(self, request: Request) -> Stream:
        """See Transport."""
        # Headers must come at once, events may take their time.
        patience = _Patience(min(request.timeout, _HEADER_TIMEOUT), self._clock)
        response = self._request(request, patience, streamed=True)
        patience.allow_silence(request.timeout)
        target = f"{request.method} {request.path}"
        return _HttpStream(response, patience, target=target, on_silence=self._manager.clear)

    def close(self) -> None:
        """See Transport."""
        self._manager.clear()

    def _request(self, request: Request, patience: "_Patience", *, streamed: bool) -> urllib3.BaseHTTPResponse:
        try:
            return self._once(request, patience, streamed=streamed)
        except UnreachableError as error:
            if _is_silence(error):
                self._manager.clear()
            broken = isinstance(error.__cause__, urllib3.exceptions.ProtocolError)
            if request.method != "GET" or not broken or patience.left() <= 0:
                raise
        return self._once(request, patience, streamed=streamed)

    def _once(self, request: Request, patience: "_Patience", *, streamed: bool) -> urllib3.BaseHTTPResponse:
        headers = self._headers_for(request)
        with _translated(f"{request.method} {self._server}{request.path}", self._through), _applied(patience):
            left = max(0.001, patience.left())  # A time-out says better what happened than a limit that cannot be set.
            return self._manager.request(
                request.method,
                self._server + request.path + _query(request.query),
                body=request.body,
                headers=headers,
                timeout=urllib3.Timeout(connect=min(_CONNECT_TIMEOUT, left), read=left),
                retries=False,
                redirect=False,
                preload_content=not streamed,
            )

    def _headers_for(self, request: Request) -> dict[str, str]:
        headers = {"accept": "application/json", "user-agent": self._user_agent}
        if request.body is not None:
            headers["content-type"] = request.content_type
        if authorization := self._authorization():
            headers["authorization"] = authorization
        return headers


class _HttpStream:
    def __init__(
        self,
        response: urllib3.BaseHTTPResponse,
        patience: "_Patience",
        *,
        target: str,
        on_silence: Callable[[], None],
    ) -> None:
        self._response = response
        self._patience = patience
        self._target = target
        self._on_silence = on_silence
        self.status = response.status
        self.headers = _headers(response)

    def lines(self) -> Iterator[bytes]:
        rest = b""
        while chunk := self._chunk():
            *complete, rest = (rest + chunk).split(b"\n")
            yield from filter(None, complete)
        if rest.strip():
            yield rest

    def _chunk(self) -> bytes:
        """What has arrived; empty at the end. `stream` would wait for the end where the server sends no chunks."""
        # Not around the loop of `lines`: what its caller raises is not the connection's fault.
        try:
            with _translated(self._target):
                return self._response.read1()
        except UnreachableError as error:
            if _is_silence(error):
                self._on_silence()
            raise

    def abort(self) -> None:
        # Not close(): that would wait for the lock of the buffered file, which the blocked reader holds.
        self._patience.end()

    def close(self) -> None:
        with contextlib.suppress(OSError, urllib3.exceptions.HTTPError):
            self._response.close()


# --- time limits ----------------------------------------------------------------------------------


class _Patience:
    """How long one answer may take, retry included; of a stream, how long it may be silent once it has begun.

    A socket's own limit is one for each read, so that a server that sends a byte now and then is never given up.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = clock() + seconds
        self._silence: float | None = None
        self._socket: socket.socket | None = None

    def left(self) -> float:
        """Seconds that the next read may take."""
        return self._until - self._clock() if self._silence is None else self._silence

    def allow_silence(self, seconds: float) -> None:
        """The answer has begun: from now on only silence counts."""
        self._silence = seconds

    def watch_over(self, sock: socket.socket) -> None:
        """Note where the answer comes from: urllib3 forgets it where the server is going to close the connection."""
        self._socket = sock

    def end(self) -> None:
        """Make a reader in another thread stop."""
        if self._socket is not None:
            with contextlib.suppress(OSError, AttributeError):  # TLS within TLS has no shutdown.
                self._socket.shutdown(socket.SHUT_RD)


_current: Final = threading.local()
"""`patience` of the request that this thread makes: urllib3 passes nothing of ours on to its connections."""


@contextlib.contextmanager
def _applied(patience: _Patience) -> Iterator[None]:
    _current.patience = patience
    try:
        yield
    finally:
        _current.patience = None


class _PatientResponse(http.client.HTTPResponse):
    """Reads in the time that the request has, whatever comes how slowly."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        patience: _Patience | None = getattr(_current, "patience", None)
        if patience is not None:
            patience.watch_over(sock)
            self.fp = io.BufferedReader(_Limited(self.fp.detach(), sock, patience))


class _Limited(io.RawIOBase):
    """What comes from a socket, each read in the time that is left."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, patience: _Patience) -> None:
        super().__init__()
        self._raw = raw
        self._socket = sock
        self._patience = patience

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def readinto(self, buffer: "WriteableBuffer") -> int | None:
        left = self._patience.left()
        if left <= 0:
            raise TimeoutError("the answer is not complete in time")
        self._socket.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _patient(pool: type[urllib3.HTTPConnectionPool]) -> type[urllib3.HTTPConnectionPool]:
    """A kind of pool like this one whose connections read with patience."""
    connection = type(pool.ConnectionCls.__name__, (pool.ConnectionCls,), {"response_class": _PatientResponse})
    return type(pool.__name__, (pool,), {"ConnectionCls": connection})


# --- translation ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _translated(target: str, through: str = "") -> Iterator[None]:
    try:
        yield
    except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
        # ValueError and AttributeError are what a reader sees of a response that is closed under its hands.
        raise UnreachableError(f"{target}: no answer from the API server: {_cause(error)}{through}") from error


def _is_silence(error: UnreachableError) -> bool:
    return isinstance(error.__cause__, urllib3.exceptions.TimeoutError)


def _cause(error: Exception) -> str:
    """The reason without the connection's repr that urllib3 puts in front."""
    reason = getattr(error, "reason", None) or error
    return f"{type(reason).__name__}: {_CONNECTION.sub('', str(reason))}"


def _headers(response: urllib3.BaseHTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


def _query(query: Mapping[str, str]) -> str:
    return "?" + urlencode(query) if query else ""
