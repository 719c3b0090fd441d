"""Names of the controller that others see; each is a promise."""

from collections.abc import Mapping
from typing import Final

from dradriver.api import DRADRIVER_DOMAIN, DeviceType

GROUP: Final = DRADRIVER_DOMAIN
VERSION: Final = "v1alpha1"

FIELD_MANAGER: Final = "dradriver-controller"
"""Owner of the fields that the controller writes, and the value of `MANAGED_BY_LABEL`."""

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"

BRIDGE_LABEL: Final = f"{DRADRIVER_DOMAIN}/bridge"
"""On a DeviceClass: name of the bridge that it is for."""

HASH_ANNOTATION: Final = f"{DRADRIVER_DOMAIN}/hash"
"""On a DeviceClass: hash of the spec that the controller wrote."""

WRITER_ANNOTATION: Final = f"{DRADRIVER_DOMAIN}/written-by"
"""On a DeviceClass: the controller's process that wrote it last."""

ADOPTED_ANNOTATION: Final = f"{DRADRIVER_DOMAIN}/adopted"
"""On a DeviceClass: `true` if somebody else made it. It is given back, not deleted, when its bridge goes."""

FORMER_ANNOTATION: Final = f"{DRADRIVER_DOMAIN}/former"
"""On a DeviceClass that was adopted: JSON of what it was before, with which it is given back."""

BASE_LABEL: Final = f"{DRADRIVER_DOMAIN}/base-class"
"""On a DeviceClass: `true` if the controller keeps it as one of `BASE_CLASSES`, or will when its bridge goes."""

BASE_CLASSES: Final[Mapping[str, str]] = {"gpu.nvidia.com": DeviceType.GPU, "mig.nvidia.com": DeviceType.MIG}
"""Classes that claims name, and the type of their devices. Source: the chart of NVIDIA's driver has the same."""

DISCOVERED_LABEL: Final = f"{DRADRIVER_DOMAIN}/discovered"
"""On a bridge: `true` if the controller made it for a profile that it found, and removes it with the profile."""

FINALIZER: Final = f"{DRADRIVER_DOMAIN}/bridge"
"""Keeps a bridge until no claim uses its class."""

FORCE_DELETE_ANNOTATION: Final = f"{DRADRIVER_DOMAIN}/force-delete"
"""On a bridge: `true` to delete it though claims use its class."""

_NVIDIA: Final = "nvidia.com"
_CLASS_SUFFIX: Final = f"gpu.{DRADRIVER_DOMAIN}"


def derived_class_name(resource_name: str) -> str:
    """Name the class of a bridge that names none: `nvidia.com/mig-1g.10gb` gives `mig-1g.10gb.gpu.dradriver.dev`.

    Names of other domains keep theirs, so that `nvidia.com/gpu` and `example.com/gpu` do not meet. The suffix contains
    "gpu", by which some schedulers know classes of GPUs.
    """
    domain, _, name = resource_name.partition("/")
    # A resource name may have what an object's name may not.
    name = name.lower().replace("_", "-").replace(".-", ".").replace("-.", ".")
    return f"{name}.{_CLASS_SUFFIX}" if domain == _NVIDIA else f"{name}.{domain}.{_CLASS_SUFFIX}"


def resource_name_of_profile(profile: str, *, renamed: bool = False) -> str:
    """Name the extended resource of a MIG profile as the device plugin does: `1g.10gb+me` is `mig-1g.10gb.me`.

    Source: the device plugin replaces the plus sign, which resource names may not have; nor may they have commas. What
    `renameByDefault` names anew ends in `.shared`.

    Args:
        profile: as nvidia-smi spells it.
        renamed: its partitions are shared under a name of their own.
    """
    name = f"{_NVIDIA}/mig-{profile.replace('+', '.').replace(',', '.')}"
    return f"{name}.shared" if renamed else name
