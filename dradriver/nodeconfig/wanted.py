"""What is wanted of a node, as plain data."""

from dataclasses import dataclass

from dradriver import api
from dradriver.gpu.policy import OfferPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The node's labels that are for us; "" where one is missing or empty.

    Attributes:
        config: which configuration.
        allocation: who hands out the GPUs.
    """

    config: str = ""
    allocation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the administrator wants of this node.

    Attributes:
        policy: how the GPUs are offered.
        name: of the configuration that it comes from; "" where the plugin's flags alone decide.
        health_policy: name of one, "" where none is given.
        allocation: one of `api.Allocation`.
        settled: the node's labels have been read since this process started. Until then nothing new may be offered:
            the rest is what was wanted when an earlier process ran, or the flags, and good for what is prepared.
        problems: what is wrong with labels and file, each a sentence for the administrator.
    """

    policy: OfferPolicy
    name: str = ""
    health_policy: str = ""
    allocation: str = api.Allocation.DRA
    settled: bool = False
    problems: tuple[str, ...] = ()

    @property
    def hold(self) -> bool:
        """Nothing is to be offered."""
        return self.allocation != api.Allocation.DRA
