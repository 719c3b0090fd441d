"""What is wrong with GPUs, as plain data: marks on a GPU or one of its partitions, and what they mean for devices."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from dradriver.gpu.model import MigInstance, Placement
from dradriver.resource import Taint


class Effect:
    """Effects of device taints, by resource.k8s.io."""

    NONE: Final = "None"
    """Tells, and nobody acts upon it."""
    NO_SCHEDULE: Final = "NoSchedule"
    NO_EXECUTE: Final = "NoExecute"


EFFECTS: Final = (Effect.NONE, Effect.NO_SCHEDULE, Effect.NO_EXECUTE)
"""From the mildest to the gravest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a partition lies.

    Attributes:
        profile_id: of the GPU instance profile, as in the device's name.
        placement: in memory slices.
    """

    profile_id: int
    placement: Placement

    @classmethod
    def of(cls, instance: MigInstance) -> "Place":
        """Say where an instance lies on its GPU."""
        return cls(profile_id=instance.profile_id, placement=instance.placement)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A taint that a GPU or one of its partitions deserves.

    Attributes:
        key: of the taint, see `api.TaintKey`.
        value: of the taint, may be empty.
        effect: one of `EFFECTS`.
        since: Unix time in whole seconds, from which tolerationSeconds count.
        text: object, cause and next step, for people.
        place: of the one partition that is meant; None for the GPU and every partition of it.
    """

    key: str
    value: str = ""
    effect: str
    since: int
    text: str
    place: Place | None = None

    @property
    def gravity(self) -> int:
        """0 for what only tells, more for what is worse."""
        return EFFECTS.index(self.effect)

    @property
    def taint(self) -> Taint:
        """As it is published."""
        added = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Taint(key=self.key, value=self.value, effect=self.effect, time_added=added)


Marks = Mapping[str, tuple[Mark, ...]]
"""By UUID of the GPU."""

NONE_MARKED: Final[Marks] = {}


def marks_of(marks: Iterable[Mark], place: Place | None) -> tuple[Mark, ...]:
    """Choose the marks that count for a device: of each key the gravest, of equally grave ones the oldest.

    Args:
        marks: of the device's GPU.
        place: of the device; None for the whole GPU, which what concerns one partition does not hit.

    Returns:
        The gravest first.
    """
    chosen: dict[str, Mark] = {}
    for mark in sorted(marks, key=lambda mark: (-mark.gravity, mark.since, mark.key, mark.value)):
        if mark.place is None or mark.place == place:
            chosen.setdefault(mark.key, mark)
    return tuple(chosen.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthWishes:
    """What an administrator wants otherwise than the table of Xids says.

    Attributes:
        xids: Xid to `ignore`, `warn`, `noSchedule` or `noExecute`.
        unknown_xids: the same for Xids that the table does not have; None as the table says.
        strict_memory: memory that waits for a reset to be repaired takes no new pods.
        expiry_seconds: how long what only tells is told; None as the table says.
    """

    xids: Mapping[int, str] = field(default_factory=dict)
    unknown_xids: str | None = None
    strict_memory: bool = False
    expiry_seconds: int | None = None
