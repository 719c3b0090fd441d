"""How far a node configuration can say what a configuration of the device plugin shares.

The device plugin shares by resource: whole GPUs by one number, instances of a MIG profile by another one. A node
configuration says it by GPU: the GPU itself, or all of its instances, by one number. Never is anything shared that is
not shared today.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from controller.importing import names
from controller.importing.assigned import Assigned
from controller.importing.bridges import Offer
from dradriver.api.node_config import MOST_REPLICAS


class Fit(Enum):
    """How well it can be said."""

    NOTHING = auto()
    """Nothing is shared."""
    WHOLE = auto()
    """All of it."""
    UNEVEN = auto()
    """Everything is shared, by different numbers: the least one is taken for all."""
    PARTLY = auto()
    """Some devices are shared and others not: none are, then."""
    TOO_MANY = auto()
    """Everything is shared by more than a node configuration may say: its most is taken."""
    MPS = auto()
    """Not at all: this driver has no MPS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What is said.

    Attributes:
        fit: how well.
        replicas: of each device; 0 where none is shared.
        rename: whether shares have a name of their own.
    """

    fit: Fit = Fit.NOTHING
    replicas: int = 0
    rename: bool = False


def shares_of(assigned: Assigned, offers: Sequence[Offer]) -> Shares:
    """Compare what is shared with what nodes have.

    Args:
        assigned: the configuration.
        offers: all that it offers.
    """
    found = list(present(assigned, offers))
    shared = [offer for offer in found if offer.replicas > 1]
    if not shared:
        return Shares()
    if assigned.config.strategy == "mps":
        return Shares(fit=Fit.MPS)
    if len(shared) < len(found):
        return Shares(fit=Fit.PARTLY)
    counts = {offer.replicas for offer in shared}
    least = min(counts)
    fit = Fit.TOO_MANY if least > MOST_REPLICAS else Fit.WHOLE if len(counts) == 1 else Fit.UNEVEN
    rename = any(offer.resource != offer.base for offer in shared)
    return Shares(fit=fit, replicas=min(least, MOST_REPLICAS), rename=rename)


def present(assigned: Assigned, offers: Iterable[Offer]) -> Iterator[Offer]:
    """Leave out what no node has; everything counts where no node tells what it has."""
    known = {names.unshared(name) for node in assigned.nodes for name in node.resources}
    found = [offer for offer in offers if offer.base in known]
    yield from found or offers
