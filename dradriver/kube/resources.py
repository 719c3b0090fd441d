"""Which kinds of objects we touch, and where the API server keeps them."""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dradriver.kube.errors import ImpossibleNameError

Object: TypeAlias = dict[str, Any]
"""A Kubernetes object as decoded JSON; nothing of it is lost or checked on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One resource type.

    Attributes:
        group: API group, "" for core.
        version: API version within the group.
        plural: name in URLs.
        kind: name in objects.
        namespaced: whether objects live in a namespace.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """The value of an object's `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """URL path of an object, of a collection (no name), or of a collection in all namespaces (neither).

        Raises:
            ImpossibleNameError: if a part would change the path's meaning, or a namespaced object lacks its namespace.
        """
        if self.namespaced and name and not namespace:
            raise ImpossibleNameError(f"{self.plural}/{name} needs a namespace")
        scope = ("namespaces", namespace) if self.namespaced and namespace else ()
        root = ("apis", self.group) if self.group else ("api",)
        parts = [*root, self.version, *scope, self.plural, *filter(None, (name, subresource))]
        if not all(_is_segment(part) for part in (namespace or "-", name or "-")):
            raise ImpossibleNameError(f"not a name of a Kubernetes object: {namespace!r} {name!r}")
        return "/" + "/".join(parts)


def _is_segment(text: str) -> bool:
    return text not in {".", ".."} and not set(text) & set("/%?# \t\r\n")


NODES: Final = Resource(group="", version="v1", plural="nodes", kind="Node", namespaced=False)
PODS: Final = Resource(group="", version="v1", plural="pods", kind="Pod", namespaced=True)
RESOURCE_QUOTAS: Final = Resource(
    group="", version="v1", plural="resourcequotas", kind="ResourceQuota", namespaced=True
)
EVENTS: Final = Resource(group="events.k8s.io", version="v1", plural="events", kind="Event", namespaced=True)
RESOURCE_SLICES: Final = Resource(
    group="resource.k8s.io", version="v1", plural="resourceslices", kind="ResourceSlice", namespaced=False
)
RESOURCE_CLAIMS: Final = Resource(
    group="resource.k8s.io", version="v1", plural="resourceclaims", kind="ResourceClaim", namespaced=True
)
DEVICE_CLASSES: Final = Resource(
    group="resource.k8s.io", version="v1", plural="deviceclasses", kind="DeviceClass", namespaced=False
)
LEASES: Final = Resource(group="coordination.k8s.io", version="v1", plural="leases", kind="Lease", namespaced=True)
