"""One object of a plan: what is to be written, or why it is left alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dradriver.kube import Object, Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One object that is to be as `body` says.

    Attributes:
        resource: its type.
        body: the fields that the plan wants.
        live: the object as it was seen; None where there is none.
        needed: whether it has to be written at all.
    """

    resource: Resource
    body: Object
    live: Object | None = None
    needed: bool = True

    def __str__(self) -> str:
        return title(self.resource, self.body["metadata"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One object that is left as it is.

    Attributes:
        object: which.
        why: the cause, a sentence.
        todo: the next step, a sentence.
    """

    object: str
    why: str
    todo: str

    def __str__(self) -> str:
        return f"{self.object}: {self.why}; {self.todo}"


def title(resource: Resource, metadata: Mapping[str, Any]) -> str:
    """Name an object for people."""
    return f"{resource.kind} {'/'.join(filter(None, (metadata.get('namespace'), metadata['name'])))}"
