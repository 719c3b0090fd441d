"""All that decides what is offered at one moment, and what was made of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dradriver.gpu.health import Marks
from dradriver.gpu.model import Gpu
from dradriver.gpu.offer import Situation
from dradriver.gpu.policy import GpuRule, Order
from dradriver.nodeconfig import Wanted
from dradriver.offering.holders import Handed
from dradriver.prepare.node import Node
from dradriver.publish import Features
from dradriver.resource import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All that decides what is offered; equal pictures give equal offers.

    Attributes:
        gpus: in the order of their bus ids, without what this driver makes on them for claims.
        numbers: of these GPUs.
        wanted: by the administrator.
        features: of the API server; None as long as they are unknown.
        absent: UUIDs of GPUs that do not answer.
        gone: UUIDs of GPUs that were here since the node has booted and are not offered any more.
        held: devices that claims hold, see `gpu.offer.Situation`.
        marks: what GPUs deserve for their health.
        shares: how many shares claims hold of each device, see `gpu.offer.Situation`.
    """

    gpus: tuple[Gpu, ...]
    numbers: Mapping[str, int]
    wanted: Wanted
    features: Features | None
    absent: frozenset[str]
    gone: frozenset[str]
    held: Mapping[str, str]
    marks: Marks = field(default_factory=dict)
    shares: Mapping[str, int] = field(default_factory=dict)

    @property
    def situation(self) -> Situation:
        """As `make_offer` wants it."""
        known = self.features
        return Situation(
            held=self.held,
            absent=self.absent,
            layout=Layout.APART if known is None else known.layout,
            taints=known is None or known.taints,
            informational=known is None or known.informational_taints,
            marks=self.marks,
            shareable=known is None or known.shares,
            shares=self.shares,
        )

    @property
    def by_rule(self) -> dict[GpuRule, list[Gpu]]:
        """The GPUs for which each rule of the policy is."""
        found: dict[GpuRule, list[Gpu]] = {}
        for index, gpu in enumerate(self.gpus):
            found.setdefault(self.wanted.policy.rule(gpu, index), []).append(gpu)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What was computed last, and from what."""

    picture: Picture
    node: Node

    @property
    def names(self) -> frozenset[str]:
        """Of the devices that are to be published."""
        return frozenset(device.name for group in self.node.offer.pool.groups for device in group.devices)

    @property
    def handed(self) -> frozenset[Handed]:
        """The same, as they are given out."""
        return frozenset((name, name in self.node.offer.shared) for name in self.names)

    @property
    def follows_shares(self) -> bool:
        """Whether the order of the devices depends on how many shares claims hold."""
        return self.picture.wanted.policy.order is Order.SPREAD and len(self.node.offer.shared) > 1

    @property
    def keeps_for_claims(self) -> bool:
        """Whether devices are published for the sake of their claims only."""
        return bool(self.node.offer.kept & self.picture.held.keys())

    def is_true_to(self, picture: Picture) -> bool:
        """Tell whether a picture gives the same offer; claims on devices that are offered anyway do not matter."""
        if replace(picture, held={}, shares={}) != replace(self.picture, held={}, shares={}):
            return False
        return self._that_matter(picture) == self._that_matter(self.picture)

    def _that_matter(self, picture: Picture) -> tuple[Mapping[str, str], Mapping[str, int]]:
        """Give what is offered for the sake of claims, or otherwise than they hold it, and shares that count."""
        plain, shared = self.node.offer.plain, self.node.offer.shared
        held = {
            name: uuid
            for name, uuid in picture.held.items()
            if name not in plain or (name in shared) != (name in picture.shares)
        }
        shares = {
            name: n for name, n in picture.shares.items() if name in held or (self.follows_shares and name in shared)
        }
        return held, shares
