"""A job as an HTTP reply: its envelope, its outputs as links or base64, its status."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from structlog.contextvars import bind_contextvars

from darkroom.worker.api.internal_requests import internal_identity
from darkroom.worker.api.services import Services
from darkroom.worker.autoscaler.envelope import EnvelopeRejected, SignatureRejected
from darkroom.worker.errors import (
    Forbidden,
    JobNotFound,
    ScopeMissing,
    SessionGone,
    TooManySessions,
    TryLater,
    Unauthorized,
    WaitTooLong,
    WorkerError,
    WrongKey,
    http_status,
    http_status_for_vast,
)
from darkroom.worker.guard.auth import require
from darkroom.worker.guard.foreign_page import is_of_foreign_page
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.guard.identity.loopback import direct_host
from darkroom.worker.guard.rate_limits import caller_name
from darkroom.worker.jobs.envelope import refusal, result_of
from darkroom.worker.json.finite import FiniteJSONResponse
from darkroom.worker.outputs.inline import with_data
from darkroom.worker.outputs.public import public_record
from darkroom.worker.settings.api_keys import Scope
from darkroom.worker.settings.loopback import is_loopback
from darkroom.worker.storage.job import Job

COUNTED_SCOPE = "darkroom.counted"
REALM = "darkroom"


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def host_of(request: Request) -> str | None:
    """Return the client's address, or None where a proxy passed the request on."""
    return direct_host(None if request.client is None else request.client.host, request.headers)


def check_page(request: Request) -> None:
    """Refuse a browser's request that a page of another site makes to this machine. Raises Forbidden."""
    if is_of_foreign_page(request.headers) and is_loopback(host_of(request)):
        raise Forbidden("A page of another site may not use a worker on its visitor's machine")


def check_caller(request: Request, *, has_vast_envelope: bool = False, needs: Scope | None = None) -> Identity:
    """Identify the caller of a request, and count the request.

    `needs` is the scope that the route requires; by default GET requires reading and every other method submitting.
    Raises Unauthorized for a caller that may not use the worker, ScopeMissing, Forbidden, LimitReached.
    """
    caller = internal_identity(request)
    if caller is None:
        check_page(request)
        caller = _identify(request, has_vast_envelope)
        _count_request(request, caller)
    if caller.key_name:
        bind_contextvars(caller=caller.key_name)
    require(caller, needs or (Scope.READ if request.method in ("GET", "HEAD") else Scope.SUBMIT))
    return caller


def check_operator(request: Request) -> Identity:
    """Identify the caller of an operator's route. Raises Unauthorized, ScopeMissing for a customer's key, Forbidden."""
    return check_caller(request, needs=Scope.ADMIN)


def _identify(request: Request, has_vast_envelope: bool) -> Identity:
    peer = None if request.client is None else request.client.host
    try:
        return services_of(request).requests.guard.check(
            peer, request.headers.items(), has_vast_envelope=has_vast_envelope
        )
    except Unauthorized:
        _count_request(request, nobody(request))  # limits the guessing of keys, too
        raise


def nobody(request: Request) -> Identity:
    """Return the identity of a caller without a key that is known."""
    return Identity("", host_of(request) or "", frozenset())


def caller_of_jobs(request: Request, identity: Identity) -> str:
    """Return the name under which the jobs of a caller are counted; empty for a caller without limits."""
    return caller_name(identity)


def _count_request(request: Request, identity: Identity) -> None:
    """Count a request once, however often the caller is checked."""
    services = services_of(request)
    if services.requests.caller_limits.requests_per_second is not None and not request.scope.get(COUNTED_SCOPE):
        request.scope[COUNTED_SCOPE] = True
        services.requests.caller_rates.count_request(caller_of_jobs(request, identity))


async def reply_with(job: Job, request: Request, *, is_vast: bool = False, status: int | None = None) -> JSONResponse:
    """Reply with the current result of a job; the end of a job is shown once it is on disk."""
    services = services_of(request)
    if not job.state.is_terminal:
        body = result_of(job, [])  # a snapshot: later changes may reach the disk after this reply
        status = status or job.http_status
        await services.jobs.store.settle(job)
    else:
        job = await services.jobs.pipeline.shown(job)
        body = result_of(job, await public_outputs(job, request))
    if status is None:
        status = http_status_for_vast(job.http_status) if is_vast else job.http_status
    return FiniteJSONResponse(body, status_code=status)


async def public_outputs(job: Job, request: Request) -> list[dict[str, Any]]:
    """Return the output records for a client: with a link where there is no upload, with the data on request.

    Empty before the job has ended: until then outputs are not in the form that the request asks for.
    """
    if not job.state.is_terminal:
        return []
    services = services_of(request)
    return await outputs_of(services, job, services.deliveries.outputs.public_url or str(request.base_url).rstrip("/"))


async def outputs_of(services: Services, job: Job, base: str, *, is_for_broker: bool = False) -> list[dict[str, Any]]:
    """Return the output records of an ended job, with links below the URL `base`.

    Without one, a file that was not uploaded comes with its data. Records for customers, who have keys here or are at a
    gateway behind a broker, name no folder of this machine.
    """
    shows_folders = services.deliveries.shows_folders and not is_for_broker

    def link(path: str) -> str:
        return services.deliveries.links.link(base, job.id, path, time.time())

    shown = [public_record(record, link if base else None, shows_folders=shows_folders) for record in job.outputs]
    if job.request.wants_base64 or not (base or all("url" in record for record in shown)):
        folder, limit = services.jobs.store.job_directory(job.id), services.deliveries.outputs.base64_max_bytes
        shown = [
            await asyncio.to_thread(with_data, public, record, folder, limit)
            for public, record in zip(shown, job.outputs, strict=True)
        ]
    return shown


def not_found(job_id: str) -> JSONResponse:
    """Reply that a job id is unknown, in the form of a result."""
    message = "Request ID not found"
    return JSONResponse(refusal(job_id, message, JobNotFound(message).as_json()), status_code=404)


def refuse(error: WorkerError, job_id: str = "", *, is_vast: bool = False) -> Response:
    """Reply to a request that did not become a job; for Vast's client with exactly the text of Vast's own worker."""
    bind_contextvars(code=error.code)  # for the access log
    status = http_status(type(error))
    if isinstance(error, EnvelopeRejected):
        return JSONResponse(error.body, status_code=status)
    if is_vast and isinstance(error, SessionGone):
        return JSONResponse({"error": error.message}, status_code=status)
    if is_vast and isinstance(error, SignatureRejected | TooManySessions | WaitTooLong):
        return Response(status_code=status)
    headers = _challenge(error)
    if isinstance(error, TryLater):
        headers["Retry-After"] = str(max(1, round(error.retry_after_seconds)))
    if is_vast:
        status = http_status_for_vast(status)
    return FiniteJSONResponse(refusal(job_id, error.message, error.as_json()), status_code=status, headers=headers)


def _challenge(error: WorkerError) -> dict[str, str]:
    """Return the WWW-Authenticate header of a refusal, by RFC 6750: it distinguishes a wrong key from a missing one."""
    if isinstance(error, ScopeMissing):
        details = f', error="insufficient_scope", scope="{error.fields["scope"]}"'
    elif isinstance(error, WrongKey):
        details = ', error="invalid_token"'
    elif isinstance(error, Unauthorized):
        details = ""
    else:
        return {}
    return {"WWW-Authenticate": f'Bearer realm="{REALM}"{details}'}
