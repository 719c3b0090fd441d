"""What others see of us: names of the driver, device classes, attributes, capacities, CDI kind.

Every name here is a promise to users' CEL selectors, DeviceClasses and tools, and equals the name that
NVIDIA's driver uses where it has one, so that one can take the place of the other.
"""

import re
from typing import Final

DRIVER_NAME: Final = "gpu.nvidia.com"
"""Driver name in ResourceSlices, claims and registration; also the domain of unqualified attributes."""

DRADRIVER_DOMAIN: Final = "dradriver.dev"
"""Domain of what NVIDIA's driver has no name for."""

CONFIG_LABEL: Final = f"{DRADRIVER_DOMAIN}/config"
"""Node label whose value names the node's configuration in the file of node configurations."""

ALLOCATION_LABEL: Final = f"{DRADRIVER_DOMAIN}/allocation"
"""Node label whose value says who hands out the node's GPUs, see `Allocation`."""

CLEAR_HEALTH_ANNOTATION: Final = f"{DRADRIVER_DOMAIN}/clear-health"
"""Node annotation by which an administrator takes back what is held against GPUs: `all`, or names of devices and UUIDs
with commas between them. Each new value is obeyed once."""

PROFILE_NAME: Final = re.compile(r"[0-9]+g\.[0-9]+gb([+-][a-z0-9.]+(,[a-z0-9.]+)*)?")
"""How MIG profiles are spelled, by nvidia-smi and here: `1g.10gb`, `1g.10gb+me`, `1g.24gb-me`."""

CDI_VENDOR: Final = "k8s.gpu.nvidia.com"
CDI_CLASS: Final = "claim"
CDI_KIND: Final = f"{CDI_VENDOR}/{CDI_CLASS}"

VISIBLE_DEVICES_VARIABLE: Final = "NVIDIA_VISIBLE_DEVICES"
"""Set to `void`, so that a legacy runtime hook does not add devices of its own choice."""

DEVICES_VARIABLE: Final = "DRADRIVER_DEVICES"
"""Variable that lists the UUIDs of a request's GPUs and MIG devices, comma separated.

Devices of one request always come into a container together. A container that uses several requests sees the
list of the last of them; the variables with `DEVICE_VARIABLE_PREFIX` are complete in every case.
"""

ADMIN_ACCESS_VARIABLE: Final = "DRADRIVER_ADMIN_ACCESS"
"""Set to `true` in a container whose claim has admin access to devices that others use."""

DEVICE_VARIABLE_PREFIX: Final = "DRADRIVER_DEVICE_"
"""With the device's name in capitals behind it: a variable for each device of the container, holding its UUID."""


def device_variable(device: str) -> str:
    """Name the variable that holds the UUID of a device: `gpu-0` becomes `DRADRIVER_DEVICE_GPU_0`."""
    return DEVICE_VARIABLE_PREFIX + re.sub(r"[^A-Z0-9]", "_", device.upper())


class Allocation:
    """Values of the node label for it.

    `dra` is meant where the label is missing. With the other two nothing is offered: `hold` until somebody changes
    his mind, `device-plugin` because the device plugin hands the GPUs out.
    """

    DRA: Final = "dra"
    HOLD: Final = "hold"
    DEVICE_PLUGIN: Final = "device-plugin"


class DeviceType:
    """Values of the attribute `type`."""

    GPU: Final = "gpu"
    MIG: Final = "mig"


class Sharing:
    """Values of the attribute `sharing`: how several claims use a device at once, if they may."""

    NONE: Final = "none"
    TIME_SLICING: Final = "time-slicing"


class Attribute:
    """Names of device attributes. Names without a domain belong to the driver's.

    `sharing` and `renamed` only nodes have whose configuration shares GPUs, there on every device.
    """

    TYPE: Final = "type"
    UUID: Final = "uuid"
    PARENT_UUID: Final = "parentUUID"
    PROFILE: Final = "profile"
    PRODUCT_NAME: Final = "productName"
    BRAND: Final = "brand"
    ARCHITECTURE: Final = "architecture"
    CUDA_COMPUTE_CAPABILITY: Final = "cudaComputeCapability"
    DRIVER_VERSION: Final = "driverVersion"
    CUDA_DRIVER_VERSION: Final = "cudaDriverVersion"
    ADDRESSING_MODE: Final = "addressingMode"
    SHARING: Final = "sharing"
    """One of `Sharing`."""
    RENAMED: Final = "renamed"
    """The administrator wants shares under a name of their own, such as nvidia.com/gpu.shared."""
    PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
    PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
    NUMA_NODE: Final = "resource.kubernetes.io/numaNode"


class TaintKey:
    """Keys of device taints: NVIDIA's where it has one, else in our own domain."""

    GPU_LOST: Final = "gpu.nvidia.com/gpu-lost"
    """The GPU does not answer, or is not there any more."""
    XID: Final = "gpu.nvidia.com/xid"
    """The GPU reported an error; the value is its number."""
    UNMONITORED: Final = "gpu.nvidia.com/unmonitored"
    """Nobody hears what the GPU reports, or it does not answer when it is asked how it is."""
    RECOVERY: Final = "dradriver.dev/recovery"
    """What brings the GPU back; the value says what it is, such as `gpu-reset`."""
    MEMORY: Final = "dradriver.dev/memory"
    """The GPU's memory has errors; the value says of which kind."""
    NOT_OFFERED: Final = "dradriver.dev/not-offered"
    """The node's configuration does not offer this device any more; a claim holds it."""
    FOREIGN_INSTANCE: Final = "dradriver.dev/foreign-mig-instance"
    """A MIG instance that this driver has not made lies where the device would be."""


class Capacity:
    """Names of device capacities; a counter has the same name in kebab case."""

    MEMORY: Final = "memory"
    MULTIPROCESSORS: Final = "multiprocessors"
    COPY_ENGINES: Final = "copyEngines"
    DECODERS: Final = "decoders"
    ENCODERS: Final = "encoders"
    JPEG_ENGINES: Final = "jpegEngines"
    OFA_ENGINES: Final = "ofaEngines"
    SHARES: Final = "shares"
    """Of a device that several claims may use at once: how many. Who asks for nothing takes one."""
    MEMORY_SLICE: Final = "memorySlice"
    """Prefix: `memorySlice<i>` is 1 for each memory slice that an existing MIG instance occupies."""
