"""gRPC on a socket file: the only place where a gRPC server is made, and where its ways are worked around."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from google.protobuf.message import Message

from dradriver.kubelet.errors import KubeletError, SocketFolderError
from dradriver.kubelet.paths import check_path
from dradriver.kubelet.sockets import (
    SOCKET_MODE,
    DeadEnd,
    FileId,
    file_id,
    make_way,
    os_errors,
    remove_own,
)
from dradriver.lazy import defer

# Both are read when grpc is imported. Its C core writes lines of its own form to stderr, which would
# break a log of JSON lines; its fork handlers take locks in every child we start.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# gRPC imports its asyncio half and protobuf its pure Python twin, which together take as long as all we
# need of both, and 5 MiB. Nobody in this process uses asyncio itself, of which gRPC needs the name only.
defer("asyncio", "grpc.aio", "google.protobuf.internal.python_message")

import grpc  # noqa: E402 - after its environment

__all__ = ["DRAIN_SECONDS", "Call", "SocketServer", "Stream", "grpc", "seconds_left", "stream_service", "unary_service"]

_log = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 45.0
"""The kubelet's own deadline of a call: nobody waits for an answer any longer."""

_NEVER_SECONDS: Final = 86_400.0
_CANCEL_SECONDS: Final = 5.0
_FIRST_PAUSE: Final = 5.0
_LONGEST_PAUSE: Final = 60.0

Call: TypeAlias = tuple[Callable[[Any, grpc.ServicerContext], Any], type[Message], type[Message]]
"""What answers a call, and the classes of its request and its response."""

Stream: TypeAlias = tuple[Callable[[Any, grpc.ServicerContext], Iterator[bytes]], type[Message]]
"""What makes the messages of a stream, serialized already since many streams send the same, and its request's class."""


def unary_service(name: str, calls: Mapping[str, Call]) -> grpc.GenericRpcHandler:
    """Serve calls under a service's name, by hand: generated services would tie us to one name."""
    handlers = {
        method: grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=request.FromString, response_serializer=response.SerializeToString
        )
        for method, (answer, request, response) in calls.items()
    }
    return grpc.method_handlers_generic_handler(name, handlers)


def stream_service(name: str, streams: Mapping[str, Stream]) -> grpc.GenericRpcHandler:
    """Serve streams under a service's name. Each takes one of the server's workers for as long as it lives."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, bytes]] = {
        method: grpc.unary_stream_rpc_method_handler(produce, request_deserializer=request.FromString)
        for method, (produce, request) in streams.items()
    }
    return grpc.method_handlers_generic_handler(name, handlers)


def seconds_left(context: grpc.ServicerContext) -> float:
    """Seconds until the caller gives up; 45, as the kubelet does, for a caller that sets no deadline."""
    remaining = context.time_remaining()
    # gRPC's own "never" is the largest 64-bit number of nanoseconds or seconds, not infinity.
    return DRAIN_SECONDS if remaining is None or remaining > _NEVER_SECONDS else remaining


@dataclass(frozen=True, slots=True)
class _Listener:
    """One gRPC server and the file it listens at."""

    server: grpc.Server
    file: FileId


class _Pauses:
    """When the next attempt to listen is due: each costs a gRPC server. The first repetition is free."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures = 0
        self._until = 0.0

    @property
    def is_over(self) -> bool:
        """An attempt may be made."""
        return not self._failures or self._clock() >= self._until

    def failed(self) -> None:
        """Note a failed attempt."""
        pause = _FIRST_PAUSE * 2 ** min(self._failures, 10) if self._failures else 0.0
        self._failures += 1
        self._until = self._clock() + min(pause, _LONGEST_PAUSE)

    def succeeded(self) -> None:
        """Note that it worked."""
        self._failures = 0


class SocketServer:
    """Services on a socket file that is ours alone, and comes back when someone removes it."""

    def __init__(
        self,
        path: Path,
        *,
        services: Sequence[grpc.GenericRpcHandler],
        workers: int,
        provide_folder: Callable[[Path], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep what is needed to serve; nothing is opened yet.

        Args:
            path: absolute path of the socket.
            services: what is served.
            workers: calls that are answered at once; threads are made when needed.
            provide_folder: makes the socket's folder, or insists on it.
            clock: monotonic seconds.

        Raises:
            SocketPathTooLongError: no socket can have this path.
        """
        check_path(path)
        self.path = path
        self._services = list(services)
        self._provide_folder = provide_folder
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix=path.name)
        self._lock = threading.Lock()
        self._listener: _Listener | None = None
        self._retired: list[tuple[_Listener, threading.Event]] = []
        self._way = DeadEnd(path)
        self._pauses = _Pauses(clock)

    @property
    def serving(self) -> bool:
        """The socket file exists and is the one this server listens at."""
        listener = self._listener
        return listener is not None and file_id(self.path) == listener.file

    def start(self) -> None:
        """Listen; a leftover of a killed process is replaced.

        Raises:
            KubeletError: the socket cannot be made; see `dradriver.kubelet.errors`.
        """
        with self._lock:
            if self._listener is None:
                self._listener = self._listen()

    def ensure(self) -> bool:
        """Listen again if the socket file has gone; returns whether that was done.

        Calls that came over the old file are answered still. Does nothing before `start` and after `stop`, nor
        for a while after the operating system has refused more than once.

        Raises:
            KubeletError: as for `start`; call it again later.
        """
        with self._lock:
            if self._listener is None or self.serving or not self._pauses.is_over:
                return False
            fresh = self._listen()
            self._retired = [(old, gone) for old, gone in self._retired if not gone.is_set()]
            self._retired.append((self._listener, self._listener.server.stop(DRAIN_SECONDS)))
            self._listener = fresh
        _log.warning("somebody removed the socket %s; listening there again", self.path)
        return True

    def stop(self, grace: float) -> None:
        """Remove the socket file, then wait for running calls, at most `grace` seconds.

        An open connection without a running call is not waited for. A call that takes longer is cancelled
        for the caller, but its thread runs on.
        """
        with self._lock:
            leaving = [old for old, _ in self._retired]
            if self._listener is not None:
                remove_own(self.path, self._listener.file)
                leaving.append(self._listener)
            self._listener, self._retired = None, []
        stopped = [listener.server.stop(grace) for listener in leaving]
        for event in stopped:
            event.wait(grace + _CANCEL_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _listen(self) -> _Listener:
        self._provide_folder(self.path.parent)
        make_way(self.path)
        try:
            listener = self._bound()
        except KubeletError:
            self._pauses.failed()
            raise
        self._pauses.succeeded()
        # gRPC may unlink by the way it was given at any time from now on: the next listener needs another one.
        self._way = DeadEnd(self.path)
        listener.server.start()
        return listener

    def _bound(self) -> _Listener:
        server = grpc.server(self._pool)
        server.add_generic_rpc_handlers(self._services)
        self._way.lead()
        try:
            with os_errors(self.path):
                _bind(server, self._way.path, self.path)
                self.path.chmod(SOCKET_MODE)
                file = file_id(self.path)
            if file is None:
                raise SocketFolderError(f"the socket {self.path} vanished at once: see who removes it")
        except KubeletError:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
            # One that was never started would keep what it has opened.
            server.start()
            server.stop(0)
            raise
        finally:
            self._way.cut()
        return _Listener(server, file)


def _bind(server: grpc.Server, address: str, path: Path) -> None:
    """Let gRPC bind; where it refuses, ask the operating system again, since gRPC keeps the reason to itself."""
    try:
        server.add_insecure_port(f"unix:{address}")
    except RuntimeError as error:
        with os_errors(path), socket.socket(socket.AF_UNIX) as again:
            again.bind(address)
        raise SocketFolderError(f"gRPC cannot listen at {path}: {error}") from error
