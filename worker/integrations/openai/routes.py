"""POST /v1/images/generations, /v1/images/edits, GET /v1/models: OpenAI's images API over the modifiers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from darkroom.modifiers.registry import ModifierRegistry
from darkroom.worker.api.body_sizes import takes_jobs
from darkroom.worker.api.callers import sender_of
from darkroom.worker.api.declared import LATER, REASONS, RETRY_AFTER
from darkroom.worker.api.direct_submission import submit_input
from darkroom.worker.api.results import check_caller, public_outputs, services_of
from darkroom.worker.errors import EngineUnreachable, Problem, RequestRejected, WorkerError
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.guard.json_body import nested_too_deeply
from darkroom.worker.integrations.openai.form import Order, error_body, error_of, image_of, read_order, reply_of
from darkroom.worker.integrations.openai.replies import OpenAiError, OpenAiImages, OpenAiModels
from darkroom.worker.json import finite as finite_json
from darkroom.worker.json.finite import FiniteJSONResponse
from darkroom.worker.json.values import JsonObject
from darkroom.worker.prompts.modifier_defaults import checkpoints_of
from darkroom.worker.storage.job import Job, JobState

router = APIRouter(tags=["OpenAI's form"])

MAX_FORM_FIELDS: Final = 100
MAX_FORM_FILES: Final = 8
MAX_FIELD_BYTES: Final = 1024 * 1024
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    code: {
        "model": OpenAiError,
        "description": REASONS.get(code, "The request is wrong"),
        **({"headers": RETRY_AFTER} if code in LATER else {}),
    }
    for code in (400, 401, 403, 413, 429, 499, 500, 502, 503, 504)
}
_FIELDS: Final[dict[str, Any]] = {
    "prompt": {"type": "string"},
    "model": {
        "type": "string",
        "description": "A modifier, a checkpoint, or a name of OpenAI's: the worker's default.",
    },
    "n": {"type": "integer", "minimum": 1, "maximum": 10},
    "size": {"type": "string", "description": "`auto`, or width and height such as `1024x1024`."},
    "response_format": {"enum": ["b64_json", "url"]},
    "output_format": {"enum": ["png", "jpeg", "webp"]},
    "output_compression": {"type": "integer", "minimum": 0, "maximum": 100},
    "stream": {"type": "boolean"},
}
_FILE: Final = {"type": "string", "format": "binary"}


def _body(content_type: str, required: Sequence[str], **fields: Any) -> dict[str, Any]:
    schema = {"type": "object", "required": list(required), "properties": {**_FIELDS, **fields}}
    schema["description"] = "Further fields are parameters of the modifier: `negative_prompt`, `seed`, `steps`, ..."
    return {"requestBody": {"required": True, "content": {content_type: {"schema": schema}}}}


@router.post(
    "/v1/images/generations",
    operation_id="openai_generations",
    response_model=OpenAiImages,
    responses=_REFUSALS,
    openapi_extra=_body("application/json", ["prompt"]),
)
@takes_jobs
async def generations(request: Request) -> Response:
    """Draw images from a text, one job each, and reply when all have ended."""
    try:
        caller = check_caller(request)
        services = services_of(request)
        with services.requests.bodies.memory.lease(sender_of(request)) as lease:
            fields = await services.requests.bodies.parse(await services.requests.bodies.read(request, lease))
        order = read_order(fields, _drawing(services.requests.modifiers), await _checkpoints(request))
    except RecursionError:
        return _refused(nested_too_deeply())
    except WorkerError as error:
        return _refused(error)
    return await _filled(order, request, caller)


@router.post(
    "/v1/images/edits",
    operation_id="openai_edits",
    response_model=OpenAiImages,
    responses=_REFUSALS,
    openapi_extra=_body("multipart/form-data", ["prompt", "image"], image=_FILE, mask=_FILE),
)
@takes_jobs
async def edits(request: Request) -> Response:
    """Change an image after a text: below the mask's transparent part, else the whole image."""
    try:
        caller = check_caller(request)
        services = services_of(request)
        fields, images, mask = await _form(request)
        names = _drawing(services.requests.modifiers)
        order = await asyncio.to_thread(read_order, fields, names, await _checkpoints(request), images, mask)
    except WorkerError as error:
        return _refused(error)
    return await _filled(order, request, caller)


@router.get("/v1/models", operation_id="openai_models", response_model=OpenAiModels, responses=_REFUSALS)
async def models(request: Request) -> Response:
    """Return the allowed values of `model`: the modifiers and the checkpoints."""
    try:
        check_caller(request)
    except WorkerError as error:
        return _refused(error)
    names = [*_drawing(services_of(request).requests.modifiers), *await _checkpoints(request)]
    entries = [{"id": name, "object": "model", "created": 0, "owned_by": "darkroom"} for name in names]
    return JSONResponse({"object": "list", "data": entries})


def _drawing(modifiers: ModifierRegistry) -> list[str]:
    """Return the names of the modifiers that draw images."""
    return [name for name in modifiers.names() if not modifiers.get(name).draws_videos]


async def _checkpoints(request: Request) -> Sequence[str]:
    """Return the checkpoints of an engine; none while none answers."""
    try:
        return checkpoints_of(await services_of(request).engines.pool.any_client.known_object_info())
    except EngineUnreachable:
        return ()


async def _form(request: Request) -> tuple[JsonObject, list[bytes], bytes | None]:
    """Return the fields, the images and the mask of a form. Raises RequestRejected, RequestTooLarge, MemoryLow."""
    services, sender = services_of(request), sender_of(request)
    services.requests.bodies.check_length(request, None)
    with services.requests.bodies.memory.lease(sender) as lease:

        async def chunks() -> AsyncGenerator[bytes, None]:
            num_bytes = 0
            async for chunk in request.stream():
                lease.grow(len(chunk))
                num_bytes += len(chunk)
                services.requests.bodies.check_size(num_bytes, sender, None)
                yield chunk

        parser = MultiPartParser(
            request.headers,
            chunks(),
            max_files=MAX_FORM_FILES,
            max_fields=MAX_FORM_FIELDS,
            max_part_size=MAX_FIELD_BYTES,
        )
        try:
            form = await parser.parse()
        except (MultiPartException, KeyError, ValueError) as error:
            message = f"body: is no multipart form: {error}; expected multipart/form-data"
            raise RequestRejected([Problem(message[:300], "body")]) from None
        try:
            fields: dict[str, Any] = {}
            images: list[bytes] = []
            mask = None
            for name, value in form.multi_items():
                if not isinstance(value, UploadFile):
                    fields[name] = value
                elif name.removesuffix("[]") == "image":
                    images.append(await value.read())
                elif name == "mask":
                    mask = await value.read()
            return fields, images, mask
        finally:
            await form.close()


async def _filled(order: Order, request: Request, caller: Identity) -> Response:
    """Submit the jobs of an order and reply with their images, or with their events."""
    jobs: list[Job] = []
    try:
        for given in order.inputs:
            jobs.append((await submit_input(request, caller, given)).job)
    except WorkerError as error:
        _cancel(jobs, request)
        return _refused(error)
    if order.is_streamed:
        return StreamingResponse(_events(order, jobs, request), media_type="text/event-stream")
    ending = asyncio.ensure_future(_ended(jobs, request))
    leaving = asyncio.ensure_future(_left(request))
    watched: set[asyncio.Future[Any]] = {ending, leaving}
    try:
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            _cancel(jobs, request)
            return Response(status_code=499)
        ending.result()
    except WorkerError as error:  # the worker stops: its jobs go on when it starts again
        return _refused(error)
    finally:
        leaving.cancel()
        ending.cancel()
    failed = next((job for job in jobs if job.state is not JobState.COMPLETED), None)
    if failed is not None:
        return _failed(failed)
    images = [record for job in jobs for record in await _images(job, request)]
    return FiniteJSONResponse(reply_of(images, order, int(time.time())))


async def _ended(jobs: Sequence[Job], request: Request) -> None:
    for job in jobs:
        await services_of(request).jobs.pipeline.wait_for_end(job)


async def _events(order: Order, jobs: Sequence[Job], request: Request) -> AsyncIterator[str]:
    """Yield an event for each image as its job ends. A client that leaves ends the jobs."""
    has_ended = False
    try:
        for job in jobs:
            await services_of(request).jobs.pipeline.wait_for_end(job)
            if job.state is not JobState.COMPLETED:
                failure = job.failure
                body = error_body(500, failure.code if failure else "", job.message)
                yield _event("error", body)
                return
            for record in await _images(job, request):
                shown = {"created_at": int(time.time()), "size": order.size or "auto", "quality": "auto"}
                shown |= {"background": "auto", "output_format": order.output_format or "png"}
                yield _event(f"{order.event}.completed", {**shown, **image_of(record, order)})
        has_ended = True
    except WorkerError as error:
        yield _event("error", error_of(error)[1])
    finally:
        if not has_ended:
            _cancel(jobs, request)


async def _images(job: Job, request: Request) -> list[dict[str, Any]]:
    shown = await public_outputs(job, request)
    return [record for record in shown if "url" in record or "data" in record]


def _cancel(jobs: Sequence[Job], request: Request) -> None:
    for job in jobs:
        if not job.state.is_terminal:
            services_of(request).jobs.pipeline.cancel(job)


async def _left(request: Request) -> None:
    with contextlib.suppress(RuntimeError):
        while (await request.receive())["type"] != "http.disconnect":
            pass


def _event(name: str, data: JsonObject) -> str:
    return f"event: {name}\ndata: {finite_json.dumps({'type': name, **data})}\n\n"


def _failed(job: Job) -> Response:
    failure = job.failure
    status = failure.status if failure is not None else 500
    body = error_body(status, failure.code if failure is not None else "", job.message)
    return FiniteJSONResponse(body, status_code=400 if status == 422 else status)


def _refused(error: WorkerError) -> Response:
    status, body, headers = error_of(error)
    return FiniteJSONResponse(body, status_code=status, headers=headers)
