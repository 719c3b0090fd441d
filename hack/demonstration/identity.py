"""The identities that our programs have in production: their service accounts, the plugin's in a pod on its node.

The API server lets a node's driver write the device status of claims only with a token that is bound to a pod of that
node (the rule of Kubernetes 1.36, resourceclaims/driver). The plugin of a developer runs outside of any pod, so a
pod that does nothing stands in for its own. The token is worth nothing once that pod is gone.
"""

import json
from collections.abc import Callable

NAMESPACE = "dradriver"
ACCOUNT = "dradriver-kubelet-plugin"
CONTROLLER = "dradriver-controller"
_IMAGE = "dradriver.dev/pause:1"


def stand_in(node: str) -> dict[str, object]:
    """The pod that stands in for the plugin's own on a node; its image is on every node of hack/cluster."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{ACCOUNT}-{node}", "namespace": NAMESPACE},
        "spec": {
            # As a DaemonSet's pod it goes to its node whatever that is tainted with.
            "nodeName": node,
            "tolerations": [{"operator": "Exists"}],
            "serviceAccountName": ACCOUNT,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "plugin", "image": _IMAGE}],
        },
    }


def bound_token(kubectl: Callable[..., str], node: str) -> str:
    """Make the stand-in unless it is there, and give a token of the service account that is bound to it, for a day.

    Args:
        kubectl: runs kubectl as an administrator with the words given, `stdin` as its input, and returns what it
            prints. What it raises where deploy/rbac.yaml is not applied is passed on.
        node: where the plugin runs.
    """
    kubectl("apply", "-f", "-", stdin=json.dumps(stand_in(node)))
    name = f"{ACCOUNT}-{node}"
    uid = kubectl("get", "pod", name, "-n", NAMESPACE, "-o", "jsonpath={.metadata.uid}").strip()
    bound = ("--bound-object-kind", "Pod", "--bound-object-name", name, "--bound-object-uid", uid)
    return kubectl("create", "token", ACCOUNT, "-n", NAMESPACE, "--duration", "24h", *bound).strip()


def controller_token(kubectl: Callable[..., str]) -> str:
    """Give a token of the controller's service account, for a day; `kubectl` as in `bound_token`."""
    return kubectl("create", "token", CONTROLLER, "-n", NAMESPACE, "--duration", "24h").strip()
