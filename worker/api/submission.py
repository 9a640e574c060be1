"""Submission of a job from an HTTP request: read, check the caller, unwrap, validate the form, admit.

Order: form, modifier, random values, graph check, job on disk. Bad input costs no GPU time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import structlog
from fastapi import Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect
from structlog.contextvars import bind_contextvars

from darkroom.contract.graph.work import PromptWork
from darkroom.worker.api.callers import sender_of
from darkroom.worker.api.job_making import JobName, build_prompt, make_job
from darkroom.worker.api.multipart import Received, is_multipart, read_multipart
from darkroom.worker.api.request_forms import is_plain, open_request
from darkroom.worker.api.request_tracing import traceparent_of
from darkroom.worker.api.request_warnings import RequestWarning, find_form_warnings, find_misspelt, id_warning
from darkroom.worker.api.results import caller_of_jobs, check_caller, refuse, services_of
from darkroom.worker.api.schemas import ParsedRequest, is_true, parse_generate
from darkroom.worker.api.services import JobServices, Services
from darkroom.worker.autoscaler.autoscaler import Caller
from darkroom.worker.autoscaler.envelope import EnvelopeRejected, OpenedEnvelope
from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.errors import RequestIdTaken, RequestRejected, SubmissionFailed, WorkerError
from darkroom.worker.guard.bodies import LARGE_BODY_BYTES, Lease
from darkroom.worker.guard.json_body import nested_too_deeply, parse_json
from darkroom.worker.guard.json_scan import FoundJson
from darkroom.worker.inputs.uploads import ReceivedFile
from darkroom.worker.jobs.admission import Admitted, clean_id, fresh_id
from darkroom.worker.jobs.ownership import id_to_use, own_id
from darkroom.worker.json.values import JsonObject
from darkroom.worker.prompts.modifier_defaults import ModifierDefaults
from darkroom.worker.storage.job import Job, JobState, body_hash

Answer = TypeVar("Answer")
Given = ParamSpec("Given")

log = structlog.get_logger("api")


def as_it_came(payload: JsonObject) -> JsonObject:
    """Return a request that needs no change before it is parsed."""
    return payload


async def submit(
    request: Request, adapt: Callable[[JsonObject], JsonObject] = as_it_came
) -> tuple[Admitted, bool] | Response:
    """Create or find the job of a request; `adapt` makes the body of a generate request of the body that came.

    Returns the job, started if it is new, and True if the request came in Vast's envelope; or the refusal. The body is
    not held in memory any longer: the job has what it needs of it.
    """
    submission = _Submission(request, adapt)
    error: WorkerError
    try:
        return await submission.run(), submission.is_vast
    except WorkerError as raised:
        error = raised
    except RecursionError:
        error = nested_too_deeply()
    except ClientDisconnect:
        return Response(status_code=499)
    except Exception:  # noqa: BLE001 - the request: a client that retries every 5xx must get a final answer
        log.exception("request submission failed", request_id=submission.job_id)
        error = SubmissionFailed("The worker failed; its log has the reason")
    finally:
        await submission.close()
    return submission.refused(error)


class _Submission:
    """One request on its way to a job: what is known of it so far, for the refusal and the clean-up."""

    def __init__(self, request: Request, adapt: Callable[[JsonObject], JsonObject]) -> None:
        self._request = request
        self._adapt = adapt
        self._services = services_of(request)
        self.job_id = ""
        self._asked_id = ""
        self.is_vast = False
        self._caller: Caller | None = None
        self._parsed: ParsedRequest | None = None
        self._received = Received(b"")
        self._has_made_job = False
        self._id_warnings: list[RequestWarning] = []

    async def run(self) -> Admitted:
        """Return the job, new or earlier. Raises WorkerError, RecursionError, ClientDisconnect."""
        request, services = self._request, self._services
        with services.requests.bodies.memory.lease(sender_of(request)) as lease:
            self._received = await _receive(request, services, lease)
            size_bytes = len(self._received.content)
            body = await _json_of(services, self._received.content)
            if is_multipart(request):
                body = _whole(services, body)
            self.is_vast = services.platform.envelopes.is_envelope(body)
            identity = check_caller(request, has_vast_envelope=self.is_vast)
            counted_as = caller_of_jobs(request, identity)
            envelope = self._open_envelope(body) if self.is_vast else None
            payload = self._adapt(envelope.payload if envelope else body)
            is_large = size_bytes >= LARGE_BODY_BYTES or not is_plain(payload)
            parsed = await off_loop(is_large, _parse, payload, request, self.is_vast, self._received.files)
            self._parsed = parsed
            await services.requests.prompt_rules.check_size(parsed.input.workflow_json, size_bytes)
            wishes = parsed.wants_base64, parsed.wants_engine_response
            digest = await _apart(is_large, body_hash, parsed.raw, *wishes, is_large=is_large)
            is_named = await self._choose_id(parsed, envelope, digest, identity.key_name)
            parsed = replace(parsed, warnings=(*parsed.warnings, *self._id_warnings))
            return await self._admit(parsed, digest, identity.key_name, counted_as, is_named=is_named)

    def _open_envelope(self, body: JsonObject) -> OpenedEnvelope:
        envelopes = self._services.platform.envelopes
        self._caller = envelopes.caller_of(body)
        return envelopes.open_request(body)

    async def _choose_id(self, parsed: ParsedRequest, envelope: OpenedEnvelope | None, digest: str, owner: str) -> bool:
        """Set the ids of the job. Returns True if the request names one, so that it may be a repetition."""
        named = parsed.input.request_id or self._request.headers.get("idempotency-key", "")
        place = "input.request_id" if parsed.input.request_id else "Idempotency-Key"
        asked, named = named, named or await _repeated_id(self._services.jobs, envelope, digest)
        self.job_id = self._asked_id = clean_id(named) if named else fresh_id()
        self._id_warnings = id_warning(asked, self._asked_id, place) if asked else []
        if named:
            self.job_id = await id_to_use(self._services.jobs.store, self._asked_id, owner)
        bind_contextvars(request_id=self.job_id)
        return bool(named)

    async def _admit(
        self, parsed: ParsedRequest, digest: str, owner: str, counted_as: str, *, is_named: bool
    ) -> Admitted:
        services = self._services

        async def make() -> Job:
            self._has_made_job = True
            num_bytes = await asyncio.to_thread(_bytes_of, parsed.files) if parsed.files else 0
            services.files.caller_quota.reserve(counted_as, self.job_id, num_bytes)
            return await make_job(services, parsed, JobName(self.job_id, self._asked_id, owner, counted_as), digest)

        async def admit() -> Admitted:
            return await services.jobs.admission.admit(
                self.job_id, digest, make, parsed.input.priority, self._begin, is_fresh=not is_named, owner=owner
            )

        try:
            admitted = await admit()
        except RequestIdTaken:  # just now, by another caller
            self.job_id = own_id(self._asked_id, owner)
            bind_contextvars(request_id=self.job_id)
            admitted = await admit()
        if admitted.is_new:
            self._begin(admitted.job)
        else:
            services.platform.job_accepted(admitted.job, self._caller)
        return admitted

    def _begin(self, job: Job) -> None:
        self._services.platform.job_accepted(job, self._caller)
        self._services.jobs.pipeline.start(job)

    def refused(self, error: WorkerError) -> Response:
        """Count a refusal, report it to the autoscaler, and return the reply."""
        self._services.observation.metrics.refused(error.code)
        cost = _asked_cost(self._services, self._parsed)
        self._services.platform.autoscaler.request_refused(cost, self._caller, error)
        return refuse(error, self._asked_id, is_vast=self.is_vast)

    async def close(self) -> None:
        """Release what the request holds and its job does not."""
        self._services.files.caller_quota.release(self.job_id)
        if self._received.files:
            await asyncio.to_thread(self._received.discard)
        if self._has_made_job and self.job_id not in self._services.jobs.store.jobs:
            self._services.files.inputs.release(self.job_id)


async def _apart(
    is_apart: bool, function: Callable[Given, Answer], *arguments: Given.args, **named: Given.kwargs
) -> Answer:
    """Call a function on a body, off the event loop if the body is large or may have been unpacked to a large one."""
    if not is_apart:
        return function(*arguments, **named)
    return await asyncio.to_thread(function, *arguments, **named)


def _bytes_of(files: Mapping[str, ReceivedFile]) -> int:
    """Return the bytes of files that came with a request, equal ones counted once."""
    return sum({file.digest: file.path.stat().st_size for file in files.values()}.values())


async def _json_of(services: Services, content: bytes | bytearray) -> dict[str, object]:
    """Return the JSON object of a body. Raises RequestRejected, under Vast with the texts of its own worker."""
    try:
        return await services.requests.bodies.parse(content)
    except RequestRejected as error:
        if not services.platform.expects_envelopes:
            raise
        raise EnvelopeRejected(error.problems, {"error": "invalid JSON"}) from None


async def _repeated_id(jobs: JobServices, envelope: OpenedEnvelope | None, digest: str) -> str:
    """Return the job id for a request that the platform's client may repeat, while the job runs and after it succeeded.

    A job that failed or was cancelled is run again, under a new id.
    """
    repeated = envelope.repeat_id(digest) if envelope else ""
    earlier = await jobs.store.find(repeated) if repeated else None
    is_over = earlier is not None and earlier.state.is_terminal and earlier.state is not JobState.COMPLETED
    return "" if is_over else repeated


def _asked_cost(services: Services, parsed: ParsedRequest | None) -> float:
    """Return the cost that a refused request would have had, as far as its form allows an estimate."""
    unknown = services.platform.price_of(PromptWork({}), {}).cost
    if parsed is None or needs_thread(parsed.input.workflow_json):
        return unknown
    try:
        work = PromptWork(build_prompt(services.requests, parsed.input, ModifierDefaults()))
        return services.platform.price_of(work, {}).cost
    except RequestRejected:
        return unknown
    except Exception:  # noqa: BLE001 - a user's modifier: its error has been reported; here only the estimate is lost
        return unknown


async def _receive(request: Request, services: Services, lease: Lease) -> Received:
    """Read the body, any files of it to disk. Raises RequestTooLarge, RequestRejected, DiskLow, Unauthorized."""
    if not is_multipart(request):
        return Received(await services.requests.bodies.read(request, lease))
    sender = lease.sender

    def check_before_file(content: bytearray | None) -> None:
        if not sender.is_known:
            body = parse_json(content or b"{}")
            envelopes = services.platform.envelopes
            check_caller(request, has_vast_envelope=envelopes.is_envelope(body))
            envelopes.open(body)
            sender.identify()

    return await read_multipart(request, services.files.uploads, services.requests.bodies, lease, check_before_file)


def _whole(services: Services, body: dict[str, object]) -> dict[str, object]:
    """Return the body of a request whose part named `input` holds the body or only its `input` object."""
    return body if "input" in body or services.platform.envelopes.is_envelope(body) else {"input": body}


def _parse(
    payload: Mapping[str, Any], request: Request, is_vast: bool, files: Mapping[str, ReceivedFile]
) -> ParsedRequest:
    found_json = FoundJson(services_of(request).requests.bodies.structure)
    payload = open_request(payload, found_json)
    try:
        parsed = parse_generate(payload, found_json)
    except RequestRejected as rejected:
        misspelt = find_misspelt(payload)
        if not misspelt:
            raise
        raise RequestRejected([*misspelt, *rejected.problems]) from None
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
        traceparent=traceparent_of(request),
        warnings=tuple(find_form_warnings(payload)),
    )
