"""What users and administrators are told: Events, and the devices in a claim's status.

All of it happens in a thread of its own, off the path of a Prepare: an API server that is slow or down must not
keep a pod from starting. What cannot be written is logged and dropped. What is said of the health of a claim's
devices: `health_telling`.
"""

import datetime as dt
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from dradriver import api
from dradriver.gpu.model import MigInstance
from dradriver.kube import (
    RESOURCE_CLAIMS,
    Client,
    ConflictError,
    EventRecorder,
    EventType,
    ForbiddenError,
    Happening,
    InvalidError,
    KubeError,
    NotFoundError,
    Regarding,
)
from dradriver.kubelet import ClaimReference
from dradriver.observe.metrics import Operation
from dradriver.prepare.containers import cdi_name
from dradriver.prepare.errands import Errands
from dradriver.prepare.plan import PlannedDevice
from dradriver.prepare.records import Record
from dradriver.prepare.users import claim_regarding, live_claim, pods_of

DENIED_SECONDS: Final = 600.0
"""How long no status is written after the API server has denied it: rights come back with a changed role, and a claim
that was allocated elsewhere meanwhile is denied in the same words."""
DRIVER_RIGHT: Final = "resourceclaims/driver"
"""Named in the answer (422, not 403) where the right to write this driver's devices is missing."""
REASONS: Final = {"prepare": "FailedPrepare", "unprepare": "FailedUnprepare"}
ACTIONS: Final = {"prepare": "Prepare", "unprepare": "Unprepare"}

_log = structlog.get_logger()


class ClaimTeller:
    """Writes Events and claim status; a Teller for the preparer and a Reporter for the reconciler.

    Args:
        client: access to the API server.
        events: started by whoever makes it.
        driver: driver name.
        node_name: this node.
        wall_clock: the time of day, with its zone.
        clock: monotonic seconds.

    Attributes:
        errands: the thread, which others that tell of claims may use too while it runs.
    """

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        *,
        driver: str,
        node_name: str,
        wall_clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._events = events
        self._driver = driver
        self._node = Regarding(api_version="v1", kind="Node", name=node_name, uid=node_name)
        self._manager = f"dradriver-{node_name}"
        self._wall_clock = wall_clock
        self._clock = clock
        self.errands = Errands("teller", clock=clock)
        self._denied_at: float | None = None

    def start(self) -> None:
        """Start the thread."""
        self.errands.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Write what waits, but not longer than that many seconds."""
        self.errands.stop(timeout)

    # --- of claims -------------------------------------------------------------------------------

    def prepared(self, record: Record) -> None:
        """Write the devices of a claim into its status."""
        self.errands.soon(lambda: self._write_status(record))

    def failed(self, claim: ClaimReference, operation: Operation, message: str) -> None:
        """Tell of a failure: on the claim, and where the kubelet does not tell itself also on its pods."""
        self.errands.soon(lambda: self._tell_failure(claim, operation, message))

    def stale_claim(self, record: Record, cause: str) -> None:
        """Tell that what a claim held is released."""
        self._warn(
            self._regarding(record),
            "ReleasedStaleClaim",
            "Unprepare",
            f"{record.plan} (UID {record.plan.uid}) still held {_devices(record)} on node {self._node.name}, although "
            f"{cause}; the devices are released now",
        )

    def lost_instance(self, record: Record, device: str) -> None:
        """Tell that a running pod's partition is gone."""
        self._warn(
            self._regarding(record),
            "PartitionLost",
            "Check",
            f"{record.plan}: the MIG instance behind device {device} does not exist any more on node "
            f"{self._node.name} (destroyed by others, or the driver was reloaded); restart the pod to get a new one",
        )
        self.errands.soon(lambda: self._write_status(record, lost=device))

    # --- of the node -----------------------------------------------------------------------------

    def damaged_record(self, uid: str, path: Path, *, recovered: bool) -> None:
        """Tell that a record was set aside."""
        what = "it was made again from the claim's CDI spec" if recovered else "what it had made is not known any more"
        self._warn(
            self._node,
            "RecordDamaged",
            "Recover",
            f"the record of claim UID {uid} could not be read and lies in {path}; {what}",
        )

    def foreign_instance(self, gpu_uuid: str, instance: MigInstance, *, reclaimed: bool) -> None:
        """Tell of an instance that nobody we know made."""
        name = instance.uuid or f"GPU instance {instance.gpu_instance_id} without compute instance"
        step = (
            "it was destroyed (--reclaim-unknown-mig)"
            if reclaimed
            else "claims for that place fail until it is removed with `nvidia-smi mig -dci` and `-dgi`"
        )
        self._warn(
            self._node,
            "ForeignMigInstance",
            "Check",
            f"GPU {gpu_uuid} has {name} at memory slice {instance.placement.start}, "
            f"which this driver did not make; {step}",
        )

    # --- the thread ------------------------------------------------------------------------------

    def _tell_failure(self, claim: ClaimReference, operation: Operation, message: str) -> None:
        self._warn(claim_regarding(claim), REASONS[operation], ACTIONS[operation], message)
        # The kubelet itself tells the pod of a failed prepare, but says nothing of a failed unprepare.
        if operation == "unprepare":
            for pod in pods_of(live_claim(self._client, claim)):
                self._warn(pod, REASONS[operation], ACTIONS[operation], message)

    def _write_status(self, record: Record, *, lost: str = "") -> None:
        plan = record.plan
        denied = self._denied_at is not None and self._clock() - self._denied_at < DENIED_SECONDS
        if denied or not plan.name:
            return
        body = {
            "apiVersion": RESOURCE_CLAIMS.api_version,
            "kind": RESOURCE_CLAIMS.kind,
            # The UID keeps a claim of the same name that was made since from getting another's devices.
            "metadata": {"namespace": plan.namespace, "name": plan.name, "uid": plan.uid},
            "status": {
                "devices": [self._status(record, device, ready=device.device != lost) for device in plan.devices]
            },
        }
        try:
            self._client.apply(RESOURCE_CLAIMS, body, field_manager=self._manager, subresource="status")
        except (ForbiddenError, InvalidError) as error:
            if isinstance(error, InvalidError) and DRIVER_RIGHT not in str(error):
                _log.info("the claim has changed, its device status is not written", error=str(error))
                return
            self._denied(error)
        except (NotFoundError, ConflictError):
            _log.debug("the claim has gone, its device status is not written", claim=str(plan))
        else:
            self._denied_at = None

    def _denied(self, error: KubeError) -> None:
        """Leave status alone for a while; told the first time only, since nothing else suffers."""
        tell = _log.warning if self._denied_at is None else _log.debug
        tell("claims get no device status: this identity lacks the right to write it", error=str(error))
        self._denied_at = self._clock()

    def _status(self, record: Record, device: PlannedDevice, *, ready: bool) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "driver": self._driver,
            "pool": device.pool,
            "device": device.device,
            "conditions": [
                {
                    "type": "Ready",
                    "status": str(ready),
                    "reason": "Prepared" if ready else "PartitionLost",
                    "message": f"{'prepared' if ready else 'the partition does not exist any more'} on node "
                    f"{self._node.name}",
                    "lastTransitionTime": self._wall_clock().strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
            ],
            "data": _data(record, device),
        }
        return entry | ({"shareID": device.share_id} if device.share_id else {})

    def _regarding(self, record: Record) -> Regarding:
        return claim_regarding(record.plan.reference) if record.plan.name else self._node

    def _warn(self, regarding: Regarding, reason: str, action: str, note: str) -> None:
        self._events.record(
            Happening(regarding=regarding, type=EventType.WARNING, reason=reason, action=action, note=note)
        )


def _devices(record: Record) -> str:
    return ", ".join(device.device for device in record.plan.devices)


def _data(record: Record, device: PlannedDevice) -> Mapping[str, Any]:
    """Say which hardware stands behind a device; at most 10 KiB by the API's rule, some 300 bytes here."""
    data: dict[str, Any] = {
        "uuid": device.gpu_uuid,
        "cdiDeviceIDs": [f"{api.CDI_KIND}={cdi_name(record.plan, device)}"],
    }
    made = record.made.get(device.device)
    if made is None:
        return data
    return data | {
        "uuid": made.uuid,
        "parentUUID": device.gpu_uuid,
        "gpuInstanceID": made.gpu_instance_id,
        "computeInstanceID": made.compute_instance_id,
    }
