"""What a container sees of GPUs, and what it should see by the claim and by the hardware."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from support.server import Body, Server
from support.simulated import SimulatedNode

DRIVER = "gpu.nvidia.com"
EXTENDED = "extended resources"
"""Stands for the claim that the scheduler makes for a pod's extended resources; no claim can have that name."""

_SCRIPT = "ls -l /dev; for d in nvidia-caps dri; do echo \"in $d\"; ls -l /dev/$d; done; echo 'in env'; env"
_DEVICE = re.compile(r"c\S+ +\d+ \S+ \S+ +(\d+), +(\d+) .* (\S+)")
_EVERYWHERE = {"null", "zero", "full", "random", "urandom", "tty", "console", "ptmx"}
_LIST = "DRADRIVER_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """GPUs as one container sees them.

    Attributes:
        nodes: path below /dev to major and minor, of all devices that not every container has.
        variables: NVIDIA_* and DRADRIVER_*, but for the list of devices.
        listed: the UUIDs in DRADRIVER_DEVICES.
    """

    nodes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    listed: tuple[str, ...] = ()


NOTHING = View()


def look(server: Server, pod: Body, container: str) -> View:
    """Look around in a running container."""
    metadata = pod["metadata"]
    target = ["exec", "-n", metadata["namespace"], metadata["name"], "-c", container]
    return read(server.kubectl(*target, "--", "sh", "-c", _SCRIPT))


def read(text: str) -> View:
    """Understand what the script prints."""
    devices, _, environment = text.partition("in env\n")
    variables = dict(line.split("=", 1) for line in environment.splitlines() if "=" in line)
    listed = variables.pop(_LIST, "")
    return View(
        nodes=dict(_nodes(devices)),
        variables={key: value for key, value in variables.items() if key.startswith(("NVIDIA", "DRADRIVER"))},
        listed=tuple(listed.split(",")) if listed else (),
    )


def _nodes(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    folder = ""
    for line in text.splitlines():
        if line.startswith("in "):
            folder = line.removeprefix("in ") + "/"
        elif (found := _DEVICE.fullmatch(line.strip())) and found[3] not in _EVERYWHERE:
            yield folder + found[3], (int(found[1]), int(found[2]))


# --- what should be there -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An allocated device, found on the hardware; equal to itself later on, whatever else is on its GPU by then."""

    name: str
    uuid: str
    gpu: Mapping[str, Any] = field(compare=False)
    instance: Mapping[str, Any] | None = None


def claims_of(server: Server, pod: Body) -> dict[str, Body]:
    """The claims of a pod by the names it has for them; the one for its extended resources is `EXTENDED`."""
    namespace = pod["metadata"]["namespace"]
    extended = pod["status"].get("extendedResourceClaimStatus")
    special = {EXTENDED: extended["resourceClaimName"]} if extended else {}
    made = {each["name"]: each["resourceClaimName"] for each in pod["status"].get("resourceClaimStatuses", ())}
    named = {
        use["name"]: use.get("resourceClaimName") or made[use["name"]] for use in pod["spec"].get("resourceClaims", ())
    }
    return {name: server.get("ResourceClaim", claim, namespace=namespace) for name, claim in (named | special).items()}


def results(claim: Body, request: str | None = None) -> list[Body]:
    """The devices allocated to a claim, or to one of its requests."""
    found: list[Body] = claim["status"]["allocation"]["devices"]["results"]
    return [each for each in found if request is None or each["request"].partition("/")[0] == request]


def locate(server: Server, simulation: SimulatedNode, name: str) -> Device:
    """Find what a device name of the published slices stands for on the hardware.

    Raises:
        AssertionError: it is not there.
    """
    attributes = published(server)[name]["attributes"]
    if attributes["type"]["string"] == "gpu":
        gpu = simulation.gpu(attributes["uuid"]["string"])
        return Device(name=name, uuid=gpu["uuid"], gpu=gpu)
    gpu = simulation.gpu(attributes["parentUUID"]["string"])
    profile_id, start = (int(number) for number in name.split("-")[-2:])
    instance = next(
        (each for each in gpu["instances"] if (each["profile_id"], each["placement"]["start"]) == (profile_id, start)),
        None,
    )
    assert instance is not None, f"{name} is allocated, but GPU {gpu['uuid']} has only {gpu['instances']}"
    assert instance["profile"] == attributes["profile"]["string"]
    (compute,) = instance["compute_instances"]
    return Device(name=name, uuid=compute["uuid"], gpu=gpu, instance=instance)


def published(server: Server) -> dict[str, Body]:
    """The devices in this driver's slices by name."""
    return {device["name"]: device for each in slices(server) for device in each["spec"].get("devices", ())}


def slices(server: Server) -> list[Body]:
    """This driver's slices."""
    return server.list("ResourceSlice", fieldSelector=f"spec.driver={DRIVER}")


def uses(pod: Body, container: str) -> list[tuple[str, str | None]]:
    """The claims, or single requests of claims, that a container names."""
    spec = next(each for each in pod["spec"]["containers"] if each["name"] == container)
    named = [(each["name"], each.get("request")) for each in spec.get("resources", {}).get("claims", ())]
    mappings = pod["status"].get("extendedResourceClaimStatus", {}).get("requestMappings", ())
    return named + [(EXTENDED, each["requestName"]) for each in mappings if each["containerName"] == container]


def check(server: Server, simulation: SimulatedNode, pod: Body) -> dict[str, list[Device]]:
    """Make sure that every container of a running pod sees exactly its devices.

    Returns:
        The devices of each container.

    Raises:
        AssertionError: telling what differs.
    """
    found = {each["name"]: _check(server, simulation, pod, each["name"]) for each in pod["spec"]["containers"]}
    return {name: list({device.name: device for device in devices}.values()) for name, devices in found.items()}


def _check(server: Server, simulation: SimulatedNode, pod: Body, container: str) -> list[Device]:
    claims = claims_of(server, pod)
    lists, admin = [], False
    for name, request in uses(pod, container):
        for main in dict.fromkeys(each["request"].partition("/")[0] for each in results(claims[name], request)):
            allocated = results(claims[name], main)
            admin = admin or any(each.get("adminAccess") for each in allocated)
            lists.append([locate(server, simulation, each["device"]) for each in allocated])
    devices = [device for each in lists for device in each]
    seen = look(server, pod, container)
    assert seen.nodes == _expected_nodes(simulation, devices), f"devices in container {container}"
    assert seen.variables == _expected_variables(devices, admin=admin), f"environment of container {container}"
    assert seen.listed in [tuple(device.uuid for device in each) for each in lists] or (not lists and not seen.listed)
    return devices


def _expected_nodes(simulation: SimulatedNode, devices: list[Device]) -> dict[str, tuple[int, int]]:
    if not devices:
        return {}
    majors, caps = simulation.majors(), simulation.caps()
    nodes = {
        "nvidiactl": (majors["nvidiactl"], 255),
        "nvidia-modeset": (majors["nvidia-modeset"], 254),
        "nvidia-uvm": (majors["nvidia-uvm"], 0),
        "nvidia-uvm-tools": (majors["nvidia-uvm"], 1),
    }
    for device in devices:
        minor = device.gpu["minor"]
        nodes[f"nvidia{minor}"] = (majors["nvidia"], minor)
        if device.instance is not None:
            gi = f"gpu{minor}/gi{device.instance['gpu_instance_id']}"
            ci = f"{gi}/ci{device.instance['compute_instances'][0]['compute_instance_id']}"
            for capability in (caps[f"{gi}/access"], caps[f"{ci}/access"]):
                nodes[f"nvidia-caps/nvidia-cap{capability}"] = (majors["nvidia-caps"], capability)
    return nodes


def _expected_variables(devices: list[Device], *, admin: bool) -> dict[str, str]:
    if not devices:
        return {}
    own = {f"DRADRIVER_DEVICE_{device.name.upper().replace('-', '_')}": device.uuid for device in devices}
    access = {"DRADRIVER_ADMIN_ACCESS": "true"} if admin else {}
    return {"NVIDIA_VISIBLE_DEVICES": "void"} | own | access
