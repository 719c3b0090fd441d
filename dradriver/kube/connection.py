"""From a kubeconfig or a service account to a client. The only place that knows the kubernetes package.

Everything else in this room is light and does not import it. Of the package, only what reads configuration is
loaded here: as a whole it takes 0.3 to 0.9 s and 16 MiB, most of it for models, streams and logins that few need.
"""

import contextlib
import ipaddress
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import urllib3
import yaml

from dradriver.kube.client import Client
from dradriver.kube.errors import KubeconfigError
from dradriver.kube.transport import HttpTransport
from dradriver.lazy import defer, defer_class

# Imported by the package's `__init__` for whoever wants it.
defer(*(f"kubernetes.{name}" for name in ("dynamic", "informer", "leaderelection", "stream", "utils", "watch")))
# Imported by its reader of kubeconfigs for logins through OpenID Connect; the client brings pydantic.
defer("oauthlib.oauth2")
defer_class("requests_oauthlib", "OAuth2Session")
defer_class("kubernetes.client.api_client", "ApiClient")

from kubernetes.client.configuration import Configuration  # noqa: E402 (after what it shall not load)
from kubernetes.config.config_exception import ConfigException  # noqa: E402
from kubernetes.config.incluster_config import InClusterConfigLoader  # noqa: E402
from kubernetes.config.kube_config import load_kube_config  # noqa: E402

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_POOL_SIZE = 32
"""Connections kept: more than the claims that a node prepares at once, plus the watches."""

_TOKEN_KEPT = 10.0
"""Seconds."""


def connect(
    kubeconfig: Path | None = None,
    *,
    x509_strict: bool = True,
    timeout: float = 30.0,
    user_agent: str = "dradriver",
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
    clock: Callable[[], float] = time.monotonic,
) -> Client:
    """Make a client; nothing is sent yet.

    Looks at the given file, else at the files in KUBECONFIG, else at the pod's service account, else at
    ~/.kube/config.

    Args:
        kubeconfig: file to use, whatever the environment says.
        x509_strict: Python 3.13 and newer refuse certificate authorities without Authority Key Identifier or key
            usage, which older managed clusters have. False lifts that; chain and host name are checked always.
        timeout: seconds after which a call that has not been answered in full is given up.
        user_agent: sent with every request.
        environ: environment variables.
        service_account: folder with `token` and `ca.crt`.
        clock: monotonic seconds.

    Raises:
        KubeconfigError: naming the file, what is wrong with it, and what to do.
    """
    source = _choose(kubeconfig, environ=environ, service_account=service_account)
    configuration = Configuration(host="")
    configuration.retries = False
    configuration.connection_pool_maxsize = _POOL_SIZE
    configuration.socket_options = _socket_options()
    _load(configuration, source)
    proxy = _proxy(configuration)
    manager = _manager(configuration, proxied=bool(proxy))
    manager.connection_pool_kw["ssl_context"] = _tls(configuration, strict=x509_strict, source=source.name)
    authorization = _Authorization(configuration, source=source.name, clock=clock)
    return Client(
        HttpTransport(
            server=configuration.host,
            manager=manager,
            authorization=authorization,
            user_agent=user_agent,
            proxy=_without_password(proxy),
            clock=clock,
        ),
        timeout=timeout,
    )


# --- what says where the API server is ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where the configuration comes from.

    Attributes:
        name: for messages.
        load: lets the library read it.
        user: entry of the chosen user in a kubeconfig; empty if there is none.
    """

    name: str
    load: Callable[[Configuration], None]
    user: Mapping[str, Any] = field(default_factory=dict)


def _choose(kubeconfig: Path | None, *, environ: Mapping[str, str], service_account: Path) -> _Source:
    if kubeconfig is not None:
        return _from_files(str(kubeconfig), remedy="give another --kubeconfig")
    if files := environ.get("KUBECONFIG"):
        return _from_files(files, remedy="correct the variable KUBECONFIG")
    if environ.get("KUBERNETES_SERVICE_HOST"):
        load = _in_cluster(environ, service_account)
        return _Source(name=f"service account in {service_account}", load=load)
    return _from_files(
        str(Path(environ.get("HOME", "/root")) / ".kube" / "config"), remedy="set KUBECONFIG or give --kubeconfig"
    )


def _from_files(files: str, *, remedy: str) -> _Source:
    present = [path for name in files.split(os.pathsep) if name and (path := _existing(name, remedy=remedy))]
    if not present:
        raise KubeconfigError(f"kubeconfig {files} does not exist; {remedy}")
    documents = [_checked(path) for path in present]

    def load(configuration: Configuration) -> None:
        load_kube_config(  # type: ignore[no-untyped-call]  # the library's config part has no types
            config_file=files, client_configuration=configuration, persist_config=False
        )

    return _Source(name=f"kubeconfig {files}", load=load, user=_chosen_user(documents))


def _existing(name: str, *, remedy: str) -> Path | None:
    """The file of this name; None where there is none, as one of several in KUBECONFIG may be missing."""
    try:
        path = Path(name).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RuntimeError) as error:
        # RuntimeError: ~user of a user that does not exist.
        reason = getattr(error, "strerror", None) or error
        raise KubeconfigError(f"kubeconfig {name} cannot be reached: {reason}; {remedy}") from error
    return path


def _chosen_user(documents: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The user of the current context, where the documents are in order; the library says what is not."""
    try:
        current = [document["current-context"] for document in documents if "current-context" in document][-1]
        context = _named(documents, "contexts", current)["context"]
        user = _named(documents, "users", context["user"])["user"]
    except (LookupError, TypeError, StopIteration):
        return {}
    return user if isinstance(user, Mapping) else {}


def _named(documents: Sequence[Mapping[str, Any]], kind: str, name: str) -> Mapping[str, Any]:
    entries = [entry for document in documents for entry in document.get(kind) or ()]
    found: Mapping[str, Any] = next(entry for entry in entries if entry["name"] == name)
    return found


def _checked(path: Path) -> Mapping[str, Any]:
    """Read a file, and refuse here what the library would answer with a traceback."""
    try:
        document = yaml.safe_load(path.read_bytes())
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        first_line = " ".join(str(error).split())
        raise KubeconfigError(f"kubeconfig {path} cannot be read as YAML: {first_line}; write it anew") from error
    if not isinstance(document, dict) or document.get("kind", "Config") != "Config":
        raise KubeconfigError(f"kubeconfig {path} is not a kubeconfig (kind: Config); give another file")
    return document


def _in_cluster(environ: Mapping[str, str], service_account: Path) -> Callable[[Configuration], None]:
    def load(configuration: Configuration) -> None:
        loader = InClusterConfigLoader(  # type: ignore[no-untyped-call]  # as above
            token_filename=str(service_account / "token"),
            cert_filename=str(service_account / "ca.crt"),
            environ=environ,
        )
        loader.load_and_set(configuration)  # type: ignore[no-untyped-call]  # as above

    return load


def _load(configuration: Configuration, source: _Source) -> None:
    try:
        with _overheard() as complaints:
            source.load(configuration)
    except (ConfigException, OSError) as error:
        raise KubeconfigError(f"{source.name}: {error}; correct it or choose another") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        # The library walks the document without checking it.
        raise KubeconfigError(
            f"{source.name}: malformed near {error}; compare it with `kubectl config view`"
        ) from error
    if not configuration.host:
        raise KubeconfigError(f"{source.name}: the cluster of its current context has no server; add it")
    login = _login(source.user)
    if login and not configuration.cert_file and not configuration.api_key.get("BearerToken"):
        reasons = "; ".join(complaints) or "it says nothing"
        raise KubeconfigError(
            f"{source.name}: {login} of the current context's user gives no credentials: {reasons}; "
            "see what `kubectl get --raw /version` says, or choose another user"
        )


def _login(user: Mapping[str, Any]) -> str:
    """By what a user gets a token; "" for one who needs none."""
    if "exec" in user:
        login = user["exec"] if isinstance(user["exec"], Mapping) else {}
        return f"the login command `{' '.join(map(str, [login.get('command', ''), *(login.get('args') or ())]))}`"
    if "auth-provider" in user:
        provider = user["auth-provider"]
        return f"the login provider {provider.get('name') if isinstance(provider, Mapping) else provider}"
    return "the token" if {"token", "tokenFile"} & user.keys() else ""


@contextlib.contextmanager
def _overheard() -> Iterator[list[str]]:
    """What the library logs at the root while it reads: of a login that fails it says nothing else."""
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "root":
                heard.append(" ".join(record.getMessage().split()))

    listener = Listener()
    logging.getLogger().addHandler(listener)
    try:
        yield heard
    finally:
        logging.getLogger().removeHandler(listener)


# --- how it is reached ----------------------------------------------------------------------------


def _proxy(configuration: Configuration) -> str:
    """URL of the proxy to go through, "" for none.

    As with client-go: this machine itself is never reached through a proxy that the environment names, but through
    one of the kubeconfig if that says so.
    """
    proxy = configuration.proxy
    if not proxy:
        return ""
    from_environment = proxy == Configuration(host=configuration.host).proxy
    if from_environment and _is_this_machine(configuration.host):
        return ""
    # The package knows whom to reach without the proxy; that part of it is loaded for this only.
    from kubernetes.client.rest import should_bypass_proxies  # noqa: PLC0415

    return "" if should_bypass_proxies(configuration.host, configuration.no_proxy or "") else str(proxy)


def _is_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _without_password(proxy: str) -> str:
    user, at, rest = proxy.rpartition("@")
    return f"{user.partition('://')[0]}://{rest}" if at else proxy


def _manager(configuration: Configuration, *, proxied: bool) -> urllib3.PoolManager:
    if proxied:
        from kubernetes.client.rest import RESTClientObject  # noqa: PLC0415 (as above)

        manager: urllib3.PoolManager = RESTClientObject(configuration).pool_manager
        return manager
    names: dict[str, Any] = {
        # Given although the context has them: so they are read anew for each connection, since they get renewed.
        "ca_certs": configuration.ssl_ca_cert,
        "cert_file": configuration.cert_file,
        "key_file": configuration.key_file,
        "assert_hostname": configuration.assert_hostname,
        "server_hostname": configuration.tls_server_name or None,
    }
    return urllib3.PoolManager(
        cert_reqs=ssl.CERT_REQUIRED if configuration.verify_ssl else ssl.CERT_NONE,
        retries=configuration.retries,
        socket_options=configuration.socket_options,
        maxsize=configuration.connection_pool_maxsize,
        **{name: value for name, value in names.items() if value is not None},
    )


def _tls(configuration: Configuration, *, strict: bool, source: str) -> ssl.SSLContext:
    """One context for all connections, made now so that a bad certificate is found before the first request."""
    context: ssl.SSLContext = urllib3.util.ssl_.create_urllib3_context()
    context.sslsocket_class = _TidySocket
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        if configuration.ssl_ca_cert or configuration.ca_cert_data:
            context.load_verify_locations(configuration.ssl_ca_cert, None, configuration.ca_cert_data)
        elif configuration.verify_ssl:
            context.load_default_certs()
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise KubeconfigError(
            f"{source}: certificate authority or client certificate unusable: {error}; renew it"
        ) from error
    if not strict:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class _TidySocket(ssl.SSLSocket):
    """A TLS socket that does not outlive a reset that came before its handshake.

    Python finds such a reset by a read that it does not expect to fail, and then leaves the descriptor to the garbage
    collector: an API server that restarts would cost one for each attempt until then.
    """

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Read; a connection that is broken is closed."""
        try:
            return super().recv(buflen, flags)
        except ConnectionError:
            self.close()
            raise


class _Authorization:
    """Value of the Authorization header, asked for at every request: service account tokens rotate.

    The library reads the token file again when its copy is older than a minute, and renews other tokens five minutes
    before they end. It also sorts out proxies each time it is asked, which takes a tenth of the time of a small GET;
    so its answer is kept for some seconds.
    """

    def __init__(self, configuration: Configuration, *, source: str, clock: Callable[[], float]) -> None:
        self._configuration = configuration
        self._source = source
        self._clock = clock
        self._kept = (float("-inf"), "")

    def __call__(self) -> str:
        since, value = self._kept
        now = self._clock()
        if now - since > _TOKEN_KEPT:
            value = self._ask()
            self._kept = (now, value)
        return value

    def _ask(self) -> str:
        configuration = self._configuration
        try:
            token = configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        except (ConfigException, OSError) as error:
            raise KubeconfigError(f"{self._source}: no token: {error}; is the volume still mounted?") from error
        if token:
            # A trailing newline, as editors leave it, is no valid header.
            return str(token).strip()
        return str(configuration.get_basic_auth_token() or "") if configuration.username else ""


def _socket_options() -> list[tuple[int, int, int]]:
    """Notice a vanished server within a minute, also on a watch that has nothing to say."""
    options: list[tuple[int, int, int]] = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    ]
    linux: dict[str, Any] = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
    known = {getattr(socket, name): value for name, value in linux.items() if hasattr(socket, name)}
    return [*options, *((socket.IPPROTO_TCP, option, value) for option, value in known.items())]
