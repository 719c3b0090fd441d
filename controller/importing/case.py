"""What the rules about one configuration look at, and how they tell what they find."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from controller.importing.assigned import Assigned
from controller.importing.bridges import Offer
from controller.importing.cluster import Cluster, User
from controller.importing.deviceplugin import Config
from controller.importing.gaps import Gap, Weight
from controller.importing.shares import Shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A configuration and whom it concerns.

    Attributes:
        assigned: the configuration.
        offers: what it offers.
        shares: what the node configuration says of its sharing.
        cluster: who asks.
    """

    assigned: Assigned
    offers: tuple[Offer, ...]
    shares: Shares
    cluster: Cluster

    @property
    def config(self) -> Config:
        """What it says."""
        return self.assigned.config

    @property
    def resources(self) -> frozenset[str]:
        """Names that it offers."""
        return frozenset(offer.resource for offer in self.offers)

    def users(self, *, of: frozenset[str] | None = None) -> list[User]:
        """Find who may run there: who asks for what is offered and does not run on a node with another one."""
        wanted, nodes = self.resources if of is None else of, set(self.assigned.node_names)
        asking = (user for user in self.cluster.users if user.requests.keys() & wanted)
        return [user for user in asking if not user.node or not self.cluster.nodes or user.node in nodes]

    def gap(self, *, users: list[User] | None = None, limits: tuple[str, ...] = (), **said: str) -> Gap:
        """Make a gap that differs, of this configuration."""
        return self.weighed(Weight.DIFFERS, users=users, limits=limits, **said)

    def weighed(
        self, weight: Weight, *, users: list[User] | None = None, limits: tuple[str, ...] = (), **said: str
    ) -> Gap:
        """Make a gap of this configuration; `users` are all that may run there, unless they are given."""
        touched = self.users() if users is None else users
        return Gap(
            **{"place": "", **said},
            weight=weight,
            configs=(self.assigned.name,),
            nodes=self.assigned.node_names,
            users=tuple(user.name for user in touched),
            limits=limits,
        )


Rule = Callable[[Case], Iterator[Gap]]


def note(case: Case, place: str, what: str, why: str, todo: str = "nothing") -> Gap:
    """Make a gap that loses nothing."""
    return case.weighed(Weight.NOTE, users=[], place=place, what=what, why=why, todo=todo)
