"""Access to the API server: client, reflector, work queue, events, leader election. Objects are plain dicts.

`dradriver.kube.connection`, which makes a client from a kubeconfig, is left out on purpose: it alone imports the
kubernetes package, which takes 0.4 s, and is imported when there is time for it.
"""

from dradriver.kube.backoff import Backoff
from dradriver.kube.client import Client, Listing, PatchKind, Selector, Watch, WatchEvent
from dradriver.kube.elector import Elector, Terms
from dradriver.kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    GoneError,
    ImpossibleNameError,
    InvalidError,
    KubeconfigError,
    KubeError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    UnauthorizedError,
    UnreachableError,
)
from dradriver.kube.events import EventRecorder, EventType, Happening, Regarding
from dradriver.kube.reflector import Pace, Reflector
from dradriver.kube.resources import (
    DEVICE_CLASSES,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    Object,
    Resource,
)
from dradriver.kube.store import Store, key_of, version_of
from dradriver.kube.workqueue import WorkQueue

__all__ = [
    "DEVICE_CLASSES",
    "EVENTS",
    "LEASES",
    "NODES",
    "PODS",
    "RESOURCE_CLAIMS",
    "RESOURCE_QUOTAS",
    "RESOURCE_SLICES",
    "AlreadyExistsError",
    "ApiError",
    "Backoff",
    "Client",
    "ConflictError",
    "Elector",
    "EventRecorder",
    "EventType",
    "ForbiddenError",
    "GoneError",
    "Happening",
    "ImpossibleNameError",
    "InvalidError",
    "KubeError",
    "KubeconfigError",
    "Listing",
    "NotFoundError",
    "Object",
    "Pace",
    "PatchKind",
    "Reflector",
    "Regarding",
    "Resource",
    "Selector",
    "ServerError",
    "Store",
    "Terms",
    "TooManyRequestsError",
    "UnauthorizedError",
    "UnreachableError",
    "Watch",
    "WatchEvent",
    "WorkQueue",
    "key_of",
    "version_of",
]
