"""What the containers of a claim get: the CDI spec of the claim."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dradriver import api
from dradriver.cdi.errors import CdiError, DriverChangingError, DriverFilesError
from dradriver.cdi.files import SpecFolder
from dradriver.cdi.host import DriverRoot, driver_edits, find_hook
from dradriver.cdi.nodes import DeviceTree
from dradriver.cdi.spec import CdiDevice, CdiSpec, ContainerEdits, DeviceNode
from dradriver.prepare.errors import PrepareError
from dradriver.prepare.plan import Plan, PlannedDevice
from dradriver.prepare.records import Made


@dataclass(slots=True, kw_only=True)
class Containers:
    """Writes and verifies the CDI specs of claims.

    Attributes:
        root: where the host's driver files lie.
        tree: where device nodes lie.
        specs: the folder the runtime reads.
        hook: host path of nvidia-cdi-hook; empty looks for it in the driver root.
    """

    root: DriverRoot
    tree: DeviceTree
    specs: SpecFolder
    hook: str = ""
    _common: dict[str, ContainerEdits] = field(default_factory=dict)
    _were_found: bool = False
    _places: dict[str, Path] = field(default_factory=dict)

    def write(self, plan: Plan, made: Mapping[str, Made], facts: Mapping[str, "GpuFacts"]) -> tuple[str, ...]:
        """Write the spec of a claim and make sure that every path it names exists.

        Args:
            plan: the claim's devices.
            made: device name to MIG instance, for partitions.
            facts: GPU UUID to what is needed of that GPU.

        Returns:
            The qualified CDI names, one for each device in the order of the plan.

        Raises:
            CdiError: driver files or device nodes are missing, or the file cannot be written.
        """
        spec = self.spec(plan, made, facts)
        self._verify(spec)
        self.specs.write(plan.uid, spec)
        return spec.qualified_names()

    def is_intact(self, plan: Plan, made: Mapping[str, Made], facts: Mapping[str, "GpuFacts"]) -> bool:
        """Tell whether the spec of a claim is there, says what it would say today, and names only what exists.

        Raises:
            CdiError: driver files or device nodes are missing.
        """
        spec = self.spec(plan, made, facts)
        self._verify(spec)
        return self.specs.is_written(plan.uid, spec)

    def spec(self, plan: Plan, made: Mapping[str, Made], facts: Mapping[str, "GpuFacts"]) -> CdiSpec:
        """Say what the containers of a claim get.

        Raises:
            CdiError: driver files or device nodes are missing.
        """
        devices = tuple(
            self._device(plan, device, made.get(device.device), facts[device.gpu_uuid], _uuids(plan, device, made))
            for device in plan.devices
        )
        version = next(iter(facts.values())).driver_version
        common = self._common_edits(version)
        edits = ContainerEdits(
            env=(f"{api.VISIBLE_DEVICES_VARIABLE}=void",),
            device_nodes=self.tree.control_nodes(),
            mounts=common.mounts,
            hooks=common.hooks,
        )
        return CdiSpec(kind=api.CDI_KIND, devices=devices, edits=edits)

    def _device(
        self, plan: Plan, device: PlannedDevice, made: Made | None, facts: "GpuFacts", uuids: Iterable[str]
    ) -> CdiDevice:
        uuid = device.gpu_uuid if made is None else made.uuid
        env = [f"{api.device_variable(device.device)}={uuid}", f"{api.DEVICES_VARIABLE}={','.join(uuids)}"]
        if device.admin_access:
            env.append(f"{api.ADMIN_ACCESS_VARIABLE}=true")
        return CdiDevice(
            name=cdi_name(plan, device),
            edits=ContainerEdits(env=tuple(env), device_nodes=self._nodes(device, made, facts)),
        )

    def _nodes(self, device: PlannedDevice, made: Made | None, facts: "GpuFacts") -> tuple[DeviceNode, ...]:
        gpu = self.tree.gpu_node(facts.minor)
        graphics = made is None or "+gfx" in (device.profile_name or "")
        drm = self.tree.drm_nodes(facts.pci_bus_id) if graphics else ()
        if made is None:
            return (gpu, *drm)
        return (
            gpu,
            *drm,
            *self.tree.partition_nodes(
                facts.minor, gpu_instance=made.gpu_instance_id, compute_instance=made.compute_instance_id
            ),
        )

    def _common_edits(self, version: str) -> ContainerEdits:
        """Find the driver's files once for each driver version; a set with gaps is an error, so never kept."""
        edits = self._common.get(version)
        if edits is None:
            hook = self.hook or find_hook(self.root)
            try:
                edits = driver_edits(self.root, driver_version=version, hook=hook)
            except DriverFilesError as error:
                # A root that has been right before is being changed; a wrong one is told at once.
                raise DriverChangingError(str(error)) if self._were_found else error  # noqa: B904 (the same error)
            self._common, self._were_found = {version: edits}, True
        return edits

    def _verify(self, spec: CdiSpec) -> None:
        missing = sorted({path for path in spec.host_paths() if not self._is_there(path)})
        if missing:
            # Found earlier and gone now: the driver is being replaced, so everything must be found anew.
            self._common = {}
            raise DriverChangingError(
                f"{missing[0]} is gone from the host{f' with {len(missing) - 1} more' if missing[1:] else ''}; "
                "if the driver is being replaced, this passes by itself"
            )

    def _is_there(self, host_path: str) -> bool:
        """Tell whether a path of the host exists; what lies outside of what we see of the host is believed."""
        if not self.root.sees(host_path) and not host_path.startswith(f"{self.tree.host_dev}/"):
            return True
        return self._here(host_path).exists()

    def _here(self, host_path: str) -> Path:
        """Tell where this process sees a path; remembered, since two dozen of them took a fifth of a Prepare."""
        place = self._places.get(host_path)
        if place is None:
            relative = host_path.removeprefix(f"{self.tree.host_dev}/")
            place = self.root.from_host(host_path) if relative == host_path else self.tree.dev / relative
            self._places[host_path] = place
        return place


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What the spec of a claim needs to know of a GPU, read when the claim is prepared since minors move."""

    minor: int
    pci_bus_id: str
    driver_version: str


def cdi_name(plan: Plan, device: PlannedDevice) -> str:
    """Name a device in the CDI spec of its claim; unique on the node for ever, since it holds the claim's UID."""
    share = f"-{device.share_id}" if device.share_id else ""
    return f"{plan.uid}-{device.device}{share}"


def qualified_names(plan: Plan) -> tuple[str, ...]:
    """Name the CDI devices of a claim as its spec does, in the order of the plan."""
    return tuple(f"{api.CDI_KIND}={cdi_name(plan, device)}" for device in plan.devices)


def as_prepare_error(plan: Plan, error: CdiError) -> PrepareError:
    """Say which claim a CDI error concerns."""
    return PrepareError(f"{plan}: {error}")


def _uuids(plan: Plan, device: PlannedDevice, made: Mapping[str, Made]) -> list[str]:
    """List the UUIDs of all devices that come into a container together with this one: those of its request, each once.

    Two shares of one device are one device to a container.
    """
    together = [other for other in plan.devices if set(other.requests) & set(device.requests)]
    uuids = (made[other.device].uuid if other.device in made else other.gpu_uuid for other in together)
    return list(dict.fromkeys(uuids))
