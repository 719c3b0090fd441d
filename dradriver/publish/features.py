"""What the API server keeps of a slice, found out by dry runs.

An API server whose feature gate is off takes a slice and silently leaves the fields out (201, no warning). Partitions
without their counters would look independent of each other and of the whole GPU, and be handed out twice. So this is
asked before anything is offered.
"""

from dataclasses import dataclass

from dradriver.kube import RESOURCE_SLICES, Client, InvalidError, Object
from dradriver.publish.names import slice_name
from dradriver.publish.plan import Identity
from dradriver.resource import CounterConsumption, CounterSet, Device, Slice, Taint, slice_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a slice may contain.

    Attributes:
        partitionable: counter sets in slices of their own, and devices that consume them (1.35 and newer).
        taints: device taints.
    """

    partitionable: bool
    taints: bool


def probe_features(client: Client, driver: str, node: str) -> Features:
    """Ask with three dry runs; nothing is stored.

    Own node and driver name are used, because the admission policy that guards slices applies to dry runs too.

    Raises:
        KubeError: no clear answer, among them ForbiddenError when RBAC or a policy denies.
    """
    identity = Identity(driver=driver, node_name=node, pool_name=node)
    consumer = Device(name="probe", consumes=(CounterConsumption(counter_set="probe", counters={"probe": 1}),))
    tainted = Device(name="probe", taints=(Taint(key=f"{driver}/probe", effect="NoSchedule"),))
    counters = Slice(counter_sets=(CounterSet(name="probe", counters={"probe": 1}),))
    return Features(
        partitionable=_is_kept(client, identity, counters, "sharedCounters")
        and _is_kept(client, identity, Slice(devices=(consumer,)), "consumesCounters"),
        taints=_is_kept(client, identity, Slice(devices=(tainted,)), "taints"),
    )


def dropped_fields(sent: Object, stored: Object) -> frozenset[str]:
    """Names of the fields of a spec that were sent and are not there any more."""
    return _fields(sent) - _fields(stored)


def _fields(spec: Object) -> frozenset[str]:
    of_devices = {
        field for device in spec.get("devices") or () for field in ("consumesCounters", "taints") if device.get(field)
    }
    return frozenset(of_devices | ({"sharedCounters"} if spec.get("sharedCounters") else set()))


def _is_kept(client: Client, identity: Identity, content: Slice, field: str) -> bool:
    pool = {"name": identity.pool_name, "generation": 1, "resourceSliceCount": 1}
    spec = slice_spec(content, driver=identity.driver, node_name=identity.node_name, pool=pool)
    name = slice_name(99999, driver=identity.driver, node_name=identity.node_name)
    body = {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": {"name": name},
        "spec": spec,
    }
    try:
        stored = client.create(RESOURCE_SLICES, body, dry_run=True)
    except InvalidError:
        # 400: a server that does not know the field; 422: one that wants the layout of 1.34.
        return False
    return field not in dropped_fields(spec, stored.get("spec") or {})
