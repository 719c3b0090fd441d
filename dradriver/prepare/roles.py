"""What the preparer needs of others: somebody who reads claims, and somebody who tells users."""

from collections.abc import Mapping
from typing import Any, Protocol

from dradriver.kubelet import ClaimReference
from dradriver.observe.metrics import Operation
from dradriver.prepare.records import Record


class ClaimReader(Protocol):
    """Reads a claim from the API server."""

    def __call__(self, reference: ClaimReference, *, timeout: float) -> Mapping[str, Any]:
        """GET the ResourceClaim, live; raises a KubeError after `timeout` seconds at the latest."""
        ...


class Teller(Protocol):
    """Tells users what becomes of their claims; returns at once and never raises."""

    def prepared(self, record: Record) -> None:
        """The devices of a claim are ready."""

    def failed(self, claim: ClaimReference, operation: Operation, message: str) -> None:
        """A claim could not be prepared or unprepared."""


class SilentTeller:
    """Tells nobody."""

    def prepared(self, record: Record) -> None:
        """See Teller."""

    def failed(self, claim: ClaimReference, operation: Operation, message: str) -> None:
        """See Teller."""
