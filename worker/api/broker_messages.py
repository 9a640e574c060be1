"""Jobs that come as messages of a broker: made like those of HTTP, from the same body."""

from __future__ import annotations

import asyncio

from worker.api.job_making import JobName, make_job
from worker.api.request_forms import open_request
from worker.api.request_warnings import find_form_warnings
from worker.api.results import outputs_of
from worker.api.schemas import ParsedRequest, parse_generate
from worker.guard.json_body import parse_json
from worker.guard.json_scan import FoundJson, check_json
from worker.jobs.admission import clean_id
from worker.jobs.envelope import result_of
from worker.jobs.job import Job, body_hash
from worker.off_loop import off_loop
from worker.services import Services
from worker.sources.broker import Delivery


async def accept_message(services: Services, delivery: Delivery) -> Job:
    """Return the job of a message, stored and started; the earlier one where the message is a duplicate.

    Raises WorkerError.
    """
    structure = services.bodies.structure
    await asyncio.to_thread(check_json, delivery.body, structure)
    body = await asyncio.to_thread(parse_json, delivery.body)
    parsed = await off_loop(True, _parse, body, delivery, FoundJson(structure))
    await services.prompt_rules.check_size(parsed.input.workflow_json, len(delivery.body))
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
        services.pipeline.start(job)

    priority, owner = parsed.input.priority, delivery.owner
    try:
        admitted = await services.admission.admit(job_id, digest, make, priority, begin, owner=owner)
        if admitted.is_new:
            begin(admitted.job)
        return admitted.job
    finally:
        if has_made and job_id not in services.store.jobs:  # refused: what it sent inline is not needed
            services.inputs.release(job_id)


async def message_result(services: Services, job: Job) -> dict[str, object]:
    """Return the envelope of an ended job for its producer: outputs with a link, or with their data where none is."""
    return result_of(job, await outputs_of(services, job, services.outputs.public_url))


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
