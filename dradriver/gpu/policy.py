"""What an administrator wants of a node's GPUs, as plain data; where it comes from is another room's matter."""

from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from dradriver.gpu.model import Gpu
from dradriver.gpu.profiles import MigOffer, ProfileChoice


class Order(StrEnum):
    """In which order the scheduler is to try the devices of a node; it takes the first that fits.

    `packed`: the placement that blocks the least of what is offered first, GPU after GPU.
    `spread`: every GPU's first choice before any GPU's second; of shared ones, that with most free shares first.
    `nvidia`: by name, whole GPUs first, as NVIDIA's driver publishes them.
    """

    PACKED = "packed"
    SPREAD = "spread"
    NVIDIA = "nvidia"


class Detail(StrEnum):
    """How much a device says of itself; the scheduler pays for each attribute with each pod.

    `full`: all attributes and capacities of NVIDIA's driver.
    `lean`: what selectors need: type, profile, UUID, product, PCIe root and memory.
    """

    FULL = "full"
    LEAN = "lean"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFilter:
    """Which GPUs a rule is for: those that every given attribute allows.

    Attributes:
        uuids: `GPU-...`.
        indices: places in the order of PCI bus ids, from 0, as nvidia-smi counts.
        pci_bus_ids: as sysfs writes them, `0000:41:00.0`.
        product_names: shell patterns such as `*A100*`, compared without regard to case.
        device_ids: PCI device id in the upper and vendor id in the lower 16 bits, `0x233010DE`.
    """

    uuids: frozenset[str] | None = None
    indices: frozenset[int] | None = None
    pci_bus_ids: frozenset[str] | None = None
    product_names: tuple[str, ...] | None = None
    device_ids: frozenset[int] | None = None

    def matches(self, gpu: Gpu, index: int) -> bool:
        """Tell whether the GPU at that place is one of them."""
        name = gpu.product_name.lower()
        return (
            (self.uuids is None or gpu.uuid in self.uuids)
            and (self.indices is None or index in self.indices)
            and (self.pci_bus_ids is None or gpu.pci_bus_id in self.pci_bus_ids)
            and (self.device_ids is None or gpu.pci_device_id in self.device_ids)
            and (self.product_names is None or any(fnmatchcase(name, one.lower()) for one in self.product_names))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """That several claims may use a device at once.

    Attributes:
        replicas: how many, at least two.
        renamed: they are wanted under an extended resource name of their own.
    """

    replicas: int
    renamed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRule:
    """How the GPUs that a filter finds are offered.

    Attributes:
        filter: which ones.
        mig: see MigOffer.
        profiles: what `dynamic` offers.
        sharing: of whole GPUs and of instances that an administrator made; None where each is for one claim.
    """

    filter: GpuFilter = GpuFilter()
    mig: MigOffer = MigOffer.STATIC
    profiles: ProfileChoice = field(default_factory=ProfileChoice)
    sharing: Sharing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferPolicy:
    """How a node's GPUs are offered.

    Attributes:
        rules: of these, the first that finds a GPU decides.
        default: for GPUs that none of them finds.
        order: see Order.
        detail: see Detail.
    """

    rules: tuple[GpuRule, ...] = ()
    default: GpuRule = field(default_factory=GpuRule)
    order: Order = Order.PACKED
    detail: Detail = Detail.FULL

    @property
    def shares(self) -> bool:
        """Whether any rule shares GPUs; all devices of the node then say whether they are shared."""
        return any(rule.sharing is not None for rule in (*self.rules, self.default))

    def rule(self, gpu: Gpu, index: int) -> GpuRule:
        """Find the rule for the GPU at that place in the order of PCI bus ids."""
        return next((rule for rule in self.rules if rule.filter.matches(gpu, index)), self.default)
