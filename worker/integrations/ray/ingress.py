"""Ingress: the HTTP side of the Ray Serve application, which chooses a replica for each request by its model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import structlog
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from darkroom.worker.errors import (
    EngineUnreachable,
    MethodNotAllowed,
    QueueFull,
    RouteNotFound,
    TryLater,
    WorkerError,
    http_status,
)
from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.integrations.ray.forwarding import ROUTES, ForwardedRequest, ReplyHead, forwarded
from darkroom.worker.integrations.ray.options import RayOptions
from darkroom.worker.integrations.ray.replica import WorkerGone
from darkroom.worker.jobs.envelope import refusal
from darkroom.worker.json.finite import FiniteJSONResponse
from darkroom.worker.storage.job import JobFailure

TRIES: Final = 3
RETRY_SECONDS: Final = 5
REPLICA_LOST: Final = (RayActorError, ReplicaUnavailableError, WorkerGone)

log = structlog.get_logger("ray")


class Ingress:
    """Requests on their way to replicas. A request whose replica is lost before its reply begins is sent again."""

    def __init__(self, replicas: DeploymentHandle[Any], options: RayOptions) -> None:
        self._replicas = replicas
        self._options = options

    async def __call__(self, request: Request) -> Response:
        """Return the reply of a worker, or ours as a worker would have made it."""
        sent = ForwardedRequest(request.method, request.url.path, (), b"")
        try:
            _check_route(request)
            headers, body = dict(request.headers), await request.body()
            inline = self._options.inline_outputs
            sent = forwarded(request.method, request.url.path, headers, body, inline_outputs=inline)
            return await self._reply(sent)
        except WorkerError as error:
            return _refused(error, sent.request_id)

    async def _reply(self, sent: ForwardedRequest) -> Response:
        """Forward a request. Raises QueueFull, EngineUnreachable."""
        for number in range(1, TRIES + 1):
            handle = self._replicas.options(stream=True, multiplexed_model_id=sent.model)
            pieces = aiter(handle.handle.remote(sent))
            try:
                head = await anext(pieces)
            except (BackPressureError, DeploymentUnavailableError) as error:
                reason = "no replica can be started" if isinstance(error, DeploymentUnavailableError) else "queue full"
                raise QueueFull(f"Ray Serve: {reason}", retry_after_seconds=RETRY_SECONDS) from None
            except REPLICA_LOST as error:
                log.warning("replica lost", request_id=sent.request_id, attempt=number, reason=cause_of(error))
                continue
            assert isinstance(head, ReplyHead)
            return StreamingResponse(_body(pieces), head.status, dict(head.headers))
        raise EngineUnreachable(f"The replicas of {TRIES} attempts were lost")


async def _body(pieces: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        yield piece


def _check_route(request: Request) -> None:
    method = ROUTES.get(request.url.path)
    if method is None:
        allowed = ", ".join(ROUTES)
        raise RouteNotFound(f"{request.url.path}: no route of a Ray Serve application; expected one of {allowed}")
    if request.method != method:
        raise MethodNotAllowed(f"{request.url.path}: wrong method; got {request.method}, expected {method}")


def _refused(error: WorkerError, request_id: str) -> Response:
    status = http_status(type(error))
    headers = {"Retry-After": str(RETRY_SECONDS)} if isinstance(error, TryLater) else {}
    return FiniteJSONResponse(refusal(request_id, error.message, JobFailure.of(error).as_json()), status, headers)
