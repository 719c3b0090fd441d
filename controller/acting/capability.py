"""Whether this cluster can do it: found out by writing, since an API server drops fields that it does not serve."""

from typing import Final

from controller.api import FIELD_MANAGER
from dradriver.kube import DEVICE_CLASSES, Client, InvalidError, NotFoundError, Object

_PROBE: Final[Object] = {
    "apiVersion": DEVICE_CLASSES.api_version,
    "kind": DEVICE_CLASSES.kind,
    "metadata": {"name": "probe.gpu.dradriver.dev"},
    "spec": {"extendedResourceName": "dradriver.dev/probe"},
}

_FIRST: Final = (1, 35)
"""In 1.34 a node on which a device plugin has been at any time never gets to DRA (kubernetes#133784)."""

_REMEDY: Final = (
    "use Kubernetes 1.35 or newer with the feature gate DRAExtendedResource on, in the API server, the controller "
    "manager, the scheduler and the kubelets"
)


def unsupported_because(client: Client) -> str:
    """Ask for the version, and with a dry run; nothing is stored.

    Returns:
        Why extended resource names cannot be given to classes, for people; "" if they can.

    Raises:
        KubeError: no answer.
    """
    major, minor = client.server_version()
    if (major, minor) < _FIRST:
        return f"this is Kubernetes {major}.{minor}; {_REMEDY}"
    try:
        stored = client.apply(DEVICE_CLASSES, _PROBE, field_manager=FIELD_MANAGER, dry_run=True)
    except NotFoundError:
        return f"the API server does not serve resource.k8s.io/v1; {_REMEDY}"
    except InvalidError as error:
        return f"the API server refuses a DeviceClass with an extended resource name ({error.message}); {_REMEDY}"
    if stored.get("spec", {}).get("extendedResourceName"):
        return ""
    return f"the API server drops spec.extendedResourceName of DeviceClasses; {_REMEDY}"
