"""What can go wrong between us and the API server.

Callers decide by class, never by status numbers or message texts, and never meet urllib3 or kubernetes
exceptions: the transport turns the former, the connection the latter into this tree, and `from_status` is the one
place that reads an HTTP status.

    KubeError
    ├── KubeconfigError            no usable configuration: a person has to act
    ├── ImpossibleNameError        no object can have this name, or a namespace is missing (also a ValueError)
    ├── UnreachableError           no answer: refused, reset, timed out, not TLS
    └── ApiError                   the server answered, and not with success
        ├── InvalidError           400, 422: the object itself is at fault
        ├── UnauthorizedError      401
        ├── ForbiddenError         403, and 422 from an admission policy
        ├── NotFoundError          404
        ├── ConflictError          409: somebody wrote in between
        │   └── AlreadyExistsError 409 on create
        ├── GoneError              410: the resource version is too old, list again
        ├── TooManyRequestsError   429: wait retry_after seconds
        └── ServerError            5xx
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

LONGEST_WAIT: Final = 3600.0
"""Seconds; a server that asks for more (or for ever) is asked again after that."""


class KubeError(Exception):
    """Anything that keeps us from talking to the API server as intended."""


class KubeconfigError(KubeError):
    """The kubeconfig or in-cluster files do not say how to reach the API server."""


class ImpossibleNameError(KubeError, ValueError):
    """A name would change the meaning of a URL, or a namespaced object has no namespace: nothing was sent."""


class UnreachableError(KubeError):
    """No answer came. Whether a write happened is unknown."""


class ApiError(KubeError):
    """The API server refused.

    Attributes:
        status: HTTP status.
        reason: the machine-readable `reason` of the Status object, "" if there was none.
        message: what the server said.
        target: what the call was about, as "GET resourceslices/name".
        retry_after: seconds the server asked us to wait, or None.
    """

    hint: ClassVar[str] = ""

    def __init__(
        self, *, status: int, reason: str, message: str, target: str, retry_after: float | None = None
    ) -> None:
        hint = f" ({self.hint})" if self.hint else ""
        super().__init__(f"{target}: {status} {reason}: {message}{hint}")
        self.status = status
        self.reason = reason
        self.message = message
        self.target = target
        self.retry_after = retry_after


class InvalidError(ApiError):
    """The server does not accept the object; sending it again is useless."""


class UnauthorizedError(ApiError):
    """The credentials are not accepted."""

    hint = "check the token or client certificate"


class ForbiddenError(ApiError):
    """RBAC or an admission policy says no."""

    hint = "check the ClusterRole of this identity and the admission policies"


class NotFoundError(ApiError):
    """The object, or its API, does not exist."""


class ConflictError(ApiError):
    """A precondition (resourceVersion, uid) no longer holds."""


class AlreadyExistsError(ConflictError):
    """An object of that name exists."""


class GoneError(ApiError):
    """The history back to the given resourceVersion is no longer kept."""


class TooManyRequestsError(ApiError):
    """The server is busy and asks to wait."""


class ServerError(ApiError):
    """The server failed; it may pass."""


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: InvalidError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: TooManyRequestsError,
}


_DENIALS = (" is forbidden: ", "denied request", " denied the request: ")


def from_status(status: int, document: Mapping[str, Any], *, target: str, retry_after: float | None = None) -> ApiError:
    """Choose the exception for an HTTP status and the Status object that came with it.

    Args:
        status: HTTP status, or the `code` of a Status object inside a watch.
        document: the decoded body; an empty mapping if it was no JSON object.
        target: what the call was about, for the message.
        retry_after: seconds from the Retry-After header; `details.retryAfterSeconds` is the fallback.
    """
    reason = str(document.get("reason") or "")
    message = str(document.get("message") or "no explanation")
    if retry_after is None:
        retry_after = wait_seconds(mapping(document.get("details")).get("retryAfterSeconds"))
    kind = _class_for(status, reason=reason, message=message)
    return kind(status=status, reason=reason, message=message, target=target, retry_after=retry_after)


def mapping(value: Any) -> Mapping[str, Any]:
    """The value where it is an object, else an empty one: who answers may be something else than an API server."""
    return value if isinstance(value, Mapping) else {}


def wait_seconds(value: Any) -> float | None:
    """Read how long somebody asks us to wait, a number or its text; None where it is neither."""
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(seconds) else min(max(0.0, seconds), LONGEST_WAIT)


def _class_for(status: int, *, reason: str, message: str) -> type[ApiError]:
    if status == 409 and reason == "AlreadyExists":  # noqa: PLR2004 - HTTP's own numbers, as in the table
        return AlreadyExistsError
    # A ValidatingAdmissionPolicy denies with 422 and reason Invalid unless its author chose another (seen on 1.37);
    # a webhook with any status that it likes.
    if status in {400, 422} and any(words in message for words in _DENIALS):
        return ForbiddenError
    return _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)  # noqa: PLR2004
