"""Bytes to the API server and back. The only place that knows urllib3."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlencode

import urllib3

from dradriver.kube.errors import UnreachableError

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
        timeout: seconds of silence after which we give up.
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

    A GET whose connection breaks is sent once more: that is how an idle connection ends that the server closed
    while we took it from the pool, and a lost claim GET would cost its pod a minute.
    """

    def __init__(
        self, *, server: str, manager: urllib3.PoolManager, authorization: Callable[[], str], user_agent: str
    ) -> None:
        self._server = server.rstrip("/")
        self._manager = manager
        self._authorization = authorization
        self._user_agent = user_agent

    def send(self, request: Request) -> Answer:
        """See Transport."""
        response = self._request(request, timeout=request.timeout, streamed=False)
        return Answer(status=response.status, headers=_headers(response), body=response.data)

    def open(self, request: Request) -> Stream:
        """See Transport."""
        response = self._request(request, timeout=min(request.timeout, _HEADER_TIMEOUT), streamed=True)
        _allow_silence(response, seconds=request.timeout)
        return _HttpStream(response, target=f"{request.method} {request.path}")

    def close(self) -> None:
        """See Transport."""
        self._manager.clear()

    def _request(self, request: Request, *, timeout: float, streamed: bool) -> urllib3.BaseHTTPResponse:
        try:
            return self._once(request, timeout=timeout, streamed=streamed)
        except UnreachableError as error:
            broken = isinstance(error.__cause__, urllib3.exceptions.ProtocolError)
            if request.method != "GET" or not broken:
                raise
        return self._once(request, timeout=timeout, streamed=streamed)

    def _once(self, request: Request, *, timeout: float, streamed: bool) -> urllib3.BaseHTTPResponse:
        with _translated(f"{request.method} {self._server}{request.path}"):
            return self._manager.request(
                request.method,
                self._server + request.path + _query(request.query),
                body=request.body,
                headers=self._headers_for(request),
                timeout=urllib3.Timeout(connect=min(_CONNECT_TIMEOUT, timeout), read=timeout),
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
    def __init__(self, response: urllib3.BaseHTTPResponse, *, target: str) -> None:
        self._response = response
        self._target = target
        self.status = response.status
        self.headers = _headers(response)

    def lines(self) -> Iterator[bytes]:
        rest = b""
        for chunk in self._chunks():
            *complete, rest = (rest + chunk).split(b"\n")
            yield from filter(None, complete)
        if rest.strip():
            yield rest

    def _chunks(self) -> Iterator[bytes]:
        chunks = self._response.stream(amt=None)
        while True:
            # Not around the loop of `lines`: what its caller raises is not the connection's fault.
            with _translated(self._target):
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk

    def abort(self) -> None:
        # Not close(): that would wait for the lock of the buffered file, which the blocked reader holds.
        with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):
            self._response.shutdown()

    def close(self) -> None:
        with contextlib.suppress(OSError, urllib3.exceptions.HTTPError):
            self._response.close()


@contextlib.contextmanager
def _translated(target: str) -> Iterator[None]:
    try:
        yield
    except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
        # ValueError and AttributeError are what a reader sees of a response that is closed under its hands.
        raise UnreachableError(f"{target}: no answer from the API server: {_cause(error)}") from error


def _cause(error: Exception) -> str:
    """The reason without the connection's repr that urllib3 puts in front."""
    reason = getattr(error, "reason", None) or error
    return f"{type(reason).__name__}: {_CONNECTION.sub('', str(reason))}"


def _headers(response: urllib3.BaseHTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


def _query(query: Mapping[str, str]) -> str:
    return "?" + urlencode(query) if query else ""


def _allow_silence(response: urllib3.BaseHTTPResponse, *, seconds: float) -> None:
    """Headers must come at once, events may take their time: the socket gets the longer limit afterwards."""
    connection = getattr(response, "connection", None)
    sock = getattr(connection, "sock", None)
    if sock is not None:
        sock.settimeout(seconds)
