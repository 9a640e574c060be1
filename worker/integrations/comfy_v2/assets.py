"""The assets of the Comfy API v2: files uploaded once, found again by their hash, and referred to by their id."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.datastructures import UploadFile

from darkroom.worker.api.asset_uploads import read_form, room_of
from darkroom.worker.api.body_sizes import takes_jobs
from darkroom.worker.api.callers import sender_of
from darkroom.worker.api.declared import FILE
from darkroom.worker.api.page_headers import file_headers
from darkroom.worker.api.results import check_caller, public_outputs, services_of
from darkroom.worker.errors import AssetNotFound, Problem, RequestRejected, WorkerError
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.integrations.comfy_v2.form import BASE, error_of, read_output_id, shown_asset
from darkroom.worker.integrations.comfy_v2.replies import ComfyAsset, ComfyError
from darkroom.worker.jobs.ownership import find_job
from darkroom.worker.settings.api_keys import Scope
from darkroom.worker.storage.job import Job

router = APIRouter(prefix=BASE, tags=["Comfy API v2"])

MAX_NAME_LENGTH: Final = 400
CONTENT_TYPE: Final = re.compile(r"[\w.+-]{1,80}/[\w.+-]{1,80}(;[ -~]{1,100})?", re.ASCII)
REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    code: {"model": ComfyError} for code in (401, 403, 404, 409, 413, 422, 429, 500, 502)
}
_FORM: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "content_type": {"type": "string"},
                        "file_path": {"type": "string"},
                        "expected_hash": {"type": "string", "description": "`blake3:` and hexadecimal digits."},
                    },
                }
            }
        },
    }
}


def refused(error: WorkerError) -> Response:
    """Return the reply of a refusal in the format's envelope."""
    status, body, headers = error_of(error)
    return JSONResponse(body, status_code=status, headers=headers)


def base_of(request: Request) -> str:
    """Return the URL of the worker, as links have it."""
    return services_of(request).deliveries.outputs.public_url or str(request.base_url).rstrip("/")


@router.post(
    "/assets", operation_id="comfy_create_asset", status_code=201, response_model=ComfyAsset, responses=REFUSALS,
    openapi_extra=_FORM,
)  # fmt: skip
@takes_jobs
async def create_asset(request: Request) -> Response:
    """Store a file. One that the caller has uploaded before is found by its content."""
    try:
        caller, services = check_caller(request), services_of(request)
        form = await read_form(request, request)
        try:
            file = form["file"]
            if not isinstance(file, UploadFile):
                raise RequestRejected([Problem("file: missing; expected a part with a file", "file", type="missing")])
            kind = str(form.get("content_type") or file.content_type or "application/octet-stream")
            if not CONTENT_TYPE.fullmatch(kind):
                message = f"content_type: got {kind[:100]!r}, expected type/subtype such as image/png"
                raise RequestRejected([Problem(message, "content_type")])
            name = str(form.get("file_path") or file.filename or "file")[:MAX_NAME_LENGTH]
            expected = str(form.get("expected_hash") or "")
            room = room_of(request, caller)
            asset, is_new = await services.files.assets.add(file.file, caller.key_name, kind, name, expected, room)
        finally:
            for part in form.values():
                if isinstance(part, UploadFile):
                    await part.close()
    except WorkerError as error:
        return refused(error)
    shown = shown_asset(asset, base_of(request), time.time(), services.files.assets.ttl_seconds, created_new=is_new)
    return JSONResponse(shown, status_code=201 if is_new else 200)


@router.post(
    "/assets/from-hash", operation_id="comfy_asset_from_hash", response_model=ComfyAsset, responses=REFUSALS,
)  # fmt: skip
@takes_jobs
async def asset_from_hash(request: Request) -> Response:
    """Return an asset for content that the caller has uploaded before; 404 for content that is not there."""
    try:
        caller, services = check_caller(request), services_of(request)
        with services.requests.bodies.memory.lease(sender_of(request)) as lease:
            body = await services.requests.bodies.parse(await services.requests.bodies.read(request, lease))
        name = str(body.get("file_path") or "")[:MAX_NAME_LENGTH]
        room = room_of(request, caller)
        asset = await services.files.assets.of_hash(str(body.get("hash") or ""), caller.key_name, name, room)
    except WorkerError as error:
        return refused(error)
    shown = shown_asset(asset, base_of(request), time.time(), services.files.assets.ttl_seconds, created_new=False)
    return JSONResponse(shown)


@router.head("/assets/by-hash/{digest}", include_in_schema=False)
async def has_hash(digest: str, request: Request) -> Response:
    """Reply 200 for content that the caller has uploaded before, else 404."""
    try:
        caller = check_caller(request)
        await services_of(request).files.assets.of_hash(digest, caller.key_name)
    except WorkerError as error:
        return Response(status_code=error_of(error)[0])
    return Response(status_code=200)


@router.get("/assets/{asset_id}", operation_id="comfy_get_asset", response_model=ComfyAsset, responses=REFUSALS)
async def get_asset(asset_id: str, request: Request) -> Response:
    """Return an asset's record."""
    try:
        caller, services = check_caller(request), services_of(request)
        asset = await services.files.assets.get(asset_id, caller.key_name)
    except WorkerError as error:
        return refused(error)
    return JSONResponse(shown_asset(asset, base_of(request), time.time(), services.files.assets.ttl_seconds))


@router.get(
    "/assets/{asset_id}/content", operation_id="comfy_get_asset_content", response_class=FileResponse,
    responses={**FILE, **REFUSALS},
)  # fmt: skip
async def get_content(asset_id: str, request: Request) -> Response:
    """Return an asset's file, or redirect to that of a job's output."""
    try:
        caller, services = check_caller(request), services_of(request)
        output = read_output_id(asset_id)
        if output is not None:
            return await _output(*output, request, caller)
        asset = await services.files.assets.get(asset_id, caller.key_name)
        path = await asyncio.to_thread(services.files.assets.file_of, asset)
    except WorkerError as error:
        return refused(error)
    return FileResponse(path, media_type=asset.content_type, headers=file_headers(asset.content_type))


@router.delete("/assets/{asset_id}", operation_id="comfy_delete_asset", status_code=204, responses=REFUSALS)
async def delete_asset(asset_id: str, request: Request) -> Response:
    """Delete an asset. Jobs that were sent with it are not affected."""
    try:
        caller = check_caller(request, needs=Scope.SUBMIT)
        await services_of(request).files.assets.delete(asset_id, caller.key_name)
    except WorkerError as error:
        return refused(error)
    return Response(status_code=204)


async def _output(job_id: str, index: int, request: Request, caller: Identity) -> Response:
    job: Job | None = await find_job(services_of(request).jobs.store, job_id, caller)
    records = [] if job is None else await public_outputs(job, request)
    if index >= len(records):
        raise AssetNotFound(f"asset {job_id}~{index}: no such output")
    record = records[index]
    if isinstance(record.get("text"), str):
        return PlainTextResponse(record["text"])
    if "url" not in record:
        raise AssetNotFound(f"asset {job_id}~{index}: has no file")
    return RedirectResponse(str(record["url"]), status_code=307)
