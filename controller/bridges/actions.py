"""What can be done, as data; in the order in which it stands in a decision."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearName:
    """Take the extended resource name from a class, if it is still the one that was seen."""

    name: str
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyClass:
    """Write a class: what is ours of it.

    Attributes:
        name: of the class.
        resource_version: that it was seen with, which guards the write; "" if it is to be created.
        labels: that we own.
        annotations: that we own.
        spec: all of it.
    """

    name: str
    resource_version: str = ""
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Mapping[str, Any]

    @property
    def extended_name(self) -> str:
        """The name that the class carries afterwards, or ""."""
        return str(self.spec.get("extendedResourceName") or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteClass:
    """Delete a class that we made, if it is still the one that was seen."""

    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseClass:
    """Give a class back that somebody else made: without the name, and without our labels and annotations.

    Attributes:
        name: of the class.
        resource_version: that it was seen with, which guards the write.
        labels: that it had in place of ours.
        spec: fields as they were, None for those that were not there; fields that are not named stay as they are.
    """

    name: str
    resource_version: str
    labels: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddFinalizer:
    """Keep a bridge until its class can go."""

    bridge: str
    resource_version: str
    finalizers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveFinalizer:
    """Let a bridge go."""

    bridge: str
    resource_version: str
    finalizers: tuple[str, ...]


Action: TypeAlias = ClearName | ApplyClass | DeleteClass | ReleaseClass | AddFinalizer | RemoveFinalizer
