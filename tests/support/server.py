"""The API server as tests see it: a few REST calls for what is asked often, kubectl for the rest."""

import base64
import http.client
import json
import os
import ssl
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml

Body = dict[str, Any]

_RESOURCE = "/apis/resource.k8s.io/v1"
_PATHS = {
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "Event": "/api/v1/namespaces/{namespace}/events",
    "DeviceClass": f"{_RESOURCE}/deviceclasses",
    "ResourceSlice": f"{_RESOURCE}/resourceslices",
    "ResourceClaim": f"{_RESOURCE}/namespaces/{{namespace}}/resourceclaims",
    "ResourceClaimTemplate": f"{_RESOURCE}/namespaces/{{namespace}}/resourceclaimtemplates",
}


class RefusedError(AssertionError):
    """The API server said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Server:
    """An API server, with an administrator's rights. Not for several threads."""

    def __init__(self, kubeconfig: Path, *, programs: Path) -> None:
        self.kubeconfig = kubeconfig
        self._kubectl = programs / "kubectl"
        config = yaml.safe_load(kubeconfig.read_text())
        self.cluster: Body = config["clusters"][0]["cluster"]
        address = urlsplit(self.cluster["server"])
        authority = base64.b64decode(self.cluster["certificate-authority-data"]).decode()
        self._connection = http.client.HTTPSConnection(
            str(address.hostname), address.port, timeout=30, context=ssl.create_default_context(cadata=authority)
        )
        self._headers = {
            "Authorization": f"Bearer {config['users'][0]['user']['token']}",
            "Content-Type": "application/json",
        }

    # --- REST ------------------------------------------------------------------------------------

    def create(self, body: Body, *, namespace: str = "") -> Body:
        return self._call("POST", path_of(body["kind"], namespace), body)

    def replace(self, body: Body, *, part: str = "") -> Body:
        """PUT an object; `part` may be "/status"."""
        metadata = body["metadata"]
        path = path_of(body["kind"], metadata.get("namespace", ""))
        return self._call("PUT", f"{path}/{metadata['name']}{part}", body)

    def get(self, kind: str, name: str, *, namespace: str = "") -> Body:
        return self._call("GET", f"{path_of(kind, namespace)}/{name}")

    def find(self, kind: str, name: str, *, namespace: str = "") -> Body | None:
        """GET an object; None where there is none."""
        try:
            return self.get(kind, name, namespace=namespace)
        except RefusedError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                return None
            raise

    def list(self, kind: str, *, namespace: str = "", **query: str) -> list[Body]:
        found = self._call("GET", f"{path_of(kind, namespace)}?{urlencode(query)}")
        # Items of a list come without these, but are wanted for writing them back.
        return [{"apiVersion": found["apiVersion"], "kind": kind, **item} for item in found["items"]]

    def delete(self, kind: str, name: str, *, namespace: str = "", grace: int | None = None) -> None:
        """DELETE an object; one that is not there is fine."""
        query = "" if grace is None else f"?gracePeriodSeconds={grace}"
        try:
            self._call("DELETE", f"{path_of(kind, namespace)}/{name}{query}")
        except RefusedError as error:
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise

    def _call(self, method: str, path: str, body: Body | None = None) -> Body:
        try:
            return self._once(method, path, body)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            # The server closes a connection that was idle for long.
            self._connection.close()
            return self._once(method, path, body)

    def _once(self, method: str, path: str, body: Body | None) -> Body:
        self._connection.request(method, path, None if body is None else json.dumps(body), self._headers)
        answer = self._connection.getresponse()
        content: Body = json.loads(answer.read())
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise RefusedError(answer.status, content.get("message", ""))
        return content

    def close(self) -> None:
        self._connection.close()

    # --- kubectl ---------------------------------------------------------------------------------

    def kubectl(self, *arguments: str, text: str | None = None, check: bool = True) -> str:
        """Run kubectl as an administrator and give what it prints; with `check`, its failure is ours."""
        done = subprocess.run(
            [*self.kubectl_command, *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
        )
        if check:
            assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}"
        return done.stdout

    @property
    def kubectl_command(self) -> tuple[str, ...]:
        """The first words of every command."""
        return str(self._kubectl), f"--kubeconfig={self.kubeconfig}"

    def kubeconfig_for(self, token: str) -> str:
        """A kubeconfig of the bearer of a token."""
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "it",
                "clusters": [{"name": "it", "cluster": self.cluster}],
                "users": [{"name": "it", "user": {"token": token}}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            }
        )


def path_of(kind: str, namespace: str) -> str:
    """Where objects of a kind live."""
    return _PATHS[kind].format(namespace=namespace)
