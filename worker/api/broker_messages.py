"""Jobs that come as messages of a broker: made like those of HTTP, from the same body."""

from __future__ import annotations

import asyncio
import json
import time
from hashlib import sha256
from typing import Any

from pydantic import ValidationError

from darkroom.worker.api.job_making import JobName, make_job, webhook_target
from darkroom.worker.api.request_forms import open_request
from darkroom.worker.api.request_warnings import find_form_warnings
from darkroom.worker.api.results import outputs_of
from darkroom.worker.api.schemas import MAX_METADATA_BYTES, ParsedRequest, WebhookInput, parse_generate
from darkroom.worker.api.services import JobServices, Services
from darkroom.worker.concurrency.off_loop import off_loop
from darkroom.worker.errors import RequestRejected, WorkerError
from darkroom.worker.guard.json_body import parse_json
from darkroom.worker.guard.json_scan import FoundJson, check_json
from darkroom.worker.jobs.admission import clean_id
from darkroom.worker.jobs.envelope import result_of
from darkroom.worker.json.values import object_at
from darkroom.worker.sources.broker import Delivery
from darkroom.worker.sources.oversized_jobs import check_size
from darkroom.worker.storage.job import Credentials, Job, JobRequest, JobState, JobTimes, body_hash


async def accept_message(services: Services, delivery: Delivery) -> Job:
    """Return the job of a message, stored and started; the earlier one where the message is a duplicate.

    Raises WorkerError.
    """
    structure = services.requests.bodies.structure
    await _forget_handed_back(services.jobs, clean_id(delivery.job_id), delivery)
    await asyncio.to_thread(check_json, delivery.body, structure)
    body = await asyncio.to_thread(parse_json, delivery.body, structure)
    check_size(body)
    parsed = await off_loop(True, _parse, body, delivery, FoundJson(structure))
    await services.requests.prompt_rules.check_size(parsed.input.workflow_json, len(delivery.body))
    digest = await asyncio.to_thread(body_hash, parsed.raw, parsed.wants_base64, False, is_large=True)
    job_id, has_made = clean_id(delivery.job_id), False

    async def make() -> Job:
        nonlocal has_made
        has_made = True
        return await make_job(
            services, parsed, JobName(job_id, delivery.asked_id or job_id, delivery.owner, ""), digest
        )

    def begin(job: Job) -> None:
        services.platform.job_accepted(job, None)
        services.jobs.pipeline.start(job)

    priority, owner = parsed.input.priority, delivery.owner
    try:
        admitted = await services.jobs.admission.admit(job_id, digest, make, priority, begin, owner=owner)
        if admitted.is_new:
            begin(admitted.job)
        return admitted.job
    finally:
        if has_made and job_id not in services.jobs.store.jobs:  # refused: what it sent inline is not needed
            services.files.inputs.release(job_id)


async def _forget_handed_back(jobs: JobServices, job_id: str, delivery: Delivery) -> bool:
    """Forget a job that an earlier delivery left here when another worker got it: it ends as this delivery's job.

    Returns True if there was one. Raises StateUnusable.
    """
    earlier = await jobs.store.find(job_id)
    is_left = earlier is not None and earlier.request.receipt not in ("", delivery.receipt)
    if earlier is None or not is_left or earlier.state is not JobState.CANCELLED:
        return False
    await jobs.store.delete_ended(earlier)
    return True


async def refuse_message(services: Services, delivery: Delivery, error: WorkerError) -> Job | None:
    """Return the job of a message that ends with an error before it begins, stored with its webhook.

    The job that was refused so before is returned as it is; one that an earlier delivery left here, which is another
    worker's, makes way. None: another job has the id. Raises StateUnusable.
    """
    job_id = clean_id(delivery.job_id)
    digest = sha256(delivery.body).hexdigest()
    earlier = await services.jobs.store.find(job_id)
    if earlier is not None and earlier.request.receipt not in ("", delivery.receipt) and not earlier.state.is_terminal:
        earlier.is_handed_back = True
        services.jobs.pipeline.cancel(earlier)
        await services.jobs.pipeline.wait_for_end(earlier)
    if await _forget_handed_back(services.jobs, job_id, delivery):
        earlier = None
    if earlier is not None:
        return earlier if earlier.state.is_terminal and earlier.body_hash == digest else None
    request, metadata, credentials = await asyncio.to_thread(_wishes, services, delivery)
    now_ms = int(time.time() * 1000)
    asked_id = delivery.asked_id or delivery.job_id
    job = Job(
        id=job_id,
        number=services.jobs.store.take_number(),
        body_hash=digest,
        request=request,
        prompt={},
        times=JobTimes(queued_at_ms=min(delivery.queued_ms or now_ms, now_ms)),
        credentials=credentials,
        owner=delivery.owner,
        metadata=metadata,
        asked_id=asked_id if asked_id != job_id else "",
    )
    await services.jobs.pipeline.refuse(job, error)
    return job


def _wishes(services: Services, delivery: Delivery) -> tuple[JobRequest, dict[str, Any], Credentials | None]:
    """Return the wishes of a refused message for its end, as far as they can be read: webhook, metadata, secret."""
    receipt, structure = delivery.receipt, services.requests.bodies.structure
    try:
        check_json(delivery.body, structure)
        given = object_at(parse_json(delivery.body, structure), "input")
        metadata, extra = object_at(given, "metadata"), given.get("webhook")
        if len(json.dumps(metadata)) > MAX_METADATA_BYTES:
            metadata = {}
    except RequestRejected:
        metadata, extra = {}, None
    try:
        asked = WebhookInput.model_validate(extra or {})
        target = webhook_target(services.deliveries, asked)
    except (ValidationError, RequestRejected):  # what is refused may be the webhook itself
        return JobRequest(receipt=receipt), dict(metadata), None
    credentials = None if asked.secret is None else Credentials(webhook_secret=asked.secret)
    return JobRequest(receipt=receipt, webhook=target), dict(metadata), credentials


async def message_result(services: Services, job: Job) -> dict[str, object]:
    """Return the envelope of an ended job for its producer: outputs with a link, or with their data where none is."""
    return result_of(job, await outputs_of(services, job, services.deliveries.outputs.public_url, is_for_broker=True))


def _parse(body: dict[str, object], delivery: Delivery, found_json: FoundJson) -> ParsedRequest:
    body = open_request(body, found_json)
    given = parse_generate(body, found_json)
    raw = body["input"]
    return ParsedRequest(
        input=given,
        raw=raw if isinstance(raw, dict) else {},
        is_vast=False,
        wants_base64=given.return_outputs_as_base64,
        wants_engine_response=False,
        base_url="",
        warnings=tuple(find_form_warnings(body)),
        receipt=delivery.receipt,
        queued_at_ms=delivery.queued_ms,
    )
