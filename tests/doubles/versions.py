"""What API servers of several versions make of a slice, to be put into the double: `server.strip = Kubernetes(...)`."""

from dataclasses import dataclass
from typing import Any

from doubles.apiserver import Refusal


@dataclass(frozen=True, kw_only=True)
class Kubernetes:
    """Rules of one version, as real ones of it were seen to behave.

    Attributes:
        minor: 34 to 37.
        partitions: the gate DRAPartitionableDevices.
        taints: the gate DRADeviceTaints.
        shares: the gate DRAConsumableCapacity; None as it is unless somebody turns it on or off.
    """

    minor: int
    partitions: bool = True
    taints: bool = True
    shares: bool | None = None

    def __call__(self, item: dict[str, Any]) -> None:
        """Drop what gates forbid, then refuse what the version does not allow."""
        spec = item.get("spec") or {}
        if not self.partitions:
            spec.pop("sharedCounters", None)
            _drop(spec, "consumesCounters")
        if not self.taints:
            _drop(spec, "taints")
        if not (self.minor >= 36 if self.shares is None else self.shares):
            _drop(spec, "allowMultipleAllocations")
            _drop_policies(spec)
        for refusal in (self._about_layout(spec), self._about_effects(spec)):
            if refusal:
                raise Refusal(422, "Invalid", refusal)

    def _about_layout(self, spec: dict[str, Any]) -> str:
        own = {counter_set["name"] for counter_set in spec.get("sharedCounters", [])}
        used = {
            entry["counterSet"] for device in spec.get("devices", []) for entry in device.get("consumesCounters", [])
        }
        if self.minor >= 35:
            both = own and spec.get("devices")
            return "spec: Invalid value: only one of `sharedCounters` and `devices` is allowed" if both else ""
        return "" if used <= own else "must reference a counterSet defined in the ResourceSlice sharedCounters"

    def _about_effects(self, spec: dict[str, Any]) -> str:
        effects = {taint["effect"] for device in spec.get("devices", []) for taint in device.get("taints", [])}
        refused = self.minor < 35 and "None" in effects
        return 'Unsupported value: "None": supported values: "NoExecute", "NoSchedule"' if refused else ""


def _drop(spec: dict[str, Any], field: str) -> None:
    for device in spec.get("devices", []):
        device.pop(field, None)


def _drop_policies(spec: dict[str, Any]) -> None:
    for device in spec.get("devices", []):
        for entry in device.get("capacity", {}).values():
            entry.pop("requestPolicy", None)
