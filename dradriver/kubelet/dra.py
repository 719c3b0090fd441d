"""The DRA service: the kubelet's calls in, the handler's answers out, one for each claim and no other."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from dradriver.kubelet._grpc import Call, SocketServer, grpc, seconds_left, unary_service
from dradriver.kubelet.health import STREAMS, HealthBoard, HealthService
from dradriver.kubelet.model import ClaimHandler, ClaimReference, Failed, Prepared, PreparedDevice
from dradriver.kubelet.sockets import make_folder
from dradriver.proto.dra_v1_pb2 import (
    Claim,
    Device,
    NodePrepareResourceResponse,
    NodePrepareResourcesRequest,
    NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse,
    NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
)

_log = logging.getLogger(__name__)

WORKERS: Final = 64
"""The kubelet prepares pods in parallel, and a call may wait long for what another one frees: the threads suffice for
all that the handler lets wait and a dozen at work. They are made when needed; all 64 at once take 1 MiB."""

_SERVICES: Final = ("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin")

_Answer = TypeVar("_Answer")


class DraServer:
    """Serves v1 and v1beta1 on one socket: their messages are the same on the wire.

    Whatever the handler does, a call ends with one entry for each claim asked: a gRPC error would void the
    answers to the other claims of the pod, and hide from the user which claim is meant.
    """

    def __init__(
        self,
        handler: ClaimHandler,
        socket_path: Path,
        *,
        board: HealthBoard | None = None,
        workers: int = WORKERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep what is needed to serve.

        Args:
            handler: decides the answers.
            socket_path: absolute; its folder is made when needed.
            board: what the health service tells, on the same socket; without one there is no such service.
            workers: calls answered at once. Streams of health have threads of their own beside them.
            clock: seconds; what the handler's deadlines are counted in.

        Raises:
            SocketPathTooLongError: no socket can have this path.
        """
        self._handler = handler
        self._clock = clock
        self._health = HealthService(board) if board else None
        self._server = SocketServer(
            socket_path,
            services=[
                *(unary_service(name, self._calls()) for name in _SERVICES),
                *(self._health.services() if self._health else ()),
            ],
            workers=workers + STREAMS if board else workers,
            provide_folder=make_folder,
        )

    @property
    def serving(self) -> bool:
        """The kubelet can reach us."""
        return self._server.serving

    def start(self) -> None:
        """Listen and answer.

        Raises:
            KubeletError: the socket cannot be made; see `dradriver.kubelet.errors`.
        """
        self._server.start()

    def ensure(self) -> bool:
        """Make the socket again if it has been removed; returns whether it was. Raises as `start` does."""
        return self._server.ensure()

    def stop(self, grace: float) -> None:
        """End streams, refuse new calls, wait at most `grace` seconds for the running ones, remove the socket.

        Streams come first: they are calls that never end by themselves, and would use up the whole grace.
        """
        if self._health is not None:
            self._health.stop()
        self._server.stop(grace)

    def _calls(self) -> dict[str, Call]:
        return {
            "NodePrepareResources": (
                self._prepare,
                NodePrepareResourcesRequest,
                NodePrepareResourcesResponse,
            ),
            "NodeUnprepareResources": (
                self._unprepare,
                NodeUnprepareResourcesRequest,
                NodeUnprepareResourcesResponse,
            ),
        }

    def _prepare(
        self, request: NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> NodePrepareResourcesResponse:
        deadline = self._clock() + seconds_left(context)
        return answer_prepare(self._handler, request, deadline=deadline)

    def _unprepare(
        self, request: NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> NodeUnprepareResourcesResponse:
        deadline = self._clock() + seconds_left(context)
        return answer_unprepare(self._handler, request, deadline=deadline)


def answer_prepare(
    handler: ClaimHandler, request: NodePrepareResourcesRequest, *, deadline: float
) -> NodePrepareResourcesResponse:
    """Answer one call; never raises for what the handler does."""
    claims = _claims(request.claims)
    answers = _ask("prepare", claims, lambda: handler.prepare(claims, deadline=deadline))
    response = NodePrepareResourcesResponse()
    for claim in claims:
        response.claims[claim.uid].CopyFrom(_prepare_entry(claim, answers[claim.uid]))
    return response


def answer_unprepare(
    handler: ClaimHandler, request: NodeUnprepareResourcesRequest, *, deadline: float
) -> NodeUnprepareResourcesResponse:
    """Answer one call; never raises for what the handler does."""
    claims = _claims(request.claims)
    answers = _ask("unprepare", claims, lambda: handler.unprepare(claims, deadline=deadline))
    response = NodeUnprepareResourcesResponse()
    for claim in claims:
        response.claims[claim.uid].CopyFrom(_unprepare_entry(claim, answers[claim.uid]))
    return response


def _claims(claims: Iterable[Claim]) -> tuple[ClaimReference, ...]:
    found = (ClaimReference(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims)
    return tuple({claim.uid: claim for claim in found}.values())


def _ask(
    verb: str, claims: tuple[ClaimReference, ...], call: Callable[[], Mapping[str, _Answer]]
) -> Mapping[str, _Answer | Failed]:
    """Let the handler answer; what it leaves out has failed, and what nobody asked for is dropped."""
    if not claims:
        return {}
    try:
        answers = dict(call())
    except Exception as error:  # noqa: BLE001 - the seam: a bug in any room must not void other claims' answers
        return {claim.uid: _crashed(verb, claim, error) for claim in claims}
    asked = {claim.uid for claim in claims}
    for uid in answers.keys() - asked:
        _log.error("%s: dropped an answer for claim UID %s, which was not asked for", verb, uid)
    missing = {claim.uid: _unanswered(verb, claim) for claim in claims if claim.uid not in answers}
    return {**answers, **missing}


def _prepare_entry(claim: ClaimReference, answer: object) -> NodePrepareResourceResponse:
    if isinstance(answer, Prepared):
        try:
            entry = NodePrepareResourceResponse(devices=[_device(device) for device in answer.devices])
        except (TypeError, ValueError) as error:
            answer = _crashed("prepare", claim, error)
        else:
            _log.debug("claim prepared, %d devices", len(entry.devices), extra=_fields(claim))
            return entry
    return NodePrepareResourceResponse(error=_failure("prepare", claim, answer))


def _unprepare_entry(claim: ClaimReference, answer: object) -> NodeUnprepareResourceResponse:
    if answer is None:
        _log.debug("claim unprepared", extra=_fields(claim))
        return NodeUnprepareResourceResponse()
    return NodeUnprepareResourceResponse(error=_failure("unprepare", claim, answer))


def _device(device: PreparedDevice) -> Device:
    return Device(
        request_names=device.request_names,
        pool_name=device.pool_name,
        device_name=device.device_name,
        cdi_device_ids=device.cdi_device_ids,
        share_id=device.share_id,
    )


def _failure(verb: str, claim: ClaimReference, answer: object) -> str:
    """Text of a failure, never empty, since the kubelet takes an empty one for success; also logs it."""
    if not isinstance(answer, Failed):
        answer = Failed(f"{verb} of claim {claim}: the driver answered with {type(answer).__name__}; {_REPORT}")
    message = _printable(answer.message) or f"{verb} of claim {claim} failed for an unknown reason; {_REPORT}"
    # The handler has told the cause where it knows more of it.
    _log.debug("%s failed: %s", verb, message, extra=_fields(claim))
    return message


_REPORT: Final = "this is a bug of the driver, see its log on this node"


def _crashed(verb: str, claim: ClaimReference, error: Exception) -> Failed:
    _log.error("%s crashed", verb, exc_info=error, extra=_fields(claim))
    return Failed(f"{verb} of claim {claim}: {type(error).__name__}: {error}; {_REPORT}")


def _unanswered(verb: str, claim: ClaimReference) -> Failed:
    return Failed(f"{verb} of claim {claim}: the driver gave no answer for it; {_REPORT}")


def _printable(text: str) -> str:
    """Make it UTF-8, which file names in messages need not be, and protobuf insists on."""
    return text.encode("utf-8", "backslashreplace").decode()


def _fields(claim: ClaimReference) -> dict[str, Any]:
    """Fields of a log line about this claim."""
    return {"claim_namespace": claim.namespace, "claim_name": claim.name, "claim_uid": claim.uid}
