import contextlib
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import traceback

import pytest
import urllib3
import yaml

from dradriver.kube import NODES, KubeconfigError, UnreachableError
from dradriver.kube.connection import Configuration, _manager, _proxy, _tls, connect

NOTHING = {"HOME": "/nonexistent"}


def write(folder, document, name="kubeconfig"):
    path = folder / name
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


def config(**cluster):
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1", **cluster}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("", ["kubeconfig"]),
        ("a: [", ["YAML"]),
        ("\x00\x01", ["YAML"]),
        ("just text", ["not a kubeconfig"]),
        ("- 1", ["not a kubeconfig"]),
        ({"kind": "Pod"}, ["not a kubeconfig"]),
        ({**config(), "current-context": None}, ["current-context"]),
        ({key: value for key, value in config().items() if key != "current-context"}, ["current-context"]),
        ({**config(), "current-context": "other"}, ["other"]),
        ({**config(), "clusters": []}, ["c"]),
        ({**config(), "contexts": "text"}, ["Expected key name"]),
        ({**config(), "clusters": [{"name": "c", "cluster": {}}]}, ["server"]),
        ({**config(), "clusters": 7}, ["malformed"]),
        (config(**{"certificate-authority": "/nonexistent/ca.crt"}), ["/nonexistent/ca.crt"]),
        (config(**{"certificate-authority-data": "bm9uc2Vuc2U="}), ["certificate authority"]),
    ],
)
def test_a_bad_kubeconfig_is_named_with_its_fault(tmp_path, document, words):
    path = write(tmp_path, document)
    with pytest.raises(KubeconfigError) as caught:
        connect(path)
    message = str(caught.value)
    assert str(path) in message
    assert ";" in message
    for word in words:
        assert word in message
    assert "\n" not in message


def test_a_missing_file_is_named_with_what_to_do(tmp_path):
    with pytest.raises(KubeconfigError, match=r"/none does not exist; give another --kubeconfig"):
        connect(tmp_path / "none")
    with pytest.raises(KubeconfigError, match="does not exist; correct the variable KUBECONFIG"):
        connect(environ={"KUBECONFIG": str(tmp_path / "none")})
    with pytest.raises(KubeconfigError, match=r"\.kube/config does not exist; set KUBECONFIG or give"):
        connect(environ=NOTHING)


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(KubeconfigError, match="cannot be read"):
        connect(tmp_path)


def test_the_variable_may_list_several_files(server, tmp_path):
    present = server.kubeconfig(tmp_path)
    client = connect(environ={"KUBECONFIG": f"/nonexistent:{present}"})
    assert client.list(NODES).items == ()
    client.close()


def test_the_argument_wins_over_the_environment(server, tmp_path):
    client = connect(server.kubeconfig(tmp_path), environ={"KUBECONFIG": "/nonexistent"})
    assert client.list(NODES).items == ()
    client.close()


class InCluster:
    """A service account folder, with the server's plain address put in afterwards."""

    def __init__(self, folder, monkeypatch, server):
        self.folder = folder
        self.now = 0.0
        (folder / "token").write_text("first\n")
        (folder / "ca.crt").write_text(ssl.DER_cert_to_PEM_cert(b"x"))
        monkeypatch.setattr("dradriver.kube.connection._tls", lambda *_, **__: ssl.create_default_context())
        monkeypatch.setattr("dradriver.kube.connection.InClusterConfigLoader.load_and_set", self._plain(server.url))

    @staticmethod
    def _plain(url):
        from kubernetes.config.incluster_config import InClusterConfigLoader  # noqa: PLC0415 - the original

        original = InClusterConfigLoader._set_config

        def load_and_set(loader, configuration):
            loader._load_config()
            loader.host = url
            original(loader, configuration)
            loader.ssl_ca_cert = None

        return load_and_set

    def connect(self):
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
        return connect(environ=environ, service_account=self.folder, clock=lambda: self.now)


def test_in_cluster_token_is_read_again_when_it_is_old(server, tmp_path, monkeypatch):
    account = InCluster(tmp_path, monkeypatch, server)
    client = account.connect()
    client.list(NODES)
    assert server.requests[-1].headers["authorization"] == "bearer first"
    (tmp_path / "token").write_text("second")
    client.list(NODES)
    assert server.requests[-1].headers["authorization"] == "bearer first"
    import kubernetes.config.incluster_config as library  # noqa: PLC0415 - its clock is put forward

    class Later(library.datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + library.datetime.timedelta(minutes=2)

    monkeypatch.setattr(library.datetime, "datetime", Later)
    client.list(NODES)
    assert server.requests[-1].headers["authorization"] == "bearer first"
    account.now += 11
    client.list(NODES)
    assert server.requests[-1].headers["authorization"] == "bearer second"
    (tmp_path / "token").unlink()

    class MuchLater(Later):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + library.datetime.timedelta(hours=2)

    monkeypatch.setattr(library.datetime, "datetime", MuchLater)
    account.now += 11
    with pytest.raises(KubeconfigError, match="no token"):
        client.list(NODES)
    client.close()


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_an_incomplete_service_account_is_named(tmp_path, missing):
    for name in {"token", "ca.crt"} - {missing}:
        (tmp_path / name).write_text("x")
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    with pytest.raises(KubeconfigError, match="service account in"):
        connect(environ=environ, service_account=tmp_path)


def test_strictness_is_python_s_default_unless_lifted(server, tmp_path, monkeypatch):
    seen = []
    import urllib3  # noqa: PLC0415 - only here

    original = urllib3.util.ssl_.create_urllib3_context

    def note():
        context = original()
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        seen.append(context)
        return context

    monkeypatch.setattr("urllib3.util.ssl_.create_urllib3_context", note)
    for strict in (True, False):
        connect(server.kubeconfig(tmp_path), x509_strict=strict).close()
        assert bool(seen[-1].verify_flags & ssl.VERIFY_X509_STRICT) is strict
        assert seen[-1].verify_mode == ssl.CERT_REQUIRED


LEAN = ("pydantic", "requests", "oauthlib.oauth2.rfc6749", "kubernetes.client.rest", "kubernetes.dynamic.client")


def test_of_the_package_only_what_reads_configuration_is_loaded():
    program = f"import sys, dradriver.kube.connection; print([name for name in {LEAN} if name in sys.modules])"
    assert _output(program) == "[]"


def test_what_was_put_off_works_when_a_login_needs_it():
    program = (
        "import dradriver.kube.connection as c, kubernetes.config.kube_config as k; from kubernetes import utils; "
        "print(k.OAuth2Session(client_id='me').client_id, type(k.ApiClient(c.Configuration(host='x'))).__name__, "
        "k.oauthlib.oauth2.rfc6749.errors.InvalidClientIdError.__name__, utils.parse_quantity('1Ki'))"
    )
    assert _output(program) == "me ApiClient InvalidClientIdError 1024"


PROXY = "http://user:secret@proxy.example:3128"


@pytest.fixture
def proxied(monkeypatch):
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, PROXY)


def test_a_proxy_is_used_but_not_for_those_it_is_not_for(proxied):
    configuration = Configuration(host="https://cluster.example")
    assert _proxy(configuration) == PROXY
    assert isinstance(_manager(configuration, proxied=True), urllib3.ProxyManager)
    configuration.no_proxy = "cluster.example"
    assert _proxy(configuration) == ""
    assert not isinstance(_manager(configuration, proxied=False), urllib3.ProxyManager)


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.8.9.10", "[::1]", "[::ffff:127.0.0.1]", "LOCALHOST", "localhost:6443"]
)
def test_this_machine_is_reached_without_the_proxy_of_the_environment(proxied, host):
    configuration = Configuration(host=f"https://{host}")
    assert _proxy(configuration) == ""
    configuration.proxy = "http://of.the.kubeconfig:1"
    assert _proxy(configuration) == "http://of.the.kubeconfig:1"


@pytest.mark.parametrize("host", ["10.0.0.1", "localhost.example", "128.0.0.1", "[fd00::1]", "[::]"])
def test_other_machines_are_reached_through_it(proxied, host):
    assert _proxy(Configuration(host=f"https://{host}:6443")) == PROXY


def test_a_server_on_this_machine_answers_whatever_the_environment_says(proxied, server, tmp_path):
    client = connect(server.kubeconfig(tmp_path))
    assert client.list(NODES).items == ()
    client.close()


def test_a_proxy_that_does_not_answer_is_named_without_its_password(monkeypatch, tmp_path):
    monkeypatch.setenv("https_proxy", "http://user:secret@127.0.0.1:1")
    client = connect(write(tmp_path, config(server="https://10.0.0.1:6443")))
    with pytest.raises(UnreachableError, match=r"through the proxy http://127\.0\.0\.1:1; NO_PROXY") as caught:
        client.list(NODES)
    assert "secret" not in str(caught.value)
    client.close()


def test_the_tests_do_not_depend_on_a_proxy_of_this_machine():
    assert not {name for name in os.environ if name.lower().endswith("_proxy")}


def test_a_server_name_of_the_kubeconfig_is_kept():
    configuration = Configuration(host="https://10.0.0.1")
    configuration.tls_server_name = "cluster.example"
    configuration.assert_hostname = False
    options = _manager(configuration, proxied=False).connection_pool_kw
    assert (options["server_hostname"], options["assert_hostname"]) == ("cluster.example", False)


# --- logins ---------------------------------------------------------------------------------------

EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}


def login(**user):
    return {**config(), "users": [{"name": "u", "user": user}]}


def command(*words):
    return {"exec": {**EXEC, "command": words[0], "args": list(words[1:])}}


@pytest.mark.parametrize(
    ("user", "words"),
    [
        (command("/nonexistent/login", "--now"), ["`/nonexistent/login --now`", "No such file"]),
        (command("sh", "-c", "echo the reason >&2; exit 3"), ["`sh -c", "returned 3", "the reason"]),
        (command("true"), ["`true`", "failed to decode"]),
        (command("echo", '{"apiVersion": "v1", "kind": "x", "status": {}}'), ["`echo", "does not match"]),
        ({"exec": "text"}, ["login command"]),
        ({"auth-provider": {"name": "azure"}}, ["login provider azure"]),
        ({"auth-provider": "text"}, ["text"]),
        ({"token": ""}, ["the token"]),
    ],
)
def test_a_login_that_gives_nothing_is_named_with_its_reason(tmp_path, user, words):
    path = write(tmp_path, login(**user))
    with pytest.raises(KubeconfigError) as caught:
        connect(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_login_that_works_is_used(server, tmp_path):
    credential = {"apiVersion": EXEC["apiVersion"], "kind": "ExecCredential", "status": {"token": "from-login"}}
    document = login(**command("echo", json.dumps(credential)))
    document["clusters"][0]["cluster"]["server"] = server.url
    client = connect(write(tmp_path, document))
    client.list(NODES)
    assert server.requests[-1].headers["authorization"] == "Bearer from-login"
    client.close()


def test_a_user_without_any_login_is_anonymous(server, tmp_path):
    document = login()
    document["clusters"][0]["cluster"]["server"] = server.url
    client = connect(write(tmp_path, document))
    client.list(NODES)
    assert "authorization" not in server.requests[-1].headers
    client.close()


# --- files that cannot be reached -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["~nosuchuser/config", "x" * 300, "a\0b", "a:~nosuchuser/x"])
def test_a_file_that_cannot_be_reached_is_named(name):
    with pytest.raises(KubeconfigError, match=r"cannot be reached: .*; correct the variable KUBECONFIG"):
        connect(environ={"KUBECONFIG": name})


def test_a_folder_that_may_not_be_entered_is_named(tmp_path, monkeypatch):
    def refuse(path, **_options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.stat", refuse)
    with pytest.raises(KubeconfigError, match=r"/config cannot be reached: Permission denied; set KUBECONFIG"):
        connect(environ=NOTHING)


@pytest.mark.parametrize("text", ["a: 2001-99-99", "[" * 5000])
def test_yaml_that_crashes_its_reader_is_named(tmp_path, text):
    with pytest.raises(KubeconfigError, match="cannot be read as YAML"):
        connect(write(tmp_path, text))


def _output(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_the_room_itself_does_not_import_kubernetes():
    names = "[name for name in sys.modules if name.split('.')[0] == 'kubernetes']"
    code = f"import sys, json, dradriver.kube; print(json.dumps({names}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


@contextlib.contextmanager
def resetting():
    """A server that resets each connection as soon as it is there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reset():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.close()

        thread = threading.Thread(target=reset, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(60)


def test_a_connection_that_is_reset_before_its_handshake_is_closed(tmp_path):
    """As an API server that restarts does it; nothing is to be left to the garbage collector."""
    with resetting() as url:
        context = _tls(Configuration(host=url), strict=True, source="test")
        plain = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        until_reset(plain)
        with pytest.raises(ConnectionResetError) as caught:
            context.wrap_socket(plain, server_hostname="localhost")
    frames = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    (made,) = {one for one in frames if isinstance(one, ssl.SSLSocket)}
    assert made.fileno() == -1
    assert plain.fileno() == -1


def until_reset(plain):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            plain.getpeername()
        except OSError:
            return
        time.sleep(0.01)
    pytest.fail("the server has not reset the connection")
