"""Comfy Cloud's first API: ComfyUI's own routes below `/api`, with a key in `X-API-Key`. comfy-cli speaks it.

It has the jobs of the worker: prompts sent here wait in its queue, survive its restarts, and are their caller's own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import PurePosixPath
from typing import Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse, Response
from pydantic import SecretStr
from starlette.datastructures import UploadFile

from darkroom.worker.api.asset_references import PREFIX as ASSET
from darkroom.worker.api.asset_uploads import read_form, room_of
from darkroom.worker.api.body_sizes import takes_jobs, takes_little
from darkroom.worker.api.callers import sender_of
from darkroom.worker.api.declared import FILE
from darkroom.worker.api.direct_submission import submit_input
from darkroom.worker.api.interface_keys import with_key
from darkroom.worker.api.page_headers import file_headers
from darkroom.worker.api.results import check_caller, public_outputs, services_of
from darkroom.worker.api.workflow_bodies import ENGINE_WAIT_SECONDS
from darkroom.worker.concurrency.off_loop import off_loop
from darkroom.worker.errors import AssetNotFound, EngineUnreachable, JobNotFound, Problem, RequestRejected, WorkerError
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.guard.json_body import nested_too_deeply
from darkroom.worker.guard.json_scan import FoundJson
from darkroom.worker.integrations.comfy_cloud.form import (
    MAX_NAME_LENGTH,
    error_of,
    file_names,
    read_place,
    read_prompt,
    shown_job,
    shown_outputs,
    shown_record,
    with_own_files,
    with_references,
)
from darkroom.worker.integrations.comfy_cloud.replies import (
    CloudHistory,
    CloudJob,
    CloudJobs,
    CloudPrompt,
    CloudRefusal,
    CloudUpload,
)
from darkroom.worker.jobs.ownership import find_job
from darkroom.worker.json.finite import FiniteJSONResponse
from darkroom.worker.json.values import JsonObject
from darkroom.worker.settings.api_keys import Scope
from darkroom.worker.storage.job import Job
from darkroom.worker.storage.job_labels import find_labelled

router = APIRouter(prefix="/api", tags=["Comfy Cloud API"])

MAX_PAGE: Final = 200
UPLOADED: Final = "input/"
"""Prefix of the names of files that are uploaded here, among the assets of their owner."""

REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    code: {"model": CloudRefusal} for code in (400, 401, 403, 404, 409, 413, 429, 500, 502, 503)
}


def _refused(error: WorkerError) -> Response:
    status, body, headers = error_of(error)
    return JSONResponse(body, status_code=status, headers=headers)


def _keyed(request: Request) -> Request:
    """Return the request with the key of `X-API-Key` where a bearer token is read; one in Authorization goes first."""
    key = request.headers.get("x-api-key", "")
    return request if not key or "authorization" in request.headers else with_key(request, SecretStr(key))


@router.post("/prompt", operation_id="cloud_prompt", response_model=CloudPrompt, responses=REFUSALS)
@takes_jobs
async def post_prompt(request: Request) -> Response:
    """Submit a prompt. A client's own `prompt_id` makes a repetition attach to the same job."""
    try:
        keyed = _keyed(request)
        caller, services = check_caller(keyed), services_of(keyed)
        with services.requests.bodies.memory.lease(sender_of(keyed)) as lease:
            content = await services.requests.bodies.read(request, lease)
            body = await services.requests.bodies.parse(content)
        given = await off_loop(True, read_prompt, body, FoundJson(services.requests.bodies.structure))
        given["workflow_json"] = await _with_uploads(request, caller, given["workflow_json"])
        asked_id = body.get("prompt_id")
        admitted = await submit_input(keyed, caller, given, asked_id if isinstance(asked_id, str) else "")
    except RecursionError:
        return _refused(nested_too_deeply())
    except WorkerError as error:
        return _refused(error)
    job = admitted.job
    return JSONResponse({"prompt_id": job.public_id, "number": job.number, "node_errors": {}})


@router.get("/jobs", operation_id="cloud_jobs", response_model=CloudJobs, responses=REFUSALS)
async def get_jobs(request: Request, limit: int = Query(50, ge=1, le=MAX_PAGE)) -> Response:
    """Return the caller's jobs, the newest first; an operator gets all."""
    try:
        caller, store = check_caller(_keyed(request)), services_of(request).jobs.store
        owner = None if Scope.ADMIN in caller.scopes else caller.key_name
        found = await find_labelled(store, {}, limit + 1, owner=owner, before=None)
    except WorkerError as error:
        return _refused(error)
    jobs = [await store.find(job_id) for job_id, _ in found[:limit]]
    listed = [shown_job(job, len(job.outputs)) for job in jobs if job is not None]
    page = {"limit": limit, "offset": 0, "total": len(listed), "has_more": len(found) > limit}
    return FiniteJSONResponse({"jobs": listed, "pagination": page})


@router.get("/jobs/{job_id}", operation_id="cloud_job", response_model=CloudJob, responses=REFUSALS)
async def get_job(job_id: str, request: Request) -> Response:
    """Return a job, with its outputs once it has ended."""
    return await _job_reply(
        job_id, request, lambda job, records: shown_job(job, len(records)) | {"outputs": shown_outputs(job, records)}
    )


@router.get("/job/{job_id}/status", operation_id="cloud_job_status", response_model=CloudJob, responses=REFUSALS)
async def get_status(job_id: str, request: Request) -> Response:
    """Return a job's state."""
    return await _job_reply(job_id, request, lambda job, records: shown_job(job, len(records)))


@router.get("/history_v2/{job_id}", operation_id="cloud_history", response_model=CloudHistory, responses=REFUSALS)
async def get_history(job_id: str, request: Request) -> Response:
    """Return the record of a job by its id; an empty object before it has ended."""

    def shown(job: Job, records: Sequence[JsonObject]) -> JsonObject:
        return {job_id: shown_record(job, records)} if job.state.is_terminal else {}

    return await _job_reply(job_id, request, shown)


@router.post("/jobs/{job_id}/cancel", operation_id="cloud_cancel", response_model=CloudJob, responses=REFUSALS)
@takes_little
async def cancel_job(job_id: str, request: Request) -> Response:
    """Cancel a job, within one sampling step. One that has ended stays as it is."""
    try:
        job, pipeline = await _find(job_id, _keyed(request)), services_of(request).jobs.pipeline
        if pipeline.cancel(job):
            await pipeline.check_end(job)
    except WorkerError as error:
        return _refused(error)
    return FiniteJSONResponse(shown_job(job, 0))


@router.get(
    "/view", operation_id="cloud_view", response_class=FileResponse, responses={**FILE, **REFUSALS}
)  # fmt: skip
async def view(request: Request, filename: str = "", subfolder: str = "", type: str = "output") -> Response:
    """Redirect to the file of an output, or return a file that the caller has uploaded (`type=input`)."""
    try:
        keyed = _keyed(request)
        caller, services = check_caller(keyed), services_of(keyed)
        if type == "input":
            asset = await services.files.assets.named(UPLOADED + filename, caller.key_name)
            path = await asyncio.to_thread(services.files.assets.file_of, asset)
            return FileResponse(path, media_type=asset.content_type, headers=file_headers(asset.content_type))
        place = read_place(subfolder)
        job = None if place is None else await find_job(services.jobs.store, place[0], caller)
        records = [] if job is None else await public_outputs(job, keyed)
        if place is None or place[1] >= len(records) or "url" not in records[place[1]]:
            raise AssetNotFound(
                "filename: no such output; expected filename and subfolder as the job's outputs have them"
            )
    except WorkerError as error:
        return _refused(error)
    return RedirectResponse(str(records[place[1]]["url"]), status_code=302)


@router.post("/upload/image", operation_id="cloud_upload", response_model=CloudUpload, responses=REFUSALS)
@takes_jobs
async def upload_image(request: Request) -> Response:
    """Store a file for prompts of this caller, which name it by the name in the reply."""
    try:
        keyed = _keyed(request)
        caller, assets = check_caller(keyed), services_of(keyed).files.assets
        form = await read_form(keyed, request)
        file = form.get("image")
        try:
            if not isinstance(file, UploadFile):
                raise RequestRejected([Problem("image: missing; expected a part with a file", "image", type="missing")])
            kind = file.content_type or "application/octet-stream"
            name = PurePosixPath((file.filename or "file").replace("\\", "/")).name[:MAX_NAME_LENGTH] or "file"
            room = room_of(keyed, caller)
            added, _ = await assets.add(file.file, caller.key_name, kind, "upload", check_room=room)
        finally:
            for part in form.values():
                if isinstance(part, UploadFile):
                    await part.close()
        name = await _free_name(request, caller, name, added.hash, is_replaced=_is_true(form.get("overwrite")))
        await assets.of_hash(added.hash, caller.key_name, UPLOADED + name, room)
    except WorkerError as error:
        return _refused(error)
    return JSONResponse({"name": name, "subfolder": "", "type": "input"})


@router.get("/object_info", operation_id="cloud_object_info", responses=REFUSALS)
async def get_object_info(request: Request) -> Response:
    """Return the engine's node classes; where a file goes, the names of what the caller has uploaded."""
    try:
        caller, services = check_caller(_keyed(request)), services_of(request)
        engine = await services.engines.pool.any_known_within(ENGINE_WAIT_SECONDS)
        try:
            found = await engine.known_object_info()
        except EngineUnreachable:
            raise services.engines.pool.no_engine() from None
        names = await services.files.assets.names(UPLOADED, caller.key_name)
    except WorkerError as error:
        return _refused(error)
    own = [name.removeprefix(UPLOADED) for name in names]
    text = await asyncio.to_thread(lambda: json.dumps(with_own_files(found, own)))
    return Response(text, media_type="application/json")


async def _job_reply(
    job_id: str, request: Request, show: Callable[[Job, Sequence[JsonObject]], JsonObject]
) -> Response:
    try:
        keyed = _keyed(request)
        job = await _find(job_id, keyed)
        job = await services_of(request).jobs.pipeline.shown(job)
        return FiniteJSONResponse(show(job, await public_outputs(job, keyed)))
    except WorkerError as error:
        return _refused(error)


async def _find(job_id: str, keyed: Request) -> Job:
    """Return the caller's job. Raises JobNotFound."""
    job = await find_job(services_of(keyed).jobs.store, job_id, check_caller(keyed))
    if job is None:
        raise JobNotFound(f"job {job_id[:80]}: no such id")
    return job


async def _with_uploads(request: Request, caller: Identity, prompt: dict[str, object]) -> dict[str, object]:
    """Return a prompt that refers to the caller's uploads where it names them."""
    names = file_names(prompt)
    found = await services_of(request).files.assets.all_named([UPLOADED + name for name in names], caller.key_name)
    references = {name.removeprefix(UPLOADED): f"{ASSET}{asset.id}" for name, asset in found.items()}
    return with_references(prompt, references) if references else prompt


async def _free_name(request: Request, caller: Identity, name: str, digest: str, *, is_replaced: bool) -> str:
    """Return the name for an upload; another file's name gets a number unless that file is to be replaced."""
    assets, path = services_of(request).files.assets, PurePosixPath(name)
    for number in count(1):
        held = await assets.all_named([UPLOADED + name], caller.key_name)
        if is_replaced or not held or next(iter(held.values())).hash == digest:
            return name
        name = f"{path.stem} ({number}){path.suffix}"
    raise AssertionError("unreachable: the numbers do not end")


def _is_true(value: object) -> bool:
    return isinstance(value, str) and value.lower() in ("true", "1")
