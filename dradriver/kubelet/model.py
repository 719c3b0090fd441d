"""Claims and answers as plain data, and what this room expects of those who prepare claims."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReference:
    """Which claim the kubelet means. A name may be used again by another claim; the UID never is."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} (UID {self.uid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """One device of a claim that containers can be given now.

    Attributes:
        request_names: main requests of the claim it serves, without subrequest; empty means every request.
        cdi_device_ids: fully qualified, `vendor/class=name`; the kubelet keeps them across restarts and
            uses them again without asking.
        share_id: which share of a device that several claims hold at once.
    """

    request_names: tuple[str, ...]
    pool_name: str
    device_name: str
    cdi_device_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The claim is ready; the kubelet does not check the devices, and starts a pod without any just the same."""

    devices: tuple[PreparedDevice, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """The claim is not ready; the message is shown to the user as it is, in an Event of the pod."""

    message: str


class ClaimHandler(Protocol):
    """Prepares claims. Both methods are called from several threads at once, also for the same claim.

    The answer is decided for each claim; both methods are idempotent. `deadline` is a time of
    `time.monotonic()` in seconds, after which the kubelet has given up: what goes on behind it has to be
    finished or resumed by the next call, which comes a minute later.
    """

    def prepare(self, claims: Sequence[ClaimReference], *, deadline: float) -> Mapping[str, Prepared | Failed]:
        """Make claims ready; returns one answer for each, by UID."""
        ...

    def unprepare(self, claims: Sequence[ClaimReference], *, deadline: float) -> Mapping[str, Failed | None]:
        """Clean up; returns None for each claim that left nothing behind, by UID. Unknown claims are clean."""
        ...
