"""The identity of a plugin that runs outside of a pod: that of a pod which is there for its token only."""

import secrets

from support.server import Server

_ACCOUNT = "dradriver-kubelet-plugin"
_NAMESPACE = "dradriver"


class StandIn:
    """A pod of the plugin's service account on a node. The API server takes its token for that node's plugin.

    Args:
        server: where.
        node: name of the node.
    """

    def __init__(self, server: Server, node: str) -> None:
        self._server = server
        self._name = f"stand-in-{secrets.token_hex(3)}"
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self._name},
            "spec": {
                "nodeName": node,
                "serviceAccountName": _ACCOUNT,
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "pause", "image": "dradriver.dev/pause:1"}],
            },
        }
        self._uid = server.create(body, namespace=_NAMESPACE)["metadata"]["uid"]

    def token(self) -> str:
        """Make a token that says on which node the pod is."""
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={self._name}", f"--bound-object-uid={self._uid}")
        return self._server.kubectl("create", "token", _ACCOUNT, "-n", _NAMESPACE, "--duration=2h", *bound).strip()

    def remove(self) -> None:
        """Remove the pod; the API server refuses the token from then on."""
        self._server.delete("Pod", self._name, namespace=_NAMESPACE)
