"""A server of which a test writes each byte: for ways of HTTP that no library's server has."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Script = Callable[[socket.socket], None]


@contextmanager
def serving(*scripts: Script) -> Iterator[str]:
    """Serve one connection for each script, which is called once a request has come; gives the URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_ones: list[socket.socket] = []

    def serve() -> None:
        for script in scripts:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                open_ones.append(connection)
                _read_request(connection)
                script(connection)
                # Python's closes it only when nobody uses it; the peer is to be told now.
                connection.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for one in [listener, *open_ones]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        thread.join(60)


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data and (piece := connection.recv(65536)):
        data += piece
    return data
