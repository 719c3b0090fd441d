"""What every container of the demo must see, worked out from the claims and the simulated GPUs, and checked."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from demonstration.world import NAMESPACE, DemoError, World

CONTROL = frozenset({"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"})
MIB_PER_GIB = 1024


@dataclass(frozen=True, kw_only=True)
class Allocated:
    """One device that the scheduler gave to a container."""

    pod: str
    container: str
    claim: str
    device: str
    gpu: Mapping[str, Any]
    instance: Mapping[str, Any] | None
    capabilities: Mapping[str, int]

    @property
    def uuid(self) -> str:
        """UUID the container must be told."""
        if self.instance is None:
            return str(self.gpu["uuid"])
        return str(self.instance["compute_instances"][0]["uuid"])

    @property
    def nodes(self) -> frozenset[str]:
        """Device nodes of this device, and of no other."""
        node = f"/dev/nvidia{self.gpu['minor']}"
        if self.instance is None:
            return frozenset({node})
        gi = f"gpu{self.gpu['minor']}/gi{self.instance['gpu_instance_id']}"
        ci = f"{gi}/ci{self.instance['compute_instances'][0]['compute_instance_id']}"
        minors = (_of(self.capabilities, f"{name}/access", "the driver's list of capabilities") for name in (gi, ci))
        return frozenset({node, *(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors)})


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a container really sees."""

    nodes: frozenset[str]
    listing: str
    environment: Mapping[str, str]


def _of(found: Mapping[str, Any], name: str, what: str) -> Any:
    """One entry.

    Raises:
        DemoError: there is none of that name.
    """
    if name not in found:
        raise DemoError(f"{what} has no {name}, only {', '.join(sorted(found)) or 'nothing'}")
    return found[name]


def allocated(world: World) -> list[Allocated]:
    """Read from the API server which container got which device.

    Raises:
        DemoError: a pod uses a claim that is not there or not allocated.
    """
    gpus = {f"gpu-{gpu['minor']}": gpu for gpu in world.show_gpus()}
    capabilities = world.capability_minors()
    claims = {claim["metadata"]["name"]: claim for claim in world.get("resourceclaims", "-n", NAMESPACE)["items"]}
    found = []
    for pod in world.get("pods", "-n", NAMESPACE)["items"]:
        name = pod["metadata"]["name"]
        for container, claim, device in _uses(pod, claims):
            gpu, instance = _hardware(name, device, gpus)
            found.append(
                Allocated(
                    pod=name,
                    container=container,
                    claim=claim,
                    device=device,
                    gpu=gpu,
                    instance=instance,
                    capabilities=capabilities,
                )
            )
    return found


def _uses(pod: Mapping[str, Any], claims: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Each container of a pod with the claim and the device that it uses."""
    where = f"pod {pod['metadata']['name']}"
    # A claim that the pod names itself stands in the spec, one made from a template in the status.
    listed = [*pod["spec"].get("resourceClaims", []), *pod["status"].get("resourceClaimStatuses", [])]
    names = {each["name"]: each["resourceClaimName"] for each in listed if "resourceClaimName" in each}
    for container in pod["spec"]["containers"]:
        for use in container.get("resources", {}).get("claims", []):
            name = _of(names, use["name"], f"{where}'s list of claims")
            for device in _devices(_of(claims, name, "the namespace's list of claims"), use.get("request")):
                yield container["name"], name, device
    yield from _extended(pod, claims)


def _extended(pod: Mapping[str, Any], claims: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The same for what its containers ask for as extended resources; the scheduler has made a claim of that."""
    status = pod["status"].get("extendedResourceClaimStatus")
    for mapping in status["requestMappings"] if status else ():
        claim = _of(claims, status["resourceClaimName"], "the namespace's list of claims")
        for device in _devices(claim, mapping["requestName"]):
            yield mapping["containerName"], status["resourceClaimName"], device


def _devices(claim: Mapping[str, Any], request: str | None) -> Iterator[str]:
    allocation = claim.get("status", {}).get("allocation")
    if not allocation:
        raise DemoError(f"claim {claim['metadata']['name']} is not allocated")
    for result in allocation["devices"]["results"]:
        if request is None or result["request"] == request:
            yield result["device"]


def _hardware(
    pod: str, device: str, gpus: Mapping[str, Mapping[str, Any]]
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    match = re.fullmatch(r"(gpu-\d+)(?:-mig-.+-(\d+)-(\d+))?", device)
    if match is None:
        raise DemoError(f"pod {pod} got a device with the unexpected name {device}")
    gpu = _of(gpus, match[1], "the simulated node")
    if match[2] is None:
        return gpu, None
    instance = _instance(gpu, profile=int(match[2]), start=int(match[3]))
    if instance is None:
        raise DemoError(f"pod {pod} got {device}, but the GPU has no such instance")
    return gpu, instance


def _instance(gpu: Mapping[str, Any], *, profile: int, start: int) -> Mapping[str, Any] | None:
    for instance in gpu["instances"]:
        if instance["profile_id"] == profile and instance["placement"]["start"] == start:
            found: Mapping[str, Any] = instance
            return found
    return None


def look_inside(world: World, pod: str, container: str) -> Seen:
    """Ask a container what it sees."""
    inside = ("exec", "-n", NAMESPACE, pod, "-c", container, "--")
    listing = world.kubectl(*inside, "sh", "-c", "ls -l /dev/nvidia*")
    names = world.kubectl(*inside, "sh", "-c", "ls -d /dev/nvidia* /dev/nvidia-caps/* 2>/dev/null; true")
    pairs = (line.partition("=") for line in world.kubectl(*inside, "env").splitlines())
    return Seen(
        nodes=frozenset(names.split()) - {"/dev/nvidia-caps", "/dev/nvidia-caps/*"},
        listing=listing,
        environment={name: value for name, _, value in pairs if name.startswith(("NVIDIA", "DRADRIVER"))},
    )


def check(seen: Seen, devices: list[Allocated]) -> None:
    """Make sure a container sees its devices, all of them, and nothing else.

    Raises:
        DemoError: saying what is wrong.
    """
    where = f"container {devices[0].pod}/{devices[0].container}"
    nodes = CONTROL.union(*(device.nodes for device in devices))
    if seen.nodes != nodes:
        raise DemoError(f"{where} sees {sorted(seen.nodes)}, it should see {sorted(nodes)}")
    if seen.environment.get("NVIDIA_VISIBLE_DEVICES") != "void":
        raise DemoError(
            f"{where}: NVIDIA_VISIBLE_DEVICES is {seen.environment.get('NVIDIA_VISIBLE_DEVICES')}, not void"
        )
    told = {value for name, value in seen.environment.items() if name.startswith("DRADRIVER_DEVICE_")}
    listed = set(seen.environment.get("DRADRIVER_DEVICES", "").split(","))
    uuids = {device.uuid for device in devices}
    if told != uuids or listed != uuids:
        raise DemoError(f"{where} is told of {sorted(told)} and {sorted(listed)}, its devices are {sorted(uuids)}")


_STATUS = '{range .status.devices[*]}{.device} {.conditions[?(@.type=="Ready")].status} {.data.uuid}{"\\n"}{end}'


def status_of(world: World, claim: str) -> list[tuple[str, str, str]]:
    """What a claim's status says of each device: its name, whether it is ready, its UUID."""
    told = world.kubectl("get", "resourceclaim", claim, "-n", NAMESPACE, "-o", f"jsonpath={_STATUS}")
    lines = ([*line.split(" "), "", ""] for line in told.splitlines())
    return [(words[0], words[1], words[2]) for words in lines]


def check_status(claim: str, told: list[tuple[str, str, str]], uuids: set[str]) -> None:
    """Make sure a claim's status tells of its devices and that they are ready.

    Raises:
        DemoError: saying what is wrong.
    """
    if {uuid for _, _, uuid in told} != uuids:
        raise DemoError(f"claim {claim} tells of {sorted(uuid for *_, uuid in told)}, its devices are {sorted(uuids)}")
    if waiting := [device for device, is_ready, _ in told if is_ready != "True"]:
        raise DemoError(f"claim {claim} says that {', '.join(waiting)} is not ready")


def check_examples(devices: list[Allocated]) -> None:
    """Make sure every example got what it asked for.

    Raises:
        DemoError: saying what is wrong.
    """
    (whole,) = _of_pod(devices, "whole-gpu", 1)
    _expect("whole-gpu got a whole GPU", whole.instance is None)
    small = [*_of_pod(devices, "small-1", 1), *_of_pod(devices, "small-2", 1)]
    _expect("the small pods got 1g.10gb partitions", {_profile(device) for device in small} == {"1g.10gb"})
    _expect("the small pods got different ones", small[0].uuid != small[1].uuid)
    first, second = _of_pod(devices, "same-gpu", 2)
    _expect("same-gpu got two 1g.10gb partitions", {_profile(first), _profile(second)} == {"1g.10gb"})
    _expect("both lie on one GPU", first.gpu["uuid"] == second.gpu["uuid"])
    _expect("same-gpu's containers got different ones", first.uuid != second.uuid)
    one, other = _of_pod(devices, "shared-claim", 2)
    _expect("shared-claim's containers share one partition", one.uuid == other.uuid)
    (loose,) = _of_pod(devices, "any-30gib", 1)
    enough = loose.instance is None or loose.instance["memory_mib"] >= 30 * MIB_PER_GIB
    _expect("any-30gib got at least 30 GiB", enough)
    _expect("and no whole GPU, since a partition suffices", loose.instance is not None)
    (limited,), (part,) = _of_pod(devices, "limits-gpu", 1), _of_pod(devices, "limits-mig", 1)
    _expect("limits-gpu got a whole GPU of its own", limited.instance is None and limited.uuid != whole.uuid)
    _expect("limits-mig got a 1g.10gb partition", _profile(part) == "1g.10gb")
    held = {(device.gpu["uuid"], device.uuid) for device in devices}
    wholes = {gpu for gpu, uuid in held if gpu == uuid}
    _expect("no partition lies on the card of a whole GPU", not {gpu for gpu, uuid in held if gpu != uuid} & wholes)


def _of_pod(devices: list[Allocated], pod: str, number: int) -> list[Allocated]:
    found = [device for device in devices if device.pod == pod]
    if len(found) != number:
        raise DemoError(f"pod {pod} has {len(found)} devices, it should have {number}")
    return found


def _profile(device: Allocated) -> str:
    return "" if device.instance is None else str(device.instance["profile"])


def _expect(what: str, holds: bool) -> None:  # noqa: FBT001 (a sentence and whether it is true)
    if not holds:
        raise DemoError(f"not so: {what}")
    print(f"    checked: {what}")
