"""Pods that have no node yet, and quotas that keep pods from coming, reduced to what tells why."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from controller.watching.model import Labels, PodShape, SeenPod, SeenQuota, Taint
from controller.watching.projections import kept
from dradriver.kube import Object, Selector
from dradriver.resource import parse_quantity

UNSCHEDULED: Final = Selector(fields="spec.nodeName=,status.phase=Pending")
"""Which pods are followed: those that the scheduler has found no node for."""

QUOTA_MARK: Final = "exceeded quota: "
"""How the API server begins to say which quota a pod's claim would exceed, which the scheduler repeats."""

_LONGEST_SAYING: Final = 512
_SHAPES: Final = 1 << 12
"""How many different shapes are remembered for sharing; one that is forgotten costs memory only."""


def project_pod(item: Object) -> Object:
    """Keep a `SeenPod`; of one that asks for no extended resource, or is being deleted, only its name."""
    metadata = item["metadata"]
    shape = PodShape() if "deletionTimestamp" in metadata else _shape(item)
    seen = SeenPod(
        name=metadata["name"], namespace=metadata.get("namespace", ""), uid=metadata.get("uid", ""), shape=shape
    )
    return kept(item, seen)


def project_quota(item: Object) -> Object:
    """Keep a `SeenQuota`."""
    status = item.get("status") or {}
    hard, used = status.get("hard") or {}, status.get("used") or {}
    limits = tuple(
        sorted((key, _number(used.get(key, 0)), _number(value)) for key, value in hard.items() if _may_concern(key))
    )
    metadata = item["metadata"]
    return kept(item, SeenQuota(name=metadata["name"], namespace=metadata.get("namespace", ""), limits=limits))


def _may_concern(key: str) -> bool:
    return (key.startswith("requests.") and "/" in key) or key.endswith(".deviceclass.resource.k8s.io/devices")


def _number(value: Any) -> int:
    return int(parse_quantity(str(value)))


def _shape(item: Object) -> PodShape:
    spec = item["spec"]
    wants = wanted(spec)
    if not wants:
        return PodShape()
    said = next((each for each in _conditions(item) if each["type"] == "PodScheduled"), {})
    affinity = spec.get("affinity") or {}
    return _shared(
        PodShape(
            wants=wants,
            largest=_largest(spec),
            selector=_labels(spec.get("nodeSelector") or {}),
            tolerations=tuple(_toleration(each) for each in spec.get("tolerations") or ()),
            has_affinity=bool(affinity.get("nodeAffinity") or affinity.get("podAffinity")),
            is_gated=said.get("reason") == "SchedulingGated",
            said=_essence(str(said.get("message") or "")),
        )
    )


def _essence(message: str) -> str:
    """Leave out what is different at every attempt: the name that a claim over quota would have had."""
    _, quota, rest = message.partition(QUOTA_MARK)
    return (quota + rest or message)[:_LONGEST_SAYING]


def wanted(spec: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Add up what a pod's containers want of extended resources.

    An init container ends before the others begin and leaves its devices to them, but for one that runs on beside them.
    Source: Kubernetes' rule for the requests of a pod; the claim that the scheduler makes follows it.
    """
    steady = _limits(spec.get("containers") or ())
    largest: Counter[str] = Counter()
    for init in spec.get("initContainers") or ():
        limits = _limits([init])
        if init.get("restartPolicy") == "Always":
            steady += limits
        else:
            largest |= limits + _sidecars_before(spec, init)
    return tuple(sorted((steady | largest).items()))


def _largest(spec: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    largest: Counter[str] = Counter()
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        largest |= _limits([container])
    return tuple(sorted(largest.items()))


def _sidecars_before(spec: Mapping[str, Any], init: Mapping[str, Any]) -> Counter[str]:
    inits = spec["initContainers"]
    return _limits(each for each in inits[: inits.index(init)] if each.get("restartPolicy") == "Always")


def _limits(containers: Iterable[Mapping[str, Any]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for container in containers:
        for name, value in ((container.get("resources") or {}).get("limits") or {}).items():
            if "/" in name:
                total[name] += _number(value)
    return total


def _conditions(item: Object) -> Iterator[Mapping[str, Any]]:
    yield from (item.get("status") or {}).get("conditions") or ()


def _labels(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


def _toleration(entry: Mapping[str, Any]) -> Taint:
    return Taint(
        key=entry.get("key") or "",
        value=entry.get("value") or "",
        effect=entry.get("effect") or "",
        operator=entry.get("operator") or "Equal",
    )


@lru_cache(_SHAPES)
def _shared(shape: PodShape) -> PodShape:
    return shape
