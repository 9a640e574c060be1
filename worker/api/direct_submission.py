"""Submission of jobs whose input a route has made, from a request in another service's format."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import Request

from darkroom.worker.api.job_making import JobName, make_job
from darkroom.worker.api.request_forms import open_request
from darkroom.worker.api.request_tracing import traceparent_of
from darkroom.worker.api.results import caller_of_jobs, services_of
from darkroom.worker.api.schemas import ParsedRequest, parse_generate
from darkroom.worker.api.services import Services
from darkroom.worker.concurrency.off_loop import off_loop
from darkroom.worker.errors import RequestIdTaken
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.guard.json_scan import FoundJson
from darkroom.worker.jobs.admission import Admitted, clean_id, fresh_id
from darkroom.worker.jobs.ownership import id_to_use, own_id
from darkroom.worker.storage.job import Job, body_hash


async def submit_input(
    request: Request,
    caller: Identity,
    given: dict[str, Any],
    asked_id: str = "",
    *,
    unhashed: Mapping[str, Any] | None = None,
    found_json: FoundJson | None = None,
) -> Admitted:
    """Return the job of an `input` object, started if it is new; `asked_id` makes a repetition attach to it.

    `unhashed` are further fields of the input in which a repetition may differ; `found_json` counts what the files of
    several inputs of one request hold. Raises WorkerError.
    """
    services = services_of(request)
    found_json = found_json or FoundJson(services.requests.bodies.structure)
    parsed = await off_loop(True, _parse, request, {**given, **(unhashed or {})}, found_json)
    await services.requests.prompt_rules.check_size(parsed.input.workflow_json)
    digest = await asyncio.to_thread(body_hash, given, parsed.wants_base64, False, is_large=True)
    named = clean_id(asked_id) if asked_id else fresh_id()
    job_id = await id_to_use(services.jobs.store, named, caller.key_name) if asked_id else named
    submission = _Direct(services, parsed, digest, caller.key_name, caller_of_jobs(request, caller))
    try:
        return await submission.admit(job_id, named, is_fresh=not asked_id)
    except RequestIdTaken:  # just now, by another caller
        return await submission.admit(own_id(named, caller.key_name), named, is_fresh=False)


class _Direct:
    """One input on its way to a job."""

    def __init__(self, services: Services, parsed: ParsedRequest, digest: str, owner: str, counted_as: str) -> None:
        self._services = services
        self._parsed = parsed
        self._digest = digest
        self._owner = owner
        self._counted_as = counted_as

    async def admit(self, job_id: str, named: str, *, is_fresh: bool) -> Admitted:
        services, has_made = self._services, False

        async def make() -> Job:
            nonlocal has_made
            has_made = True
            services.files.caller_quota.reserve(self._counted_as, job_id)
            name = JobName(job_id, named, self._owner, self._counted_as)
            return await make_job(services, self._parsed, name, self._digest)

        priority = self._parsed.input.priority
        try:
            admitted = await services.jobs.admission.admit(
                job_id, self._digest, make, priority, self._begin, is_fresh=is_fresh, owner=self._owner
            )
            if admitted.is_new:
                self._begin(admitted.job)
            return admitted
        finally:
            services.files.caller_quota.release(job_id)
            if has_made and job_id not in services.jobs.store.jobs:
                services.files.inputs.release(job_id)

    def _begin(self, job: Job) -> None:
        self._services.platform.job_accepted(job, None)
        self._services.jobs.pipeline.start(job)


def _parse(request: Request, given: dict[str, Any], found_json: FoundJson) -> ParsedRequest:
    body = open_request({"input": given}, found_json)
    parsed = parse_generate(body, found_json)
    return ParsedRequest(
        input=parsed,
        raw=body["input"],
        is_vast=False,
        wants_base64=parsed.return_outputs_as_base64,
        wants_engine_response=False,
        base_url=str(request.base_url).rstrip("/"),
        traceparent=traceparent_of(request),
    )
