"""Quotas that are used up, by which pods or their claims do not come into being at all."""

from collections.abc import Collection, Iterable, Iterator

from controller.watching.model import SeenQuota

_MOST_NAMED = 3


def used_up(quotas: Iterable[SeenQuota], resource_name: str, class_name: str) -> str:
    """Say which quotas are used up that pods asking for a resource count to; "" if none is.

    A limit of zero is no news: it forbids the resource in its namespace, on purpose. Quotas that count all claims are
    left out, since most have nothing to do with the resource; a pod whose claim one of them refuses is told so.
    """
    keys = {
        f"requests.{resource_name}",
        f"requests.deviceclass.resource.kubernetes.io/{class_name}",
        f"{class_name}.deviceclass.resource.k8s.io/devices",
    }
    found = sorted(text for quota in quotas for text in _full(quota, keys))
    if not found:
        return ""
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return (
        f"used up: {', '.join(found[:_MOST_NAMED])}{more}; there, further pods or their claims are refused "
        "(FailedCreate at their ReplicaSet or Job, FailedScheduling at the pod) until the quota is raised"
    )


def _full(quota: SeenQuota, keys: Collection[str]) -> Iterator[str]:
    for key, used, limit in quota.limits:
        if key in keys and 0 < limit <= used:
            yield f"ResourceQuota {quota.namespace}/{quota.name} ({used} of {limit} {key})"
