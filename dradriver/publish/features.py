"""What the API server keeps of a slice, found out by dry runs.

An API server whose feature gate is off takes a slice and silently leaves the fields out (201, no warning). Partitions
without their counters would look independent of each other and of the whole GPU, and be handed out twice. So this is
asked before anything is offered.

One sample with everything in it goes out first, then poorer ones. The first that is not refused answers all questions
at once, because each server refuses what it knows and does not allow, and drops what it does not know:

    counters in another slice   kept from 1.35 on, refused by 1.34
    counters in the same slice  kept by 1.34, refused from 1.35 on
    taint effect None           kept from 1.35 on, refused by 1.34
    devices for several claims  kept from 1.36 on
    any of them, gate off       dropped
"""

import itertools
from dataclasses import dataclass
from typing import Any, Final

from dradriver.kube import RESOURCE_SLICES, Client, InvalidError, Object
from dradriver.publish.names import slice_name
from dradriver.publish.plan import Identity
from dradriver.resource import (
    CounterConsumption,
    CounterSet,
    Device,
    Layout,
    RequestPolicy,
    Slice,
    Taint,
    same_content,
    slice_spec,
)

_EFFECTS: Final = (("NoSchedule", "None"), ("NoSchedule",), ())
"""Effects of the sample's taints, richest first."""

_SET: Final = CounterSet(name="probe", counters={"probe": 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a slice may contain.

    Attributes:
        layout: where counter sets have to lie; None if counters are dropped, so that no partitions may be offered.
        taints: device taints.
        informational_taints: taints of effect None, which nobody acts upon (1.35 and newer).
        shares: devices that several claims may have at once (1.36 and newer).
    """

    layout: Layout | None
    taints: bool
    informational_taints: bool
    shares: bool = True

    @property
    def partitionable(self) -> bool:
        """Whether devices may share counters, in whichever layout."""
        return self.layout is not None


def probe_features(client: Client, driver: str, node: str) -> Features:
    """Ask with dry runs, at most seven and mostly two; nothing is stored.

    Own node and driver name are used, because the admission policy that guards slices applies to dry runs too.

    Raises:
        KubeError: no clear answer, among them ForbiddenError when RBAC or a policy denies, and InvalidError from a
            server that refuses every sample, for a reason that then is another.
    """
    identity = Identity(driver=driver, node_name=node, pool_name=node)
    refusals = []
    for effects, layout in itertools.product(_EFFECTS, (Layout.APART, Layout.TOGETHER)):
        try:
            stored = _stored(client, identity, _sample(driver, layout, effects))
        except InvalidError as error:
            # 400: a server that does not know a field; 422: one that does not allow it.
            refusals.append(error)
            continue
        kept = _effects(stored)
        return Features(
            layout=layout if _keeps_counters(client, identity, stored, layout) else None,
            taints="NoSchedule" in kept,
            informational_taints="None" in kept,
            shares=_keeps_shares(stored),
        )
    raise refusals[-1]


def dropped_fields(sent: Object, stored: Object) -> frozenset[str]:
    """Names of the fields of a spec that were sent and are not stored, be it of one device only.

    Counters that are stored with other values count as dropped, since both say the same of an offer: that it would be
    handed out in other amounts than there are. Devices that are not stored at all are no field.
    """
    there = {device["name"]: device for device in stored.get("devices") or ()}
    pairs = [(device, there[device["name"]]) for device in sent.get("devices") or () if device["name"] in there]
    dropped = {
        "allowMultipleAllocations": any(
            one.get("allowMultipleAllocations") and not other.get("allowMultipleAllocations") for one, other in pairs
        ),
        "requestPolicy": any(_policies(one) - _policies(other) for one, other in pairs),
        "consumesCounters": any(
            not _same("devices", [_consumption(one)], [_consumption(other)]) for one, other in pairs
        ),
        "taints": any(one.get("taints") and not other.get("taints") for one, other in pairs),
        "sharedCounters": not _same("sharedCounters", sent.get("sharedCounters"), stored.get("sharedCounters")),
    }
    return frozenset(field for field, holds in dropped.items() if holds)


def _policies(device: Object) -> frozenset[str]:
    """Name the capacities of a device of which not all goes to the first claim."""
    return frozenset(name for name, entry in (device.get("capacity") or {}).items() if entry.get("requestPolicy"))


def _keeps_shares(spec: Object) -> bool:
    return any(device.get("allowMultipleAllocations") and _policies(device) for device in spec.get("devices") or ())


def _consumption(device: Object) -> Object:
    return {"consumesCounters": device.get("consumesCounters") or []}


def _same(field: str, one: Any, other: Any) -> bool:
    return same_content({field: one}, {field: other})


def _fields(spec: Object) -> frozenset[str]:
    of_devices = {
        field for device in spec.get("devices") or () for field in ("consumesCounters", "taints") if device.get(field)
    }
    return frozenset(of_devices | ({"sharedCounters"} if spec.get("sharedCounters") else set()))


def _effects(spec: Object) -> frozenset[str]:
    return frozenset(taint["effect"] for device in spec.get("devices") or () for taint in device.get("taints") or ())


def _sample(driver: str, layout: Layout, effects: tuple[str, ...]) -> Slice:
    consumer = Device(
        name="probe",
        consumes=(CounterConsumption(counter_set=_SET.name, counters=_SET.counters),),
        taints=tuple(Taint(key=f"{driver}/probe", effect=effect) for effect in effects),
    )
    # Another device, since no device is to be shared and consume counters.
    shared = Device(name="probe-shared", capacity={"probe": 2}, policies={"probe": RequestPolicy(default=1, least=1)})
    return Slice(devices=(consumer, shared), counter_sets=(_SET,) if layout is Layout.TOGETHER else ())


def _keeps_counters(client: Client, identity: Identity, stored: Object, layout: Layout) -> bool:
    fields = _fields(stored)
    if "consumesCounters" not in fields or layout is Layout.TOGETHER:
        return {"consumesCounters", "sharedCounters"} <= fields
    try:
        return "sharedCounters" in _fields(_stored(client, identity, Slice(counter_sets=(_SET,))))
    except InvalidError:
        return False


def _stored(client: Client, identity: Identity, content: Slice) -> Object:
    """The spec that the server would store."""
    pool = {"name": identity.pool_name, "generation": 1, "resourceSliceCount": 1}
    spec = slice_spec(content, driver=identity.driver, node_name=identity.node_name, pool=pool)
    body = {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": {"name": slice_name(99999, driver=identity.driver, node_name=identity.node_name)},
        "spec": spec,
    }
    stored: Object = client.create(RESOURCE_SLICES, body, dry_run=True).get("spec") or {}
    return stored
