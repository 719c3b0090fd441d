import http.client
import socket
import threading
import urllib.request
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from dradriver.observe.errors import EndpointError, EndpointSyntaxError
from dradriver.observe.metrics import Metrics
from dradriver.observe.readiness import Readiness
from dradriver.observe.web import Endpoint, WebServer, parse_endpoint


@pytest.fixture
def readiness():
    return Readiness(("registered", "published"))


@pytest.fixture
def serve(readiness):
    servers = []
    metrics = Metrics(node="node-a", driver="gpu.nvidia.com", version="1")

    def begin(endpoint="127.0.0.1:0", **options):
        fields = {"registry": metrics.registry, "readiness": readiness, **options}
        servers.append(WebServer(parse_endpoint(endpoint), **fields))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


def ask(server, path, method="GET", host="127.0.0.1"):
    with closing(http.client.HTTPConnection(host, server.endpoint.port, timeout=60)) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":8080", "", 8080),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("localhost:65535", "localhost", 65535),
        ("[::1]:8080", "::1", 8080),
    ],
)
def test_endpoints_are_read(text, host, port):
    assert parse_endpoint(text) == Endpoint(host=host, port=port)
    assert str(parse_endpoint(text)) == text


def test_no_endpoint_means_no_server():
    assert parse_endpoint("") is None


@pytest.mark.parametrize(
    "text", ["8080", "host", "host:", "host:http", ":65536", ":-1", "::1:8080", "[::1]", "[::1:80", "[a]:1", ":²"]
)
def test_what_is_no_endpoint_is_told(text):
    with pytest.raises(EndpointSyntaxError, match="host:port"):
        parse_endpoint(text)


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text):
    try:
        found = parse_endpoint(text)
    except EndpointSyntaxError:
        assert text
    else:
        assert (found is None) == (text == "")
        assert found is None or 0 <= found.port <= 65535


def test_metrics_can_be_scraped(serve):
    status, body = ask(serve(), "/metrics")
    assert status == 200
    names = {family.name for family in text_string_to_metric_families(body)}
    assert {"nvidia_dra_requests", "dradriver_build_info", "process_cpu_seconds"} <= names


def test_another_metrics_path(serve):
    server = serve(metrics_path="/stats")
    assert ask(server, "/stats")[0] == 200
    assert ask(server, "/metrics") == (404, "there are /stats, /healthz, /readyz\n")


def test_ready_comes_and_goes(serve, readiness):
    server = serve()
    assert ask(server, "/readyz") == (503, "not ready\n[-] registered: not yet\n[-] published: not yet\n")
    readiness.met("registered")
    readiness.unmet("published", "the API server does not answer")
    assert ask(server, "/readyz") == (
        503,
        "not ready\n[+] registered\n[-] published: the API server does not answer\n",
    )
    readiness.met("published")
    assert ask(server, "/readyz") == (200, "ready\n[+] registered\n[+] published\n")
    readiness.unmet("registered", "refused")
    assert ask(server, "/readyz")[0] == 503


def test_health_tells_what_only_a_restart_can_mend(serve):
    troubles = [None, "the publish loop has died"]
    server = serve(alive=lambda: troubles.pop(0))
    assert ask(server, "/healthz") == (200, "ok\n")
    assert ask(server, "/healthz") == (503, "not healthy: the publish loop has died\n")


def test_not_being_ready_is_not_being_ill(serve):
    server = serve()
    assert ask(server, "/healthz")[0] == 200
    assert ask(server, "/readyz")[0] == 503


def test_other_methods_and_paths_are_refused(serve):
    server = serve()
    assert ask(server, "/metrics", "POST")[0] == 405
    assert ask(server, "/")[0] == 404


def test_head_has_no_body(serve):
    assert ask(serve(), "/healthz", "HEAD") == (200, "")
    assert ask(serve(), "/metrics", "HEAD") == (200, "")


def test_a_crash_is_told_and_logged_but_not_printed(serve, caplog, capfd):
    status, body = ask(serve(alive=lambda: 1 / 0), "/healthz")
    assert (status, body) == (500, "see the log\n")
    assert "ZeroDivisionError" in caplog.text
    assert capfd.readouterr().err == ""


def test_requests_and_clients_that_leave_are_not_printed(serve, capfd):
    server = serve()
    ask(server, "/healthz")
    with socket.create_connection(("127.0.0.1", server.endpoint.port)) as client:
        client.sendall(b"nonsense\r\n\r\n")
        assert b"400" in client.recv(4096)
    with socket.create_connection(("127.0.0.1", server.endpoint.port)) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert ask(server, "/healthz")[0] == 200
    assert capfd.readouterr().err == ""


def test_a_slow_client_does_not_hold_up_others(serve):
    server = serve()
    with socket.create_connection(("127.0.0.1", server.endpoint.port)) as slow:
        slow.sendall(b"GET /healthz")
        assert ask(server, "/healthz")[0] == 200


def test_a_port_in_use_is_told(serve):
    taken = serve().endpoint
    with pytest.raises(EndpointError, match=rf"{taken}.*[Aa]ddress already in use.*--http-endpoint"):
        serve(str(taken))


@pytest.mark.parametrize("endpoint", ["203.0.113.7:0", "no-such-host.invalid:0"])
def test_an_address_that_is_not_ours_is_told(serve, endpoint):
    with pytest.raises(EndpointError, match=endpoint):
        serve(endpoint)


def test_all_addresses_means_both_kinds(serve):
    server = serve(":0")
    assert ask(server, "/healthz")[0] == 200
    if socket.has_dualstack_ipv6() and _has_v6_loopback():
        assert ask(server, "/healthz", host="::1")[0] == 200


def test_the_chosen_port_is_told(serve):
    server = serve()
    assert server.endpoint.port > 0
    with urllib.request.urlopen(f"http://{server.endpoint}/healthz", timeout=60) as response:
        assert response.read() == b"ok\n"


def test_after_stop_nobody_answers(serve, readiness):
    server = WebServer(parse_endpoint("127.0.0.1:0"), registry=Metrics(node="n", driver="d", version="1").registry,
                       readiness=readiness)  # fmt: skip
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        ask(server, "/healthz")
    assert "web" not in {thread.name for thread in threading.enumerate()}


def _has_v6_loopback():
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True
