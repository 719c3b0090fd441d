"""Why slices are not as they should be.

PublishError
├── NodeMissingError      the Node object that is to own the slices does not exist
├── NameTakenError        a slice of somebody else has a name of ours
├── ContestedError        somebody else writes our slices as fast as we do
├── WriteError            the API server did not take a slice, or could not be reached
└── DroppedFieldsError    the API server took a slice and left something out
"""

from dradriver.kube import ForbiddenError, InvalidError, KubeError


class PublishError(Exception):
    """The slices at the API server are not, or not surely, what is offered."""


class NodeMissingError(PublishError):
    """There is no Node of that name."""

    def __init__(self, node_name: str) -> None:
        super().__init__(
            f"node {node_name} does not exist, so its slices would have no owner; "
            "has its kubelet registered, and is --node-name its name?"
        )


class NameTakenError(PublishError):
    """A slice with our name belongs to another driver or node."""

    def __init__(self, name: str, *, driver: str, node_name: str) -> None:
        super().__init__(
            f"slice {name} exists and belongs to driver {driver!r} on node {node_name!r}; "
            "find out who made it and delete it"
        )


class ContestedError(PublishError):
    """Every attempt met another writer."""

    def __init__(self, pool_name: str) -> None:
        super().__init__(
            f"slices of pool {pool_name} keep changing while they are written; "
            "is a second instance of the driver running on this node?"
        )


class WriteError(PublishError):
    """One slice could not be written; the cause is chained."""

    def __init__(self, name: str, cause: KubeError) -> None:
        super().__init__(f"slice {name}: {cause}{_advice(cause)}")
        self.cause = cause


class DroppedFieldsError(PublishError):
    """The API server stored a slice without some of its fields: a feature gate is off.

    Attributes:
        fields: names of what is missing, "sharedCounters", "consumesCounters", "taints", "allowMultipleAllocations"
            or "requestPolicy"; empty if it is something else, which then an admission webhook has changed.
    """

    def __init__(self, name: str, fields: frozenset[str]) -> None:
        what = ", ".join(sorted(fields)) or "something"
        super().__init__(f"slice {name}: the API server left out {what}; {_gates(fields)}")
        self.fields = fields


def _advice(cause: KubeError) -> str:
    if isinstance(cause, ForbiddenError):
        return "; the policy must allow this node's slices to this identity"
    if isinstance(cause, InvalidError):
        return "; this driver and the cluster's version do not fit together"
    return ""


def _gates(fields: frozenset[str]) -> str:
    gates = {
        "sharedCounters": "DRAPartitionableDevices",
        "consumesCounters": "DRAPartitionableDevices",
        "taints": "DRADeviceTaints",
        "allowMultipleAllocations": "DRAConsumableCapacity",
        "requestPolicy": "DRAConsumableCapacity",
    }
    wanted = sorted({gates[field] for field in fields})
    if not wanted:
        return "does an admission webhook change resource slices?"
    return f"switch on the feature gate {' and '.join(wanted)} in the API server, scheduler and controller manager"
