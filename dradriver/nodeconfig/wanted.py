"""What is wanted of a node, as plain data."""

from dataclasses import dataclass, field

from dradriver import api
from dradriver.gpu.health import HealthWishes
from dradriver.gpu.policy import OfferPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The node's labels that are for us, and an annotation; "" where one is missing or empty.

    Attributes:
        config: which configuration.
        allocation: who hands out the GPUs.
        clear: annotation by which somebody takes back what is held against GPUs.
    """

    config: str = ""
    allocation: str = ""
    clear: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the administrator wants of this node.

    Attributes:
        policy: how the GPUs are offered.
        name: of the configuration that it comes from; "" where the plugin's flags alone decide.
        health_policy: name of the one that the configuration names, "" where it names none.
        health: what that policy says.
        allocation: one of `api.Allocation`.
        settled: the node's labels have been read since this process started. Until then nothing new may be offered:
            the rest is what was wanted when an earlier process ran, or the flags, and good for what is prepared.
        problems: what is wrong with labels and file, each a sentence for the administrator.
        clear: value of the annotation `api.CLEAR_HEALTH_ANNOTATION` as it stands, "" without it, None while the node
            is not known. It is an order and no state: what is offered does not depend on it, so it does not count when
            two are compared.
    """

    policy: OfferPolicy
    name: str = ""
    health_policy: str = ""
    health: HealthWishes = field(default_factory=HealthWishes)
    allocation: str = api.Allocation.DRA
    settled: bool = False
    problems: tuple[str, ...] = ()
    clear: str | None = field(default=None, compare=False)

    @property
    def hold(self) -> bool:
        """Nothing is to be offered."""
        return self.allocation != api.Allocation.DRA
