"""Whom Events about a claim are told: the claim, and the pods that have reserved it."""

from collections.abc import Mapping
from typing import Any

from dradriver.kube import PODS, RESOURCE_CLAIMS, Client, NotFoundError, Object, Regarding
from dradriver.kubelet import ClaimReference


def claim_regarding(claim: ClaimReference) -> Regarding:
    """Name a claim as an Event does."""
    return Regarding(
        api_version=RESOURCE_CLAIMS.api_version,
        kind=RESOURCE_CLAIMS.kind,
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
    )


def live_claim(client: Client, claim: ClaimReference) -> Object | None:
    """Read a claim; None where it has gone, also where another one has its name by now.

    Raises:
        KubeError: the API server does not answer, or not with the claim.
    """
    try:
        body = client.get(RESOURCE_CLAIMS, claim.name, namespace=claim.namespace)
    except NotFoundError:
        return None
    return body if body["metadata"].get("uid") == claim.uid else None


def pods_of(claim: Mapping[str, Any] | None) -> list[Regarding]:
    """Name the pods in a claim's `status.reservedFor`, as an Event does; none where there is no claim.

    The pod of a claim that the scheduler has made for extended resources stands there like any other.
    """
    body = claim or {}
    users = (body.get("status") or {}).get("reservedFor") or ()
    return [
        Regarding(
            api_version=PODS.api_version,
            kind=PODS.kind,
            namespace=body["metadata"].get("namespace", ""),
            name=user["name"],
            uid=user["uid"],
        )
        for user in users
        if user.get("resource") == "pods"
    ]
