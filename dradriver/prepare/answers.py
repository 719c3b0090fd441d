"""What the kubelet is answered."""

import re

from dradriver.kubelet import ClaimReference, Prepared, PreparedDevice
from dradriver.observe.metrics import ErrorType, Operation
from dradriver.prepare.containers import qualified_names
from dradriver.prepare.errors import BusyError, ClaimError
from dradriver.prepare.plan import Plan, PlannedDevice

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")


def prepared(plan: Plan) -> Prepared:
    """Answer for a prepared claim, each device with its name in the CDI spec."""
    return Prepared(
        devices=tuple(
            _answer_device(device, cdi_id) for device, cdi_id in zip(plan.devices, qualified_names(plan), strict=True)
        )
    )


def _answer_device(device: PlannedDevice, cdi_id: str) -> PreparedDevice:
    return PreparedDevice(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=(cdi_id,),
        share_id=device.share_id,
    )


def with_claim(claim: ClaimReference, message: str) -> str:
    """Make sure that a message names its claim."""
    name = f"{claim.namespace}/{claim.name}"
    return message if name in message else f"claim {name}: {message}"


def error_type(operation: Operation, error: Exception) -> ErrorType:
    """Say under which label a failure is counted."""
    if isinstance(error, BusyError):
        return "lock_acquire"
    if isinstance(error, ClaimError):
        return "claim_get"
    return "prepare_devices" if operation == "prepare" else "unprepare_devices"


def check_uid(claim: ClaimReference) -> None:
    """Refuse what would not be the name of a file in our folders.

    Raises:
        ClaimError: it is no UID.
    """
    if not _UID.fullmatch(claim.uid):
        raise ClaimError(f"claim {claim.namespace}/{claim.name}: {claim.uid!r} is not a UID")
