import json
import ssl
import subprocess
import sys

import pytest
import urllib3
import yaml

from dradriver.kube import NODES, KubeconfigError
from dradriver.kube.connection import Configuration, _manager, connect

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


def test_a_proxy_is_used_but_not_for_those_it_is_not_for(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    configuration = Configuration(host="https://cluster.example")
    assert isinstance(_manager(configuration), urllib3.ProxyManager)
    configuration.no_proxy = "cluster.example"
    assert not isinstance(_manager(configuration), urllib3.ProxyManager)


def test_a_server_name_of_the_kubeconfig_is_kept():
    configuration = Configuration(host="https://10.0.0.1")
    configuration.proxy = None
    configuration.tls_server_name = "cluster.example"
    configuration.assert_hostname = False
    options = _manager(configuration).connection_pool_kw
    assert (options["server_hostname"], options["assert_hostname"]) == ("cluster.example", False)


def _output(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_the_room_itself_does_not_import_kubernetes():
    names = "[name for name in sys.modules if name.split('.')[0] == 'kubernetes']"
    code = f"import sys, json, dradriver.kube; print(json.dumps({names}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
