"""A proxy in front of the API server that keeps some requests for as long as a test wants, and delivers them then."""

import base64
import http.client
import http.server
import ssl
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import yaml

_NOT_FORWARDED = frozenset({"host", "connection", "accept-encoding", "transfer-encoding", "content-length"})


class Delaying:
    """Use as a context manager.

    Args:
        kubeconfig: of the API server.
        folder: for the kubeconfig of the proxy.
        is_kept: by method and path with query: whether a request waits for `release`.
    """

    def __init__(self, kubeconfig: Path, folder: Path, is_kept: Callable[[str, str], bool]) -> None:
        document = yaml.safe_load(kubeconfig.read_text())
        cluster = document["clusters"][0]["cluster"]
        self.url = urlsplit(cluster["server"])
        self.context = _context(cluster)
        self.is_kept = is_kept
        self.kept, self.release, self.delivered = threading.Event(), threading.Event(), threading.Event()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        document["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self._server.server_port}"}
        self.kubeconfig = folder / "kubeconfig-of-the-proxy"
        self.kubeconfig.write_text(yaml.safe_dump(document))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    proxy: Delaying
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        is_kept = self.proxy.is_kept(self.command, self.path)
        if is_kept:
            self.proxy.kept.set()
            self.proxy.release.wait()
        url = self.proxy.url
        connection = http.client.HTTPSConnection(str(url.hostname), url.port, context=self.proxy.context, timeout=600)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _NOT_FORWARDED}
        connection.request(self.command, self.path, body or None, headers)
        answer = connection.getresponse()
        if is_kept:
            self.proxy.delivered.set()
        self.close_connection = True
        # Whoever asked may be gone by then, and a watch that is ended has no proper end.
        with closing(connection), suppress(OSError, http.client.HTTPException):
            self._pass_on(answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve  # noqa: N815 (names of http.server)

    def _pass_on(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _NOT_FORWARDED:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        while chunk := answer.read1(65536):
            self.wfile.write(chunk)
            self.wfile.flush()


def _context(cluster: dict[str, Any]) -> ssl.SSLContext:
    if data := cluster.get("certificate-authority-data"):
        return ssl.create_default_context(cadata=base64.b64decode(data).decode())
    return ssl.create_default_context(cafile=cluster["certificate-authority"])
