"""All that decides what is offered at one moment, and what was made of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dradriver.gpu.health import Marks
from dradriver.gpu.model import Gpu
from dradriver.gpu.offer import Situation
from dradriver.gpu.policy import GpuRule
from dradriver.nodeconfig import Wanted
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
    """

    gpus: tuple[Gpu, ...]
    numbers: Mapping[str, int]
    wanted: Wanted
    features: Features | None
    absent: frozenset[str]
    gone: frozenset[str]
    held: Mapping[str, str]
    marks: Marks = field(default_factory=dict)

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
    def keeps_for_claims(self) -> bool:
        """Whether devices are published for the sake of their claims only."""
        return bool(self.node.offer.kept & self.picture.held.keys())

    def is_true_to(self, picture: Picture) -> bool:
        """Tell whether a picture gives the same offer; claims on devices that are offered anyway do not matter."""
        if replace(picture, held={}) != replace(self.picture, held={}):
            return False
        return self._that_matter(picture.held) == self._that_matter(self.picture.held)

    def _that_matter(self, held: Mapping[str, str]) -> Mapping[str, str]:
        return {name: uuid for name, uuid in held.items() if name not in self.node.offer.plain}
