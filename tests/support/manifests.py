"""Short forms of the objects that tests create."""

from collections.abc import Sequence
from typing import Any

Body = dict[str, Any]

IMAGE = "dradriver.dev/toolbox:1"
DOMAIN = "gpu.nvidia.com"
GPU, MIG, ANY = "gpu.nvidia.com", "mig.nvidia.com", "any.gpu.dradriver.dev"

EXTENDED, EXTENDED_CLASS = "example.com/part", "part.example.com"
"""An extended resource, and the class by which it is had."""


def profile(name: str) -> str:
    """CEL: partitions of a profile."""
    return f"device.attributes['{DOMAIN}'].profile == '{name}'"


def of_gpu(uuid: str) -> str:
    """CEL: the whole GPU of that UUID, or its partitions."""
    attributes = f"device.attributes['{DOMAIN}']"
    return (
        f"({attributes}.type == 'gpu' && {attributes}.uuid == '{uuid}') || "
        f"({attributes}.type == 'mig' && {attributes}.parentUUID == '{uuid}')"
    )


def exactly(device_class: str, *cel: str, **more: Any) -> Body:
    """What one request asks for; `more` are fields such as count or adminAccess."""
    selectors = {"selectors": [{"cel": {"expression": each}} for each in cel]} if cel else {}
    return {"deviceClassName": device_class, **selectors, **more}


def request(name: str, device_class: str, *cel: str, **more: Any) -> Body:
    """One request of a claim."""
    return {"name": name, "exactly": exactly(device_class, *cel, **more)}


def first_available(name: str, **alternatives: Body) -> Body:
    """A request with alternatives, each from `exactly`, in the order of preference."""
    return {"name": name, "firstAvailable": [{"name": key, **value} for key, value in alternatives.items()]}


def claim(name: str, *requests: Body, same: tuple[str, Sequence[str]] | None = None) -> Body:
    """A ResourceClaim; `same` is an attribute and the requests that must agree in it."""
    devices: Body = {"requests": list(requests)}
    if same:
        devices["constraints"] = [{"matchAttribute": same[0], "requests": list(same[1])}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": devices},
    }


def template(name: str, *requests: Body) -> Body:
    """A ResourceClaimTemplate."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": claim(name, *requests)["spec"]},
    }


def container(name: str, *uses: str) -> Body:
    """A container that waits; each use is `claim` or `claim/request`."""
    claims = []
    for use in uses:
        main, _, part = use.partition("/")
        claims.append({"name": main, "request": part} if part else {"name": main})
    return {
        "name": name,
        "image": IMAGE,
        "command": ["sleep", "86400"],
        "resources": {"claims": claims} if claims else {},
    }


def pod(name: str, *containers: Body, claims: Sequence[str] = (), templates: Sequence[str] = (), **spec: Any) -> Body:
    """A pod that uses claims and claim templates under their own names.

    Without containers it has one, `app`, which uses them all.
    """
    uses = [{"name": each, "resourceClaimName": each} for each in claims]
    uses += [{"name": each, "resourceClaimTemplateName": each} for each in templates]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": list(containers) or [container("app", *claims, *templates)],
            "resourceClaims": uses,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            **spec,
        },
    }


def extended_class(*cel: str) -> Body:
    """A DeviceClass by which the devices that all these expressions choose can be had as an extended resource."""
    expressions = (f"device.driver == '{DOMAIN}'", *cel)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": EXTENDED_CLASS},
        "spec": {
            "extendedResourceName": EXTENDED,
            "selectors": [{"cel": {"expression": each}} for each in expressions],
        },
    }


def uses_extended(name: str) -> Body:
    """A pod that names no claim, only one such resource."""
    return pod(name, {**container("app"), "resources": {"limits": {EXTENDED: "1"}}})
