"""Object names of bridges that the controller makes, where somebody's bridge has the name already."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from controller.api import resource_name_of
from dradriver.kube import Object

_SUFFIX: Final = "-discovered"
"""What is added to a name that is taken. The class is named by the resource, so nothing else depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """A bridge that is not made.

    Attributes:
        resource_name: that it would be for.
        taken: names of the bridges that are in its way.
    """

    resource_name: str
    taken: tuple[str, ...]

    @property
    def note(self) -> str:
        """What it is about, for people."""
        return (
            f"no bridge can be made for {self.resource_name}, since other bridges are named "
            f"{' and '.join(self.taken)}; make them again under other names, or make one for it by hand"
        )


def named(bodies: Iterable[Object], present: Mapping[str, str]) -> tuple[list[Object], list[Clash]]:
    """Give each bridge a name that is free.

    Args:
        bodies: of bridges that are to be made.
        present: resource name of each bridge of the cluster, understood or not.

    Returns:
        The bridges that can be made, and those that cannot. One whose name a bridge for the same resource has is
        neither: that bridge was not understood, and is told of elsewhere.
    """
    taken, made, clashes = dict(present), [], []
    for body in bodies:
        resource_name, name = resource_name_of(body), body["metadata"]["name"]
        choices = (name, f"{name}{_SUFFIX}")
        if resource_name in {taken.get(each) for each in choices}:
            continue
        free = next((each for each in choices if each not in taken), None)
        if free is None:
            clashes.append(Clash(resource_name=resource_name, taken=choices))
            continue
        taken[free] = resource_name
        made.append(body | {"metadata": body["metadata"] | {"name": free}})
    return made, clashes
