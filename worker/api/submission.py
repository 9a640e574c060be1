"""Submission of a job from an HTTP request: read, check the caller, unwrap, validate the form, admit.

Order: form, modifier, random values, graph check, job on disk. Bad input costs no GPU time.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

import structlog
from fastapi import Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect

from modifiers.modifier import ModificationsRejected
from modifiers.registry import UnknownModifier
from worker.api.callers import sender_of
from worker.api.multipart import Received, is_multipart, read_multipart
from worker.api.results import caller_of_jobs, check_caller, refuse, services_of
from worker.api.schemas import GenerateInput, ParsedRequest, WebhookInput, is_true, parse_generate
from worker.autoscaler.autoscaler import Caller
from worker.autoscaler.vast.envelope import Envelope, EnvelopeRejected, caller_of, is_envelope, repeat_id
from worker.demo_model import modifier_defaults
from worker.errors import (
    EngineUnreachable,
    NotReady,
    Problem,
    RequestIdTaken,
    RequestRejected,
    SubmissionFailed,
    WorkerError,
)
from worker.guard.bodies import LARGE_BODY_BYTES, Lease
from worker.guard.json_body import nested_too_deeply, parse_json
from worker.inputs.uploads import ReceivedFile
from worker.jobs.admission import Admitted, clean_id, fresh_id
from worker.jobs.job import Credentials, Job, JobRequest, JobState, JobTimes, WebhookTarget, body_hash
from worker.jobs.ownership import id_to_use, own_id
from worker.jobs.prompt_work import PromptWork
from worker.jobs.random_values import resolve
from worker.off_loop import LARGE_GRAPH_NODES, off_loop
from worker.outputs.options import OutputOptions
from worker.services import Services

_RANDOM_BOUND = 2**32
ENGINE_WAIT_SECONDS = 15.0  # how long a caller waits while an engine is being replaced

Answer = TypeVar("Answer")
Given = ParamSpec("Given")

log = structlog.get_logger("api")


async def submit(request: Request) -> tuple[Admitted, bool] | Response:
    """Create or find the job of a request.

    Returns the job, started if it is new, and True if the request came in Vast's envelope; or the refusal. The body is
    not held in memory any longer: the job has what it needs of it.
    """
    services = services_of(request)
    job_id, asked_id, is_vast, counted_as = "", "", False, ""
    caller: Caller | None = None
    parsed: ParsedRequest | None = None
    received = Received(b"")
    has_made_job = False

    async def make_job() -> Job:
        nonlocal has_made_job
        has_made_job = True
        assert parsed is not None
        services.caller_quota.reserve(counted_as, job_id)
        job = await _make_job(services, parsed, job_id, digest, counted_as)
        job.owner, job.asked_id = identity.key_name, asked_id if asked_id != job_id else ""
        return job

    def begin(job: Job) -> None:
        services.platform.job_accepted(job, caller)
        services.pipeline.start(job)

    async def admit() -> Admitted:
        assert parsed is not None
        return await services.admission.admit(
            job_id, digest, make_job, parsed.input.priority, begin, is_fresh=not named, owner=identity.key_name
        )

    held = contextlib.ExitStack()
    try:
        lease = held.enter_context(services.bodies.memory.lease(sender_of(request)))
        received = await _receive(request, services, lease)
        size_bytes = len(received.content)
        body = await _json_of(services, received.content)
        if is_multipart(request):
            body = _whole(body)
        is_vast = is_envelope(body)
        identity = check_caller(request, has_vast_envelope=is_vast)
        counted_as = caller_of_jobs(request, identity)
        envelope = None
        if is_vast:
            caller = caller_of(body)
            envelope = services.platform.open_envelope(body)
        payload = envelope.payload if envelope else body
        parsed = await _apart(size_bytes, _parse, payload, request, is_vast, received.files)
        await services.prompt_rules.check_size(parsed.input.workflow_json, size_bytes)
        wishes = parsed.wants_base64, parsed.wants_engine_response
        digest = await _apart(size_bytes, body_hash, parsed.raw, *wishes, is_large=size_bytes >= LARGE_BODY_BYTES)
        named = parsed.input.request_id or request.headers.get("idempotency-key", "")
        named = named or await _repeated_id(services, envelope, digest)
        job_id = asked_id = clean_id(named) if named else fresh_id()
        if named:
            job_id = await id_to_use(services.store, asked_id, identity.key_name)
        try:
            admitted = await admit()
        except RequestIdTaken:  # just now, by another caller
            job_id = own_id(asked_id, identity.key_name)
            admitted = await admit()
        if admitted.is_new:
            begin(admitted.job)
        else:
            services.platform.job_accepted(admitted.job, caller)
    except (WorkerError, RecursionError) as raised:
        error = raised if isinstance(raised, WorkerError) else nested_too_deeply()
        services.metrics.refused(error.code)
        services.platform.autoscaler.request_refused(_asked_cost(services, parsed), caller, error)
        return refuse(error, asked_id, is_vast=is_vast)
    except ClientDisconnect:
        return Response(status_code=499)
    except Exception:  # noqa: BLE001 - the request: a client that retries every 5xx must get a final answer
        log.exception("request submission failed", job_id=job_id)
        failed = SubmissionFailed("The worker failed; its log has the reason")
        services.metrics.refused(failed.code)
        services.platform.autoscaler.request_refused(_asked_cost(services, parsed), caller, failed)
        return refuse(failed, asked_id, is_vast=is_vast)
    finally:
        services.caller_quota.release(job_id)
        held.close()
        if received.files:
            await asyncio.to_thread(received.discard)
        if has_made_job and job_id not in services.store.jobs:
            services.inputs.release(job_id)
    return admitted, is_vast


async def _apart(
    size_bytes: int, function: Callable[Given, Answer], *arguments: Given.args, **named: Given.kwargs
) -> Answer:
    """Call a function on a body, off the event loop if the body is large."""
    if size_bytes < LARGE_BODY_BYTES:
        return function(*arguments, **named)
    return await asyncio.to_thread(function, *arguments, **named)


async def _json_of(services: Services, content: bytes | bytearray) -> dict[str, Any]:
    """Return the JSON object of a body. Raises RequestRejected, under Vast with the texts of its own worker."""
    try:
        return await services.bodies.parse(content)
    except RequestRejected as error:
        if services.platform.vast is None:
            raise
        raise EnvelopeRejected(error.problems, {"error": "invalid JSON"}) from None


async def _repeated_id(services: Services, envelope: Envelope | None, digest: str) -> str:
    """Return the job id for a request that the platform's client may repeat, while the job runs and after it succeeded.

    A job that failed or was cancelled is run again, under a new id.
    """
    repeated = repeat_id(envelope, digest) if envelope else ""
    earlier = await services.store.find(repeated) if repeated else None
    is_over = earlier is not None and earlier.state.is_terminal and earlier.state is not JobState.COMPLETED
    return "" if is_over else repeated


def _asked_cost(services: Services, parsed: ParsedRequest | None) -> float:
    """Return the cost that a refused request would have had, as far as its form allows an estimate."""
    unknown = services.platform.cost_of({})
    if parsed is None or len(parsed.input.workflow_json) >= LARGE_GRAPH_NODES:
        return unknown
    try:
        return services.platform.cost_of(_prompt(services, parsed.input, {}))
    except RequestRejected:
        return unknown
    except Exception:  # noqa: BLE001 - a user's modifier: its error has been reported; here only the estimate is lost
        return unknown


async def _receive(request: Request, services: Services, lease: Lease) -> Received:
    """Read the body, any files of it to disk. Raises RequestTooLarge, RequestRejected, DiskLow, Unauthorized."""
    if not is_multipart(request):
        return Received(await services.bodies.read(request, lease))
    sender = lease.sender

    def check_before_file(content: bytearray | None) -> None:
        if not sender.is_known:
            body = parse_json(content or b"{}")
            check_caller(request, has_vast_envelope=is_envelope(body))
            services.platform.envelopes.open(body)
            sender.identify()

    return await read_multipart(request, services.uploads, services.bodies, lease, check_before_file)


def _whole(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a request whose part named `input` holds the body or only its `input` object."""
    return body if "input" in body or is_envelope(body) else {"input": body}


def _parse(
    payload: Mapping[str, Any], request: Request, is_vast: bool, files: Mapping[str, ReceivedFile]
) -> ParsedRequest:
    parsed = parse_generate(payload)
    sent_along = {"multipart/form-data": {part: file.digest for part, file in files.items()}} if files else {}
    header = request.headers.get
    return ParsedRequest(
        input=parsed,
        raw={**payload["input"], **sent_along},
        files=files,
        is_vast=is_vast,
        wants_base64=parsed.return_outputs_as_base64 or is_true(header("x-return-outputs-as-base64")),
        wants_engine_response=is_true(header("x-include-comfyui-response")),
        base_url=str(request.base_url).rstrip("/"),
    )


async def _make_job(services: Services, parsed: ParsedRequest, job_id: str, digest: str, owner: str) -> Job:
    """Create a job of `owner` whose prompt has passed the policy and the graph check, its random values drawn."""
    webhook = _webhook(services, parsed.input)
    engine = await services.pool.any_up_within(ENGINE_WAIT_SECONDS)
    try:
        object_info = await engine.object_info()
        prompt: Mapping[str, Any] = _prompt(services, parsed.input, object_info)
        is_large, is_of_modifier = len(prompt) >= LARGE_GRAPH_NODES, bool(parsed.input.modifier)
        if is_of_modifier:
            await services.prompt_rules.check_size(prompt)
        prompt = await off_loop(is_large, resolve, prompt, lambda: secrets.randbelow(_RANDOM_BOUND))
        credentials = _credentials(services, parsed.input)
        await services.prompt_rules.check(prompt, object_info, is_of_modifier=is_of_modifier)
        check = partial(services.inputs.check, engine_checks_links=engine.has_check)
        await off_loop(is_large, check, prompt, object_info, credentials, parsed.files.keys())
        if parsed.files:
            prompt = await asyncio.to_thread(services.uploads.place, prompt, parsed.files, object_info)
        planned = await off_loop(is_large, services.inputs.plan, prompt, object_info)
        await engine.check(planned.prompt, planned.pending_files)
        known = await engine.object_info()
        if known is not object_info:  # reloaded by the check: the policy applies to the new one too
            await services.prompt_rules.check(prompt, known, is_of_modifier=is_of_modifier)
        if planned.pending_files:
            prompt = await services.inputs.keep_inline(prompt, object_info, job_id)
        if owner and services.caller_rates.counts_pixel_steps:
            work = await off_loop(is_large, PromptWork, prompt, known)
            services.caller_rates.spend_pixel_steps(owner, work.pixel_steps)
    except RequestRejected as rejected:
        raise _in_terms_of_the_modifier(services, parsed.input.modifier, rejected) from None
    except EngineUnreachable as error:  # it disconnected just now
        raise NotReady(error.message, retry_after_seconds=5) from None
    if parsed.files:
        await asyncio.to_thread(services.uploads.keep, parsed.files, prompt, job_id)
    return Job(
        id=job_id,
        number=services.store.take_number(),
        body_hash=digest,
        cost=await off_loop(is_large, services.platform.cost_of, prompt),
        request=JobRequest(
            modifier=parsed.input.modifier,
            priority=parsed.input.priority,
            wants_base64=parsed.wants_base64,
            wants_engine_response=parsed.wants_engine_response or services.outputs.include_engine_response,
            webhook=webhook,
            extra={"extra_pnginfo": parsed.input.extra_data.extra_pnginfo} if parsed.input.extra_data else {},
            base_url=parsed.base_url,
            caller=owner,
            output=OutputOptions.of(parsed.input.output.model_dump() if parsed.input.output else None),
        ),
        prompt=prompt,
        times=JobTimes(queued_at_ms=int(time.time() * 1000)),
        credentials=credentials,
    )


def _credentials(services: Services, parsed: GenerateInput) -> Credentials:
    asked_s3 = None if parsed.s3 is None else parsed.s3.model_dump(exclude_none=True)
    if asked_s3 is not None:
        services.check_s3(asked_s3)
    return Credentials(
        s3=asked_s3,
        webhook_secret=None if parsed.webhook is None else parsed.webhook.secret,
    )


def _prompt(services: Services, parsed: GenerateInput, object_info: Mapping[str, Any]) -> dict[str, Any]:
    if not parsed.modifier:
        return parsed.workflow_json
    try:
        return services.modifiers.build(
            parsed.modifier, parsed.modifications, modifier_defaults(object_info, parsed.modifications)
        )
    except UnknownModifier as error:
        problem = Problem(str(error), field="input.modifier", type="unknown_modifier", allowed=list(error.known))
        raise RequestRejected([problem]) from None
    except ModificationsRejected as error:
        problems = [
            Problem(item["message"], field=f"input.modifications.{item['field']}", allowed=item["allowed"])
            for item in error.problems
        ]
        raise RequestRejected(problems, num_unlisted=error.num_unlisted) from None


def _in_terms_of_the_modifier(services: Services, modifier: str, rejected: RequestRejected) -> RequestRejected:
    """Add the modification's field to each problem at an input that a modification fills."""
    if modifier not in services.modifiers.names():
        return rejected
    fields = services.modifiers.get(modifier)
    named = []
    for problem in rejected.problems:
        field = fields.field_at(problem.node_id or "", problem.field or "")
        named.append(problem if field is None else replace(problem, field=f"input.modifications.{field}"))
    return RequestRejected(named, num_unlisted=rejected.num_unlisted)


def _webhook(services: Services, parsed: GenerateInput) -> WebhookTarget | None:
    """Return the webhook of a request; the request's settings override the environment's."""
    asked = parsed.webhook or WebhookInput()
    if asked.url:
        services.check_webhook_url(asked.url)
    url = asked.url or services.webhook.url
    if not url:
        return None
    events = tuple(dict.fromkeys(asked.events))
    return WebhookTarget(url, asked.timeout or services.webhook.timeout_seconds, asked.extra_params, events)
