"""Names of the labels, as GPU feature discovery spells them; pods select nodes by them."""

import re
from typing import Final

LABEL_MANAGER: Final = "dradriver-labels"
"""Field manager of the labels. One of its own: what it does not apply any more goes, and nothing else does."""

PREFIX: Final = "nvidia.com/"
GPU: Final = f"{PREFIX}gpu"

PRESENT: Final = f"{PREFIX}gpu.present"
STRATEGY: Final = f"{PREFIX}mig.strategy"
MIG_CAPABLE: Final = f"{PREFIX}mig.capable"
MPS_CAPABLE: Final = f"{PREFIX}mps.capable"

_OF_NODE: Final = r"gpu\.(present|family|compute\.(major|minor))|mig\.(strategy|capable)|mps\.capable"
_OF_DRIVER: Final = (
    r"cuda\.driver-version\.(major|minor|revision|full)|cuda\.driver\.(major|minor|rev)"
    r"|cuda\.runtime-version\.(major|minor|full)|cuda\.runtime\.(major|minor)"
)
_OF_RESOURCE: Final = (
    r"(gpu|mig-[0-9]+g\.[0-9]+gb[-.0-9a-z]*?)\.(count|product|memory|replicas|sharing-strategy|multiprocessors"
    r"|slices\.(gi|ci)|engines\.(copy|decoder|encoder|jpeg|ofa))"
)
_KNOWN: Final = re.compile(f"{PREFIX}({_OF_NODE}|{_OF_DRIVER}|{_OF_RESOURCE})")


def is_known(label: str) -> bool:
    """Tell whether it is one of those that are ever written here; of no other one anything is kept."""
    return _KNOWN.fullmatch(label) is not None
